"""A driver for the standalone cluster: each kind of job once, with failures; prints its findings as JSON.

standalone_jobs.py MASTER BROKERS SOURCE TARGET DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allocator.spark import session
from allocator.spark.archive import Archive, archive
from allocator.spark.topic import Topic
from tests.spark.spark_settings import CLUSTER

# a copy of a task starts once another task is done and this one takes longer than a tenth of a second
EAGER = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "100ms",
}
COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


def print_result(name: str, found: Any) -> None:
    print(f"RESULT {name} {json.dumps(found)}", flush=True)


def records(frame: Any) -> list[tuple[int, int, str]]:
    rows = frame.selectExpr("partition", "offset", "cast(value as string) value").collect()
    return sorted((row.partition, row.offset, row.value) for row in rows)


def killing(marks: str) -> Any:
    """A function for tasks: the first task kills its executor after its first rows."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import pathlib
        import signal

        pathlib.Path(marks, f"python-{os.getpid()}").write_text(sys.executable)
        for batch in batches:
            yield batch.slice(0, 1)
            try:
                pathlib.Path(marks, "killed").touch(exist_ok=False)
            except FileExistsError:
                yield batch.slice(1)
                continue
            # this worker is a child of pyspark's daemon, which is a child of the executor
            daemon = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
            signal.pause()

    return run


def twice(marks: str) -> Any:
    """A function for tasks: the first attempt on partition 0 waits until its copy has started."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pathlib
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        for batch in batches:
            if 0 in batch.column("partition").to_pylist():
                copy = pathlib.Path(marks, "copied")
                if context.attemptNumber() > 0:
                    copy.touch()
                deadline = time.monotonic() + 120
                while not copy.exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
            yield batch

    return run


def main(master: str, brokers: str, source: str, target: str, directory: str) -> None:
    spark = session("standalone jobs", master, CLUSTER)
    options = {"brokers": brokers, "topics": source}

    def read(topic: str) -> Any:
        return spark.read.format("allocator").options(brokers=brokers, topics=topic).load()

    print_result("batch", records(read(source).mapInArrow(killing(directory), COLUMNS)))

    rows = read(source).select("key", "value", "partition")
    rows.write.format("allocator").options(brokers=brokers, topic=target).mode("append").save()
    print_result("sink", records(read(target)))

    for count in (0, 40):
        # in one task: two would write to the same partitions in any order
        more = spark.range(0, count, 1, 1).selectExpr(
            "cast('more ' || id as binary) value", "cast(id % 4 as int) partition"
        )
        more.write.format("allocator").options(brokers=brokers, topic=source).mode("append").save()
        stream = spark.readStream.format("allocator").options(**options, starting_offsets="earliest")
        stream = stream.options(max_offsets_per_trigger="300", group=f"{source}-stream", commit="after_batch").load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{directory}/stream")
        )
        query.awaitTermination()
        sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        print_result(f"stream-{count}", [sizes, records(spark.read.parquet(f"{directory}/stream"))])
    spark.stop()

    spark = session("standalone copies", master, {**CLUSTER, **EAGER})
    place = Path(directory, "archive")
    archive(
        Topic(brokers, source),
        place,
        transform=lambda rows: rows.drop("headers").mapInArrow(twice(directory), COLUMNS),
        spark=spark,
    )
    print_result("archive", records(Archive(place, source).frame(spark)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
