"""Measures how many records per second Spark reads from a topic, and from other sources for comparison."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from allocator.spark import session
from allocator.testing import JarsUnavailable, LocalCluster
from allocator.testing.jars import class_path
from bench.consume.fill import fill
from bench.server_jars import SPARK_CONNECTOR

from .ceiling import Ceiling
from .processes import Usage

SIZE = 100
ROWS = 70_000  # rows of an Arrow batch: about 8 MiB, like a batch of allocator's source


class Result(NamedTuple):
    name: str
    records: int
    partitions: int
    seconds: float
    cpu_s: float
    rss: int

    def row(self, ceiling: float) -> str:
        rate = self.records / self.seconds
        return (
            f"| {self.name} | {self.records:,} | {self.partitions} | {self.seconds:.2f} | {rate / 1e6:.2f} "
            f"| {rate / ceiling:.0%} | {self.cpu_s / self.records * 1e6:.2f} | {self.rss >> 20} |"
        )


def best(name: str, records: int, partitions: int, rounds: int, frame: Callable[[], Any]) -> Result:
    """Returns the fastest of `rounds` runs. Each sends all rows and columns to the JVM."""
    from pyspark import SparkContext

    pid = SparkContext._gateway.proc.pid  # the ancestor of the JVM and the Python workers, but not of the broker
    runs = []
    for _ in range(rounds):
        with Usage(pid) as usage:
            began = time.monotonic()
            frame().write.format("noop").mode("overwrite").save()
            seconds = time.monotonic() - began
        runs.append(Result(name, records, partitions, seconds, usage.cpu_s, usage.rss))
    return min(runs, key=lambda run: run.seconds)


def connector() -> str | None:
    """Returns the class path of Spark's own connector, or None if its jars cannot be downloaded."""
    try:
        return class_path(SPARK_CONNECTOR)
    except JarsUnavailable as error:
        print(f"the JVM connector is not measured: {error}")
        return None


def measure(spark: Any, cluster: Any, records: int, partitions: int, rounds: int, with_connector: bool) -> list[Result]:
    topic = f"bench-{partitions}-{records}"
    cluster.create_topic(topic, partitions, 1)
    fill(cluster.bootstrap, topic, partitions, records, SIZE, "none")

    def ours(kind: str, **more: str) -> Any:
        options = {"brokers": cluster.bootstrap, "topics": topic, **more}
        return spark.read.format(kind).options(**options).load()

    def theirs() -> Any:
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        return spark.read.format("kafka").options(**options).load()

    made = {"records": records, "partitions": partitions, "size": SIZE, "rows": ROWS}
    found = [best("in memory (ceiling)", records, partitions, rounds,
                  lambda: spark.read.format("ceiling").options(**made).load()),
             best("allocator", records, partitions, rounds, lambda: ours("allocator"))]  # fmt: skip
    if with_connector:
        found.append(best("JVM connector", records, partitions, rounds, theirs))
    with tempfile.TemporaryDirectory() as directory:
        ours("allocator").write.mode("overwrite").parquet(directory)
        found.append(best("Parquet", records, partitions, rounds, lambda: spark.read.parquet(directory)))
    cluster.delete_topic(topic, timeout_s=0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka", default="3.9.1")
    parser.add_argument(
        "--growth", action="store_true", help="also measure 1 and 20 million records, and 4, 64 and 256 partitions"
    )
    parser.add_argument("--no-connector", action="store_true", help="do not measure the JVM connector")
    parser.add_argument("--json", help="write the results to this file")
    given = parser.parse_args()
    sizes = [(given.records, given.partitions)]
    if given.growth:
        sizes += [(count * 1_000_000, given.partitions) for count in (1, 20)]
        sizes += [(given.records, partitions) for partitions in (4, 64, 256)]
    import pyspark

    with LocalCluster(given.kafka) as cluster:
        jars = None if given.no_connector else connector()
        conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
        conf.update({"spark.driver.memory": "2g", "spark.ui.showConsoleProgress": "false"})
        if jars:
            conf["spark.driver.extraClassPath"] = conf["spark.executor.extraClassPath"] = jars
        began = time.monotonic()
        spark = session("bench", "local[2]", conf)
        started = time.monotonic() - began
        spark.dataSource.register(Ceiling)
        spark.range(10).write.format("noop").mode("overwrite").save()
        print(f"Spark {pyspark.__version__} started in {started:.1f} s\n")
        print("| source | records | partitions | s | M records/s | % of in memory | CPU us/record | MiB |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        everything = []
        for records, partitions in sizes:
            found = measure(spark, cluster, records, partitions, given.rounds, bool(jars))
            ceiling = found[0].records / found[0].seconds
            for result in found:
                print(result.row(ceiling), flush=True)
            everything += found
        spark.stop()
    if given.json:
        Path(given.json).write_text(json.dumps([result._asdict() for result in everything], indent=2))


if __name__ == "__main__":
    main()
