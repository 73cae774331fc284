"""Follows the topics that a group subscribes to, for its leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from allocator.core.aio import wait_for_event, within
from allocator.core.settings import PartitionCountSource, topic_pattern
from allocator.errors import AllocatorError, TopicAuthorizationFailed
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, MemberInfo

log = logging.getLogger(__name__)

REFRESH_TIMEOUT_S = 3.0  # a source that does not respond delays a rebalance for at most this long


class SubscribedTopics:
    """The partition count of every topic that a member subscribes to. Calls `changed` when a count may have changed.

    While Kafka does not respond, the counts stay as they are: `update` waits for REFRESH_TIMEOUT_S at most, once
    for each request. A topic counts as deleted if two responses do not list it, because a starting broker may omit
    existing topics. A topic that the brokers hide from this user keeps its count.
    """

    def __init__(self, group: str, source: PartitionCountSource, changed: Callable[[], None]) -> None:
        self.counts: dict[str, int] = {}
        self._group = group
        self._source = source
        self._changed = changed
        self._certain: bool = getattr(source, "certain", False)
        """Whether a topic that the source does not list once is deleted, and its notifications tell of changes."""
        self._missing: set[str] = set()
        self._patterns: set[str] = set()
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[bool]] = []
        """Completed by the next request that starts: whether the source has responded."""
        self._overdue = False
        """Whether `update` no longer waits for the present request."""
        self._late: bool | None = None
        """Whether the source has responded to an overdue request; None once `update` knows."""

    async def poll(self, every_s: float) -> None:
        """Requests the metadata of topics every `every_s` seconds, and when `update` needs it, until it is
        cancelled."""
        remove = self._source.on_metadata(self._metadata_came)
        try:
            while True:
                await wait_for_event(self._wanted, every_s)
                self._wanted.clear()
                waiting, self._waiting = self._waiting, []
                responded = await self._refresh()
                if self._overdue:
                    self._overdue, self._late = False, responded
                for each in waiting:
                    if not each.done():
                        each.set_result(responded)
                if self._late is not None or not waiting:
                    self._changed()
        finally:
            remove()

    async def update(self, members: Mapping[str, MemberInfo], document: AssignmentDocument) -> None:
        """Counts the partitions for these members. A new leader starts with the counts of its predecessor's
        `document`."""
        self.counts = known = self.counts or document.partition_counts()
        topics = set().union(*(info.topics for info in members.values()))
        self._patterns = {info.pattern for info in members.values() if info.pattern is not None}
        self._source.follow(topics)
        if self._patterns:
            self._source.follow_all()
        late, self._late = self._late, None
        responded = True
        if self._patterns or any(self._source.partitions(topic) is None for topic in topics):
            responded = await self._refreshed() if late is None else late
        topics |= self._matching(self._source.topics())
        counts = {}
        for topic in topics | set(known):
            found = self._source.partitions(topic)
            before, hidden = known.get(topic), self._source.hides(topic)
            if found:
                counts[topic] = max(found) + 1
                self._missing.discard(topic)
            elif before is not None and (hidden or not responded or not (self._certain or topic in self._missing)):
                counts[topic] = before
                if responded and not hidden:
                    self._missing.add(topic)
            elif hidden:
                error = TopicAuthorizationFailed(topic, "describe")
                log.error("%s: no member gets these partitions, because its leader is %s", self._group, error)
        subscribed = topics | self._matching(counts)
        self.counts = {topic: count for topic, count in counts.items() if topic in subscribed}

    def of_topic(self, topic: str) -> int | None:
        """Returns how many partitions a topic has in Kafka, subscribed or not; None if the topic is unknown."""
        known = self._source.partitions(topic)
        return None if known is None else len(known)

    async def _refreshed(self) -> bool:
        """Waits for a request that starts after this call. Returns False if the source does not respond in time."""
        if self._overdue:
            return False
        response: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(response)
        self._wanted.set()
        try:
            return await within(response, REFRESH_TIMEOUT_S)
        except asyncio.TimeoutError:
            why = f"no response in {REFRESH_TIMEOUT_S:g} s"
            log.warning("%s: the partition counts stay as they are: %s", self._group, why)
        self._overdue = True
        return False

    async def _refresh(self) -> bool:
        try:
            await self._source.refresh()
        except AllocatorError as error:
            log.warning("%s: the partition counts stay as they are: %s", self._group, error)
            return False
        return True

    def _metadata_came(self) -> None:
        # `update` may request metadata itself, so only a changed count matters
        if (
            self._certain
            or any(map(self._grew_or_ended, self.counts))
            or (self._patterns and self._matching(self._source.topics()) - set(self.counts))
        ):
            self._changed()

    def _grew_or_ended(self, topic: str) -> bool:
        found = self.of_topic(topic)
        return self._certain if found is None else found > self.counts[topic]

    def _matching(self, names: Iterable[str]) -> set[str]:
        patterns = list(map(topic_pattern, self._patterns))
        return {topic for topic in names if any(pattern.matches(topic) for pattern in patterns)}
