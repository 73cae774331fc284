"""Groups of the next-generation protocol on real brokers: ours alone, and with members of other clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_members import shared, topic_with
from members import History
from next_members import QUICK, Next

from allocator.testing import LocalCluster
from allocator.types import OffsetAndMetadata

pytestmark = pytest.mark.deadline(180)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, "", -1)


async def start(cluster_factory: Any, **options: Any) -> LocalCluster:
    cluster: LocalCluster = await asyncio.to_thread(
        lambda: cluster_factory(kafka="4.1.1", zookeepers=0, broker_config=QUICK, **options)
    )
    return cluster


async def test_members_share_leave_and_die(cluster_factory: Any, unique_name: Any, group: str) -> None:
    cluster = await start(cluster_factory)
    counts = await topic_with(cluster, unique_name(), 6)
    history = History()
    async with Next(cluster.bootstrap, group, counts, name="a", history=history) as a:
        await shared([a], counts)
        before = a.held
        async with Next(cluster.bootstrap, group, counts, name="b", history=history) as b:
            await shared([a, b], counts)
            assert {len(a.held), len(b.held)} == {3}
            assert a.held < before
            assert a.membership.may_act()
            assert b.membership.may_act()
            assert a.membership.generation == b.membership.generation > 1
        await shared([a], counts)
        c = Next(cluster.bootstrap, group, counts, name="c", history=history)
        await c.__aenter__()
        await shared([a, c], counts)
        await c.vanish()
        await shared([a], counts, 60)  # once its session is over
        assert a.owner.errors == []
        stopped = [parts for _, member, what, parts in history.events if (member, what) == ("a", "end")]
        assert all(len(parts) == 3 for parts in stopped)  # only what moved
    assert history.overlaps() == []
    assert a.held == frozenset()
