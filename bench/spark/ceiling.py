"""A Spark source that yields Arrow batches from memory: the upper limit for a source in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from allocator.spark.rows import COLUMNS, schema_text
from bench.consume.fill import values

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Ceiling"]


class Ceiling(DataSource):
    """The source. Its options are records, partitions, size (bytes per value) and rows (per Arrow batch)."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return schema_text(False)

    def reader(self, schema: Any) -> DataSourceReader:
        return CeilingReader({name: int(value) for name, value in self.options.items()})


class CeilingReader(DataSourceReader):
    def __init__(self, options: dict[str, int]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.options["partitions"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = self.options["records"] // self.options["partitions"]
        batch = _batch(min(left, self.options["rows"]), self.options["size"], partition.value)
        while left:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= min(left, batch.num_rows)


def _batch(rows: int, size: int, partition: int) -> pa.RecordBatch:
    import pyarrow as pa

    made = [value for value, _ in zip(values(size), range(rows))]
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.array(made, pa.binary()),
        pa.repeat("ceiling", rows),
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        pa.array(range(rows), pa.int64()),
        pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", tz="UTC")),
        pa.repeat(pa.scalar(0, pa.int32()), rows),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
