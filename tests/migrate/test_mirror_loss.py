"""Old topics that lose records, or are created again: reported, counted, and never ignored."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kafka
import pytest
from cutting import World
from kafka.admin import ConfigResource, ConfigResourceType
from mirroring import contents, cut, mirroring, settings, translation

from allocator.core.aio.clock import wall_ms
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.migrate.cutover import Cutover, CutoverFailed
from allocator.migrate.mirror import Mirror
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offsets import copy_offsets
from allocator.migrate.report import RecordsGone, SourceLoss, TopicsStopped
from allocator.migrate.storage import OffsetStore
from allocator.migrate.topics import TopicsDiffer
from allocator.testing import LocalCluster, ProducedRecord, produce, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.deadline(180)


@pytest.fixture(params=["3.9.1", "0.9.0.1"])
def old(request: pytest.FixtureRequest, cluster_factory: Any) -> LocalCluster:
    """With topic ids, and without."""
    return cluster_factory(kafka=request.param)  # type: ignore[no-any-return]


@pytest.fixture
def new(cluster_factory: Any) -> LocalCluster:
    return cluster_factory(kafka=NEWEST)  # type: ignore[no-any-return]


async def fill(cluster: LocalCluster, topic: str, count: int, name: str = "value", partition: int = 0) -> None:
    rows = [(b"k%d" % n, f"{name} {n}".encode(), partition) for n in range(count)]
    await asyncio.to_thread(produce, cluster.bootstrap, topic, rows, version=cluster.version)


def values(rows: list[Any]) -> list[str]:
    return [row[3].decode() for row in rows]


def numbered(name: str, *ranges: range) -> list[str]:
    return [f"{name} {n}" for some in ranges for n in some]


async def delete_records(cluster: LocalCluster, topic: str, before: int) -> None:
    def delete() -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            admin.delete_records({kafka.TopicPartition(topic, 0): before})
        finally:
            admin.close()

    await asyncio.to_thread(delete)


def set_config(cluster: LocalCluster, topic: str, config: dict[str, str]) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, config)])
    finally:
        admin.close()


async def recreate(cluster: LocalCluster, topic: str, count: int) -> None:
    await asyncio.to_thread(cluster.delete_topic, topic)
    await asyncio.to_thread(cluster.create_topic, topic, 1)
    await fill(cluster, topic, count, "anew")


async def command(chosen: MirrorSettings, *options: str) -> tuple[int, dict[str, Any], str]:
    """`allocator mirror --once --json`: its exit code, its last status, and the text of its error."""
    arguments = [
        sys.executable,
        "-m",
        "allocator.cli",
        "mirror",
        chosen.old,
        chosen.new,
        "--once",
        "--json",
        "--create",
    ]
    arguments += ["--group", chosen.group, "--replication", "1", "--zookeeper", str(chosen.zookeeper), *options]
    arguments += [word for topic in chosen.topics for word in ("--topic", topic)]
    if chosen.old_zookeeper:
        arguments += ["--old-zookeeper", chosen.old_zookeeper]
    done = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, timeout=120)
    status, _, error = done.stdout.partition("\n{\n")
    told = json.loads("{\n" + error)["error"]["message"] if error else ""
    return done.returncode, json.loads(status.splitlines()[-1]), told


async def test_records_that_are_deleted_between_two_runs_are_counted_and_named(
    new: LocalCluster, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic], old_zookeeper=None)
    await fill(old, topic, 100)
    await Mirror(chosen).run(until_caught_up=True)
    await fill(old, topic, 200, "more")
    await delete_records(old, topic, 250)
    code, status, error = await command(chosen)
    assert code == 1
    assert status["gone"] == 150
    assert status["losses"] == [{"topic": topic, "partition": 0, "first": 100, "last": 249}]
    assert f"{topic}:0 offsets 100 to 249" in error
    assert values((await contents(new, topic))[0]) == numbered("value", range(100)) + numbered("more", range(150, 200))
    await Mirror(chosen).run(until_caught_up=True)  # nothing more was lost since
    await delete_records(old, topic, 300)
    await fill(old, topic, 5, "last")
    await delete_records(old, topic, 303)
    code, status, error = await command(chosen, "--accept-loss")
    assert (code, status["gone"], error) == (0, 3, "")


async def test_records_that_are_deleted_while_it_lags_are_counted_and_named(
    new: LocalCluster, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    rows = [(b"k", b"%d" % n + bytes(900_000), 0) for n in range(80)]  # twice the size of the read-ahead
    await asyncio.to_thread(produce, old.bootstrap, topic, rows, version=old.version, batch_records=1)
    mirror = Mirror(settings(old, new, group, topics=[topic], old_zookeeper=None, throttle_bytes_s=4e6))
    lagging = asyncio.ensure_future(mirror.run(until_caught_up=True))
    await wait_until_async(lambda: mirror.records > 0, 60, "it to begin")
    await delete_records(old, topic, 75)
    with pytest.raises(RecordsGone, match=rf"{topic}:0 offsets \d+ to 74"):
        await lagging
    found = [row[3] for row in (await contents(new, topic))[0]]
    (loss,) = mirror.losses
    assert loss == SourceLoss(TopicPartition(topic, 0), len(found) - 5, 74)
    assert mirror.lost_at_source == loss.offsets > 0
    assert found == [rows[n][1] for n in (*range(loss.first), *range(75, 80))]


async def test_a_topic_that_was_recreated_while_no_mirror_ran_stops_until_a_setting_lets_it_continue(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    other = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic, other])
    await fill(old, topic, 100)
    await fill(old, other, 10)
    await Mirror(chosen).run(until_caught_up=True)
    await recreate(old, topic, 300)
    await fill(old, other, 10)
    code, status, error = await command(chosen)
    assert code == 1
    assert list(status["stopped"]) == [topic]
    assert f"topic '{topic}' is not mirrored: the old topic was deleted and created again" in error
    assert f"--recreated {topic}=earliest" in error
    assert len((await contents(new, other))[0]) == 20
    assert values((await contents(new, topic))[0]) == numbered("value", range(100))
    told = replace(chosen, recreated={topic: "earliest"})
    wanted = numbered("value", range(100)) + numbered("anew", range(300))
    for again in (told, told, chosen):  # the option applies once: later runs ignore it
        await Mirror(again).run(until_caught_up=True)
        assert values((await contents(new, topic))[0]) == wanted
        await fill(old, topic, 5, "late")
        wanted += numbered("late", range(5))


async def test_a_commit_while_a_topic_is_restarted_counts_nothing_as_done(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """The group's offset is that of the former new topic until the mirror has committed where it begins."""
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic])
    await fill(old, topic, 100)
    await Mirror(chosen).run(until_caught_up=True)
    await asyncio.to_thread(new.delete_topic, topic)
    await asyncio.to_thread(new.create_topic, topic, 1)
    # commits all the time, and acknowledges nothing
    mirror = Mirror(replace(chosen, restart=(topic,), commit_interval_s=0.0005, throttle_bytes_s=1))
    async with mirroring(mirror):
        await wait_until_async(mirror.progress, 60, "it to begin")
        assert [each.next for each in mirror.progress()] == [0]
    await Mirror(chosen).run(until_caught_up=True)
    assert values((await contents(new, topic))[0]) == numbered("value", range(100))


async def test_a_topic_that_is_recreated_while_a_mirror_runs_stops_alone(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    other = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic, other])
    await fill(old, topic, 100)
    mirror = Mirror(chosen)

    async def run() -> None:
        async with mirroring(mirror):
            await wait_until_async(lambda: mirror.records == 100, 60, "it to begin")
            await recreate(old, topic, 300)
            await wait_until_async(lambda: topic in mirror.stopped, 60, "it to notice")
            await fill(old, other, 10)
            await wait_until_async(lambda: mirror.records == 110, 60, "the other topic to go on")

    with pytest.raises(TopicsStopped, match=f"topic '{topic}' is not mirrored"):
        await run()
    assert values((await contents(new, topic))[0]) == numbered("value", range(100))
    again = Mirror(replace(chosen, recreated={topic: "earliest"}))
    await again.run(until_caught_up=True)
    assert values((await contents(new, topic))[0]) == numbered("value", range(100)) + numbered("anew", range(300))
    positions = await translation(again.settings, TopicPartition(topic, 0))
    assert (positions.target(0), positions.target(299)) == (100, 399)


@pytest.mark.long
async def test_a_recreated_topic_continues_at_the_stored_position_with_that_setting(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """For a topic that another tool restored with its offsets."""
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic])
    await fill(old, topic, 100)
    await Mirror(chosen).run(until_caught_up=True)
    await recreate(old, topic, 300)
    await Mirror(replace(chosen, recreated={topic: "continue"})).run(until_caught_up=True)
    wanted = numbered("value", range(100)) + numbered("anew", range(100, 300))
    assert values((await contents(new, topic))[0]) == wanted
    await Mirror(chosen).run(until_caught_up=True)
    assert values((await contents(new, topic))[0]) == wanted


async def test_a_topic_that_is_known_by_content_alone_stops_when_its_records_are_others(
    new: LocalCluster, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    """Brokers before 2.8, where the mirror does not know the ZooKeeper of the cluster."""
    old = await asyncio.to_thread(cluster_factory, kafka="1.1.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic], old_zookeeper=None)
    await fill(old, topic, 100)
    await Mirror(chosen).run(until_caught_up=True)
    await fill(old, topic, 10, "more")
    again = Mirror(chosen)
    await again.run(until_caught_up=True)  # equal records are no evidence of a new topic
    assert again.records == 10
    async with KafkaClient(old.bootstrap) as client:  # a mirror that ran while it was created again has committed
        offsets = GroupOffsets(client, group)
        committed = await offsets.fetch([TopicPartition(topic, 0)])
        await recreate(old, topic, 300)
        await client.refresh([topic])
        await offsets.commit(committed)
    with pytest.raises(TopicsStopped, match=r"its record at offset \d+ differs from the record that was mirrored"):
        await Mirror(chosen).run(until_caught_up=True)
    await Mirror(replace(chosen, recreated={topic: "earliest"})).run(until_caught_up=True)
    wanted = numbered("value", range(100)) + numbered("more", range(10)) + numbered("anew", range(300))
    assert values((await contents(new, topic))[0]) == wanted
    await Mirror(chosen).run(until_caught_up=True)
    assert len((await contents(new, topic))[0]) == 410


async def test_records_that_the_new_cluster_would_delete_at_once_stop_their_topic(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    short = {"log.retention.ms": 3_600_000, "log.retention.check.interval.ms": 500}
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", broker_config=short))
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    other = await asyncio.to_thread(topic_factory, 1, 1, {"retention.ms": "3600000"}, old)
    chosen = settings(old, new, group, topics=[topic, other], old_zookeeper=None)
    now = wall_ms()
    await fill(old, topic, 10, "young")
    rows = [ProducedRecord(b"k", b"old %d" % n, 0, now - 7_200_000) for n in range(10)]
    for each in (topic, other):  # the old cluster deletes those of `other` soon, too
        await asyncio.to_thread(produce, old.bootstrap, each, rows, version=old.version)
    code, status, error = await command(chosen)
    assert (code, list(status["stopped"])) == (1, [topic])
    assert "offsets 10 to 19 of partition 0 are of 20" in error
    assert "retention.ms is 3600000 there. Set retention.ms of the new topic to -1" in error
    assert values((await contents(new, topic))[0]) == numbered("young", range(10))
    accepting = Mirror(replace(chosen, group=f"{group}-2", topics=[topic], append=True, accept_loss=True))
    await accepting.run(until_caught_up=True)
    assert (accepting.records, accepting.stopped) == (20, {})
    await asyncio.to_thread(new.delete_topic, topic)
    code, status, error = await command(chosen, "--restart", topic)
    assert list(status["stopped"]) == [topic]
    await asyncio.to_thread(set_config, new, topic, {"retention.ms": "-1"})
    await Mirror(chosen).run(until_caught_up=True)
    assert values((await contents(new, topic))[0]) == numbered("young", range(10)) + numbered("old", range(10))
    await asyncio.to_thread(set_config, new, topic, {"retention.ms": "1000"})
    with pytest.raises(TopicsDiffer, match=r"retention.ms of .* is '1000' on the new cluster alone"):
        await Mirror(chosen).run(until_caught_up=True)


@pytest.mark.parametrize(
    ("version", "known"),
    [("3.9.1", False), ("0.9.0.1", True), pytest.param("1.1.1", False, marks=pytest.mark.long)],
)
async def test_a_truncated_topic_stops_until_a_setting_lets_it_continue(
    version: str,
    known: bool,
    new: LocalCluster,
    cluster_factory: Any,
    topic_factory: Callable[..., str],
    group: str,
) -> None:
    """Found by leader epochs, by the id and the records, and by the records alone."""
    old = await asyncio.to_thread(cluster_factory, kafka=version)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic], old_zookeeper=old.zookeeper if known else None)
    for n in range(2):
        await fill(old, topic, 100, f"value{n}")
    mirrored = numbered("value0", range(100)) + numbered("value1", range(100))
    await Mirror(chosen).run(until_caught_up=True)
    await Mirror(chosen).run(until_caught_up=True)  # reads nothing, and keeps the leader epoch of its position
    await asyncio.to_thread(cut, old, topic, 100)
    await fill(old, topic, 50, "anew")
    told = rf"topic '{topic}' is not mirrored: the old topic lost its tail: .*--recreated {topic}=continue"
    with pytest.raises(TopicsStopped, match=told):
        await Mirror(chosen).run(until_caught_up=True)
    await fill(old, topic, 100, "more")
    code, status, error = await command(chosen)
    assert (code, list(status["stopped"])) == (1, [topic])
    assert re.search(told, error)
    assert "offset 100" in error
    assert values((await contents(new, topic))[0]) == mirrored
    again = Mirror(replace(chosen, recreated={topic: "continue"}))
    await again.run(until_caught_up=True)
    wanted = mirrored + numbered("anew", range(50)) + numbered("more", range(100))
    assert values((await contents(new, topic))[0]) == wanted
    assert (again.already_present, again.duplicated, again.lost_at_source) == (0, 0, 0)
    positions = await translation(again.settings, TopicPartition(topic, 0))
    assert (positions.target(99), positions.target(100), positions.target(249)) == (99, 200, 349)
    await fill(old, topic, 5, "late")
    await Mirror(chosen).run(until_caught_up=True)
    assert values((await contents(new, topic))[0]) == wanted + numbered("late", range(5))


async def test_a_topic_that_is_truncated_while_a_mirror_runs_stops_alone(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    other = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic, other])
    await fill(old, topic, 100)
    await fill(old, topic, 100)
    mirror = Mirror(chosen)

    async def run() -> None:
        async with mirroring(mirror):
            await wait_until_async(lambda: mirror.records == 200, 60, "it to begin")
            await asyncio.to_thread(cut, old, topic, 100)
            await fill(old, topic, 50, "anew")
            await wait_until_async(lambda: topic in mirror.stopped, 60, "it to notice")
            await fill(old, topic, 250, "anew")
            await fill(old, other, 10)
            await wait_until_async(lambda: mirror.records_of[other] == 10, 60, "the other topic to go on")

    with pytest.raises(TopicsStopped, match=rf"topic '{topic}' is not mirrored: the old topic .*lost its tail"):
        await run()
    assert values((await contents(new, topic))[0]) == numbered("value", range(100)) * 2


async def test_neither_offsets_nor_groups_move_by_the_map_of_a_former_topic(
    new: LocalCluster, cluster_factory: Any, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    mirror = f"{group}-mirror"
    chosen = settings(old, new, mirror, topics=[topic], old_zookeeper=None)
    await fill(old, topic, 100)
    await Mirror(chosen).run(until_caught_up=True)
    await recreate(old, topic, 300)
    partition = TopicPartition(topic, 0)
    async with KafkaClient(old.bootstrap) as client:  # a running mirror renews its commit
        await client.refresh([topic])
        for name, offset in ((group, 50), (mirror, 100)):
            await GroupOffsets(client, name).commit({partition: OffsetAndMetadata(offset, "", -1)})
    source, target = OffsetStore(old.bootstrap, group), OffsetStore(new.bootstrap, group)
    (row,) = (await copy_offsets(source, target, by="map", mirror=mirror)).rows
    assert row.problem.startswith("the old topic was created again: its id was ")
    plan = World(old, new, topic, group, tmp_path).plan()
    ensemble = ZooKeeperClient(f"{old.zookeeper}/{group}")
    await ensemble.connect()  # makes the chroot
    await ensemble.close()
    with pytest.raises(CutoverFailed, match=f"topic '{topic}' of the old cluster was deleted and created again"):
        await Cutover(plan).run("check")


async def test_a_new_topic_that_loses_its_records_stops_until_it_is_mirrored_again(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    new = await asyncio.to_thread(cluster_factory, kafka=NEWEST)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    other = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic, other], old_zookeeper=None)
    await fill(old, topic, 100)
    await fill(old, other, 10)
    await Mirror(chosen).run(until_caught_up=True)
    await asyncio.to_thread(new.delete_topic, topic)
    await fill(old, other, 10)
    code, status, error = await command(chosen)
    assert code == 1
    assert list(status["stopped"]) == [topic]
    assert f"Start with --restart {topic}" in error
    assert len((await contents(new, other))[0]) == 20
    again = Mirror(replace(chosen, restart=[topic]))
    await again.run(until_caught_up=True)
    assert values((await contents(new, topic))[0]) == numbered("value", range(100))
    assert (await translation(again.settings, TopicPartition(topic, 0))).target(0) == 0
    await Mirror(replace(chosen, restart=[topic])).run(until_caught_up=True)  # it applies once
    assert len((await contents(new, topic))[0]) == 100
    # created again and filled beyond its former end
    await asyncio.to_thread(new.delete_topic, topic)
    await asyncio.to_thread(new.create_topic, topic, 1)
    await fill(new, topic, 150, "foreign")
    with pytest.raises(TopicsStopped, match=f"its id was .* Start with --restart {topic}"):
        await Mirror(chosen).run(until_caught_up=True)
    async with KafkaClient(old.bootstrap) as client:
        await client.refresh([topic])
        await GroupOffsets(client, f"{group}-reader").commit({TopicPartition(topic, 0): OffsetAndMetadata(50, "", -1)})
    stores = OffsetStore(old.bootstrap, f"{group}-reader"), OffsetStore(new.bootstrap, f"{group}-reader")
    (row,) = (await copy_offsets(*stores, by="map", mirror=group)).rows
    assert f"start the mirror with --restart {topic}" in row.problem
    await Mirror(replace(chosen, restart=[topic])).run(until_caught_up=True)
    assert values((await contents(new, topic))[0]) == numbered("foreign", range(150)) + numbered("value", range(100))
    # while it runs
    running = Mirror(chosen)

    async def run() -> None:
        async with mirroring(running):
            await wait_until_async(lambda: len(running.progress()) == 2, 60, "it to begin")
            await asyncio.to_thread(new.delete_topic, topic)
            await asyncio.to_thread(new.create_topic, topic, 1)
            await fill(old, topic, 10, "late")
            await wait_until_async(lambda: topic in running.stopped, 60, "it to notice")
            await fill(old, other, 10)
            await wait_until_async(lambda: running.records_of[other] == 10, 60, "the other topic to go on")

    with pytest.raises(TopicsStopped, match=f"Start with --restart {topic}"):
        await run()
    assert running.duplicated == 0


@pytest.mark.parametrize("version", [NEWEST, "1.1.1"])
async def test_a_new_topic_that_comes_back_with_fewer_partitions_stops(
    version: str, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    new = await asyncio.to_thread(cluster_factory, kafka=version)
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, old)
    chosen = settings(old, new, group, topics=[topic], old_zookeeper=None)
    for partition in range(2):
        await fill(old, topic, 50, partition=partition)
    await Mirror(chosen).run(until_caught_up=True)
    await asyncio.to_thread(new.delete_topic, topic)
    await asyncio.to_thread(new.create_topic, topic, 1)
    with pytest.raises(TopicsStopped, match=rf"the new topic was deleted and created again.* --restart {topic}"):
        await Mirror(chosen).run(until_caught_up=True)
    assert not any((await contents(new, topic)).values())
    await Mirror(replace(chosen, restart=[topic])).run(until_caught_up=True)
    found = await contents(new, topic)
    assert [values(found[partition]) for partition in range(2)] == [numbered("value", range(50))] * 2


@pytest.mark.parametrize("count", [0, 150])
async def test_a_new_topic_without_an_id_that_loses_its_records_stops(
    count: int, cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    """Before 2.8: its end, or its last mirrored records."""
    old = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    new = await asyncio.to_thread(cluster_factory, kafka="1.1.1")
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    chosen = settings(old, new, group, topics=[topic], old_zookeeper=None)
    await fill(old, topic, 100)
    await Mirror(chosen).run(until_caught_up=True)
    await asyncio.to_thread(new.delete_topic, topic)
    await asyncio.to_thread(new.create_topic, topic, 1)
    if count:
        await fill(new, topic, count, "foreign")
    with pytest.raises(TopicsStopped, match=rf"the new topic was deleted and created again.* --restart {topic}"):
        await Mirror(chosen).run(until_caught_up=True)
    await Mirror(replace(chosen, restart=[topic])).run(until_caught_up=True)
    wanted = numbered("foreign", range(count)) + numbered("value", range(100))
    assert values((await contents(new, topic))[0]) == wanted
