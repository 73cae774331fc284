"""Applications for the tests of deployments: deployed_jobs.py MASTER JOB ..."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allocator.spark import register, session
from allocator.testing import wait_until
from tests.spark.spark_settings import CLUSTER

SCALING = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
}
COLUMNS = "partition int, offset bigint"


def write_batches(spark: Any, directory: str, options: str, transform: Any = None) -> Any:
    """Returns a writer of a stream that writes the rows of each micro-batch to a directory of its own."""
    rows = spark.readStream.format("allocator").options(**json.loads(options)).load().select("partition", "offset")
    rows = rows if transform is None else rows.mapInArrow(transform, COLUMNS)

    def write(frame: Any, number: int) -> None:
        frame.write.mode("overwrite").parquet(f"{directory}/rows/batch={number}")

    return rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint")


def scaled(master: str, directory: str, options: str) -> None:
    """The task of partition 0 lasts until the test has seen that an executor is gone."""

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            deadline = time.monotonic() + 120
            while 0 in batch.column("partition").to_pylist() and not Path(directory, "scaled").exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield batch

    spark = session("scaled", master, {**CLUSTER, **SCALING})
    write_batches(spark, directory, options, wait).trigger(availableNow=True).start().awaitTermination()


def connected(server: str, directory: str, options: str) -> None:
    """A session of Spark Connect: the same stream, until the test has seen all records."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(server).getOrCreate()
    register(spark)
    query = write_batches(spark, directory, options).start()
    while not Path(directory, "complete").exists():
        query.processAllAvailable()
    query.stop()


def many(master: str, directory: str, options: str) -> None:
    """Prints how much memory the driver's processes have after 20 micro-batches, and after 220."""
    spark = session("many", master, CLUSTER)
    rows = spark.readStream.format("allocator").options(**json.loads(options)).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint").start()
    sizes = []
    for batches in (20, 220):
        wait_until(lambda least=batches: _batches(query) >= least, 500, f"{batches} micro-batches")
        spark._jvm.System.gc()
        runtime = spark._jvm.Runtime.getRuntime()
        sizes.append(
            {
                "driver": _resident(os.getpid()),
                "planner": sum(_resident(pid) for pid in _planners()),
                "heap": (runtime.totalMemory() - runtime.freeMemory()) / 1e6,
            }
        )
    query.stop()
    print("RESULT", json.dumps(sizes), flush=True)


def _batches(query: Any) -> int:
    """Returns how many micro-batches the query has done. Raises its exception."""
    if query.exception() is not None:
        raise query.exception()
    return int(query.lastProgress["batchId"]) + 1 if query.lastProgress else 0


def _resident(pid: int) -> float:
    """Returns the resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def _planners() -> list[int]:
    """Returns the processes in this process group in which the source plans streams."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(path.parent.name)
        try:
            if os.getpgid(pid) == os.getpgrp() and b"python_streaming_source_runner" in path.read_bytes():
                found.append(pid)
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has ended
    return found


if __name__ == "__main__":
    master, job, *arguments = sys.argv[1:]
    {"scaled": scaled, "connected": connected, "many": many}[job](master, *arguments)
