"""Records of a real topic: compressed batches, tombstones, an aborted transaction; by offset, time and key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer

from allocator import Producer
from allocator.cli.commands import main
from allocator.core.aio.clock import wall_ms
from allocator.core.client import KafkaClient
from allocator.errors import ConfigError, TopicNotFound
from allocator.producer import by_key
from allocator.testing import LocalCluster, ProducedRecord, produce, wait_until_async
from allocator.types import TopicPartition
from allocator.viewer import Bounds, Masks, Query, Reader, Viewer
from allocator.viewer.read import Position

# a broker may delete records of long ago
BEGAN = wall_ms() - 7_200_000
MINUTE = 60_000
PARTITION = by_key(b"c7", 2)
LOG = 40  # records in that partition before the transactions


def fill(cluster: LocalCluster, topic: str) -> None:
    """In the partition of the key c7: 40 compressed records, the last of them a tombstone; 5 aborted, 5 committed."""
    records = [
        ProducedRecord(
            key=b"c7" if n % 10 == 7 else None,
            value=None if n == LOG - 1 else b'{"n": %d, "card": "4111"}' % n,
            partition=PARTITION,
            timestamp_ms=BEGAN + n * MINUTE,
        )
        for n in range(LOG)
    ]
    produce(cluster.bootstrap, topic, records, compression="gzip", batch_records=15)
    produce(cluster.bootstrap, topic, [ProducedRecord(None, b"other", 1 - PARTITION)])
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic)
    producer.init_transactions()
    for number in range(2):
        producer.begin_transaction()
        for at in range(5):
            value = b'{"turn": %d, "at": %d}' % (number, at)
            producer.send(topic, value, key=b"c7", partition=PARTITION, timestamp_ms=BEGAN + 100 * MINUTE + at)
        producer.flush()  # otherwise an abort drops unsent records
        (producer.commit_transaction if number else producer.abort_transaction)()
    producer.close()


@pytest.mark.servers
async def test_partitions_without_a_leader_are_named_and_the_others_read() -> None:
    with await asyncio.to_thread(LocalCluster, "3.9.1", brokers=2, heap="256m") as cluster:
        await asyncio.to_thread(cluster.create_topic, "t", 2)
        async with KafkaClient(cluster.bootstrap) as client, Producer(brokers=cluster.bootstrap) as producer:
            for number in range(2):
                await producer.send_and_wait("t", b"v%d" % number, partition=number)
            lost = cluster.brokers[1]

            async def lost_partitions() -> tuple[int, ...]:
                await client.refresh(["t"])
                return tuple(n for n in range(2) if client.leader(TopicPartition("t", n)) is None)

            await asyncio.to_thread(lost.stop)
            (dead,) = await wait_until_async(lost_partitions, 60, "a partition without a leader")
            alive = cluster.brokers[0].address
            view = await Viewer(Reader(alive, timeout_s=5), masks=Masks([])).view(Query("t"))
            assert [record.partition for record in view.records] == [1 - dead]
            assert (view.found.leaderless, view.to_json()["leaderless"]) == ([dead], [dead])
            done = await asyncio.to_thread(CliRunner().invoke, main, ["records", "t", "--brokers", alive])
            assert done.exit_code == 0
            assert f"v{1 - dead}" in done.output
            assert f"t:{dead}: not read, no leader;" in done.output
            only = ["records", f"t:{dead}", "--brokers", alive, "--timeout", "2"]
            failed = await asyncio.to_thread(CliRunner().invoke, main, only)
            assert failed.exit_code == 1
            assert f"t:{dead}: no leader within" in failed.output


def values(view: Any) -> list[Any]:
    return [record.value.value for record in view.records]


@pytest.mark.deadline(150)
async def test_records_are_found_around_an_offset_by_time_and_by_key(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    topic = topic_factory(2)
    fill(kafka_cluster, topic)
    bounds = Bounds(seconds=60)
    viewer = Viewer(Reader(kafka_cluster.bootstrap, bounds=bounds, timeout_s=30), masks=Masks(["value.card"]))

    def query(**options: Any) -> Query:
        return Query(topic, **{"isolation_level": "read_committed", **options})

    near = await viewer.view(query(partition=PARTITION, position=Position("offset", 20), before=3, limit=2))
    assert [record.offset for record in near.records] == [17, 18, 19, 20, 21]
    assert values(near)[0] == {"n": 17, "card": "***"}
    (window,) = near.found.windows
    assert (window.first, window.next, window.begin, window.end) == (17, 22, 0, LOG + 12)
    assert near.found.stopped == ""

    # five aborted records and two markers at the end are no records, and those before them are found
    newest = await viewer.view(query(partition=PARTITION, limit=7))
    assert values(newest) == [{"n": 38, "card": "***"}, None, *({"turn": 1, "at": at} for at in range(5))]
    assert newest.records[1].value.format == "null"
    dirty = await viewer.view(query(partition=PARTITION, limit=100, isolation_level="read_uncommitted"))
    assert len(dirty.records) == LOG + 10
    everything = await viewer.view(query(position=Position("earliest"), limit=100))
    assert len(everything.records) == LOG + 6
    assert [record.timestamp_ms for record in everything.records] == sorted(r.timestamp_ms for r in everything.records)

    later = await viewer.view(query(partition=PARTITION, position=Position("time", BEGAN + 30 * MINUTE), limit=2))
    assert [record.offset for record in later.records] == [30, 31]
    keyed = await viewer.view(query(key=b"c7", limit=7))
    assert [record.offset for record in keyed.records] == [27, 37, 46, 47, 48, 49, 50]
    assert keyed.found.by_partitioner
    assert [window.partition for window in keyed.found.windows] == [PARTITION]
    none = await viewer.view(query(key=b"unknown", every_partition=True))
    assert none.records == []
    assert [(window.first, window.next) for window in none.found.windows] == [(0, w.end) for w in none.found.windows]

    short = Viewer(Reader(kafka_cluster.bootstrap, bounds=Bounds(scanned=20, seconds=60), timeout_s=30))
    some = await short.view(query(key=b"unknown", partition=PARTITION, position=Position("earliest")))
    assert (some.found.stopped, some.found.scanned, some.found.windows[0].next) == ("records", 20, 20)
    some = await short.view(query(key=b"unknown", partition=PARTITION, position=Position("latest"), limit=5))
    assert some.found.stopped == "records"
    assert some.found.windows[0].next == LOG + 12

    for wrong in (query(position=Position("offset", 1)), query(partition=2)):
        with pytest.raises(ConfigError, match="partition"):
            await viewer.view(wrong)
    with pytest.raises(TopicNotFound):
        await viewer.view(Query(f"{topic}-none"))


def test_the_command_prints_records_and_the_offsets_that_it_read(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    topic = topic_factory(2)
    produce(kafka_cluster.bootstrap, topic, [(b"k\x1b", b'{"id": %d, "card": "4111"}' % n, 1) for n in range(5)])

    def run(*arguments: str, code: int = 0) -> str:
        where = ["--brokers", kafka_cluster.bootstrap, "--timeout", "30"]
        done = CliRunner().invoke(main, ["records", *arguments, *where])
        assert done.exit_code == code, done.output
        return done.output

    text = run(f"{topic}:1", "--limit", "2", "--mask", "$.card")
    assert f"{topic}:1 offset 4" in text
    assert 'value: {"id": 4, "card": "***"}' in text
    assert "key: 6b1b [hex]" in text
    assert "2 records shown, 2 read" in text
    assert f"{topic}:1: offsets 3 to 4 read; its log has 0 to 4" in text
    lines = run(topic, "--from", "earliest", "--lines", "--key-hex", "6b1b", "--every-partition")
    assert [json.loads(line)["value"]["id"] for line in lines.splitlines()] == [0, 1, 2, 3, 4]
    found = json.loads(run(f"{topic}:1", "--from", "3", "--before", "1", "--value-format", "text", "--json"))
    assert [record["value"] for record in found["records"]] == [f'{{"id": {n}, "card": "4111"}}' for n in (2, 3, 4)]
    assert "the bytes would show them" in run(topic, "--mask", "value.id", "--value-format", "hex", code=2)
    assert "is not TOPIC or TOPIC:PARTITION" in run("orders:x", code=2)
    odd = "CSI \x9b31m, override \u202e, isolate \u2066, NEL \x85, tag \u2028"
    produce(kafka_cluster.bootstrap, topic, [(b"odd", json.dumps({"text": odd}, ensure_ascii=False).encode(), 1)])
    line = run(f"{topic}:1", "--lines", "--limit", "1").rstrip("\n")
    assert line.isprintable(), "no character of a record controls the terminal"
    assert json.loads(line)["value"]["text"] == odd
