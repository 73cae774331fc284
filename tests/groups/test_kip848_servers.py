"""KIP-848 groups on real brokers: with this library alone, and with other clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from kafka_members import ClassicMember, shared, topic_with
from kip848_members import QUICK, ConfluentKip848, Kip848Member
from members import History

from allocator.errors import BrokerError, ConfigError, Fenced
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.deadline(180)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, "", -1)


async def start(cluster_factory: Any, kafka: str = NEWEST, **options: Any) -> LocalCluster:
    cluster: LocalCluster = await asyncio.to_thread(
        lambda: cluster_factory(kafka=kafka, zookeepers=0, broker_config=QUICK, **options)
    )
    return cluster


@pytest.mark.parametrize("kafka", [NEWEST, pytest.param("4.1.1", marks=pytest.mark.long)])
async def test_members_share_leave_and_die(kafka: str, cluster_factory: Any, unique_name: Any, group: str) -> None:
    cluster = await start(cluster_factory, kafka)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    async with Kip848Member(cluster.bootstrap, group, counts, name="a", history=history) as a:
        await shared([a], counts)
        before = a.held
        async with Kip848Member(cluster.bootstrap, group, counts, name="b", history=history) as b:
            await shared([a, b], counts)
            assert {len(a.held), len(b.held)} == {3}
            assert a.held < before
            assert a.membership.may_act()
            assert b.membership.may_act()
            assert a.membership.generation == b.membership.generation > 1
        await shared([a], counts)
        c = Kip848Member(cluster.bootstrap, group, counts, name="c", history=history)
        await c.__aenter__()
        await shared([a, c], counts)
        await c.vanish()
        await shared([a], counts, 60)  # once its session is over
        assert a.owner.errors == []
        stopped = [parts for _, member, what, parts in history.events if (member, what) == ("a", "end")]
        assert all(len(parts) == 3 for parts in stopped)  # only the moved partitions
    assert history.overlaps() == []
    assert a.held == frozenset()


async def test_the_server_assignor_is_chosen_by_name(cluster_factory: Any, unique_name: Any, group: str) -> None:
    cluster = await start(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 4)
    async with (
        Kip848Member(cluster.bootstrap, group, counts, server_assignor="range") as a,
        Kip848Member(cluster.bootstrap, group, counts, server_assignor="range") as b,
    ):
        await shared([a, b], counts)
        numbers = [sorted(p.partition for p in member.held) for member in (a, b)]
        assert sorted(numbers) == [[0, 1], [2, 3]]


async def test_brokers_without_the_protocol_are_told_of(cluster_factory: Any, unique_name: Any, group: str) -> None:
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka="3.9.1")
    member = Kip848Member(cluster.bootstrap, group, ["t"])
    with pytest.raises(ConfigError, match=r"KIP-848.*from 4\.0 on.*use the classic one"):
        await member.__aenter__()
    await member.client.close()


async def test_topics_that_match_a_pattern_are_shared_and_kafkas_own_left_alone(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory)
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


async def test_what_was_done_is_committed_before_others_begin(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 4)
    history = History()
    async with Kip848Member(cluster.bootstrap, group, counts, name="a", history=history) as a:
        await shared([a], counts)
        everything, revoked = a.held, a.owner.revoked

        async def commits(parts: frozenset[TopicPartition]) -> None:
            await asyncio.sleep(1)  # several heartbeats, none of which may release a partition that is being drained
            await a.offsets.commit({p: at(7) for p in parts})
            await revoked(parts)

        a.owner.revoked = commits  # type: ignore[method-assign]
        async with Kip848Member(cluster.bootstrap, group, counts, name="b", history=history) as b:
            await shared([a, b], counts)
            found = await b.offsets.fetch(everything, require_stable=True)
            assert {p: value.offset for p, value in found.items()} == dict.fromkeys(b.held, 7)
            await b.offsets.commit({p: at(8) for p in b.held})
            with pytest.raises(Fenced, match="does not hold it"):
                await a.offsets.commit({p: at(9) for p in b.held})
    assert history.overlaps() == []


async def test_a_member_that_was_cut_off_beyond_its_session_is_fenced_and_comes_back(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 4)
    history = History()
    async with (
        Kip848Member(cluster.bootstrap, group, counts, name="a", history=history) as a,
        Kip848Member(cluster.bootstrap, group, counts, name="b", history=history) as b,
    ):
        await shared([a, b], counts)
        mine, stale = min(b.held), b.membership.identity
        send = b.client.send

        back = asyncio.Event()

        async def lost(*_: Any, **__: Any) -> Any:
            await back.wait()
            raise BrokerError("the connection was lost", retriable=True)

        b.client.send = lost  # type: ignore[method-assign]
        await wait_until_async(lambda: b.owner.suspensions, 30, "the lease to lapse")
        assert not b.membership.may_act()
        assert b.membership.identity == stale
        await shared([a], counts, 60)
        b.client.send = send  # type: ignore[method-assign]
        back.set()
        with pytest.raises(Fenced, match=r"UNKNOWN_MEMBER_ID|no member"):
            await b.offsets.commit({mine: at(99)})
        await shared([a, b], counts, 60)
        assert mine not in await a.offsets.fetch([mine])
        assert b.membership.identity != stale
        await b.offsets.commit({min(b.held): at(1)})
    assert history.overlaps() == []


async def test_a_member_that_does_not_release_in_time_stops_before_it_is_removed(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory)
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


async def test_a_static_member_comes_back_to_what_it_had(cluster_factory: Any, unique_name: Any, group: str) -> None:
    cluster = await start(cluster_factory)
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


async def test_ours_and_confluent_kafkas_members_are_one_group(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    async with Kip848Member(cluster.bootstrap, group, counts, history=history) as ours:
        await shared([ours], counts)
        async with ConfluentKip848(cluster.bootstrap, group, counts, history=history) as theirs:
            await shared([ours, theirs], counts, 60)
            async with Kip848Member(cluster.bootstrap, group, counts, name="third", history=history) as third:
                await shared([ours, theirs, third], counts, 60)
            await shared([ours, theirs], counts, 60)
        await shared([ours], counts, 60)
        assert ours.owner.errors == []
    assert history.overlaps() == []


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky", "weighted"])
async def test_a_classic_group_is_moved_while_it_runs_and_back(
    assignor: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    classic = {"assignors": [assignor], "history": history}
    async with Kip848Member(cluster.bootstrap, f"{group}-before", counts) as probe:
        # a coordinator that does not know a new topic yet cannot tell its owner when it takes over a group
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
    cluster = await start(cluster_factory, brokers=3)
    topic = unique_name()
    await asyncio.to_thread(cluster.create_topic, topic, 6, 3)
    counts = {topic: 6}
    history = History()
    async with (
        Kip848Member(cluster.bootstrap, group, counts, name="a", history=history) as a,
        Kip848Member(cluster.bootstrap, group, counts, name="b", history=history) as b,
    ):
        await shared([a, b], counts)
        (victim,) = (broker for broker in cluster.brokers if broker.id == a.membership.group.coordinator)
        try:
            await asyncio.to_thread(getattr(victim, fault))
            await wait_until_async(
                lambda: all(m.membership.group.coordinator not in (None, victim.id) for m in (a, b)), 90, "another one"
            )
            await shared([a, b], counts, 60)
            await wait_until_async(lambda: a.membership.may_act() and b.membership.may_act(), 60, "both to act")
            await a.offsets.commit({min(a.held): at(1)})
        finally:
            await asyncio.to_thread(victim.resume if fault == "pause" else victim.start)
        await shared([a, b], counts, 60)
    assert history.overlaps() == []


@pytest.mark.long
@pytest.mark.deadline(400)
@pytest.mark.parametrize("seed", range(3))
async def test_in_any_history_a_partition_has_one_owner_at_most(
    seed: int, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    """Members join, leave, crash and are cut off, drains are slow, and the broker is killed."""
    cluster = await start(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 12)
    history, chance = History(), random.Random(seed)
    alive: list[Kip848Member] = []
    behind_walls: list[tuple[Kip848Member, Any, asyncio.Event]] = []

    def cut_off(member: Kip848Member) -> None:
        back = asyncio.Event()

        async def lost(*_: Any, **__: Any) -> Any:
            await back.wait()
            raise BrokerError("the connection was lost", retriable=True)

        behind_walls.append((member, member.client.send, back))
        member.client.send = lost  # type: ignore[method-assign]

    def let_back(wall: tuple[Kip848Member, Any, asyncio.Event]) -> None:
        member, send, back = wall
        behind_walls.remove(wall)
        member.client.send = send  # type: ignore[method-assign]
        back.set()

    for step in range(25):
        reachable = [m for m in alive if m not in [wall[0] for wall in behind_walls]]
        what = chance.choice(["join", "join", "leave", "die", "cut off", "let back", "slow", "quick"])
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
            cut_off(chance.choice(reachable))
        elif what == "let back" and behind_walls:
            let_back(chance.choice(behind_walls))
        elif what in ("slow", "quick"):
            chance.choice(reachable).owner.may_drain.clear() if what == "slow" else [
                m.owner.may_drain.set() for m in alive
            ]
        if step == 12:
            (broker,) = cluster.brokers
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await asyncio.sleep(chance.uniform(0, 2.5))
    for wall in list(behind_walls):
        let_back(wall)
    for member in alive:
        member.owner.may_drain.set()
    await shared(alive, counts, 90)
    await wait_until_async(lambda: all(m.membership.may_act() for m in alive), 60, "all to act")
    for member in alive:
        await member.__aexit__()
    assert history.overlaps() == []
    assert history.moves() > 12
