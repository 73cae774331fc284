"""Mirrors between real clusters: no loss, no change, same order, with kills at any point."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from mirroring import bare, contents, killed, mirroring, more, settings, started, transactions, translation
from tornado.httpclient import AsyncHTTPClient

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.errors import BrokerError, ConfigError
from allocator.migrate.mirror import Mirror
from allocator.migrate.takeover import NotEmpty
from allocator.migrate.topics import TopicsDiffer, settings_of
from allocator.testing import LocalCluster, ProducedRecord, produce, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.mirror_metrics import serve_mirror

pytestmark = pytest.mark.deadline(180)


@pytest.fixture
def old(cluster_factory: Any) -> LocalCluster:
    return cluster_factory(kafka="0.9.0.1")  # type: ignore[no-any-return]


@pytest.fixture
def new(kafka_cluster: LocalCluster) -> LocalCluster:
    return kafka_cluster


async def fill(cluster: LocalCluster, topic: str, count: int, first: int = 0, **options: Any) -> None:
    records = [(f"k{n}".encode(), f"value {n} {'x' * (n % 50)}".encode()) for n in range(first, first + count)]
    await asyncio.to_thread(produce, cluster.bootstrap, topic, records, version=cluster.version, **options)


async def test_an_old_topic_is_mirrored_with_its_settings_and_in_order(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 3, 1, {"retention.ms": "123456789"}, old)
    for n, compression in enumerate((None, "gzip", "snappy", "lz4")):
        await fill(old, topic, 700, first=n * 700, compression=compression)
    await asyncio.to_thread(produce, old.bootstrap, topic, [(None, b"v", 0), (b"k", None, 1)], version="0.9.0.1")
    mirror = Mirror(settings(old, new, group, topics=[topic]))
    await mirror.run(until_caught_up=True)
    before, after = await contents(old, topic), await contents(new, topic)
    assert after == before
    assert sum(map(len, after.values())) == mirror.records == 2802
    assert (mirror.already_present, mirror.duplicated, mirror.lost_at_source) == (0, 0, 0)
    async with KafkaClient(new.bootstrap) as client:
        await client.refresh([topic])
        assert await settings_of(client, [topic]) == {
            topic: {"retention.ms": "123456789", "message.timestamp.type": "CreateTime"}
        }
    mapped = [await translation(mirror.settings, TopicPartition(topic, n)) for n in range(3)]
    assert {each.runs[0][:2] for each in mapped} == {(0, 0)}


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.long)])
async def test_processes_share_the_partitions_and_may_be_killed_at_any_point(
    rounds: int, old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 4, 1, None, old)
    chosen = settings(old, new, group, topics=[topic])
    await fill(old, topic, 20_000)
    rng = random.Random(7)

    async def mirrored() -> int:
        async with KafkaClient(new.bootstrap) as client:
            await client.refresh([topic])
            if client.partitions(topic) is None:
                return 0
        return sum(map(len, (await contents(new, topic)).values()))

    for round in range(rounds):
        with started(chosen, "--throttle", "0.3") as one, started(chosen, "--throttle", "0.3") as two:
            reached = await mirrored()
            await wait_until_async(lambda goal=reached: more(mirrored, goal), 60, "records to come over")
            await asyncio.sleep(rng.random())
            killed(one)
            killed(two)
        await fill(old, topic, 500, first=20_000 + 500 * round)
    mirror = Mirror(settings(old, new, group, topics=[topic]))
    await mirror.run(until_caught_up=True)
    assert bare(await contents(new, topic)) == bare(await contents(old, topic))
    assert mirror.duplicated == 0


async def test_headers_times_and_transactions_of_a_newer_cluster(
    new: LocalCluster, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    """Most batches go on as they came."""
    old = new
    new = await asyncio.to_thread(cluster_factory, kafka=NEWEST)
    topic = await asyncio.to_thread(topic_factory, 1, 1, {"message.timestamp.type": "CreateTime"}, old)
    rows = [
        ProducedRecord(b"k%d" % n, b"v%d" % n, 0, 1_600_000_000_000 + n * 7, [("h", b"%d" % n), ("none", None)])
        for n in range(500)
    ]
    for compression in (None, "gzip", "zstd"):
        await asyncio.to_thread(produce, old.bootstrap, topic, rows, compression=compression, batch_records=100)
    await asyncio.to_thread(transactions, old.bootstrap, topic)
    mirror = Mirror(settings(old, new, group, topics=[topic], old_zookeeper=None))
    await mirror.run(until_caught_up=True)
    before, after = (await contents(old, topic))[0], (await contents(new, topic))[0]
    # aborted records are not mirrored; their offsets are a gap in the old log
    kept = [row for row in before if row[3] != b"aborted"]
    assert len(kept) < len(before)
    assert [row[1:] for row in after] == [row[1:] for row in kept]
    positions = await translation(mirror.settings, TopicPartition(topic, 0))
    assert [positions.target(row[0]) for row in kept] == [row[0] for row in after]
    assert len(positions) == 2
    await asyncio.to_thread(new.delete_topic, topic)


async def test_a_missing_chroot_is_refused_and_not_created(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """With a mistyped chroot two processes would each be alone, and mirror every record twice."""
    topic = await asyncio.to_thread(topic_factory, cluster=old)
    with pytest.raises(ConfigError, match=f"/{group}.* Correct --zookeeper, or start once with --create"):
        await Mirror(settings(old, new, group, topics=[topic], create=False)).run(until_caught_up=True)
    root = ZooKeeperClient(str(old.zookeeper))
    await root.connect()
    assert not await root.exists(f"/{group}")
    await root.close()
    async with KafkaClient(new.bootstrap) as client:
        client.follow([topic])
        await client.refresh()
        assert client.partitions(topic) is None


async def test_topics_that_differ_are_refused_before_any_topic_is_created(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 3, 1, {"retention.ms": "1000000"}, old)
    missing = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, topic, 2)
    with pytest.raises(TopicsDiffer, match=r"has 3 partitions on the old cluster and 2 on the new one"):
        await Mirror(settings(old, new, group, topics=[topic, missing])).run(until_caught_up=True)
    await asyncio.to_thread(new.add_partitions, topic, 3)
    compacted = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, compacted, 1, 1, {"cleanup.policy": "compact"})
    with pytest.raises(TopicsDiffer, match=r"cleanup.policy of .* is 'compact' on the new cluster alone"):
        await Mirror(settings(old, new, group, topics=[compacted])).run(until_caught_up=True)
    with pytest.raises(TopicsDiffer, match=r"retention.ms of .* is '1000000', on the new cluster None"):
        await Mirror(settings(old, new, group, topics=[topic, missing])).run(until_caught_up=True)
    with pytest.raises(TopicsDiffer, match=r"the old cluster has no topic 'there-is-none'"):
        await Mirror(settings(old, new, group, topics=[missing, "there-is-none"])).run(until_caught_up=True)
    async with KafkaClient(new.bootstrap) as client:
        await client.refresh([missing])
        assert client.partitions(missing) is None


async def test_added_partitions_are_mirrored_by_running_and_later_processes(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """Two concurrent processes, and one that starts later."""
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, old)
    chosen = settings(old, new, group, topics=[topic])
    async with mirroring(Mirror(chosen)) as one, mirroring(Mirror(chosen)) as two:
        await wait_until_async(lambda: len(one.progress()) == len(two.progress()) == 1, 60, "both to have begun")
        await asyncio.to_thread(old.add_partitions, topic, 6)
        await wait_until_async(lambda: len(one.progress()) == len(two.progress()) == 3, 90, "the new partitions")
        await fill(old, topic, 600)
        await wait_until_async(lambda: one.records + two.records == 600, 60, "what was written to them")
    await asyncio.to_thread(old.add_partitions, topic, 7)
    await asyncio.to_thread(produce, old.bootstrap, topic, [(b"k", b"v", 6)], version=old.version)
    await Mirror(chosen).run(until_caught_up=True)
    assert await contents(new, topic) == await contents(old, topic)


async def test_one_cluster_under_two_names_is_refused(
    new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """The mirror would read its own records in an endless loop."""
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, new)
    chosen = replace(settings(new, new, group, topics=[topic]), old=new.bootstrap.replace("127.0.0.1", "localhost"))
    with pytest.raises(ConfigError, match="the old and the new cluster are the same: both have the cluster id"):
        await Mirror(chosen).run(until_caught_up=True)


async def test_a_stop_ends_a_mirror_soon(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """It ends although a large batch waits for its turn, or no broker answers. The next start continues behind the
    sent records."""
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(produce, old.bootstrap, topic, [(b"k", bytes(100_000), 0)] * 20, version=old.version)
    slow = Mirror(settings(old, new, group, topics=[topic], throttle_bytes_s=2_000.0))
    async with mirroring(slow):
        await wait_until_async(lambda: slow.progress(), 60, "it to begin")
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 20
    await Mirror(settings(old, new, group, topics=[topic])).run(until_caught_up=True)
    assert await contents(new, topic) == await contents(old, topic)
    nobody = Mirror(replace(settings(old, new, group, topics=[topic]), old="127.0.0.1:1"))
    async with mirroring(nobody):
        await asyncio.sleep(0)  # its first step: to connect
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 20


async def test_a_new_topic_with_foreign_records_is_refused_unless_append_is_set(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, topic, 1)
    await fill(new, topic, 10)
    await fill(old, topic, 100)
    with pytest.raises(NotEmpty, match="holds 10 records that no mirror of this group wrote"):
        await Mirror(settings(old, new, group, topics=[topic])).run(until_caught_up=True)
    mirror = Mirror(settings(old, new, group, topics=[topic], append=True))
    await mirror.run(until_caught_up=True)
    assert [row[0] for row in (await contents(new, topic))[0]] == list(range(110))
    assert (await translation(mirror.settings, TopicPartition(topic, 0))).target(40) == 50


async def test_uncommitted_records_are_found_and_not_written_again(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    partition = TopicPartition(topic, 0)
    await fill(old, topic, 300)
    await Mirror(settings(old, new, group, topics=[topic])).run(until_caught_up=True)
    async with KafkaClient(old.bootstrap) as client:  # as if it had been killed 200 records before
        offsets = GroupOffsets(client, group)
        committed = await offsets.fetch([partition])
        assert committed[partition].offset == 300
        await offsets.commit({partition: OffsetAndMetadata(100, committed[partition].metadata, -1)})
    await fill(old, topic, 50, first=300)
    again = Mirror(settings(old, new, group, topics=[topic]))
    await again.run(until_caught_up=True)
    assert (again.already_present, again.records, again.duplicated) == (200, 50, 0)
    assert await contents(new, topic) == await contents(old, topic)


async def test_lag_is_reported_until_it_is_zero(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, old)
    await fill(old, topic, 3000)
    mirror = Mirror(settings(old, new, group, topics=[topic], throttle_bytes_s=60_000.0))
    async with mirroring(mirror):
        await wait_until_async(lambda: sum(each.lag or 0 for each in mirror.progress()) > 0, 30, "a lag")
        await wait_until_async(
            lambda: mirror.records == 3000 and not any(each.lag for each in mirror.progress()), 60, "no lag"
        )
        async with serve_mirror(mirror, "127.0.0.1", 0, ()) as port:
            url = f"http://127.0.0.1:{port}"
            told = (await AsyncHTTPClient().fetch(f"{url}/metrics")).body.decode()
            assert f'allocator_mirror_records_total{{group="{group}",topic="{topic}"}} 3000.0\n' in told
            assert f'allocator_mirror_lag{{group="{group}",topic="{topic}"}} 0.0\n' in told
            assert f'allocator_mirror_up{{group="{group}"}} 1.0\n' in told
            assert (await AsyncHTTPClient().fetch(f"{url}/health/ready")).code == 200


async def test_zstd_is_mirrored_to_a_cluster_that_does_not_know_it(
    new: LocalCluster, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = new
    new = await asyncio.to_thread(cluster_factory, kafka="1.1.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, {"compression.type": "zstd", "retention.ms": "-1"}, old)
    for first, compression in enumerate(("zstd", "gzip", None)):
        await fill(old, topic, 300, first=300 * first, compression=compression)
    await Mirror(settings(old, new, group, topics=[topic], old_zookeeper=None)).run(until_caught_up=True)
    assert await contents(new, topic) == await contents(old, topic)
    async with KafkaClient(new.bootstrap) as client:
        await client.refresh([topic])
        assert await settings_of(client, [topic]) == {
            topic: {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
        }
    await Mirror(settings(old, new, group, topics=[topic], old_zookeeper=None)).run(until_caught_up=True)


async def test_a_batch_that_the_new_cluster_refuses_ends_it_with_the_reason(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, topic, 1, 1, {"max.message.bytes": "2000"})
    await asyncio.to_thread(produce, old.bootstrap, topic, [(b"k", bytes(5000), 0)], version="0.9.0.1")
    with pytest.raises(BrokerError, match=rf"refuses old offsets 0 to 0 of {topic}:0 .*MESSAGE_TOO_LARGE"):
        await Mirror(settings(old, new, group, topics=[topic])).run(until_caught_up=True)
