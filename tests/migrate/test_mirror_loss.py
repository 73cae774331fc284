"""Topics that lose records or are created again: a mirror reports and counts the loss, and never ignores it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from allocator.core.aio.clock import wall_ms
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.migrate.cutover import Cutover, CutoverFailed
from allocator.migrate.mirror import Mirror
from allocator.migrate.offsets import copy_offsets
from allocator.migrate.report import RecordsGone, SourceLoss, TopicsStopped
from allocator.migrate.storage import OffsetStore
from allocator.migrate.topics import TopicsDiffer
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing import LocalCluster, ProducedRecord, produce, wait_until_async
from allocator.testing.versions import NEWEST
from tests.migrate.cutting import World
from tests.migrate.mirroring import (
    Pair,
    commit,
    contents,
    cut,
    delete_records,
    fill,
    mirroring,
    numbered,
    transactions,
    values,
)

pytestmark = pytest.mark.deadline(180)

MakePair = Callable[..., Any]
long = pytest.mark.long


def set_config(cluster: LocalCluster, topic: str, config: dict[str, str]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, config)])
    finally:
        admin.close()


async def command(pair: Pair, *options: str) -> tuple[int, dict[str, Any], str]:
    """`allocator mirror --once --json`: its exit code, its last status, and the text of its error."""
    chosen = pair.settings
    arguments = [sys.executable, "-m", "allocator.cli", "mirror", chosen.old, chosen.new]
    arguments += ["--once", "--json", "--create", "--group", chosen.group, "--replication", "1"]
    arguments += ["--zookeeper", str(chosen.zookeeper), *options]
    arguments += [word for topic in chosen.topics for word in ("--topic", topic)]
    if chosen.old_zookeeper:
        arguments += ["--old-zookeeper", chosen.old_zookeeper]
    done = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, timeout=120)
    status, _, error = done.stdout.partition("\n{\n")
    message = json.loads("{\n" + error)["error"]["message"] if error else ""
    return done.returncode, json.loads(status.splitlines()[-1]), message


async def stopped(mirror: Mirror, topic: str) -> str:
    """Runs a mirror that stops this topic alone; returns the text of the error."""
    with pytest.raises(TopicsStopped) as caught:
        await mirror.run(until_caught_up=True)
    assert list(mirror.stopped) == [topic]
    return str(caught.value)


async def test_records_that_are_deleted_between_two_runs_are_counted_and_named(make_pair: MakePair) -> None:
    pair = await make_pair(old_zookeeper=None)
    await pair.fill(100)
    await pair.catch_up()
    await pair.fill(200, "more")
    await asyncio.to_thread(delete_records, pair.old.bootstrap, pair.topic, 250)
    code, status, error = await command(pair)
    assert code == 1
    assert status["gone"] == 150
    assert status["losses"] == [{"topic": pair.topic, "partition": 0, "first": 100, "last": 249}]
    assert f"{pair.topic}:0 offsets 100 to 249" in error
    assert await pair.copied() == numbered("value", 100) + numbered("more", range(150, 200))
    await pair.catch_up()  # no record was lost since
    await asyncio.to_thread(delete_records, pair.old.bootstrap, pair.topic, 300)
    await pair.fill(5, "last")
    await asyncio.to_thread(delete_records, pair.old.bootstrap, pair.topic, 303)
    code, status, error = await command(pair, "--accept-loss")
    assert (code, status["gone"], error) == (0, 3, "")


async def test_records_that_are_deleted_while_it_lags_are_counted_and_named(make_pair: MakePair) -> None:
    pair = await make_pair(old_zookeeper=None)
    rows = [(b"k", b"%d" % n + bytes(900_000), 0) for n in range(80)]  # twice the size of the read-ahead
    await asyncio.to_thread(produce, pair.old.bootstrap, pair.topic, rows, batch_records=1)
    mirror = pair.mirror(throttle_bytes_s=4e6)
    lagging = asyncio.ensure_future(mirror.run(until_caught_up=True))
    await wait_until_async(lambda: mirror.records > 0, 60, "it to start")
    await asyncio.to_thread(delete_records, pair.old.bootstrap, pair.topic, 75)
    with pytest.raises(RecordsGone, match=rf"{pair.topic}:0 offsets \d+ to 74"):
        await lagging
    found = [row[3] for row in (await contents(pair.new, pair.topic))[0]]
    (loss,) = mirror.losses
    assert loss == SourceLoss(pair.partition, len(found) - 5, 74)
    assert mirror.lost_at_source == loss.offsets > 0
    assert found == [rows[n][1] for n in (*range(loss.first), *range(75, 80))]


@pytest.mark.parametrize("version", [pytest.param("3.9.1", marks=long), "0.9.0.1"])  # topics have ids since 2.8
@pytest.mark.parametrize("choice", ["earliest", pytest.param("continue", marks=long)])
async def test_a_topic_that_was_recreated_while_no_mirror_ran_stops_until_a_setting_lets_it_continue(
    version: str, choice: str, make_pair: MakePair
) -> None:
    pair = await make_pair(version)
    other = await pair.add_topic()
    await pair.fill(100)
    await pair.fill(10, topic=other)
    await pair.catch_up()
    await pair.recreate(300)
    await pair.fill(10, topic=other)
    error = await stopped(pair.mirror(), pair.topic)
    assert f"topic '{pair.topic}' is not mirrored: the old topic was deleted and created again" in error
    assert f"--recreated {pair.topic}=earliest" in error
    assert len(await pair.copied(other)) == 20
    wanted = numbered("value", 100)
    assert await pair.copied() == wanted
    # "continue" is for a topic that another tool restored with its offsets
    wanted += numbered("recreated", range(0 if choice == "earliest" else 100, 300))
    setting = {"recreated": {pair.topic: choice}}
    for changed in (setting, setting, {}):  # the setting applies once: later runs ignore it
        await pair.catch_up(**changed)
        assert await pair.copied() == wanted
        await pair.fill(5, "late")
        wanted += numbered("late", 5)


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("0.9.0.1", marks=long)])
async def test_a_commit_while_a_topic_is_restarted_counts_nothing_as_done(version: str, make_pair: MakePair) -> None:
    """The group's offset belongs to the former new topic until the mirror has committed its new position."""
    pair = await make_pair(version)
    await pair.fill(100)
    await pair.catch_up()
    await pair.recreate_new()
    # commits all the time, while no record is acknowledged
    mirror = pair.mirror(restart=(pair.topic,), commit_interval_s=0.0005, throttle_bytes_s=1)
    async with mirroring(mirror):
        await wait_until_async(mirror.progress, 60, "it to start")
        assert [each.next for each in mirror.progress()] == [0]
    await pair.catch_up()
    assert await pair.copied() == numbered("value", 100)


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        ("3.9.1", "recreated"),
        ("0.9.0.1", "truncated"),
        pytest.param("3.9.1", "truncated", marks=long),
        pytest.param("0.9.0.1", "recreated", marks=long),
    ],
)
async def test_a_topic_that_loses_records_while_a_mirror_runs_stops_alone(
    version: str, fault: str, make_pair: MakePair
) -> None:
    pair = await make_pair(version)
    other = await pair.add_topic()
    for name in ("one", "two"):
        await pair.fill(100, name)
    mirrored = numbered("one", 100) + numbered("two", 100)
    mirror = pair.mirror()

    async def run() -> None:
        async with mirroring(mirror):
            await wait_until_async(lambda: mirror.records == 200, 60, "it to start")
            if fault == "recreated":
                await pair.recreate(300)
            else:
                await asyncio.to_thread(cut, pair.old, pair.topic, 100)
                await pair.fill(50, "recreated")
            await wait_until_async(lambda: pair.topic in mirror.stopped, 60, "it to notice")
            await pair.fill(250, "later")
            await pair.fill(10, topic=other)
            await wait_until_async(lambda: mirror.records_of[other] == 10, 60, "the other topic to be mirrored")

    reason = {"recreated": "", "truncated": ": the old topic .*lost its tail"}[fault]
    with pytest.raises(TopicsStopped, match=f"topic '{pair.topic}' is not mirrored{reason}"):
        await run()
    assert await pair.copied() == mirrored
    if fault == "recreated":
        await pair.catch_up(recreated={pair.topic: "earliest"})
        assert await pair.copied() == mirrored + numbered("recreated", 300) + numbered("later", 250)
        positions = await pair.translation()
        assert (positions.target(0), positions.target(299)) == (200, 499)


async def test_a_topic_that_is_known_by_content_alone_stops_when_its_records_are_others(make_pair: MakePair) -> None:
    """Brokers before 2.8, if the mirror does not know the ZooKeeper of the cluster."""
    pair = await make_pair("1.1.1", old_zookeeper=None)
    await pair.fill(100)
    await pair.catch_up()
    await pair.fill(10, "more")
    assert (await pair.catch_up()).records == 10  # equal records are no evidence of a new topic
    async with KafkaClient(pair.old.bootstrap) as client:  # a mirror that ran meanwhile has committed
        offsets = GroupOffsets(client, pair.group)
        committed = await offsets.fetch([pair.partition])
        await pair.recreate(300)
        await client.refresh([pair.topic])
        await offsets.commit(committed)
    with pytest.raises(TopicsStopped, match=r"its record at offset \d+ differs from the record that was mirrored"):
        await pair.catch_up()
    await pair.catch_up(recreated={pair.topic: "earliest"})
    await pair.catch_up()
    assert await pair.copied() == numbered("value", 100) + numbered("more", 10) + numbered("recreated", 300)


async def test_records_that_the_new_cluster_would_delete_at_once_stop_their_topic(
    cluster_factory: Any, make_pair: MakePair
) -> None:
    short = {"log.retention.ms": 3_600_000, "log.retention.check.interval.ms": 500}
    new = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", broker_config=short))
    pair = await make_pair(new=new, old_zookeeper=None)
    # the old cluster deletes the records of `other` soon, too
    other = await pair.add_topic(config={"retention.ms": "3600000"})
    await pair.fill(10, "young")
    rows = [ProducedRecord(b"k", b"old %d" % n, 0, wall_ms() - 7_200_000) for n in range(10)]
    for each in (pair.topic, other):
        await asyncio.to_thread(produce, pair.old.bootstrap, each, rows)
    error = await stopped(pair.mirror(), pair.topic)
    assert "offsets 10 to 19 of partition 0 are of 20" in error
    assert "retention.ms is 3600000 there. Set retention.ms of the new topic to -1" in error
    assert await pair.copied() == numbered("young", 10)
    accepting = await pair.catch_up(group=f"{pair.group}-2", topics=[pair.topic], append=True, accept_loss=True)
    assert (accepting.records, accepting.stopped) == (20, {})
    await asyncio.to_thread(new.delete_topic, pair.topic)
    await stopped(pair.mirror(restart=[pair.topic]), pair.topic)
    await asyncio.to_thread(set_config, new, pair.topic, {"retention.ms": "-1"})
    await pair.catch_up()
    assert await pair.copied() == numbered("young", 10) + numbered("old", 10)
    await asyncio.to_thread(set_config, new, pair.topic, {"retention.ms": "1000"})
    with pytest.raises(TopicsDiffer, match=r"retention.ms of .* is '1000' on the new cluster alone"):
        await pair.catch_up()


async def test_a_time_that_the_new_cluster_refuses_is_mirrored_once_the_new_topic_takes_it(make_pair: MakePair) -> None:
    """Some programs write microseconds, and Kafka 4 takes at most an hour ahead."""
    later = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    pair = await make_pair("3.9.1", "4.1.1")
    taken = await pair.add_topic(config=later)  # its setting is carried over
    rows = [ProducedRecord(b"k", b"value %d" % n, 0, wall_ms() * 1000) for n in range(5)]
    for each in (pair.topic, taken):
        await asyncio.to_thread(produce, pair.old.bootstrap, each, rows)
    error = await stopped(pair.mirror(), pair.topic)
    assert "Set message.timestamp.after.max.ms of the new topic to 9223372036854775807" in error
    assert (await pair.copied(), await pair.copied(taken)) == ([], numbered("value", 5))
    await asyncio.to_thread(set_config, pair.new, pair.topic, later)
    await pair.catch_up()
    await pair.assert_equal()


async def test_a_rollback_after_a_cut_behind_a_gap_skips_no_record(make_pair: MakePair) -> None:
    pair = await make_pair(old_zookeeper=None)
    await pair.fill(10, "one")
    await asyncio.to_thread(transactions, pair.old.bootstrap, pair.topic, (b"two", 5), (b"three", 5))  # with markers
    await pair.fill(20, "four")
    await pair.catch_up()
    await asyncio.to_thread(cut, pair.old, pair.topic, 10)
    await pair.fill(100, "other")
    await pair.catch_up(recreated={pair.topic: "continue"})
    known, old, new = (
        await pair.translation(),
        *[(await contents(each, pair.topic))[0] for each in (pair.old, pair.new)],
    )
    places = {row[3]: row[0] for row in old}
    for at in range(new[-1][0] + 1):
        unread = [places[row[3]] for row in new if row[0] >= at and row[3] in places]
        found = known.source(at)
        assert found is not None
        assert min(unread) >= found, at


@pytest.mark.parametrize(
    ("version", "known"),
    [("3.9.1", False), pytest.param("0.9.0.1", True, marks=long), pytest.param("1.1.1", False, marks=long)],
)
async def test_a_truncated_topic_stops_until_a_setting_lets_it_continue(
    version: str, known: bool, make_pair: MakePair
) -> None:
    """Detected by leader epochs, by the id and the records, and by the records alone."""
    pair = await make_pair(version, **({} if known else {"old_zookeeper": None}))
    for name in ("one", "two"):
        await pair.fill(100, name)
    mirrored = numbered("one", 100) + numbered("two", 100)
    await pair.catch_up()
    await pair.catch_up()  # reads nothing, and keeps the leader epoch of its position
    await asyncio.to_thread(cut, pair.old, pair.topic, 100)
    await pair.fill(50, "three")
    reason = rf"topic '{pair.topic}' is not mirrored: the old topic lost its tail: .*--recreated {pair.topic}=continue"
    with pytest.raises(TopicsStopped, match=reason):
        await pair.catch_up()
    await pair.fill(100, "more")
    error = await stopped(pair.mirror(), pair.topic)
    assert re.search(reason, error)
    assert "offset 100" in error
    assert await pair.copied() == mirrored
    again = await pair.catch_up(recreated={pair.topic: "continue"})
    assert (again.already_present, again.duplicated, again.lost_at_source) == (0, 0, 0)
    positions = await pair.translation()
    assert (positions.target(99), positions.target(100), positions.target(249)) == (99, 200, 349)
    await pair.fill(5, "late")
    await pair.catch_up()
    assert await pair.copied() == mirrored + numbered("three", 50) + numbered("more", 100) + numbered("late", 5)


async def test_neither_offsets_nor_groups_move_by_the_map_of_a_former_topic(
    make_pair: MakePair, group: str, tmp_path: Path
) -> None:
    pair = await make_pair(old_zookeeper=None)
    pair.group = f"{group}-mirror"
    await pair.fill(100)
    await pair.catch_up()
    await pair.recreate(300)
    for name, offset in ((group, 50), (pair.group, 100)):  # a running mirror renews its commit
        await commit(pair.old, name, {pair.partition: offset})
    source, target = OffsetStore(pair.old.bootstrap, group), OffsetStore(pair.new.bootstrap, group)
    (row,) = (await copy_offsets(source, target, by="map", mirror=pair.group)).rows
    assert row.problem.startswith("the old topic was created again: its id was ")
    plan = World(pair.old, pair.new, pair.topic, group, tmp_path).plan()
    ensemble = ZooKeeperClient(f"{pair.old.zookeeper}/{group}")
    await ensemble.connect()  # creates the chroot
    await ensemble.close()
    with pytest.raises(CutoverFailed, match=f"topic '{pair.topic}' of the old cluster was deleted and created again"):
        await Cutover(plan).run("check")


async def test_a_new_topic_that_loses_its_records_stops_until_it_is_mirrored_again(make_pair: MakePair) -> None:
    pair = await make_pair(old_zookeeper=None)
    topic, other = pair.topic, await pair.add_topic()
    await pair.fill(100)
    await pair.fill(10, topic=other)
    await pair.catch_up()
    await asyncio.to_thread(pair.new.delete_topic, topic)
    await pair.fill(10, topic=other)
    error = await stopped(pair.mirror(), topic)
    assert f"Start with --restart {topic}" in error
    assert len(await pair.copied(other)) == 20
    for _ in range(2):  # the setting applies once
        await pair.catch_up(restart=[topic])
        assert await pair.copied() == numbered("value", 100)
    assert (await pair.translation()).target(0) == 0
    # created again and filled beyond its former end
    await pair.recreate_new()
    await fill(pair.new, topic, 150, "foreign")
    with pytest.raises(TopicsStopped, match=f"its id was .* Start with --restart {topic}"):
        await pair.catch_up()
    reader = f"{pair.group}-reader"
    await commit(pair.old, reader, {pair.partition: 50})
    stores = OffsetStore(pair.old.bootstrap, reader), OffsetStore(pair.new.bootstrap, reader)
    (row,) = (await copy_offsets(*stores, by="map", mirror=pair.group)).rows
    assert f"start the mirror with --restart {topic}" in row.problem
    await pair.catch_up(restart=[topic])
    assert await pair.copied() == numbered("foreign", 150) + numbered("value", 100)
    # created again while a mirror runs
    running = pair.mirror()

    async def run() -> None:
        async with mirroring(running):
            await wait_until_async(lambda: len(running.progress()) == 2, 60, "it to start")
            await pair.recreate_new()
            await pair.fill(10, "late")
            await wait_until_async(lambda: topic in running.stopped, 60, "it to notice")
            await pair.fill(10, topic=other)
            await wait_until_async(lambda: running.records_of[other] == 10, 60, "the other topic to be mirrored")

    with pytest.raises(TopicsStopped, match=f"Start with --restart {topic}"):
        await run()
    assert running.duplicated == 0


@pytest.mark.parametrize(
    ("version", "partitions", "foreign"),
    [(NEWEST, 2, 0), *(pytest.param("1.1.1", each, 0, marks=long) for each in (1, 2)), ("1.1.1", 1, 150)],
)
async def test_a_new_topic_that_is_created_again_with_fewer_partitions_or_without_an_id_stops(
    version: str, partitions: int, foreign: int, make_pair: MakePair
) -> None:
    """Topics have no ids before 2.8: the mirror compares their ends and their last mirrored records."""
    pair = await make_pair(new=version, partitions=partitions, old_zookeeper=None)
    for partition in range(partitions):
        await pair.fill(100, partition=partition)
    await pair.catch_up()
    await pair.recreate_new()
    await fill(pair.new, pair.topic, foreign, "foreign")
    with pytest.raises(TopicsStopped, match=rf"the new topic was deleted and created again.* --restart {pair.topic}"):
        await pair.catch_up()
    assert await pair.copied() == numbered("foreign", foreign)
    await pair.catch_up(restart=[pair.topic])
    found = await contents(pair.new, pair.topic)
    assert values(found[0]) == numbered("foreign", foreign) + numbered("value", 100)
    assert all(values(found[partition]) == numbered("value", 100) for partition in range(1, partitions))
