"""A consumer as the source of a record processor."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from allocator.core.consumer.consumer import ConsumerBase
from allocator.core.consumer.record_processor import RecordProcessor
from allocator.core.errors import NotOwned
from allocator.core.fetch.batch import Batch
from allocator.core.subscription.done import DoneSet
from allocator.core.telemetry.measures import Measures
from allocator.core.types import Offset, OffsetAndMetadata, Partitions, TopicPartition
from allocator.core.zookeeper.client import ZooKeeperClient


def join_again_if(consumer: ConsumerBase, admitted: Callable[[ZooKeeperClient], Awaitable[bool]]) -> None:
    """Like `Membership.join_again_if`."""
    consumer._engine.membership.join_again_if(admitted)


class OwnConsumer:
    """A `RecordSource` that starts and closes its consumer, whose listener is the processor."""

    def __init__(self, consumer: ConsumerBase, *, leave_for_good: bool = False) -> None:
        self._consumer = consumer
        self._engine = consumer._engine
        self._also: frozenset[str] = frozenset()
        if leave_for_good:
            self._engine.membership.leave_for_good()

    @property
    def measures(self) -> Measures:
        return self._consumer.measures

    def also_read(self, topics: Sequence[str]) -> None:
        self._also = frozenset(topics)
        self._engine.also_read(topics)

    @property
    def done_characters(self) -> int:
        return self._engine.done_characters

    async def start(self) -> None:
        await self._consumer.start()
        self._engine.start_task(self._engine.learn_metadata_limit(), "metadata limit")

    async def close(self) -> None:
        await self._consumer.close()

    async def getbatch(self, timeout_s: float | None = None) -> Batch | None:
        batch = await self._consumer.getbatch(timeout_s)
        return None if batch is None else batch.raw()

    async def commit(self, offsets: Mapping[TopicPartition, Offset] | None = None) -> None:
        if self._engine.group is not None:
            await self._consumer.commit(offsets)

    async def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        return None if self._engine.group is None else await self._consumer.committed(partition)

    def is_own(self, committed: OffsetAndMetadata) -> bool:
        return self._engine.progress.is_own(committed)

    @property
    def keeps_positions(self) -> bool:
        return self._engine.sink is not None

    def done_beyond(self, partition: TopicPartition) -> DoneSet | None:
        return self._engine.progress.done_beyond(partition)

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        self._consumer.seek(partition, offset)

    def topic_id(self, partition: TopicPartition) -> Any:
        return self._consumer.topic_id(partition)

    def pause(self, *partitions: TopicPartition) -> None:
        self._consumer.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._consumer.resume(*partitions)

    def assignment(self) -> Partitions:
        return self._consumer.assignment()

    def may_act(self) -> bool:
        return self._consumer.may_act()

    async def until_may_act(self) -> None:
        await self._consumer.until_may_act()

    async def until_confirmed(self) -> None:
        await self._engine.until_confirmed()


class RunningConsumer(OwnConsumer):
    """A `RecordSource` that neither starts nor closes its consumer.

    After `close` the consumer keeps its partitions, and continues at the first record that is not done.
    """

    def __init__(self, consumer: ConsumerBase, listener: RecordProcessor) -> None:
        super().__init__(consumer)
        self._listener = listener
        self._started = False

    async def start(self) -> None:
        self._engine.must_not_process()
        # a call that outlasted an earlier `process` keeps its partition, and two calls at once would break its order
        former = self._engine.outlasting
        if former is not None:
            await former.until_ended()
            self._engine.must_not_process()
        self._started = True
        self._engine.process_with(self._listener)
        self._engine.start_task(self._engine.learn_metadata_limit(), "metadata limit")

    async def close(self) -> None:
        if not self._started:
            return
        self._listener.retire()
        self._engine.process_with(None, self._listener if self._listener.stuck else None)
        retries = self._also
        for partition in self._consumer.assignment():
            if partition.topic in retries:
                self._consumer.pause(partition)
        if retries and not self._engine.closing:
            self.also_read(())
        for partition, (point, committed) in self._listener.resume_points().items():
            with contextlib.suppress(NotOwned):
                # these partitions are being released; until then the user gets none of their records
                if partition.topic not in retries:
                    self._consumer.resume(partition)
                self._consumer.seek(partition, point)
                if committed:
                    # a second commit of the same offset would drop the done records beyond it
                    self._engine.progress.note_committed({partition: point.offset})
