"""A handler that takes several session timeouts: the effects on its member and its next steps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from joining import joined

from allocator import Consumer, RebalanceListener, TopicPartition
from allocator.errors import AllocatorError, CommitFailed
from allocator.testing import LocalCluster, wait_until_async

Topics = Callable[..., str]
SESSION_S = 2.0


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.heard.append("assigned")

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.heard.append("revoked")

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.heard.append("lost")


class Service:
    """Consumers of one topic with one record."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        self.settings = {"brokers": cluster.bootstrap, "zookeeper": cluster.zookeeper, "group": group}
        self.topic = topic
        cluster.produce(topic, [b"work"])

    def consumer(
        self,
        listener: RebalanceListener,
        max_poll_interval_s: float | None = None,
        session_timeout_s: float = SESSION_S,
    ) -> Consumer:
        return Consumer(
            self.topic,
            **joined(
                **self.settings,  # type: ignore[arg-type]
                session_timeout_s=session_timeout_s,
                auto_commit_interval_s=None,
                listener=listener,
                max_poll_interval_s=max_poll_interval_s,
            ),
        )


@pytest.fixture
def service(kafka_cluster: LocalCluster, topic_factory: Topics, group: str) -> Service:
    return Service(kafka_cluster, topic_factory(1), group)


async def test_one_that_awaits_keeps_its_membership_however_long_it_takes(service: Service) -> None:
    listener = Listener()
    async with service.consumer(listener) as consumer:
        assert await consumer.getone(30) is not None
        member, partition = consumer.member_id, TopicPartition(service.topic, 0)
        for _ in range(30):
            await asyncio.sleep(3 * SESSION_S / 30)
            assert consumer.assignment() == {partition}
        await consumer.until_may_act()
        await consumer.commit({partition: 1})
        assert consumer.member_id == member
        assert listener.heard == ["assigned"]


async def test_one_that_awaits_beyond_max_poll_interval_gives_way_and_commits_no_more(service: Service) -> None:
    first, second = Listener(), Listener()
    async with service.consumer(first, max_poll_interval_s=1.0) as slow:
        record = await slow.getone(30)
        assert record is not None
        async with service.consumer(second) as other:
            partition = TopicPartition(service.topic, 0)
            await wait_until_async(lambda: other.assignment() == {partition}, 30, "the other one to have the partition")
            assert not slow.assignment()
            assert first.heard[-1] in ("revoked", "lost")
            again = await other.getone(30)
            assert again is not None
            assert again.offset == record.offset
            with pytest.raises(AllocatorError):
                await slow.commit({partition: 1})
            await other.commit({partition: 1})
    assert await committed(service) == 1


async def test_one_that_blocks_the_loop_finds_the_gate_shut_and_opens_it_by_a_new_proof(service: Service) -> None:
    """kazoo's thread keeps the session, so no other member gets the partition; nothing happens on an expired lease."""
    listener = Listener()
    async with service.consumer(listener) as consumer:
        assert await consumer.getone(30) is not None
        member, partition = consumer.member_id, TopicPartition(service.topic, 0)
        assert consumer.may_act()
        time.sleep(3 * SESSION_S)  # noqa: ASYNC251 - blocking the loop is the point
        assert not consumer.may_act()
        with pytest.raises(CommitFailed) as caught:
            await consumer.commit({partition: 1})
        assert caught.value.retriable
        await consumer.until_may_act()
        await wait_until_async(lambda: consumer.may_act(), 30, "a new proof")
        await consumer.commit({partition: 1})
        assert consumer.member_id == member, "its session was kept alive meanwhile"
        assert listener.heard == ["assigned"]


@pytest.mark.parametrize("session_timeout_s", [SESSION_S, 10.0])
async def test_one_that_blocks_the_loop_beyond_max_poll_interval_gives_way_while_it_blocks(
    service: Service, session_timeout_s: float
) -> None:
    """Also if the session timeout, and with it the lease, is much longer than the blocked time."""
    partition = TopicPartition(service.topic, 0)
    has_it, may_go_on = threading.Event(), threading.Event()
    first, second = Listener(), Listener()
    refused: list[CommitFailed] = []

    async def stuck() -> None:
        async with service.consumer(first, 1.0, session_timeout_s) as consumer:
            assert await consumer.getone(30) is not None
            has_it.set()
            assert may_go_on.wait(60), "nobody else got the partition"
            assert not consumer.may_act()
            with pytest.raises(CommitFailed) as caught:
                await consumer.commit({partition: 1})
            refused.append(caught.value)
            await wait_until_async(lambda: first.heard[-1] == "lost", 30, "the loss to be told")
            # a member that polls again joins again: the other one leaves, and it gets the partition
            assert await consumer.getone(30) is not None

    blocked = asyncio.get_running_loop().run_in_executor(None, asyncio.run, stuck())
    await wait_until_async(has_it.is_set, 30, "the one that will block to have the partition")
    async with service.consumer(second) as other:
        await wait_until_async(lambda: other.assignment() == {partition}, 30, "the blocked one to give way")
        may_go_on.set()
        await wait_until_async(lambda: bool(refused), 30, "its commit to be refused")
    await blocked


async def committed(service: Service) -> int | None:
    async with service.consumer(Listener()) as reader:
        found = await reader.committed(TopicPartition(service.topic, 0))
        return None if found is None else found.offset
