"""Archives: every record once, with kills at any point, and clear errors."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from killed import run_and_kill
from spark_records import Made

from allocator.errors import ConfigError
from allocator.spark.archive import Archive, archive, compact
from allocator.spark.archive.commits import ArchiveMismatch
from allocator.spark.audit import audit
from allocator.spark.errors import ArchiveFull, DataLoss, SchemaMismatch
from allocator.spark.topic import Topic
from allocator.testing import LocalCluster, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def whole(spark: SparkSession, topic: Made, directory: Path) -> bool:
    """The archive has each record of the topic once, with all that it holds."""
    found = Archive(directory, topic.name)
    reach = {partition: reach for partition, reach in topic.log.items() if reach[1]}
    report = audit(topic.frame(spark, topic.ranges(reach)), found.frame(spark), by="offset", spark=spark)
    assert report.equal, report.to_text()
    assert found.reach() == reach
    # a reader that does not know manifests sees the same
    assert spark.read.parquet(str(directory)).count() == report.left.records
    return True


def test_each_run_of_an_archive_adds_new_records_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = archive(
        Made([50, 31]), tmp_path, offsets_per_commit=40, spark=spark, progress=lambda *done: seen.append(done)
    )
    assert (first.records, first.ranges, first.commits) == (81, {0: (0, 50), 1: (0, 31)}, [1, 2, 3])
    assert seen == [(0, 81), (40, 81), (80, 81), (81, 81)]
    again = archive(Made([50, 31]), tmp_path, spark=spark)
    assert (again.commits, again.to_text()) == ([], "made: nothing to do")
    grown = Made([50, 35, 7])
    assert archive(grown, tmp_path, dry_run=True).ranges == {1: (31, 35), 2: (0, 7)}
    assert Archive(tmp_path).records == 81
    assert archive(grown, tmp_path, spark=spark).records == 11
    assert whole(spark, grown, tmp_path)
    assert Archive(tmp_path).frame(spark).dtypes == grown.frame(spark, grown.ranges({0: (0, 1)})).dtypes
    part = Archive(tmp_path).frame(spark, {0: (10, 20), 1: (30, 35)})
    assert sorted((row.partition, row.offset) for row in part.collect()) == [
        *((0, offset) for offset in range(10, 20)),
        *((1, offset) for offset in range(30, 35)),
    ]


def test_small_files_are_merged_without_a_change_of_records(spark: SparkSession, tmp_path: Path) -> None:
    topic = Made([40, 40])
    archive(topic, tmp_path, offsets_per_commit=16, spark=spark)
    assert compact(tmp_path, dry_run=True).replaced == [1, 2, 3, 4, 5]
    assert len(Archive(tmp_path).manifests) == 5
    report = compact(tmp_path, spark=spark)
    assert (report.commits, report.replaced, report.records, report.files) == ([6], [1, 2, 3, 4, 5], 80, 2)
    assert whole(spark, topic, tmp_path)
    assert compact(tmp_path, spark=spark).commits == []
    grown = Made([45, 40])
    archive(grown, tmp_path, spark=spark)
    assert compact(tmp_path, spark=spark).replaced == [6, 7]
    assert whole(spark, grown, tmp_path)


def test_an_archive_is_read_and_compacted_by_a_relative_path(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(Made([5]), tmp_path / "there", spark=spark)
    archive(Made([9]), tmp_path / "there", spark=spark)
    monkeypatch.chdir(tmp_path)
    assert sorted(row.offset for row in Archive("there").frame(spark).collect()) == list(range(9))
    assert compact("there", spark=spark).records == 9
    assert whole(spark, Made([9]), tmp_path / "there")


def test_a_default_file_system_that_is_not_local_does_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:9")  # nothing listens there
    try:
        archive(Made([5]), tmp_path, spark=spark)
        archive(Made([9]), tmp_path, spark=spark)
        assert compact(tmp_path, spark=spark).records == 9
        assert sorted(row.offset for row in Archive(tmp_path).frame(spark).collect()) == list(range(9))
    finally:
        spark.conf.unset("fs.defaultFS")


def test_a_read_of_ten_thousand_partitions_is_planned_in_seconds(spark: SparkSession, tmp_path: Path) -> None:
    archive(Made([20]), tmp_path, spark=spark)
    found = Archive(tmp_path)
    rows = found.frame(spark, {0: (5, 7), **dict.fromkeys(range(1, 10_000), (1, 2))}).collect()
    assert sorted(row.offset for row in rows) == [5, 6]
    assert found.frame(spark, {1: (0, 9)}).columns == found.frame(spark).columns


def test_the_start_of_the_first_run_is_kept_for_empty_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """A group commits further: a later run that started there would leave out the records in between."""
    report = archive(Made([10, 5], chosen={0: (3, 10), 1: (5, 5)}), tmp_path, spark=spark)
    assert (report.records, Archive(tmp_path).reach()) == (7, {0: (3, 10), 1: (5, 5)})
    later = Made([20, 9, 6], chosen={0: (15, 20), 1: (8, 9), 2: (6, 6)})
    assert archive(later, tmp_path, dry_run=True).ranges == {0: (10, 20), 1: (5, 9), 2: (0, 6)}
    assert archive(later, tmp_path, spark=spark).records == 20
    gone = Made([20, 9, 6, 9], log={0: (0, 20), 1: (0, 9), 2: (0, 6), 3: (4, 9)})
    assert archive(gone, tmp_path, spark=spark).ranges == {3: (4, 9)}
    # and where nothing is archived at all
    assert archive(Made([4], name="new", chosen={0: (4, 4)}), tmp_path).commits == [1]
    assert archive(Made([6], name="new", chosen={0: (6, 6)}), tmp_path, dry_run=True).ranges == {0: (4, 6)}
    with pytest.raises(DataLoss, match="new:0 is archived from offset 4 on and begins at 5 now"):
        archive(Made([6], name="new", log={0: (5, 6)}), tmp_path)


def test_a_run_that_another_run_overtook_does_not_mistake_the_topic_for_a_recreated_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Overtaken(Made):
        """Another run archives more of the topic right after this one has read its ends."""

        def extent(self) -> Any:
            found = super().extent()
            if self.log[0][1] == 10:
                self.log[0] = (0, 20)
                assert archive(Made([20]), tmp_path, spark=spark).records == 20
            return found

    assert archive(Overtaken([10]), tmp_path, spark=spark).records == 0
    assert Archive(tmp_path).reach() == {0: (0, 20)}


def test_a_transform_whose_columns_do_not_fit_the_archive_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Else no reader could read it any more, nor the next run put files together."""

    def adding(column: str) -> Callable[[Any], Any]:
        return lambda rows: rows.selectExpr("*", f"{column} x")

    archive(Made([10]), tmp_path, transform=adding("named_struct('a', 1)"), spark=spark)
    with pytest.raises(SchemaMismatch, match=r"column 'x' is struct<a: integer> in commit 1 and string now"):
        archive(Made([20]), tmp_path, transform=adding("'text'"), spark=spark)
    with pytest.raises(SchemaMismatch, match="column 'value' is binary in commit 1 and string now"):
        archive(Made([20]), tmp_path, transform=lambda rows: rows.withColumn("VALUE", rows.topic), spark=spark)
    # a struct may have more fields
    archive(Made([20]), tmp_path, transform=adding("named_struct('b', 'text', 'A', 2)"), spark=spark)
    compact(tmp_path, spark=spark)
    with pytest.raises(SchemaMismatch, match="in commit 3"):
        archive(Made([21]), tmp_path, transform=adding("named_struct('b', 5)"), spark=spark)
    rows = Archive(tmp_path).frame(spark).select("x.a", "x.b").distinct().collect()
    assert {(row.a, row.b) for row in rows} == {(1, None), (2, "text")}


def test_a_transform_adds_columns_and_must_keep_the_offsets(spark: SparkSession, tmp_path: Path) -> None:
    archive(Made([10]), tmp_path, transform=lambda rows: rows.selectExpr("*", "length(value) size"), spark=spark)
    assert {row.size for row in Archive(tmp_path).frame(spark).collect()} == {3}
    with pytest.raises(SchemaMismatch, match="adds the column 'Commit'"):
        archive(Made([12]), tmp_path, transform=lambda rows: rows.selectExpr("*", "1 Commit"), spark=spark)
    with pytest.raises(SchemaMismatch, match="removes offset"):
        archive(Made([12]), tmp_path, transform=lambda rows: rows.drop("offset"), spark=spark)
    with pytest.raises(SchemaMismatch, match="returned NoneType, not a DataFrame"):
        archive(Made([12]), tmp_path, transform=lambda rows: None, spark=spark)  # type: ignore[arg-type,return-value]
    assert Archive(tmp_path).records == 10
    # runs without it and with it may follow each other
    archive(Made([12]), tmp_path, spark=spark)
    assert whole(spark, Made([12]), tmp_path)


def test_a_nested_field_named_offset_is_not_the_column(spark: SparkSession, tmp_path: Path) -> None:
    archive(Made([10]), tmp_path, transform=lambda rows: rows.selectExpr("struct(-1L offset) one", "*"), spark=spark)
    assert Archive(tmp_path).reach() == {0: (0, 10)}


@pytest.mark.parametrize(
    ("topic", "error", "words"),
    [
        (Made([20, 20], cluster="there", topic_id="one"), ArchiveMismatch, "of cluster here; this one is there"),
        (Made([20, 20], topic_id="two"), ArchiveMismatch, "created again since"),
        (Made([10, 5], topic_id="one"), ArchiveMismatch, r"made:1 is archived up to offset 9 and ends at 4"),
        (Made([20, 20], log={0: (0, 20), 1: (14, 20)}, chosen={0: (0, 20), 1: (14, 20)}), DataLoss, "4 offsets were"),
    ],
)
def test_an_archive_of_another_topic_or_cluster_is_left_alone(
    spark: SparkSession, tmp_path: Path, topic: Made, error: type[Exception], words: str
) -> None:
    archive(Made([10, 10], topic_id="one"), tmp_path, spark=spark)
    for dry_run in (True, False):
        with pytest.raises(error, match=words):
            archive(topic, tmp_path, dry_run=dry_run, spark=spark)
    assert Archive(tmp_path).records == 20


def test_an_allowed_gap_is_in_the_manifest(spark: SparkSession, tmp_path: Path) -> None:
    archive(Made([10, 10]), tmp_path, spark=spark)
    late = Made([20, 20], log={0: (0, 20), 1: (14, 20)}, chosen={0: (0, 20), 1: (14, 20)})
    report = archive(late, tmp_path, allow_gaps=True, spark=spark)
    assert (report.gaps, report.records) == ({1: (10, 14)}, 16)
    assert [dict(manifest.gaps) for manifest in Archive(tmp_path).manifests] == [{}, {1: (10, 14)}]
    assert compact(tmp_path, spark=spark).records == 36
    assert Archive(tmp_path).reach() == {0: (0, 20), 1: (0, 20)}


def test_records_that_are_deleted_while_they_are_read_are_a_gap_in_the_manifest(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Expiring(Made):
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


def test_a_directory_that_executors_do_not_share_is_refused_with_nothing_committed(
    unshared: Path, spark: SparkSession
) -> None:
    with pytest.raises(ConfigError, match=r"seen by the driver, but .*Mount one file system under this path"):
        archive(Made([20]), unshared, spark=spark)
    assert Archive(unshared, "made").manifests == []


def test_an_archive_whose_run_was_killed_before_the_rename_is_read_and_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive(Made([10]), tmp_path, spark=spark)
    archive(Made([15]), tmp_path, transform=lambda rows: rows.selectExpr("*", "length(value) size"), spark=spark)
    home = tmp_path / "topic=made"
    last = Archive(tmp_path).manifests[-1]
    (home / last.directory).rename(home / last.staged)
    rows = Archive(tmp_path).frame(spark)
    assert sorted(row.offset for row in rows.collect()) == list(range(15))
    assert "size" in rows.columns
    again = archive(Made([15]), tmp_path, spark=spark)
    assert again.to_text() == "made: nothing to do"
    assert whole(spark, Made([15]), tmp_path)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("file/below", "file is a file"),
        ("link", "link is a link to nothing"),
        ("taken", "topic=made is a file"),
        ("s3://bucket/there", "mount it"),
        ("hdfs:/there", "is a URL"),
    ],
)
def test_a_directory_that_cannot_be_is_refused_before_anything_is_read(
    tmp_path: Path, place: str, told: str, dry_run: bool
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/topic=made").write_text("")
    with pytest.raises(ConfigError, match=told):
        archive(Made([1]), place if ":" in place else tmp_path / place, dry_run=dry_run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "taken"]


def test_an_archive_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no archive"):
        Archive(tmp_path)
    (tmp_path / "topic=a/_commits").mkdir(parents=True)
    with pytest.raises(ConfigError, match="it holds a"):
        Archive(tmp_path, "b")


def test_a_dry_run_refuses_a_directory_that_the_user_may_not_write() -> None:
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o555)
        try:
            if before == 0:  # root, which ignores access rights
                os.seteuid(65534)
            with pytest.raises(ConfigError, match=f"{place} may not be written by this user"):
                archive(Made([1]), f"{place}/there", dry_run=True)
        finally:
            os.seteuid(before)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if os.geteuid() != 0 or subprocess.call(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]):
        pytest.skip("only root may mount")
    yield tmp_path
    subprocess.check_call(["umount", "-l", str(tmp_path)])


def test_a_full_disk_is_reported_in_one_line_and_leaves_complete_commits(spark: SparkSession, small: Path) -> None:
    archive(Made([100]), small, spark=spark)
    filler = small / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(os.urandom(4096))
            file.flush()
    with pytest.raises(
        ArchiveFull, match=r"no space left on device: .* MB free in .* This commit's files were deleted"
    ) as caught:
        archive(Made([30_000]), small, spark=spark)
    assert "\n" not in str(caught.value)
    filler.unlink()
    assert Archive(small).records == 100
    assert [path.name for path in (small / "topic=made").iterdir() if path.name.startswith("_new")] == []
    archive(Made([200]), small, spark=spark)
    assert Archive(small).records == 200


# -- killed ------------------------------------------------------------------------------------------------------

SIZES = [500, 500]
LONG_SIZES = [1500, 1500]
PER_COMMIT = 100


def kill_and_check(spark: SparkSession, directory: Path, sizes: list[int], moments: list[Callable[[], object]]) -> None:
    topic, log = Made(sizes), directory.parent / "log"
    command = [sys.executable, str(Path(__file__).with_name("archive_child.py"))]
    commits = directory / "topic=made/_commits"
    before = 0
    for moment in moments:
        ended = run_and_kill([*command, str(directory), ",".join(map(str, sizes)), str(PER_COMMIT)], log, moment)
        count = len(Archive(directory).manifests) if commits.is_dir() else 0
        assert count >= before
        before = count
        if ended:
            break
    archive(topic, directory, offsets_per_commit=PER_COMMIT, spark=spark)
    assert whole(spark, topic, directory)
    assert not list((directory / "topic=made").glob("_new-*"))


def test_a_killed_run_is_continued_without_gap_or_double(spark: SparkSession, tmp_path: Path) -> None:
    home = tmp_path / "archive" / "topic=made"
    kill_and_check(
        spark,
        tmp_path / "archive",
        SIZES,
        [lambda: (home / "commit=00000003").exists() and list(home.glob("_new-*/**/*.parquet"))],
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_killed_at_any_moment_is_continued_exactly(spark: SparkSession, tmp_path: Path) -> None:
    home = tmp_path / "archive" / "topic=made"
    dice = random.Random(7)

    def after(commits: int, polls: int) -> Callable[[], bool]:
        left = polls

        def come() -> bool:
            nonlocal left
            if len(list(home.glob("_commits/*.json"))) >= commits:
                left -= 1
            return left < 0

        return come

    kill_and_check(spark, tmp_path / "archive", LONG_SIZES, [after(2 * n + 1, dice.randrange(400)) for n in range(12)])


# -- on real servers ---------------------------------------------------------------------------------------------


def test_a_topic_is_archived_and_audited_and_compacted(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    name = topic_factory(partitions=3)
    produce(kafka_cluster.bootstrap, name, [(b"k%d" % (n % 9), b"v%d" % n, n % 3) for n in range(600)])
    topic = Topic(kafka_cluster.bootstrap, name)
    report = archive(topic, tmp_path, offsets_per_commit=250, spark=spark)
    assert (report.records, len(report.commits)) == (600, 3)
    produce(kafka_cluster.bootstrap, name, [(b"k", b"later", n % 3) for n in range(30)])
    behind = audit(topic, Archive(tmp_path), spark=spark)
    assert (behind.by, behind.equal, behind.left.records) == ("offset", True, 600)
    assert behind.notes == ("30 offsets of the topic are not in the archive yet and were not compared",)
    assert archive(topic, tmp_path, spark=spark).records == 30
    assert compact(tmp_path, spark=spark).records == 630
    after = audit(topic, Archive(tmp_path), spark=spark)
    assert (after.equal, after.right.records, after.notes) == (True, 630, ())
    other = topic_factory(partitions=2)
    copies = [(b"k%d" % (n % 9), b"v%d" % n, n % 9 % 2) for n in range(600) if n != 100]
    produce(kafka_cluster.bootstrap, other, copies)
    mirror = Topic(kafka_cluster.bootstrap, other)
    ends = json.dumps({name: dict.fromkeys(("0", "1", "2"), 200)})
    before = dataclasses.replace(topic, options={"ending_offsets": ends})
    lost = audit(before, mirror, ignore=["timestamp"], spark=spark)
    assert (lost.by, {kind: count for kind, count in lost.kinds.items() if count}) == ("key", {"missing": 1})
    assert [sample.offset for sample in lost.samples] == [33]


def test_committed_offsets_are_an_end_to_read_to(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    name = topic_factory(partitions=2)
    options: dict[str, Any] = {"group": group, "ending_offsets": "committed"}
    # nothing committed: nothing is read
    assert Topic(kafka_cluster.bootstrap, name, options).extent().chosen == {0: (0, 0), 1: (0, 0)}
    theirs = {"kafka.group.id": group, "endingOffsets": "committed"}
    assert Topic(kafka_cluster.bootstrap, name, theirs).extent().chosen == {0: (0, 0), 1: (0, 0)}
