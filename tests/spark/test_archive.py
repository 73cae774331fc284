"""Archives: every record once, with kills at any point, and clear errors."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from allocator.errors import ConfigError
from allocator.spark.archive import Archive, archive, compact
from allocator.spark.archive.commits import ArchiveMismatch
from allocator.spark.audit import audit
from allocator.spark.errors import ArchiveCorrupt, ArchiveFull, DataLoss, SchemaMismatch, plain_errors
from allocator.spark.topic import Topic
from allocator.testing import LocalCluster, produce
from tests.migrate.mirroring import delete_records
from tests.spark.killed import run_and_kill
from tests.spark.spark_records import FakeTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def whole(spark: SparkSession, topic: FakeTopic, directory: Path) -> bool:
    """Whether the archive has each record of the topic once, with all its fields."""
    found = Archive(directory, topic.name)
    reach = {partition: reach for partition, reach in topic.log.items() if reach[1]}
    wanted = topic.frame(spark, topic.ranges(reach))
    rows = sorted(wanted.collect())
    assert sorted(found.frame(spark).select(wanted.columns).collect()) == rows
    assert found.reach() == reach
    # a reader that ignores manifests sees the same records
    assert spark.read.parquet(str(directory)).count() == len(rows)
    return True


def test_a_topic_with_compacted_offsets_is_archived_whole(spark: SparkSession, tmp_path: Path) -> None:
    class Compacted(FakeTopic):
        def frame(self, spark: SparkSession, ranges: Any) -> Any:
            return super().frame(spark, ranges).where("offset % 10 = 3")

    topic = Compacted([50, 31])
    assert archive(topic, tmp_path, offsets_per_commit=30, spark=spark).records == 8
    assert whole(spark, topic, tmp_path)
    assert archive(topic, tmp_path).to_text() == "orders: nothing to do"


def test_a_relative_path_is_local_even_if_the_default_file_system_is_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:9")  # no server listens there
    try:
        archive(FakeTopic([5]), "there", spark=spark)
        archive(FakeTopic([9]), "there", spark=spark)
        assert sorted(row.offset for row in Archive("there").frame(spark).collect()) == list(range(9))
        assert compact("there", spark=spark).records == 9
    finally:
        spark.conf.unset("fs.defaultFS")
    assert whole(spark, FakeTopic([9]), tmp_path / "there")


@pytest.mark.parametrize("name", ["a[1]", "a{b,c}", "a*", "a?\\b c%20d"])
def test_a_directory_may_be_named_like_a_pattern(name: str, spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / name
    for size in (5, 9):
        archive(FakeTopic([size]), directory, spark=spark)
    (tmp_path / "a1").mkdir()  # matches the pattern
    assert sorted(row.offset for row in Archive(directory).frame(spark).collect()) == list(range(9))
    assert compact(directory, spark=spark).records == 9
    assert Archive(directory).frame(spark).count() == 9


def test_the_start_of_the_first_run_is_kept_for_empty_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """A later run that started at the group's newer offsets would omit the records in between."""
    report = archive(FakeTopic([10, 5], chosen={0: (3, 10), 1: (5, 5)}), tmp_path, spark=spark)
    assert (report.records, Archive(tmp_path).reach()) == (7, {0: (3, 10), 1: (5, 5)})
    later = FakeTopic([20, 9, 6], chosen={0: (15, 20), 1: (8, 9), 2: (6, 6)})
    assert archive(later, tmp_path, dry_run=True).ranges == {0: (10, 20), 1: (5, 9), 2: (0, 6)}
    assert archive(later, tmp_path, spark=spark).records == 20
    # the same if no record is archived at all
    assert archive(FakeTopic([4], name="new", chosen={0: (4, 4)}), tmp_path).commits == [1]
    assert archive(FakeTopic([6], name="new", chosen={0: (6, 6)}), tmp_path, dry_run=True).ranges == {0: (4, 6)}
    with pytest.raises(DataLoss, match="new:0 is archived from offset 4 on and begins at 5 now"):
        archive(FakeTopic([6], name="new", log={0: (5, 6)}), tmp_path)


@pytest.mark.parametrize(
    "start",
    [{"starting_offsets": '{"T": {"0": 5}}'}, {"starting_offsets": "latest"}, {"starting_timestamps": "1700000000000"}],
    ids=["offset", "word", "time"],
)
def test_the_start_in_the_options_counts_only_for_partitions_that_the_archive_lacks(
    start: dict[str, str], tmp_path: Path, kafka_cluster: LocalCluster, topic_factory: Any
) -> None:
    """Later runs have the options of the first one, whose start retention has deleted and new partitions lack."""
    name, brokers = topic_factory(), kafka_cluster.bootstrap
    topic = Topic(brokers, name, {option: text.replace("T", name) for option, text in start.items()})
    produce(brokers, name, [b"x"] * 20)
    assert archive(Topic(brokers, name, {"starting_offsets": "latest"}), tmp_path).commits == [1]
    delete_records(brokers, name, 20)
    assert archive(topic, tmp_path).to_text() == f"{name}: nothing to do"
    ended = Topic(brokers, name, {"ending_offsets": json.dumps({name: {"0": 10}})})
    assert archive(ended, tmp_path).to_text() == f"{name}: nothing to do"  # retention has passed its end too
    kafka_cluster.add_partitions(name, 2)
    assert archive(topic, tmp_path, dry_run=True).ranges == {}
    produce(brokers, name, [(None, b"x", partition) for partition in (0, 1) for _ in range(5)])
    assert archive(topic, tmp_path, dry_run=True).ranges == {0: (20, 25), 1: (0, 5)}
    delete_records(brokers, name, 22)
    with pytest.raises(DataLoss, match=f"{name}:0 is archived from offset 20 on and begins at 22 now"):
        archive(topic, tmp_path)
    report = archive(topic, tmp_path, allow_gaps=True, dry_run=True)
    assert (report.ranges, report.gaps) == ({0: (22, 25), 1: (0, 5)}, {0: (20, 22)})
    named = Topic(brokers, name, {"starting_offsets": json.dumps({name: {"0": 5, "1": 3}})})
    assert archive(named, tmp_path, allow_gaps=True, dry_run=True).ranges == {0: (22, 25), 1: (3, 5)}


@pytest.mark.parametrize("first", [4, 9])
def test_a_new_partition_that_lost_its_first_records_is_data_loss_or_a_gap(
    first: int, spark: SparkSession, tmp_path: Path
) -> None:
    archive(FakeTopic([0]), tmp_path)
    topic = FakeTopic([5, 9], log={0: (0, 5), 1: (first, 9)}, chosen={0: (0, 5), 1: (first, 9)})
    with pytest.raises(DataLoss, match=f"orders:1 is archived from offset 0 on and begins at {first} now"):
        archive(topic, tmp_path, spark=spark)
    assert Archive(tmp_path).reach() == {0: (0, 0)}
    report = archive(topic, tmp_path, allow_gaps=True, spark=spark)
    assert (report.records, report.gaps) == (14 - first, {1: (0, first)})
    assert Archive(tmp_path).reach() == {0: (0, 5), 1: (0, 9)}
    assert Archive(tmp_path).frame(spark).count() == 14 - first
    assert archive(topic, tmp_path).commits == []


def test_a_run_that_another_run_overtook_does_not_mistake_the_topic_for_a_recreated_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Overtaken(FakeTopic):
        """Another run archives more of the topic right after this one has read its ends."""

        def extent(self, *reached: Any) -> Any:
            found = super().extent(*reached)
            if self.log[0][1] == 10:
                self.log[0] = (0, 20)
                assert archive(FakeTopic([20]), tmp_path, spark=spark).records == 20
            return found

    assert archive(Overtaken([10]), tmp_path, spark=spark).records == 0
    assert Archive(tmp_path).reach() == {0: (0, 20)}


def test_a_transform_whose_columns_do_not_fit_the_archive_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise, readers could not read the archive, and the next run could not merge its files."""

    def run(count: int, column: str) -> None:
        archive(FakeTopic([count]), tmp_path, transform=lambda rows: rows.selectExpr("*", f"{column} x"), spark=spark)

    run(10, "named_struct('a', 1)")
    with pytest.raises(SchemaMismatch, match="column 'x' is struct<a: integer> in commit 1 and string now"):
        run(20, "'text'")
    with pytest.raises(SchemaMismatch, match="column 'value' is binary in commit 1 and string now"):
        archive(FakeTopic([20]), tmp_path, transform=lambda rows: rows.withColumn("VALUE", rows.topic), spark=spark)
    run(20, "named_struct('b', 'text', 'A', 2)")
    compact(tmp_path, spark=spark)
    with pytest.raises(SchemaMismatch, match="in commit 3"):
        run(21, "named_struct('b', 5)")
    rows = Archive(tmp_path).frame(spark).select("x.a", "x.b").distinct().collect()
    assert {(row.a, row.b) for row in rows} == {(1, None), (2, "text")}


def test_an_added_column_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    names = ["a.b", "a`b", "a b", "`c.d`"]

    def add(rows: Any) -> Any:
        return functools.reduce(lambda found, name: found.withColumn(name, F.col("offset")), names, rows)

    archive(FakeTopic([10]), tmp_path, transform=add, spark=spark)
    archive(FakeTopic([20]), tmp_path, spark=spark)
    for _ in range(2):
        rows = Archive(tmp_path).frame(spark, {0: (5, 15)})
        assert rows.columns[-4:] == names
        assert sorted(tuple(row[name] for name in names) for row in rows.where("offset < 10").collect()) == [
            (offset,) * 4 for offset in range(5, 10)
        ]
        compact(tmp_path, spark=spark)


def test_a_transform_adds_columns_and_must_keep_the_offsets(spark: SparkSession, tmp_path: Path) -> None:
    added = ["struct(-1L offset) nested", "*", "length(value) size"]
    archive(FakeTopic([10]), tmp_path, transform=lambda rows: rows.selectExpr(*added), spark=spark)
    assert Archive(tmp_path).reach() == {0: (0, 10)}
    assert {row.size for row in Archive(tmp_path).frame(spark).collect()} == {3}
    with pytest.raises(SchemaMismatch, match="adds the column 'Commit'"):
        archive(FakeTopic([12]), tmp_path, transform=lambda rows: rows.selectExpr("*", "1 Commit"), spark=spark)
    with pytest.raises(SchemaMismatch, match="removes offset"):
        archive(FakeTopic([12]), tmp_path, transform=lambda rows: rows.drop("offset"), spark=spark)
    with pytest.raises(SchemaMismatch, match="returned NoneType, not a DataFrame"):
        archive(FakeTopic([12]), tmp_path, transform=lambda rows: None, spark=spark)  # type: ignore[arg-type,return-value]
    assert Archive(tmp_path).records == 10
    # a run without the transform may follow
    archive(FakeTopic([12]), tmp_path, spark=spark)
    assert whole(spark, FakeTopic([12]), tmp_path)


@pytest.mark.parametrize(
    ("topic", "error", "words"),
    [
        (FakeTopic([20, 20], cluster="there", topic_id="one"), ArchiveMismatch, "here; the brokers belong to there"),
        (FakeTopic([20, 20], topic_id="two"), ArchiveMismatch, "created again since"),
        (FakeTopic([10, 5], topic_id="one"), ArchiveMismatch, r"orders:1 is archived up to offset 9 and ends at 4"),
        (
            FakeTopic([20, 20], log={0: (0, 20), 1: (14, 20)}, chosen={0: (0, 20), 1: (14, 20)}),
            DataLoss,
            "4 offsets were",
        ),
    ],
)
def test_an_archive_of_another_topic_or_cluster_is_left_alone(
    spark: SparkSession, tmp_path: Path, topic: FakeTopic, error: type[Exception], words: str
) -> None:
    archive(FakeTopic([10, 10], topic_id="one"), tmp_path, spark=spark)
    for dry_run in (True, False):
        with pytest.raises(error, match=words):
            archive(topic, tmp_path, dry_run=dry_run, spark=spark)
    assert Archive(tmp_path).records == 20


@pytest.mark.parametrize("place", [(8, 200), (-8, -4)], ids=["data", "footer"])
def test_a_damaged_file_of_the_same_size_is_named(place: tuple[int, int], spark: SparkSession, tmp_path: Path) -> None:
    for size in (100, 200):
        archive(FakeTopic([size]), tmp_path, spark=spark)
    (path,) = tmp_path.glob("topic=orders/commit=00000002/*/*.parquet")
    content = bytearray(path.read_bytes())
    content[slice(*place)] = bytes(byte ^ 255 for byte in content[slice(*place)])
    path.write_bytes(content)
    for use in (
        lambda: audit(Archive(tmp_path), Archive(tmp_path), spark=spark),
        lambda: compact(tmp_path, spark=spark),
        plain_errors()(lambda: Archive(tmp_path).frame(spark).collect()),
    ):
        with pytest.raises(ArchiveCorrupt, match=f"^{path} is damaged"):
            use()


def test_an_open_transaction_behind_the_archived_offsets_is_no_loss(
    spark: SparkSession, tmp_path: Path, kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    """An archive of uncommitted records is ahead of the offset at which read_committed ends."""
    from confluent_kafka import Producer

    name = topic_factory()
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(name, b"x", partition=0)
    producer.flush(30)
    topic, committed = (
        Topic(kafka_cluster.bootstrap, name, {"isolation_level": level})
        for level in ("read_uncommitted", "read_committed")
    )
    assert archive(topic, tmp_path, spark=spark).records == 5
    assert archive(committed, tmp_path, spark=spark).records == 0
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(name, b"y", partition=0)
    producer.commit_transaction(30)
    assert archive(committed, tmp_path, spark=spark).records == 1
    assert Archive(tmp_path).records == 6


def test_an_allowed_gap_is_in_the_manifest(spark: SparkSession, tmp_path: Path) -> None:
    archive(FakeTopic([10, 10]), tmp_path, spark=spark)
    late = FakeTopic([20, 20], log={0: (0, 20), 1: (14, 20)}, chosen={0: (0, 20), 1: (14, 20)})
    report = archive(late, tmp_path, allow_gaps=True, spark=spark)
    assert (report.gaps, report.records) == ({1: (10, 14)}, 16)
    assert [dict(manifest.gaps) for manifest in Archive(tmp_path).manifests] == [{}, {1: (10, 14)}]
    assert compact(tmp_path, spark=spark).records == 36
    assert Archive(tmp_path).reach() == {0: (0, 20), 1: (0, 20)}


def test_records_that_are_deleted_while_they_are_read_are_a_gap_in_the_manifest(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Expiring(FakeTopic):
        """Retention deletes the first five records of partition 1 after the run has planned what to read."""

        def frame(self, spark: SparkSession, ranges: Any) -> Any:
            self.log[1] = (5, 20)
            return super().frame(spark, ranges).where("partition = 0 or offset >= 5")

    topic = Expiring([20, 20], chosen={0: (0, 20), 1: (0, 20)})
    topic.fail_on_data_loss = False
    report = archive(topic, tmp_path, spark=spark)
    assert (report.records, report.gaps) == (35, {1: (0, 5)})
    (manifest,) = Archive(tmp_path).manifests
    assert (manifest.gaps, manifest.ranges) == ({1: (0, 5)}, {0: (0, 20), 1: (5, 20)})


def test_a_range_whose_log_is_truncated_while_it_is_read_ends_there(spark: SparkSession, tmp_path: Path) -> None:
    """The next run archives the records that take the lost offsets."""

    class Truncated(FakeTopic):
        """A leader without the records from offset 12 of partition 1 is elected after the run has planned."""

        def frame(self, spark: SparkSession, ranges: Any) -> Any:
            self.log[1] = (0, 12)
            return super().frame(spark, ranges).where("partition = 0 or offset < 12")

    topic = Truncated([20, 20], chosen={0: (0, 20), 1: (0, 20)})
    topic.fail_on_data_loss = False
    report = archive(topic, tmp_path, offsets_per_commit=30, spark=spark)
    assert (report.records, report.ranges) == (32, {0: (0, 20), 1: (0, 12)})
    assert Archive(tmp_path).reach() == {0: (0, 20), 1: (0, 12)}
    assert archive(FakeTopic([20, 20]), tmp_path, spark=spark).records == 8
    assert Archive(tmp_path).reach() == {0: (0, 20), 1: (0, 20)}


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file/below", "file is a file"),
        ("link", "link is a link to nothing"),
        ("taken", "topic=orders is a file"),
        ("s3://bucket/there", "mount it"),
        ("hdfs:/there", "is a URL"),
    ],
)
def test_a_directory_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/topic=orders").write_text("")
    with pytest.raises(ConfigError, match=reason):
        archive(FakeTopic([1]), place if ":" in place else tmp_path / place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "taken"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if os.geteuid() != 0 or subprocess.call(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]):
        pytest.skip("only root may mount")
    yield tmp_path
    subprocess.check_call(["umount", "-l", str(tmp_path)])


def test_a_full_disk_is_reported_in_one_line_and_leaves_complete_commits(spark: SparkSession, small: Path) -> None:
    archive(FakeTopic([100]), small, spark=spark)
    filler = small / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(os.urandom(4096))
            file.flush()
    message = r"no space left on device: .* MB free in .* This commit's files were deleted"
    with pytest.raises(ArchiveFull, match=message) as caught:
        archive(FakeTopic([30_000]), small, spark=spark)
    assert "\n" not in str(caught.value)
    filler.unlink()
    assert Archive(small).records == 100
    assert [path.name for path in (small / "topic=orders").iterdir() if path.name.startswith("_new")] == []
    archive(FakeTopic([200]), small, spark=spark)
    assert Archive(small).records == 200


def test_a_killed_run_is_continued_without_gap_or_double(spark: SparkSession, tmp_path: Path) -> None:
    directory, sizes = tmp_path / "archive", [250, 250]
    home = directory / "topic=orders"
    child = [sys.executable, "-m", "tests.spark.archive_child", str(directory), "250,250", "100"]

    def third_commit_is_written() -> bool:
        return (home / "commit=00000003").exists() and bool(list(home.glob("_new-*/**/*.parquet")))

    run_and_kill(child, tmp_path / "log", third_commit_is_written)
    assert len(Archive(directory).manifests) >= 3
    archive(FakeTopic(sizes), directory, offsets_per_commit=100, spark=spark)
    assert whole(spark, FakeTopic(sizes), directory)
    assert not list(home.glob("_new-*"))
