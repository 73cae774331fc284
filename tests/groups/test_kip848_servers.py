"""KIP-848 groups on real brokers: with allocator's members alone, and with other clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata
from tests.groups.kafka_members import ClassicMember, cut_off, shared, start, topic_with
from tests.groups.kip848_members import QUICK, ConfluentKip848, Kip848Member
from tests.groups.members import History
from tests.groups.test_kafka_faults import settle, without_its_coordinator

pytestmark = pytest.mark.deadline(180)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, "", -1)


async def start_cluster(cluster_factory: Any, kafka: str = NEWEST, **options: Any) -> LocalCluster:
    return await start(cluster_factory, kafka=kafka, zookeepers=0, broker_config=QUICK, **options)


async def test_the_server_assignor_is_chosen_by_name(cluster_factory: Any, unique_name: Any, group: str) -> None:
    cluster = await start_cluster(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 4)
    async with (
        Kip848Member(cluster.bootstrap, group, counts, server_assignor="range") as a,
        Kip848Member(cluster.bootstrap, group, counts, server_assignor="range") as b,
    ):
        await shared([a, b], counts)
        numbers = [sorted(p.partition for p in member.held) for member in (a, b)]
        assert sorted(numbers) == [[0, 1], [2, 3]]


async def test_topics_that_match_a_pattern_are_shared_and_kafkas_own_left_alone(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_cluster(cluster_factory)
    stem = unique_name()
    counts = await topic_with(cluster, f"{stem}-a", 2)
    other = Kip848Member(cluster.bootstrap, group, [], pattern=f"(?:{stem}|__consumer_offsets)")
    async with (
        Kip848Member(cluster.bootstrap, group, [], pattern=f"{stem}-.*") as a,
        contextlib.AsyncExitStack() as later,
    ):
        await shared([a], counts)
        b = await later.enter_async_context(other)
        await shared([a, b], counts)
        await asyncio.to_thread(cluster.add_partitions, f"{stem}-a", 4)
        counts[f"{stem}-a"] = 4
        await shared([a, b], counts)
        counts |= await topic_with(cluster, f"{stem}-b", 3)
        await shared([a, b], counts)
        a.membership.subscribe([f"{stem}-a"])
        b.membership.subscribe([f"{stem}-b"])
        await wait_until_async(
            lambda: {p.topic for p in a.held} == {f"{stem}-a"} and {p.topic for p in b.held} == {f"{stem}-b"},
            30,
            "each to have what it subscribed to",
        )
        await shared([a, b], counts)


async def test_a_member_that_does_not_release_in_time_stops_before_it_is_removed(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_cluster(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 4)
    history = History()
    async with Kip848Member(cluster.bootstrap, group, counts, name="a", history=history, rebalance_timeout_s=4.0) as a:
        await shared([a], counts)
        a.owner.may_drain.clear()
        async with Kip848Member(cluster.bootstrap, group, counts, name="b", history=history) as b:
            await wait_until_async(lambda: a.owner.lost_partitions, 30, "the loss")
            assert a.owner.suspensions == ["this member has not joined the rebalance in time"]
            a.owner.may_drain.set()
            await shared([a, b], counts)
    assert history.overlaps() == []


async def test_a_restarted_static_member_gets_its_partitions_again(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_cluster(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 4)
    async with Kip848Member(cluster.bootstrap, group, counts, name="a") as a:
        async with Kip848Member(cluster.bootstrap, group, counts, name="b", instance_id="b") as b:
            await shared([a, b], counts)
            before, others = b.held, a.held
        async with Kip848Member(cluster.bootstrap, group, counts, name="b", instance_id="b") as b:
            await shared([a, b], counts)
            assert (b.held, a.held) == (before, others)
            twin = Kip848Member(cluster.bootstrap, group, counts, name="twin", instance_id="b")
            await twin.client.connect(20)
            joining = asyncio.ensure_future(twin.membership.join())
            await wait_until_async(lambda: twin.membership.group.failure, 30, "the refusal")
            await b.membership.leave()
            await joining
            await shared([a, twin], counts)
            assert twin.held == before
            await twin.__aexit__()
        assert not [what for _, _, what, _ in a.owner.history.events if what == "end"][1:]


async def test_members_of_allocator_and_confluent_kafka_are_one_group(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_cluster(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    async with Kip848Member(cluster.bootstrap, group, counts, history=history) as one:
        await shared([one], counts)
        async with ConfluentKip848(cluster.bootstrap, group, counts, history=history) as peer:
            await shared([one, peer], counts, 60)
            async with Kip848Member(cluster.bootstrap, group, counts, name="third", history=history) as third:
                await shared([one, peer, third], counts, 60)
            await shared([one, peer], counts, 60)
        await shared([one], counts, 60)
        assert one.owner.errors == []
    assert history.overlaps() == []


@pytest.mark.parametrize(
    "assignor", ["cooperative-sticky", *(pytest.param(each, marks=pytest.mark.long) for each in ("range", "weighted"))]
)
async def test_a_classic_group_is_moved_while_it_runs_and_back(
    assignor: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_cluster(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    classic = {"assignors": [assignor], "history": history}
    async with Kip848Member(cluster.bootstrap, f"{group}-before", counts) as probe:
        # a coordinator that does not know a new topic yet cannot assign it when it takes over a group
        await shared([probe], counts)
    async with ClassicMember(cluster.bootstrap, group, counts, name="old", **classic) as old:
        await shared([old], counts)
        await old.offsets.commit({min(old.held): at(3)})
        async with Kip848Member(cluster.bootstrap, group, counts, name="new", history=history) as new:
            await shared([old, new], counts, 60)
            assert new.membership.generation > 0
            for member in (old, new):
                await member.offsets.commit({min(member.held): at(4)})
        await shared([old], counts, 60)
        await old.offsets.commit({min(old.held): at(5)})
        assert old.owner.errors == []
    assert history.overlaps() == []


@pytest.mark.long
@pytest.mark.deadline(240)
@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_the_group_outlives_its_coordinator(
    fault: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_cluster(cluster_factory, brokers=3)
    topic = unique_name()
    await asyncio.to_thread(cluster.create_topic, topic, 6, 3)
    counts = {topic: 6}
    history = History()
    async with (
        Kip848Member(cluster.bootstrap, group, counts, name="a", history=history) as a,
        Kip848Member(cluster.bootstrap, group, counts, name="b", history=history) as b,
    ):
        await shared([a, b], counts)
        async with without_its_coordinator(cluster, group, [a, b], fault):
            await settle([a, b], counts)
        await settle([a, b], counts)
    assert history.overlaps() == []


@pytest.mark.long
@pytest.mark.deadline(400)
@pytest.mark.parametrize("seed", range(3))
async def test_in_any_history_a_partition_has_one_owner_at_most(
    seed: int, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    """Members join, leave, crash and are cut off, drains are slow, and the broker is killed."""
    cluster = await start_cluster(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 12)
    history, chance = History(), random.Random(seed)
    alive: list[Kip848Member] = []
    unreachable: dict[Kip848Member, contextlib.ExitStack] = {}
    for step in range(25):
        reachable = [m for m in alive if m not in unreachable]
        what = chance.choice(["join", "join", "leave", "die", "cut off", "reconnect", "slow", "quick"])
        if (what == "join" and len(alive) < 5) or not reachable:
            alive.append(
                await Kip848Member(cluster.bootstrap, group, counts, name=f"m{step}", history=history).__aenter__()
            )
        elif what == "leave":
            member = chance.choice(reachable)
            alive.remove(member)
            await member.__aexit__()
        elif what == "die":
            member = chance.choice(reachable)
            alive.remove(member)
            await member.vanish()
        elif what == "cut off":
            member = chance.choice(reachable)
            unreachable[member] = contextlib.ExitStack()
            unreachable[member].enter_context(cut_off(member))
        elif what == "reconnect" and unreachable:
            unreachable.pop(chance.choice(list(unreachable))).close()
        elif what in ("slow", "quick"):
            chance.choice(reachable).owner.may_drain.clear() if what == "slow" else [
                m.owner.may_drain.set() for m in alive
            ]
        if step == 12:
            (broker,) = cluster.brokers
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await asyncio.sleep(chance.uniform(0, 2.5))
    for cut in unreachable.values():
        cut.close()
    for member in alive:
        member.owner.may_drain.set()
    await shared(alive, counts, 90)
    await wait_until_async(lambda: all(m.membership.may_act() for m in alive), 60, "all to act")
    for member in alive:
        await member.__aexit__()
    assert history.overlaps() == []
    assert history.moves() > 12
