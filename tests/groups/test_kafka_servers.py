"""Kafka groups on real brokers, only with members of this library."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from kafka_members import ClassicMember, shared, topic_with
from kafka_process import member_process
from members import History

from allocator.errors import CommitFailed
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

VERSIONS = [
    "0.9.0.1",
    pytest.param("0.10.2.2", marks=pytest.mark.long),
    pytest.param("1.1.1", marks=pytest.mark.long),
    pytest.param("2.8.2", marks=pytest.mark.long),
    "3.9.1",
    pytest.param("4.1.1", marks=pytest.mark.long),
    pytest.param(NEWEST, marks=pytest.mark.long),
]

pytestmark = pytest.mark.deadline(180)


async def start(cluster_factory: Any, kafka: str) -> LocalCluster:
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka=kafka)
    return cluster


@pytest.mark.parametrize("kafka", VERSIONS)
@pytest.mark.parametrize("assignor", ["range", pytest.param("naive", marks=pytest.mark.long)])
async def test_members_share_leave_and_die(
    kafka: str, assignor: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    common = {"history": history, "assignors": [assignor]}
    async with ClassicMember(cluster.bootstrap, group, counts, name="a", **common) as a:
        await shared([a], counts)
        async with ClassicMember(cluster.bootstrap, group, counts, name="b", **common) as b:
            await shared([a, b], counts)
            assert {len(a.held), len(b.held)} == {3}
            assert a.membership.may_act()
            assert b.membership.may_act()
        await shared([a], counts)
        c = ClassicMember(cluster.bootstrap, group, counts, name="c", **common)
        await c.__aenter__()
        await shared([a, c], counts)
        await c.vanish()
        await shared([a], counts, 60)  # once its session is over
        assert a.owner.errors == []
    assert history.overlaps() == []
    assert a.held == frozenset()


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_commits_are_a_members_own_and_end_with_its_generation(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka)
    counts = await topic_with(cluster, unique_name(), 2)
    (topic,) = counts
    first = TopicPartition(topic, 0)
    async with ClassicMember(cluster.bootstrap, group, counts) as a:
        await shared([a], counts)
        await a.offsets.commit({first: OffsetAndMetadata(3, "", -1)})
        assert (await a.offsets.fetch([first]))[first].offset == 3
        # only members commit to a group with members
        a.offsets.committer = None
        with pytest.raises(CommitFailed):
            await a.offsets.commit({first: OffsetAndMetadata(9, "", -1)})
        a.offsets.committer = a.membership
        with pytest.raises(CommitFailed, match="does not hold it"):
            await a.offsets.commit({TopicPartition(topic, 7): OffsetAndMetadata(9, "", -1)})
        assert (await a.offsets.fetch([first]))[first].offset == 3
    with pytest.raises(CommitFailed):
        await a.offsets.commit({first: OffsetAndMetadata(9, "", -1)})


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_new_partitions_and_topics_are_shared(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka)
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
    cluster = await start(cluster_factory, "3.9.1")
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
async def test_a_process_that_was_stopped_beyond_its_session_is_fenced_and_comes_back(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka)
    counts = await topic_with(cluster, unique_name(), 4)
    (topic,) = counts
    history = History()
    async with (
        ClassicMember(cluster.bootstrap, group, counts, name="a", history=history) as a,
        member_process(cluster.bootstrap, group, topic, history) as other,
    ):
        await shared([a, other], counts)
        await wait_until_async(lambda: other.acted, 30, "it to act")
        mine = min(other.held)
        other.commit(mine.partition, 1)
        await wait_until_async(lambda: other.refusals, 30, "its commit")
        stopped = other.signal(signal.SIGSTOP)
        history.events.append((stopped, "process", "pause", frozenset()))
        try:
            await shared([a], counts, 60)
            await a.offsets.commit({mine: OffsetAndMetadata(2, "", -1)})
            other.commit(mine.partition, 99)
        finally:
            resumed = other.signal(signal.SIGCONT)
        await wait_until_async(lambda: len(other.refusals) == 2, 30, "its commit to be refused")
        assert other.refusals == [None, "Fenced"]
        # not by what it holds: it may be back with the same partitions at once
        await wait_until_async(
            lambda: any(event[1:3] == ("process", "lost") for event in history.events), 30, "it to hear of its loss"
        )
        await shared([a, other], counts, 60)
        assert (await a.offsets.fetch([mine]))[mine].offset == 2
        again = next(
            when for when, name, what, _ in history.events if name == "process" and when > resumed and what == "begin"
        )
        assert [when for when, held in other.acted if held and stopped + 0.1 < when < again] == []
        await wait_until_async(lambda: other.acted[-1][0] > again, 30, "it to act again")
        assert a.owner.errors == []
    lost = next(event for event in history.events if event[1:3] == ("process", "lost"))
    history.events.append((lost[0], "process", "go on", frozenset()))
    history.events.sort(key=lambda event: event[0])
    assert history.overlaps() == []


@pytest.mark.parametrize("kafka", VERSIONS)
@pytest.mark.parametrize("assignor", ["range", pytest.param("cooperative-sticky", marks=pytest.mark.long)])
async def test_a_topic_that_is_deleted_under_the_group_and_made_again(
    kafka: str, assignor: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka)
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


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_what_was_done_is_committed_before_others_begin(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await start(cluster_factory, kafka)
    counts = await topic_with(cluster, unique_name(), 4)
    async with ClassicMember(cluster.bootstrap, group, counts, name="a") as a:
        await shared([a], counts)
        everything, revoked = a.held, a.owner.revoked

        async def commits(parts: frozenset[TopicPartition]) -> None:
            await a.offsets.commit({p: OffsetAndMetadata(7, "", -1) for p in parts})
            await revoked(parts)

        a.owner.revoked = commits  # type: ignore[method-assign]
        async with ClassicMember(cluster.bootstrap, group, counts, name="b") as b:
            await shared([a, b], counts)
            found = await b.offsets.fetch(everything)
            assert {p: value.offset for p, value in found.items()} == dict.fromkeys(everything, 7)
