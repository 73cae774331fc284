"""Archives as Iceberg tables: rows and offsets in one commit to the catalog, with kills at any point."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from killed import run_and_kill
from spark_records import Made

from allocator.errors import ConfigError
from allocator.spark.archive import archive
from allocator.spark.archive.commits import ArchiveBusy, ArchiveMismatch, Manifest
from allocator.spark.archive.iceberg import IcebergStore
from allocator.spark.errors import DataLoss, SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pyarrow = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
from pyarrow import compute, parquet  # noqa: E402 - needs the extra

pyiceberg_catalog = pytest.importorskip("pyiceberg.catalog", reason="the extra `iceberg` is not installed")
from iceberg_child import archive_partition  # noqa: E402 - needs the extra
from pyiceberg.utils.config import Config  # noqa: E402 - needs the extra

PLACE = "lake.raw"


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The catalog `lake`: an SQLite file, with tables below `tmp_path`. Processes that a test starts have it too."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}")
    # pyiceberg reads the environment when it is imported
    monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())
    loaded = pyiceberg_catalog.load_catalog("lake")
    yield loaded
    loaded.close()


def offsets(catalog: Any, topic: str = "made") -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    rows = catalog.load_table(("raw", topic)).scan(selected_fields=("partition", "offset")).to_arrow()
    for partition, offset in zip(rows["partition"].to_pylist(), rows["offset"].to_pylist()):
        found.setdefault(partition, []).append(offset)
    return {partition: sorted(found[partition]) for partition in sorted(found)}


def commit(number: int, ends: dict[int, int], **more: Any) -> Manifest:
    ranges = {partition: (0, end) for partition, end in ends.items()}
    given = {"topic": "made", "cluster": "here", "topic_id": None, **more}
    return Manifest(number, "append", ranges=ranges, files=(), staged="none", at="now", **given)


# -- without Spark -----------------------------------------------------------------------------------------------


def test_offsets_of_a_commit_are_read_again(catalog: Any) -> None:
    assert IcebergStore(PLACE, "made").live() == []
    first = IcebergStore(PLACE, "made")
    first.live()
    first.commit(commit(1, {0: 5, 2: 0}))
    (found,) = IcebergStore(PLACE, "made").live()
    assert (found.number, found.ranges, found.cluster, found.topic_id) == (1, {0: (0, 5), 2: (0, 0)}, "here", None)
    first.live()
    first.commit(commit(2, {0: 9}, gaps={2: (0, 4)}))
    table = catalog.load_table(("raw", "made"))
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    (found,) = IcebergStore(PLACE, "made").live()
    assert (found.number, found.ranges) == (2, {0: (0, 9), 2: (0, 4)})


@pytest.mark.parametrize("retries", ["0", "4"])
def test_of_two_runs_at_once_one_is_refused(catalog: Any, retries: str) -> None:
    one, other = IcebergStore(PLACE, "made"), IcebergStore(PLACE, "made")
    assert one.live() == other.live() == []
    one.commit(commit(1, {0: 5}))
    with pytest.raises(ArchiveBusy, match=r"lake\.raw\.made was written by another run"):
        other.commit(commit(1, {0: 5}))
    # a program that sets the property must not make pyiceberg add this run's rows to those of the other one
    with catalog.load_table(("raw", "made")).transaction() as change:
        change.set_properties({"commit.retry.num-retries": retries})
    one, other = IcebergStore(PLACE, "made"), IcebergStore(PLACE, "made")
    one.live(), other.live()
    one.commit(commit(2, {0: 9}))
    with pytest.raises(ArchiveBusy, match=r"lake\.raw\.made was written by another run"):
        other.commit(commit(2, {1: 3}))  # not even of other partitions
    assert IcebergStore(PLACE, "made").live()[0].ranges == {0: (0, 9)}


def test_a_table_of_another_program_and_wrong_names_are_refused(catalog: Any) -> None:
    catalog.create_namespace("raw")
    catalog.create_table(("raw", "made"), pyarrow.schema([("offset", pyarrow.int64())]))
    with pytest.raises(ArchiveMismatch, match=r"lake\.raw\.made is a table that no archive made"):
        archive(Made([5]), PLACE, format="iceberg")
    for wrong in ("/data/lake", "lake", "lake.", "s3://bucket/lake"):
        with pytest.raises(ConfigError, match=r"names no Iceberg catalog and namespace; write CATALOG\.NAMESPACE"):
            archive(Made([5]), wrong, format="iceberg")
    with pytest.raises(ConfigError, match=r"Iceberg catalog 'other' cannot be used: .*PYICEBERG_CATALOG__OTHER__URI"):
        archive(Made([5]), "other.raw", format="iceberg")


# -- with Spark --------------------------------------------------------------------------------------------------


def test_each_run_adds_new_records_and_partitions(spark: SparkSession, catalog: Any) -> None:
    def run(topic: Made, **more: Any) -> Any:
        return archive(topic, PLACE, format="iceberg", spark=spark, **more)

    first = run(Made([50, 31, 0]), offsets_per_commit=60)
    assert (first.records, first.commits) == (81, [1, 2])
    assert run(Made([50, 31, 0])).to_text() == "made: nothing to do"
    grown = Made([50, 35, 7])
    assert run(grown, dry_run=True).ranges == {1: (31, 35), 2: (0, 7)}
    assert run(grown).records == 11
    assert offsets(catalog) == {0: list(range(50)), 1: list(range(35)), 2: list(range(7))}
    table = catalog.load_table(("raw", "made"))
    # the file itself, since pyiceberg 0.12 reads a null list as an empty one
    (task,) = table.scan(row_filter="partition = 1 and offset = 33").plan_files()
    rows = parquet.read_table(task.file.file_path).filter(compute.field("offset") == 33).to_pylist()
    wanted = grown.frame(spark, grown.ranges({1: (33, 34)})).toArrow().to_pylist()
    assert [{**row, "timestamp": row["timestamp"].timestamp()} for row in rows] == [
        {**row, "timestamp": row["timestamp"].timestamp()} for row in wanted
    ]
    # each file has one partition, which readers know without opening it
    assert [each.file.partition[0] for each in table.scan(row_filter="partition = 1").plan_files()] == [1, 1, 1]
    gone = Made([50, 35, 9], log={0: (0, 50), 1: (0, 35), 2: (8, 9)})
    with pytest.raises(DataLoss, match="made:2 is archived up to offset 6 and begins at 8 now"):
        run(gone)
    assert run(gone, allow_gaps=True).gaps == {2: (7, 8)}
    assert offsets(catalog)[2] == [*range(7), 8]


def test_columns_may_be_added_but_not_change_their_type(spark: SparkSession, catalog: Any) -> None:
    def run(count: int, column: str | None = None) -> Any:
        adding: Callable[[Any], Any] | None = column and (lambda rows: rows.selectExpr("*", f"{column} x"))
        return archive(Made([count]), PLACE, format="iceberg", transform=adding, spark=spark)

    run(2)
    run(4, "named_struct('a', 1)")
    run(6, "named_struct('b', 'two')")
    with pytest.raises(SchemaMismatch, match=r"column 'x' is struct<a: integer, b: string> in commit 3 and string now"):
        run(8, "'text'")
    rows = catalog.load_table(("raw", "made")).scan(selected_fields=("offset", "x")).to_arrow().sort_by("offset")
    assert rows["x"].to_pylist() == [*[None] * 2, *[{"a": 1, "b": None}] * 2, *[{"a": None, "b": "two"}] * 2]


# -- killed ------------------------------------------------------------------------------------------------------


def test_killed_while_it_writes_it_continues_without_gap_or_double(tmp_path: Path, catalog: Any) -> None:
    place = tmp_path / "raw/made"
    command = [sys.executable, str(Path(__file__).parent / "iceberg_child.py"), PLACE, "20000", "20"]
    for kill in range(1, 4):
        snapshots, staged = 7 * kill, 7 * kill + kill - 1
        run_and_kill(
            command,
            tmp_path / "log",
            lambda snapshots=snapshots, staged=staged: (  # type: ignore[misc]
                len(list(place.glob("metadata/snap-*"))) > snapshots and len(list(place.glob("data/*"))) > staged
            ),
        )
    archive_partition(PLACE, 20_000, 5_000)
    assert offsets(catalog) == {0: list(range(20_000))}
