"""Archives of each format behind one interface."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from allocator.spark.archive import Archive, archive
from allocator.spark.archive.store import open_store

pyarrow = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
if importlib.util.find_spec("pyiceberg") is None:
    pytest.skip("the extra `iceberg` is not installed", allow_module_level=True)

__all__ = ["DeltaTables", "IcebergTables", "ParquetFiles", "deltalake", "load_catalog", "pyarrow", "use_catalog"]


def load_catalog(name: str) -> Any:
    # not at the top: the import takes a second of CPU, in each worker that only collects the tests
    from pyiceberg.catalog import load_catalog

    return load_catalog(name)


def use_catalog(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """Configures the catalog `lake`, also for processes that the test starts."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    # pyiceberg reads the environment when it is imported
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())


class Tables:
    format: str
    place: str
    topic = "orders"

    def store(self) -> Any:
        return open_store(self.format, self.place, self.topic)[1]

    def archive(self, topic: Any, **options: Any) -> Any:
        return archive(topic, self.place, format=self.format, **options)

    def rows(self, *columns: str) -> Any:
        """An Arrow table of these columns, or of all."""
        raise NotImplementedError

    def offsets(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row in self.rows("partition", "offset").to_pylist():
            found.setdefault(row["partition"], []).append(row["offset"])
        return {partition: sorted(found[partition]) for partition in sorted(found)}


class ParquetFiles(Tables):
    format = "parquet"

    def __init__(self, directory: Path, spark: Any) -> None:
        self.place, self.spark = str(directory), spark

    def rows(self, *columns: str) -> Any:
        return Archive(self.place, self.topic).frame(self.spark).select(*columns or "*").toArrow()


class DeltaTables(Tables):
    format = "delta"

    def __init__(self, directory: str | Path) -> None:
        self.place = str(directory)
        self.log, self.data = "_delta_log/*.json", "data-*"  # below `home`
        self.home = Path(self.place) / "orders"

    def table(self) -> Any:
        return deltalake.DeltaTable(f"{self.place}/{self.topic}")

    def rows(self, *columns: str) -> Any:
        return self.table().to_pyarrow_table(columns=list(columns) or None)

    def clean_up(self) -> None:
        """Deletes log entries. The table's checkpoints keep the offsets."""
        self.table().create_checkpoint()
        for entry in self.home.glob("_delta_log/*[0-9].json"):
            entry.unlink()

    def retry(self) -> None:
        """deltalake does not retry a refused commit."""


class IcebergTables(Tables):
    format = "iceberg"
    place = "lake.raw"

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use_catalog(monkeypatch, uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}")
        self.log, self.data = "metadata/snap-*", "data/*"
        self.home = directory / "raw/orders"
        self.catalog = load_catalog("lake")

    def table(self) -> Any:
        return self.catalog.load_table(("raw", self.topic))

    def rows(self, *columns: str) -> Any:
        return self.table().scan(selected_fields=columns or ("*",)).to_arrow()

    def clean_up(self) -> None:
        table = self.table()
        table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()

    def retry(self) -> None:
        """Sets a property with which pyiceberg would retry a refused commit on top of another run's."""
        with self.table().transaction() as change:
            change.set_properties({"commit.retry.num-retries": "4"})
