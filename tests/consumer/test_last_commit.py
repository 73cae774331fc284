"""Done records are committed before a member leaves, although its connection to ZooKeeper is lost for a moment."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

import allocator
from allocator import Consumer, RebalanceListener, Record
from allocator.core.client import coordinator
from allocator.core.consumer import group_member
from allocator.errors import CommitFailed
from allocator.operate.switching import SwitchingConsumer
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, choose_cluster
from allocator.testing import FaultProxy, LocalCluster, produce, wait_until_async
from allocator.types import OffsetStorage, TopicPartition
from tests.constants import SetConstant
from tests.groups.zookeeper_sessions import session
from tests.inside import member_of

pytestmark = pytest.mark.deadline(150)


@pytest.mark.parametrize("kind", ["reader", "process", "switching"])
async def test_a_leaving_member_commits_although_its_connection_to_zookeeper_was_lost(
    kind: str,
    kafka_cluster: LocalCluster,
    zk_chroot: str,
    topic_factory: Callable[..., str],
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    topic = await asyncio.to_thread(topic_factory, 1)
    await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, [b"v"] * 9)
    address, _, chroot = zk_chroot.partition("/")
    seen: list[int] = []
    async with FaultProxy(int(address.rpartition(":")[2])) as proxy:
        where: dict[str, Any] = {
            "brokers": kafka_cluster.bootstrap,
            "group": group,
            "zookeeper": f"{proxy.address}/{chroot}",
            "membership": allocator.ZooKeeper(session_timeout_s=20.0),
            "auto_commit_interval_s": 60.0,
        }
        consumer: Any = (SwitchingConsumer if kind == "switching" else Consumer)(topic, **where)
        await consumer.start()
        work: list[asyncio.Future[Any]] = []
        if kind == "process":
            work.append(
                asyncio.ensure_future(consumer.process(lambda each: seen.append(each.offset), commit_interval_s=60.0))
            )
        else:
            seen += [each.offset for each in await consumer.getbatch(60)]
        await wait_until_async(lambda: len(seen) == 9, 60, "the records to be handled")
        if kind == "switching":
            async with session(zk_chroot) as ensemble:
                await choose_cluster(ensemble, choice_path("/allocator", group), ClusterChoice(frozen=True))
            await wait_until_async(lambda: "frozen=True" in caplog.text, 60, "the choice to be noticed")
        elif kind == "reader":
            await consumer.getbatch(0)  # they are done
        proxy.drop()
        proxy.reset()
        member = member_of(consumer)  # to ask the consumer would refuse the records in hand
        await wait_until_async(lambda: not member.membership.may_act(), 60, "the loss of the connection to be noticed")
        leaving = asyncio.ensure_future(consumer.getbatch(0) if kind == "switching" else consumer.close())
        done, _ = await asyncio.wait({leaving}, timeout=0.5)
        assert not done
        proxy.heal()
        await asyncio.wait_for(asyncio.gather(leaving, *work), 60)
        await consumer.close()
    async with Consumer(brokers=kafka_cluster.bootstrap, group=group, membership="fixed") as reader:
        found = await reader.committed((topic, 0))
    assert found.offset == 9


@pytest.mark.parametrize("offsets", ["kafka", "both"])
async def test_releases_do_not_wait_one_after_another_for_a_silent_coordinator(
    offsets: OffsetStorage,
    kafka_cluster: LocalCluster,
    zk_chroot: str,
    topic_factory: Callable[..., str],
    group: str,
    set_constant: SetConstant,
) -> None:
    """Kafka hangs, and the work on each partition ends later than that on the one before."""
    set_constant(group_member, RELEASE_PATIENCE_S=2.0)
    set_constant(coordinator, PATIENCE_S=1.0)
    topic = await asyncio.to_thread(topic_factory, 3)
    await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, [b"v"] * 3)  # one for each partition
    ends, begun, released = [asyncio.Event() for _ in range(3)], set(), set()

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            released.update(number for _, number in partitions)

    async def handle(record: Record) -> None:
        begun.add(record.partition)
        await ends[record.partition].wait()

    where: dict[str, Any] = {"brokers": kafka_cluster.bootstrap, "group": group, "zookeeper": zk_chroot}
    async with Consumer(topic, listener=Listener(), offsets=offsets, **where) as consumer:
        work = asyncio.ensure_future(consumer.process(handle, concurrency=3, commit_interval_s=0.2))
        await wait_until_async(lambda: len(begun) == 3, 60, "the calls of the handler")
        kafka_cluster.brokers[0].pause()
        try:
            began = time.monotonic()
            closing = asyncio.ensure_future(consumer.close())
            for number, end in enumerate(ends):
                end.set()
                await wait_until_async(lambda number=number: number in released, 60, "a release")  # type: ignore[misc]
            await asyncio.wait_for(closing, 60)
            with pytest.raises(CommitFailed):
                await asyncio.wait_for(work, 60)
            assert time.monotonic() - began < 25
        finally:
            kafka_cluster.brokers[0].resume()
