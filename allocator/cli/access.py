"""The clusters that a command acts on, from its options, the environment and a settings file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from allocator.core.settings import DEFAULT
from allocator.daemon import Config, load
from allocator.errors import ConfigError
from allocator.operate import Clusters, check_members_known

NOWHERE = "none"  # the value of --zookeeper with which the caller says that no ensemble has members of the group


@dataclass(frozen=True)
class Access(Clusters):
    """The clusters of a command."""

    settings: Optional[Config] = field(default=None, repr=False)
    """The settings file that they come from."""
    nowhere: bool = False
    """True if the caller said that no ensemble has members of the group."""

    @classmethod
    def of(
        cls,
        config: Optional[str],
        zookeeper: Optional[str] = None,
        root: Optional[str] = None,
        brokers: Optional[str] = None,
        timeout_s: float = 10.0,
        target: bool = False,
    ) -> Access:
        """The given addresses, and what is missing from the settings file `config`.

        Variables of the environment override the file; `target`: those for the target cluster.
        """
        nowhere = zookeeper == NOWHERE
        if nowhere:
            zookeeper = None
        if config is None:
            return cls(zookeeper, root or DEFAULT["root"], None, brokers, None, timeout_s, nowhere=nowhere)
        settings = load(config, target=target)
        return cls(
            None if nowhere else zookeeper or settings.zookeeper.hosts,
            root or settings.zookeeper.root,
            settings.zookeeper.options() or None,
            brokers or ",".join(settings.kafka.brokers),
            settings.kafka.security() or None,
            timeout_s,
            settings,
            nowhere,
        )

    def chosen_group(self, name: Optional[str]) -> str:
        """`name`, or the group of the settings file."""
        if name:
            return name
        if self.settings is None:
            raise ConfigError("which group? Name it, or give --config")
        return self.settings.group.name

    def shown(self) -> str:
        """The clusters that a command acts on, in words."""
        brokers = "no brokers" if self.brokers is None else f"brokers {self.brokers}"
        return f"{brokers}; " + (
            "members in ZooKeeper are not looked for"
            if self.zookeeper is None
            else f"ZooKeeper {self.zookeeper}, root {self.root}"
        )

    async def check_members_known(self, group: str) -> None:
        """Raises if members of the group may be registered where nobody looks for them: see `check_members_known`.

        `--zookeeper none`, or a settings file that says that this group does not use ZooKeeper, says that there are
        none.
        """
        settings = self.settings
        in_settings = settings is not None and settings.group.name == group
        if self.nowhere or (settings is not None and in_settings and settings.group.membership in ("kafka", "fixed")):
            return
        await check_members_known(self, group)
