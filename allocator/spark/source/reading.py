"""What a task does: one range of offsets, from the leader's bytes to Arrow batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from allocator.client.client import KafkaClient
from allocator.client.log_offsets import EARLIEST, LATEST, list_offsets
from allocator.errors import (
    AllocatorError,
    BrokerError,
    BrokersUnavailable,
    OffsetOutOfRange,
    TopicNotFound,
    TopicRecreated,
)
from allocator.fetch.batch import Batch
from allocator.fetch.fetcher import Fetcher
from allocator.spark.errors import DataLoss, NothingRead
from allocator.spark.link import ClusterLink
from allocator.spark.options import Options
from allocator.spark.ranges import Range
from allocator.spark.rows import to_spark
from allocator.subscription import SubscriptionState
from allocator.subscription.loss import stamped
from allocator.types import OffsetAndMetadata

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_range"]

log = logging.getLogger(__name__)

# to find out why nothing came, once the time is up
DIAGNOSIS_S = 5.0


class Piece(InputPartition):  # type: ignore[misc]  # pyspark is not followed
    """What one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(tuple(wanted))

    @property
    def range(self) -> Range:
        return Range(*self.value)


def read_range(options: Options, wanted: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All records of `wanted` that exist, in order, as batches of `schema`'s columns.

    Offsets without a record (compaction, markers, aborted records) are passed over. Raises `DataLoss` where the log
    does not reach (only a warning without `fail_on_data_loss`), `NothingRead` naming the partition when nothing came
    for `timeout_s`, and whatever befalls the partition (`CorruptRecordError`, `TopicAuthorizationFailed`, ...).
    """
    with ClusterLink(options) as link:
        task = _Task(options, wanted)
        try:
            link.run(task.start(link))
            while True:
                batch = link.run(task.next())
                if batch is None:
                    return
                rows = to_spark(batch, wanted.end, schema)
                if rows.num_rows:
                    yield rows
        finally:
            link.run(task.close())


class _Task:
    def __init__(self, options: Options, wanted: Range) -> None:
        self._options = options
        self._wanted = wanted
        self._tp = wanted.tp
        self._state = SubscriptionState("none")
        self._client: KafkaClient | None = None
        self._fetcher: Fetcher | None = None

    async def start(self, link: ClusterLink) -> None:
        options = self._options
        try:
            self._client = client = await link.client()
        except BrokersUnavailable as error:
            failure = NothingRead(f"{self._wanted}: {error}")
            failure.retriable = error.retriable
            raise failure from error
        client.follow([self._wanted.topic])
        self._state.assign_from_user([self._tp])
        self._state.seek(self._tp, self._at(self._wanted.start))
        self._fetcher = Fetcher(
            client,
            self._state,
            max_bytes=max(options.fetch_bytes, 1 << 20),
            max_partition_bytes=options.fetch_bytes,
            prefetch_bytes=4 * options.fetch_bytes,
            auto_offset_reset="none",
            isolation_level=options.isolation_level,
            rack=options.rack,
        )
        await self._fetcher.start()

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()

    async def next(self) -> Batch | None:
        """The next batch that begins before the end; None when the end is reached."""
        assert self._fetcher is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.timeout_s
        while (at := self._position()) < self._wanted.end:
            try:
                batch = self._fetcher.take()
            except OffsetOutOfRange as error:
                await self._lost(at, error)
                continue
            if batch is not None:
                self._state.update_position(self._tp, batch.next_offset)
                # compaction may leave nothing below the end
                return batch if batch.base_offset < self._wanted.end else None
            if self._position() != at:
                deadline = loop.time() + self._options.timeout_s
            elif not await self._fetcher.news(deadline - loop.time()):
                raise await self._nothing(at)
        return None

    def _position(self) -> int:
        position = self._state.position(self._tp)
        return self._wanted.start if position is None else position.offset

    async def _lost(self, at: int, error: OffsetOutOfRange) -> None:
        """The log does not have `at`: an error, or on from where it begins."""
        if isinstance(error, TopicRecreated):
            self._recreated(at, error)
            return
        begin, end = await self._bounds()
        what = f"{self._tp.topic}:{self._tp.partition} has offsets {begin} to {end - 1}, not {at}"
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{what}: records were deleted before they were read (retention), or the topic was made anew; begin "
                "at offsets that exist, or set fail_on_data_loss to false to go on without them"
            ) from error
        # beyond its end nothing of this range is left: the topic was made anew, or its log was cut
        on = begin if at < begin else self._wanted.end
        log.warning("%s; %d offsets are passed over", what, min(on, self._wanted.end) - at)
        self._state.seek(self._tp, self._at(on))
        assert self._fetcher is not None
        self._fetcher.wake()

    def _recreated(self, at: int, error: TopicRecreated) -> None:
        """The topic is another one than the range was planned for: an error, or nothing of the range is left."""
        what = f"{self._tp.topic}:{self._tp.partition} was to be read from offset {at} to {self._wanted.end - 1}"
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{what}, but the topic was deleted and created again since; begin anew, a stream with another "
                "checkpointLocation, or set fail_on_data_loss to false to go on with the new topic"
            ) from error
        log.warning("%s, but the topic was deleted and created again since; the range is passed over", what)
        self._state.seek(self._tp, self._wanted.end)

    def _at(self, offset: int) -> OffsetAndMetadata:
        """A position in the topic that the range is of."""
        return OffsetAndMetadata(offset, stamped("", self._wanted.topic_id), -1)

    async def _bounds(self) -> tuple[int, int]:
        assert self._client is not None
        found = []
        for when in (EARLIEST, LATEST):
            there = (await list_offsets(self._client, {self._tp: when}, timeout_s=self._options.timeout_s))[self._tp]
            found.append(0 if there is None else there.offset)
        return found[0], found[1]

    async def _nothing(self, at: int) -> AllocatorError:
        assert self._client is not None
        why = "its leader answers, and sends no records; look at the broker's log"
        try:
            await list_offsets(self._client, {self._tp: EARLIEST}, timeout_s=DIAGNOSIS_S)
        except (BrokerError, TopicNotFound) as error:
            why = str(error)
        return NothingRead(
            f"{self._wanted}: no record from offset {at} on within {self._options.timeout_s:g} s ({why}); the task may "
            "be tried again, and timeout_s says how long it waits"
        )
