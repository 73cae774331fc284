"""Streaming queries: a driver that calls a reader like Spark does, and what a group has committed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from allocator.spark.options import STREAM, read_options
from allocator.spark.source.stream import StreamReader
from allocator.testing import LocalCluster
from allocator.types import TopicPartition
from tests.migrate import mirroring

__all__ = ["Place", "Query", "commit", "committed", "run_query"]

COLUMNS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
Place = tuple[str, int, int]
# on a busy machine, a new Python process may import longer than the 10 s that Spark waits
FAILED_TO_START = "failed to connect back"
STARTS = 5


def run_query(
    start: Callable[[], Any],
    wait: Callable[[Any], object] = lambda query: query.processAllAvailable(),
    then_stop: bool = True,
) -> Any:
    """Starts a query, and waits for it: until it has read all available records. Returns the query.

    A query whose Python process started too late has read nothing, and is started again, at most STARTS times in all.
    """
    for _ in range(STARTS):
        query = start()
        done = False
        try:
            wait(query)
            done = True
            return query
        except Exception:
            if FAILED_TO_START not in str(query.exception()):
                raise
        finally:
            if then_stop or not done:
                query.stop()
    raise AssertionError(f"Spark waited too briefly for the Python process of a query, {STARTS} times")


class Query:
    """A query over one checkpoint; `restart` simulates a crash of the driver."""

    def __init__(self, **options: Any) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.at: str | None = None
        self.readers: list[StreamReader] = []
        self.restart()

    def restart(self, **options: Any) -> None:
        self.options.update({name: str(value) for name, value in options.items()})
        self.reader = StreamReader(read_options(self.options, STREAM), COLUMNS)
        self.readers.append(self.reader)

    def plan(self) -> tuple[str, str]:
        """Returns the start and end of the next batch, as the JSON texts of a checkpoint."""
        if self.at is None:
            self.at = json.dumps(self.reader.initialOffset())
        end = self.reader.latestOffset(json.loads(self.at), self.reader.getDefaultReadLimit())
        return self.at, json.dumps(end)

    def read(self, start: str, end: str) -> list[Place]:
        pieces = self.reader.partitions(json.loads(start), json.loads(end))
        batches = [batch for piece in pieces for batch in self.reader.read(piece)]
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())

    def batch(self) -> list[Place]:
        start, end = self.plan()
        found = self.read(start, end) if start != end else []
        self.reader.commit(json.loads(end))
        self.at = end
        return found

    def stop(self) -> None:
        for reader in self.readers:
            reader.stop()


def committed(cluster: LocalCluster, group: str, topic: str) -> dict[int, int]:
    """Partition -> committed offset, from the group's coordinator."""
    return asyncio.run(mirroring.committed(cluster, group, topic))


def commit(cluster: LocalCluster, group: str, topic: str, offsets: dict[int, int], metadata: str = "") -> None:
    """Commits `offsets` (partition -> offset) to the group."""
    by_partition = {TopicPartition(topic, n): at for n, at in offsets.items()}
    asyncio.run(mirroring.commit(cluster, group, by_partition, metadata))
