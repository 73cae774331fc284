"""Writes the rows of one commit as Parquet files, with Spark's own writer or with pyarrow in its Python workers.

Spark's own writer needs a directory, and jars for an object store. The Python workers reach all file systems of
pyarrow: local disks, S3, Google Cloud Storage, HDFS.
"""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocator.errors import ConfigError
from allocator.spark.archive.commits import DataFile, disk_full, is_full, sync
from allocator.spark.errors import ArchiveCorrupt

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

_FOUND = "name string, partition int, records bigint, size bigint, first bigint, last bigint"
_ROWS_PER_GROUP = 1_000_000
_BYTES_PER_GROUP = 64 << 20


def is_url(place: str) -> bool:
    return "://" in place


def local_url(path: Path) -> str:
    """Returns the path as a file: URL, because Spark's default file system may be another one. Hadoop does not decode
    characters such as %."""
    return f"file://{path}"


def read_url(path: Path) -> str:
    """Returns the `local_url` of a path to read. Spark expands such paths, so it escapes the characters of patterns."""
    return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", local_url(path))


def _not_shared(directory: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{directory} is seen by the driver, but {what}. This commit's files were deleted. Mount one file system under "
        "this path on the driver and on all executors, or archive to an object store with --format delta or iceberg"
    )


def write_arrow(
    rows: DataFrame, place: str, staged: str, ranges: Mapping[int, tuple[int, int]], *, with_partition: bool = False
) -> tuple[DataFile, ...]:
    """Writes Parquet files below `place`/`staged`, each of one partition, in the order of offsets.

    `place`: an absolute path, or a URL for pyarrow. `with_partition`: whether the files have the column `partition`.
    `DataFile.name` is relative to `staged`. Raises ArchiveCorrupt, ArchiveFull, and ConfigError if the driver does not
    see the file of an executor. After any error it leaves no files, unless the driver dies.
    """
    schema = arrow_schema(rows)
    task = functools.partial(
        _write_task, base=f"{place}/{staged}", schema=schema, without=[] if with_partition else ["partition"]
    )
    try:
        rows = rows.sortWithinPartitions("partition", "offset")
        found = [DataFile(**row.asDict()) for row in rows.mapInArrow(task, _FOUND).collect()]
        files, home = _file_system(f"{place}/{staged}")
        for file, info in zip(found, files.get_file_info([f"{home}/{file.name}" for file in found])):
            if info.size != file.size:
                raise _not_shared(Path(place), f"the file {staged}/{file.name} of an executor is not there")
        _check(f"{place}/{staged}", found, ranges)
        return tuple(found)
    except Exception as error:
        discard(place, staged)
        if is_full(error) and not is_url(place):
            raise disk_full(Path(place)) from error
        raise


def arrow_schema(rows: DataFrame) -> pyarrow.Schema:
    """Returns the Arrow schema of the files for `rows`. All columns are nullable, and times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema.toNullable(), timezone="UTC")


def discard(place: str, staged: str) -> None:
    """Deletes the files of a failed commit, unless another program has deleted them."""
    from pyarrow import fs

    files, path = _file_system(f"{place}/{staged}")
    if files.get_file_info(path).type == fs.FileType.Directory:
        files.delete_dir(path)


def _file_system(place: str) -> tuple[Any, str]:
    from pyarrow import fs

    if is_url(place):
        found: tuple[Any, str] = fs.FileSystem.from_uri(place)
        return found
    return fs.LocalFileSystem(), place


def _write_task(
    batches: Iterable[pyarrow.RecordBatch], base: str, schema: pyarrow.Schema, without: list[str]
) -> Iterator[pyarrow.RecordBatch]:
    """Writes sorted rows in a Python worker, and yields one row for each file."""
    import pyarrow

    files, home = _file_system(base)
    found = [_write_file(files, home, partition, run) for partition, run in _runs(batches, schema, without)]
    if found:
        kinds = {"string": pyarrow.string(), "int": pyarrow.int32(), "bigint": pyarrow.int64()}
        columns = [column.split() for column in _FOUND.split(", ")]
        yield pyarrow.RecordBatch.from_pylist(found, pyarrow.schema([(name, kinds[kind]) for name, kind in columns]))


def _runs(
    batches: Iterable[pyarrow.RecordBatch], schema: pyarrow.Schema, without: list[str]
) -> Iterator[tuple[int, Iterator[pyarrow.Table]]]:
    """Yields each partition with its tables, without some columns. The caller must exhaust each iterator."""

    def pieces() -> Iterator[tuple[int, pyarrow.Table]]:
        from pyarrow import Table, compute

        for batch in batches:
            table = Table.from_batches([batch]).cast(schema)
            runs = compute.run_end_encode(batch.column("partition"))
            start = 0
            for partition, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist()):
                yield partition, table.slice(start, end - start).drop_columns(without)
                start = end

    for partition, group in itertools.groupby(pieces(), key=lambda piece: piece[0]):
        yield partition, (table for _, table in group)


def _write_file(files: Any, home: str, partition: int, tables: Iterator[pyarrow.Table]) -> dict[str, Any]:
    import pyarrow
    from pyarrow import parquet
    from pyarrow.fs import LocalFileSystem

    # each attempt of a task writes other names; only the files of the successful attempt are committed
    name = f"partition={partition}/part-{uuid.uuid4().hex}.parquet"
    path = f"{home}/{name}"
    files.create_dir(f"{home}/partition={partition}", recursive=True)
    start = next(tables)
    first = last = start.column("offset")[0].as_py()
    records = 0
    waiting: list[pyarrow.Table] = []
    with parquet.ParquetWriter(path, start.schema, filesystem=files, compression="snappy") as writer:

        def flush() -> None:
            writer.write_table(pyarrow.concat_tables(waiting), row_group_size=_ROWS_PER_GROUP)
            waiting.clear()

        for table in itertools.chain((start,), tables):
            waiting.append(table)
            records, last = records + table.num_rows, table.column("offset")[-1].as_py()
            if sum(part.nbytes for part in waiting) >= _BYTES_PER_GROUP:
                flush()
        if waiting:
            flush()
    if isinstance(files, LocalFileSystem):
        sync(Path(path))
    size = files.get_file_info(path).size
    return {"name": name, "partition": partition, "records": records, "size": size, "first": first, "last": last}


def _check(place: object, found: Iterable[DataFile], ranges: Mapping[int, tuple[int, int]]) -> None:
    """Raises ArchiveCorrupt if the files of a partition exceed the requested range, or have more records than it."""
    counts: Counter[int] = Counter()
    for file in found:
        counts[file.partition] += file.records
        low, high = ranges.get(file.partition, (0, 0))
        if file.first < low or file.last >= high or counts[file.partition] > high - low:
            raise ArchiveCorrupt(
                f"{place}/{file.name} holds offsets {file.first} to {file.last} in {file.records} records, but {low} "
                f"to {high - 1} were requested; nothing was committed"
            )


def write_parquet(rows: DataFrame, staged: Path, ranges: Mapping[int, tuple[int, int]]) -> tuple[DataFile, ...]:
    """Writes Parquet files below `staged`, by partition, in the order of offsets.

    Raises ArchiveCorrupt, ArchiveFull, and ConfigError if an executor's path is not the driver's directory.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    # otherwise Spark sorts by partition only, and mixes offsets
    rows = rows.drop("topic").sortWithinPartitions("partition", "offset")
    counted = Observation()
    writer = rows.observe(counted, F.count(F.lit(1)).alias("records")).write
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    try:
        writer.partitionBy("partition").parquet(local_url(staged))
        found = tuple(_measured(staged))
        _check(staged, found, ranges)
        wrote, there = counted.get["records"], sum(file.records for file in found)
        if wrote != there:
            raise _not_shared(staged.parent, f"{wrote - there} of {wrote} records that executors wrote are not there")
        return found
    except Exception as error:
        scratch = rows.sparkSession.conf.get("spark.local.dir", tempfile.gettempdir())
        full = is_full(error) and disk_full(staged.parent, scratch)
        shutil.rmtree(staged, ignore_errors=True)
        if full:
            raise full from error
        raise


def _measured(staged: Path) -> list[DataFile]:
    from pyarrow import parquet

    found = []
    for path in sorted(staged.glob("partition=*/*.parquet")):
        metadata = parquet.read_metadata(path)
        # the top-level column, not a nested field of that name
        at = [metadata.schema.column(number).path for number in range(metadata.num_columns)].index("offset")
        columns = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
        if not metadata.num_rows:
            continue
        partition = int(path.parent.name.partition("=")[2])
        first, last = min(column.min for column in columns), max(column.max for column in columns)
        name, size = str(path.relative_to(staged)), path.stat().st_size
        found.append(DataFile(name, partition, metadata.num_rows, size, first, last))
    for checksum in staged.glob("**/.*.crc"):
        checksum.unlink()
    return found
