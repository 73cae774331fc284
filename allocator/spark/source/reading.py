"""Reads the ranges of one Spark task as Arrow batches."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from allocator.core.client.client import KafkaClient
from allocator.core.client.log_offsets import EARLIEST, LATEST, list_offsets
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.subscription import SubscriptionState
from allocator.core.subscription.loss import stamped
from allocator.errors import (
    AllocatorError,
    BrokerError,
    BrokersUnavailable,
    LogTruncated,
    OffsetOutOfRange,
    TopicNotFound,
    TopicRecreated,
)
from allocator.spark.errors import DataLoss, NothingRead
from allocator.spark.link import ClusterLink
from allocator.spark.options import Options
from allocator.spark.ranges import Range, pack, split
from allocator.spark.rows import to_spark
from allocator.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Piece", "pieces", "read_ranges"]

log = logging.getLogger(__name__)

DIAGNOSIS_S = 5.0  # for the request that finds the cause of a timeout
TASKS_A_CORE = 2  # more than one, so that a core with a short task takes another
PACKED_RECORDS = 1_000_000  # read in about a second; a task costs about 0.1 s besides
# For each task of a small batch; at 1 ms of work a record, this is the cost of the task. More: the batch uses fewer
# cores. Less: it costs more than it reads.
TASK_RECORDS = 100


class Piece(InputPartition):  # type: ignore[misc]  # pyspark is not followed
    """The ranges of one task, of different partitions."""

    def __init__(self, wanted: Sequence[Range]) -> None:
        super().__init__([tuple(each) for each in wanted])

    @property
    def ranges(self) -> list[Range]:
        return [Range(*each) for each in self.value]


def pieces(options: Options, ranges: Iterable[Range]) -> list[InputPartition]:
    """The tasks for `ranges`: splits large ranges and packs small ones, by the options."""
    parts = split(ranges, options.min_partitions, options.max_records_per_partition)
    most = options.max_partitions
    if most is None and options.cores is not None and options.max_records_per_partition is None:
        # not larger: the rest of the task (such as a sort) must fit into memory, and a retry repeats it all
        records = sum(part.size for part in parts)
        spread = min(TASKS_A_CORE * options.cores, math.ceil(records / TASK_RECORDS))
        most = max(spread, records // PACKED_RECORDS, options.min_partitions or 1)
    if most is None:
        return [Piece([part]) for part in parts]
    return [Piece(packed) for packed in pack(parts, most)]


def read_ranges(options: Options, wanted: Sequence[Range], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All existing records of `wanted`, as batches with the columns of `schema`; each range in order.

    It reads all ranges at once; they are of different partitions. It skips offsets without a record (compaction,
    markers, aborted records). Raises `DataLoss` for offsets outside the log (only a warning without
    `fail_on_data_loss`), `NothingRead` with the partition after `timeout_s` without a record, and errors of a partition
    (`CorruptRecordError`, `TopicAuthorizationFailed`, ...).
    """
    with ClusterLink(options) as link:
        task = _Task(options, wanted)
        try:
            link.run(task.start(link))
            while True:
                found = link.run(task.next())
                if found is None:
                    return
                rows = to_spark(*found, schema)
                if rows.num_rows:
                    yield rows
        finally:
            link.run(task.close())


class _Task:
    def __init__(self, options: Options, wanted: Sequence[Range]) -> None:
        self._options = options
        # partition -> its range, until the range is read to its end
        self._unread = {each.tp: each for each in wanted}
        self._state = SubscriptionState("none")
        self._client: KafkaClient | None = None
        self._fetcher: Fetcher | None = None

    async def start(self, link: ClusterLink) -> None:
        options = self._options
        try:
            self._client = client = await link.client()
        except BrokersUnavailable as error:
            failure = NothingRead(f"{next(iter(self._unread.values()))}: {error}")
            failure.retriable = error.retriable
            raise failure from error
        client.follow({tp.topic for tp in self._unread})
        self._state.assign_from_user(self._unread)
        for tp, wanted in self._unread.items():
            self._seek(tp, wanted.start)
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

    async def next(self) -> tuple[Batch, int] | None:
        """(batch, end of its range) for the next batch before such an end; None when all ends are reached."""
        assert self._fetcher is not None
        loop = asyncio.get_running_loop()
        deadline, before = loop.time() + self._options.timeout_s, self._positions()
        while self._unread:
            try:
                batch = self._fetcher.take()
            except OffsetOutOfRange as error:
                await self._lost(error)
                continue
            if batch is not None:
                tp = TopicPartition(batch.topic, batch.partition)
                end = self._unread[tp].end
                epoch = self._fetcher.leader_epoch(tp, batch.next_offset)
                self._state.update_position(tp, batch.next_offset, epoch)
                if batch.next_offset >= end:
                    self._done(tp)
                if batch.base_offset < end:
                    return batch, end
                continue  # compaction left nothing below the end
            now = self._positions()
            for tp in [tp for tp, at in now.items() if at >= self._unread[tp].end]:
                self._done(tp)
            if now != before:
                deadline, before = loop.time() + self._options.timeout_s, now
            elif not await self._fetcher.news(deadline - loop.time()):
                raise await self._nothing()
        return None

    def _positions(self) -> dict[TopicPartition, int]:
        """The positions of the unread ranges."""
        found = {}
        for tp, wanted in self._unread.items():
            position = self._state.position(tp)
            found[tp] = wanted.start if position is None else position.offset
        return found

    def _done(self, tp: TopicPartition) -> None:
        del self._unread[tp]
        if self._unread:
            assert self._fetcher is not None
            self._fetcher.discard([tp])  # fetched records beyond the end would take memory from the others

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        """Seeks, with the id of the range's topic."""
        self._state.seek(tp, OffsetAndMetadata(offset, stamped("", self._unread[tp].topic_id), -1))

    async def _lost(self, error: OffsetOutOfRange) -> None:
        """The log does not have the position: raises DataLoss, or continues at the next existing offset."""
        tp = TopicPartition(error.topic, error.partition)
        at, wanted = self._positions()[tp], self._unread[tp]
        if isinstance(error, TopicRecreated):
            self._recreated(wanted, at, error)
            return
        if isinstance(error, LogTruncated) and error.divergent_offset is not None:
            self._truncated(wanted, error, error.divergent_offset)
            return
        begin, end = await self._bounds(tp)
        what = f"{tp.topic}:{tp.partition} has offsets {begin} to {end - 1}, not {at}"
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{what}: records were deleted before they were read (retention), or the topic was deleted and created "
                "again; begin at offsets that exist, or set fail_on_data_loss to false to continue without them"
            ) from error
        # a position beyond the end: the topic was created again or its log truncated, so the range has no records
        resume_at = begin if at < begin else wanted.end
        log.warning("%s; skipping %d offsets", what, min(resume_at, wanted.end) - at)
        self._seek(tp, resume_at)
        assert self._fetcher is not None
        self._fetcher.wake()

    def _recreated(self, wanted: Range, at: int, error: TopicRecreated) -> None:
        """The topic was created again since the range was planned: raises DataLoss, or skips the range."""
        what = f"{wanted.topic}:{wanted.partition} was to be read from offset {at} to {wanted.end - 1}"
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{what}, but the topic was deleted and created again since; start again (a stream: with another "
                "checkpointLocation), or set fail_on_data_loss to false to continue with the new topic"
            ) from error
        log.warning("%s, but the topic was deleted and created again since; skipping the range", what)
        self._done(wanted.tp)

    def _truncated(self, wanted: Range, error: LogTruncated, divergent: int) -> None:
        """The log was cut while the task read it: raises DataLoss, or continues at the first record that differs."""
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{error.topic}:{error.partition} was read up to offset {error.offset}, but a leader without the "
                f"records from offset {divergent} on was elected; start again, or set fail_on_data_loss to false to "
                "continue with the present records"
            ) from error
        log.warning("%s", error)
        self._seek(wanted.tp, max(wanted.start, divergent))
        assert self._fetcher is not None
        self._fetcher.wake()

    async def _bounds(self, tp: TopicPartition) -> tuple[int, int]:
        assert self._client is not None
        found = []
        for when in (EARLIEST, LATEST):
            there = (await list_offsets(self._client, {tp: when}, timeout_s=self._options.timeout_s))[tp]
            found.append(0 if there is None else there.offset)
        return found[0], found[1]

    async def _nothing(self) -> AllocatorError:
        assert self._client is not None
        tp, at = next(iter(self._positions().items()))
        why = "its leader responds, but sends no records; read the log of the broker"
        try:
            await list_offsets(self._client, dict.fromkeys(self._unread, EARLIEST), timeout_s=DIAGNOSIS_S)
        except (BrokerError, TopicNotFound) as error:
            why = str(error)
        return NothingRead(
            f"{self._unread[tp]}: no record from offset {at} on within {self._options.timeout_s:g} s ({why}). Spark "
            "may retry the task; timeout_s is the time that it waits"
        )
