"""Finds out whether a topic was deleted and created again while this member could not see it.

From Kafka 3.1 on, a request for records names the id of the topic. Older brokers return the records of whatever topic
has the name now, at the position in the former one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from allocator.core.client.client import KafkaClient
from allocator.core.consumer.starting_positions import CommittedOffsets
from allocator.core.errors import AllocatorError
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.membership.membership import Membership
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import NO_PARTITIONS, Partitions, TopicPartition

log = logging.getLogger(__name__)


class Doubts:
    """Decides for partitions that are in doubt (`TopicPartitionState.in_doubt`) whether their log is another one.

    A partition is in doubt once metadata lacks its topic, which brokers that have just started lack too, and after a
    while in which nothing was fetched. Until it is decided, nothing of it is delivered or committed. A topic is another
    one if its id has changed (Kafka 2.8 and newer); if its znode was created again, in case the group's ZooKeeper is
    that of the brokers; or if the coordinator no longer has the committed offset, because coordinators delete the
    offsets of deleted topics (0.10.2 and newer, KAFKA-2000). Otherwise it is held to be the same.
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
        self.membership: Membership
        # topic -> the zxid that created it, as of the last look
        self._created: dict[str, int] = {}
        self._woken: asyncio.Event | None = None

    async def committed(self, partitions: Iterable[TopicPartition]) -> CommittedOffsets:
        """Returns the committed offsets of partitions that begin, and notes which topics these belong to."""
        wanted = frozenset(partitions)
        changed = await self._look({tp.topic for tp in wanted})
        for tp, tenure in self._state.assignment.items() if changed else ():
            if tp.topic in changed and tenure.position is not None:
                self._fetcher.recreated(tp)  # this member began to read the former topic
        return await self._committed(wanted)

    async def outdated(self, group: str, partitions: Iterable[TopicPartition]) -> Partitions:
        """Returns those whose offsets in ZooKeeper were written before their topic was created."""
        ensemble = self.membership.ensemble
        if ensemble is None:
            return NO_PARTITIONS
        from allocator.core.zookeeper.topics import outdated

        return await outdated(ensemble, group, partitions)

    def metadata_came(self) -> None:
        """Called with each metadata. A topic that is missing may come back with other records at the same offsets."""
        gone = {topic for topic in self._state.topics() if self._client.partitions(topic) is None}
        if gone:
            self._state.forget_logs(gone.__contains__)
            for tp, tenure in self._state.assignment.items():
                if tp.topic in gone and tenure.topic_id is None:
                    tenure.doubt_log()
        self.wake()

    def wake(self) -> None:
        if self._woken is not None:
            self._woken.set()

    async def run(self) -> None:
        """Decides doubts until cancelled."""
        self._woken, self._state.on_doubt = asyncio.Event(), self.wake
        while True:
            await self._woken.wait()
            self._woken.clear()
            doubted = {tp: (each, each.in_doubt) for tp, each in self._state.assignment.items() if each.in_doubt}
            there = {tp.topic for tp in doubted if self._client.partitions(tp.topic) is not None}
            if not there:
                continue  # the next metadata wakes it
            try:
                await self._client.refresh(there)
                decided = {tp for tp in doubted if self._client.partitions(tp.topic) is not None}
                self._fetcher.compare(decided)
                others = await self._others(decided)
            except AllocatorError as error:
                log.debug("cannot compare %d topics yet: %s", len(there), error)
                await asyncio.sleep(self._client.retry_backoff_s)
                self.wake()
                continue
            for tp in decided:
                tenure, count = doubted[tp]
                if self._state.assignment.get(tp) is tenure and tenure.in_doubt == count:
                    tenure.end_doubt()
                    if tp in others:
                        self._fetcher.recreated(tp)
            self._fetcher.wake()

    async def _others(self, doubted: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Returns the partitions among these, of topics without an id, whose log is another one."""
        tenures = {tp: self._state.assignment.get(tp) for tp in doubted if self._client.topic_id(tp.topic) is None}
        changed = await self._look({tp.topic for tp in tenures})
        known = {tp for tp, tenure in tenures.items() if tenure is not None and tenure.committed is not None}
        found = await self._committed(known) if known else {}
        return {tp for tp in tenures if tp.topic in changed or (tp in known and tp not in found)}

    async def _look(self, topics: Iterable[str]) -> set[str]:
        """Reads when these topics were created. Returns those that were created again since the last look."""
        ensemble = self.membership.ensemble
        wanted = {topic for topic in topics if self._client.topic_id(topic) is None}
        if ensemble is None or not wanted:
            return set()
        from allocator.core.zookeeper.topics import created_at

        try:
            found = await created_at(ensemble, wanted)
        except AllocatorError as error:
            log.debug("cannot read when %d topics were created: %s", len(wanted), error)
            return set()
        changed = {topic for topic, zxid in found.items() if self._created.get(topic, zxid) != zxid}
        self._created.update(found)
        return changed
