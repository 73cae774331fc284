"""The memberships outside of core, as classes of settings. A class checks its settings and creates the membership."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from allocator.assignors import naive_allocator
from allocator.core.assignors import KielAssignor
from allocator.core.consumer import Connections, EnsembleOptions, Fault, MembershipConfig, MembershipOptions
from allocator.core.membership import Membership
from allocator.core.settings import DEFAULT, names_arguments
from allocator.errors import ConfigError
from allocator.protocols.kafka_classic.membership import KafkaMembership
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.protocols.kip848.membership import Kip848Membership
from allocator.protocols.kip848.settings import Kip848Settings
from allocator.protocols.legacy.kiel import KielFunction, KielMembership, KielSettings
from allocator.protocols.legacy.old_consumer import ConsumersMembership, PykafkaMembership
from allocator.protocols.legacy.owners import OwnersSettings
from allocator.protocols.order_topic import OrderTopic
from allocator.types import GroupProtocol, MembershipName, OffsetStorage


@names_arguments
@dataclass(frozen=True)
class Kafka(MembershipOptions):
    """Kafka's group protocols, without ZooKeeper: the classic one (brokers from 0.9) and KIP-848 (brokers from 4.0).

    The group may have members of other clients that offer the same assignor.
    """

    name = "kafka"

    group_protocol: GroupProtocol = DEFAULT["group_protocol"]
    session_timeout_s: float = DEFAULT["session_timeout_s"]
    heartbeat_interval_s: float = DEFAULT["heartbeat_interval_s"]
    rebalance_timeout_s: float = DEFAULT["rebalance_timeout_s"]
    instance_id: Optional[str] = DEFAULT["instance_id"]

    def faults(self, config: MembershipConfig) -> Iterator[Fault]:
        if self.group_protocol == "consumer":
            yield from Fault.of(("assignor", "group_protocol"), lambda: self._kip848(config))
            return
        yield from super().faults(config)
        yield from Fault.of(("heartbeat_interval_s", "session_timeout_s"), lambda: self._classic(config))

    def order_source(self, config: MembershipConfig, brokers: Any, security: Any) -> OrderTopic | None:
        return None if config.group is None else OrderTopic(brokers, config.group, security=security)

    def make(self, config: MembershipConfig, connections: Connections) -> Membership:
        assert config.group is not None
        if self.group_protocol == "consumer":
            return Kip848Membership(
                connections.client,
                config.group,
                connections.listener,
                self._kip848(config),
                coordinator=connections.coordinator,
            )
        return KafkaMembership(
            connections.client,
            config.group,
            connections.listener,
            config.assignors(),
            self._classic(config),
            load=connections.load,
            coordinator=connections.coordinator,
        )

    def _classic(self, config: MembershipConfig) -> KafkaSettings:
        return KafkaSettings(
            **self._common(config),
            weight=config.weight,
            session_timeout_s=self.session_timeout_s,
            heartbeat_interval_s=self.heartbeat_interval_s,
        )

    def _kip848(self, config: MembershipConfig) -> Kip848Settings:
        if config.assignor is not None and (not isinstance(config.assignor, str) or ":" in config.assignor):
            raise ConfigError("the broker assigns: give the name of one of its assignors ('uniform', 'range'), or none")
        for name, value in (("instance_id", self.instance_id), ("assignor", config.assignor)):
            if value == "":
                raise ConfigError(f"{name} is empty; give a name, or None")
        return Kip848Settings(**self._common(config), server_assignor=config.assignor)

    def _common(self, config: MembershipConfig) -> dict[str, Any]:
        return {
            **_of_member(config),
            "rack": config.rack,
            "rebalance_timeout_s": self.rebalance_timeout_s,
            "instance_id": self.instance_id or None,
        }


@names_arguments
@dataclass(frozen=True)
class Kiel(EnsembleOptions):
    """A group that also has members of kiel 0.9.3."""

    name = "kiel"
    storages: ClassVar[tuple[OffsetStorage, ...]] = ("zookeeper", "both")

    settle_s: float = DEFAULT["settle_s"]

    def faults(self, config: MembershipConfig) -> Iterator[Fault]:
        if not config.chosen:
            yield Fault(
                ("topics", "membership"),
                "no topics are subscribed, but members of kiel assign partitions to this member too, and nobody would "
                "read those; give topics, or close the consumer",
            )
        yield from super().faults(config)

    def check_assignor(self, config: MembershipConfig) -> None:
        self._function(config)

    def make(self, config: MembershipConfig, connections: Connections) -> Membership:
        assert config.group is not None
        assert connections.offsets is not None
        return KielMembership(
            self.ensemble(),
            config.group,
            connections.listener,
            connections.client,
            KielSettings(**_of_member(config), settle_s=self.settle_s, function=self._function(config)),
            connections.offsets,
            lambda root: self.under(root, config, connections),
            measures=connections.client.measures,
        )

    def _function(self, config: MembershipConfig) -> KielFunction:
        """Returns the allocator function, with kiel's signature. Members of kiel know no other signature."""
        offered = config.assignors()
        if set(offered) == {"naive"}:
            return naive_allocator
        function = next(iter(offered.values()))
        if len(offered) == 1 and isinstance(function, KielAssignor):
            return function.function
        raise ConfigError(
            "members of kiel know only functions with the arguments (members, partitions); give the function that "
            "those members use, or none"
        )


@names_arguments
@dataclass(frozen=True)
class OldConsumers(EnsembleOptions):
    """A group that also has members of Kafka's own client of 0.8."""

    name: ClassVar[MembershipName] = "consumers"
    storages: ClassVar[tuple[OffsetStorage, ...]] = (
        "zookeeper",
        "both",
        "kafka",
    )  # the same as `offsets.storage` and `dual.commit.enabled` of Java's client
    kind: ClassVar[type[Any]] = ConsumersMembership

    def check_assignor(self, config: MembershipConfig) -> None:
        if config.assignor not in (None, "range"):
            raise ConfigError("all members of such a group use range")

    def make(self, config: MembershipConfig, connections: Connections) -> Membership:
        membership: Membership = self.kind(
            self.ensemble(),
            config.group,
            connections.listener,
            connections.client,
            OwnersSettings(**_of_member(config)),
            measures=connections.client.measures,
        )
        return membership


@names_arguments
@dataclass(frozen=True)
class Pykafka(OldConsumers):
    """A group that also has members of pykafka's BalancedConsumer."""

    name = "pykafka"
    storages: ClassVar[tuple[OffsetStorage, ...]] = ("kafka", "both")
    kind: ClassVar[type[Any]] = PykafkaMembership


def _of_member(config: MembershipConfig) -> dict[str, Any]:
    return {
        "name": config.client_id,
        "topics": frozenset(config.topics),
        "pattern": config.pattern,
        "connect_timeout_s": config.connect_timeout_s,
        "max_poll_interval_s": config.max_poll_interval_s,
    }
