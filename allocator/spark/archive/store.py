"""The formats of an archive. A store commits the files of a piece of the topic together with its offsets."""

from __future__ import annotations

import re
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from allocator.errors import ConfigError
from allocator.spark.archive.commits import ArchiveMismatch, CommitLog, DataFile, Manifest, Reach, check_writable
from allocator.spark.archive.delta import DeltaStore
from allocator.spark.archive.files import is_url, write_parquet
from allocator.spark.archive.iceberg import IcebergStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("parquet", "delta", "iceberg")


class ArchiveStore(Protocol):
    """One archive of one topic, at `place`."""

    place: str

    def check(self) -> None:
        """Raises ConfigError or ArchiveMismatch if it cannot be written there; creates nothing."""

    def live(self) -> list[Manifest]:
        """The commits in effect. Their ranges and gaps say where each partition continues."""

    def locked(self) -> AbstractContextManager[None]:
        """Raises ArchiveBusy if another run holds a lock; a store without locks detects that run in `commit`."""

    def staged_name(self) -> str:
        """A new name for the directory of the next commit's files."""

    def write(self, rows: DataFrame, staged: str, ranges: Reach) -> tuple[DataFile, ...]:
        """Writes the files below `staged`; readers do not see them. Raises ArchiveCorrupt, ArchiveFull."""

    def commit(self, manifest: Manifest) -> None:
        """Makes files, ranges and gaps visible at once. Raises ArchiveBusy, ArchiveFull."""


class ParquetStore(CommitLog):
    """Parquet files and manifests in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.place = str(directory)

    def check(self) -> None:
        check_writable(self.manifests)
        if (self.directory / "_delta_log").is_dir():
            raise ArchiveMismatch(
                f"{self.directory} holds a Delta table; use --format delta, or archive to another directory"
            )

    def staged_name(self) -> str:
        return f"_new-{uuid.uuid4().hex}"

    def write(self, rows: DataFrame, staged: str, ranges: Reach) -> tuple[DataFile, ...]:
        return write_parquet(rows, self.directory / staged, ranges)


def open_store(format: str, directory: str | Path, topic: str) -> tuple[str, ArchiveStore]:
    """(the directory as an absolute path or a URL, or CATALOG.NAMESPACE; the store of `topic` in it).

    Raises ConfigError, and MissingExtra without the library of the format.
    """
    text = str(directory)
    if format not in FORMATS:
        raise ConfigError(f"format = {format!r} is not known; use one of {', '.join(FORMATS)}")
    if format == "iceberg":
        return text, IcebergStore(text, topic)
    if format == "delta" and is_url(text):
        root = text.rstrip("/")
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        raise ConfigError(
            f"{text} is a URL, but a Parquet archive needs a directory in a file system of the driver and the "
            "executors; mount it and give the path, or use --format delta"
        )
    else:
        root = str(Path(text).absolute())
    place = f"{root}/topic={topic}"
    return root, DeltaStore(place, topic) if format == "delta" else ParquetStore(Path(place))
