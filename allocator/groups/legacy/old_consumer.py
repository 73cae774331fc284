"""Taking part in a group of Kafka 0.8's high-level consumers, which share partitions through ZooKeeper.

    /consumers/<group>/ids/<member>                  ephemeral  what it subscribes to
    /consumers/<group>/owners/<topic>/<partition>    ephemeral  who owns it

Each member computes for itself, by Kafka's range assignment, what is its own; it gives up what is not, and claims the
rest, which it gets when its last owner has let go. Guarantee: a partition has at most one owner at any instant, all
clients included (see `owners`). The others of the group stop everything for each rebalance; ours only what moves.

There are two dialects, which do not understand each other, so a group speaks one of them:

- `ConsumersMembership`: Kafka's own client of 0.8.1 to 2.0, and those that follow it;
- `PykafkaMembership`: pykafka's BalancedConsumer, whose members say their one topic in another form, name claims
  after the broker that leads the partition, and sort partitions by it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from allocator.clock import boot_clock
from allocator.errors import AllocatorError
from allocator.foreign import shown
from allocator.groups.lease import MembershipLost
from allocator.groups.legacy.owners import OwnersMembership, OwnersSettings
from allocator.groups.membership import AssignmentListener, PartitionCountSource
from allocator.groups.zookeeper.znodes import InvalidZnode, Paths
from allocator.measures import Measures
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition
from allocator.zookeeper.client import NoZnode, Op, Watched, ZooKeeper

__all__ = ["ConsumersMembership", "OldSubscription", "PykafkaMembership"]

log = logging.getLogger(__name__)

T = TypeVar("T")

INTERNAL = "__consumer_offsets"  # no wildcard of the Java client's takes it unless it is told to
# Java's members try a claim again every 2 s, four times by default, and then wait for another change of the group
NUDGE_S = 5.0


class OldCluster(PartitionCountSource, Protocol):
    """What pykafka's layout needs besides. `KafkaClient` is one."""

    @property
    def brokers(self) -> list[Any]: ...

    def leader(self, tp: TopicPartition) -> int | None: ...


@dataclass(frozen=True)
class OldSubscription:
    """What a member of Kafka's client says: threads by topic, or by the one expression that topics must match."""

    pattern: str
    streams: dict[str, int]

    def threads(self, topic: str) -> int:
        """How many of its threads take part in a topic."""
        if self.pattern == "static":
            return self.streams.get(topic, 0)
        for expression, count in self.streams.items():
            matches = bool(re.fullmatch(expression.replace(",", "|").replace(" ", "").strip("\"'"), topic))
            if matches == (self.pattern == "white_list") and topic != INTERNAL:
                return count
        return 0

    def encode(self) -> bytes:
        content = {
            "version": 1,
            "subscription": self.streams,
            "pattern": self.pattern,
            "timestamp": str(int(time.time() * 1000)),
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> OldSubscription:
        """Raises InvalidZnode."""
        try:
            content = json.loads(data.decode())
            pattern = content["pattern"]
            streams = {str(topic): int(count) for topic, count in content["subscription"].items()}
            if pattern not in ("static", "white_list", "black_list"):
                raise ValueError(f"its pattern is {shown(pattern)}")
            if pattern != "static":
                for expression in streams:
                    re.compile(expression)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, re.error) as error:
            why = f"no subscription of Kafka's own client ({shown(error)})"
            if re.fullmatch(rb"[a-zA-Z0-9._-]{1,249}", data):
                why += "; it looks like one of pykafka's members, which are no company for those"
            raise InvalidZnode(path, why) from None
        return cls(pattern, streams)


def run_of(items: Sequence[T], takers: int, place: int) -> Sequence[T]:
    """The part of `items` that the taker at `place` gets: consecutive, the first ones one more."""
    each, more = divmod(len(items), takers)
    begin = place * each + min(place, more)
    return items[begin : begin + each + (place < more)]


class _OldConsumer(OwnersMembership):
    """What both dialects share."""

    def __init__(
        self,
        zk: ZooKeeper,
        group: str,
        listener: AssignmentListener,
        topics: OldCluster,
        settings: OwnersSettings,
        *,
        measures: Measures | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        paths = Paths("/consumers", group)  # refuses a name that cannot be one
        super().__init__(zk, group, paths.base, listener, topics, settings, measures=measures, clock=clock)
        self._cluster = topics
        self._ids_path, self._owners_path = f"{paths.base}/ids", f"{paths.base}/owners"
        self._registered: frozenset[str] = frozenset()
        self._said: dict[str, bytes] = {}
        self._complained: set[str] = set()
        self._view: Any = None

    # -- what a dialect says -------------------------------------------------------------------------------------

    def _ids(self) -> dict[str, bytes]:
        """Our members' names under ids, and what they say there; the first is `member_id`."""
        raise NotImplementedError

    def _assign(self, topic: str, numbers: Sequence[int]) -> Iterable[int]:
        """Our part of a topic, of which `numbers` exist, by what the members say (`_said`)."""
        raise NotImplementedError

    # -- the layout ----------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self._begin_session()
        for path in (self._ids_path, self._owners_path):
            await self._zk.ensure_path(path)
        self._registered = frozenset(self._chosen())
        self.member_id = self._new_id()
        self._mine_said = self._ids()
        await self._zk.multi([Op("create", path, data, ephemeral=True) for path, data in self._registration()])
        zk, path = self._zk, self._ids_path
        self._names = Watched(lambda watch: zk.get_children(path, watch), self._changed.set)
        self._said, self._view = {}, None
        log.info("%s: joined as %s (pid %d)", self._group, self.member_id, os.getpid())

    def _new_id(self) -> str:
        raise NotImplementedError

    def _registration(self) -> list[tuple[str, bytes]]:
        return [(f"{self._ids_path}/{name}", data) for name, data in self._mine_said.items()]

    def _proof(self) -> tuple[str, bytes]:
        return self._registration()[0]

    def _znodes(self) -> Iterable[str]:
        return (*self._claim_znodes(), *(path for path, _ in self._registration()))

    def _claim_of(self, directory: str, name: str) -> TopicPartition | None:
        number = name.rpartition("-")[2]  # of either dialect
        topic = re.sub("^b'(.*)'$", r"\1", directory.rpartition("/")[2])
        return TopicPartition(topic, int(number)) if number.isdigit() else None

    async def _mine(self) -> Partitions:
        names = await self._names.get()
        self._must_stand(names)
        if frozenset(self._chosen()) != self._registered:
            log.info("%s: %s registers anew: its topics changed", self._group, self.member_id)
            self._renewing = True
            self._changed.set()
            return NO_PARTITIONS
        await self._listen(names)
        if not self._mine_said.keys() <= self._said.keys():
            raise MembershipLost("its znode was deleted")
        mine: set[TopicPartition] = set()
        for topic in sorted(self._registered):
            numbers = self._topics.partitions(topic)
            if numbers is None:  # brokers that start say so of topics that exist
                mine |= {p for p in self._held if p.topic == topic}
            else:
                mine |= {TopicPartition(topic, number) for number in self._assign(topic, sorted(numbers))}
        view = (self._said, frozenset(mine))
        if view != self._view:
            self._view = (dict(self._said), frozenset(mine))
            self.generation += 1
        return frozenset(mine)

    def _chosen(self) -> Collection[str]:
        """The topics to register for: an expression is resolved here, since each client has its own kind of them."""
        if self._selection.pattern is None:
            return self._selection.topics
        known = self._selection.among(self._topics.topics())
        # keep what is registered: a starting broker may report existing topics as missing
        return known | {topic for topic in self._registered if self._topics.partitions(topic) is None}

    async def _listen(self, names: Collection[str]) -> None:
        """Reads what new members say; it does not change while they stand."""
        self._said = {name: data for name, data in self._said.items() if name in names}
        new = [name for name in names if name not in self._said]
        answers = await asyncio.gather(*map(self._ask, new))
        self._said.update({name: data for name, data in zip(new, answers) if data is not None})

    async def _ask(self, name: str) -> bytes | None:
        try:
            return (await self._zk.get(f"{self._ids_path}/{name}"))[0]
        except NoZnode:
            return None  # the watch tells

    def _complain(self, name: str, error: AllocatorError) -> None:
        """Once for each member that is not understood; it counts as absent."""
        if name not in self._complained:
            self._complained.add(name)
            log.error("%s: %s", self._group, error)
            self._listener.failed(error)


class ConsumersMembership(_OldConsumer):
    """One member among those of Kafka's own high-level consumer. The constructor touches nothing."""

    _last_change = float("-inf")

    def _new_id(self) -> str:
        # as Java's: what comes first decides the order only within a group
        host = re.sub("[^A-Za-z0-9._-]", "-", socket.gethostname())
        return f"{self._group}_{host}-{int(time.time() * 1000)}-{uuid.uuid4().hex[:8]}"

    def _ids(self) -> dict[str, bytes]:
        return {self.member_id: OldSubscription("static", dict.fromkeys(sorted(self._registered), 1)).encode()}

    def _claim_paths(self, partition: TopicPartition) -> tuple[str, ...]:
        return (f"{self._owners_path}/{partition.topic}/{partition.partition}",)

    def _claim_data(self) -> bytes:
        return f"{self.member_id}-0".encode()

    async def _mine(self) -> Partitions:
        before = self.generation
        mine = await super()._mine()
        if self.generation != before:
            self._last_change = self._clock()
        return mine

    async def _listen(self, names: Collection[str]) -> None:
        await super()._listen(names)
        self._subscriptions: dict[str, OldSubscription] = {}
        for name, data in self._said.items():
            try:
                self._subscriptions[name] = OldSubscription.decode(f"{self._ids_path}/{name}", data)
            except InvalidZnode as error:
                self._complain(name, error)

    def _assign(self, topic: str, numbers: Sequence[int]) -> Iterable[int]:
        threads = sorted(
            f"{name}-{thread}"
            for name, subscription in self._subscriptions.items()
            for thread in range(subscription.threads(topic))
        )
        return run_of(numbers, len(threads), threads.index(f"{self.member_id}-0"))

    async def _drained(self, partitions: Partitions) -> None:
        await super()._drained(partitions)
        if self._clock() - self._last_change > NUDGE_S and not (self._leaving or self._renewing):
            # those who waited have given up by now, and look again when a member comes or goes
            path, data = self._registration()[0]
            await self._zk.multi([Op("delete", path), Op("create", path, data, ephemeral=True)])


class PykafkaMembership(_OldConsumer):
    """One member among pykafka's BalancedConsumers. The constructor touches nothing.

    They claim a partition under the name of the broker that they take for its leader, and on Python 3 they write the
    topic as `b'topic'` there, so two of them that disagree about the one or the other can both own it. Ours claims
    under all of these names, and sees a claim under any of them.
    """

    _ordered_for: tuple[str, ...] | None = None
    _leaders: dict[TopicPartition, int | None]

    def _new_id(self) -> str:
        return f"{re.sub('[^A-Za-z0-9._-]', '-', socket.gethostname())}:{uuid.uuid4()}"

    def _ids(self) -> dict[str, bytes]:
        # one topic a member is all that this layout knows
        topics = sorted(self._registered)
        return {self.member_id + (f".{n}" if n else ""): topic.encode() for n, topic in enumerate(topics or [""])}

    def _claim_paths(self, partition: TopicPartition) -> tuple[str, ...]:
        nodes = sorted(broker.node_id for broker in self._cluster.brokers)
        topics = partition.topic, f"b'{partition.topic}'"
        return tuple(f"{self._owners_path}/{topic}/{node}-{partition.partition}" for topic in topics for node in nodes)

    def _claim_data(self) -> bytes:
        return self.member_id.encode()

    async def _listen(self, names: Collection[str]) -> None:
        await super()._listen(names)
        for name, data in self._said.items():
            if data.startswith(b"{"):
                why = "not a topic, as pykafka's members write it; Kafka's own client is no company for those"
                self._complain(name, InvalidZnode(f"{self._ids_path}/{name}", why))
        members = tuple(sorted(self._said))
        if members != self._ordered_for:
            # the order that the others have until they look again, whatever partition gets another leader meanwhile
            self._ordered_for, self._leaders = members, {}

    def _assign(self, topic: str, numbers: Sequence[int]) -> Iterable[int]:
        members = sorted(name for name, data in self._said.items() if data == topic.encode())
        (ours,) = (name for name, data in self._mine_said.items() if data == topic.encode())
        return run_of(sorted(numbers, key=lambda n: self._place(topic, n)), len(members), members.index(ours))

    def _place(self, topic: str, number: int) -> str:
        partition = TopicPartition(topic, number)
        if partition not in self._leaders:
            self._leaders[partition] = self._cluster.leader(partition)
        return f"{self._leaders[partition]}-{number}"
