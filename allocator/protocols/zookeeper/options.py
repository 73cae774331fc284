"""The settings of the memberships on ZooKeeper, and the creation of this project's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Optional

from allocator.assignors import Assignor, LoadReport
from allocator.commands import OperatorCommands
from allocator.core.consumer import (
    CommandedConsumer,
    CommandExecutor,
    Fault,
    MemberParts,
    MembershipConfig,
    MembershipOptions,
    assignors_of,
)
from allocator.core.membership import Membership
from allocator.core.settings import DEFAULT, check_group, names_arguments
from allocator.errors import ConfigError
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings
from allocator.protocols.zookeeper.znodes.documents import Paths
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.types import LoadSource, OffsetStorage


@dataclass(frozen=True)
class EnsembleOptions(MembershipOptions):
    """The settings of every membership on ZooKeeper."""

    storages: ClassVar[tuple[OffsetStorage, ...]] = ("kafka", "both", "zookeeper")

    zookeeper: Optional[str] = DEFAULT["zookeeper"]
    root: str = DEFAULT["root"]
    session_timeout_s: float = DEFAULT["session_timeout_s"]
    zookeeper_options: Optional[Mapping[str, Any]] = field(default=DEFAULT["zookeeper_options"], repr=False)

    def with_ensemble(self, zookeeper: str) -> MembershipOptions:
        if self.zookeeper:
            kind = type(self).__name__
            raise ConfigError(f"zookeeper = {zookeeper!r} with {kind}({self.zookeeper!r}): give the ensemble once")
        return replace(self, zookeeper=zookeeper)

    @property
    def confirms_within_s(self) -> float | None:
        return self.session_timeout_s

    def executor(self, consumer: CommandedConsumer) -> CommandExecutor:
        return OperatorCommands(consumer)

    def faults(self, config: MembershipConfig) -> Iterator[Fault]:
        if not self.zookeeper:
            yield Fault(("zookeeper", "membership"), "this membership needs it")
        if config.group is not None:
            yield from Fault.of(("group", "membership"), lambda: check_group(config.group))
        yield from super().faults(config)

    def under(
        self,
        root: str,
        config: MembershipConfig,
        parts: MemberParts,
        *,
        functions: Mapping[str, Assignor] = MappingProxyType({}),
        measured: Callable[[], LoadReport] | None = None,
        **own: Any,
    ) -> ZooKeeperMembership:
        """Creates a member of this project's protocol under `root`.

        `functions`: assignors to offer before the configured ones. `measured` reports the member's load to the group.
        `own`: further settings of `ZooKeeperSettings`.
        """
        assert config.group is not None
        client = parts.client

        def brokers() -> str:
            known = (broker.address for broker in client.metadata.brokers.values())
            return ",".join(dict.fromkeys([*client.bootstrap.replace(" ", "").split(","), *known]))

        return ZooKeeperMembership(
            Store(self.ensemble(), Paths(root, config.group)),
            parts.listener,
            parts.client,
            {**functions, **config.assignors()},
            ZooKeeperSettings(**config.of_member(), weight=config.weight, rack=config.rack, brokers=brokers, **own),
            load=parts.load,
            measured=measured,
            on_commands=parts.on_commands,
            measures=parts.client.measures,
        )

    def ensemble(self) -> ZooKeeperClient:
        """Returns a client of the ensemble, not connected. Raises ConfigError for wrong `zookeeper_options`."""
        if not self.zookeeper:
            raise ConfigError(f'{type(self).__name__}: zookeeper not set; must be "host:port,host:port/chroot"')
        return ZooKeeperClient(self.zookeeper, session_timeout_s=self.session_timeout_s, options=self.zookeeper_options)


@names_arguments
@dataclass(frozen=True)
class ZooKeeper(EnsembleOptions):
    """This project's own protocol, on any cluster: exclusive owners, with ZooKeeper.

    Consumer("orders", brokers="b1:9092", group="billing", membership=ZooKeeper("z1:2181", session_timeout_s=20))
    """

    name = "zookeeper"

    instance_id: Optional[str] = DEFAULT["instance_id"]
    restart_grace_s: float = DEFAULT["restart_grace_s"]
    follow_load: Optional[LoadSource] = DEFAULT["follow_load"]
    load_tolerance: float = DEFAULT["load_tolerance"]

    @property
    def lasting_name(self) -> str | None:
        return self.instance_id if self.restart_grace_s else None

    def faults(self, config: MembershipConfig) -> Iterator[Fault]:
        yield from super().faults(config)
        if self.restart_grace_s and not self.instance_id:
            yield Fault(
                ("restart_grace_s", "instance_id"),
                "the next process is recognised by its instance_id; set one, different for each process",
            )

    def make(self, config: MembershipConfig, parts: MemberParts) -> Membership:
        measured, functions = None, {}
        if self.follow_load is not None:
            # members without `follow_load`, such as those of older versions, agree on one of the other assignors
            functions = assignors_of(f"load-{self.follow_load}")
            measured = parts.measure and parts.measure(self.follow_load)
        return self.under(self.root, config, parts, functions=functions, measured=measured, **self.place())

    def place(self) -> dict[str, Any]:
        """The settings for restarts and for following load, under the names of `ZooKeeperSettings`."""
        return {
            "instance_id": self.instance_id,
            "restart_grace_s": self.restart_grace_s,
            "load_tolerance": None if self.follow_load is None else self.load_tolerance,
        }
