"""A group and its producers move to another cluster while they run: no loss, counted repeats."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import World, command
from mirroring import killed

from allocator.cli.cutover import audit_topic
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.errors import BrokersUnavailable, ConfigError
from allocator.migrate.cutover import FORMAT, STEPS, Cutover, CutoverFailed
from allocator.operate.cluster_choice import ClusterChoice, choice_path, choose_cluster
from allocator.testing import wait_until_async
from allocator.testing.versions import NEWEST

pytestmark = pytest.mark.deadline(280)

PAIRS = [
    ("0.9.0.1", "3.9.1"),
    pytest.param("0.8.2.2", "3.9.1", marks=pytest.mark.long),
    pytest.param("0.8.2.2", NEWEST, marks=pytest.mark.long),
]


@pytest.fixture
def make_world(cluster_factory: Any, topic_factory: Callable[..., str], group: str, tmp_path: Path) -> Any:
    async def make(old: str, new: str) -> World:
        clusters = [await asyncio.to_thread(cluster_factory, kafka=version) for version in (old, new)]
        topic = await asyncio.to_thread(topic_factory, 3, 1, None, clusters[0])
        return World(clusters[0], clusters[1], topic, group, tmp_path)

    return make


@pytest.mark.parametrize(("old", "new"), PAIRS)
async def test_a_cutover_loses_nothing_while_all_run(old: str, new: str, make_world: Any) -> None:
    world = await make_world(old, new)
    plan = world.plan()
    async with world.running():
        await wait_until_async(lambda: sum(world.seen.values()) > 200, 90, "services to read the old cluster")
        await wait_until_async(lambda: _checked(plan), 60, "the mirror to have begun with every partition")
        told: list[str] = []
        await Cutover(plan, lambda step, text: told.append(step), audit=audit_topic).run()
        assert told == list(STEPS[1:])
        assert world.read_from == {world.old.bootstrap, world.new.bootstrap}
        await wait_until_async(lambda: len(world.written["new"]) > 100, 60, "producers to write to the new cluster")
        last = world.written["new"][-1]
        await wait_until_async(lambda: world.seen[last], 60, "what they write there to be read")
        with pytest.raises(CutoverFailed, match="was reached"):
            await Cutover(plan).rollback()
    assert world.lost(last) == []
    # everything was committed before anybody left, and nothing was mirrored twice
    assert await world.repeats() == []


async def test_each_step_may_be_the_last_of_a_run_and_a_rollback_loses_nothing(make_world: Any) -> None:
    world = await make_world("0.9.0.1", "3.9.1")
    plan = world.plan()
    async with world.running():
        await wait_until_async(lambda: sum(world.seen.values()) > 100, 90, "services to read the old cluster")
        await wait_until_async(lambda: _checked(plan), 60, "the mirror to have begun with every partition")
        for step in STEPS[: STEPS.index("producers")]:
            await Cutover(plan).run(until=step)
        count = sum(world.seen.values())
        await wait_until_async(lambda: sum(world.seen.values()) > count + 100, 60, "services to read the new cluster")
        assert world.new.bootstrap in world.read_from
        await Cutover(plan).rollback()
        world.read_from.clear()
        await wait_until_async(lambda: world.old.bootstrap in world.read_from, 60, "services to read the old one again")
        last = world.written["old"][-1]
        await wait_until_async(lambda: world.seen[last], 60, "everything to be read")
        assert not await asyncio.to_thread(Cutover(plan).plan.state.exists)
    assert world.lost(last) == []
    assert world.written["new"] == []
    assert await world.repeats() == []


@pytest.mark.long
async def test_a_command_that_is_killed_in_each_step_is_run_again_and_loses_nothing(make_world: Any) -> None:
    world = await make_world("0.9.0.1", "3.9.1")
    path = plan = world.plan()
    rng = random.Random(5)
    async with world.running():
        await wait_until_async(lambda: sum(world.seen.values()) > 100, 90, "services to read the old cluster")
        await wait_until_async(lambda: _checked(plan), 60, "the mirror to have begun with every partition")
        for step in (*STEPS[:-2], "opened", "producers"):
            with command(path) as process:
                await wait_until_async(
                    lambda step=step, process=process: step in Cutover(plan).load() or process.poll() is not None,
                    90,
                    step,
                )
                await asyncio.sleep(rng.uniform(0, 0.3))
                killed(process)
            if step == "opened":
                ends = Cutover(plan).load()["opened"]
        with command(path) as process:
            await wait_until_async(lambda: process.poll() is not None, 120, "it to end")
            assert process.returncode == 0
        assert list(Cutover(plan).load()) == [*STEPS[:-2], "opened", *STEPS[-2:]]
        assert Cutover(plan).load()["opened"] == ends
        await wait_until_async(lambda: len(world.written["new"]) > 100, 60, "producers to write to the new cluster")
        last = world.written["new"][-1]
        await wait_until_async(lambda: world.seen[last], 60, "what they write there to be read")
    assert world.lost(last) == []
    assert await world.repeats() == []


async def test_a_rollback_after_a_kill_in_step_start_loses_nothing(make_world: Any) -> None:
    """Step "start" is not in the state file, but members are at work on the new cluster."""
    world = await make_world("0.9.0.1", "3.9.1")
    plan = world.plan()
    with pytest.raises(CutoverFailed, match="nothing to undo"):
        await Cutover(plan).rollback()
    async with world.running():
        await wait_until_async(lambda: sum(world.seen.values()) > 100, 90, "services to read the old cluster")
        await wait_until_async(lambda: _checked(plan), 60, "the mirror to have begun with every partition")
        await Cutover(plan).run(until="offsets")
        ensemble = ZooKeeperClient(world.zookeeper)
        await ensemble.connect()
        read = Cutover(plan).plan
        await choose_cluster(ensemble, choice_path(read.root, world.group), ClusterChoice(read.new_brokers))
        await ensemble.close()
        await wait_until_async(lambda: world.new.bootstrap in world.read_from, 60, "services to read the new cluster")
        await Cutover(plan).rollback()
        world.read_from.clear()
        await wait_until_async(lambda: world.old.bootstrap in world.read_from, 60, "services to read the old one again")
        last = world.written["old"][-1]
        await wait_until_async(lambda: world.seen[last], 60, "everything to be read")
    assert world.lost(last) == []
    assert await world.repeats() == []


async def test_records_of_a_partition_without_commits_are_read_by_a_group_that_starts_at_the_end(
    make_world: Any,
) -> None:
    world = await make_world("0.9.0.1", "3.9.1")
    world.partitions = [0, 1]
    world.options = {"auto_offset_reset": "latest"}
    plan = world.plan()
    async with world.running():
        await wait_until_async(lambda: sum(world.seen.values()) > 100, 90, "services to read the old cluster")
        await wait_until_async(lambda: _checked(plan), 60, "the mirror to have begun with every partition")
        await Cutover(plan).run(until="freeze")
        numbers = await world.write(world.old, 10, [2])
        await Cutover(plan).run(until="verify")
        await wait_until_async(lambda: all(world.seen[n] for n in numbers), 60, "them to be read on the new cluster")


async def _checked(plan: Any) -> bool:
    try:
        await Cutover(plan).run(until="check")
    except (CutoverFailed, BrokersUnavailable):  # a busy machine answers late
        return False
    return True


async def test_members_that_do_not_leave_stop_a_cutover_and_are_named(make_world: Any) -> None:
    from allocator import Consumer

    world = await make_world("0.9.0.1", "3.9.1")
    path = world.plan()
    path.write_text(path.read_text().replace("freeze_s = 60.0", "freeze_s = 1.0"))
    plan = path
    async with world.running(services=0):
        options = {"brokers": world.old.bootstrap, "group": world.group, "zookeeper": world.zookeeper}
        async with Consumer(world.topic, **options) as stubborn:
            read = set()
            while len(read) < 3:  # each of them has a commit
                batch = await stubborn.getbatch(0.1)
                read |= set() if batch is None else {batch.partition}
            await stubborn.commit()
            await wait_until_async(lambda: _checked(plan), 60, "the mirror to have begun with every partition")
            with pytest.raises(CutoverFailed, match="still has members: allocator-"):
                await Cutover(plan).run()
            await Cutover(plan).rollback()


def test_all_faults_of_a_plan_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[cutover]\ngroups = []\ntopic = ["t"]\nzookeeper = "z:1"\n[old]\nbrokers = "a:1"\n'
        "[new]\nbrokers = 5\n[wait]\nfreeze_s = -1\n[mirrors]\n"
    )
    with pytest.raises(ConfigError) as told:
        Cutover(path)
    for fault in (
        "groups = []: must be a list of names; it is empty",
        "[cutover] has no setting 'topic'",
        "[cutover] topics is missing",
        "[new] brokers = 5: must be text",
        "freeze_s = -1: must be a number (seconds), more than 0",
        "[mirrors] is not a section",
    ):
        assert fault in str(told.value)


def begun(cutover: Cutover) -> None:
    """Writes the state file of a cutover that was interrupted after its first step."""
    state = {"format": FORMAT, "plan": cutover.plan.digest, "steps": {"check": {}}}
    cutover.plan.state.write_text(json.dumps(state))


def test_a_plan_that_changes_under_way_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[cutover]\ngroups = ["g", "h"]\ntopics = ["t", "u"]\nzookeeper = "z:1"\n'
        '[old]\nbrokers = "a:1"\n[new]\nbrokers = "b:1"\n'
    )
    first = Cutover(path)
    assert first.load() == {}
    begun(first)
    assert set(Cutover(path).load()) == {"check"}
    path.write_text(path.read_text().replace("b:1", "c:1"))
    with pytest.raises(ConfigError, match="moves something else since its cutover began"):
        Cutover(path).load()
    same = path.read_text().replace("c:1", "b:1").replace('zookeeper = "z:1"', 'zookeeper = "z:1"\naudit = false')
    same = same.replace('"g", "h"', '"h", "g"').replace('"t", "u"', '"u", "t"')
    path.write_text(f"{same}[wait]\nquiet_s = 5.0  # what moves is the same\n")
    assert set(Cutover(path).load()) == {"check"}


PLAN = (
    '[cutover]\ngroups = ["g"]\ntopics = ["t"]\nzookeeper = "{}"\n'
    '[old]\nbrokers = "{}"\nzookeeper = "{}"\n[new]\nbrokers = "{}"\n'
)


@pytest.mark.parametrize(
    ("changed", "accepted"),
    [
        (("y:1,Z:2181/c/", "b:9092,a", "z:2/d", "d:4,c:3"), True),
        (("z,y:1/c", "a:9092, b:9092", "z:2/d", "c:3,D:4"), True),
        (("z,y:1/e", "a,b", "z:2/d", "c:3,d:4"), False),
        (("z,y:1/c", "a,b:9093", "z:2/d", "c:3,d:4"), False),
        (("z,y:1/c", "a,b", "z:2", "c:3,d:4"), False),
        (("z,y:1/c", "a,b", "z:2/d", "c:3"), False),
    ],
    ids=str,
)
def test_another_spelling_of_addresses_is_no_change_of_the_plan(
    changed: tuple[str, ...], accepted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format("z,y:1/c", "a,b", "z:2/d", "c:3,d:4"))
    begun(Cutover(path))
    path.write_text(PLAN.format(*changed))
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
