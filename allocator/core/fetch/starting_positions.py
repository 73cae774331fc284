"""Finds the positions of newly owned partitions: the sink's offset, the committed offset, or a reset."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from allocator.core.aio.reminder import Reminder
from allocator.core.aio.tasks import BackgroundTasks
from allocator.core.errors import AllocatorError, NoOffsetsError
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.subscription.partition import FetchState, TopicPartitionState
from allocator.core.subscription.state import SubscriptionState
from allocator.core.subscription.tenures import Phase
from allocator.core.types import NO_PARTITIONS, OffsetAndMetadata, Partitions, TopicPartition

log = logging.getLogger(__name__)

# pause before committed offsets are requested again. Higher: partitions begin later after an outage; lower: more
# requests to a failing coordinator
RETRY_S = 0.1

CommittedOffsets = Mapping[TopicPartition, OffsetAndMetadata]
Found = tuple[CommittedOffsets, Mapping[str, int]]
"""Committed offsets, and `SubscriptionState.doubts` when they were requested."""


class SinkOffsets(Protocol):
    """One member's access to the offsets in a sink."""

    async def begin(self, partitions: Partitions) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Makes this member the only writer, and returns the offsets in the database. Raises AllocatorError."""

    async def rewind(self, partition: TopicPartition, offset: int) -> bool:
        """Sets the sink's offset back, and retries while this member owns the partition. Returns False if it has
        left."""


class StartingPositions:
    """Sets the position of each new tenure.

    `committed` reads the offsets of the group. `report` passes an error to the user, and returns when the user has
    received it.
    """

    def __init__(
        self,
        state: SubscriptionState,
        committed: Callable[[Iterable[TopicPartition]], Awaitable[CommittedOffsets]],
        fetcher: Fetcher,
        sink: SinkOffsets | None,
        report: Callable[[AllocatorError], Awaitable[None]],
    ) -> None:
        self._state = state
        self._committed = committed
        self._fetcher = fetcher
        self._sink = sink
        self._report = report
        # partitions that this member is about to claim, and the task that requests their committed offsets
        self._expected: tuple[Partitions, asyncio.Task[Found | None]] | None = None

    def expect(self, partitions: Partitions, tasks: BackgroundTasks) -> None:
        """Requests the committed offsets of free partitions that this member is about to claim."""
        self.forget_expected(tasks)
        self._expected = partitions, tasks.start(self._expect(partitions), "committed offsets")

    def forget_expected(self, tasks: BackgroundTasks) -> None:
        """Drops the request of `expect`, because another member may have owned the partitions since."""
        if self._expected is not None:
            tasks.cancel(self._expected[1])
            self._expected = None

    def begin(self, tenures: list[TopicPartitionState], tasks: BackgroundTasks) -> asyncio.Future[None]:
        """Starts to find the positions of new tenures.

        Returns a future that is done once this member is registered in the sink as their owner, or they have ended.
        """
        expected, self._expected = self._expected, None
        early = None
        if expected is not None and expected[0] == {tenure.partition for tenure in tenures}:
            early = expected[1]
        registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._sink is None:
            registered.set_result(None)
        task = tasks.start(self._find(tenures, registered, early), "positions")
        task.add_done_callback(lambda _: registered.cancel())
        return registered

    async def _expect(self, partitions: Partitions) -> Found | None:
        try:
            return await self._look_up(partitions)
        except AllocatorError:  # `_find` repeats the request, and reports the error
            return None

    async def _look_up(self, partitions: Partitions) -> Found:
        doubts = {tp.topic: self._state.doubts[tp.topic] for tp in partitions}
        return (await self._committed(partitions)) if partitions else {}, doubts

    async def _find(
        self,
        tenures: list[TopicPartitionState],
        registered: asyncio.Future[None],
        early: asyncio.Task[Found | None] | None = None,
    ) -> None:
        """Seeks to the committed offsets, or requests a reset. Repeats the request until the coordinator responds.

        Ignores the offset of a tenure that has ended, because another member may have committed since. `early` is a
        request that was sent already.
        """
        found = None if early is None else await early
        if found is not None:
            tenures = self._begin(tenures, found)
            if not tenures:
                return
        unknown = Reminder(log)
        while True:
            missing = self._missing(tenures)
            owned = frozenset(tenure.partition for tenure in tenures if tenure.phase is not Phase.ENDED)
            # even if the user has sought in all of them: otherwise the sink would refuse this member's writes
            if not missing and (registered.done() or not owned):
                return
            try:
                stored = {} if self._sink is None else await self._sink.begin(owned)
                if not registered.done():
                    registered.set_result(None)
                found = await self._look_up(missing - stored.keys())
            except AllocatorError as error:
                named = missing & (error.partitions if isinstance(error, NoOffsetsError) else NO_PARTITIONS)
                if named and named != missing:
                    # request the partitions with errors separately, so that the other partitions need not wait
                    each = ([t for t in tenures if t.partition in part] for part in (named, missing - named))
                    await asyncio.gather(*(self._find(part, registered) for part in each))
                    return
                if error.retriable:
                    unknown.warn("committed offsets of %d partitions are not known yet: %s", len(missing), error)
                else:
                    await self._report(error)
                await asyncio.sleep(RETRY_S)
                continue
            for partition in self._missing(tenures) & stored.keys():
                # the sink's offset counts, because the database has exactly the effects of the records before it
                self._state.seek(partition, stored[partition])
            tenures = self._begin(tenures, found)
            if not tenures:
                return

    def _begin(self, tenures: list[TopicPartitionState], found: Found) -> list[TopicPartitionState]:
        """Starts tenures at their committed offsets. Returns those for which these have to be read again, because their
        topic came into doubt since."""
        committed, doubts = found
        again = {topic for topic, count in doubts.items() if self._state.doubts[topic] != count}
        for partition in self._missing(tenures):
            if partition.topic not in again:
                self._begin_at(partition, committed.get(partition))
        self._fetcher.wake()
        return [tenure for tenure in tenures if tenure.partition.topic in again]

    def _begin_at(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        if committed is not None:
            self._state.begin(partition, committed)
            return
        try:
            self._state.request_offset_reset(partition)
        except NoOffsetsError as error:
            self._fetcher.fail(partition, error)

    def _missing(self, tenures: list[TopicPartitionState]) -> Partitions:
        """Returns the partitions whose tenures have not ended and have neither a position nor a reset in progress."""
        owned = (tenure for tenure in tenures if tenure.phase is not Phase.ENDED)
        return frozenset(tenure.partition for tenure in owned if tenure.fetch_state is FetchState.INITIALIZING)
