"""Compares allocator's Spark source and sink with Spark's own Kafka connector: reads, streams and writes.

    python -m bench.spark.beside --partitions 1 16 256
    python -m bench.spark.beside --partitions 16 256 --master "local-cluster[2,1,2048]"

The second form starts a standalone cluster of two workers, each with one core and one executor. Both formats run
alternately on the same topics, in one session, and the fastest run of each counts. The figures are thousands of records
per second. For micro-batches of a few records, they are the median duration that Spark reports
(`durationMs.triggerExecution`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allocator.spark import session
from allocator.testing import LocalCluster
from bench.consume.fill import fill

from .__main__ import SIZE, connector

__all__ = ["Format", "main"]

MICRO_BATCHES = 12
WARM_UP = 4
RECORDS_A_BATCH = 20


class Format:
    """The name and the options of a Spark format that reads and writes topics of `cluster`."""

    def __init__(self, name: str, cluster: LocalCluster) -> None:
        self.name = name
        ours = name == "allocator"
        self._brokers = {"brokers" if ours else "kafka.bootstrap.servers": cluster.bootstrap}
        self._topic = "topics" if ours else "subscribe"
        self._starts = "starting_offsets" if ours else "startingOffsets"

    def source(self, topic: str, start: str = "earliest") -> dict[str, str]:
        return {**self._brokers, self._topic: topic, self._starts: start}

    def sink(self, topic: str) -> dict[str, str]:
        return {**self._brokers, "topic": topic}


def read(spark: Any, kind: Format, topic: str) -> float:
    """Returns the seconds of a batch query that sends all rows and columns to the JVM."""
    began = time.monotonic()
    spark.read.format(kind.name).options(**kind.source(topic)).load().write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def stream(spark: Any, kind: Format, topic: str) -> float:
    """Returns the seconds of the micro-batch in which a query reads all records, without the start of the query."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = _query(spark, kind, topic, "earliest", checkpoint, availableNow=True)
        query.awaitTermination()
        batches: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
        return sum(each["durationMs"]["triggerExecution"] for each in batches) / 1000


def latency(spark: Any, kind: Format, topic: str, produce: Callable[[int], None]) -> float:
    """Returns the median duration of micro-batches with a few records, in seconds."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = _query(spark, kind, topic, "latest", checkpoint, processingTime="0 seconds")
        try:
            while not query.recentProgress:
                time.sleep(0.05)
            for _ in range(MICRO_BATCHES):
                seen = _records(query)
                produce(RECORDS_A_BATCH)
                while _records(query) < seen + RECORDS_A_BATCH:
                    if query.exception() is not None:
                        raise RuntimeError(str(query.exception()))
                    time.sleep(0.02)
        finally:
            query.stop()
        durations = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
    return statistics.median(durations[WARM_UP:]) / 1000


def write(kind: Format, frame: Any, topic: str) -> float:
    began = time.monotonic()
    frame.write.format(kind.name).options(**kind.sink(topic)).mode("append").save()
    return time.monotonic() - began


def _query(spark: Any, kind: Format, topic: str, start: str, checkpoint: str, **trigger: Any) -> Any:
    rows = spark.readStream.format(kind.name).options(**kind.source(topic, start)).load()
    return rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(**trigger).start()


def _records(query: Any) -> int:
    return sum(each["numInputRows"] for each in query.recentProgress)


def measure(spark: Any, cluster: LocalCluster, records: int, partitions: int, rounds: int) -> dict[str, Any]:
    kinds = [Format("allocator", cluster), Format("kafka", cluster)]
    topic, target, live = (f"{name}-{partitions}" for name in ("full", "target", "live"))
    for name in (topic, target, live):
        cluster.create_topic(name, partitions, 1)
    fill(cluster.bootstrap, topic, partitions, records, SIZE, "none")
    frame = spark.read.format("allocator").options(**kinds[0].source(topic)).load().select("value").persist()
    written = frame.count()

    def produce(count: int) -> None:
        cluster.produce(live, [b"a record"] * count)

    works: dict[str, Callable[[Format], float]] = {
        "read": lambda kind: read(spark, kind, topic),
        "stream": lambda kind: stream(spark, kind, topic),
        "write": lambda kind: write(kind, frame, target),
        "micro-batch": lambda kind: latency(spark, kind, live, produce),
    }
    found: dict[str, Any] = {"partitions": partitions, "records": written}
    for work, run in works.items():
        times: dict[str, list[float]] = {kind.name: [] for kind in kinds}
        for _ in range(rounds):
            for kind in kinds:
                times[kind.name].append(run(kind))
        found[work] = {name: min(each) for name, each in times.items()}
        ours, theirs = found[work]["allocator"], found[work]["kafka"]
        figures = (
            f"{ours * 1000:.0f} ms | {theirs * 1000:.0f} ms"
            if work == "micro-batch"
            else f"{written / ours / 1000:,.0f} | {written / theirs / 1000:,.0f}"
        )
        print(f"| {partitions} | {work} | {figures} | {theirs / ours:.1f} |", flush=True)
    frame.unpersist()
    for name in (topic, target, live):
        cluster.delete_topic(name, timeout_s=0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.beside", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka", default="3.9.1")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", help="write the results to this file")
    given = parser.parse_args()
    import pyspark

    with LocalCluster(given.kafka) as cluster:
        jars = connector()
        if jars is None:
            parser.exit(1)
        conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
        conf |= {
            "spark.driver.memory": "2g",
            "spark.executor.memory": "2g",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
        }
        spark = session("bench", given.master, conf)
        spark.range(10).write.format("noop").mode("overwrite").save()
        print(f"Spark {pyspark.__version__}\n")
        print("| partitions | work | allocator | JVM connector | ratio |\n|---:|---|---:|---:|---:|", flush=True)
        found = [measure(spark, cluster, given.records, partitions, given.rounds) for partitions in given.partitions]
        spark.stop()
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
