"""`Archive` reads exactly the committed records, even after a run has crashed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from allocator.errors import ConfigError
from allocator.spark.archive.commits import CommitLog, Manifest
from allocator.spark.archive.files import local_url, read_url
from allocator.spark.rows import COLUMNS, HEADERS, schema_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reach = dict[int, tuple[int, int]]
LOW, HIGH = "_allocator_low", "_allocator_high"  # column names that no user data has


class Archive:
    """The archive of one topic under `directory`. Raises ConfigError if there is none."""

    def __init__(self, directory: str | Path, topic: str | None = None) -> None:
        root = Path(directory).absolute()  # Spark and its workers have different working directories
        found = sorted(path.name[len("topic=") :] for path in root.glob("topic=*") if (path / "_commits").is_dir())
        if topic is None:
            if len(found) != 1:
                what = f"archives of {', '.join(found)}: name one" if found else "no archive"
                raise ConfigError(f"{root} holds {what}")
            topic = found[0]
        elif topic not in found:
            raise ConfigError(f"{root} holds no archive of {topic!r}; it holds {', '.join(found) or 'none'}")
        self.directory, self.topic = root, topic
        self._commits = CommitLog(root / f"topic={topic}")
        self.manifests = self._commits.live()

    def __str__(self) -> str:
        return f"archive:{self.directory}/topic={self.topic}"

    @property
    def records(self) -> int:
        return sum(manifest.records for manifest in self.manifests)

    def reach(self) -> Reach:
        """Returns partition -> (first archived offset, end offset)."""
        return reach_of(self.manifests)

    def frame(self, spark: SparkSession, reach: Mapping[int, tuple[int, int]] | None = None) -> DataFrame:
        """Returns the records, with the columns of Spark's Kafka connector and of the archive's transform.

        If `reach` is given, returns only those offsets. Raises ArchiveCorrupt.
        """
        from pyspark.sql import functions as F

        wanted = self.reach() if reach is None else reach
        paths: dict[Path, list[Path]] = {}
        partly = False
        for manifest in self.manifests:
            home, files = self._commits.paths(manifest)
            # a run that was killed before the rename leaves its files under the staged name
            base = self._commits.directory if home.name == manifest.directory else home
            for path, found in zip(files, manifest.files):
                low, high = wanted.get(found.partition, (0, 0))
                if found.first < high and found.last >= low:
                    paths.setdefault(base, []).append(path)
                    partly = partly or found.first < low or found.last >= high
        if not paths:
            return spark.createDataFrame([], schema_text(True))
        frames = [
            spark.read.option("basePath", local_url(base))
            .option("mergeSchema", "true")
            .parquet(*map(read_url, there))
            .drop("commit")
            for base, there in paths.items()
        ]
        rows = functools.reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), frames)
        rows = rows.withColumn("topic", F.lit(self.topic)).withColumn("partition", F.col("partition").cast("int"))
        if partly:
            # Spark takes minutes to plan one filter for each partition
            bounds = [(partition, low, high) for partition, (low, high) in wanted.items()]
            cut = spark.createDataFrame(bounds, f"partition int, {LOW} bigint, {HIGH} bigint")
            inside = (F.col("offset") >= F.col(LOW)) & (F.col("offset") < F.col(HIGH))
            rows = rows.join(F.broadcast(cut), "partition").where(inside).drop(LOW, HIGH)
        known = [*COLUMNS, *HEADERS]
        plain = [name for name in known if name in rows.columns]
        added = [name for name in rows.columns if name not in known]
        return rows.select(*plain, *map(_quoted, added))


def _quoted(name: str) -> str:
    """Returns the name of a column as Spark parses it, where a plain dot separates the fields of a struct."""
    return f"`{name.replace('`', '``')}`"


def reach_of(manifests: Iterable[Manifest]) -> Reach:
    found: Reach = {}
    for manifest in manifests:
        for reaches in (manifest.ranges, manifest.gaps):
            for partition, (low, high) in reaches.items():
                first, end = found.get(partition, (low, high))
                found[partition] = (min(first, low), max(end, high))
    return found
