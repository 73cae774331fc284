"""The data source as Spark sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from allocator.spark.errors import in_one_line
from allocator.spark.link import ClusterLink
from allocator.spark.options import READ, STREAM, WRITE, Options, read_options
from allocator.spark.ranges import Range
from allocator.spark.rows import arrow_schema, check_schema, schema_text
from allocator.spark.source.plan import PushedFilters, plan_batch, push_filters
from allocator.spark.source.reading import Piece, pieces, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["NAME", "AllocatorDataSource", "Piece", "register"]

NAME = "allocator"

# pyspark 4.1 and up; off by default, as a source that pushes filters without it is refused
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class AllocatorDataSource(DataSource):  # type: ignore[misc]  # pyspark is not followed
    """`spark.dataSource.register(AllocatorDataSource)`, then `spark.read.format("allocator")`; see `Options`.

    Columns are those of Spark's Kafka connector. A schema given with `.schema(...)` may name fewer of them: then only
    those are made. What is wrong with the options is raised all at once, as a ConfigError within Spark's own error.
    """

    @in_one_line()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # raises what is wrong before anything is touched; what depends on the use, reader and writer check
        self._include_headers = read_options(self.options).include_headers

    _cores: Optional[int] = None
    """Of the session, if `register` could learn them."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema_text(self._include_headers)

    def _reading(self, use: str) -> Options:
        """The options for READ or STREAM. Raises ConfigError."""
        return replace(read_options(self.options, use), cores=self._cores)

    @in_one_line()
    def reader(self, schema: Any) -> DataSourceReader:
        options = self._reading(READ)
        return BatchReader(options, columns_of(schema, options))

    @in_one_line()
    def streamReader(self, schema: Any) -> Any:
        from allocator.spark.source.stream import StreamReader

        options = self._reading(STREAM)
        return StreamReader(options, columns_of(schema, options))

    @in_one_line()
    def writer(self, schema: Any, overwrite: bool) -> Any:
        from allocator.spark.sink.sink import BatchWriter

        return BatchWriter(read_options(self.options, WRITE), schema, overwrite)

    @in_one_line()
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from allocator.spark.sink.sink import StreamWriter

        # "complete" and "update" output modes arrive as overwrite; a topic can only grow
        return StreamWriter(read_options(self.options, WRITE), schema, overwrite)


class _PushingDataSource(AllocatorDataSource):
    """The same, where the session lets filters be pushed."""

    @in_one_line()
    def reader(self, schema: Any) -> DataSourceReader:
        options = self._reading(READ)
        return _PushingReader(options, columns_of(schema, options))


def columns_of(schema: Any, options: Options) -> pa.Schema:
    """The columns of a Spark schema as Arrow has them. Raises SchemaMismatch."""
    check_schema({field.name: field.dataType.simpleString() for field in schema.fields}, options.include_headers)
    return arrow_schema([(field.name, field.nullable) for field in schema.fields])


class BatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not followed
    """Plans on the driver, reads in tasks."""

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options = options
        self.columns = columns
        self.pushed: PushedFilters | None = None

    @in_one_line()
    def partitions(self) -> list[InputPartition]:
        async def plan() -> list[Range]:
            return await plan_batch(await link.client(), self.options, self.pushed)

        with ClusterLink(self.options) as link:
            return pieces(self.options, link.run(plan()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark asks for None where there is nothing to read
        if isinstance(partition, Piece):
            yield from read_ranges(self.options, partition.ranges, self.columns)


class _PushingReader(BatchReader):
    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self.pushed, rest = push_filters(filters)
        return rest


def register(spark: SparkSession) -> None:
    """Make `format("allocator")` known to a session, with filters pushed down where pyspark can (4.1 and up)."""
    source = AllocatorDataSource
    if hasattr(DataSourceReader, "pushFilters"):
        spark.conf.set(PUSHDOWN, "true")
        source = _PushingDataSource

    # sources plan in a process of their own, which knows nothing of the session: the class tells it
    class RegisteredDataSource(source):  # type: ignore[misc, valid-type]
        _cores = cores_of(spark)

    spark.dataSource.register(RegisteredDataSource)


def cores_of(spark: SparkSession) -> int | None:
    """The cores that the session's tasks run on; None where that is not known before they run."""
    conf = spark.conf
    if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        return None
    try:
        context = spark.sparkContext
    except AttributeError:  # Spark Connect
        return None
    if context.master.startswith("local") or conf.get("spark.default.parallelism", None):
        return int(context.defaultParallelism)
    executors, cores = (conf.get(f"spark.executor.{name}", None) for name in ("instances", "cores"))
    # executors come one by one, so what there is when the session begins says little
    return int(executors) * int(cores) if executors and cores else None
