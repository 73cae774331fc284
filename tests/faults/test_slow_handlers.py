"""A handler that takes several session timeouts: its member keeps or loses its partitions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from allocator import Consumer, GroupCommands, RebalanceListener, TopicPartition
from allocator.errors import AllocatorError, CommitFailed, NotOwned
from allocator.testing import LocalCluster, WaitTimeout, wait_until_async
from tests.joining import joined

SESSION_S = 2.0


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append("assigned")

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append("revoked")

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append("lost")


MakeConsumer = Callable[..., Consumer]


@pytest.fixture
def make_consumer(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> MakeConsumer:
    """Creates consumers of one topic with one record."""
    topic = topic_factory(1)
    kafka_cluster.produce(topic, [b"work"])

    def make(listener: RebalanceListener, **settings: Any) -> Consumer:
        cluster = {"brokers": kafka_cluster.bootstrap, "zookeeper": kafka_cluster.zookeeper, "group": group}
        own = {"session_timeout_s": SESSION_S, "auto_commit_interval_s": None, **settings}
        return Consumer(topic, **joined(**cluster, listener=listener, **own))

    return make


async def first_partition(consumer: Consumer) -> TopicPartition:
    """Waits for the record; returns its partition."""
    record = await consumer.getone(30)
    assert record is not None
    return TopicPartition(record.topic, record.partition)


async def test_a_handler_that_awaits_keeps_its_membership_however_long_it_takes(make_consumer: MakeConsumer) -> None:
    listener = Listener()
    async with make_consumer(listener) as consumer:
        partition, member = await first_partition(consumer), consumer.member_id
        for _ in range(30):
            await asyncio.sleep(3 * SESSION_S / 30)
            assert consumer.assignment() == {partition}
        await consumer.until_may_act()
        await consumer.commit({partition: 1})
        assert consumer.member_id == member
        assert listener.events == ["assigned"]


async def test_a_handler_that_awaits_beyond_max_poll_interval_loses_the_partition_and_commits_no_more(
    make_consumer: MakeConsumer,
) -> None:
    listener = Listener()
    async with make_consumer(listener, max_poll_interval_s=1.0) as slow:
        partition = await first_partition(slow)
        async with make_consumer(Listener()) as other:
            await wait_until_async(lambda: other.assignment() == {partition}, 30, "the other to own the partition")
            assert not slow.assignment()
            assert listener.events[-1] in ("revoked", "lost")
            assert await first_partition(other) == partition, "the record is delivered again"
            with pytest.raises(AllocatorError):
                await slow.commit({partition: 1})
            await other.commit({partition: 1})
    async with make_consumer(Listener()) as reader:
        committed = await reader.committed(partition)
    assert committed is not None
    assert committed.offset == 1


async def test_a_handler_whose_partition_was_lost_may_not_act_and_the_next_owner_waits_for_it(
    make_consumer: MakeConsumer, kafka_cluster: LocalCluster, group: str
) -> None:
    """Also after the member has joined again and owns the partition again."""
    zookeeper, listener = kafka_cluster.zookeeper, Listener()
    async with make_consumer(listener) as slow:
        partition = await first_partition(slow)
        zk = KazooClient(zookeeper)
        await asyncio.to_thread(zk.start)
        try:
            await asyncio.to_thread(zk.delete, f"/allocator/{group}/members/{slow.member_id}")
        finally:
            await asyncio.to_thread(zk.stop)
        await wait_until_async(lambda: listener.events == ["assigned", "lost", "assigned"], 30, "the partition again")
        assert not slow.may_act(), "the record may have had another owner in between"
        with pytest.raises(NotOwned, match="request the next ones"):
            await slow.until_may_act()
        async with make_consumer(Listener()) as other, GroupCommands(zookeeper, group) as commands:
            await commands.evacuate(slow.member_id)
            await wait_until_async(lambda: not slow.assignment(), 30, "the move")
            with pytest.raises(WaitTimeout):
                await wait_until_async(lambda: other.assignment() == {partition}, 1.0)
            assert await slow.getone(0) is None, "the request for more ends the work on the record"
            assert slow.may_act()
            await wait_until_async(lambda: other.assignment() == {partition}, 30, "the other to own the partition")


async def test_a_handler_that_blocks_the_loop_may_not_act_until_there_is_a_new_proof_of_life(
    make_consumer: MakeConsumer,
) -> None:
    """kazoo's thread keeps the session, so no other member gets the partition; nothing happens on an expired lease."""
    listener = Listener()
    async with make_consumer(listener) as consumer:
        partition, member = await first_partition(consumer), consumer.member_id
        assert consumer.may_act()
        time.sleep(3 * SESSION_S)  # noqa: ASYNC251 - blocking the loop is the point
        assert not consumer.may_act()
        with pytest.raises(CommitFailed) as caught:
            await consumer.commit({partition: 1})
        assert caught.value.retriable
        with pytest.raises(NotOwned, match="the record comes again"):
            await consumer.until_may_act()
        assert await first_partition(consumer) == partition
        assert consumer.may_act()
        await consumer.commit({partition: 1})
        assert consumer.member_id == member, "its session was kept alive meanwhile"
        assert listener.events == ["assigned"]


@pytest.mark.parametrize("session_timeout_s", [SESSION_S, 10.0])
async def test_a_handler_that_blocks_the_loop_beyond_max_poll_interval_loses_the_partition_while_it_blocks(
    make_consumer: MakeConsumer, session_timeout_s: float
) -> None:
    """Also if the session timeout, and with it the lease, is much longer than the blocked time."""
    owned, may_continue = threading.Event(), threading.Event()
    listener = Listener()
    refused: list[CommitFailed] = []

    async def stuck() -> None:
        settings = {"max_poll_interval_s": 1.0, "session_timeout_s": session_timeout_s}
        async with make_consumer(listener, **settings) as consumer:
            partition = await first_partition(consumer)
            owned.set()
            assert may_continue.wait(60), "no other member got the partition"
            assert not consumer.may_act()
            with pytest.raises(CommitFailed) as caught:
                await consumer.commit({partition: 1})
            refused.append(caught.value)
            await wait_until_async(lambda: listener.events[-1] == "lost", 30, "the loss to be reported")
            # a member that polls again joins again: the other leaves, and it gets the partition
            await first_partition(consumer)

    blocked = asyncio.get_running_loop().run_in_executor(None, asyncio.run, stuck())
    await wait_until_async(owned.is_set, 30, "the blocking member to own the partition")
    async with make_consumer(Listener()) as other:
        await wait_until_async(lambda: len(other.assignment()) == 1, 30, "the other to own the partition")
        may_continue.set()
        await wait_until_async(lambda: bool(refused), 30, "its commit to be refused")
    await blocked
