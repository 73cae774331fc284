"""Jars beside those of `allocator.testing`: Kafka's own tools, and Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from allocator.testing.versions import KAFKA, LOGGING, JarSet

LOCKS = Path(__file__).with_name("pinned")

# the tools of 4.4.0 are not in every mirror of Maven Central
_TOOLS = {"4.4.0": "4.3.1"}


def _tools(version: str) -> JarSet:
    return JarSet(
        f"kafka-tools-{version}",
        f"Kafka's tools {version}",
        (f"org.apache.kafka:kafka-tools:{version}", *LOGGING),
        locks=LOCKS,
    )


KAFKA_TOOLS: Mapping[str, JarSet] = MappingProxyType(
    {
        release.version: _tools(_TOOLS.get(release.version, release.version))
        for release in KAFKA.values()
        if release.number >= (0, 10)  # the server jars of older versions contain these tools
    }
)


# works with newer versions of Spark, for which Maven Central has no connector
SPARK_CONNECTOR = JarSet(
    "spark-connector-4.2.0",
    "Spark's Kafka connector 4.2.0",
    ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
    # Spark has these jars
    (
        "at.yawk.lz4:lz4-java",
        "com.google.code.findbugs:jsr305",
        "org.apache.hadoop:*",
        "org.apache.spark:spark-sql_2.13",
        "org.apache.spark:spark-tags_2.13",
        "org.scala-lang:scala-library",
        "org.scala-lang.modules:scala-parallel-collections_2.13",
        "org.slf4j:slf4j-api",
        "org.xerial.snappy:snappy-java",
    ),
    LOCKS,
)
