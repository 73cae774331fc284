"""Which membership a consumer takes part in, and how: one setting and what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, get_args

from allocator.assignors import Assignor, naive_allocator, resolve
from allocator.assignors.kiel import KielAssignor, KielFunction
from allocator.client.client import KafkaClient
from allocator.consumer.keywords import argument_faults
from allocator.errors import ConfigError
from allocator.foreign import shown
from allocator.groups.fixed import FixedMembership
from allocator.groups.kafka_classic.membership import KafkaMembership
from allocator.groups.kafka_classic.settings import KafkaGroupSettings, KafkaSettings
from allocator.groups.kip848.membership import Kip848Membership
from allocator.groups.kip848.settings import Kip848GroupSettings, Kip848Settings
from allocator.groups.legacy.kiel import KielMembership, KielSettings
from allocator.groups.legacy.old_consumer import ConsumersMembership, PykafkaMembership
from allocator.groups.legacy.owners import OwnersSettings
from allocator.groups.membership import AssignmentListener, Membership
from allocator.groups.patterns import check_pattern
from allocator.groups.view import Load
from allocator.groups.zookeeper.leader import LeaderSettings
from allocator.groups.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings
from allocator.groups.zookeeper.znodes import Paths
from allocator.offsets.coordinator import Coordinator
from allocator.offsets.storage import StoredOffsets
from allocator.subscription.kinds import checked
from allocator.types import Assignors, GroupProtocol, MembershipName, OffsetStorage, TopicPartition
from allocator.zookeeper.client import ZooKeeper

__all__ = ["MEMBERSHIPS", "PROTOCOLS", "MembershipConfig"]

MEMBERSHIPS: tuple[MembershipName, ...] = get_args(MembershipName)
ON_ZOOKEEPER = ("zookeeper", "kiel", "consumers", "pykafka")
PROTOCOLS = get_args(GroupProtocol)
# where the offsets of a group may be, first where they are unless another place is asked for: one that its other
# members read and write
PLACES: dict[str, tuple[OffsetStorage, ...]] = {
    "zookeeper": ("kafka", "both", "zookeeper"),
    "kafka": ("kafka",),
    "fixed": ("kafka", "both", "zookeeper"),
    "kiel": ("zookeeper", "both"),
    "consumers": ("zookeeper", "both", "kafka"),  # Java's `offsets.storage`, and `dual.commit.enabled`
    "pykafka": ("kafka", "both"),
}
OLD_CONSUMERS = {"consumers": ConsumersMembership, "pykafka": PykafkaMembership}


@dataclass(frozen=True)
class MembershipConfig:
    """What a consumer says when it joins. Times in seconds. `check` raises one ConfigError that lists every fault.

    What belongs to another membership than the chosen one is not looked at: `membership` alone is changed to move a
    service.
    """

    membership: MembershipName
    group: Optional[str]
    client_id: str
    topics: Sequence[str]
    pattern: Optional[str] = None
    partitions: Sequence[TopicPartition] = ()
    assignor: Optional[Assignors] = None
    weight: float = 1.0
    rack: Optional[str] = None
    session_timeout_s: float = 10.0
    connect_timeout_s: float = 30.0
    max_poll_interval_s: Optional[float] = None
    # zookeeper
    zookeeper: Optional[str] = None
    root: str = "/allocator"
    zookeeper_options: Optional[Mapping[str, Any]] = field(default=None, repr=False)  # has credentials
    leader: LeaderSettings = field(default_factory=LeaderSettings)
    # kafka
    group_protocol: GroupProtocol = "classic"
    heartbeat_interval_s: float = 3.0
    rebalance_timeout_s: float = 60.0
    instance_id: Optional[str] = None
    # groups of older clients
    offsets: Optional[OffsetStorage] = None
    settle_s: float = 3.0

    @property
    def chosen(self) -> bool:
        """Whether anything is subscribed or chosen by hand."""
        return bool(self.topics or self.pattern or self.partitions)

    @property
    def storage(self) -> OffsetStorage:
        """Where the group's offsets are: `offsets`, or where members of that kind keep them."""
        return self.offsets or PLACES[self.membership][0]

    def check(self) -> None:
        """Everything that can be found out without connecting."""
        # first, because the other checks would trip over a wrong type
        faults = argument_faults({name: getattr(self, name) for name in self.__dataclass_fields__}) or self._faults()
        if faults:
            raise ConfigError("; ".join(faults))

    def _faults(self) -> list[str]:
        faults = []
        if self.membership not in MEMBERSHIPS:
            faults.append(f"membership is {self.membership!r}, not one of {', '.join(MEMBERSHIPS)}")
        chosen = [name for name in ("topics", "pattern", "partitions") if getattr(self, name)]
        if len(chosen) > 1:
            faults.append(f"{' and '.join(chosen)} exclude each other; give one of them")
        if self.membership == "kiel" and not self.chosen:
            faults.append(
                "nothing is subscribed, but members of kiel's assign partitions to a member without topics too, and "
                "nobody would read those; name topics, or close the consumer"
            )
        if self.partitions and self.membership != "fixed":
            faults.append(f'partitions are chosen by hand only with membership="fixed", not {self.membership!r}')
        if self.group is None and self.membership != "fixed":
            faults.append(f'group is missing; only membership="fixed" can do without, not {self.membership!r}')
        if self.membership in ON_ZOOKEEPER and not self.zookeeper:
            faults.append('zookeeper is missing: "host:port,host:port/chroot", or another membership ("kafka")')
        places = PLACES.get(self.membership, ())
        if self.offsets is not None and places and self.offsets not in places:
            faults.append(
                f"offsets is {self.offsets!r}, but with membership={self.membership!r} they are in one of: "
                + ", ".join(places)
            )
        attempts: list[Callable[[], Any]] = [
            lambda: check_pattern(self.pattern, self.membership),
            lambda: checked([*self.topics, *(topic for topic, _ in self.partitions)]),
        ]
        if self.membership == "kafka":
            if self.group_protocol not in PROTOCOLS:
                faults.append(f"group_protocol is {self.group_protocol!r}, not one of {', '.join(PROTOCOLS)}")
            attempts.append(self._kip848_settings if self._broker_assigns else self._group_settings)
        if self.membership == "kiel":
            attempts.append(self._kiel_function)
        if self.membership in OLD_CONSUMERS:
            if self.assignor not in (None, "range"):
                faults.append(f"assignor is {self.assignor!r}, but all members of such a group use range")
        elif self.membership != "fixed" and not self._broker_assigns:
            attempts.append(self._assignors)
        if self.membership in ON_ZOOKEEPER:
            attempts.append(lambda: Paths(self.root, self.group or ""))
        for attempt in attempts:
            try:
                attempt()
            except ConfigError as error:
                faults.append(str(error))
        return faults

    def make(
        self,
        client: KafkaClient,
        owner: AssignmentListener,
        coordinator: Coordinator,
        load: Load,
        offsets: StoredOffsets | None,
    ) -> Membership:
        """The membership itself, which has touched nothing yet; `load` is for allocator functions that want it.

        `offsets` are those of the group, whose place changes when the group goes over to another layout.
        """
        topics = frozenset(self.topics)
        if self.membership == "fixed":
            return FixedMembership(
                client, owner, name=self.client_id, topics=topics, pattern=self.pattern, partitions=self.partitions
            )
        assert self.group is not None
        if self._broker_assigns:
            return Kip848Membership(
                client,
                self.group,
                owner,
                Kip848Settings(
                    topics=topics,
                    pattern=self.pattern,
                    connect_timeout_s=self.connect_timeout_s,
                    group=self._kip848_settings(),
                ),
                coordinator=coordinator,
            )
        if self.membership == "kafka":
            return KafkaMembership(
                client,
                self.group,
                owner,
                self._assignors(),
                KafkaSettings(
                    name=self.client_id,
                    topics=topics,
                    pattern=self.pattern,
                    weight=self.weight,
                    rack=self.rack,
                    connect_timeout_s=self.connect_timeout_s,
                    group=self._group_settings(),
                ),
                load=load,
                coordinator=coordinator,
            )
        if self.membership in OLD_CONSUMERS:
            return OLD_CONSUMERS[self.membership](
                self._ensemble(), self.group, owner, client, OwnersSettings(**self._owners()), measures=client.measures
            )
        if self.membership == "kiel":
            assert offsets is not None
            return KielMembership(
                self._ensemble(),
                self.group,
                owner,
                client,
                KielSettings(**self._owners(), settle_s=self.settle_s),
                offsets,
                lambda root: self._make_zookeeper(root, client, owner, load),
                function=self._kiel_function(),
                measures=client.measures,
            )
        return self._make_zookeeper(self.root, client, owner, load)

    def _owners(self) -> dict[str, Any]:
        return {
            "name": self.client_id,
            "topics": frozenset(self.topics),
            "pattern": self.pattern,
            "connect_timeout_s": self.connect_timeout_s,
            "max_poll_interval_s": self.max_poll_interval_s,
        }

    def _ensemble(self) -> ZooKeeper:
        assert self.zookeeper is not None
        return ZooKeeper(self.zookeeper, session_timeout_s=self.session_timeout_s, options=self.zookeeper_options)

    def _make_zookeeper(
        self, root: str, client: KafkaClient, owner: AssignmentListener, load: Load
    ) -> ZooKeeperMembership:
        assert self.group is not None
        return ZooKeeperMembership(
            self._ensemble(),
            Paths(root, self.group),
            owner,
            client,
            self._assignors(),
            ZooKeeperSettings(
                name=self.client_id,
                topics=frozenset(self.topics),
                pattern=self.pattern,
                weight=self.weight,
                rack=self.rack,
                connect_timeout_s=self.connect_timeout_s,
                max_poll_interval_s=self.max_poll_interval_s,
                leader=self.leader,
            ),
            load=load,
            measures=client.measures,
        )

    def _assignors(self) -> dict[str, Assignor]:
        given = "naive" if self.assignor is None else self.assignor
        if not isinstance(given, (str, list, tuple)) and not callable(given):
            raise ConfigError(f"assignor = {shown(given)}: must be a name, a function, or a list of them")
        offered = [given] if isinstance(given, str) or callable(given) else list(given)
        if not offered:
            raise ConfigError("assignor is an empty list; name at least one, e.g. 'naive'")
        return {found.name: found for found in map(resolve, offered)}

    def _kiel_function(self) -> KielFunction:
        """What kiel's members of the group call as well: nothing else can be said to them."""
        offered = self._assignors()
        if set(offered) == {"naive"}:
            return naive_allocator
        function = next(iter(offered.values()))
        if len(offered) == 1 and isinstance(function, KielAssignor):
            return function.function
        raise ConfigError(
            f"assignor is {self.assignor!r}, but members of kiel's can only work with a function(members, partitions); "
            "give the one that they were given, or none"
        )

    def _group_settings(self) -> KafkaGroupSettings:
        return KafkaGroupSettings(
            session_timeout_s=self.session_timeout_s,
            heartbeat_interval_s=self.heartbeat_interval_s,
            rebalance_timeout_s=self.rebalance_timeout_s,
            max_poll_interval_s=self.max_poll_interval_s,
            instance_id=self.instance_id,
        )

    @property
    def _broker_assigns(self) -> bool:
        return self.membership == "kafka" and self.group_protocol == "consumer"

    def _kip848_settings(self) -> Kip848GroupSettings:
        if self.assignor is not None and (not isinstance(self.assignor, str) or ":" in self.assignor):
            raise ConfigError(
                f"assignor is {self.assignor!r}, but with group_protocol='consumer' the broker assigns: "
                "name one that it has ('uniform', 'range') or none"
            )
        return Kip848GroupSettings(
            rebalance_timeout_s=self.rebalance_timeout_s,
            max_poll_interval_s=self.max_poll_interval_s,
            instance_id=self.instance_id,
            rack=self.rack,
            server_assignor=self.assignor,
        )
