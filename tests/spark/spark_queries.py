"""Streams into files, whose rows are counted like in Spark."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster, wait_until
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Query", "never_connected"]

PATIENCE_S = 240.0
INTERVAL_S = 0.2  # to see what a query wrote is to read its files


def never_connected(query: Any) -> bool:
    """Whether the query ended before it read anything, and may be started again.

    Spark gives a new Python process 10 s to import what it needs, which on a busy machine is too little.
    """
    return "failed to connect back" in str(query.exception())


class Query:
    """A stream from topics into files, which may be stopped and started again over the same checkpoint."""

    def __init__(self, spark: SparkSession, path: Path, **options: Any) -> None:
        self.spark = spark
        self.out, self.checkpoint = path / "out", path / "checkpoint"
        self.options = {name: str(value) for name, value in options.items()}

    def start(self, **trigger: Any) -> Any:
        """Starts the query; returns it when its source has started."""
        while True:
            query = self._start(**trigger)
            wait_until(lambda query=query: _begun(query), PATIENCE_S, "the query to begin")
            if not never_connected(query):
                return query

    def _start(self, **trigger: Any) -> Any:
        frame = self.spark.readStream.format("allocator").options(**self.options).load()
        writer = frame.selectExpr("topic", "partition", "offset", "cast(value as string) value").writeStream
        writer = writer.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(str(self.out)) if trigger else writer.start(str(self.out))

    def values(self) -> Counter[str]:
        """Of the files that finished batches have listed; what a batch left unfinished does not count."""
        files: set[str] = set()
        for log in sorted(self.out.glob("_spark_metadata/[0-9]*")):
            for line in log.read_text().splitlines()[1:]:
                files.add(unquote(urlparse(json.loads(line)["path"]).path))
        found: Counter[str] = Counter()
        for file in files:
            found.update(pyarrow.parquet.read_table(file, columns=["value"]).column("value").to_pylist())
        return found

    def run_until(self, done: Callable[[], bool], what: str, *, to_the_end: bool = False) -> Any:
        """Starts it, and stops it once `done`; the query, with what it says of itself.

        `to_the_end`: once it has read all there is, so that its progress tells of the last batch, too.
        """
        query = self.start()
        try:
            wait_until(lambda: query.exception() is not None or done(), PATIENCE_S, what, interval_s=INTERVAL_S)
            assert query.exception() is None, query.exception()
            if to_the_end:
                query.processAllAvailable()
            return query
        finally:
            query.stop()


def _begun(query: Any) -> bool:
    return query.exception() is not None or not query.isActive or query.status["message"] != "Initializing sources"


def committed(cluster: LocalCluster, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Partition -> offset, as the group's coordinator has them."""

    async def ask() -> dict[int, int]:
        async with KafkaClient(cluster.bootstrap) as client:
            offsets = GroupOffsets(client, group)
            found = await offsets.fetch([TopicPartition(topic, number) for number in range(partitions)])
            await offsets.close()
            return {tp.partition: value.offset for tp, value in found.items()}

    return asyncio.run(ask())
