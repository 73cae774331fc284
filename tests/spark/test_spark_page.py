"""The code of docs/spark.md, in the session of this room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repository import ROOT, code_blocks
from spark_queries import never_connected

from allocator.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING, WRITING = code_blocks(ROOT / "docs" / "spark.md", "python")


def read_all(stream: str, names: dict[str, Any]) -> bool:
    """Runs the code of a stream; False if its Python process came too late."""
    exec(stream, names)
    query = names["query"]
    try:
        query.processAllAvailable()
    except Exception:
        if not never_connected(query):
            raise
        return False
    finally:
        query.stop()
    return True


def test_the_page_reads_and_writes(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    orders, out = topic_factory(2), topic_factory(2)
    kafka_cluster.produce(orders, [(b"ada", b"1"), (b"bob", b"2"), (b"ada", b"3")])
    names: dict[str, Any] = {"spark": spark}
    code = READING
    changes = {"kafka-1:9092,kafka-2:9092": kafka_cluster.bootstrap, "orders": orders, "billing": group}
    for before, after in changes.items():
        assert f'"{before}"' in code
        code = code.replace(f'"{before}"', f'"{after}"')
    exec(code, names)
    assert sorted(bytes(row.value) for row in names["orders"].select("value").collect()) == [b"1", b"2", b"3"]

    code = WRITING
    checkpoint = str(tmp_path / "checkpoint")
    for before, after in {
        "kafka-1:9092,kafka-2:9092": kafka_cluster.bootstrap,
        "out": out,
        "/checkpoints/out": checkpoint,
    }.items():
        assert f'"{before}"' in code
        code = code.replace(f'"{before}"', f'"{after}"')
    *batch, stream = code.splitlines()
    names["frame"] = names["orders"]
    exec("\n".join(batch), names)
    source = spark.readStream.format("allocator").option("brokers", kafka_cluster.bootstrap).option("topics", orders)
    names["frame"] = source.option("starting_offsets", "earliest").load().select("key", "value")
    while not read_all(stream, names):
        pass
    written = spark.read.format("allocator").option("brokers", kafka_cluster.bootstrap).option("topics", out).load()
    assert written.count() == 6
