"""Records written to topics, at least once: a task that is repeated writes its records again.

A column `key` or `value` is binary or string; `topic`, `partition` and `headers` are optional. A topic can only grow:
what an aborted job wrote stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from allocator.errors import ConfigError
from allocator.spark.errors import SchemaMismatch
from allocator.spark.options import Options
from allocator.spark.rows import HEADERS
from allocator.spark.sink.producers import producer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StreamWriter"]

KINDS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (HEADERS["headers"],),
}
# before pyspark 4.1 a stream is written row by row
StreamWriterBase: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


class Out(NamedTuple):
    """A record to be written; bytes and text are both taken."""

    topic: Optional[str]
    partition: Optional[int]
    key: Any
    value: Any
    headers: Optional[Sequence[tuple[str, Optional[bytes]]]]


class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not followed
    def __init__(self, records: int) -> None:
        self.records = records


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not followed
    """`df.write.format("allocator").mode("append").save()`."""

    def __init__(self, options: Options, schema: Any, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('mode("overwrite") cannot be had: a topic only grows; use mode("append")')
        self.options = options
        check_written(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self.options, _records(iterator))

    def commit(self, messages: list[Any]) -> None:
        """Nothing is left to do: each task returned when all it wrote was acknowledged."""

    def abort(self, messages: list[Any]) -> None:
        """Nothing can be taken back."""


class StreamWriter(StreamWriterBase):  # type: ignore[misc]  # pyspark is not followed
    """`df.writeStream.format("allocator")`; a micro-batch that is repeated is written again."""

    def __init__(self, options: Options, schema: Any, overwrite: bool) -> None:
        self.options = options
        self._names = check_written(schema, options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        by_row = StreamWriterBase is DataSourceStreamWriter
        return _write(self.options, _of_rows(iterator, self._names) if by_row else _records(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Nothing is left to do: each task returned when all it wrote was acknowledged."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing can be taken back."""


def check_written(schema: Any, options: Options) -> list[str]:
    """The names of the columns. Raises SchemaMismatch, or ConfigError where nothing says the topic."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    faults = []
    for name, kind in kinds.items():
        if name not in KINDS:
            faults.append(f"column {name!r} is none of {', '.join(KINDS)}: drop it, or put it into the value")
        elif kind not in KINDS[name]:
            faults.append(f"column {name!r} is {kind}, not {' or '.join(KINDS[name])}: cast it")
    if "value" not in kinds:
        faults.append("there is no column 'value'")
    if faults:
        raise SchemaMismatch("; ".join(faults))
    if "topic" not in kinds and options.topic is None:
        raise ConfigError("which topic? Give .option('topic', ...), or a column 'topic'")
    return list(kinds)


def _write(options: Options, records: Iterator[Out]) -> Written:
    count = 0
    with producer(options) as sending:
        for record in records:
            # as in Spark's connector: what was read has a column `topic`, and would go back to where it came from
            topic = record.topic if options.topic is None else options.topic
            if topic is None:
                raise ConfigError(f"record {count} of a task has no topic: its column is null and no option is given")
            if record.partition is not None and record.partition < 0:
                # to librdkafka, -1 is any partition
                raise SchemaMismatch(f"{topic} has no partition {record.partition}; null lets the key choose one")
            sending.send(topic, record)
            count += 1
        sending.finish()
    return Written(count)


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[Out]:
    for batch in batches:
        columns = dict(zip(batch.schema.names, (column.to_pylist() for column in batch.columns)))
        nothing: list[Any] = [None] * batch.num_rows
        topics, partitions, keys, values = (columns.get(n, nothing) for n in ("topic", "partition", "key", "value"))
        headers = [_pairs(one) for one in columns["headers"]] if "headers" in columns else nothing
        yield from map(Out, topics, partitions, keys, values, headers)


def _of_rows(rows: Iterator[Any], names: list[str]) -> Iterator[Out]:
    for row in rows:
        found = dict(zip(names, row))
        key, value = (bytes(v) if isinstance(v := found.get(n), bytearray) else v for n in ("key", "value"))
        yield Out(found.get("topic"), found.get("partition"), key, value, _pairs(found.get("headers")))


def _pairs(headers: Any) -> list[tuple[str, bytes | None]] | None:
    if headers is None:
        return None
    if any(one is None or one["key"] is None for one in headers):
        raise SchemaMismatch(
            "a header without a key cannot be written; leave it out: filter(headers, h -> h.key is not null)"
        )
    return [(one["key"], None if one["value"] is None else bytes(one["value"])) for one in headers]
