"""Stores an archive as a Delta table: one entry of its log adds the files of a commit and sets the offsets.

Guarantee: rows and offsets are in the same log entry, so the table has both or neither. The offsets are application
transactions of Delta's protocol (`txn`), which checkpoints keep:

    allocator-archive/orders               the number of the last commit
    allocator-archive/orders/partitions    the number of partitions that the archive knows
    allocator-archive/orders/7             the next offset of partition 7

Each commit sets the first of them. Delta refuses an entry if another writer has set one of its identifiers since the
table was read. So of two concurrent runs only one can commit. Source: the sections "Transaction Identifiers" and
"Add File" of Delta's PROTOCOL.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from allocator.core.aio import wall_ms
from allocator.spark.archive.commits import ArchiveMismatch, Manifest, check_writable, disk_full, is_full
from allocator.spark.archive.files import is_url
from allocator.spark.archive.read import reach_of
from allocator.spark.archive.table import TableStore

_PARTITIONED = ["partition"]


class DeltaStore(TableStore):
    """The Delta table of one topic, `root`/NAME. `root`: an absolute path, or a URL such as s3://bucket/lake.

    The name lacks "topic=", which some readers, such as polars, take for the directory of a partition.
    """

    def __init__(self, root: str, topic: str) -> None:
        super().__init__(f"{root}/{topic}")
        self._parquet = f"{root}/topic={topic}"
        self._app = f"allocator-archive/{topic}"
        self._number = 0
        self._count = 0  # number of known partitions
        self._live: list[Manifest] = []

    def check(self) -> None:
        if is_url(self.place):
            return
        check_writable(Path(self.place))
        if (Path(self._parquet) / "_commits").is_dir():
            raise ArchiveMismatch(
                f"{self._parquet} holds a Parquet archive; use --format parquet, or archive to another directory"
            )

    def live(self) -> list[Manifest]:
        """Returns one manifest with the whole state of the table, or none before the first commit. Raises
        ArchiveMismatch."""
        before = None if self._table is None else self._table.version()
        if self._table is None:
            if not deltalake.DeltaTable.is_deltatable(self.place):
                return []
            self._table = deltalake.DeltaTable(self.place)
        else:
            self._table.update_incremental()
        if self._table.version() != before:
            self._live = self._read()
        return self._live

    def _read(self) -> list[Manifest]:
        known = self._table.metadata().configuration
        if "allocator.topic" not in known:
            raise ArchiveMismatch(
                f"{self.place} holds a Delta table that no archive created; archive to another directory"
            )
        self._number = self._version("") or 0
        if not self._number:
            return []
        self._count = self._version("/partitions") or 0
        ends = {p: end for p in range(self._count) if (end := self._version(f"/{p}")) is not None}
        ids = known.get("allocator.cluster"), known.get("allocator.topic_id")
        columns = _columns(self._table.schema().to_json())
        return [Manifest.of_table(self._number, known["allocator.topic"], ids, ends, columns)]

    def _version(self, name: str) -> int | None:
        found: int | None = self._table.transaction_version(self._app + name)
        return found

    def commit(self, manifest: Manifest) -> None:
        """Adds one entry to the log. Raises ArchiveBusy, ArchiveFull, ArchiveMismatch.

        After an error the files stay, because the entry may exist although its acknowledgement was lost. The table's
        VACUUM deletes files that no entry names.
        """
        try:
            self._prepare(manifest)
            self._add(manifest)
            self._number = manifest.number
            self._refresh()
        except (OSError, DeltaError) as error:
            if is_full(error) and not is_url(self.place):
                raise disk_full(Path(self.place)) from error
            if isinstance(error, CommitFailedError):
                raise self._busy() from error
            raise

    def _prepare(self, manifest: Manifest) -> None:
        """Creates the table, or adds missing columns."""
        wanted = {
            "allocator.topic": manifest.topic,
            "allocator.cluster": manifest.cluster or "",
            "allocator.topic_id": manifest.topic_id or "",
        }
        if self._table is None:
            self._table = self._create(wanted)
        elif not self._number and self._table.metadata().configuration != wanted:
            raise ArchiveMismatch(
                f"{self.place} was created for another cluster or topic, and has no commit; delete it, or archive to "
                "another directory"
            )
        if not manifest.files:
            return
        known = _columns(self._table.schema().to_json())
        new = _columns(deltalake.Schema.from_arrow(self._columns).to_json())
        if any(known.get(name) != kind for name, kind in new.items()):
            empty = self._columns.empty_table()
            deltalake.write_deltalake(self._table, empty, mode="append", schema_mode="merge")
            self._refresh()

    def _create(self, configuration: dict[str, str]) -> Any:
        try:
            return deltalake.DeltaTable.create(
                self.place,
                schema=self._columns,
                partition_by=_PARTITIONED,
                configuration=configuration,
                raise_if_key_not_exists=False,  # Delta does not define these property names
            )
        except DeltaError as error:
            if deltalake.DeltaTable.is_deltatable(self.place):
                raise self._busy() from error
            raise

    def _add(self, manifest: Manifest) -> None:
        at = wall_ms()
        actions = [
            AddAction(
                path=f"{manifest.staged}/{file.name}",
                size=file.size,
                partition_values={"partition": str(file.partition)},
                modification_time=at,
                data_change=True,
                stats=json.dumps(
                    {
                        "numRecords": file.records,
                        "minValues": {"offset": file.first},
                        "maxValues": {"offset": file.last},
                        "nullCount": {"offset": 0},
                    }
                ),
            )
            for file in manifest.files
        ]
        ends = {p: end for p, (_, end) in reach_of([manifest]).items()}
        self._count = max(self._count, *(p + 1 for p in ends), 0)
        versions = {"": manifest.number, "/partitions": self._count, **{f"/{p}": end for p, end in ends.items()}}
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            _PARTITIONED,
            commit_properties=deltalake.CommitProperties(
                custom_metadata={"ranges": json.dumps(manifest.ranges), "gaps": json.dumps(manifest.gaps)},
                app_transactions=[deltalake.Transaction(self._app + name, end) for name, end in versions.items()],
            ),
        )

    def _refresh(self) -> None:
        """Reads the newest version of the table. Raises ArchiveBusy if another run has committed."""
        self._table.update_incremental()
        if (self._version("") or 0) != self._number:
            raise self._busy()


def _columns(schema: str) -> dict[str, Any]:
    """Converts a Delta schema (JSON) to `Manifest.columns`. Both use Spark's JSON names for types."""
    return {field["name"]: field["type"] for field in json.loads(schema)["fields"] if field["name"] not in _PARTITIONED}
