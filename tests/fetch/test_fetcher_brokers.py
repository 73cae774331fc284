"""Promises of the fetcher on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from allocator.errors import CorruptRecordError
from allocator.testing import wait_until
from allocator.testing.producing import ProducedRecord
from allocator.testing.versions import KAFKA
from allocator.types import TopicPartition
from tests.fetch.reading import Connected, collect, offsets, parts, raises_each_time, start_at, take
from tests.kafka_versions import on_versions

OLD, NEW = "0.8.2.2", "3.9.1"
VERSIONS = on_versions(OLD, NEW)
ALL_CODECS = (None, "gzip", "snappy", "lz4", "zstd")


def codecs_of(version: str) -> Sequence[str | None]:
    number = KAFKA[version].number
    return ALL_CODECS[:3] if number < (0, 8, 2) else ALL_CODECS[:4] if number < (2, 1) else ALL_CODECS


def record(turn: int, n: int) -> tuple[bytes, bytes]:
    return b"k%d" % n, b"%d-%d-" % (turn, n) + b"x" * (n % 150)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.deadline(120)
async def test_all_that_was_produced_comes_in_order(
    cluster_factory: Any, topic_factory: Callable[..., str], version: str
) -> None:
    cluster = cluster_factory(kafka=version)
    topic = topic_factory(partitions=4, cluster=cluster)
    codecs = codecs_of(version)
    rounds, each = 2 * len(codecs), 200
    for turn in range(rounds):
        records = [ProducedRecord(*record(turn, n), partition=n % 4) for n in range(4 * each)]
        cluster.produce(topic, records, compression=codecs[turn % len(codecs)], batch_records=50)
    state = start_at(parts(topic, 4), None)
    async with Connected(cluster, state) as fetcher:
        seen = await collect(fetcher, state, rounds * 4 * each, 60)
    for tp in parts(topic, 4):
        assert offsets(seen[tp]) == list(range(rounds * each))
        expected = [record(turn, n) for turn in range(rounds) for n in range(tp.partition, 4 * each, 4)]
        assert [(r.key, r.value) for r in seen[tp]] == expected
        assert state.assignment[tp].high_watermark == rounds * each


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_record_larger_than_the_fetch_size_comes(
    cluster_factory: Any, topic_factory: Callable[..., str], version: str
) -> None:
    cluster = cluster_factory(kafka=version)
    topic = topic_factory(cluster=cluster)
    sizes = [10, 300_000, 20, 900_000, 30]
    for size in sizes:
        cluster.produce(topic, [b"x" * size])
    state = start_at(parts(topic, 1))
    async with Connected(cluster, state, max_partition_bytes=10_000, prefetch_bytes=200_000) as fetcher:
        seen = await collect(fetcher, state, len(sizes))
    assert [len(r.value) for r in seen[TopicPartition(topic, 0)]] == sizes


@pytest.mark.deadline(120)
@pytest.mark.parametrize("version", [OLD, NEW])
async def test_a_damaged_log_raises_and_can_be_skipped(
    cluster_factory: Any, topic_factory: Callable[..., str], version: str
) -> None:
    cluster = cluster_factory(kafka=version)
    topic = topic_factory(partitions=2, cluster=cluster)
    for turn in range(3):
        cluster.produce(topic, [(None, b"%d-%d " % (turn, n) + b"y" * 50, p) for n in range(10) for p in (0, 1)])
    (broker,) = cluster.brokers
    broker.stop()
    (log,) = cluster.directory.rglob(f"{topic}-0/*.log")
    data = bytearray(log.read_bytes())
    at = data.index(b"1-5 ")
    data[at : at + 3] = b"???"
    log.write_bytes(bytes(data))
    broker.start()
    wait_until(lambda: all(topic in m.topics for m in cluster.metadata()), 30, f"{topic} to be known")
    (tp, _) = parts(topic, 2)
    state = start_at(parts(topic, 2))
    seen: dict[int, list[int]] = {0: [], 1: []}
    errors: list[CorruptRecordError] = []
    async with Connected(cluster, state) as fetcher:
        while len(seen[1]) < 30 or not errors:
            try:
                batch = await take(fetcher, state)
                seen[batch.partition] += offsets(batch)
            except CorruptRecordError as error:
                errors.append(error)
        error = errors[0]
        assert {(each.offset, each.next_offset) for each in errors} == {(error.offset, error.next_offset)}
        await raises_each_time(fetcher, CorruptRecordError)
        assert seen[0] == list(range(error.offset))
        assert (error.topic, error.partition) == tp
        # the old formats have a checksum for each message, the new one for each batch
        assert (error.offset, error.next_offset) == ((15, 16) if version == OLD else (10, 20))
        assert error.next_offset is not None
        state.seek(tp, error.next_offset)
        fetcher.wake()
        while len(seen[0]) < 30 - (error.next_offset - error.offset):
            batch = await take(fetcher, state)
            seen[0] += offsets(batch)
    assert seen[0] == [n for n in range(30) if not error.offset <= n < error.next_offset]
