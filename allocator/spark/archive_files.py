"""The Parquet files of one commit: written by Spark, measured by their own footers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocator.spark.archive_commits import ArchiveCorrupt, DataFile, Manifest, disk_full, is_full
from allocator.spark.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Transform", "columns_of", "now", "transformed", "write"]

Transform = Callable[["DataFrame"], "DataFrame"]


def transformed(rows: DataFrame, transform: Transform | None, manifests: Iterable[Manifest]) -> DataFrame:
    """The rows as they are written. Raises SchemaMismatch for what could not be read beside `manifests`' files."""
    if transform is not None:
        rows = transform(rows)
        if not hasattr(rows, "columns"):
            raise SchemaMismatch(f"the transform returned {type(rows).__name__}, no DataFrame")
        gone = [name for name in ("topic", "partition", "offset") if name not in rows.columns]
        if gone:
            raise SchemaMismatch(
                f"the transform leaves out {', '.join(gone)}, without which nobody can tell what is where"
            )
    kinds = {name.lower(): kind for name, kind in columns_of(rows).items()}
    for manifest in manifests:
        for name, kind in manifest.columns.items():
            now = kinds.get(name.lower(), kind)
            if not _merge(kind, now):
                raise SchemaMismatch(
                    f"column {name!r} is {_shown(kind)} in commit {manifest.number} and {_shown(now)} now: no reader "
                    "could put them together; give it another name, or archive to another directory"
                )
    return rows


def columns_of(rows: DataFrame) -> dict[str, Any]:
    """What `Manifest.columns` says of files with these rows."""
    return {field.name: field.dataType.jsonValue() for field in rows.schema if field.name not in ("topic", "partition")}


def _merge(one: Any, other: Any) -> bool:
    """Whether Spark reads columns of both types as one: fields of structs may come and go, all else is equal."""
    if isinstance(one, dict) and isinstance(other, dict) and one["type"] == other["type"]:
        if one["type"] == "struct":
            known = {field["name"].lower(): field["type"] for field in one["fields"]}
            return all(_merge(known.get(f["name"].lower(), f["type"]), f["type"]) for f in other["fields"])
        if one["type"] in ("array", "map"):
            return all(_merge(one[key], other[key]) for key in ("elementType", "keyType", "valueType") if key in one)
    return bool(one == other)


def _shown(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return f"struct<{', '.join(field['name'] + ': ' + _shown(field['type']) for field in kind['fields'])}>"
    return str(kind["type"])


def write(rows: DataFrame, staged: Path, ranges: Mapping[int, tuple[int, int]]) -> tuple[DataFile, ...]:
    """Parquet files below `staged`, by partition, in the order of offsets. Raises ArchiveCorrupt, ArchiveFull."""
    # in the order in which the files are written: without it Spark sorts by partition alone, and mixes offsets
    rows = rows.drop("topic").sortWithinPartitions("partition", "offset")
    writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    try:
        writer.partitionBy("partition").parquet(str(staged))
        return tuple(_measured(staged, ranges))
    except Exception as error:
        scratch = rows.sparkSession.conf.get("spark.local.dir", tempfile.gettempdir())
        full = is_full(error) and disk_full(staged.parent, scratch)
        shutil.rmtree(staged, ignore_errors=True)
        if full:
            raise full from error
        raise


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
