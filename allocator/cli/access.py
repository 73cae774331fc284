"""Finds the clusters of a command from its options, the environment and a settings file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from allocator.core.settings import DEFAULT
from allocator.errors import ConfigError
from allocator.operate import Clusters, check_members_known

if TYPE_CHECKING:
    from allocator.daemon import Config

NOWHERE = "none"  # value of --zookeeper: no ensemble has members of any group


@dataclass(frozen=True)
class Access(Clusters):
    """The clusters of a command."""

    settings: Optional[Config] = field(default=None, repr=False)
    """The content of the settings file, if one was given."""

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
        """Returns the given addresses, completed by the settings file `config`.

        Environment variables override the file. Set `target` to use those for the target cluster (ALLOCATOR_TO_...).
        """
        nowhere = zookeeper == NOWHERE
        if nowhere:
            zookeeper = None
        if config is None:
            return cls(zookeeper, root or DEFAULT["root"], None, brokers, None, timeout_s, nowhere=nowhere)
        from allocator.daemon import load

        settings = load(config, target=target)
        return cls(
            None if nowhere else zookeeper or settings.zookeeper.hosts,
            root or settings.zookeeper.root,
            settings.zookeeper.options() or None,
            brokers or ",".join(settings.kafka.brokers),
            settings.kafka.security() or None,
            timeout_s,
            nowhere,
            frozenset({settings.group.name} if settings.group.membership in ("kafka", "fixed") else ()),
            settings,
        )

    def chosen_group(self, name: Optional[str]) -> str:
        """Returns `name`, or the group in the settings file."""
        if name:
            return name
        if self.settings is None:
            raise ConfigError("no group was given: name one, or give --config")
        return self.settings.group.name

    def shown(self) -> str:
        """Returns the addresses as text."""
        brokers = "no brokers" if self.brokers is None else f"brokers {self.brokers}"
        return f"{brokers}; " + (
            "ZooKeeper is not checked for members"
            if self.zookeeper is None
            else f"ZooKeeper {self.zookeeper}, root {self.root}"
        )

    async def check_members_known(self, group: str) -> None:
        """Raises if the group may have members that the command would not find."""
        if not self.rules_out_zookeeper(group):
            await check_members_known(self, group)


def security_of(config: Optional[str], *, target: bool = False) -> Optional[dict[str, Any]]:
    """Returns TLS and SASL of the settings file `config`, with the environment variables as in `Access.of`."""
    if config is None:
        return None
    from allocator.daemon import load_security

    return load_security(config, target=target) or None
