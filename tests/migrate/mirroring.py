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
from dataclasses import replace
from typing import Any

from kafka.admin import KafkaAdminClient

from allocator.core.client.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.migrate.mirror import Mirror
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap, OffsetTranslation, map_topic
from allocator.testing import LocalCluster, produce, wait_until
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "Pair",
    "Row",
    "bare",
    "commit",
    "committed",
    "contents",
    "cut",
    "delete_group",
    "delete_records",
    "fill",
    "killed",
    "mirroring",
    "more",
    "numbered",
    "settings",
    "started",
    "transactions",
    "values",
]

# offset, timestamp, key, value, headers
Row = tuple[int, int, Any, Any, list[Any]]


def settings(old: LocalCluster, new: LocalCluster, group: str, **options: Any) -> MirrorSettings:
    """A mirror whose processes find each other through the old cluster's ZooKeeper."""
    usual: dict[str, Any] = {
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
    return MirrorSettings(**{**usual, **options})


class Pair:
    """An old topic that a mirror copies to a new cluster. Methods without a topic use the first one."""

    def __init__(
        self, old: LocalCluster, new: LocalCluster, make_topic: Callable[..., str], group: str, **options: Any
    ) -> None:
        self.old, self.new, self.group = old, new, group
        self._make_topic = make_topic
        self._options = options
        self.topics: list[str] = []

    async def add_topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Creates another topic on the old cluster, which the mirror copies too."""
        self.topics.append(await asyncio.to_thread(self._make_topic, partitions, 1, config, self.old))
        return self.topics[-1]

    @property
    def topic(self) -> str:
        return self.topics[0]

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    @property
    def settings(self) -> MirrorSettings:
        return settings(self.old, self.new, self.group, topics=self.topics, **self._options)

    def mirror(self, **changed: Any) -> Mirror:
        return Mirror(replace(self.settings, **changed))

    async def catch_up(self, **changed: Any) -> Mirror:
        """Runs a mirror until it has copied everything."""
        mirror = self.mirror(**changed)
        await mirror.run(until_caught_up=True)
        return mirror

    async def fill(self, count: int, name: str = "value", topic: str | None = None, **options: Any) -> None:
        await fill(self.old, topic or self.topic, count, name, **options)

    async def recreate(self, count: int) -> None:
        """Deletes the old topic, creates it again with one partition, and fills it."""
        await asyncio.to_thread(self.old.delete_topic, self.topic)
        await asyncio.to_thread(self.old.create_topic, self.topic, 1)
        await self.fill(count, "recreated")

    async def recreate_new(self, partitions: int = 1) -> None:
        """Deletes the topic on the new cluster, and creates it there without records."""
        await asyncio.to_thread(self.new.delete_topic, self.topic)
        await asyncio.to_thread(self.new.create_topic, self.topic, partitions)

    async def copied(self, topic: str | None = None) -> list[str]:
        """The values in partition 0 of the new topic."""
        return values((await contents(self.new, topic or self.topic))[0])

    async def assert_equal(self, with_offsets: bool = True) -> None:
        old, new = await contents(self.old, self.topic), await contents(self.new, self.topic)
        assert (new if with_offsets else bare(new)) == (old if with_offsets else bare(old))

    async def translation(self, partition: int = 0) -> OffsetTranslation:
        """Returns the stored translation of the offsets of one partition."""
        async with KafkaClient(self.old.bootstrap) as old, KafkaClient(self.new.bootstrap) as client:
            stored = OffsetMap(old, client, map_topic(self.group))
            await stored.open()
            return stored.positions(TopicPartition(self.topic, partition))


async def fill(
    cluster: LocalCluster, topic: str, count: int, name: str = "value", *, partition: int | None = 0, **options: Any
) -> None:
    """Produces "<name> 0", "<name> 1", ...; with partition None, the key chooses the partition."""
    rows = [(b"k%d" % n, f"{name} {n}".encode(), partition) for n in range(count)]
    await asyncio.to_thread(produce, cluster.bootstrap, topic, rows, version=cluster.version, **options)


def numbered(name: str, *ranges: int | range) -> list[str]:
    """The values that `fill` produces; a number is short for the range up to it."""
    return [f"{name} {n}" for each in ranges for n in (range(each) if isinstance(each, int) else each)]


def values(rows: list[Row]) -> list[str]:
    return [row[3].decode() for row in rows]


async def commit(
    cluster: LocalCluster, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "", **options: Any
) -> None:
    async with KafkaClient(cluster.bootstrap) as client:
        await client.refresh([partition.topic for partition in offsets])
        store = GroupOffsets(client, group, **options)
        await store.commit({each: OffsetAndMetadata(offset, metadata, -1) for each, offset in offsets.items()})
        await store.close()


async def committed(cluster: LocalCluster, group: str, topic: str, storage: str = "kafka") -> dict[int, int]:
    """Partition -> committed offset."""
    async with KafkaClient(cluster.bootstrap) as client:
        await client.refresh([topic])
        partitions = [TopicPartition(topic, n) for n in client.partitions(topic) or ()]
        store = GroupOffsets(client, group, in_zookeeper=storage == "zookeeper")
        found = await store.fetch(partitions)
        await store.close()
    return {each.partition: offset.offset for each, offset in found.items()}


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
    command += ["--zookeeper", str(chosen.zookeeper), "--create"]
    command += ["--old-zookeeper", chosen.old_zookeeper] if chosen.old_zookeeper else []
    command += ["--back-of", chosen.back_of] if chosen.back_of else []
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


def delete_records(bootstrap: str, topic: str, before: int, partition: int = 0) -> None:
    """Deletes the records of the partition before this offset, as retention does."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_records({TopicPartition(topic, partition): before})
    finally:
        admin.close()


def delete_group(bootstrap: str, group: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_groups([group])
    finally:
        admin.close()


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


def transactions(bootstrap: str, topic: str, *parts: tuple[bytes, int]) -> None:
    """Writes a transaction of `count` records for each (value, count); those of b"aborted" are aborted.

    Returns when the markers are in the log.
    """
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import TopicPartition as Partition

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    end = reader.get_watermark_offsets(Partition(topic, 0), 30)[1] + sum(count + 1 for _, count in parts)
    producer.init_transactions(30)
    for value, count in parts:
        producer.begin_transaction()
        for n in range(count):
            producer.produce(topic, key=b"t%d" % n, value=value, partition=0)
        producer.flush(30)
        if value == b"aborted":
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    # the coordinator responds before it writes the marker
    wait_until(lambda: reader.get_watermark_offsets(Partition(topic, 0), 30)[1] >= end, 30, "the markers")
    reader.close()
