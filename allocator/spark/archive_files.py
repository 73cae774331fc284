"""The Parquet files of one commit: written by Spark, measured by their own footers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from allocator.spark.archive_commits import ArchiveCorrupt, DataFile
from allocator.spark.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Transform", "now", "write"]

Transform = Callable[["DataFrame"], "DataFrame"]


def write(
    rows: DataFrame, staged: Path, ranges: Mapping[int, tuple[int, int]], transform: Transform | None
) -> tuple[DataFile, ...]:
    """Parquet files below `staged`, by partition, in the order of offsets. Raises SchemaMismatch."""
    if transform is not None:
        rows = transform(rows)
        gone = [name for name in ("topic", "partition", "offset") if name not in rows.columns]
        if gone:
            raise SchemaMismatch(
                f"the transform leaves out {', '.join(gone)}, without which nobody can tell what is where"
            )
    # in the order in which the files are written: without it Spark sorts by partition alone, and mixes offsets
    rows = rows.drop("topic").sortWithinPartitions("partition", "offset")
    writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer.partitionBy("partition").parquet(str(staged))
    return tuple(_measured(staged, ranges))


def _measured(staged: Path, ranges: Mapping[int, tuple[int, int]]) -> list[DataFile]:
    from pyarrow import parquet

    found = []
    counts: dict[int, int] = {}
    for path in sorted(staged.glob("partition=*/*.parquet")):
        metadata = parquet.read_metadata(path)
        # the column, and not a field of that name within another
        at = [metadata.schema.column(number).path for number in range(metadata.num_columns)].index("offset")
        columns = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
        if not metadata.num_rows:
            continue
        partition = int(path.parent.name.partition("=")[2])
        first, last = min(column.min for column in columns), max(column.max for column in columns)
        low, high = ranges.get(partition, (0, 0))
        counts[partition] = counts.get(partition, 0) + metadata.num_rows
        if first < low or last >= high or counts[partition] > high - low:
            raise ArchiveCorrupt(
                f"{path} holds offsets {first} to {last} in {metadata.num_rows} records; {low} to {high - 1} were asked"
                " for: nothing was committed"
            )
        name = str(path.relative_to(staged))
        found.append(DataFile(name, partition, metadata.num_rows, path.stat().st_size, first, last))
    for checksum in staged.glob("**/.*.crc"):
        checksum.unlink()
    return found


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
