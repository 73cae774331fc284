"""Archives of each format, and tables that have rows and offsets in one commit, with kills at any point."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allocator.errors import ConfigError
from allocator.spark.archive import archive
from allocator.spark.archive.commits import ArchiveBusy, ArchiveMismatch, Manifest
from allocator.spark.archive.store import open_store
from allocator.spark.errors import DataLoss, SchemaMismatch
from tests.repo.repository import ROOT
from tests.spark.killed import run_and_kill
from tests.spark.spark_records import FakeTopic
from tests.spark.tables import DeltaTables, IcebergTables, ParquetFiles, deltalake, pyarrow, use_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def delta(tmp_path: Path) -> DeltaTables:
    return DeltaTables(tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IcebergTables]:
    tables = IcebergTables(tmp_path, monkeypatch)
    yield tables
    tables.catalog.close()


@pytest.fixture
def parquet(tmp_path: Path, spark: SparkSession) -> ParquetFiles:
    return ParquetFiles(tmp_path, spark)


@pytest.fixture(params=["delta", "iceberg"])
def tables(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def archived(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def commit(number: int, ends: dict[int, int], **more: Any) -> Manifest:
    ranges = {partition: (0, end) for partition, end in ends.items()}
    topic = {"topic": "orders", "cluster": "here", "topic_id": None, **more}
    return Manifest(number, "append", ranges=ranges, files=(), staged="none", at="now", **topic)


# -- without Spark -----------------------------------------------------------------------------------------------


def test_offsets_of_a_commit_are_read_again(tables: Any) -> None:
    first = tables.store()
    assert first.live() == []
    first.commit(commit(1, {0: 5, 2: 0}))
    (found,) = tables.store().live()
    assert (found.number, found.ranges, found.cluster, found.topic_id) == (1, {0: (0, 5), 2: (0, 0)}, "here", None)
    first.live()
    first.commit(commit(2, {0: 9}, gaps={2: (0, 4)}))
    tables.clean_up()
    (found,) = tables.store().live()
    assert (found.number, found.ranges) == (2, {0: (0, 9), 2: (0, 4)})


def test_of_two_runs_at_once_one_is_refused(tables: Any) -> None:
    one, other = tables.store(), tables.store()
    assert one.live() == other.live() == []
    one.commit(commit(1, {0: 5}))
    with pytest.raises(ArchiveBusy, match="orders was written by another run meanwhile"):
        other.commit(commit(1, {0: 5}))
    tables.retry()
    one, other = tables.store(), tables.store()
    one.live(), other.live()
    one.commit(commit(2, {0: 9}))
    with pytest.raises(ArchiveBusy, match="orders was written by another run meanwhile"):
        other.commit(commit(2, {1: 3}))  # not even of other partitions
    assert tables.store().live()[0].ranges == {0: (0, 9)}


def test_a_delta_table_without_a_commit_is_taken_over_by_its_own_topic_alone(delta: DeltaTables) -> None:
    """A run may die after it has created the table."""
    deltalake.DeltaTable.create(
        str(delta.home),
        schema=pyarrow.schema([("partition", pyarrow.int32()), ("offset", pyarrow.int64())]),
        partition_by=["partition"],
        configuration={"allocator.topic": "orders", "allocator.cluster": "here", "allocator.topic_id": ""},
        raise_if_key_not_exists=False,
    )
    stranger, same = delta.store(), delta.store()
    assert stranger.live() == same.live() == []
    with pytest.raises(ArchiveMismatch, match="was created for another cluster or topic"):
        stranger.commit(commit(1, {0: 5}, cluster="there"))
    same.commit(commit(1, {0: 5}))
    assert delta.store().live()[0].ranges == {0: (0, 5)}


def test_a_delta_table_is_in_a_directory_with_the_topics_name(spark: SparkSession, tmp_path: Path) -> None:
    """Readers such as polars take topic=orders for the directory of a partition."""
    archive(FakeTopic([5]), tmp_path, format="delta", spark=spark)
    assert [path.name for path in tmp_path.iterdir()] == ["orders"]
    assert archive(FakeTopic([9]), tmp_path, format="delta", spark=spark).records == 4
    assert deltalake.DeltaTable(str(tmp_path / "orders")).to_pyarrow_table().num_rows == 9


def test_a_delta_table_of_another_program_and_an_archive_of_another_format_are_left_alone(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "orders"), pyarrow.table({"offset": [1]}))
    (tmp_path / "topic=old/_commits").mkdir(parents=True)
    for topic, format, words in (
        ("orders", "delta", "holds a Delta table that no archive created"),
        ("orders", "parquet", "holds a Delta table; use --format delta"),
        ("old", "delta", "holds a Parquet archive; use --format parquet"),
    ):
        with pytest.raises(ArchiveMismatch, match=words):
            archive(FakeTopic([5], name=topic), tmp_path, format=format)
    with pytest.raises(ConfigError, match="format = 'detla' is not known; use one of parquet, delta"):
        archive(FakeTopic([5]), tmp_path, format="detla")


def test_an_iceberg_table_of_another_program_and_wrong_names_are_refused(iceberg: IcebergTables) -> None:
    iceberg.catalog.create_namespace("raw")
    iceberg.catalog.create_table(("raw", "orders"), pyarrow.schema([("offset", pyarrow.int64())]))
    with pytest.raises(ArchiveMismatch, match=r"lake\.raw\.orders is a table that no archive created"):
        iceberg.archive(FakeTopic([5]))
    for wrong in ("/data/lake", "lake", "lake.", "s3://bucket/lake"):
        with pytest.raises(ConfigError, match=r"names no Iceberg catalog and namespace; write CATALOG\.NAMESPACE"):
            archive(FakeTopic([5]), wrong, format="iceberg")
    with pytest.raises(ConfigError, match=r"Iceberg catalog 'other' cannot be used: .*PYICEBERG_CATALOG__OTHER__URI"):
        archive(FakeTopic([5]), "other.raw", format="iceberg")


def test_a_catalog_that_quotes_the_request_gets_no_secret_into_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quoting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = f"unknown {self.headers['Authorization']}, of client:hush-hush-2024"
            body = json.dumps({"error": {"message": said, "type": "NotAuthorized", "code": 401}}).encode()
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Quoting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        use_catalog(monkeypatch, type="rest", uri=uri, token="hush-of-the-token", credential="client:hush-hush-2024")
        try:
            with pytest.raises(ConfigError, match=r"Iceberg catalog 'lake' cannot be used: .*unknown") as caught:
                open_store("iceberg", "lake.raw", "orders")[1].check()
        finally:
            server.shutdown()
            thread.join()
    assert "hush" not in "".join(traceback.format_exception(None, caught.value, None))


# -- with Spark --------------------------------------------------------------------------------------------------


def test_each_run_adds_new_records_and_partitions(spark: SparkSession, archived: Any) -> None:
    seen: list[tuple[int, int]] = []
    topic = FakeTopic([50, 31, 0])
    first = archived.archive(topic, offsets_per_commit=60, spark=spark, progress=lambda *done: seen.append(done))
    assert (first.records, first.commits, seen) == (81, [1, 2], [(0, 81), (60, 81), (81, 81)])
    assert archived.archive(topic).to_text() == "orders: nothing to do"
    grown = FakeTopic([50, 35, 7])
    assert archived.archive(grown, dry_run=True).ranges == {1: (31, 35), 2: (0, 7)}
    assert archived.archive(grown, spark=spark).records == 11
    assert archived.offsets() == {0: list(range(50)), 1: list(range(35)), 2: list(range(7))}
    wanted = grown.frame(spark, grown.ranges({1: (33, 34)})).toArrow().to_pylist()
    stored = [row for row in archived.rows().to_pylist() if (row["partition"], row["offset"]) == (1, 33)]
    for row in wanted + stored:
        row["timestamp"] = row["timestamp"].timestamp()
        row["headers"] = row["headers"] or None  # pyiceberg 0.12 reads a null list as an empty one
    assert stored == wanted
    late = FakeTopic([50, 35, 9], log={0: (0, 50), 1: (0, 35), 2: (8, 9)})
    with pytest.raises(DataLoss, match="orders:2 is archived up to offset 6 and begins at 8 now"):
        archived.archive(late)
    assert archived.archive(late, allow_gaps=True, spark=spark).gaps == {2: (7, 8)}
    assert archived.offsets()[2] == [*range(7), 8]


def test_columns_may_be_added_but_not_change_their_type(spark: SparkSession, tables: Any) -> None:
    def run(count: int, column: str | None = None) -> Any:
        adding: Callable[[Any], Any] | None = column and (lambda rows: rows.selectExpr("*", f"{column} x"))
        return tables.archive(FakeTopic([count]), transform=adding, spark=spark)

    run(2)
    run(4, "named_struct('a', 1)")
    run(6, "named_struct('b', 'two')")
    with pytest.raises(SchemaMismatch, match=r"column 'x' is struct<a: integer, b: string> in commit 3 and string now"):
        run(8, "'text'")
    rows = tables.rows("offset", "x").sort_by("offset")
    assert rows["x"].to_pylist() == [*[None] * 2, *[{"a": 1, "b": None}] * 2, *[{"a": None, "b": "two"}] * 2]


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_a_directory_that_executors_do_not_share_gets_no_commit(
    format: str, unshared: Path, spark: SparkSession
) -> None:
    with pytest.raises(ConfigError, match=r"seen by the driver, but .*Mount one file system under this path"):
        archive(FakeTopic([20]), unshared, format=format, spark=spark)
    assert open_store(format, str(unshared), "orders")[1].live() == []
    assert not deltalake.DeltaTable.is_deltatable(str(unshared / "orders"))


# -- killed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tables", ["delta", pytest.param("iceberg", marks=pytest.mark.long)], indirect=True)
def test_a_run_that_is_killed_while_it_writes_a_table_is_continued_without_gap_or_double(
    tmp_path: Path, tables: Any
) -> None:
    child = [sys.executable, "-m", "tests.spark.table_child", tables.format, tables.place]

    def reached(commits: int, staged: int) -> bool:
        return len([*tables.home.glob(tables.log)]) > commits and len([*tables.home.glob(tables.data)]) > staged

    run_and_kill([*child, "20000", "20"], tmp_path / "log", lambda: reached(7, 7))
    subprocess.run([*child, "20000", "5000"], check=True, cwd=ROOT)
    assert tables.offsets() == {0: list(range(20_000))}
