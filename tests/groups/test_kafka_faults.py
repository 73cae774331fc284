"""Kafka groups whose coordinator crashes or hangs, at each step of a member."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest

from allocator.protocols.kafka_classic.group import GroupPhase
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import OffsetAndMetadata
from tests.groups.kafka_members import ClassicMember, coordinator_of, shared
from tests.groups.members import History
from tests.groups.real_member import RealMember
from tests.kafka_versions import on_versions
from tests.racked import racked_brokers

VERSIONS = on_versions("3.9.1", since="0.9.0.1", without=["0.11.0.3"])

pytestmark = pytest.mark.deadline(280)

# far longer than these tests wait: a member that waits for it has not noticed the fault
TIMING = {"session_timeout_s": 10.0, "rebalance_timeout_s": 200.0}


def phases(members: Sequence[ClassicMember]) -> list[GroupPhase]:
    return [each.membership.group.phase for each in members]


async def reach(members: Sequence[ClassicMember], *wanted: GroupPhase) -> None:
    def what() -> str:
        return f"{wanted}, not {phases(members)}"

    await wait_until_async(lambda: phases(members) == list(wanted), 30, what)


class Setting:
    """Three brokers, and members of one group."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        self.cluster, self.counts, self.group, self.history = cluster, {topic: 6}, group, History()
        cluster.create_topic(topic, 6, 3)

    def member(self, name: str) -> ClassicMember:
        return ClassicMember(
            self.cluster.bootstrap,
            self.group,
            self.counts,
            name=name,
            history=self.history,
            # before 0.10.1 the session timeout is the time for draining too
            timing=TIMING,
            connect_timeout_s=None,
        )


@pytest.fixture
def setting(cluster_factory: Any, kafka: str, unique_name: Any, group: str) -> Iterator[Setting]:
    setting = Setting(racked_brokers(cluster_factory, kafka), unique_name(), group)
    yield setting
    assert setting.history.overlaps() == []


@contextlib.asynccontextmanager
async def without_its_coordinator(
    cluster: LocalCluster, group: str, members: Sequence[RealMember], fault: str
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


async def settle(members: Sequence[RealMember], counts: Mapping[str, int]) -> None:
    """All partitions are shared, and all members work and may commit."""
    await shared(members, counts, 90)
    await wait_until_async(lambda: all(each.membership.may_act() for each in members), 60, "all to act")
    for n, each in enumerate(members):
        first = min(each.held)
        await each.offsets.commit({first: OffsetAndMetadata(n + 1, "", -1)})
        assert (await each.offsets.fetch([first]))[first].offset == n + 1


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("kafka", VERSIONS)
async def test_a_group_in_the_middle_of_joining_outlives_its_coordinator(fault: str, setting: Setting) -> None:
    """One member drains, one has joined again, and one joins for the first time: it sends no heartbeats yet."""
    cluster, group, counts = setting.cluster, setting.group, setting.counts
    a, b, c = map(setting.member, "abc")
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


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("kafka", VERSIONS)
async def test_a_group_in_the_middle_of_syncing_outlives_its_coordinator(fault: str, setting: Setting) -> None:
    """The leader computes the assignment while the other members wait for it."""
    cluster, group, counts = setting.cluster, setting.group, setting.counts
    a, b = map(setting.member, "ab")
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


@pytest.mark.parametrize("fault", ["kill", pytest.param("pause", marks=pytest.mark.long)])
@pytest.mark.parametrize("kafka", VERSIONS)
async def test_a_group_at_work_outlives_its_coordinator(fault: str, setting: Setting) -> None:
    cluster, group, counts = setting.cluster, setting.group, setting.counts
    a, b = map(setting.member, "ab")
    async with a, b:
        await shared([a, b], counts)
        async with without_its_coordinator(cluster, group, [a, b], fault):
            await settle([a, b], counts)
        await settle([a, b], counts)
