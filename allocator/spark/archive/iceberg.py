"""Stores an archive as an Iceberg table: one commit to the catalog adds the files and sets the offsets.

Guarantee: rows and offsets are in the same version of the table's metadata, so the table has both or neither. The
offsets are properties of the table, which outlive the expiry of snapshots:

    allocator.topic, allocator.cluster, allocator.topic-id    the archived topic
    allocator.commit                                          the number of the last commit
    allocator.offsets                                         JSON: partition -> next offset
    allocator.columns                                         JSON: column -> type, in Spark's notation

Each commit adds a snapshot, even if it has no files. The catalog accepts it only if the branch `main` still has the
snapshot that this run has read, so of two concurrent runs only one can commit. By default pyiceberg would repeat a
refused commit on top of the other one, with outdated offsets; the table forbids that (`commit.retry.num-retries`).
Source: the sections "Table Metadata" and "Commit Conflict Resolution and Retry" of Iceberg's table spec.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.utils.config import Config

from allocator.core.client import quoted
from allocator.core.text import text_of
from allocator.errors import ConfigError
from allocator.spark.archive.commits import ArchiveMismatch, Manifest, disk_full, is_full
from allocator.spark.archive.read import reach_of
from allocator.spark.archive.schema import united
from allocator.spark.archive.table import TableStore

_RETRIES = "commit.retry.num-retries"
# the files have no field ids, so readers find columns by these names
_NAMES = "schema.name-mapping.default"
_SECRET = re.compile("credential|token|secret|password|key")  # in the name of a property of a catalog


class IcebergStore(TableStore):
    """The Iceberg table of one topic. `place`: CATALOG.NAMESPACE; the catalog is configured as for pyiceberg."""

    _staged = "data/archive-"
    _with_partition = True

    def __init__(self, place: str, topic: str) -> None:
        name, dot, namespace = place.partition(".")
        if not dot or "/" in place or not all(place.split(".")):
            raise ConfigError(
                f"{place!r} names no Iceberg catalog and namespace; write CATALOG.NAMESPACE, such as prod.lake"
            )
        super().__init__(f"{place}.{topic}")
        self._name, self._namespace, self._identifier = name, namespace, (*namespace.split("."), topic)

    @functools.cached_property
    def _catalog(self) -> Any:
        return load_catalog(self._name)

    def check(self) -> None:
        """Raises ConfigError if the catalog has no usable configuration or does not respond."""
        try:
            self._catalog.table_exists(self._identifier)
        except Exception as error:  # noqa: BLE001 - each kind of catalog has its own errors
            text = quoted(text_of(error), _secrets(self._name), guess=True)
            raise ConfigError(
                f"Iceberg catalog {self._name!r} cannot be used: {text}; configure it in .pyiceberg.yaml, or by "
                f"PYICEBERG_CATALOG__{self._name.upper()}__URI and the like"
            ) from None

    def live(self) -> list[Manifest]:
        """Returns one manifest with the whole state of the table, or none before the first commit. Raises
        ArchiveMismatch."""
        try:
            self._table = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            self._table = None
            return []
        known = self._table.properties
        if "allocator.topic" not in known:
            raise ArchiveMismatch(f"{self.place} is a table that no archive created; archive to another namespace")
        if "allocator.commit" not in known:
            return []
        ends = {int(partition): end for partition, end in json.loads(known["allocator.offsets"]).items()}
        ids = known["allocator.cluster"], known["allocator.topic-id"]
        columns = json.loads(known["allocator.columns"])
        return [Manifest.of_table(int(known["allocator.commit"]), known["allocator.topic"], ids, ends, columns)]

    def commit(self, manifest: Manifest) -> None:
        """Adds one snapshot and the offsets. Raises ArchiveBusy, ArchiveFull, ArchiveMismatch.

        After an error the files stay, because the commit may exist although its response was lost. Iceberg's
        procedure remove_orphan_files deletes files that no snapshot names.
        """
        try:
            self._add(manifest)
        except CommitFailedException as error:
            raise self._busy() from error
        except OSError as error:
            location = self.location()
            if is_full(error) and location.startswith("/"):
                raise disk_full(Path(location)) from error
            raise

    def location(self) -> str:
        """Returns a path, or a URL for pyarrow. Creates the table if it does not exist."""
        if self._table is None:
            self._table = self._create()
        location: str = self._table.location().rstrip("/")
        return urlsplit(location).path if location.startswith("file:") else location

    def _create(self) -> Any:
        self._catalog.create_namespace_if_not_exists(self._namespace)
        try:
            with (
                self._catalog.create_table_transaction(
                    self._identifier, self._columns, properties={_RETRIES: "0", "allocator.topic": self._identifier[-1]}
                ) as change,
                change.update_spec() as spec,
            ):
                spec.add_identity("partition")
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise self._busy() from error
        return self._catalog.load_table(self._identifier)

    def _add(self, manifest: Manifest) -> None:
        location = self.location()
        if self._table.properties.get(_RETRIES) != "0":
            with self._table.transaction() as change:
                change.set_properties({_RETRIES: "0"})
        if int(self._table.properties.get("allocator.commit", 0)) != manifest.number - 1:
            raise self._busy()  # setting the property has refreshed the table
        known = json.loads(self._table.properties.get("allocator.offsets", "{}"))
        ends = {str(partition): end for partition, (_, end) in reach_of([manifest]).items()}
        columns = json.loads(self._table.properties.get("allocator.columns", "{}"))
        with self._table.transaction() as change:
            if manifest.files:
                with change.update_schema() as schema:
                    schema.union_by_name(self._columns)
            metadata = change.table_metadata
            change.set_properties(
                {
                    _NAMES: metadata.schema().name_mapping.model_dump_json(),
                    "allocator.cluster": manifest.cluster or "",
                    "allocator.topic-id": manifest.topic_id or "",
                    "allocator.commit": str(manifest.number),
                    "allocator.offsets": json.dumps({**known, **ends}),
                    "allocator.columns": json.dumps(united(columns, manifest.columns)),
                }
            )
            about = {"allocator.ranges": json.dumps(manifest.ranges), "allocator.gaps": json.dumps(manifest.gaps)}
            paths = (f"{location}/{manifest.staged}/{file.name}" for file in manifest.files)
            with change.update_snapshot(snapshot_properties=about).fast_append() as snapshot:
                for file in parquet_files_to_data_files(self._table.io, metadata, paths):
                    snapshot.append_data_file(file)


def _secrets(catalog: str) -> list[str]:
    """Returns the values of the catalog's secret properties, the secret of "id:secret", and the passwords of URLs."""
    properties = Config().get_catalog_config(catalog) or {}
    values = [str(value) for name, value in properties.items() if _SECRET.search(name)]
    passwords = [urlsplit(str(value)).password or "" for value in properties.values()]
    return [*passwords, *(part for value in values for part in (value, value.partition(":")[2]))]
