"""Records of Java's producer: this library and Java's consumer deliver the same fields."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from allocator import Consumer, Record
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.java import find_java
from allocator.testing.plugin import ClusterFactory
from allocator.testing.versions import KAFKA, NEWEST
from tests.outside.java_tools import QUICK_JVM, compiled, number, tools_class_path

pytestmark = pytest.mark.deadline(240)
long = pytest.mark.long

SOURCE = Path(__file__).parent / "java" / "Odd.java"
BIG = 10_000_000


class Odd:
    """The Java program `Odd`, with the client of one version."""

    def __init__(self, version: str) -> None:
        self._path = f"{compiled(SOURCE, version)}{os.pathsep}{tools_class_path(version)}"
        self._java = find_java(KAFKA[version].oldest_java).executable

    async def run(self, *arguments: str, option: str = "-Dheaders=yes") -> list[str]:
        """Runs the program and returns its output, by line."""
        options = [*QUICK_JVM, "-Xmx400m", option]
        process = await asyncio.create_subprocess_exec(
            *(self._java, *options, "-cp", self._path, "Odd", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode().splitlines()


def shown(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)}:{hashlib.sha256(data).hexdigest()}"


def line(record: Record) -> str:
    """Formats a record like the Java program."""
    headers = [f"{shown(key.encode())}={shown(value)}" for key, value in record.headers]
    first = [record.partition, record.offset, record.timestamp_type, record.timestamp]
    return " ".join([*map(str, first), shown(record.key), shown(record.value), *headers])


async def read(cluster: LocalCluster, topic: str, isolation: str, last: dict[int, int]) -> list[str]:
    """Reads all records up to these offsets with allocator."""
    lines: list[str] = []
    settings = {"brokers": cluster.bootstrap, "group": None, "membership": "fixed", "isolation_level": isolation}
    left = set(last)
    async with Consumer(topic, prefetch_bytes=64_000_000, **settings) as consumer:
        while left:
            batch = await consumer.getbatch(30)
            assert batch is not None, f"no more records, and partitions {left} are not at their ends, {last}"
            lines += map(line, batch)
            if batch[-1].offset >= last[batch.partition]:
                left.discard(batch.partition)
    return lines


async def same(odd: Odd, cluster: LocalCluster, topic: str, isolation: str = "read_uncommitted") -> list[str]:
    """Compares the records of both clients, and returns them."""
    by_java = await odd.run("read", cluster.bootstrap, topic, isolation)
    last: dict[int, int] = {}
    for each in by_java:
        partition, offset = map(int, each.split()[:2])
        last[partition] = max(last.get(partition, -1), offset)
    found = await read(cluster, topic, isolation, last)
    by_place = [sorted(lines, key=lambda each: tuple(map(int, each.split()[:2]))) for lines in (by_java, found)]
    difference = [each[:200] for each in difflib.unified_diff(*by_place, "Java", "allocator", n=0, lineterm="")]
    assert by_place[0] == by_place[1], "\n".join(difference[:20])
    return by_place[0]


def client(kafka: str) -> str:
    """Returns the version of Java's client for these brokers. `Odd.java` needs 2.0 or newer."""
    return kafka if number(kafka) >= (2,) else "2.8.2"


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PRODUCED = [
    ("3.9.1", "zstd", 2_000_000, "CreateTime"),
    *(pytest.param("3.9.1", codec, BIG, "CreateTime", marks=long) for codec in CODECS),
    *(
        pytest.param(version, codec, BIG, "CreateTime", marks=long)
        for version in ("0.10.2.2", "1.1.1", "2.8.2", NEWEST)
        for codec in CODECS
        if codec != "zstd" or number(version) >= (2, 1)
    ),
    *(
        pytest.param(version, codec, 1000, "LogAppendTime", marks=long)
        for version in ("0.10.2.2", "2.8.2", "3.9.1", NEWEST)
        for codec in ("none", "lz4")
    ),
]


@pytest.mark.parametrize(("kafka", "codec", "largest", "time"), PRODUCED)
async def test_records_of_every_codec_and_kind_of_time_are_the_same(
    kafka: str, codec: str, largest: int, time: str, cluster_factory: ClusterFactory, topic_factory: Callable[..., str]
) -> None:
    odd, cluster = Odd(client(kafka)), cluster_factory(kafka=kafka)
    topic = topic_factory(2, config={"max.message.bytes": "20000000", "message.timestamp.type": time}, cluster=cluster)
    headers = "-Dheaders=no" if number(kafka) < (0, 11) else "-Dheaders=yes"
    await odd.run("produce", cluster.bootstrap, topic, codec, str(largest), option=headers)
    lines = await same(odd, cluster, topic)
    assert len(lines) == 504
    assert {each.split()[2] for each in lines} == {"1" if time == "LogAppendTime" else "0"}


@pytest.mark.parametrize("codec", ["none", pytest.param("gzip", marks=long)])
@pytest.mark.parametrize("kafka", ["3.9.1", *(pytest.param(v, marks=long) for v in ("1.1.1", "2.8.2", NEWEST))])
async def test_records_of_transactions_are_the_same(
    kafka: str, codec: str, cluster_factory: ClusterFactory, topic_factory: Callable[..., str]
) -> None:
    odd = Odd(client(kafka))
    cluster = cluster_factory(kafka=kafka)
    topic = topic_factory(2, cluster=cluster)
    await odd.run("transactions", cluster.bootstrap, topic, codec)
    assert len(await same(odd, cluster, topic, "read_committed")) == 3 * 30 + 3 * 3
    assert len(await same(odd, cluster, topic)) == 2 * 3 * 30 + 3 * 3


@long
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("kafka", ["2.8.2", "3.9.1"])
async def test_records_of_a_compacted_topic_are_the_same(
    kafka: str, codec: str, cluster_factory: ClusterFactory, topic_factory: Callable[..., str]
) -> None:
    odd = Odd(client(kafka))
    cluster = cluster_factory(kafka=kafka, broker_config={"log.cleaner.backoff.ms": 200})
    settings = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
    topic = topic_factory(2, config=settings, cluster=cluster)
    await odd.run("compacted", cluster.bootstrap, topic, codec)
    seen: list[int] = []

    async def at_rest() -> bool:
        seen.append(len(await odd.run("read", cluster.bootstrap, topic, "read_uncommitted")))
        return len(seen) > 1 and seen[-2] == seen[-1] < 2000

    await wait_until_async(
        at_rest, 90, lambda: f"the cleaner to end; numbers of remaining records: {seen}", interval_s=1.0
    )
    await same(odd, cluster, topic)
