"""The data source as Spark sees it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from allocator.fetch.arrow import pyarrow
from allocator.spark.link import Link
from allocator.spark.options import READ, Options, read_options
from allocator.spark.plan import plan_batch
from allocator.spark.ranges import Range, split
from allocator.spark.reading import read_range
from allocator.spark.rows import check_schema, schema_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["NAME", "AllocatorDataSource", "register"]

NAME = "allocator"


class Piece(InputPartition):  # type: ignore[misc]  # pyspark is not followed
    """What one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(tuple(wanted))

    @property
    def range(self) -> Range:
        return Range(*self.value)


class AllocatorDataSource(DataSource):  # type: ignore[misc]  # pyspark is not followed
    """`spark.dataSource.register(AllocatorDataSource)`, then `spark.read.format("allocator")`; see `Options`.

    Columns are those of Spark's Kafka connector. A schema given with `.schema(...)` may name fewer of them: then only
    those are made. What is wrong with the options is raised all at once, as a ConfigError within Spark's own error.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # raises what is wrong before anything is touched; what depends on the use, reader and writer check
        self._include_headers = read_options(self.options).include_headers

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema_text(self._include_headers)

    def reader(self, schema: Any) -> DataSourceReader:
        return BatchReader(read_options(self.options, READ), schema)


def arrow_schema(schema: Any, include_headers: bool) -> pa.Schema:
    """What Spark expects of a source with this schema. Raises SchemaMismatch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    pyarrow()
    check_schema({field.name: field.dataType.simpleString() for field in schema.fields}, include_headers)
    made: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return made


class BatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not followed
    """Plans on the driver, reads in tasks."""

    def __init__(self, options: Options, schema: Any) -> None:
        self.options = options
        self.arrow_schema = arrow_schema(schema, options.include_headers)
        self.narrow: Any = None

    def partitions(self) -> list[InputPartition]:
        options = self.options

        async def plan() -> list[Range]:
            return await plan_batch(await link.client(), options, self.narrow)

        with Link(options) as link:
            ranges = link.run(plan())
        return [Piece(found) for found in split(ranges, options.min_partitions, options.max_records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark asks for None where there is nothing to read
        if isinstance(partition, Piece):
            yield from read_range(self.options, partition.range, self.arrow_schema)


def register(spark: SparkSession) -> None:
    """Make `format("allocator")` known to a session."""
    spark.dataSource.register(AllocatorDataSource)
