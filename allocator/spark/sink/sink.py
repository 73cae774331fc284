"""Writes records to topics, at least once: a repeated task writes its records again.

The columns `key` and `value` are binary or string; `topic`, `partition` and `headers` are optional. Records of an
aborted job stay in the topic.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from allocator.errors import ConfigError, DeliveryFailed, TopicNotFound
from allocator.producer import ColumnsToSend, RecordWriter, encode_headers
from allocator.spark.errors import SchemaMismatch, WriteFailed
from allocator.spark.link import ClusterLink
from allocator.spark.options import Options
from allocator.spark.rows import HEADERS
from allocator.spark.shipping import Shipped

if TYPE_CHECKING:
    import pyarrow as pa

KINDS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (HEADERS["headers"],),
}
# Seconds to wait until brokers have created the topic automatically. Higher: a wrong name fails later; lower: a new
# topic may fail.
CREATION_S: Final = 5.0
NO_TOPIC: Final = "record {} of a task has no topic: its column is null, and the option is not set"
NO_PARTITION: Final = "{} has no partition {}; null lets the key choose one"
NO_HEADER_KEY: Final = "a header without a key cannot be written; remove it: filter(headers, h -> h.key is not null)"


class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not followed
    def __init__(self, records: int) -> None:
        self.records = records


class TaskWriter(Shipped):
    """The base of both writers. Checks the columns and the topic on the driver, and writes the rows in tasks."""

    def __init__(self, options: Options, schema: Any) -> None:
        self.options = options
        check_written(schema, options)
        check_topic(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with ClusterLink(self.options) as link:
            return link.run(_produce(link, self.options, iterator))

    def commit(self, *_: Any) -> None:
        """Does nothing: each task has waited for its acknowledgements."""

    def abort(self, *_: Any) -> None:
        """Does nothing: records cannot be removed from a topic."""


class BatchWriter(TaskWriter, DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not followed
    """The writer of `df.write.format("allocator").mode("append").save()`."""


class StreamWriter(TaskWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is not followed
    """The writer of `df.writeStream.format("allocator")`. It writes a repeated micro-batch again."""


def check_written(schema: Any, options: Options) -> None:
    """Raises SchemaMismatch for wrong columns, ConfigError if no option or column names the topic."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    faults = []
    for name, kind in kinds.items():
        if name not in KINDS:
            faults.append(f"column {name!r} is not one of {', '.join(KINDS)}: drop it, or put it into the value")
        elif kind not in KINDS[name]:
            faults.append(f"column {name!r} is {kind}, not {' or '.join(KINDS[name])}: cast it")
    if "value" not in kinds:
        faults.append("there is no column 'value'")
    if faults:
        raise SchemaMismatch("; ".join(faults))
    if "topic" not in kinds and options.topic is None:
        raise ConfigError("the topic is missing: set .option('topic', ...), or add a column 'topic'")


def check_topic(options: Options) -> None:
    """Raises TopicNotFound or BrokersUnavailable before Spark starts tasks. Does not know topics in a column."""

    async def find(topic: str) -> None:
        async with RecordWriter(await link.client(), timeout_s=min(CREATION_S, options.timeout_s)) as writer:
            await writer.find(topic)

    if options.topic is not None:
        with ClusterLink(options) as link:
            link.run(find(options.topic))


async def _produce(link: ClusterLink, options: Options, batches: Iterator[pa.RecordBatch]) -> Written:
    """Writes all batches, and waits until all in-sync replicas have acknowledged every record."""
    client = await link.client()
    count = 0
    try:
        async with RecordWriter(client, compression=options.compression, timeout_s=options.timeout_s) as writer:
            # waits in a thread for Spark's next rows, so that the event loop continues to send requests
            read = functools.partial(asyncio.get_running_loop().run_in_executor, None, next, batches, None)
            while (batch := await read()) is not None:
                count += await _add_batch(writer, options, batch, count)
                writer.raise_if_failed()
            await writer.flush()
    except (DeliveryFailed, TopicNotFound) as error:
        raise WriteFailed(
            f"{error}; check that the topic exists, its max.message.bytes, and the rights of this client. Acknowledged "
            "records stay in the topic"
        ) from error
    return Written(count)


async def _add_batch(writer: RecordWriter, options: Options, batch: pa.RecordBatch, before: int) -> int:
    import pyarrow.compute as pc

    if not writer.takes_columns:
        return await _add_records(writer, options, batch.to_pylist(), before)
    columns = dict(zip(batch.schema.names, batch.columns))
    if "headers" in columns:
        columns["headers"] = _encoded_headers(columns["headers"])
    for topic, rows in _by_topic(options, columns, batch.num_rows, before):
        partitions = rows.get("partition")
        if partitions is not None:
            low = pc.min(partitions).as_py()
            if low is not None and low < 0:
                raise SchemaMismatch(NO_PARTITION.format(topic, low))
        await writer.append_columns(
            topic, ColumnsToSend(rows.get("key"), rows["value"], rows.get("headers")), partitions
        )
    return int(batch.num_rows)


def _by_topic(
    options: Options, columns: dict[str, pa.Array], rows: int, before: int
) -> Iterator[tuple[str, dict[str, pa.Array]]]:
    # the option takes precedence, like in Spark's connector: rows of a read have the column `topic` of their source
    if options.topic is not None:
        yield options.topic, columns
        return
    import pyarrow.compute as pc

    topics = columns["topic"]
    for topic in topics.unique().to_pylist():
        if topic is None:
            raise ConfigError(NO_TOPIC.format(before))
        mask = pc.equal(topics, topic)
        yield topic, {name: column.filter(mask) for name, column in columns.items()}


async def _add_records(writer: RecordWriter, options: Options, rows: list[dict[str, Any]], before: int) -> int:
    for number, row in enumerate(rows, before):
        topic, partition, headers = options.topic or row.get("topic"), row.get("partition"), row.get("headers") or ()
        if topic is None:
            raise ConfigError(NO_TOPIC.format(number))
        if partition is not None and partition < 0:
            raise SchemaMismatch(NO_PARTITION.format(topic, partition))
        if headers and writer.magic < 2:
            raise WriteFailed("brokers before 0.11 have no headers; drop the column")
        if any(one is None or one["key"] is None for one in headers):
            raise SchemaMismatch(NO_HEADER_KEY)
        key, value = (one.encode() if isinstance(one, str) else one for one in (row.get("key"), row["value"]))
        pairs = [(one["key"], one["value"]) for one in headers]
        await writer.append(topic, key, value, headers=pairs, partition=partition)
    return len(rows)


def _encoded_headers(column: pa.Array) -> pa.Array:
    """Returns the encoded headers of each row; null for none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    structs = column.flatten()
    names = structs.field("key")
    if structs.null_count or names.null_count:
        raise SchemaMismatch(NO_HEADER_KEY)
    pairs = zip(names.to_pylist(), structs.field("value").to_pylist())
    sizes = pc.list_value_length(column).to_pylist()
    return pa.array([encode_headers(list(islice(pairs, size))) if size else None for size in sizes], pa.binary())
