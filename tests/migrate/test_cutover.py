"""A group and its producers move to another cluster while they run: no loss, counted repeats."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from allocator import Consumer
from allocator.cli.cutover import audit_topic
from allocator.errors import ConfigError
from allocator.migrate import cutover
from allocator.migrate.cutover import STEPS, Cutover, CutoverFailed
from allocator.migrate.cutover_plan import load_plan
from allocator.migrate.cutover_state import FORMAT
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, choose_cluster, read_choice
from allocator.testing import wait_until_async
from allocator.testing.topics import zookeeper_client
from allocator.testing.versions import NEWEST
from allocator.types import TopicPartition
from tests.constants import SetConstant
from tests.joining import joined
from tests.migrate.cutting import World, command, mirror_checked
from tests.migrate.mirroring import commit, committed, killed, mirroring

pytestmark = pytest.mark.deadline(280)

PAIRS = [
    ("0.9.0.1", "3.9.1"),
    pytest.param("0.8.2.2", "3.9.1", marks=pytest.mark.long),
    pytest.param("0.8.2.2", NEWEST, marks=pytest.mark.long),
]


@contextlib.asynccontextmanager
async def zookeeper(world: World) -> AsyncIterator[ZooKeeperClient]:
    client = ZooKeeperClient(world.zookeeper)
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize(("old", "new"), PAIRS)
async def test_a_cutover_loses_nothing_while_all_run(old: str, new: str, make_world: Any) -> None:
    world = await make_world(old, new)
    plan = world.plan()
    async with world.ready(plan):
        steps: list[str] = []
        await Cutover(plan, lambda step, text: steps.append(step), audit=audit_topic).run()
        assert steps == list(STEPS)
        await world.reads("new")
        with pytest.raises(CutoverFailed, match="was reached"):
            await Cutover(plan).rollback()
    await Cutover(plan).clear()
    async with zookeeper(world) as zk:
        assert await read_choice(zk, choice_path("/allocator", world.group)) == ClusterChoice()
    # every record was committed before the services left the old cluster, and none was mirrored twice
    await world.assert_exact()


async def test_a_member_that_still_reads_the_old_cluster_stops_the_cutover(make_world: Any) -> None:
    """A supervisor started it with the old brokers after the group had moved. It does not know the cluster choice."""
    world = await make_world()
    plan = world.plan()
    async with world.ready(plan):
        await Cutover(plan).run(until="start")
        stale = Consumer(
            world.topic, brokers=world.old.bootstrap, group=world.group, membership="kafka", auto_commit_interval_s=0.2
        )
        async with stale:
            for _ in range(2):
                assert await stale.getbatch(30)
            await stale.commit()
            with pytest.raises(CutoverFailed, match="still reads the old cluster"):
                await Cutover(plan).run()
        assert "opened" not in Cutover(plan).load()
        await Cutover(plan).run()
        await world.reads("new")


@pytest.mark.parametrize("killed_in_step_start", [pytest.param(False, marks=pytest.mark.long), True])
async def test_each_step_may_be_the_last_of_a_run_and_a_rollback_loses_nothing(
    killed_in_step_start: bool, make_world: Any
) -> None:
    world = await make_world()
    plan = world.plan()
    with pytest.raises(CutoverFailed, match="nothing to undo"):
        await Cutover(plan).rollback()
    async with world.ready(plan):
        for step in STEPS[: STEPS.index("start" if killed_in_step_start else "producers")]:
            await Cutover(plan).run(until=step)
        if killed_in_step_start:  # the step is not in the state file, but members work on the new cluster
            ensemble, read = ZooKeeperClient(world.zookeeper), Cutover(plan).plan
            await ensemble.connect()
            await choose_cluster(ensemble, choice_path(read.root, world.group), ClusterChoice(read.new_brokers))
            await ensemble.close()
        count = sum(world.seen.values())
        await wait_until_async(lambda: sum(world.seen.values()) > count + 100, 60, "services to read the new cluster")
        assert world.new.bootstrap in world.read_from
        await Cutover(plan).rollback()
        moved = Consumer(world.topic, brokers=world.new.bootstrap, group=world.group, zookeeper=world.zookeeper)
        with pytest.raises(ConfigError, match=r"read .*SwitchingConsumer"):
            await moved.start()
        await world.reads("old")
        assert not await asyncio.to_thread(Cutover(plan).plan.state.exists)
    assert world.written["new"] == []
    await world.assert_exact()


@pytest.mark.long
async def test_a_command_that_is_killed_in_each_step_is_run_again_and_loses_nothing(make_world: Any) -> None:
    world = await make_world()
    plan = world.plan()
    dice = random.Random(5)
    async with world.ready(plan):
        for step in (*STEPS[:-2], "opened", "producers"):
            with command(plan) as process:
                await wait_until_async(
                    lambda step=step, process=process: step in Cutover(plan).load() or process.poll() is not None,
                    90,
                    step,
                )
                await asyncio.sleep(dice.uniform(0, 0.3))
                killed(process)
            if step == "opened":
                ends = Cutover(plan).load()["opened"]
        with command(plan) as process:
            await wait_until_async(lambda: process.poll() is not None, 120, "it to end")
            assert process.returncode == 0
        assert list(Cutover(plan).load()) == [*STEPS[:-2], "opened", *STEPS[-2:]]
        assert Cutover(plan).load()["opened"] == ends
        await world.reads("new")
    await world.assert_exact()


async def test_records_of_a_partition_without_commits_are_read_by_a_group_that_starts_at_the_end(
    make_world: Any,
) -> None:
    world = await make_world()
    world.partitions = [0, 1]
    world.options = {"auto_offset_reset": "latest"}
    plan = world.plan()
    async with world.ready(plan):
        await Cutover(plan).run(until="freeze")
        numbers = await world.write(world.old, 10, [2])
        await Cutover(plan).run(until="verify")
        await wait_until_async(lambda: all(world.seen[n] for n in numbers), 60, "them to be read on the new cluster")


async def moved_group(make_world: Any, set_constant: SetConstant) -> tuple[World, TopicPartition, Path]:
    """Runs the steps up to `start` for a group that has read 90 records; then the mirror ends. A rollback waits 1 s."""
    set_constant(cutover, COPIED_S=1.0)
    world: World = await make_world()
    at, plan = TopicPartition(world.topic, 0), world.plan()
    with zookeeper_client(world.old.zookeeper) as client:
        client.ensure_path(f"/{world.group}")
    await world.write(world.old, 90, [0])
    await commit(world.old, world.group, {at: 90})
    async with mirroring(world.mirror()):
        await mirror_checked(plan)
        await Cutover(plan).run(until="start")
    return world, at, plan


async def test_a_rollback_returns_to_what_the_mirror_has_copied(make_world: Any, set_constant: SetConstant) -> None:
    """A producer that has moved too early takes the group beyond that on the new cluster."""
    world, at, plan = await moved_group(make_world, set_constant)
    await world.write(world.new, 5, [0])
    shown: dict[str, str] = {}
    await Cutover(plan, shown.__setitem__).run(until="verify")
    assert f"records of others {{'{world.topic}': 5}}" in shown["verify"]
    await commit(world.new, world.group, {at: 95})
    await world.write(world.old, 20, [0])
    await Cutover(plan).rollback()
    assert (await committed(world.old, world.group, world.topic))[0] == 90


async def test_a_rollback_that_is_run_again_sets_no_group_back(make_world: Any, set_constant: SetConstant) -> None:
    """It was killed when it had moved the group, which reads on. The mirror has ended."""
    world, at, plan = await moved_group(make_world, set_constant)
    state = Cutover(plan).plan.state
    before = state.read_bytes()
    await Cutover(plan).rollback()
    state.write_bytes(before)  # as it was until the end of the rollback
    await world.write(world.old, 20, [0])
    await commit(world.old, world.group, {at: 105})
    await Cutover(plan).rollback()
    assert (await committed(world.old, world.group, world.topic))[0] == 105
    shown: list[str] = []
    await Cutover(plan, lambda _, text: shown.append(text)).rollback()
    (text,) = shown
    assert "was done before" in text
    assert not await asyncio.to_thread(state.exists)


async def test_a_plan_without_a_topic_that_the_group_reads_is_refused(make_world: Any) -> None:
    """Once, the group skipped or repeated the records of that topic on the new cluster."""
    world = await make_world()
    committed, subscribed = f"{world.topic}.committed", f"{world.topic}.subscribed"
    for topic in (committed, subscribed):
        await asyncio.to_thread(world.old.create_topic, topic, 1)
    await commit(world.old, world.group, {TopicPartition(committed, 0): 3})
    plan = world.plan()
    async with (
        world.running(),
        Consumer(
            subscribed, **joined(brokers=world.old.bootstrap, group=world.group, zookeeper=world.zookeeper)
        ) as member,
    ):
        await wait_until_async(lambda: len(member.assignment()) == 1, 60, "the member to own its partition")
        await mirror_checked(world.plan(leave=[committed, subscribed]))
        Cutover(plan).plan.state.unlink()
        for leave in ([committed], [subscribed]):
            with pytest.raises(CutoverFailed, match="also reads") as refused:
                await Cutover(world.plan(leave=leave)).run(until="check")
            for topic in (committed, subscribed):
                assert (repr(topic) in str(refused.value)) == (topic not in leave)


async def test_a_group_that_has_moved_before_moves_again_or_back(make_world: Any) -> None:
    world = await make_world()
    plan = world.plan()
    async with zookeeper(world) as zk:
        path = choice_path("/allocator", world.group)
        await choose_cluster(zk, path, ClusterChoice(world.old.bootstrap))  # of an earlier cutover
        async with world.ready(plan):
            await Cutover(plan).run(until="start")
            assert await read_choice(zk, path) == ClusterChoice(world.new.bootstrap)
            with pytest.raises(CutoverFailed, match="is not finished"):
                await Cutover(plan).clear()
            await Cutover(plan).rollback()
            assert await read_choice(zk, path) == ClusterChoice(world.old.bootstrap)
            await choose_cluster(zk, path, ClusterChoice("elsewhere:9092"))
            with pytest.raises(CutoverFailed, match="another cluster choice"):
                await Cutover(plan).run(until="check")
            await choose_cluster(zk, path, ClusterChoice(world.old.bootstrap))


async def test_members_that_do_not_leave_stop_a_cutover_and_are_named(make_world: Any) -> None:
    world = await make_world()
    plan = world.plan()
    plan.write_text(plan.read_text().replace("freeze_s = 60.0", "freeze_s = 1.0"))
    async with world.running(services=0):
        options = {"brokers": world.old.bootstrap, "group": world.group, "zookeeper": world.zookeeper}
        async with Consumer(world.topic, **options) as stubborn:
            read = set()
            while len(read) < 3:  # each partition has a commit
                batch = await stubborn.getbatch(0.1)
                read |= set() if batch is None else {batch.partition}
            await stubborn.commit()
            await mirror_checked(plan)
            with pytest.raises(CutoverFailed, match="still has members: allocator-"):
                await Cutover(plan).run()
            await Cutover(plan).rollback()


def test_all_faults_of_a_plan_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[cutover]\ngroups = []\ntopic = ["t"]\nzookeeper = "z:1"\n[old]\nbrokers = "a:1"\n'
        "[new]\nbrokers = 5\n[wait]\nfreeze_s = -1\n[mirrors]\n"
    )
    with pytest.raises(ConfigError) as refused:
        Cutover(path)
    for fault in (
        "groups = []: must be a list of names; it is empty",
        "[cutover] has no setting 'topic'",
        "[cutover] topics is missing",
        "[new] brokers = 5: must be text",
        "freeze_s = -1: must be a number (seconds), more than 0",
        "[mirrors] is not a section",
    ):
        assert fault in str(refused.value)


@pytest.mark.parametrize("security", ['security = "sasl_plain_password=hunter2"', "[[old.security]]\nkey = 'hunter2'"])
def test_no_fault_of_a_plan_quotes_a_secret(security: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f'[cutover]\n[new]\n[old]\nbrokers = "a:1"\n{security}\n')
    with pytest.raises(ConfigError, match=r"\[old\] security = \*\*\*: must be a dict") as refused:
        Cutover(path)
    assert "hunter2" not in str(refused.value)


def test_a_plan_is_shown_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format("z", "a", "z", "b") + '[new.security]\nsasl_plain_password = "hunter2"\n')
    assert "hunter2" not in repr(load_plan(path))


PLAN = (
    '[cutover]\ngroups = ["g", "h"]\ntopics = ["t", "u"]\nzookeeper = "{}"\n'
    '[old]\nbrokers = "{}"\nzookeeper = "{}"\n[new]\nbrokers = "{}"\n'
)
ADDRESSES = ("z,y:1/c", "a,b", "z:2/d", "c:3,d:4")
REORDERED = PLAN.replace('"g", "h"', '"h", "g"').replace('"t", "u"', '"u", "t"')


@pytest.mark.parametrize(
    ("changed", "accepted"),
    [
        (PLAN.format("y:1,Z:2181/c/", "b:9092,a", "z:2/d", "d:4,c:3"), True),
        (REORDERED.format(*ADDRESSES) + "[wait]\nquiet_s = 5.0  # the same groups and topics move\n", True),
        (PLAN.replace('"u"', '"v"').format(*ADDRESSES), False),
        (PLAN.format("z,y:1/e", "a,b", "z:2/d", "c:3,d:4"), False),
        (PLAN.format("z,y:1/c", "a,b", "z:2/d", "c:3"), False),
    ],
)
def test_a_plan_may_not_move_something_else_once_its_cutover_has_started(
    changed: str, accepted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(*ADDRESSES))
    cutover = Cutover(path)
    assert cutover.load() == {}
    # the state file of a cutover that was interrupted after its first step
    state = {"format": FORMAT, "plan": cutover.plan.digest, "steps": {"check": {}}}
    cutover.plan.state.write_text(json.dumps(state))
    path.write_text(changed)
    if accepted:
        assert set(Cutover(path).load()) == {"check"}
    else:
        with pytest.raises(ConfigError, match="moves something else since its cutover began"):
            Cutover(path).load()


def test_a_plan_between_two_lists_of_one_cluster_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format("z", "a:1,b:1", "z", "c:1, B:1"))
    with pytest.raises(ConfigError, match="share a broker: a:1,b:1 and c:1, B:1"):
        Cutover(path)
