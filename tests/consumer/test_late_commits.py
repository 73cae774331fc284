"""A commit that waits for the coordinator is given up when its member loses the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from allocator import Consumer, GroupedConsumer, TopicPartition, ZooKeeper
from allocator.core.consumer import client_of
from allocator.errors import BrokerError, CommitFailed, Fenced, NotOwned
from allocator.testing import LocalCluster, wait_until_async
from tests.client.fake_proxy import FakeProxy
from tests.consumer.real_service import Service
from tests.inside import member_of

OFFSET_COMMIT = 8


def hold_commits_of(consumer: Any) -> asyncio.Event:
    """Makes the coordinator unreachable for this member's commits until the event is set."""
    client, reachable = client_of(consumer), asyncio.Event()
    send = client.send

    async def held(node: Any, request: Any, timeout_s: float | None = None) -> Any:
        if request.API_KEY == OFFSET_COMMIT and not reachable.is_set():
            raise BrokerError("cut off by the test", retriable=True)
        return await send(node, request, timeout_s)

    client.send = held
    return reachable


async def end_membership(service: Service) -> None:
    """Deletes the znode of the first member, as the ensemble does when the session expires."""
    zk = KazooClient(service.cluster.zookeeper)
    await asyncio.to_thread(zk.start)
    try:
        members = f"/{service.group}/allocator/{service.group}/members"
        first = min(await asyncio.to_thread(zk.get_children, members), key=lambda name: name.rpartition("-")[2])
        await asyncio.to_thread(zk.delete, f"{members}/{first}")
    finally:
        await asyncio.to_thread(zk.stop)


def owns(consumer: Any, partition: TopicPartition) -> bool:
    if isinstance(consumer, Consumer):
        return partition in consumer.assignment()
    return partition.partition in consumer.allocation[partition.topic]


async def read_by_another(service: Service, slow: Any, *, back: bool) -> Consumer:
    """Ends the membership of `slow`. Another member reads and commits 20 records, and leaves if `back`."""
    (zero,) = service.partitions
    other = service.consumer(client_id="a", auto_commit_interval_s=None)  # comes first in the order of the assignment
    await other.start()
    await end_membership(service)
    await wait_until_async(lambda: other.assignment() == {zero}, 25, "the move")
    await service.produce(10, 20)
    seen = 0
    while seen < 20:
        batch = await other.getbatch(30)
        assert batch is not None
        seen += len(batch)
    await other.commit()
    if back:
        await other.close()
        await wait_until_async(lambda: owns(slow, zero), 25, "the return")
    return other


async def committed_offset(service: Service) -> int:
    async with Consumer(brokers=service.cluster.bootstrap, group=service.group, membership="fixed") as reader:
        found = await reader.committed(service.partitions[0])
    assert found is not None
    return found.offset


@pytest.fixture
def service(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> Service:
    return Service(kafka_cluster, topic_factory(1), group, partitions=1)


def kiel(service: Service, **options: Any) -> GroupedConsumer:
    hosts = [f"{service.cluster.zookeeper}/{service.group}"]
    membership = ZooKeeper(session_timeout_s=15.0)
    return GroupedConsumer([service.cluster.bootstrap], service.group, hosts, membership=membership, **options)


@pytest.mark.parametrize("back", [False, True], ids=["lost", "lost and back"])
@pytest.mark.parametrize("kind", ["commit", "commit_async", "kiel"])
async def test_a_commit_that_waits_never_lowers_the_offset_of_a_later_owner(
    service: Service, kind: str, back: bool
) -> None:
    await service.produce(0, 10)
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    slow: Any
    if kind == "kiel":
        slow = kiel(service, autocommit=False)
        await slow.connect()
        while not await slow.consume(service.topic):
            pass
        reachable = hold_commits_of(slow)
        ended = slow.commit_offsets()
    else:
        slow = service.consumer(client_id="b", auto_commit_interval_s=None)
        await slow.start()
        assert (await slow.getbatch(30)).next_offset == 10
        reachable = hold_commits_of(slow)
        if kind == "commit":
            ended = asyncio.ensure_future(slow.commit())
        else:
            slow.commit_async(callback=lambda offsets, error: ended.set_result(error))
    other = await read_by_another(service, slow, back=back)
    reachable.set()
    await asyncio.wait({ended}, timeout=30)
    assert ended.done()
    assert await committed_offset(service) == 20
    if kind != "kiel":  # kiel's interface logs a lost partition
        error = ended.exception() if kind == "commit" else ended.result()
        assert isinstance(error, Fenced), error
        assert "has lost it since" in str(error)
    await slow.close()
    await other.close()


@pytest.mark.parametrize("back", [False, True], ids=["lost", "lost and back"])
async def test_nor_if_the_commit_waits_for_a_connection_to_the_coordinator(service: Service, back: bool) -> None:
    await service.produce(0, 10)
    async with FakeProxy() as proxy:
        through = {"proxy_url": f"socks5://127.0.0.1:{proxy.port}"}
        async with service.consumer(client_id="b", auto_commit_interval_s=None, security=through) as slow:
            assert (await slow.getbatch(30)).next_offset == 10
            proxy.refusal = 5
            proxy.cut()
            await wait_until_async(lambda: proxy.open == 0, 30, "the connections to be closed")
            ended = asyncio.ensure_future(slow.commit())
            other = await read_by_another(service, slow, back=back)
            assert not ended.done()
            proxy.refusal = None
            with pytest.raises(Fenced, match="has lost it since"):
                await asyncio.wait_for(ended, 30)
            assert await committed_offset(service) == 20
            await other.close()


async def test_an_offset_of_records_from_before_a_loss_is_not_committed(service: Service) -> None:
    """Also if the member owns the partition again, until it requests more records."""
    (zero,) = service.partitions
    await service.produce(0, 10)
    async with service.consumer(client_id="b", auto_commit_interval_s=None) as slow:
        assert (await slow.getbatch(30)).next_offset == 10
        await read_by_another(service, slow, back=True)
        with pytest.raises(NotOwned, match="request the next ones"):
            await slow.commit({zero: 10})
        with pytest.raises(NotOwned, match="request the next ones"):
            slow.commit_async({zero: 10})
        with pytest.raises(NotOwned, match="request the next ones"):
            await slow.commit()
        assert await committed_offset(service) == 20
        assert await slow.getbatch(0) is None
        await slow.commit({zero: 15})
        assert await committed_offset(service) == 15


async def test_autocommit_returns_no_values_that_another_owner_may_have_returned(service: Service) -> None:
    await service.produce(0, 10)
    consumer = kiel(service, deserializer=int)
    await consumer.connect()
    reachable = hold_commits_of(consumer)
    consuming = consumer.consume(service.topic)
    await wait_until_async(lambda: consumer.offsets[service.topic].get(0) == 10, 30, "the values")
    await read_by_another(service, consumer, back=True)
    reachable.set()
    assert await asyncio.wait_for(consuming, 30) == []
    await service.produce(20, 30)
    values: list[int] = []
    while len(values) < 10:
        values += await consumer.consume(service.topic) or []
    assert values == list(range(20, 30))
    await consumer.close()


async def values_of(consumer: GroupedConsumer, topic: str, count: int) -> list[int]:
    seen: list[int] = []
    while len(seen) < count:
        seen += await asyncio.wait_for(consumer.consume(topic), 30) or ()
    return seen


async def test_a_cancelled_call_with_autocommit_loses_no_values(service: Service) -> None:
    await service.produce(0, 10)
    consumer = kiel(service, deserializer=int)
    await consumer.connect()
    reachable = hold_commits_of(consumer)
    consuming = asyncio.ensure_future(consumer.consume(service.topic))
    await wait_until_async(lambda: consumer.offsets[service.topic].get(0) == 10, 30, "the values")
    consuming.cancel()
    await asyncio.wait({consuming})
    reachable.set()
    assert await values_of(consumer, service.topic, 10) == list(range(10))
    await consumer.close()


async def test_values_whose_commit_failed_come_again_although_their_partition_is_paused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.produce(0, 10)
    consumer = kiel(service, deserializer=int)
    await consumer.connect()
    state, commits = member_of(consumer).state, member_of(consumer).commits
    commit, failed = commits.commit, False

    async def fails_once(offsets: Any) -> None:
        nonlocal failed
        if failed:
            await commit(offsets)
            return
        failed = True
        state.hold_back(frozenset(service.partitions))  # an operator pauses the partition
        raise CommitFailed("not now")

    monkeypatch.setattr(commits, "commit", fails_once)
    while not failed:
        assert not await asyncio.wait_for(consumer.consume(service.topic), 30)
    state.hold_back(frozenset())
    assert await values_of(consumer, service.topic, 10) == list(range(10))
    await consumer.close()
