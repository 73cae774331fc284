"""Copies offsets between real stores: dry run, refusal with live members, and restore."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import Consumer
from allocator.cli.commands import main
from allocator.core.aio import wall_ms
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import BrokerError, ConfigError
from allocator.migrate.offset_map import BadOffsetMap, map_topic
from allocator.migrate.offsets import CopyRefused, copy_offsets, restore_offsets
from allocator.migrate.storage import OffsetStore
from allocator.operate import MembersAlive
from allocator.protocols.zookeeper.client.client import NoChroot
from allocator.testing import LocalCluster, ProducedRecord, produce
from allocator.testing.topics import zookeeper_client
from allocator.types import TopicPartition
from tests.joining import joined
from tests.migrate.mirroring import commit, committed, delete_records, transactions
from tests.producer.test_transactions import Two, held_requests

pytestmark = pytest.mark.deadline(120)


@pytest.fixture
def old(cluster_factory: Any) -> LocalCluster:
    return cluster_factory(kafka="0.9.0.1")  # type: ignore[no-any-return]


@pytest.fixture
def new(kafka_cluster: LocalCluster) -> LocalCluster:
    return kafka_cluster


async def filled(cluster: LocalCluster, topic: str, count: int, start: int = 0, time: int | None = None) -> None:
    numbers = range(start, start + count)
    rows = [ProducedRecord(None, b"v%d" % n, 0, None if time is None else time + n, ()) for n in numbers]
    await asyncio.to_thread(produce, cluster.bootstrap, topic, rows, version=cluster.version)


async def test_offsets_of_kiel_are_copied_from_zookeeper_to_kafka_and_back(
    old: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, old)
    await filled(old, topic, 50)
    await commit(old, group, {TopicPartition(topic, 0): 40, TopicPartition(topic, 1): 0}, in_zookeeper=True)
    await commit(old, group, {TopicPartition(topic, 0): 7})
    source = OffsetStore(old.bootstrap, group, "zookeeper", (old.zookeeper,))
    target = OffsetStore(old.bootstrap, group, "kafka", (old.zookeeper,))
    with pytest.raises(NoChroot, match="Check the chroot"):  # members there would not be visible
        await copy_offsets(source, replace(target, zookeepers=(f"{old.zookeeper}/typo-{group}",)))
    plan = await copy_offsets(source, target)
    assert [(row.partition.partition, row.source, row.before, row.after, row.lag) for row in plan.rows] == [
        (0, 40, 7, 40, 10),
        (1, 0, None, 0, 0),
    ]
    assert await committed(old, group, topic) == {0: 7}
    file = tmp_path / "before.json"
    await copy_offsets(source, target, file)
    assert await committed(old, group, topic) == {0: 40, 1: 0}
    with pytest.raises(ConfigError, match="may be the only copy of former data"):
        await copy_offsets(source, target, file)
    done = await restore_offsets(file)
    assert await committed(old, group, topic) == {0: 7, 1: 0}
    assert done.left == (TopicPartition(topic, 1),)  # 0.9 cannot delete an offset
    with pytest.raises(CopyRefused, match=f"{topic}:0: it would go back from 40 to 7"):
        await copy_offsets(target, source, tmp_path / "another.json")
    assert await committed(old, group, topic, "zookeeper") == {0: 40, 1: 0}
    back = await copy_offsets(target, source, tmp_path / "another.json", backward=True)
    assert back.rows[0].before == 40
    assert await committed(old, group, topic, "zookeeper") == {0: 7, 1: 0}


async def test_a_copy_is_refused_while_the_group_has_a_member_of_any_kind(
    old: LocalCluster, new: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, new)
    await filled(new, topic, 10)
    await commit(new, group, {TopicPartition(topic, 0): 5})
    other = f"{group}-heir"
    chroot = f"{new.zookeeper}/{group}"
    with zookeeper_client(new.zookeeper) as client:
        client.ensure_path(f"/{group}")
    source, target = (OffsetStore(new.bootstrap, name, "kafka", (chroot,)) for name in (group, other))
    file = tmp_path / "before.json"
    for membership, name in (("zookeeper", group), ("kafka", other)):
        options = {"zookeeper": chroot} if membership == "zookeeper" else {}
        options |= {"brokers": new.bootstrap, "group": name, "membership": membership, "auto_commit_interval_s": None}
        async with Consumer(topic, **joined(**options)) as member:
            while not member.assignment():
                await member.getbatch(0.1)
            with pytest.raises(MembersAlive, match=f"group '{name}' has members: allocator-"):
                await copy_offsets(source, target, file)
            assert len((await copy_offsets(source, target)).alive) == 1
    for path, kind in (
        (f"/{group}/kiel/groups/{group}/members/host:1", "kiel"),
        (f"/{group}/consumers/{other}/ids/a", "high-level"),
    ):
        with zookeeper_client(new.zookeeper) as client:
            client.create(path, makepath=True)
        with pytest.raises(MembersAlive, match=kind):
            await copy_offsets(source, target, file)
        with zookeeper_client(new.zookeeper) as client:
            client.delete(path)
    assert not await asyncio.to_thread(file.exists)
    assert await committed(new, other, topic) == {}
    await copy_offsets(source, target, file)
    assert await committed(new, other, topic) == {0: 5}
    assert (await restore_offsets(file)).forgotten == (TopicPartition(topic, 0),)
    assert await committed(new, other, topic) == {}


async def test_offsets_of_a_mirrored_topic_are_translated_by_map_and_by_content(
    make_pair: Any, group: str, tmp_path: Path
) -> None:
    pair = await make_pair("0.9.0.1", "3.9.1")
    pair.group = mirror = f"{group}-mirror"
    await asyncio.to_thread(pair.new.create_topic, pair.topic, 1)
    await filled(pair.new, pair.topic, 30, start=1000)
    await filled(pair.old, pair.topic, 200)
    await pair.catch_up(append=True)
    source, target = OffsetStore(pair.old.bootstrap, group), OffsetStore(pair.new.bootstrap, group)
    for offset in (0, 120, 200):
        await commit(pair.old, group, {pair.partition: offset})
        for by in ("map", "content"):
            (row,) = (await copy_offsets(source, target, by=by, mirror=mirror)).rows
            assert (row.after, row.problem) == (offset + 30, ""), by
    for offset in (200, 120):
        await commit(pair.old, group, {pair.partition: offset})
        (row,) = (await copy_offsets(source, target, by="timestamp")).rows
        assert "have no timestamp" in row.problem  # the new log could have newer records
    await filled(pair.old, pair.topic, 10)
    await commit(pair.old, group, {pair.partition: 205})
    for by, problem in (
        ("map", "mirrored only up to 200; wait for the mirror"),
        ("content", "the new cluster does not have the"),
    ):
        with pytest.raises(CopyRefused, match=problem):
            await copy_offsets(source, target, tmp_path / "f.json", by=by, mirror=mirror)
    assert not await asyncio.to_thread((tmp_path / "f.json").exists)


async def test_a_copy_by_a_map_that_begins_in_the_middle_skips_no_record(
    make_pair: Any, group: str, tmp_path: Path
) -> None:
    """It was deleted, and `--append` began another one behind the records that are there."""
    pair = await make_pair("2.8.2", "3.9.1")
    pair.group = mirror = f"{group}-mirror"
    await filled(pair.old, pair.topic, 100)
    await pair.catch_up()
    await asyncio.to_thread(pair.new.delete_topic, map_topic(mirror))
    await filled(pair.old, pair.topic, 20)
    await pair.catch_up(append=True)
    stores = OffsetStore(pair.old.bootstrap, group), OffsetStore(pair.new.bootstrap, group)
    await commit(pair.old, group, {pair.partition: 110})
    (row,) = (await copy_offsets(*stores, by="map", mirror=mirror)).rows
    assert (row.after, row.problem) == (110, "")
    await commit(pair.old, group, {pair.partition: 40})
    for begins_at in (0, 100):  # the new cluster still has the records that the old one deletes
        await asyncio.to_thread(delete_records, pair.old.bootstrap, pair.topic, begins_at)
        refused = f"{pair.topic}:0: before the first offset in the map, 100; use timestamp or"
        with pytest.raises(CopyRefused, match=refused):
            await copy_offsets(*stores, tmp_path / "before.json", by="map", mirror=mirror)
    assert await committed(pair.new, group, pair.topic) == {}


async def test_a_copy_waits_for_the_end_of_the_groups_last_transaction(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member has left, and its last transaction is committed a moment later."""
    topic = await asyncio.to_thread(topic_factory, 1)
    await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"%d" % n, 0) for n in range(100)])
    two, source = Two(kafka_cluster, topic, topic, group), OffsetStore(kafka_cluster.bootstrap, group)
    async with two.owner() as (_, consumer):
        await consumer.commit({(topic, 0): 50})
        async with held_requests(monkeypatch, "EndTxn") as (waits, goes_on):
            committing = asyncio.ensure_future(consumer.commit({(topic, 0): 100}))
            await asyncio.wait_for(waits.wait(), 30)
            copying = asyncio.ensure_future(copy_offsets(source, replace(source, group=f"{group}-2"), by="offset"))
            await asyncio.wait({copying}, timeout=2)  # without the wait, it has ended
            goes_on.set()
            await committing
            (row,) = (await copying).rows
    assert row.source == 100


async def test_records_of_other_programs_in_the_map_stop_no_mirror_and_no_copy(make_pair: Any, group: str) -> None:
    pair = await make_pair("2.8.2", "3.9.1")
    pair.group = mirror = f"{group}-mirror"
    await filled(pair.old, pair.topic, 20)
    await pair.catch_up()
    await commit(pair.old, group, {pair.partition: 20})
    source, target = OffsetStore(pair.old.bootstrap, group), OffsetStore(pair.new.bootstrap, group)

    async def wrote(key: bytes, value: bytes | None) -> None:
        await asyncio.to_thread(pair.new.produce, f"{mirror}.offset-map", [(key, value, 0)])

    async def after() -> int | None:
        (row,) = (await copy_offsets(source, target, by="map", mirror=mirror)).rows
        return row.after

    for key in (b"junk", b"[1]", b'{"other": 1}', b"\xff"):
        await wrote(key, b"not json")
    assert await after() == 20
    await filled(pair.old, pair.topic, 10)
    await pair.catch_up()  # another process of the mirror
    await commit(pair.old, group, {pair.partition: 30})
    assert await after() == 30
    key = json.dumps({"topic": pair.topic, "partition": 0, "from": "x"}).encode()
    await wrote(key, b"not json")
    with pytest.raises(BadOffsetMap, match=f"{mirror}.offset-map:0 at offset .* without a value"):
        await after()
    await wrote(key, None)
    assert await after() == 30


async def test_a_copy_by_time_of_a_group_that_has_read_all_skips_no_newer_record(
    cluster_factory: Any, new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="1.1.1"))
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, old)
    await asyncio.to_thread(new.create_topic, topic, 2)
    for cluster in (old, new):
        await filled(cluster, topic, 10, time=1_600_000_000_000)
    await filled(new, topic, 5, time=1_600_000_001_000)
    read, never = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await commit(old, group, {read: 10, never: 0})
    stores = OffsetStore(old.bootstrap, group), OffsetStore(new.bootstrap, group)
    rows = (await copy_offsets(*stores, by="timestamp")).rows
    found = {row.partition: (row.after, row.lag, row.note) for row in rows}
    assert found[read] == (9, 6, "at 1600000000009 ms; the group had read all")
    assert found[never] == (0, 0, "the old log never had a record")


async def test_a_copy_skips_nothing_beside_an_aborted_record(
    new: LocalCluster, topic_factory: Callable[..., str], cluster_factory: Any, group: str
) -> None:
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="1.1.1"))
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, topic, 1)
    partition, now = TopicPartition(topic, 0), wall_ms()
    for cluster in (old, new):
        await filled(cluster, topic, 10, time=now - 60_000)
        if cluster is old:
            await asyncio.to_thread(transactions, old.bootstrap, topic, (b"aborted", 1))
        await filled(cluster, topic, 10, start=10, time=now - 60_000)
        await filled(cluster, topic, 5, start=20, time=now + 60_000)  # later than the aborted record
    stores = OffsetStore(old.bootstrap, group), OffsetStore(new.bootstrap, group)
    await commit(old, group, {partition: 10})
    for by in ("timestamp", "content"):
        (row,) = (await copy_offsets(*stores, by=by)).rows
        assert (row.after, row.problem) == (10, ""), by
    await asyncio.to_thread(transactions, old.bootstrap, topic, (b"aborted", 1))
    await commit(old, group, {partition: 29})  # the end of the old log
    (row,) = (await copy_offsets(*stores, by="timestamp")).rows
    assert row.after == 24  # the last record that both have, again


def test_the_command_shows_its_plan_and_changes_offsets_only_with_execute(
    new: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = topic_factory(1, 1, None, new)
    asyncio.run(filled(new, topic, 10))
    asyncio.run(commit(new, group, {TopicPartition(topic, 0): 4}))
    file = tmp_path / "before.json"
    command = ["offsets", "copy", group, f"{group}-2", "--brokers", new.bootstrap, "--restore-file", str(file)]
    run = CliRunner()
    for options in ([], ["--zookeeper", "none", "--storage", "zookeeper"]):
        unseen = run.invoke(main, [*command, *options])
        assert (unseen.exit_code, "may have members in ZooKeeper" in unseen.stderr) == (2, True)
    command += ["--zookeeper", new.zookeeper]
    shown = run.invoke(main, command)
    assert (shown.exit_code, "nothing was changed" in shown.output) == (0, True)
    assert not file.exists()
    done = run.invoke(main, [*command, "--execute", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["partitions"][0]["after"] == 4
    assert asyncio.run(committed(new, f"{group}-2", topic)) == {0: 4}
    back = run.invoke(main, ["offsets", "restore", str(file)])
    assert (back.exit_code, "1 deleted" in back.output) == (0, True)
    assert asyncio.run(committed(new, f"{group}-2", topic)) == {}
    wrong = run.invoke(main, [*command, "--topic", "no-such-topic"])
    assert (wrong.exit_code, "no topic 'no-such-topic'" in wrong.stderr) == (1, True)


def test_the_command_copies_the_partitions_that_it_names_and_no_offset_goes_back_unless_asked(
    new: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic, heir, run = topic_factory(4, 1, None, new), f"{group}-2", CliRunner()
    new.produce(topic, [(None, b"", n) for n in range(4)] * 9)
    asyncio.run(commit(new, group, {TopicPartition(topic, n): 4 for n in range(3)}))
    asyncio.run(commit(new, heir, {TopicPartition(topic, 0): 8}))
    command = ["offsets", "copy", group, heir, "--brokers", new.bootstrap, "--zookeeper", new.zookeeper]

    def execute(name: str, *options: str) -> tuple[int, str, dict[int, int]]:
        file = ["--execute", "--restore-file", str(tmp_path / name)]
        done = run.invoke(main, [*command, *options, *file])
        return done.exit_code, " ".join(done.stderr.split()), asyncio.run(committed(new, heir, topic))

    assert "would be refused" in run.invoke(main, command).output
    code, error, now = execute("all")
    assert (code, now) == (1, {0: 8})
    assert f"{topic}:0: it would go back from 8 to 4 (--backward)" in error
    code, error, now = execute("none", "--topic", f"{topic}:1,3")
    assert (code, now) == (1, {0: 8})
    assert f"has no committed offset of {topic}:3" in error
    assert execute("one", "--topic", f"{topic}:2") == (0, "", {0: 8, 2: 4})
    assert execute("back", "--topic", f"{topic}:0-1", "--backward") == (0, "", {0: 4, 1: 4, 2: 4})
    code, error, _ = execute("wrong", "--topic", f"{topic}:x")
    assert (code, f"{topic}:x' does not name partitions" in error) == (2, True)


def test_a_member_under_the_root_of_the_environment_prevents_a_copy(
    new: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(1, 1, None, new)
    new.produce(topic, [b""] * 9)
    asyncio.run(commit(new, group, {TopicPartition(topic, 0): 4}))
    command = ["offsets", "copy", group, f"{group}-2", "--brokers", new.bootstrap, "--zookeeper", new.zookeeper]
    with zookeeper_client(new.zookeeper) as client:
        for kind in ("members", "claims"):
            path = f"/mine-{group}/{group}/{kind}/m-0000000000000001-0000000001"
            client.create(path, ephemeral=True, makepath=True)
        shown = CliRunner().invoke(main, command, env={"ALLOCATOR_ZOOKEEPER_ROOT": f"/mine-{group}"})
    assert "would be refused while there are members" in shown.output


def test_the_environment_of_the_source_does_not_apply_to_the_target(
    new: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic, target = topic_factory(1, 1, None, new), f"{group}-2"
    asyncio.run(filled(new, topic, 10))
    asyncio.run(commit(new, group, {TopicPartition(topic, 0): 4}))
    config = tmp_path / "target.toml"
    config.write_text(
        f'[kafka]\nbrokers = ["127.0.0.1:1"]\n[group]\nname = "{target}"\ntopics = ["{topic}"]\n'
        '[zookeeper]\nhosts = "127.0.0.1:1"\n[handler]\ntarget = "a:b"\n'
    )
    environment = {
        "ALLOCATOR_KAFKA_BROKERS": new.bootstrap,
        "ALLOCATOR_KAFKA_SECURITY_PROTOCOL": "PLAINTEXT",
        "ALLOCATOR_ZOOKEEPER_HOSTS": new.zookeeper,
    }
    command = ["offsets", "copy", group, target, "--to-config", str(config), "--restore-file", str(tmp_path / "x.json")]
    done = CliRunner().invoke(main, [*command, "--execute"], env=environment)
    assert done.exit_code == 1
    assert "127.0.0.1:1" in done.stderr
    assert asyncio.run(committed(new, target, topic)) == {}


async def test_offsets_of_a_recreated_topic_are_neither_copied_nor_restored(
    new: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, new)
    partition, heir, file = TopicPartition(topic, 0), f"{group}-heir", tmp_path / "before.json"
    await filled(new, topic, 50)
    await commit(new, group, {partition: 40})
    await commit(new, heir, {partition: 7})
    source, target = OffsetStore(new.bootstrap, group), OffsetStore(new.bootstrap, heir)
    await copy_offsets(source, target, file)
    async with KafkaClient(new.bootstrap) as client:
        stored = await GroupOffsets(client, heir).fetch([partition])  # the commit has the topic's id
    await asyncio.to_thread(new.delete_topic, topic)
    await asyncio.to_thread(new.create_topic, topic, 1)
    await filled(new, topic, 60)
    with pytest.raises(CopyRefused, match=f"{topic} of group .* was deleted and created again since the copy"):
        await restore_offsets(file)
    async with KafkaClient(new.bootstrap) as client:  # brokers forget it with the topic; a member renews it
        await GroupOffsets(client, heir).commit(stored)
    await commit(new, group, {partition: 70})
    for by in ("offset", "timestamp", "content"):
        (row,) = (await copy_offsets(target, source, by=by)).rows
        assert row.problem == "offset 40 belongs to a topic that was deleted and created again since"
        (row,) = (await copy_offsets(source, target, by=by)).rows
        assert row.problem == "offset 70 is beyond the end of its own log, 60: it was created again, or cut"


async def test_a_partition_without_a_leader_is_named_soon(
    cluster_factory: Any, topic_factory: Callable[..., str], group: str
) -> None:
    settings = {"zookeeper.session.timeout.ms": 4000, "offsets.topic.replication.factor": 2}
    two = await asyncio.to_thread(lambda: cluster_factory(kafka="2.8.2", brokers=2, broker_config=settings))
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, two)
    await commit(two, group, {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0})
    dead = await asyncio.to_thread(two.leader, topic, 1)
    assert dead is not None
    await asyncio.to_thread(dead.stop)
    (alive,) = (broker for broker in two.brokers if broker is not dead)
    here = OffsetStore(f"127.0.0.1:{alive.port}", group)
    began = time.monotonic()
    with pytest.raises(BrokerError, match=f"^{topic}:1 of .* has no leader.*start its broker"):
        await copy_offsets(here, replace(here, group=f"{group}-2"), by="timestamp")
    assert time.monotonic() - began < 30
