"""Finds out whether a topic was deleted and created again while this member could not see it.

From Kafka 3.1 on, a request for records names the id of the topic. Older brokers return the records of whatever topic
has the name now, at the position in the former one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from functools import partial
from typing import Protocol

from allocator.core.aio.backoff import Backoff
from allocator.core.client.client import KafkaClient
from allocator.core.client.log_offsets import DEBUGGING, list_offsets
from allocator.core.errors import AllocatorError
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.fetch.starting_positions import CommittedOffsets
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import LATEST, NO_PARTITIONS, Partitions, TopicPartition

log = logging.getLogger(__name__)

# longest pause before the next try, while the broker or ZooKeeper is away. Higher: partitions in doubt stand still for
# longer afterwards; lower: more requests of all members at once
BACKOFF_MAX_S = 1.0
TIMEOUT_S = 5.0  # of a request for the ends of doubted logs. Higher: a slow broker delays others; lower: more requests


class TopicRecords(Protocol):
    """Tells topics of the same name apart, by what the group's service records about them. Brokers before 2.8 give
    topics no ids. Each method raises AllocatorError."""

    async def is_of(self, cluster_id: str | None, brokers: Mapping[int, tuple[str, int]]) -> bool:
        """Returns whether the service records the topics of this cluster. `brokers`: node id -> host and port."""

    async def created_at(self, topics: Mapping[str, Callable[[], None] | None]) -> dict[str, int]:
        """Returns topic -> a number that each creation of a topic increases. Leaves out unknown topics. The values of
        `topics` are called once that may have changed."""

    async def outdated(self, group: str, partitions: Iterable[TopicPartition]) -> Partitions:
        """Returns those whose offsets in this service were written before their topic was created."""


class TopicRecorder(Protocol):
    """The part of a `Membership` that tells topics apart."""

    @property
    def member_id(self) -> str: ...

    @property
    def topic_records(self) -> TopicRecords | None: ...


class Doubts:
    """Decides for partitions that are in doubt (`TopicPartitionState.in_doubt`) whether their log is another one.

    A partition is in doubt once metadata lacks its topic, which brokers that have just started lack too, after a while
    in which nothing was fetched, and when the znode of its topic changes. Until it is decided, nothing of it is
    delivered or committed. A topic is another one if its id has changed (Kafka 2.8 and newer). Without ids its znode
    tells, in case the group's ZooKeeper is that of the brokers. Otherwise it is another one if a log ends before a
    position that it had, or if the coordinator has none of its committed offsets any more, because coordinators delete
    the offsets of deleted topics (0.10.2 and newer, KAFKA-2000). A coordinator that was away at the deletion keeps
    them.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        fetcher: Fetcher,
        committed: Callable[[Iterable[TopicPartition]], Awaitable[CommittedOffsets]],
    ) -> None:
        self._client = client
        self._state = state
        self._fetcher = fetcher
        self._committed = committed
        self.membership: TopicRecorder
        # topic -> the zxid that created the topic whose records are read
        self._created: dict[str, int] = {}
        # topic -> the member (the session) that watches its znode
        self._watching: dict[str, str] = {}
        self._unwatched: set[str] = set()  # topics whose znodes may have changed, or were watched in a lost connection
        self._theirs: set[str | None] = set()  # ids of clusters that keep their topics in this member's ensemble
        # tenures in doubt whose log ended before the position. Its end may pass the position before the coordinator
        # responds
        self._short: set[TopicPartitionState] = set()
        self._woken: asyncio.Event | None = None

    async def committed(self, partitions: Iterable[TopicPartition]) -> CommittedOffsets:
        """Returns the committed offsets of partitions that begin, and notes which topics these belong to. They count
        until `SubscriptionState.doubts` changes for the topic."""
        wanted = frozenset(partitions)
        created = await self._look({tp.topic for tp in wanted})
        changed = self._changed(created)
        self._state.doubts.update(changed)
        for tp, tenure in self._state.assignment.items() if changed else ():
            if tp.topic in changed and tenure.position is not None:
                self._fetcher.recreated(tp)  # this member began to read the former topic
        self._created.update(created)
        return await self._committed(wanted)

    async def outdated(self, group: str, partitions: Iterable[TopicPartition]) -> Partitions:
        """Returns those whose offsets in ZooKeeper were written before their topic was created."""
        records = await self._records()
        return NO_PARTITIONS if records is None else await records.outdated(group, partitions)

    async def _records(self) -> TopicRecords | None:
        """Returns what the group's service records, if these are the topics of the brokers. Raises AllocatorError."""
        records, cluster = self.membership.topic_records, self._client.metadata
        if records is None or cluster.cluster_id in self._theirs:
            return records
        if not await records.is_of(cluster.cluster_id, {n: (b.host, b.port) for n, b in cluster.brokers.items()}):
            return None
        self._theirs.add(cluster.cluster_id)
        return records

    def metadata_came(self) -> None:
        """Called with each metadata. A topic that is missing may come back with other records at the same offsets."""
        gone = {topic for topic in self._state.topics() if self._client.partitions(topic) is None}
        if gone:
            self._state.forget_logs(gone.__contains__)
            self._doubt(gone)
        self.wake()

    def _znode_changed(self, topic: str) -> None:
        self._watching.pop(topic, None)
        self._unwatched.add(topic)
        self._doubt({topic})
        self.wake()

    def _doubt(self, topics: Set[str]) -> None:
        self._state.doubts.update(topics)
        for tp, tenure in self._state.assignment.items():
            if tp.topic in topics and tenure.topic_id is None:
                tenure.doubt_log()

    def wake(self) -> None:
        if self._woken is not None:
            self._woken.set()

    async def run(self) -> None:
        """Decides doubts until cancelled."""
        self._woken, self._state.on_doubt = asyncio.Event(), self.wake
        backoff = Backoff(self._client.retry_backoff_s, BACKOFF_MAX_S)
        while True:
            await self._woken.wait()
            self._woken.clear()
            doubted = {tp: (each, each.in_doubt) for tp, each in self._state.assignment.items() if each.in_doubt}
            there = {tp.topic for tp in doubted if self._client.partitions(tp.topic) is not None}
            # those in doubt are looked at when they are decided
            unwatched = self._unwatched & {tp.topic for tp in self._state.assignment} - {tp.topic for tp in doubted}
            if not there and not unwatched:
                continue  # the next metadata wakes it
            try:
                if there:
                    await self._client.refresh(there)
                assigned = self._state.assignment
                decided = {tp for tp in doubted if tp in assigned and self._client.partitions(tp.topic) is not None}
                self._fetcher.compare(decided)
                created = await self._look({tp.topic for tp in decided} | unwatched, wait=True)
                others = await self._others(decided, created)
            except AllocatorError as error:
                log.debug("cannot compare %d topics yet: %s", len(there), error)
                await asyncio.sleep(backoff.next())
                self.wake()
                continue
            backoff.reset()
            self._unwatched -= unwatched | {tp.topic for tp in decided}
            here = {tp: assigned[tp] for tp in decided if assigned.get(tp) is doubted[tp][0]}
            # a topic that came into doubt again in the meantime is decided as a whole, the next time
            again = {tp.topic for tp, tenure in here.items() if tenure.in_doubt != doubted[tp][1]}
            for tp, tenure in here.items():
                if tp.topic not in again:
                    tenure.end_doubt()
                    if tp.topic in others:
                        self._fetcher.recreated(tp)
            self._created.update({topic: zxid for topic, zxid in created.items() if topic not in again})
            self._fetcher.wake()

    async def _others(self, doubted: Iterable[TopicPartition], created: Mapping[str, int]) -> set[str]:
        """Returns the topics of these partitions that have no id and are others. `created`: see `_look`."""
        assigned = self._state.assignment
        told = created.keys() & self._created.keys()  # topics whose znodes show whether they were created again
        rest = {tp for tp in doubted if self._client.topic_id(tp.topic) is None and tp.topic not in told}
        self._short |= await self._short_of(rest)
        self._short = {each for each in self._short if each.in_doubt and assigned.get(each.partition) is each}
        short = {each.partition.topic for each in self._short}
        rest = {tp for tp in rest if tp.topic not in short}
        known = {tp for tp in rest if tp in assigned and assigned[tp].committed is not None}
        found = await self._committed(known) if known else {}
        return self._changed(created) | short | ({tp.topic for tp in known} - {tp.topic for tp in found})

    async def _short_of(self, partitions: Iterable[TopicPartition]) -> set[TopicPartitionState]:
        """Returns the tenures of these partitions whose log ends before what it has had up to the position."""
        led = [tp for tp in partitions if self._client.leader(tp) is not None]
        latest = dict.fromkeys(led, LATEST)
        ends = await list_offsets(self._client, latest, timeout_s=TIMEOUT_S, replica_id=DEBUGGING) if led else {}
        assigned = self._state.assignment
        return {
            tenure
            for tp, end in ends.items()
            if end is not None and (tenure := assigned.get(tp)) is not None and end.offset < _reached(tenure)
        }

    def _changed(self, created: Mapping[str, int]) -> set[str]:
        return {topic for topic, zxid in created.items() if self._created.get(topic, zxid) != zxid}

    async def _look(self, topics: Set[str], *, wait: bool = False) -> dict[str, int]:
        """Returns the zxid that created each of these topics that has no id, as far as this member can know it. With
        `wait`, raises AllocatorError if it can know it later."""
        wanted = {topic for topic in topics if self._client.topic_id(topic) is None}
        try:
            records = await self._records() if wanted else None
            if records is None:
                return {}
            member = self.membership.member_id
            new = {topic for topic in wanted if self._watching.get(topic) != member}
            self._watching.update(dict.fromkeys(new, member))
            return await records.created_at(
                {topic: partial(self._znode_changed, topic) if topic in new else None for topic in wanted}
            )
        except AllocatorError as error:
            for topic in wanted:
                self._watching.pop(topic, None)
            if wait and error.retriable and not wanted.isdisjoint(self._created):
                raise
            log.debug("cannot read when %d topics were created: %s", len(wanted), error)
            return {}


def _reached(tenure: TopicPartitionState) -> int:
    """Returns the highest offset up to the position that the log is known to have had; -1 if none is.

    A position that was sought may lie beyond the end of the log.
    """
    if tenure.position is None or (tenure.high_watermark is None and tenure.moves):
        return -1
    here = tenure.position.offset
    return here if tenure.high_watermark is None else min(here, tenure.high_watermark)
