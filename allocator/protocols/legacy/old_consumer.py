"""Membership in a group of Kafka 0.8's high-level consumers, which coordinate through ZooKeeper.

    /consumers/<group>/ids/<member>                  ephemeral  the subscription of a member
    /consumers/<group>/owners/<topic>/<partition>    ephemeral  the owner of a partition

Each member computes its own partitions, by Kafka's range assignment. It releases all other partitions, and claims its
own ones when the former owners have released them. Guarantee: a partition has at most one owner at any instant, and
this covers all clients (see `owners`). In a rebalance, members of other clients stop all partitions; members of this
library stop only those that move.

The clients have two incompatible dialects. All members of a group use the same one:

- `ConsumersMembership`: Kafka's own client of 0.8.1 to 2.0, and compatible clients;
- `PykafkaMembership`: pykafka's BalancedConsumer. It writes its topic in another form, names claims after the leader of
  the partition, and sorts partitions by leader.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allocator.assignors import range_share
from allocator.core.aio import wall_ms
from allocator.core.client import KafkaClient
from allocator.core.text import parse_json, shown, whole_number
from allocator.documents import InvalidZnode
from allocator.errors import AllocatorError
from allocator.protocols.legacy.owners import RETRY_S, OwnersMembership
from allocator.protocols.zookeeper import ConnectionLost, NotAuthorized, NoZnode, Op, Paths, Watched, ZnodeExists
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

log = logging.getLogger(__name__)

INTERNAL = "__consumer_offsets"  # the wildcards of the Java client exclude it by default

# seconds after a change of the group after which Java's members no longer retry their claims: by default they retry
# four times, every 2 s, and then wait for the next change
NUDGE_S = 5.0


@dataclass(frozen=True)
class OldSubscription:
    """The subscription of a member of Kafka's client: topic -> threads, or topic expression -> threads."""

    pattern: str
    streams: dict[str, int]

    def threads(self, topic: str) -> int:
        """Returns the number of threads that read a topic."""
        if self.pattern == "static":
            return self.streams.get(topic, 0)
        for expression, count in self.streams.items():
            matches = bool(re.fullmatch(expression.replace(",", "|").replace(" ", "").strip("\"'"), topic))
            if matches == (self.pattern == "white_list") and topic != INTERNAL:
                return count
        return 0

    def encode(self) -> bytes:
        content = {"version": 1, "subscription": self.streams, "pattern": self.pattern, "timestamp": str(wall_ms())}
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> OldSubscription:
        """Decodes a registration. Raises InvalidZnode."""
        try:
            content = parse_json(data)
            pattern = content["pattern"]
            streams = {str(topic): int(count) for topic, count in content["subscription"].items()}
            if pattern not in ("static", "white_list", "black_list"):
                raise ValueError(f"its pattern is {shown(pattern)}")
            if pattern != "static":
                for expression in streams:
                    re.compile(expression)
        except (ValueError, KeyError, TypeError, AttributeError, re.error) as error:
            why = f"not a subscription of Kafka's own client ({shown(error)})"
            if re.fullmatch(rb"[a-zA-Z0-9._-]{1,249}", data):
                why += "; it looks like a member of pykafka, and a group cannot have members of both clients"
            raise InvalidZnode(path, why) from None
        return cls(pattern, streams)


def _host() -> str:
    return re.sub("[^A-Za-z0-9._-]", "-", socket.gethostname())


class _OldConsumer(OwnersMembership):
    """Base class of the two dialects."""

    _topics: KafkaClient
    _registered: frozenset[str] = frozenset()
    _registrations: Mapping[str, bytes]
    _view: Any

    @property
    def _ids_path(self) -> str:
        return f"{Paths('/consumers', self._group).base}/ids"

    @property
    def _owners_path(self) -> str:
        return f"{Paths('/consumers', self._group).base}/owners"

    # -- methods of a dialect -------------------------------------------------------------------------------------

    def _ids(self) -> dict[str, bytes]:
        """Returns the znodes that register a new member: name under `ids` -> content. The first name is the member
        id."""
        raise NotImplementedError

    def _assign(self, topic: str, numbers: Sequence[int]) -> Iterable[int]:
        """Returns this member's partitions of a topic that has the partitions `numbers`. `_registrations` has the
        registrations of all members."""
        raise NotImplementedError

    # -- the layout ----------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self._begin_session()
        for path in (self._ids_path, self._owners_path):
            await self._zk.ensure_path(path)
        self._registered = frozenset(self._chosen())
        self._own_registrations = self._ids()
        self.member_id = next(iter(self._own_registrations))
        await self._registration.create(dict(self._own_znodes()))
        zk, path = self._zk, self._ids_path
        self._names = Watched(lambda watch: zk.get_children(path, watch), self._changed.set)
        self._registrations, self._view, self._reported = {}, None, set[str]()
        log.info("%s: joined as %s (pid %d)", self._group, self.member_id, os.getpid())

    def _own_znodes(self) -> list[tuple[str, bytes]]:
        return [(f"{self._ids_path}/{name}", data) for name, data in self._own_registrations.items()]

    def _proof(self) -> tuple[str, bytes]:
        return self._own_znodes()[0]

    def _claim_of(self, directory: str, name: str) -> TopicPartition | None:
        number = whole_number(name.rpartition("-")[2])  # both dialects end the name with the partition number
        topic = re.sub("^b'(.*)'$", r"\1", directory.rpartition("/")[2])
        return None if number is None else TopicPartition(topic, number)

    async def _mine(self) -> Partitions:
        names = await self._names.get()
        self._check_registered(names)
        if frozenset(self._chosen()) != self._registered:
            log.info("%s: %s registers again: its topics changed", self._group, self.member_id)
            self._renewing = True
            self._changed.set()
            return NO_PARTITIONS
        await self._listen(names)
        for name in self._own_registrations:
            self._check_registered(self._registrations, name)
        mine: set[TopicPartition] = set()
        for topic in sorted(self._registered):
            numbers = self._topics.partitions(topic)
            if numbers is None:  # a starting broker may report existing topics as missing
                mine |= {p for p in self.held if p.topic == topic}
            else:
                mine |= {TopicPartition(topic, number) for number in self._assign(topic, sorted(numbers))}
        view = (self._registrations, frozenset(mine))
        if view != self._view:
            self._view = view
            self.generation += 1
        return frozenset(mine)

    def _chosen(self) -> Collection[str]:
        """Returns the topics to register. It resolves the pattern, because each client has its own pattern syntax."""
        if self._selection.pattern is None:
            return self._selection.topics
        known = self._selection.among(self._topics.topics())
        # keeps registered topics: a starting broker may report existing topics as missing
        return known | {topic for topic in self._registered if self._topics.partitions(topic) is None}

    async def _listen(self, names: Collection[str]) -> None:
        """Reads the znodes of new members. These znodes never change."""
        new = [name for name in names if name not in self._registrations]
        found = {**self._registrations, **dict(zip(new, await asyncio.gather(*map(self._read_registration, new))))}
        self._registrations = {name: data for name in names if (data := found[name]) is not None}

    async def _read_registration(self, name: str) -> bytes | None:
        try:
            return (await self._zk.get(f"{self._ids_path}/{name}"))[0]
        except NoZnode:
            return None  # the znode was deleted since; the watch triggers the next read
        except NotAuthorized as error:
            if name not in self._reported:
                self._reported.add(name)
                log.error("%s: %s. The member counts as absent", self._group, error)
            return None

    def _report_invalid(self, name: str, error: AllocatorError) -> None:
        """Reports an invalid member once. The member counts as absent."""
        if name not in self._reported:
            self._reported.add(name)
            log.error("%s: %s", self._group, error)
            self._listener.failed(error)


class ConsumersMembership(_OldConsumer):
    """A member of a group of Kafka's own high-level consumers. The constructor does no I/O."""

    _last_change = float("-inf")

    def _ids(self) -> dict[str, bytes]:
        # Java's consumer formats its ids in this way
        member_id = f"{self._group}_{_host()}-{wall_ms()}-{uuid.uuid4().hex[:8]}"
        return {member_id: OldSubscription("static", dict.fromkeys(sorted(self._registered), 1)).encode()}

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
        for name, data in self._registrations.items():
            try:
                self._subscriptions[name] = OldSubscription.decode(f"{self._ids_path}/{name}", data)
            except InvalidZnode as error:
                self._report_invalid(name, error)

    def _assign(self, topic: str, numbers: Sequence[int]) -> Iterable[int]:
        threads = sorted(
            f"{name}-{thread}"
            for name, subscription in self._subscriptions.items()
            for thread in range(subscription.threads(topic))
        )
        return range_share(numbers, len(threads), threads.index(f"{self.member_id}-0"))

    async def _released(self, partitions: Partitions) -> None:
        await super()._released(partitions)
        if self._clock() - self._last_change > NUDGE_S:
            await self._nudge()

    async def _nudge(self) -> None:
        """Wakes members that no longer retry their claims: they retry when a member joins or leaves."""
        # a member without threads joins and leaves in one transaction. This member's own znode stays, because the lease
        # counts the versions of that znode
        path, nothing = f"{self._ids_path}/{self.member_id}-released", OldSubscription("static", {}).encode()
        while not (self._leaving or self._renewing):
            try:
                await self._zk.multi([Op("create", path, nothing, ephemeral=True), Op("delete", path)])
                return
            except ConnectionLost:
                await asyncio.sleep(RETRY_S)
            except ZnodeExists:
                log.warning("%s: members may not notice that a partition is free, because %s exists", self._group, path)
                return


class PykafkaMembership(_OldConsumer):
    """A member of a group of pykafka's BalancedConsumers. The constructor does no I/O.

    pykafka names the claim of a partition after the partition's leader, and on Python 3 writes the topic as `b'topic'`.
    So two members of pykafka that know different leaders, or run on different Pythons, can both own a partition. This
    member creates claims under all of these names, and respects a claim under any of them.
    """

    _ordered_for: tuple[str, ...] | None = None
    _leaders: dict[TopicPartition, int | None]

    def _ids(self) -> dict[str, bytes]:
        # in this layout a member has one topic
        topics, member_id = sorted(self._registered), f"{_host()}:{uuid.uuid4()}"
        return {member_id + (f".{n}" if n else ""): topic.encode() for n, topic in enumerate(topics or [""])}

    def _claim_paths(self, partition: TopicPartition) -> tuple[str, ...]:
        nodes = sorted(broker.node_id for broker in self._topics.brokers)
        topics = partition.topic, f"b'{partition.topic}'"
        return tuple(f"{self._owners_path}/{topic}/{node}-{partition.partition}" for topic in topics for node in nodes)

    def _claim_data(self) -> bytes:
        return self.member_id.encode()

    async def _listen(self, names: Collection[str]) -> None:
        await super()._listen(names)
        for name, data in self._registrations.items():
            if data.startswith(b"{"):
                why = "not a topic name; a group cannot have members of pykafka and of Kafka's own client"
                self._report_invalid(name, InvalidZnode(f"{self._ids_path}/{name}", why))
        members = tuple(sorted(self._registrations))
        if members != self._ordered_for:
            # the other members keep the order of partitions until the members change, even if a leader changes
            self._ordered_for, self._leaders = members, {}

    def _assign(self, topic: str, numbers: Sequence[int]) -> Iterable[int]:
        members = sorted(name for name, data in self._registrations.items() if data == topic.encode())
        (ours,) = (name for name, data in self._own_registrations.items() if data == topic.encode())
        return range_share(sorted(numbers, key=lambda n: self._sort_key(topic, n)), len(members), members.index(ours))

    def _sort_key(self, topic: str, number: int) -> str:
        partition = TopicPartition(topic, number)
        if partition not in self._leaders:
            self._leaders[partition] = self._topics.leader(partition)
        return f"{self._leaders[partition]}-{number}"
