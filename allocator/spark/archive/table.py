"""The common base of the Delta and the Iceberg store."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow

from allocator.spark.archive.commits import ArchiveBusy, DataFile, Reach
from allocator.spark.archive.files import arrow_schema, write_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableStore:
    """The table of one topic, at `place`. It needs no lock, because a commit fails if another run has committed."""

    _staged = "data-"
    _with_partition = False

    def __init__(self, place: str) -> None:
        self.place = place
        self._table: Any = None
        # the columns of a table that is created before any record is archived
        self._columns: Any = pyarrow.schema([("partition", pyarrow.int32()), ("offset", pyarrow.int64())])

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def staged_name(self) -> str:
        return f"{self._staged}{uuid.uuid4().hex}"

    def location(self) -> str:
        """Returns the path of the table, or a URL for pyarrow."""
        return self.place

    def write(self, rows: DataFrame, staged: str, ranges: Reach) -> tuple[DataFile, ...]:
        """Writes the data files. They become part of the table only with `commit`."""
        self._columns = arrow_schema(rows)
        return write_arrow(rows, self.location(), staged, ranges, with_partition=self._with_partition)

    def _busy(self) -> ArchiveBusy:
        return ArchiveBusy(f"{self.place} was written by another run meanwhile; wait until it ends, and run again")
