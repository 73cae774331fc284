"""Groups of both of Kafka's protocols on real brokers, only with allocator's members."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from allocator.errors import CommitFailed, Fenced
from allocator.protocols.kafka_classic.group import GroupPhase
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.groups.kafka_members import FAST, ClassicMember, cut_off, shared, start, topic_with
from tests.groups.kip848_members import QUICK, Kip848Member
from tests.groups.members import History
from tests.kafka_versions import on_versions

VERSIONS = on_versions("3.9.1", since="0.9.0.1", without=["0.11.0.3"])

of_each_protocol = pytest.mark.parametrize(
    ("protocol", "kafka"),
    [
        *(pytest.param(ClassicMember, *getattr(v, "values", (v,)), marks=getattr(v, "marks", ())) for v in VERSIONS),
        (Kip848Member, NEWEST),
        pytest.param(Kip848Member, "4.1.1", marks=pytest.mark.long),
    ],
)

pytestmark = pytest.mark.deadline(180)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, "", -1)


async def start_for(protocol: Any, cluster_factory: Any, kafka: str) -> LocalCluster:
    if protocol is ClassicMember:
        return await start(cluster_factory, kafka=kafka)
    return await start(cluster_factory, kafka=kafka, zookeepers=0, broker_config=QUICK)


@of_each_protocol
async def test_members_join_leave_and_die(
    protocol: Any, kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_for(protocol, cluster_factory, kafka)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()

    def member(name: str) -> Any:
        return protocol(cluster.bootstrap, group, counts, name=name, history=history)

    async with member("a") as a:
        await shared([a], counts)
        async with member("b") as b:
            await shared([a, b], counts)
            assert {len(a.held), len(b.held)} == {3}
            assert a.membership.generation == b.membership.generation > 1
            assert a.membership.may_act()
            assert b.membership.may_act()
        await shared([a], counts)
        c = member("c")
        await c.__aenter__()
        await shared([a, c], counts)
        await c.vanish()
        await shared([a], counts, 60)  # once its session is over
        assert a.owner.errors == []
        if protocol is Kip848Member:  # only the moved partitions stopped
            assert all(len(parts) == 3 for _, name, what, parts in history.events if (name, what) == ("a", "end"))
    assert history.overlaps() == []
    assert a.held == frozenset()


@of_each_protocol
async def test_processed_records_are_committed_before_the_next_owner_begins(
    protocol: Any, kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_for(protocol, cluster_factory, kafka)
    counts = await topic_with(cluster, unique_name(), 4)
    history = History()
    async with protocol(cluster.bootstrap, group, counts, name="a", history=history) as a:
        await shared([a], counts)
        revoked = a.owner.revoked

        async def commits(parts: frozenset[TopicPartition]) -> None:
            await asyncio.sleep(1)  # several heartbeats, none of which may release a partition that is being drained
            await a.offsets.commit({p: at(7) for p in parts})
            await revoked(parts)

        a.owner.revoked = commits  # type: ignore[method-assign]
        async with protocol(cluster.bootstrap, group, counts, name="b", history=history) as b:
            await shared([a, b], counts)
            found = await b.offsets.fetch(b.held)
            assert {p: value.offset for p, value in found.items()} == dict.fromkeys(b.held, 7)
            await b.offsets.commit({p: at(8) for p in b.held})
            with pytest.raises(CommitFailed, match="does not hold it"):
                await a.offsets.commit({p: at(9) for p in b.held})
    with pytest.raises(CommitFailed):
        await a.offsets.commit({min(found): at(9)})
    assert history.overlaps() == []


@of_each_protocol
async def test_a_member_that_was_cut_off_beyond_its_session_is_fenced_and_joins_again(
    protocol: Any, kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start_for(protocol, cluster_factory, kafka)
    counts = await topic_with(cluster, unique_name(), 4)
    history = History()
    async with (
        protocol(cluster.bootstrap, group, counts, name="a", history=history) as a,
        protocol(cluster.bootstrap, group, counts, name="b", history=history) as b,
    ):
        await shared([a, b], counts)
        moved, stale = min(b.held), b.membership.identity
        await b.offsets.commit({moved: at(1)})
        with cut_off(b):
            await wait_until_async(lambda: b.owner.suspensions, 30, "the lease to lapse")
            assert not b.membership.may_act()
            assert b.membership.identity == stale
            await shared([a], counts, 60)
            await a.offsets.commit({moved: at(2)})
        with pytest.raises(Fenced):
            await b.offsets.commit({moved: at(99)})
        await shared([a, b], counts, 60)
        await wait_until_async(b.membership.may_act, 30, "it to act again")
        assert b.membership.identity != stale
        assert (await a.offsets.fetch([moved]))[moved].offset == 2
        assert a.owner.errors == []
    assert history.overlaps() == []


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_a_member_that_leaves_during_a_rebalance_commits_and_delays_no_other(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka=kafka)
    counts = await topic_with(cluster, unique_name(), 4)
    history = History()

    def member(name: str) -> ClassicMember:
        assignors = ["cooperative-sticky"]
        return ClassicMember(cluster.bootstrap, group, counts, name=name, history=history, assignors=assignors)

    async with member("b") as b:
        a = member("a")
        await a.__aenter__()
        await shared([a, b], counts)
        held, revoked, working, done = a.held, a.owner.revoked, asyncio.Event(), asyncio.Event()

        async def finishes(parts: Any) -> None:
            working.set()
            await done.wait()
            await a.offsets.commit({p: at(7) for p in parts})
            await revoked(parts)

        a.owner.revoked = finishes  # type: ignore[method-assign]
        before, clock = b.membership.generation, asyncio.get_running_loop().time
        with cut_off(b):  # the rebalance waits for b
            a.membership.group.request_rejoin("for the test")
            await wait_until_async(lambda: a.membership.group.phase is GroupPhase.JOINING, 30, "it to join")
            leaving = asyncio.ensure_future(a.__aexit__(None, None, None))
            await working.wait()
        began = clock()
        await wait_until_async(lambda: b.membership.generation > before, 30, "the rebalance to end")
        assert clock() - began < FAST["session_timeout_s"] - 1
        done.set()
        await leaving
        await shared([b], counts)
        found = await b.offsets.fetch(held)
        assert {p: value.offset for p, value in found.items()} == dict.fromkeys(held, 7)
    assert history.overlaps() == []


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_new_partitions_and_topics_are_assigned(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka=kafka)
    stem = unique_name()
    counts = await topic_with(cluster, f"{stem}-a", 2)
    async with (
        ClassicMember(cluster.bootstrap, group, [], pattern=f"{stem}-.*") as a,
        ClassicMember(cluster.bootstrap, group, [], pattern=f"{stem}-.*") as b,
    ):
        await shared([a, b], counts)
        await asyncio.to_thread(cluster.add_partitions, f"{stem}-a", 4)
        counts[f"{stem}-a"] = 4
        await shared([a, b], counts)
        counts |= await topic_with(cluster, f"{stem}-b", 3)
        await shared([a, b], counts)


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "sticky"])
async def test_only_cooperative_members_keep_what_does_not_move(
    assignor: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka="3.9.1")
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    common = {"history": history, "assignors": [assignor], "timing": {"heartbeat_interval_s": 0.1}}
    async with ClassicMember(cluster.bootstrap, group, counts, name="a", **common) as a:
        await shared([a], counts)
        before = a.held
        async with ClassicMember(cluster.bootstrap, group, counts, name="b", **common) as b:
            await shared([a, b], counts)
            stopped = {p for _, member, what, parts in history.events if (member, what) == ("a", "end") for p in parts}
            assert stopped == (before - a.held if assignor == "cooperative-sticky" else before)
            assert a.held < before  # with both assignors, the remaining partitions stay
    assert history.overlaps() == []


@pytest.mark.parametrize("kafka", VERSIONS)
@pytest.mark.parametrize("assignor", ["range", pytest.param("cooperative-sticky", marks=pytest.mark.long)])
async def test_a_topic_that_is_deleted_and_created_again_during_the_group(
    kafka: str, assignor: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka=kafka)
    stays, goes = unique_name(), unique_name()
    counts = {**await topic_with(cluster, stays, 2), **await topic_with(cluster, goes, 4)}
    history = History()
    common = {"history": history, "assignors": [assignor]}
    async with (
        ClassicMember(cluster.bootstrap, group, counts, name="a", **common) as a,
        ClassicMember(cluster.bootstrap, group, counts, name="b", **common) as b,
    ):
        await shared([a, b], counts)
        await asyncio.to_thread(cluster.delete_topic, goes)
        await shared([a, b], {stays: 2})
        await topic_with(cluster, goes, 6)
        await shared([a, b], {stays: 2, goes: 6})
        await asyncio.to_thread(cluster.add_partitions, goes, 7)
        await shared([a, b], {stays: 2, goes: 7})
        assert a.owner.errors == b.owner.errors == []
    assert history.overlaps() == []
