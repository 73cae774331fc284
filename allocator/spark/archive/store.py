"""Opens the store of an archive's format. A store commits files together with the offsets that they cover."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Union

from allocator.errors import ConfigError, MissingExtra
from allocator.spark.archive.commits import ArchiveMismatch, CommitLog, DataFile, Reach, check_writable
from allocator.spark.archive.files import is_url, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from allocator.spark.archive.delta import DeltaStore
    from allocator.spark.archive.iceberg import IcebergStore

    ArchiveStore = Union["ParquetStore", DeltaStore, IcebergStore]

FORMATS = ("parquet", "delta", "iceberg")
NEEDED = {
    "delta": "Delta tables need deltalake: pip install 'zk-partition-allocator[delta]'",
    "iceberg": "Iceberg tables need pyiceberg: pip install 'zk-partition-allocator[iceberg]'",
}


class ParquetStore(CommitLog):
    """Stores the Parquet files and manifests of a topic in `root`/topic=NAME."""

    def __init__(self, root: Path, topic: str) -> None:
        super().__init__(root / f"topic={topic}")
        self.place = str(self.directory)
        self._table = root / topic

    def check(self) -> None:
        check_writable(self.manifests)
        if (self._table / "_delta_log").is_dir():
            raise ArchiveMismatch(
                f"{self._table} holds a Delta table; use --format delta, or archive to another directory"
            )

    def staged_name(self) -> str:
        return f"_new-{uuid.uuid4().hex}"

    def write(self, rows: DataFrame, staged: str, ranges: Reach) -> tuple[DataFile, ...]:
        return write_parquet(rows, self.directory / staged, ranges)


def open_store(format: str, directory: str | Path, topic: str) -> tuple[str, ArchiveStore]:
    """Returns the root and the store of `topic` in it. The root is an absolute path, a URL, or CATALOG.NAMESPACE.

    Raises ConfigError, and MissingExtra without the library of the format.
    """
    text = str(directory)
    if format not in FORMATS:
        raise ConfigError(f"format = {format!r} is not known; use one of {', '.join(FORMATS)}")
    if format == "delta" and is_url(text):
        root = text.rstrip("/")
    elif format != "iceberg" and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        raise ConfigError(
            f"{text} is a URL, but a Parquet archive needs a directory in a file system of the driver and the "
            "executors; mount it and give the path, or use --format delta"
        )
    else:
        root = text if format == "iceberg" else str(Path(text).absolute())
    try:
        if format == "delta":
            from allocator.spark.archive.delta import DeltaStore

            return root, DeltaStore(root, topic)
        if format == "iceberg":
            from allocator.spark.archive.iceberg import IcebergStore

            return root, IcebergStore(root, topic)
    except ImportError as error:
        raise MissingExtra(NEEDED[format]) from error
    return root, ParquetStore(Path(root), topic)
