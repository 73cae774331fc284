"""Archives as Delta tables: rows and offsets in one entry of the log, with kills at any point."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from killed import run_and_kill
from spark_records import Made

from allocator.errors import ConfigError
from allocator.spark.archive import archive
from allocator.spark.archive.commits import ArchiveBusy, ArchiveMismatch, Manifest
from allocator.spark.archive.delta import DeltaStore
from allocator.spark.errors import DataLoss, SchemaMismatch
from allocator.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pyarrow = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
from delta_child import archive_partition  # noqa: E402 - needs the extra


def table(directory: Path, topic: str = "made") -> Any:
    return deltalake.DeltaTable(str(directory / f"topic={topic}"))


def offsets(directory: Path, topic: str = "made") -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    rows = table(directory, topic).to_pyarrow_table(columns=["partition", "offset"])
    for partition, offset in zip(rows["partition"].to_pylist(), rows["offset"].to_pylist()):
        found.setdefault(partition, []).append(offset)
    return {partition: sorted(found[partition]) for partition in sorted(found)}


def commit(number: int, ends: dict[int, int], **more: Any) -> Manifest:
    ranges = {partition: (0, end) for partition, end in ends.items()}
    given = {"topic": "made", "cluster": "here", "topic_id": None, **more}
    return Manifest(number, "append", ranges=ranges, files=(), staged="none", at="now", **given)


# -- without Spark -----------------------------------------------------------------------------------------------


def test_offsets_of_a_commit_are_read_again(tmp_path: Path) -> None:
    place = str(tmp_path / "topic=made")
    assert DeltaStore(place, "made").live() == []
    first = DeltaStore(place, "made")
    first.commit(commit(1, {0: 5, 2: 0}))
    (found,) = DeltaStore(place, "made").live()
    assert (found.number, found.ranges, found.cluster, found.topic_id) == (1, {0: (0, 5), 2: (0, 0)}, "here", None)
    first.live()
    first.commit(commit(2, {0: 9}, gaps={2: (0, 4)}))
    (found,) = DeltaStore(place, "made").live()
    assert (found.number, found.ranges) == (2, {0: (0, 9), 2: (0, 4)})
    # the log's own clean-up keeps the offsets: they are in its checkpoints
    written = deltalake.DeltaTable(place)
    written.create_checkpoint()
    for entry in (tmp_path / "topic=made/_delta_log").glob("*[0-9].json"):
        entry.unlink()
    assert DeltaStore(place, "made").live()[0].ranges == found.ranges


def test_of_two_runs_at_once_one_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "topic=made")
    one, other = DeltaStore(place, "made"), DeltaStore(place, "made")
    assert one.live() == other.live() == []
    one.commit(commit(1, {0: 5}))
    with pytest.raises(ArchiveBusy, match="was written by another run meanwhile"):
        other.commit(commit(1, {0: 5}))
    one, other = DeltaStore(place, "made"), DeltaStore(place, "made")
    one.live(), other.live()
    one.commit(commit(2, {0: 9}))
    with pytest.raises(ArchiveBusy, match="was written by another run meanwhile"):
        other.commit(commit(2, {1: 3}))  # not even of other partitions
    assert DeltaStore(place, "made").live()[0].ranges == {0: (0, 9)}


def test_a_table_without_a_commit_is_taken_over_by_its_own_topic_alone(tmp_path: Path) -> None:
    """A run may die after it has created the table."""
    place = str(tmp_path / "topic=made")
    DeltaStore(place, "made")._prepare(commit(1, {0: 5}))
    stranger = DeltaStore(place, "made")
    assert stranger.live() == []
    with pytest.raises(ArchiveMismatch, match="was created for another cluster or topic"):
        stranger.commit(commit(1, {0: 5}, cluster="there"))
    same = DeltaStore(place, "made")
    assert same.live() == []
    same.commit(commit(1, {0: 5}))
    assert DeltaStore(place, "made").live()[0].ranges == {0: (0, 5)}


def test_a_table_of_another_program_and_an_archive_of_another_format_are_left_alone(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "topic=made"), pyarrow.table({"offset": [1]}))
    with pytest.raises(ArchiveMismatch, match="holds a Delta table that no archive made"):
        archive(Made([5]), tmp_path, format="delta")
    with pytest.raises(ArchiveMismatch, match="holds a Delta table; use --format delta"):
        archive(Made([5]), tmp_path)
    (tmp_path / "topic=old/_commits").mkdir(parents=True)
    with pytest.raises(ArchiveMismatch, match="holds a Parquet archive; use --format parquet"):
        archive(Made([5], name="old"), tmp_path, format="delta")
    with pytest.raises(ConfigError, match="format = 'detla' is not known; use one of parquet, delta"):
        archive(Made([5]), tmp_path, format="detla")


# -- with Spark --------------------------------------------------------------------------------------------------


def test_each_run_adds_new_records_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    first = archive(Made([50, 31, 0]), tmp_path, format="delta", offsets_per_commit=60, spark=spark)
    assert (first.records, first.commits) == (81, [1, 2])
    assert archive(Made([50, 31, 0]), tmp_path, format="delta").to_text() == "made: nothing to do"
    grown = Made([50, 35, 7])
    assert archive(grown, tmp_path, format="delta", dry_run=True).ranges == {1: (31, 35), 2: (0, 7)}
    assert archive(grown, tmp_path, format="delta", spark=spark).records == 11
    assert offsets(tmp_path) == {0: list(range(50)), 1: list(range(35)), 2: list(range(7))}
    rows = table(tmp_path).to_pyarrow_table(filters=[("partition", "=", 1), ("offset", "=", 33)]).to_pylist()
    wanted = grown.frame(spark, grown.ranges({1: (33, 34)})).toArrow().to_pylist()
    assert [{**row, "timestamp": row["timestamp"].timestamp()} for row in rows] == [
        {**row, "timestamp": row["timestamp"].timestamp()} for row in wanted
    ]
    # each file has the offsets of one partition in order, and its entry has their bounds
    for file in pyarrow.table(table(tmp_path).get_add_actions(flatten=True)).to_pylist():
        assert file["max.offset"] - file["min.offset"] + 1 == file["num_records"]
    gone = Made([50, 35, 9], log={0: (0, 50), 1: (0, 35), 2: (8, 9)})
    with pytest.raises(DataLoss, match="made:2 is archived up to offset 6 and begins at 8 now"):
        archive(gone, tmp_path, format="delta")
    assert archive(gone, tmp_path, format="delta", allow_gaps=True, spark=spark).gaps == {2: (7, 8)}
    assert offsets(tmp_path)[2] == [*range(7), 8]


def test_columns_may_be_added_but_not_change_their_type(spark: SparkSession, tmp_path: Path) -> None:
    def adding(column: str) -> Callable[[Any], Any]:
        return lambda rows: rows.selectExpr("*", f"{column} x")

    archive(Made([2]), tmp_path, format="delta", spark=spark)
    archive(Made([4]), tmp_path, format="delta", transform=adding("named_struct('a', 1)"), spark=spark)
    archive(Made([6]), tmp_path, format="delta", transform=adding("named_struct('b', 'two')"), spark=spark)
    with pytest.raises(SchemaMismatch, match=r"column 'x' is struct<a: integer, b: string> in commit 3 and string now"):
        archive(Made([8]), tmp_path, format="delta", transform=adding("'text'"), spark=spark)
    rows = table(tmp_path).to_pyarrow_table(columns=["offset", "x"]).sort_by("offset")
    assert rows["x"].to_pylist() == [*[None] * 2, *[{"a": 1, "b": None}] * 2, *[{"a": None, "b": "two"}] * 2]


# -- killed ------------------------------------------------------------------------------------------------------


def test_killed_while_it_writes_it_continues_without_gap_or_double(tmp_path: Path) -> None:
    place = tmp_path / "topic=made"
    command = [sys.executable, str(Path(__file__).parent / "delta_child.py"), str(place), "20000", "20"]
    for kill in range(1, 4):
        entries, staged = 7 * kill, 7 * kill + kill - 1
        run_and_kill(
            command,
            tmp_path / "log",
            lambda entries=entries, staged=staged: (  # type: ignore[misc]
                len(list(place.glob("_delta_log/*.json"))) > entries and len(list(place.glob("data-*"))) > staged
            ),
        )
    archive_partition(str(place), 20_000, 5_000)
    assert offsets(tmp_path) == {0: list(range(20_000))}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_again_and_again_while_a_topic_grows_by_200_000_records(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    topic = topic_factory(partitions=4)
    directory = tmp_path / "archive"
    log_directory = directory / f"topic={topic}/_delta_log"
    dice = random.Random(19)
    done = threading.Event()

    def grow() -> None:
        for start in range(0, 200_000, 2_000):
            kafka_cluster.produce(topic, [b"%d" % number for number in range(start, start + 2_000)])
        done.set()

    command = [sys.executable, "-c", "from allocator.cli.commands import main; main()", "archive", str(directory)]
    command += ["--format", "delta", "--quiet"]
    command += ["--brokers", kafka_cluster.bootstrap, "--topic", topic, "--offsets-per-commit", "2500"]
    command += ["--master", "local[1]"]
    writer = threading.Thread(target=grow)
    writer.start()
    kills = 0
    try:
        while kills < 12 or not done.is_set():
            before, left = len(list(log_directory.glob("*.json"))), dice.randrange(300)

            def come(enough: int = before + kills % 3) -> bool:
                nonlocal left
                if len(list(log_directory.glob("*.json"))) > enough:
                    left -= 1
                return left < 0

            if not run_and_kill(command, tmp_path / "log", come):
                kills += 1
            elif done.is_set():
                break
    finally:
        writer.join()
    subprocess.run(command, check=True, cwd=tmp_path, timeout=600)
    assert kills >= 5
    found = offsets(directory, topic)
    assert sum(map(len, found.values())) == 200_000
    assert all(numbers == list(range(len(numbers))) for numbers in found.values())
    values = table(directory, topic).to_pyarrow_table(columns=["value"])["value"].to_pylist()
    assert sorted(map(int, values)) == list(range(200_000))
    print(json.dumps({"kills": kills, "entries": table(directory, topic).version()}))


def test_a_table_whose_directory_executors_do_not_share_gets_no_entry(unshared: Path, spark: SparkSession) -> None:
    """Without the first check, the named files tell."""
    with pytest.raises(ConfigError, match=r"seen by the driver, but .*Mount one file system under this path"):
        archive(Made([20]), unshared, format="delta", spark=spark)
    assert not deltalake.DeltaTable.is_deltatable(str(unshared / "topic=made"))
