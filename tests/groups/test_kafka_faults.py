"""Kafka groups whose coordinator crashes or hangs, at each step of a member."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from kafka_members import ClassicMember, coordinator_of, shared
from members import History
from racked import racked_brokers

from allocator.protocols.kafka_classic.group import GroupPhase
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata

OTHERS = [pytest.param(v, marks=pytest.mark.long) for v in ("0.9.0.1", "0.10.2.2", "1.1.1", "2.8.2", "4.1.1", NEWEST)]

pytestmark = pytest.mark.deadline(280)

# far longer than these tests wait, so a member that only gives up then has not noticed
TIMING = {"session_timeout_s": 10.0, "rebalance_timeout_s": 200.0}


def member(cluster: LocalCluster, group: str, counts: Mapping[str, int], name: str, history: History) -> ClassicMember:
    # before 0.10.1 the session timeout is the time for draining too
    return ClassicMember(
        cluster.bootstrap, group, counts, name=name, history=history, timing=TIMING, connect_timeout_s=None
    )


def phases(members: Sequence[ClassicMember]) -> list[GroupPhase]:
    return [each.membership.group.phase for each in members]


async def reach(members: Sequence[ClassicMember], *wanted: GroupPhase) -> None:
    def what() -> str:
        return f"{wanted}, not {phases(members)}"

    await wait_until_async(lambda: phases(members) == list(wanted), 30, what)


async def three_brokers(cluster_factory: Any, kafka: str, topic: str) -> tuple[LocalCluster, dict[str, int]]:
    cluster = await asyncio.to_thread(racked_brokers, cluster_factory, kafka)
    await asyncio.to_thread(cluster.create_topic, topic, 6, 3)
    return cluster, {topic: 6}


@contextlib.asynccontextmanager
async def without_its_coordinator(
    cluster: LocalCluster, group: str, members: Sequence[ClassicMember], fault: str
) -> AsyncIterator[None]:
    """Kills or pauses the coordinator, waits until every member has found the next one, and restores it."""
    victim = await coordinator_of(cluster, group)
    await wait_until_async(  # the brokers may just have moved the group
        lambda: {each.membership.group.coordinator for each in members} == {victim.id},
        30,
        lambda: f"all to talk to {victim.id}: {[each.membership.group.coordinator for each in members]}",
    )
    try:
        await asyncio.to_thread(getattr(victim, fault))
        for each in members:
            await wait_until_async(
                lambda each=each: each.membership.group.coordinator not in (None, victim.id), 90, "its successor"
            )
        yield
    finally:
        await asyncio.to_thread(victim.resume if fault == "pause" else victim.start)


async def settle(members: Sequence[ClassicMember], counts: Mapping[str, int]) -> None:
    """All partitions are shared, and all members work and may commit."""
    await shared(members, counts, 90)
    await wait_until_async(lambda: all(each.membership.may_act() for each in members), 60, "all to act")
    for n, each in enumerate(members):
        first = min(each.held)
        await each.offsets.commit({first: OffsetAndMetadata(n + 1, "", -1)})
        assert (await each.offsets.fetch([first]))[first].offset == n + 1


@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("kafka", ["3.9.1", *OTHERS])
async def test_a_group_in_the_middle_of_joining_outlives_its_coordinator(
    fault: str, kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    """One member drains, one has joined again, and one joins for the first time: it sends no heartbeats yet."""
    cluster, counts = await three_brokers(cluster_factory, kafka, unique_name())
    history = History()
    a, b, c = (member(cluster, group, counts, name, history) for name in "abc")
    async with a, b, contextlib.AsyncExitStack() as later:
        await shared([a, b], counts)
        b.owner.may_drain.clear()
        joining = asyncio.ensure_future(later.enter_async_context(c))
        try:
            await reach([a, b, c], GroupPhase.JOINING, GroupPhase.PREPARING, GroupPhase.JOINING)
            async with without_its_coordinator(cluster, group, [a, b, c], fault):
                b.owner.may_drain.set()
                await settle([a, b, c], counts)
        finally:
            b.owner.may_drain.set()
            await joining
        await settle([a, b, c], counts)
    assert history.overlaps() == []


@pytest.mark.parametrize("fault", ["kill", pytest.param("pause", marks=pytest.mark.long)])
@pytest.mark.parametrize("kafka", ["3.9.1", *OTHERS])
async def test_a_group_in_the_middle_of_syncing_outlives_its_coordinator(
    fault: str, kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    """The leader computes the assignment while the other members wait for it."""
    cluster, counts = await three_brokers(cluster_factory, kafka, unique_name())
    history = History()
    a, b = (member(cluster, group, counts, name, history) for name in "ab")
    computed = asyncio.Event()
    compute = a.membership.compute_assignment

    async def waits(*about: Any) -> Any:
        await computed.wait()
        return await compute(*about)

    async with a, contextlib.AsyncExitStack() as later:
        await shared([a], counts)
        a.membership.compute_assignment = waits  # type: ignore[method-assign]
        joining = asyncio.ensure_future(later.enter_async_context(b))
        try:
            await reach([a, b], GroupPhase.SYNCING, GroupPhase.SYNCING)
            async with without_its_coordinator(cluster, group, [a, b], fault):
                computed.set()
                await settle([a, b], counts)
        finally:
            computed.set()
            await joining
        await settle([a, b], counts)
    assert history.overlaps() == []


@pytest.mark.parametrize("fault", ["kill", pytest.param("pause", marks=pytest.mark.long)])
@pytest.mark.parametrize("kafka", ["3.9.1", *OTHERS])
async def test_a_group_at_work_outlives_its_coordinator(
    fault: str, kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster, counts = await three_brokers(cluster_factory, kafka, unique_name())
    history = History()
    a, b = (member(cluster, group, counts, name, history) for name in "ab")
    async with a, b:
        await shared([a, b], counts)
        async with without_its_coordinator(cluster, group, [a, b], fault):
            await settle([a, b], counts)
        await settle([a, b], counts)
    assert history.overlaps() == []
