"""Kills the processes of a Spark application at chosen steps. All its processes import this module.

The file `steps` in the directory STEPPING has a line for each kill, "VICTIM STEP", in the order in which they happen.
The victim is the driver with its JVM and its planning processes, or all executors.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

from allocator.spark.source.source import AllocatorDataSource, columns_of
from allocator.spark.source.stream import StreamReader
from allocator.spark.topic import Topic

__all__ = ["SteppingSource", "SteppingTopic", "as_driver", "children", "each_batch", "pending", "prepare", "step"]


def _place(name: str) -> Path:
    return Path(os.environ["STEPPING"], name)


def prepare(steps: list[str], workers: list[int]) -> None:
    """Plans the kills. `workers`: the process ids of Spark's workers."""
    _place("workers").write_text(" ".join(map(str, workers)))
    _place("steps").write_text("\n".join(steps))


def pending() -> list[str]:
    """Returns the kills that have not happened yet."""
    return _place("steps").read_text().splitlines()


def as_driver() -> None:
    """Notes that this process, which leads a process group, is the driver."""
    _place("driver").write_text(str(os.getpgrp()))


def step(name: str) -> None:
    """Kills the victim if this is the next step of the plan."""
    mine = _place(f"steps-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):  # another process is at a step
        _place("steps").rename(mine)  # so that only one of several tasks kills
        head, *rest = mine.read_text().splitlines() or [""]
        victim, _, where = head.partition(" ")
        hit = where == name
        if hit:
            mine.write_text("\n".join(rest))
        mine.rename(_place("steps"))
        if hit and victim == "driver":
            os.killpg(int(_place("driver").read_text()), signal.SIGKILL)
        elif hit:
            for worker in _place("workers").read_text().split():
                for executor in children(int(worker)):
                    os.kill(executor, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Returns the processes that `pid` has started."""
    return [int(each) for found in Path(f"/proc/{pid}/task").glob("*/children") for each in found.read_text().split()]


def each_batch(name: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the rows of a task; after the first one it is at step `name`."""
    for batch in batches:
        yield batch.slice(0, 1)
        step(name)
        yield batch.slice(1)


class SteppingTopic(Topic):
    """A topic to archive."""

    def extent(self, *reached: Any) -> Any:
        found = super().extent(*reached)
        step("planned")
        return found

    def topic_id(self) -> str | None:
        step("written")  # an archive asks for the id after its tasks
        return super().topic_id()


class SteppingReader(StreamReader):
    """Each call of Spark is a step."""

    def initialOffset(self) -> dict[str, Any]:
        first = super().initialOffset()
        step("initialOffset")
        return first

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if start == super().initialOffset():
            produce_more(self.options)
        if end != start:
            step("latestOffset")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        planned = super().partitions(start, end)
        step("partitions")
        return planned

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        step("commit")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from each_batch("read", super().read(partition))


def produce_more(options: Any) -> None:
    """Writes 160 records, in the first two calls: after the first plan has chosen a start at `latest`."""
    from allocator.testing import produce

    topic = options.topics[0]
    for number in range(2):
        with contextlib.suppress(FileExistsError):
            _place(f"{topic}-{number}").touch(exist_ok=False)
            produce(",".join(options.brokers), topic, [(None, b"x", n % 4) for n in range(160)])
            return


class SteppingSource(AllocatorDataSource):
    def streamReader(self, schema: Any) -> Any:
        options = self._reading("readStream")
        return SteppingReader(options, columns_of(schema, options))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return SteppingSource, (self.options,)
