"""The way back after producers have moved: nothing is lost, nothing goes round, and both clusters are equal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cli.cutover import audit_topic
from allocator.core.client.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.errors import ConfigError
from allocator.migrate.cutover import STEPS, Cutover, CutoverFailed
from allocator.migrate.mirror import Mirror
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap, map_topic
from allocator.migrate.offsets import copy_offsets
from allocator.migrate.report import TopicsStopped
from allocator.migrate.storage import OffsetStore
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import TopicPartition
from tests.migrate.cutting import World, command, mirror_checked
from tests.migrate.mirroring import (
    Pair,
    bare,
    commit,
    committed,
    contents,
    fill,
    killed,
    mirroring,
    numbered,
    settings,
    started,
    transactions,
)

pytestmark = pytest.mark.deadline(400)


async def moved(world: World, plan: Path, side: str, *, fail_back: bool) -> None:
    """Moves groups and producers to `side`, and waits until services have read what producers wrote there."""
    await mirror_checked(plan, fail_back=fail_back)
    written = len(world.written[side])
    steps: dict[str, str] = {}
    await Cutover(plan, steps.__setitem__, audit=audit_topic, fail_back=fail_back).run()
    assert list(steps) == list(STEPS)
    assert f"{world.topic}': 'equal (" in steps["finish"]
    await wait_until_async(lambda: len(world.written[side]) > written + 100, 60, "producers to write there")
    await world.reads(side)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.8.2", "4.1.1"),
        pytest.param("0.11.0.3", "3.9.1", marks=pytest.mark.long),  # no topic ids, other batches
        pytest.param("1.1.1", NEWEST, marks=pytest.mark.long),
    ],
)
async def test_groups_and_producers_move_there_and_back_and_there_again(old: str, new: str, make_world: Any) -> None:
    world: World = await make_world(old, new)
    plan = world.plan(audit=True)
    with pytest.raises(CutoverFailed, match="nothing to move back"):
        await Cutover(plan, fail_back=True).run()
    async with world.running(mirror=False):
        forward = asyncio.ensure_future(world.mirror().run())
        await wait_until_async(lambda: sum(world.seen.values()) > 100, 90, "services to read the old cluster")
        await moved(world, plan, "new", fail_back=False)
        assert not forward.done()
        async with mirroring(world.mirror_back()) as back:
            # it ends by itself: a member without topics would keep its partitions from the next mirror that way
            with pytest.raises(TopicsStopped, match="the mirror back has begun"):
                await asyncio.wait_for(forward, 90)
            await moved(world, plan, "old", fail_back=True)
            assert (back.duplicated, back.already_present) == (0, 0)
        assert back.records == len(world.written["new"])
        with pytest.raises(TopicsStopped, match=r"would go round.*start this one with --back-of"):
            await world.mirror().run(until_caught_up=True)
        async with mirroring(world.mirror(back_of=f"{world.group}-mirror-back")) as again:
            await moved(world, plan, "new", fail_back=False)
            assert (again.duplicated, again.already_present) == (0, 0)
    await world.assert_exact()
    await world.mirror_back().run(until_caught_up=True)  # begins at the second move to the new cluster
    assert bare(await contents(world.old, world.topic)) == bare(await contents(world.new, world.topic))


async def rows(cluster: LocalCluster, topic: str) -> list[tuple[int, str]]:
    """Offset and value of each committed record."""
    async with KafkaClient(cluster.bootstrap) as client:
        await client.refresh([topic])
        at = TopicPartition(topic, 0)
        reader = RangeReader(client, isolation_level="read_committed")
        bounds = await reader.bounds([at])
        return [(r.offset, (r.value or b"").decode()) async for batch in reader.read(bounds) for r in batch]


@pytest.mark.long
async def test_a_fail_back_may_be_rolled_back_and_killed(make_world: Any) -> None:
    world: World = await make_world("2.8.2", "4.1.1")
    plan = world.plan()
    async with world.ready(plan):
        await Cutover(plan).run()
        await world.reads("new")
    async with world.running(mirror=False), mirroring(world.mirror_back()):
        await mirror_checked(plan, fail_back=True)
        world.read_from.clear()
        await Cutover(plan, fail_back=True).run(until="start")
        await wait_until_async(lambda: world.old.bootstrap in world.read_from, 60, "services to read the old cluster")
        await Cutover(plan, fail_back=True).rollback()
        await world.reads("new")
        done = Cutover(plan, fail_back=True).load
        for step in ("offsets", "start", "opened"):
            with command(plan, "--fail-back") as process:
                await wait_until_async(
                    lambda step=step, process=process: step in done() or process.poll() is not None, 90, step
                )
                killed(process)
        with command(plan, "--fail-back") as process:
            await wait_until_async(lambda: process.poll() is not None, 120, "it to end")
            assert process.returncode == 0
        assert not done()
        assert not Cutover(plan).load()
        written = len(world.written["old"])
        await wait_until_async(lambda: len(world.written["old"]) > written + 100, 60, "producers to write there")
        await world.reads("old")
    await world.assert_exact()


def way_back(pair: Pair, directory: Path) -> tuple[Path, MirrorSettings]:
    """A plan without producers that moves the group "<group>-reader", and the mirror back."""
    plan = directory / "plan.toml"
    plan.write_text(
        f'[cutover]\ngroups = ["{pair.group}-reader"]\ntopics = ["{pair.topic}"]\n'
        f'zookeeper = "{pair.settings.zookeeper}"\nmirror = "{pair.group}"\naudit = false\n'
        f'[old]\nbrokers = "{pair.old.bootstrap}"\n[new]\nbrokers = "{pair.new.bootstrap}"\n'
        "[wait]\nquiet_s = 0.2\nproducers_s = 20.0\n"
    )
    options = {"topics": [pair.topic], "zookeeper": pair.settings.zookeeper, "old_zookeeper": None}
    return plan, settings(pair.new, pair.old, f"{pair.group}-back", back_of=pair.group, **options)


async def producers_moved(pair: Pair, directory: Path) -> tuple[Path, MirrorSettings]:
    """Moves the group after 10 records, and writes 6 to the new cluster. Returns what `way_back` does."""
    await pair.fill(10)
    await pair.catch_up()
    await commit(pair.old, f"{pair.group}-reader", {pair.partition: 10})
    plan, back = way_back(pair, directory)
    await Cutover(plan).run()
    await fill(pair.new, pair.topic, 6, "new")
    return plan, back


async def test_a_mirror_back_begins_at_the_first_new_record_though_it_is_killed(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    pair: Pair = await make_pair("2.8.2", "4.1.1")
    topic, group = pair.topic, pair.group
    await pair.fill(20)
    parts = ((b"done", 3), (b"aborted", 4), (b"done", 2), (b"aborted", 1))
    await asyncio.to_thread(transactions, pair.old.bootstrap, topic, *parts)
    await pair.catch_up()
    await commit(pair.old, f"{group}-reader", {pair.partition: 10})
    plan, back = way_back(pair, tmp_path)
    with pytest.raises(TopicsStopped, match="producers have not moved"):
        await Mirror(back).run(until_caught_up=True)
    assert len(await rows(pair.old, topic)) == 25
    await Cutover(plan).run()
    old, new = Cutover(plan).load()["opened"]["ends"][0][2:]
    assert (old, new) == (34, 25)
    await fill(pair.new, topic, 50, "new")
    await pair.fill(2, "stray")  # a producer that was forgotten
    await pair.catch_up()
    await fill(pair.new, topic, 50, "newer")

    async def begun() -> bool:
        async with KafkaClient(pair.new.bootstrap) as there, KafkaClient(pair.old.bootstrap) as here:
            known = OffsetMap(there, here, map_topic(back.group))
            if not await known.exists():
                return False
            await known.open()
            return known.switch(pair.partition) is not None

    async def copied() -> bool:
        return len(await rows(pair.old, topic)) > 27

    for reached in begun, copied:
        with started(back, "--throttle", "0.0005") as process:
            await wait_until_async(reached, 60, "the mirror back to get there")
            killed(process)
    with pytest.raises(TopicsStopped):
        await pair.catch_up()
    mirror = Mirror(back)
    await mirror.run(until_caught_up=True)
    assert mirror.duplicated <= 2  # what the forgotten producer wrote, unless a killed run has committed it
    written = [*numbered("value", 20), *["done"] * 5]
    here, there = await rows(pair.old, topic), await rows(pair.new, topic)
    new_side = [*numbered("new", 50), *numbered("stray", 2), *numbered("newer", 50)]
    assert [value for _, value in there] == written + new_side
    # what a forgotten producer wrote to the old cluster is there twice, and nothing else
    assert [value for _, value in here] == [*written, *numbered("stray", 2), *new_side]
    for at, (offset, _) in enumerate(there):
        await commit(pair.new, f"{group}-reader", {pair.partition: offset})
        stores = [OffsetStore(each.bootstrap, f"{group}-reader") for each in (pair.new, pair.old)]
        (row,) = (await copy_offsets(*stores, by="map", mirror=back.group)).rows
        left = [value for place, value in here if place >= row.after]
        rest = iter(left)
        assert all(value in rest for _, value in there[at:]), offset  # in this order
        assert len(left) <= len(there) - at + 2, offset


async def test_a_group_that_goes_back_reads_what_a_forgotten_producer_wrote_there(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    """Before the mirror back began, and while it ran. Once, the group skipped the former, and was refused for ever
    because of the latter."""
    pair: Pair = await make_pair("2.8.2", "4.1.1")
    topic, reader = pair.topic, f"{pair.group}-reader"
    plan, back = await producers_moved(pair, tmp_path)
    await pair.fill(1, "mirrored")
    await pair.catch_up()
    for name in "before", "during":
        await fill(pair.new, topic, 2, name)
        await Mirror(back).run(until_caught_up=True)
        await pair.fill(1, f"stray {name}")
        await fill(pair.new, topic, 2, f"after {name}")
        await Mirror(back).run(until_caught_up=True)
    await commit(pair.new, reader, {pair.partition: 13})
    shown: dict[str, str] = {}
    await Cutover(plan, shown.__setitem__, fail_back=True).run(until="start")
    here, there = await rows(pair.old, topic), await rows(pair.new, topic)
    start = (await committed(pair.old, reader, topic))[0]
    left = [value for offset, value in here if offset >= start]
    assert set(left) == {*(value for _, value in there[13:]), "stray before 0", "stray during 0"}
    assert len(left) == len(there[13:]) + 2  # it has read none of the copies behind the strays
    await commit(pair.new, reader, {pair.partition: len(there)})
    stores = [OffsetStore(each.bootstrap, reader) for each in (pair.new, pair.old)]
    (row,) = (await copy_offsets(*stores, by="map", mirror=back.group, backward=True)).rows
    first = next(offset for offset, value in here if value == "stray before 0")
    assert row.after == first
    assert f"up to {len(there) - 19} records again" in row.note


async def test_a_stray_before_the_mirror_back_is_read_by_groups_that_go_back(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    """The forward mirror was stopped, so the new cluster does not have it. Once, the group skipped it."""
    pair: Pair = await make_pair("2.8.2", "4.1.1")
    topic, reader = pair.topic, f"{pair.group}-reader"
    plan, back = await producers_moved(pair, tmp_path)
    await pair.fill(1, "stray")
    await Mirror(back).run(until_caught_up=True)
    await commit(pair.new, reader, {pair.partition: 16})
    shown: dict[str, str] = {}
    await Cutover(plan, shown.__setitem__, fail_back=True).run()
    assert "read again at most" in shown["check"]
    assert (await committed(pair.old, reader, topic))[0] == 10
    assert [value for _, value in await rows(pair.old, topic)][10:] == ["stray 0", *numbered("new", 6)]


async def test_an_old_cluster_that_takes_no_mirror_back_is_named_before_anything_moves(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    pair: Pair = await make_pair("0.9.0.1", "3.9.1")
    await pair.fill(20)
    await pair.catch_up()
    await commit(pair.old, f"{pair.group}-reader", {pair.partition: 10})
    plan, back = way_back(pair, tmp_path)
    steps: dict[str, str] = {}
    await Cutover(plan, steps.__setitem__).run(until="check")
    assert "fail-back impossible, it needs 0.11 or newer" in steps["check"]
    with pytest.raises(ConfigError, match=r"Kafka 0\.9.*: there is no way back to it"):
        await Mirror(back).run(until_caught_up=True)
