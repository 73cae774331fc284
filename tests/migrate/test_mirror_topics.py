"""Which topics a mirror copies: it leaves out what belongs to one cluster, and a bad topic stops only itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from allocator.core.client import ErrorCode, for_code
from allocator.core.client.client import KafkaClient
from allocator.errors import ConfigError
from allocator.migrate import copying
from allocator.migrate.mirror import Mirror
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import Entry, Incarnation, OffsetMap, Route, Run, map_topic, pack, unpack
from allocator.migrate.offsets import copy_offsets
from allocator.migrate.report import TopicsStopped
from allocator.migrate.storage import OffsetStore
from allocator.migrate.topics import settings_of
from allocator.migrate.translate import ends_of
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import TopicPartition
from tests.migrate.mirroring import (
    Pair,
    bare,
    commit,
    committed,
    contents,
    fill,
    killed,
    mirroring,
    more,
    numbered,
    settings,
    started,
)

pytestmark = pytest.mark.deadline(180)
MakePair = Callable[..., Any]


async def caught_up(chosen: MirrorSettings, **changed: Any) -> Mirror:
    mirror = Mirror(replace(chosen, **changed))
    await mirror.run(until_caught_up=True)
    return mirror


def back(pair: Pair, **changed: Any) -> MirrorSettings:
    """A mirror of the same topic in the other direction."""
    options = {"topics": [pair.topic], "append": True, **changed}
    return settings(pair.new, pair.old, f"{pair.group}-back", **options)


async def test_a_wrong_way_back_creates_no_topic(make_pair: MakePair) -> None:
    pair = await make_pair()
    async with KafkaClient(pair.new.bootstrap) as client:
        before = await client.list_topics()
        with pytest.raises(ConfigError, match=r"correct back_of \(--back-of\)"):
            await pair.catch_up(back_of=f"{pair.group}-nobody")
        assert set(await client.list_topics()) - set(before) == set()


async def test_a_chain_of_mirrors_copies_no_map(
    make_pair: MakePair, cluster_factory: Callable[..., LocalCluster]
) -> None:
    """The map of the first mirror once went into that of the second, and a group skipped 300 records."""
    pair = await make_pair("1.1.1", "2.8.2")
    last = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1"))
    await asyncio.to_thread(pair.new.create_topic, pair.topic, 1)
    await fill(pair.new, pair.topic, 300, "own")
    await pair.fill(500)
    await pair.catch_up(append=True)
    other = f"{pair.topic}.orders"  # somebody else's: it has two partitions
    for topic, partitions in ((f"{pair.topic}.retry-10s", 1), (f"{pair.topic}.settled", 1), (other, 2)):
        config = {"cleanup.policy": "compact"} if topic.endswith("settled") else None
        await asyncio.to_thread(pair.new.create_topic, topic, partitions, 1, config)
    names = f"{pair.topic}|{pair.group}"
    second = settings(pair.new, last, pair.group, pattern=names, exclude=f"{pair.topic}x")
    mirror = await caught_up(second)
    assert mirror.left_out == {
        map_topic(pair.group): "the offset map of a mirror",
        f"{pair.topic}.retry-10s": "a retry topic",
        f"{pair.topic}.settled": f"the list of settled records of {pair.topic!r}",
    }
    partition = TopicPartition(pair.topic, 0)
    await commit(pair.new, pair.group, {partition: 100})
    stores = [OffsetStore(each.bootstrap, pair.group) for each in (pair.new, last)]
    (row,) = (await copy_offsets(*stores, by="map", mirror=pair.group, topics=[pair.topic])).rows
    assert (row.after, row.problem) == (100, "")
    assert await committed(last, pair.group, other) == {}
    async with KafkaClient(last.bootstrap) as client:
        assert other in await client.list_topics()


async def test_entries_of_other_clusters_are_ignored(kafka_cluster: LocalCluster) -> None:
    place, here = TopicPartition("orders", 0), Incarnation(0, "one")
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        own = client.metadata.cluster_id
        known = OffsetMap(client, client, "map")
        known.learn(Entry(place, here, [Run(0, 0)], Route(own, own)))
        known.learn(Entry(place, Incarnation(1, "two"), [Run(0, 300)], Route("another", own)))
        known.learn(Entry(place, here, [Run(10, 5)]))  # of an older version, which names no clusters
    assert (known.positions(place).runs, known.incarnation(place)) == ([Run(0, 0), Run(10, 5)], here)
    for route in (Route("b", "c"), Route(None, "c", ("a", "z"))):
        entry = Entry(place, here, [Run(0, 0)], route)
        assert unpack(*pack(entry)) == entry


async def test_records_do_not_go_round(make_pair: MakePair, cluster_factory: Callable[..., LocalCluster]) -> None:
    pair = await make_pair("2.8.2", "3.9.1")
    await pair.fill(5)
    await pair.catch_up()
    with pytest.raises(TopicsStopped, match=rf"would go round: .*{map_topic(pair.group)!r}.*Stop one of the mirrors"):
        await caught_up(back(pair))
    # through a third cluster
    third = await asyncio.to_thread(lambda: cluster_factory(kafka="1.1.1"))
    onward = settings(pair.new, third, f"{pair.group}-on", topics=[pair.topic])
    await caught_up(onward)
    home = settings(third, pair.old, f"{pair.group}-home", topics=[pair.topic], append=True)
    with pytest.raises(TopicsStopped, match="would go round"):
        await caught_up(home)
    assert await pair.copied() == numbered("value", 5)


async def test_mirrors_in_both_directions_that_start_together_stop(make_pair: MakePair) -> None:
    pair = await make_pair("2.8.2", "3.9.1")
    await asyncio.to_thread(pair.new.create_topic, pair.topic, 1)
    both = [pair.mirror(append=True), Mirror(back(pair))]
    running = [asyncio.ensure_future(each.run()) for each in both]
    await pair.fill(1)
    await wait_until_async(lambda: any(each.stops for each in both), 60, "one of them stops")
    for each in both:
        each.stop()
    errors = await asyncio.gather(*running, return_exceptions=True)
    assert any(isinstance(error, TopicsStopped) and "would go round" in str(error) for error in errors)


async def test_a_bad_topic_stops_only_itself(make_pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = await make_pair("2.8.2", "3.9.1", 2)
    name = pair.topic
    await asyncio.to_thread(pair.new.create_topic, name, 3)  # another number of partitions
    await asyncio.to_thread(pair.old.create_topic, f"{name}-good", 1, 1, {"segment.bytes": "100000"})
    for end in ("not-this", "full", "denied"):
        await asyncio.to_thread(pair.old.create_topic, f"{name}-{end}", 1)
    for end in ("good", "not-this", "full"):
        await fill(pair.old, f"{name}-{end}", 20)
    await asyncio.to_thread(pair.new.create_topic, f"{name}-full", 1)
    await fill(pair.new, f"{name}-full", 1)
    unfit = settings(
        pair.old, pair.new, pair.group, pattern=name, exclude=".*not-this", skip_settings=["segment.bytes"]
    )
    read = copying.deletes_after

    async def deletes_after(old: KafkaClient, new: KafkaClient, topic: str) -> int | None:
        if topic == f"{name}-denied":
            raise for_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic)
        return await read(old, new, topic)

    monkeypatch.setattr(copying, "deletes_after", deletes_after)
    mirror = Mirror(unfit)
    with pytest.raises(
        TopicsStopped, match=f"topic {name!r} is not mirrored: .*2 partitions on the old.*--exclude {name}"
    ):
        await mirror.run(until_caught_up=True)
    assert set(mirror.stopped) == {name, f"{name}-full", f"{name}-denied"}
    assert mirror.records_of == {f"{name}-good": 20}
    assert mirror.left_out == {f"{name}-not-this": "excluded"}
    async with KafkaClient(pair.new.bootstrap) as client:
        assert f"{name}-not-this" not in await client.list_topics()
        assert "segment.bytes" not in (await settings_of(client, [f"{name}-good"]))[f"{name}-good"]


@pytest.mark.parametrize("side", ["old", "new"])
@pytest.mark.parametrize("running", [True, False])
async def test_a_partition_without_a_leader_stops_no_other(
    make_pair: MakePair, cluster_factory: Callable[..., LocalCluster], side: str, running: bool
) -> None:
    quick = {"zookeeper.session.timeout.ms": 4000, "offsets.topic.replication.factor": 2}
    both: dict[str, Any] = {"old": "2.8.2", "new": "3.9.1"}
    cluster = both[side] = await asyncio.to_thread(
        lambda: cluster_factory(kafka=both[side], brokers=2, broker_config=quick)
    )
    pair = await make_pair(*both.values(), 2, old_zookeeper=None)
    if side == "new":
        await asyncio.to_thread(cluster.create_topic, pair.topic, 2)
        await asyncio.to_thread(cluster.create_topic, map_topic(pair.group), 1, 2, {"cleanup.policy": "compact"})
    dead = await asyncio.to_thread(cluster.leader, pair.topic, 0)
    assert dead is not None
    # the map of another mirror: one of them is on that broker
    for other in ("a", "b") if side == "old" else ():
        await asyncio.to_thread(cluster.create_topic, map_topic(f"{pair.group}-{other}"), 1)
    await fill(pair.old, pair.topic, 20, partition=None)
    await pair.catch_up()

    async def copied() -> int:
        async with KafkaClient(pair.new.bootstrap) as client:
            client.follow([pair.topic])
            return (await ends_of(client, [TopicPartition(pair.topic, 1)]))[TopicPartition(pair.topic, 1)].end

    before, mirror = await copied(), pair.mirror()
    async with contextlib.AsyncExitStack() as stack:
        if running:
            await stack.enter_async_context(mirroring(mirror))
            await wait_until_async(lambda: len(mirror.progress()) == 2, 60, "the mirror to begin")
        await asyncio.to_thread(dead.stop)
        if side == "new":
            await fill(pair.old, pair.topic, 20)  # they wait
        await fill(pair.old, pair.topic, 30, partition=1)
        if not running:
            await stack.enter_async_context(mirroring(mirror))
        await wait_until_async(lambda: more(copied, before + 29), 60, "the records of the other partition")
        shown = {each.partition.partition: (each.lag, each.waits) for each in mirror.progress()}
        assert shown[1] == (0, None)
        assert " no leader" in (shown[0][1] or "")
        assert shown[0][0] is None or side == "new"
        await asyncio.to_thread(dead.start)
        if side == "old":
            await fill(pair.old, pair.topic, 20)
        await wait_until_async(lambda: mirror.records == 50, 60, "the records of the partition whose leader is back")
    await pair.assert_equal()


async def test_topics_that_are_deleted_delay_no_commit(make_pair: MakePair, caplog: pytest.LogCaptureFixture) -> None:
    """Once, each commit of all partitions tried theirs again and again, and so did each rebalance."""
    pair = await make_pair("3.9.1", "4.1.1")
    deleted = [await pair.add_topic() for _ in range(3)]
    for topic in pair.topics:
        await pair.fill(10, topic=topic)
    mirror = pair.mirror(topics=[], pattern="|".join(pair.topics))

    async def reached(end: int) -> bool:
        return await committed(pair.old, pair.group, pair.topic) == {0: end}

    async with mirroring(mirror):
        await wait_until_async(lambda: mirror.records == 40, 60, "the records")
        for end, topic in zip((20, 30, 40), deleted):
            await asyncio.to_thread(pair.old.delete_topic, topic)
            await pair.fill(10)
            await wait_until_async(lambda end=end: reached(end), 60, "the commit")
    # the first commit after a deletion learns of it
    assert sum("commit failed" in each.message for each in caplog.records) <= len(deleted)


async def test_a_mirror_with_a_goal_copies_all_others_and_waits_for_a_partition_without_a_leader(
    make_pair: MakePair, cluster_factory: Callable[..., LocalCluster]
) -> None:
    """It is killed meanwhile, and a leader fails again while partitions wait."""
    quick = {"zookeeper.session.timeout.ms": 4000, "offsets.topic.replication.factor": 2}
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="2.8.2", brokers=2, broker_config=quick))
    pair = await make_pair(old, "3.9.1", 2, old_zookeeper=None)
    dead = await asyncio.to_thread(old.leader, pair.topic, 0)
    assert dead is not None
    await fill(old, pair.topic, 20, partition=None)
    await pair.catch_up()
    before = len((await contents(pair.new, pair.topic))[1])
    await fill(old, pair.topic, 20, partition=0)
    await fill(old, pair.topic, 30, partition=1)
    await asyncio.to_thread(dead.stop)

    async def copied() -> int:
        return len((await contents(pair.new, pair.topic)).get(1, []))

    for turn in range(3):
        with started(pair.settings, "--once") as process:
            await wait_until_async(
                lambda least=before + 29 + 10 * turn: more(copied, least), 180, "the other partition"
            )
            await fill(old, pair.topic, 10, partition=1)
            if turn == 2:
                await asyncio.to_thread(dead.start)
                assert await asyncio.to_thread(process.wait, 60) == 0
            killed(process)
    mirror = await pair.catch_up()
    assert (mirror.records, mirror.duplicated) == (0, 0)
    await pair.assert_equal(with_offsets=False)


async def test_a_second_target_with_the_same_group_is_told_so(
    make_pair: MakePair, cluster_factory: Callable[..., LocalCluster]
) -> None:
    pair = await make_pair("2.8.2", "3.9.1")
    await pair.fill(20)
    await pair.catch_up()
    second = await asyncio.to_thread(lambda: cluster_factory(kafka="1.1.1"))
    with pytest.raises(TopicsStopped, match=r"has mirrored it, .* start this one with another --group"):
        await caught_up(settings(pair.old, second, pair.group, topics=[pair.topic]))
    await caught_up(settings(pair.old, second, f"{pair.group}-2", topics=[pair.topic]))


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_mirrors_to_two_targets_never_share_a_group(
    membership: str, make_pair: MakePair, cluster_factory: Callable[..., LocalCluster]
) -> None:
    """Each cluster would get the records of some partitions. The topic is empty, so the positions tell little."""
    pair: Pair = await make_pair("2.8.2", "3.9.1", 4, membership=membership)
    third = await asyncio.to_thread(lambda: cluster_factory(kafka="1.1.1"))
    chosen = replace(pair.settings, topics=[pair.topic])
    targets = {pair.new: chosen, third: replace(chosen, new=third.bootstrap)}
    mirrors = {cluster: Mirror(chosen) for cluster, chosen in targets.items()}
    tasks = {asyncio.ensure_future(mirror.run()): cluster for cluster, mirror in mirrors.items()}
    try:
        (refused,), _ = await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises((TopicsStopped, ConfigError), match=r"start this one with another --group"):
            await refused
        other = targets[tasks.pop(refused)]
        ((running, cluster),) = tasks.items()
        mirror = mirrors[cluster]
        await wait_until_async(lambda: len(mirror.progress()) == 4, 60, "it to own all partitions")
        with pytest.raises(TopicsStopped, match=r"has mirrored it, .* start this one with another --group"):
            await Mirror(other).run()
        with pytest.raises(ConfigError, match=r"mirror to another cluster .* start this one with another --group"):
            await Mirror(replace(other, topics=[await pair.add_topic()])).run()
        await pair.fill(40, partition=None)
        await wait_until_async(lambda: mirror.records == 40, 60, "all records to come over")
        assert bare(await contents(cluster, pair.topic)) == bare(await contents(pair.old, pair.topic))
        assert not mirror.stopped
        mirror.stop()
        await running
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
