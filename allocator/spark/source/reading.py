"""Reads the ranges of one Spark task as Arrow batches."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from allocator.core.fetch import Batch, RangeReader, RangeUnread
from allocator.errors import BrokersUnavailable, ConfigError, LogTruncated, OffsetOutOfRange, TopicRecreated
from allocator.spark.errors import DataLoss, NothingRead
from allocator.spark.link import ClusterLink
from allocator.spark.options import Options
from allocator.spark.ranges import Range, pack, split
from allocator.spark.rows import to_spark
from allocator.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

TASKS_A_CORE = 2  # so that a core whose task is short can run a second one
PACKED_RECORDS = 1_000_000  # a task reads them in about a second; its overhead is about 0.1 s
# Records of a task in a small batch: with 1 ms of work for each record, the work equals the task's overhead. Higher:
# the batch uses fewer cores; lower: the overhead exceeds the work.
TASK_RECORDS = 100


class Piece(InputPartition):  # type: ignore[misc]  # pyspark is not followed
    """The ranges of offsets that one task reads, at most one for each partition, and the cluster that has them."""

    def __init__(self, wanted: Sequence[Range], cluster: str | None) -> None:
        super().__init__((cluster, [tuple(each) for each in wanted]))

    @property
    def cluster(self) -> str | None:
        """The cluster's id; None before Kafka 0.10.1."""
        return self.value[0]  # type: ignore[no-any-return]

    @property
    def ranges(self) -> list[Range]:
        return [Range(*each) for each in self.value[1]]


def pieces(options: Options, ranges: Iterable[Range], cluster: str | None) -> list[InputPartition]:
    """Returns the tasks for `ranges` of `cluster`: splits large ranges and packs small ones, as the options demand."""
    parts = split(ranges, options.min_partitions, options.max_records_per_partition)
    most = options.max_partitions
    if most is None and options.cores is not None and options.max_records_per_partition is None:
        # does not merge large tasks: the work on one (such as a sort) must fit into memory, and a retry repeats it
        records = sum(part.size for part in parts)
        spread = min(TASKS_A_CORE * options.cores, math.ceil(records / TASK_RECORDS))
        most = max(spread, records // PACKED_RECORDS, options.min_partitions or 1)
    if most is None:
        return [Piece([part], cluster) for part in parts]
    return [Piece(packed, cluster) for packed in pack(parts, most)]


def read_ranges(
    options: Options, wanted: Sequence[Range], schema: pa.Schema, cluster: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields all existing records of `wanted`, as batches with the columns of `schema`; each range in order.

    It reads all ranges at once. They must belong to different partitions. It skips offsets without a record
    (compaction, markers, aborted records). Raises `DataLoss` for offsets outside the log; without `fail_on_data_loss`,
    logs a warning. Raises `NothingRead`, which names the partition, after `timeout_s` without a record. Raises errors
    of a partition (`CorruptRecordError`, `TopicAuthorizationFailed`, ...), and ConfigError if the brokers belong to
    another cluster than `cluster`.
    """
    with ClusterLink(options) as link:
        batches = _read(link, options, {each.tp: each for each in wanted}, cluster)
        try:
            while (batch := link.run(_next(batches))) is not None:
                yield to_spark(batch, schema)
        finally:
            link.run(batches.aclose())


async def _next(batches: AsyncIterator[Batch]) -> Batch | None:
    async for batch in batches:
        return batch
    return None


async def _read(
    link: ClusterLink, options: Options, wanted: Mapping[TopicPartition, Range], cluster: str | None
) -> AsyncGenerator[Batch, None]:
    try:
        client = await link.client()
    except BrokersUnavailable as error:
        failure = NothingRead(f"{next(iter(wanted.values()))}: {error}")
        failure.retriable = error.retriable
        raise failure from error
    if cluster is not None and (here := client.metadata.cluster_id) not in (None, cluster):
        raise ConfigError(
            f"the driver planned the read on cluster {cluster}, and {', '.join(options.brokers)} leads this task to "
            f"cluster {here}; give names of brokers that mean the same on the driver and the executors"
        )
    client.follow({tp.topic for tp in wanted})
    reader = RangeReader(
        client,
        isolation_level=options.isolation_level,
        patience_s=options.timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
        max_partition_bytes=options.fetch_bytes,
        prefetch_bytes=4 * options.fetch_bytes,
        rack=options.rack,
    )
    ranges = {tp: (each.start, each.end) for tp, each in wanted.items()}
    try:
        async for batch in reader.read(ranges, topic_ids={tp.topic: each.topic_id for tp, each in wanted.items()}):
            yield batch
    except RangeUnread as error:
        raise NothingRead(f"{error}. Spark may retry the task; timeout_s limits how long a task waits") from error
    except OffsetOutOfRange as error:
        raise DataLoss(await _why_lost(reader, wanted, error)) from error


async def _why_lost(reader: RangeReader, wanted: Mapping[TopicPartition, Range], error: OffsetOutOfRange) -> str:
    tp = TopicPartition(error.topic, error.partition)
    name = f"{tp.topic}:{tp.partition}"
    if isinstance(error, TopicRecreated):
        return (
            f"{name} was to be read from offset {error.offset} to {wanted[tp].end - 1}, but the topic was deleted and "
            "created again since; start again (a stream: with another checkpointLocation), or set fail_on_data_loss to "
            "false to continue with the new topic"
        )
    if isinstance(error, LogTruncated) and error.divergent_offset == error.offset:
        return (
            f"{name} was to be read up to offset {wanted[tp].end - 1}, but its log was truncated and ends before "
            f"offset {error.offset} now; start again, or set fail_on_data_loss to false to continue with the records "
            "that it has"
        )
    if isinstance(error, LogTruncated) and error.divergent_offset is not None:
        return (
            f"{name} was read up to offset {error.offset}, but the new leader lacks the records from offset "
            f"{error.divergent_offset} on; start again, or set fail_on_data_loss to false to continue with "
            "the records that it has"
        )
    begin, end = (await reader.bounds([tp]))[tp]
    return (
        f"{name} has offsets {begin} to {end - 1}, not {error.offset}: records were deleted before they were read "
        "(retention), or the topic was deleted and created again; begin at offsets that exist, or set "
        "fail_on_data_loss to false to continue without them"
    )
