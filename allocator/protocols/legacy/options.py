"""The settings of groups that also have members of older libraries, which create those memberships."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from allocator.assignors import KielAssignor, naive_allocator
from allocator.core.consumer import Fault, MemberParts, MembershipConfig
from allocator.core.membership import Membership
from allocator.core.settings import DEFAULT, names_arguments
from allocator.errors import ConfigError
from allocator.protocols.legacy.kiel import KielFunction, KielMembership, KielSettings
from allocator.protocols.legacy.old_consumer import ConsumersMembership, PykafkaMembership
from allocator.protocols.legacy.owners import OwnersSettings
from allocator.protocols.zookeeper import EnsembleOptions
from allocator.types import MembershipName, OffsetStorage


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

    def make(self, config: MembershipConfig, parts: MemberParts) -> Membership:
        assert config.group is not None
        assert parts.offsets is not None
        membership = KielMembership(
            self.ensemble(),
            config.group,
            parts.listener,
            parts.client,
            KielSettings(**config.of_member(), settle_s=self.settle_s, function=self._function(config)),
            parts.offsets,
            lambda root: self.under(root, config, parts),
            measures=parts.client.measures,
        )
        return cast(Membership, membership)  # most of its methods are those of the current membership

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

    def make(self, config: MembershipConfig, parts: MemberParts) -> Membership:
        membership: Membership = self.kind(
            self.ensemble(),
            config.group,
            parts.listener,
            parts.client,
            OwnersSettings(**config.of_member()),
            measures=parts.client.measures,
        )
        return membership


@names_arguments
@dataclass(frozen=True)
class Pykafka(OldConsumers):
    """A group that also has members of pykafka's BalancedConsumer."""

    name = "pykafka"
    storages: ClassVar[tuple[OffsetStorage, ...]] = ("kafka", "both")
    kind: ClassVar[type[Any]] = PykafkaMembership
