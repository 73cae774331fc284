"""The classes that Spark calls: the data source and its batch reader."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional
from weakref import WeakSet

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from allocator.errors import ConfigError, MissingExtra
from allocator.spark.errors import in_one_line
from allocator.spark.link import ClusterLink
from allocator.spark.options import READ, STREAM, WRITE, Options, read_options
from allocator.spark.rows import check_schema, schema_text
from allocator.spark.shipping import Shipped, shipped
from allocator.spark.source.plan import plan_batch
from allocator.spark.source.reading import Piece, pieces, read_ranges

try:
    import pyspark.sql.streaming.datasource
except ImportError as error:
    raise MissingExtra(
        f"allocator.spark needs pyspark 4.2 or newer, which needs Python 3.10; this is pyspark {pyspark.__version__}. "
        "With older versions, Trigger.AvailableNow ends after one micro-batch and does not commit it"
    ) from error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["NAME", "AllocatorDataSource", "Piece", "register", "registered"]

NAME = "allocator"
_SESSIONS: WeakSet[SparkSession] = WeakSet()


class AllocatorDataSource(DataSource):  # type: ignore[misc]  # pyspark is not followed
    """The data source. `spark.dataSource.register(AllocatorDataSource)` enables `spark.read.format("allocator")`.

    The columns are those of Spark's Kafka connector; `.schema(...)` may select some of them. If options are wrong (see
    `Options`), Spark's error contains one ConfigError that lists all faults.
    """

    @in_one_line()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # raises ConfigError before any I/O; the reader and the writer check the rest
        self._include_headers = read_options(self.options).include_headers

    _cores: Optional[int] = None
    """Number of cores of the session, if `register` could determine it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema_text(self._include_headers)

    def _reading(self, use: str) -> Options:
        """Returns the options for READ or STREAM. Raises ConfigError."""
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

    def __reduce__(self) -> tuple[Any, ...]:
        # tasks get the source too, and cannot import the class that `register` creates
        return shipped(AllocatorDataSource, {**self.__dict__, "_cores": self._cores})

    @in_one_line()
    def writer(self, schema: Any, overwrite: bool) -> Any:
        from allocator.spark.sink.sink import BatchWriter

        if overwrite:
            raise ConfigError('a topic does not support mode("overwrite"); use mode("append")')
        return BatchWriter(read_options(self.options, WRITE), schema)

    @in_one_line()
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from allocator.spark.sink.sink import StreamWriter

        # Spark passes output modes "complete" and "update" as overwrite, but a topic can only grow
        return StreamWriter(read_options(self.options, WRITE), schema)


def columns_of(schema: Any, options: Options) -> pa.Schema:
    """Returns the Arrow schema of a Spark schema. Raises SchemaMismatch."""
    check_schema({field.name: field.dataType.simpleString() for field in schema.fields}, options.include_headers)
    return to_arrow_schema(schema, timezone="UTC")


class BatchReader(Shipped, DataSourceReader):  # type: ignore[misc]  # pyspark is not followed
    """Plans a batch on the driver, and reads it in tasks.

    It pushes no filters: Spark keeps one plan for all uses of a `load()`, so a filter of one use would hold for all.
    """

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options = options
        self.columns = columns

    @in_one_line()
    def partitions(self) -> list[InputPartition]:
        async def plan() -> list[InputPartition]:
            client = await link.client()
            ranges = await plan_batch(client, self.options)
            return pieces(self.options, ranges, client.metadata.cluster_id)

        with ClusterLink(self.options) as link:
            return link.run(plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes None if there is nothing to read
        if isinstance(partition, Piece):
            yield from read_ranges(self.options, partition.ranges, self.columns, partition.cluster)


def register(spark: SparkSession) -> None:
    """Registers `format("allocator")` in a session, with the session's number of cores."""

    # Spark plans in another process, which cannot see the session, so the class has the number of cores
    class RegisteredDataSource(AllocatorDataSource):
        _cores = cores_of(spark)

    spark.dataSource.register(RegisteredDataSource)
    _SESSIONS.add(spark)


def registered(spark: SparkSession) -> bool:
    """Returns whether `register` was called with this session. Spark logs a warning for a second call."""
    return spark in _SESSIONS


def cores_of(spark: SparkSession) -> int | None:
    """Returns the number of cores on which the session runs tasks; None if it is not known in advance."""
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
    # uses the settings, because the current number grows while executors start
    return int(executors) * int(cores) if executors and cores else None
