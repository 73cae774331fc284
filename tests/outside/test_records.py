"""Records of Java's producer: this library and Java's consumer deliver the same fields."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from java_tools import QUICK_JVM, number, tools_class_path

from allocator import Consumer, Record
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.jars import cache_directory
from allocator.testing.java import find_java
from allocator.testing.plugin import ClusterFactory
from allocator.testing.versions import KAFKA, NEWEST

pytestmark = pytest.mark.deadline(240)
long = pytest.mark.long

SOURCE = Path(__file__).parent / "java" / "Odd.java"
BIG = 10_000_000
ROOM = {"max.message.bytes": "20000000"}


class Odd:
    """Our Java program, with the client of one version."""

    def __init__(self, version: str) -> None:
        self._path = f"{compiled(version)}{os.pathsep}{tools_class_path(version)}"
        self._java = find_java(KAFKA[version].oldest_java).executable

    async def run(self, *arguments: str, option: str = "-Dheaders=yes") -> list[str]:
        """The lines that it prints."""
        options = [*QUICK_JVM, "-Xmx400m", option]
        process = await asyncio.create_subprocess_exec(
            *(self._java, *options, "-cp", self._path, "Odd", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode().splitlines()


@cache
def compiled(version: str) -> str:
    """The directory of the class, made once in the cache. Skips where no compiler is found."""
    java = find_java(KAFKA[version].oldest_java)
    compiler = shutil.which("javac", path=str(Path(java.home) / "bin")) or shutil.which("javac")
    if compiler is None:
        pytest.skip("the Java program of these tests needs `javac`, which is neither beside `java` nor on PATH")
    name = hashlib.sha256(SOURCE.read_bytes() + f"{compiler} {version}".encode()).hexdigest()[:16]
    place = cache_directory() / "clients" / f"java-odd-{name}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.exists():
            part = place.with_suffix(".part")
            command = [compiler, "-encoding", "UTF-8", "-cp", tools_class_path(version), "-d", str(part), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert not done.returncode, done.stderr
            part.rename(place)
    return str(place)


def shown(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)}:{hashlib.sha256(data).hexdigest()}"


def line(record: Record) -> str:
    """As the Java program shows it."""
    headers = [f"{shown(key.encode())}={shown(value)}" for key, value in record.headers]
    first = [record.partition, record.offset, record.timestamp_type, record.timestamp]
    return " ".join([*map(str, first), shown(record.key), shown(record.value), *headers])


async def ours(cluster: LocalCluster, topic: str, isolation: str, last: dict[int, int]) -> list[str]:
    """All records up to these offsets, read with allocator."""
    lines: list[str] = []
    consumer = Consumer(
        topic,
        brokers=cluster.bootstrap,
        group=None,
        membership="fixed",
        isolation_level=isolation,
        prefetch_bytes=64_000_000,
    )
    left = set(last)
    async with consumer:
        while left:
            batch = await consumer.getbatch(30)
            assert batch is not None, f"nothing more comes, and partitions {left} are not at their ends, {last}"
            lines += map(line, batch)
            if batch[-1].offset >= last[batch.partition]:
                left.discard(batch.partition)
    return lines


async def same(odd: Odd, cluster: LocalCluster, topic: str, isolation: str = "read_uncommitted") -> list[str]:
    """Compares the records of both clients, and returns them."""
    theirs = await odd.run("read", cluster.bootstrap, topic, isolation)
    last: dict[int, int] = {}
    for each in theirs:
        partition, offset = map(int, each.split()[:2])
        last[partition] = max(last.get(partition, -1), offset)
    found = await ours(cluster, topic, isolation, last)
    by_place = [sorted(lines, key=lambda each: tuple(map(int, each.split()[:2]))) for lines in (theirs, found)]
    difference = [each[:200] for each in difflib.unified_diff(*by_place, "Java", "ours", n=0, lineterm="")]
    assert by_place[0] == by_place[1], "\n".join(difference[:20])
    return by_place[0]


def client(kafka: str) -> str:
    """The version of Java's client for these brokers. `Odd.java` needs 2.0 or newer."""
    return kafka if number(kafka) >= (2,) else "2.8.2"


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PRODUCED = [
    *(pytest.param("3.9.1", codec, marks=() if codec == "zstd" else long) for codec in CODECS),
    *(
        pytest.param(version, codec, marks=long)
        for version in ("0.10.2.2", "1.1.1", "2.8.2", NEWEST)
        for codec in CODECS
        if codec != "zstd" or number(version) >= (2, 1)
    ),
]


@pytest.mark.parametrize(("kafka", "codec"), PRODUCED)
async def test_of_every_codec(
    kafka: str, codec: str, cluster_factory: ClusterFactory, topic_factory: Callable[..., str]
) -> None:
    odd = Odd(client(kafka))
    cluster = cluster_factory(kafka=kafka)
    topic = topic_factory(2, config=ROOM, cluster=cluster)
    headers = "-Dheaders=no" if number(kafka) < (0, 11) else "-Dheaders=yes"
    await odd.run("produce", cluster.bootstrap, topic, codec, str(BIG), option=headers)
    assert len(await same(odd, cluster, topic)) == 504


@long
@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("kafka", ["0.10.2.2", "2.8.2", "3.9.1", NEWEST])
async def test_with_the_brokers_time(
    kafka: str, codec: str, cluster_factory: ClusterFactory, topic_factory: Callable[..., str]
) -> None:
    odd = Odd(client(kafka))
    cluster = cluster_factory(kafka=kafka)
    topic = topic_factory(2, config={**ROOM, "message.timestamp.type": "LogAppendTime"}, cluster=cluster)
    headers = "-Dheaders=no" if number(kafka) < (0, 11) else "-Dheaders=yes"
    await odd.run("produce", cluster.bootstrap, topic, codec, "1000", option=headers)
    lines = await same(odd, cluster, topic)
    assert {each.split()[2] for each in lines} == {"1"}


@pytest.mark.parametrize("codec", ["none", pytest.param("gzip", marks=long)])
@pytest.mark.parametrize("kafka", ["3.9.1", *(pytest.param(v, marks=long) for v in ("1.1.1", "2.8.2", NEWEST))])
async def test_of_transactions(
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
async def test_of_a_compacted_topic(
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

    await wait_until_async(at_rest, 90, lambda: f"the cleaner to be done; so many were left: {seen}", interval_s=1.0)
    await same(odd, cluster, topic)
