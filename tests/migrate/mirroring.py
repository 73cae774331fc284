"""Helpers that fill topics, mirror them and compare the result."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from allocator.core.client.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.migrate.mirror import Mirror
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap, OffsetTranslation, map_topic
from allocator.testing import LocalCluster
from allocator.types import TopicPartition

__all__ = [
    "Row",
    "bare",
    "contents",
    "cut",
    "killed",
    "mirroring",
    "more",
    "settings",
    "started",
    "transactions",
    "translation",
]

# offset, timestamp, key, value, headers
Row = tuple[int, int, Any, Any, list[Any]]


def settings(old: LocalCluster, new: LocalCluster, group: str, **options: Any) -> MirrorSettings:
    """A mirror whose processes find each other through the old cluster's ZooKeeper."""
    given: dict[str, Any] = {
        "old": old.bootstrap,
        "new": new.bootstrap,
        "group": group,
        "zookeeper": f"{old.zookeeper}/{group}",
        "create": True,
        "old_zookeeper": old.zookeeper,
        "replication": 1,
        "session_timeout_s": 4.0,
        "commit_interval_s": 0.2,
    }
    return MirrorSettings(**{**given, **options})


async def translation(chosen: MirrorSettings, partition: TopicPartition) -> OffsetTranslation:
    """Returns the stored translation of the offsets of one partition."""
    async with KafkaClient(chosen.new) as client:
        stored = OffsetMap(client, map_topic(chosen.group))
        await stored.open()
        return stored.positions(partition)


async def contents(cluster: LocalCluster, topic: str) -> dict[int, list[Row]]:
    """Every record of a topic, by partition."""
    async with KafkaClient(cluster.bootstrap) as client:
        await client.refresh([topic])
        wanted = [TopicPartition(topic, n) for n in client.partitions(topic) or ()]
        found: dict[int, list[Row]] = {partition.partition: [] for partition in wanted}
        reader = RangeReader(client)
        async for batch in reader.read(await reader.bounds(wanted)):
            found[batch.partition] += [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]
    return found


def bare(rows: Mapping[int, list[Row]]) -> dict[int, list[Any]]:
    """Without their offsets."""
    return {partition: [row[1:] for row in some] for partition, some in rows.items()}


async def more(count: Callable[[], Any], than: int) -> bool:
    """Whether the result of `count` has grown."""
    return bool(await count() > than)


@contextlib.asynccontextmanager
async def mirroring(mirror: Mirror) -> AsyncIterator[Mirror]:
    """Runs a mirror during the block, and stops it at the end."""
    task = asyncio.get_running_loop().create_task(mirror.run())
    try:
        yield mirror
    finally:
        mirror.stop()
        await asyncio.wait({task})
        task.result()


@contextlib.contextmanager
def started(chosen: MirrorSettings, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, in a process of its own."""
    command = [sys.executable, "-m", "allocator.cli", "mirror", chosen.old, chosen.new]
    for topic in chosen.topics:
        command += ["--topic", topic]
    command += ["--group", chosen.group, "--replication", "1", "--status-s", "1", "--session-timeout", "4", *options]
    command += ["--zookeeper", str(chosen.zookeeper), "--old-zookeeper", str(chosen.old_zookeeper), "--create"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        killed(process)


def killed(process: subprocess.Popen[bytes]) -> None:
    """Cancels the mirror without any clean-up, like `kill -9`."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait(30)


def cut(cluster: LocalCluster, topic: str, keep: int) -> None:
    """Makes partition 0 lose its records from offset `keep` on, as after an unclean election of a leader.

    Kills the broker, cuts its log before the first batch that has such a record, and starts it again.
    """
    (broker,) = cluster.brokers
    broker.kill()
    data = cluster.directory / "kafka-0" / "data"
    (segment,) = (data / f"{topic}-0").glob("*.log")
    content = segment.read_bytes()
    at = 0
    while at + 12 <= len(content) and (size := struct.unpack_from(">qi", content, at))[1] and size[0] < keep:
        at += 12 + size[1]
    segment.write_bytes(content[:at])
    for other in (data / f"{topic}-0").iterdir():
        if other.suffix in (".index", ".timeindex", ".snapshot"):
            other.unlink()
    for name in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        (data / name).unlink(missing_ok=True)
    broker.start()
    cluster.wait_settled()


def transactions(bootstrap: str, topic: str, more: int = 0) -> None:
    """Ten committed records, ten aborted ones, ten committed ones, and `more` transactions of a record each."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for value, count in ((b"committed", 10), (b"aborted", 10), (b"committed", 10), *[(b"one", 1)] * more):
        producer.begin_transaction()
        for n in range(count):
            producer.produce(topic, key=b"t%d" % n, value=value, partition=0)
        producer.flush(30)
        if value == b"aborted":
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
