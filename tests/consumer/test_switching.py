"""A znode chooses the cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from joining import joined

import allocator
from allocator import GroupedConsumer
from allocator.core.zookeeper.client import SessionState, ZooKeeperClient
from allocator.errors import AllocatorError, Closed
from allocator.operate.cluster_choice import ClusterChoice, choice_path, choose_cluster
from allocator.operate.switching import ChoiceWatcher, SwitchingConsumer
from allocator.testing import LocalCluster, produce, wait_until_async

pytestmark = pytest.mark.deadline(120)


async def _forever(consumer: SwitchingConsumer) -> None:
    while True:
        await consumer.getbatch(1.0)


async def _reads(consumer: SwitchingConsumer) -> bool:
    with contextlib.suppress(AllocatorError):  # it has not been notified yet
        await consumer.getbatch(0.1)
    return bool(consumer.assignment())


async def test_each_cluster_has_the_security_that_is_given_for_it(
    kafka_cluster: LocalCluster, zk_chroot: Any, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, [b"v"])
    other = kafka_cluster.bootstrap.replace("127.0.0.1", "localhost")
    ensemble = ZooKeeperClient(str(zk_chroot))
    await ensemble.connect()
    consumer = SwitchingConsumer(
        topic,
        brokers=kafka_cluster.bootstrap,
        group=group,
        zookeeper=str(zk_chroot),
        securities={other: {"security_protocol": "SSL"}},
        connect_timeout_s=5.0,
    )
    try:
        async with consumer:
            batch = await consumer.getbatch(30)
            assert batch is not None
            await choose_cluster(ensemble, choice_path("/allocator", group), ClusterChoice(other))
            with pytest.raises(AllocatorError, match="localhost"):  # there is no TLS
                await _forever(consumer)
            assert consumer.brokers is None
            await choose_cluster(ensemble, choice_path("/allocator", group), ClusterChoice())
            await wait_until_async(lambda: _reads(consumer), 60, "it to come back")
            assert consumer.brokers == kafka_cluster.bootstrap
    finally:
        await ensemble.close()


# -- two sessions: that of the watcher, and that of the member ---------------------------------------------------------


async def expire(zk: ZooKeeperClient) -> None:
    """Ends the session, and waits for the next one."""
    before = zk.session_id
    zk.abort("the test ends the session")
    await wait_until_async(
        lambda: zk.session_id not in (None, before) and zk.state is SessionState.CONNECTED, 30, "another session"
    )


async def test_a_watcher_keeps_what_it_knows_when_its_session_is_lost(zk_chroot: Any, group: str) -> None:
    ensemble, path = ZooKeeperClient(str(zk_chroot)), choice_path("/allocator", group)
    await ensemble.connect()
    zk = ZooKeeperClient(str(zk_chroot), session_timeout_s=4.0)
    watcher = ChoiceWatcher(zk, path)
    try:
        await choose_cluster(ensemble, path, ClusterChoice("a:1"))
        await watcher.start()
        await expire(zk)
        assert watcher.current == ClusterChoice("a:1")
        assert not watcher.changed.is_set()
        await choose_cluster(ensemble, path, ClusterChoice("b:1"))
        await asyncio.wait_for(watcher.changed.wait(), 30)
        assert watcher.current == ClusterChoice("b:1")
    finally:
        await watcher.close()
        await ensemble.close()


async def test_a_consumer_whose_watcher_loses_its_session_stays_in_the_group(
    kafka_cluster: LocalCluster, zk_chroot: Any, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    consumer = GroupedConsumer(
        kafka_cluster.bootstrap,
        group,
        str(zk_chroot),
        membership=allocator.ZooKeeper(session_timeout_s=7.0),
        deserializer=bytes,
        max_wait_time=200,
    )
    await consumer.connect()
    try:
        assert consumer._watcher is not None
        engine, member = consumer._engine, consumer._engine.membership.member_id
        await expire(consumer._watcher._zk)
        for value in (b"1", b"2"):
            await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, [value])
            await wait_until_async(lambda: _gets(consumer, topic), 30, "a value")
        assert consumer._engine is engine
        assert consumer._engine.membership.member_id == member
    finally:
        await consumer.close()


async def _gets(consumer: GroupedConsumer, topic: str) -> bool:
    return bool(await consumer.consume(topic))


async def test_a_member_that_lost_its_session_does_not_join_a_paused_group(
    kafka_cluster: LocalCluster, zk_chroot: Any, topic_factory: Callable[..., str], group: str
) -> None:
    """Its watcher is disconnected, so it cannot know of the pause. An operator may be moving offsets at that time."""
    topic = await asyncio.to_thread(topic_factory, 1)
    ensemble, path = ZooKeeperClient(str(zk_chroot)), choice_path("/allocator", group)
    await ensemble.connect()
    consumer = SwitchingConsumer(
        topic,
        brokers=kafka_cluster.bootstrap,
        group=group,
        zookeeper=str(zk_chroot),
        membership=allocator.ZooKeeper(session_timeout_s=4.0),
    )
    try:
        async with consumer:
            await wait_until_async(lambda: _reads(consumer), 30, "it to read")
            watcher, member = consumer._watcher, consumer._consumer._engine.membership
            assert watcher._task is not None
            watcher._task.cancel()
            await choose_cluster(ensemble, path, ClusterChoice(None, frozen=True))
            asked, ask = [], member.admitted

            async def counted(zk: ZooKeeperClient) -> bool:
                asked.append(await ask(zk))
                return asked[-1]

            member.admitted = counted
            await expire(member._zk)
            await wait_until_async(lambda: len(asked) > 1, 30, "the check before it joins")
            assert asked == [False] * len(asked)
            assert await ensemble.get_children(f"/allocator/{group}/members") == []
            await choose_cluster(ensemble, path, ClusterChoice())
            await wait_until_async(lambda: _reads(consumer), 30, "it to join again")
    finally:
        await ensemble.close()


async def test_a_reader_that_has_a_batch_is_waited_for_and_told(
    kafka_cluster: LocalCluster, zk_chroot: Any, topic_factory: Callable[..., str], group: str
) -> None:
    """The reader got Closed, but the inner consumer never learned of its request, so `close` waited forever."""
    topic = await asyncio.to_thread(topic_factory, 1)
    await asyncio.to_thread(produce, kafka_cluster.bootstrap, topic, [b"v"])
    where = {"brokers": kafka_cluster.bootstrap, "group": group, "zookeeper": str(zk_chroot)}
    consumer = SwitchingConsumer(topic, **joined(**where))
    await consumer.start()
    has_it, go_on = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        assert await consumer.getbatch(30) is not None
        has_it.set()
        await go_on.wait()
        with pytest.raises(Closed):
            await consumer.getbatch(30)

    reader = asyncio.ensure_future(read())
    await has_it.wait()
    closing = asyncio.ensure_future(consumer.close())
    done, _ = await asyncio.wait({closing}, timeout=0.5)
    assert not done
    go_on.set()
    await asyncio.wait_for(asyncio.gather(closing, reader), 30)
    async with SwitchingConsumer(topic, **joined(**where)) as successor:
        assert await successor.getbatch(1.0) is None, "the record was done, and came again"


async def test_a_close_that_meets_a_join_ends_the_member(
    kafka_cluster: LocalCluster, zk_chroot: Any, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1)
    consumer = SwitchingConsumer(topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=str(zk_chroot))
    ensemble = ZooKeeperClient(str(zk_chroot))
    await ensemble.connect()
    try:
        await choose_cluster(ensemble, choice_path("/allocator", group), ClusterChoice(frozen=True))
        await consumer.start()
        made = consumer._make
        joining = asyncio.Event()

        def make(**options: Any) -> Any:
            joining.set()
            return made(**options)

        consumer._make = make  # type: ignore[assignment]
        await choose_cluster(ensemble, choice_path("/allocator", group), ClusterChoice())
        reading = asyncio.ensure_future(consumer.getbatch(30))
        await joining.wait()
        await consumer.close()
        await asyncio.wait({reading}, timeout=30)
        assert isinstance(reading.exception(), Closed)
        assert await ensemble.get_children(f"/allocator/{group}/members") == []
    finally:
        await ensemble.close()


async def test_one_that_is_closed_before_or_during_its_start_does_not_start() -> None:
    nowhere = {"brokers": "127.0.0.1:1", "group": "g", "zookeeper": "127.0.0.1:1"}
    consumer = SwitchingConsumer("t", **nowhere)
    await consumer.close()
    with pytest.raises(Closed):
        await consumer.start()
    consumer = SwitchingConsumer("t", **nowhere)
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(Closed, match="closed while it connected"):
        await asyncio.wait_for(starting, 10)
