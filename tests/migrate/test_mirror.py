"""Mirrors between real clusters: no loss, no change, same order, with kills at any point."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer as TransactionalProducer
from tornado.httpclient import AsyncHTTPClient

from allocator.core.client.client import KafkaClient
from allocator.errors import ConfigError
from allocator.migrate import copying
from allocator.migrate.report import TopicsStopped, TransactionsOpen
from allocator.migrate.takeover import NotEmpty
from allocator.migrate.topics import TopicsDiffer, settings_of
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing import LocalCluster, ProducedRecord, produce, wait_until_async
from allocator.web.mirror_metrics import serve_mirror
from tests.migrate.mirroring import Pair, contents, fill, killed, mirroring, more, numbered, started, transactions

pytestmark = pytest.mark.deadline(180)

OLD, NEW = "0.9.0.1", "3.9.1"
MakePair = Callable[..., Any]


async def partitions_of(cluster: LocalCluster, topic: str) -> Any:
    async with KafkaClient(cluster.bootstrap) as client:
        client.follow([topic])
        await client.refresh()
        return client.partitions(topic)


async def topic_settings(pair: Pair) -> dict[str, str]:
    async with KafkaClient(pair.new.bootstrap) as client:
        await client.refresh([pair.topic])
        return dict((await settings_of(client, [pair.topic]))[pair.topic])


async def test_an_old_topic_is_mirrored_with_its_settings_and_in_order(make_pair: MakePair) -> None:
    pair = await make_pair(OLD, NEW, 3, {"retention.ms": "123456789"})
    for n, compression in enumerate((None, "gzip", "snappy", "lz4")):
        await pair.fill(700, f"value {n}", partition=None, compression=compression)
    rows = [(None, b"v", 0), (b"k", None, 1)]
    await asyncio.to_thread(produce, pair.old.bootstrap, pair.topic, rows, version=OLD)
    mirror = await pair.catch_up()
    await pair.assert_equal()
    assert sum(map(len, (await contents(pair.new, pair.topic)).values())) == mirror.records == 2802
    assert (mirror.already_present, mirror.duplicated, mirror.lost_at_source) == (0, 0, 0)
    assert await topic_settings(pair) == {"retention.ms": "123456789", "message.timestamp.type": "CreateTime"}
    assert {(await pair.translation(n)).runs[0][:2] for n in range(3)} == {(0, 0)}


async def test_a_topic_that_keeps_an_older_format_is_mirrored(make_pair: MakePair) -> None:
    pair = await make_pair("0.10.2.2", "2.8.2", 2)
    older = {"message.format.version": "0.10.2"}
    await asyncio.to_thread(pair.new.create_topic, pair.topic, 2, config=older)
    for n, compression in enumerate((None, "gzip", "lz4")):
        await pair.fill(700, f"value {n}", partition=None, compression=compression)
    mirror = await pair.catch_up()
    await pair.assert_equal()
    assert (mirror.records, mirror.duplicated, mirror.lost_at_source) == (2100, 0, 0)


async def test_processes_share_the_partitions_and_may_be_killed_at_any_point(make_pair: MakePair) -> None:
    pair = await make_pair(OLD, NEW, 4)
    await pair.fill(20_000, partition=None)

    async def mirrored() -> int:
        if await partitions_of(pair.new, pair.topic) is None:
            return 0
        return sum(map(len, (await contents(pair.new, pair.topic)).values()))

    with started(pair.settings, "--throttle", "0.3") as one, started(pair.settings, "--throttle", "0.3") as two:
        await wait_until_async(lambda: more(mirrored, 0), 60, "records to come over", interval_s=0.2)
        await asyncio.sleep(random.random())
        killed(one)
        killed(two)
    await pair.fill(500, "later", partition=None)
    mirror = await pair.catch_up()
    await pair.assert_equal(with_offsets=False)
    assert mirror.duplicated == 0


async def test_headers_times_and_committed_transactions_are_mirrored(make_pair: MakePair) -> None:
    """Most batches are forwarded without decoding them."""
    pair = await make_pair(config={"message.timestamp.type": "CreateTime"}, old_zookeeper=None)
    rows = [
        ProducedRecord(b"k%d" % n, b"v%d" % n, 0, 1_600_000_000_000 + n * 7, [("h", b"%d" % n), ("none", None)])
        for n in range(500)
    ]
    for compression in (None, "gzip", "zstd"):
        options = {"compression": compression, "batch_records": 100}
        await asyncio.to_thread(produce, pair.old.bootstrap, pair.topic, rows, **options)
    parts = [(b"committed", 10), (b"aborted", 10), (b"committed", 10)]
    await asyncio.to_thread(transactions, pair.old.bootstrap, pair.topic, *parts)
    await pair.catch_up()
    before, after = [(await contents(each, pair.topic))[0] for each in (pair.old, pair.new)]
    kept = [row for row in before if row[3] != b"aborted"]
    assert len(kept) < len(before)
    assert [row[1:] for row in after] == [row[1:] for row in kept]
    positions = await pair.translation()
    assert [positions.target(row[0]) for row in kept] == [row[0] for row in after]
    assert len(positions) == 2


async def test_a_missing_chroot_is_refused_and_not_created(make_pair: MakePair, group: str) -> None:
    """With a mistyped chroot two processes would each be alone, and mirror every record twice."""
    pair = await make_pair(OLD, NEW)
    with pytest.raises(ConfigError, match=f"/{group}.* Correct --zookeeper, or start once with --create"):
        await pair.catch_up(create=False)
    root = ZooKeeperClient(str(pair.old.zookeeper))
    await root.connect()
    assert not await root.exists(f"/{group}")
    await root.close()
    assert await partitions_of(pair.new, pair.topic) is None


async def test_topics_that_differ_are_refused_before_any_topic_is_created(make_pair: MakePair) -> None:
    pair = await make_pair(OLD, NEW, 3, {"retention.ms": "1000000"})
    missing, compacted = await pair.add_topic(), await pair.add_topic()
    await asyncio.to_thread(pair.new.create_topic, pair.topic, 2)
    await asyncio.to_thread(pair.new.create_topic, compacted, 1, 1, {"cleanup.policy": "compact"})

    async def refused(message: str, *topics: str) -> None:
        with pytest.raises(TopicsDiffer, match=message):
            await pair.catch_up(topics=topics)

    await refused("has 3 partitions on the old cluster and 2 on the new one", pair.topic, missing)
    await asyncio.to_thread(pair.new.add_partitions, pair.topic, 3)
    await refused(r"retention.ms of .* is '1000000', on the new cluster None", pair.topic, missing)
    await refused(r"cleanup.policy of .* is 'compact' on the new cluster alone", compacted)
    await refused("the old cluster has no topic 'there-is-none'", missing, "there-is-none")
    assert await partitions_of(pair.new, missing) is None


async def test_added_partitions_are_mirrored_by_running_and_later_processes(make_pair: MakePair) -> None:
    pair = await make_pair(OLD, NEW, 2)
    async with mirroring(pair.mirror()) as one, mirroring(pair.mirror()) as two:
        await wait_until_async(lambda: len(one.progress()) == len(two.progress()) == 1, 60, "both to start")
        await asyncio.to_thread(pair.old.add_partitions, pair.topic, 6)
        await wait_until_async(lambda: len(one.progress()) == len(two.progress()) == 3, 90, "the new partitions")
        await pair.fill(600, partition=None)
        await wait_until_async(lambda: one.records + two.records == 600, 60, "their records")
    await asyncio.to_thread(pair.old.add_partitions, pair.topic, 7)
    await pair.fill(1, partition=6)
    await pair.catch_up()
    await pair.assert_equal()


async def test_one_cluster_under_two_names_is_refused(make_pair: MakePair) -> None:
    """The mirror would read its own records in an endless loop."""
    pair = await make_pair(NEW, NEW)
    with pytest.raises(ConfigError, match="the old and the new cluster are the same: both have the cluster id"):
        await pair.catch_up(old=pair.old.bootstrap.replace("127.0.0.1", "localhost"))


async def test_a_stop_ends_a_mirror_soon(make_pair: MakePair) -> None:
    """Even while a large batch waits for the throttle, or no broker responds. Sent records are not sent again."""
    pair = await make_pair(OLD, NEW)
    rows = [(b"k", bytes(100_000), 0)] * 20
    await asyncio.to_thread(produce, pair.old.bootstrap, pair.topic, rows, version=OLD)
    clock = asyncio.get_running_loop()
    slow = pair.mirror(throttle_bytes_s=2_000.0)
    async with mirroring(slow):
        await wait_until_async(lambda: slow.progress(), 60, "it to start")
        stopped = clock.time()
    assert clock.time() - stopped < 20
    await pair.catch_up()
    await pair.assert_equal()
    async with mirroring(pair.mirror(old="127.0.0.1:1")):
        await asyncio.sleep(0)  # it starts to connect
        stopped = clock.time()
    assert clock.time() - stopped < 20


async def test_a_new_topic_with_foreign_records_is_refused_unless_append_is_set(make_pair: MakePair) -> None:
    pair = await make_pair(OLD, NEW)
    await asyncio.to_thread(pair.new.create_topic, pair.topic, 1)
    await fill(pair.new, pair.topic, 10)
    await pair.fill(100)
    with pytest.raises(NotEmpty, match="holds 10 records that no mirror of this group wrote"):
        await pair.catch_up()
    await pair.catch_up(append=True)
    assert [row[0] for row in (await contents(pair.new, pair.topic))[0]] == list(range(110))
    assert (await pair.translation()).target(40) == 50


async def test_lag_is_reported_until_it_is_zero(make_pair: MakePair, group: str) -> None:
    pair = await make_pair(OLD, NEW, 2)
    await pair.fill(3000, "value" + "x" * 20, partition=None)
    mirror = pair.mirror(throttle_bytes_s=60_000.0)
    async with mirroring(mirror):
        await wait_until_async(lambda: sum(each.lag or 0 for each in mirror.progress()) > 0, 30, "a lag")
        await wait_until_async(
            lambda: mirror.records == 3000 and not any(each.lag for each in mirror.progress()), 60, "no lag"
        )
        async with serve_mirror(mirror, "127.0.0.1", 0, ()) as port:
            url, client = f"http://127.0.0.1:{port}", AsyncHTTPClient()
            metrics = (await client.fetch(f"{url}/metrics")).body.decode()
            assert f'allocator_mirror_records_total{{group="{group}",topic="{pair.topic}"}} 3000.0\n' in metrics
            assert f'allocator_mirror_lag{{group="{group}",topic="{pair.topic}"}} 0.0\n' in metrics
            assert f'allocator_mirror_up{{group="{group}"}} 1.0\n' in metrics
            assert (await client.fetch(f"{url}/health/ready")).code == 200


async def test_zstd_is_mirrored_to_a_cluster_that_does_not_know_it(make_pair: MakePair) -> None:
    config = {"compression.type": "zstd", "retention.ms": "-1"}
    pair = await make_pair(NEW, "1.1.1", 1, config, old_zookeeper=None)
    for compression in ("zstd", "gzip", None):
        await pair.fill(300, str(compression), compression=compression)
    await pair.catch_up()
    await pair.assert_equal()
    assert await topic_settings(pair) == {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
    await pair.catch_up()


async def test_a_batch_that_the_new_cluster_refuses_stops_its_topic_with_the_reason(make_pair: MakePair) -> None:
    pair = await make_pair(OLD, NEW)
    other = await pair.add_topic()
    await pair.fill(20, topic=other)
    await asyncio.to_thread(pair.new.create_topic, pair.topic, 1, 1, {"max.message.bytes": "2000"})
    await asyncio.to_thread(produce, pair.old.bootstrap, pair.topic, [(b"k", bytes(5000), 0)], version=OLD)
    with pytest.raises(TopicsStopped, match=rf"{pair.topic}' .*old offsets 0 to 0 of partition 0 .*MESSAGE_TOO_LARGE"):
        await pair.catch_up()
    assert await pair.copied(other) == numbered("value", 20)


@pytest.mark.parametrize("old", ["2.8.2", "3.9.1"])
async def test_a_mirror_with_a_goal_ends_at_a_transaction_that_stays_open(
    old: str, make_pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All before it is copied, and the error says whose it is: a hanging transaction never ends by itself."""
    monkeypatch.setattr(copying, "OPEN_S", 2.0)
    pair: Pair = await make_pair(old, "4.1.1", 2)
    await pair.fill(10)
    await pair.fill(10, partition=1)
    producer = TransactionalProducer({"bootstrap.servers": pair.old.bootstrap, "transactional.id": pair.group})
    await asyncio.to_thread(producer.init_transactions, 30)
    producer.begin_transaction()
    producer.produce(pair.topic, b"open", partition=0)
    await asyncio.to_thread(producer.flush, 30)
    await pair.fill(5, "behind")
    mirror, shown = pair.mirror(), re.escape(repr(pair.group))
    whose = rf", producer id \d+, transactional id {shown}" if old == "3.9.1" else ""
    with pytest.raises(TransactionsOpen, match=rf"{pair.topic}:0 from offset 10 on{whose}\. "):
        await asyncio.wait_for(mirror.run(until_caught_up=True), 60)
    assert not mirror.caught_up
    assert await pair.copied() == numbered("value", 10)
    assert len((await contents(pair.new, pair.topic))[1]) == 10
    await asyncio.to_thread(producer.abort_transaction, 30)
    assert (await pair.catch_up()).caught_up
    assert await pair.copied() == numbered("value", 10) + numbered("behind", 5)
