"""Several runs of one cutover: later, at the same time, and with other copies of the state file."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from allocator import Consumer
from allocator.migrate.cutover import Cutover, CutoverFailed
from allocator.migrate.report import RecordsGone
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, choose_cluster, read_choice
from allocator.testing import wait_until_async
from allocator.types import TopicPartition
from tests.migrate.cutting import World, command, mirror_checked
from tests.migrate.mirroring import bare, commit, committed, contents, delete_records, mirroring

pytestmark = pytest.mark.deadline(280)


async def choice_of(world: World) -> ClusterChoice:
    ensemble = ZooKeeperClient(world.zookeeper)
    await ensemble.connect()
    try:
        return await read_choice(ensemble, choice_path("/allocator", world.group))
    finally:
        await ensemble.close()


@asynccontextmanager
async def mirrored(world: World) -> AsyncIterator[Path]:
    """Yields the checked plan of a group that has read all records, and has no members."""
    plan = world.plan()
    await world.write(world.old, 30, [0, 1, 2])
    await commit(world.old, world.group, {TopicPartition(world.topic, n): 10 for n in range(3)})
    await choice_of(world)  # makes the chroot
    async with mirroring(world.mirror()):
        await mirror_checked(plan)
        yield plan


def stubborn(world: World) -> Consumer:
    """A member that does not leave when its group is frozen."""
    return Consumer(world.topic, brokers=world.old.bootstrap, group=world.group, zookeeper=world.zookeeper)


async def wait_for_copies(world: World, count: int) -> None:
    """Waits until partition 1 of the new topic has this many records."""

    async def copied() -> bool:
        return len((await contents(world.new, world.topic))[1]) == count

    await wait_until_async(copied, 60, "the mirror to copy records behind those of others")


async def test_records_of_others_on_the_new_cluster_stop_the_cutover(make_world: Any) -> None:
    """A producer has moved too early. The group would start behind its records, and never read them."""
    world: World = await make_world()
    async with mirrored(world) as plan:
        for _ in range(2):
            await world.write(world.new, 6, [1])
            await world.write(world.old, 10, [1])
        await wait_for_copies(world, 42)
        with pytest.raises(CutoverFailed, match=f"{world.topic}' .* at least 12 records .*--restart {world.topic}"):
            await Cutover(plan).run()
        assert await choice_of(world) == ClusterChoice()
    await asyncio.to_thread(world.new.delete_topic, world.topic)
    async with mirroring(world.mirror(restart=[world.topic])):
        await mirror_checked(plan)


def late_plan(world: World, plan: Path, group: str) -> Path:
    """A plan of another group that reads the same topic, without producers."""
    path = plan.with_name("late.toml")
    text = plan.read_text()
    path.write_text(world.plan(groups=[group]).read_text().replace('[producers]\nznode = "/producers"\n', ""))
    plan.write_text(text)
    return path


async def test_a_group_reads_what_producers_write_behind_all_copies(make_world: Any) -> None:
    """The producers were moved by hand, and the old topic is idle."""
    world: World = await make_world()
    shown: dict[str, str] = {}
    async with mirrored(world) as plan:
        await commit(world.old, world.group, {TopicPartition(world.topic, 0): 10, TopicPartition(world.topic, 1): 4})
        await world.write(world.new, 6, [1])
        await Cutover(plan, shown.__setitem__).run(until="start")
    assert f"records of others {{'{world.topic}': 6}}" in shown["check"]
    assert await committed(world.new, world.group, world.topic) == {0: 10, 1: 4, 2: 10}


async def test_records_that_the_mirror_passes_while_a_group_moves_stop_the_cutover(make_world: Any) -> None:
    """They were behind all copies when the group was frozen."""
    world: World = await make_world()
    async with mirrored(world) as plan:
        await world.write(world.new, 6, [1])
        await Cutover(plan).run(until="drain")
        await world.write(world.old, 10, [1])
        await wait_for_copies(world, 26)
        with pytest.raises(CutoverFailed, match=r"at least 6 records .*Roll back \(--rollback\)"):
            await Cutover(plan).run()
        await Cutover(plan).rollback()
    assert (await choice_of(world)).brokers == world.old.bootstrap


async def test_a_group_may_follow_when_the_producers_have_moved(make_world: Any) -> None:
    """What they write to the new cluster comes behind all that the mirror has copied, also for a mirror that starts
    again."""
    world: World = await make_world()
    late, offsets = f"{world.group}-late", {TopicPartition(world.topic, n): 10 for n in range(3)}
    async with mirrored(world) as plan:
        await Cutover(plan).run()
        await world.write(world.new, 6, [1])
        await commit(world.old, late, offsets)
        other = late_plan(world, plan, late)
        await Cutover(other).run(until="check")
    async with mirroring(world.mirror()):
        await world.write(world.old, 3, [2])  # once it is copied, the mirror has taken the partitions over
        await wait_until_async(partial(copied_up_to, world, 13), 60, "the mirror to copy again")
        await world.write(world.new, 6, [1])
        await Cutover(other).run(until="start")
    assert await committed(world.new, late, world.topic) == {0: 10, 1: 10, 2: 10}


async def test_a_later_cutover_does_not_move_the_place_where_the_producers_moved(make_world: Any) -> None:
    """Once, a mirror that started again took their records for mirrored ones, and the mirror back began behind them."""
    world: World = await make_world("2.8.2")
    late, offsets = f"{world.group}-late", {TopicPartition(world.topic, n): 10 for n in range(3)}
    async with mirrored(world) as plan:
        await Cutover(plan).run()
        await world.write(world.new, 6, [1])
    other = late_plan(world, plan, late)
    async with mirroring(world.mirror()):
        await world.write(world.old, 3, [2])  # once it is copied, the mirror has taken the partitions over
        await wait_until_async(partial(copied_up_to, world, 13), 60, "the mirror to copy again")
        await commit(world.old, late, offsets)
        await Cutover(other).run()
    assert [world.topic, 1, 10, 10] in Cutover(other).load()["opened"]["ends"]
    await world.write(world.new, 5, [1])
    await world.mirror_back().run(until_caught_up=True)
    old, new = await contents(world.old, world.topic), await contents(world.new, world.topic)
    assert len(new[1]) == 21
    assert bare(old)[1] == bare(new)[1]


@pytest.mark.parametrize("strays", [1, 2])
async def test_a_late_group_skips_nothing_that_moved_producers_wrote_before_a_stray(
    strays: int, make_world: Any
) -> None:
    """A forgotten producer writes to the old cluster. Once, one record moved the late group and the mirror back behind
    those that moved producers had written before its copy, and two refused the group for ever."""
    world: World = await make_world("2.8.2")
    late = [f"{world.group}-late-{n}" for n in range(3)]
    shown: dict[str, str] = {}
    async with mirrored(world) as plan:
        await Cutover(plan).run()
        for n in range(strays):
            await world.write(world.new, 6, [1])
            await world.write(world.old, 1, [1])
            await wait_for_copies(world, 10 + 7 * (n + 1))
        for read, group in zip((8, 10, 10 + strays), late):
            offsets = {TopicPartition(world.topic, n): read if n == 1 else 10 for n in range(3)}
            await commit(world.old, group, offsets)
            other = late_plan(world, plan, group)
            await Cutover(other, shown.__setitem__).run()
            assert (await committed(world.new, group, world.topic))[1] == min(read, 10)
            assert [world.topic, 1, 10, 10] in Cutover(other).load()["opened"]["ends"]
            assert ("read again" in shown["check"]) == (read > 10)
            await asyncio.to_thread(Cutover(other).plan.state.unlink)
    await world.mirror_back().run(until_caught_up=True)
    old, new = await contents(world.old, world.topic), await contents(world.new, world.topic)
    assert bare(old)[1][-len(new[1]) + 10 :] == bare(new)[1][10:]


async def test_records_of_moved_producers_are_no_copies_of_strays_that_the_old_cluster_has_deleted(
    make_world: Any,
) -> None:
    """The mirror was stopped after the cutover. Once, the group skipped as many records of the moved producers."""
    world: World = await make_world("2.8.2")
    late, offsets = f"{world.group}-late", {TopicPartition(world.topic, n): 10 for n in range(3)}
    async with mirrored(world) as plan:
        await Cutover(plan).run()
    await world.write(world.new, 6, [1])
    await world.write(world.old, 10, [1])
    await asyncio.to_thread(delete_records, world.old.bootstrap, world.topic, 20, 1)
    mirror = world.mirror()
    with pytest.raises(RecordsGone, match=f"deleted 10 offsets .*{world.topic}:1 offsets 10 to 19"):
        await mirror.run(until_caught_up=True)
    await commit(world.old, late, {**offsets, TopicPartition(world.topic, 1): 20})
    async with mirroring(world.mirror(accept_loss=True)):
        await Cutover(late_plan(world, plan, late)).run(until="start")
    assert await committed(world.new, late, world.topic) == {0: 10, 1: 10, 2: 10}


async def copied_up_to(world: World, offset: int) -> bool:
    """Returns whether the mirror has committed this old offset in partition 2."""
    return (await committed(world.old, f"{world.group}-mirror", world.topic)).get(2) == offset


async def test_records_of_others_since_the_check_stop_a_freeze_that_is_run_again(make_world: Any) -> None:
    world: World = await make_world()
    async with mirrored(world) as plan:
        plan.write_text(plan.read_text().replace("freeze_s = 60.0", "freeze_s = 1.0"))
        async with stubborn(world):
            with pytest.raises(CutoverFailed, match="still has members"):
                await Cutover(plan).run(until="freeze")
        await world.write(world.new, 6, [1])
        await world.write(world.old, 10, [1])
        await wait_for_copies(world, 26)
        with pytest.raises(CutoverFailed, match=r"at least 6 records .*Roll back first"):
            await Cutover(plan).run()
        await Cutover(plan).rollback()
    assert (await choice_of(world)).brokers == world.old.bootstrap


async def test_a_topic_that_a_group_reads_since_the_check_stops_the_freeze(make_world: Any) -> None:
    """The check may be days old. Once, the group skipped or repeated the records of such a topic."""
    world = await make_world()
    other = f"{world.topic}.other"
    await asyncio.to_thread(world.old.create_topic, other, 1)
    async with mirrored(world) as plan:
        await commit(world.old, world.group, {TopicPartition(other, 0): 0})
        with pytest.raises(CutoverFailed, match=f"also reads {other!r}"):
            await Cutover(plan).run(until="freeze")
        assert await choice_of(world) == ClusterChoice()
        await Cutover(plan).rollback()
        assert await choice_of(world) == ClusterChoice()  # nothing had moved
        await Cutover(world.plan(leave=[other])).run(until="freeze")
        assert (await choice_of(world)).frozen


async def test_a_topic_that_a_group_reads_since_a_failed_freeze_stops_the_next_one(make_world: Any) -> None:
    world = await make_world()
    other = f"{world.topic}.other"
    await asyncio.to_thread(world.old.create_topic, other, 1)
    async with mirrored(world) as plan:
        plan.write_text(plan.read_text().replace("freeze_s = 60.0", "freeze_s = 0.1"))
        async with stubborn(world):
            with pytest.raises(CutoverFailed, match="still has members"):
                await Cutover(plan).run()
        await commit(world.old, world.group, {TopicPartition(other, 0): 0})
        with pytest.raises(CutoverFailed, match=f"also reads {other!r}.*after --rollback"):
            await Cutover(plan).run()
        await Cutover(plan).rollback()
        assert await choice_of(world) == ClusterChoice(world.old.bootstrap)


async def test_a_second_run_is_refused_while_the_first_one_is_suspended(make_world: Any) -> None:
    world = await make_world()
    async with mirrored(world) as plan, stubborn(world):
        with command(plan) as first:
            await frozen(world)
            first.send_signal(signal.SIGSTOP)
            for second in (Cutover(plan).run(), Cutover(plan).rollback(), Cutover(plan).clear()):
                with pytest.raises(CutoverFailed, match=rf"holds {plan.parent}.*process {first.pid} on .*SIGKILL"):
                    await second
        await Cutover(plan).rollback()
        assert await choice_of(world) == ClusterChoice(world.old.bootstrap)


async def test_a_run_stops_when_another_one_that_the_lock_did_not_stop_has_gone_on(
    make_world: Any, tmp_path: Path
) -> None:
    """As on a network disk. Once, the first run wrote its own steps over those of the other, and went on."""
    world, errors = await make_world(), tmp_path / "errors"
    async with mirrored(world) as plan:
        with errors.open("wb") as file, command(plan, errors=file) as first:
            async with stubborn(world):
                await frozen(world)
                first.send_signal(signal.SIGSTOP)
                lock = Path(f"{Cutover(plan).plan.state}.lock")
                await asyncio.to_thread(lock.unlink, missing_ok=True)
            await Cutover(plan).run(until="start")
            first.send_signal(signal.SIGCONT)
            await wait_until_async(lambda: first.poll() is not None, 60, "the first run to end")
            assert first.returncode == 1
        assert f"was changed by process {os.getpid()} on " in await asyncio.to_thread(errors.read_text)
        assert list(Cutover(plan).load()) == ["check", "freeze", "drain", "offsets", "start"]
        assert await choice_of(world) == ClusterChoice(world.new.bootstrap)


async def test_a_former_copy_of_the_state_file_undoes_nothing(make_world: Any) -> None:
    world = await make_world()
    async with mirrored(world) as plan:
        await Cutover(plan).run(until="drain")
        state = Cutover(plan).plan.state
        former = await asyncio.to_thread(state.read_text)
        await Cutover(plan).run(until="start")
        latest = await asyncio.to_thread(state.read_text)
        await asyncio.to_thread(state.write_text, former)
        for run in (Cutover(plan).run(), Cutover(plan).rollback()):
            with pytest.raises(CutoverFailed, match=f"{world.group} already uses the new cluster"):
                await run
        await asyncio.to_thread(state.write_text, latest)
        await Cutover(plan).rollback()
        assert await choice_of(world) == ClusterChoice(world.old.bootstrap)


async def test_a_group_whose_members_were_stopped_after_the_first_check_must_have_some_again(make_world: Any) -> None:
    """Members that do not follow are stopped before step `start`, and started with the new brokers after it."""
    world = await make_world()
    async with mirrored(world) as plan:
        async with stubborn(world) as member:
            await wait_until_async(lambda: len(member.assignment()) == 3, 60, "the member to own its partitions")
            await Cutover(plan).run(until="check")
        plan.write_text(plan.read_text().replace("verify_s = 60.0", "verify_s = 0.1"))
        with pytest.raises(CutoverFailed, match="does not work on the new cluster: it has no members"):
            await Cutover(plan).run()


async def test_an_empty_topic_counts_as_read_after_the_members_that_read_it_were_stopped(make_world: Any) -> None:
    """Without an offset there, a group that starts at the end would skip what is written while it moves."""
    world = await make_world()
    empty = f"{world.topic}.empty"
    await asyncio.to_thread(world.old.create_topic, empty, 1)
    await world.write(world.old, 30, [0, 1, 2])
    await commit(world.old, world.group, {TopicPartition(world.topic, n): 10 for n in range(3)})
    where = {"brokers": world.old.bootstrap, "group": world.group, "zookeeper": world.zookeeper}
    plan = world.plan(topics=[world.topic, empty])
    await choice_of(world)  # makes the chroot
    async with mirroring(world.mirror(topics=[world.topic, empty])):
        async with Consumer(world.topic, empty, **where) as member:
            await wait_until_async(lambda: len(member.assignment()) == 4, 60, "the member to own its partitions")
            await mirror_checked(plan)
        await Cutover(plan).run(until="freeze")
        assert await committed(world.old, world.group, empty) == {0: 0}


async def test_no_producer_moves_while_a_group_does_not_follow_to_the_new_cluster(make_world: Any) -> None:
    """Once, a rollback in a second terminal returned the group, and the first run moved the producers."""
    world = await make_world()
    async with mirrored(world) as plan:
        await Cutover(plan).run(until="start")
        path = choice_path("/allocator", world.group)
        for choice in (ClusterChoice(world.old.bootstrap), ClusterChoice(world.new.bootstrap, frozen=True)):
            await chosen(world, path, choice)
            with pytest.raises(CutoverFailed, match="was paused or moved since step 'start'"):
                await Cutover(plan).run()
        await chosen(world, path, ClusterChoice(world.new.bootstrap))
        assert "opened" not in Cutover(plan).load()
        await Cutover(plan).run()


async def chosen(world: World, path: str, choice: ClusterChoice) -> None:
    ensemble = ZooKeeperClient(world.zookeeper)
    await ensemble.connect()
    try:
        await choose_cluster(ensemble, path, choice)
    finally:
        await ensemble.close()


async def frozen(world: World) -> None:
    """Waits until a run has frozen the group."""

    async def is_frozen() -> bool:
        return (await choice_of(world)).frozen

    await wait_until_async(is_frozen, 60, "the group to be frozen")


async def test_a_cutover_says_once_what_an_old_broker_lacks(make_world: Any, tmp_path: Path) -> None:
    """Each step connects several times."""
    world = await make_world()
    async with mirrored(world) as plan:
        with (tmp_path / "errors").open("wb") as errors, command(plan, "--until", "drain", errors=errors) as process:
            assert await asyncio.to_thread(process.wait, 60) == 0
    assert (tmp_path / "errors").read_text().count("no headers, timestamps or transactions") == 1
