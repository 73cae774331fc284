"""Consumers of one group on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiokafka
import pytest
from joining import joined
from racked import racked_brokers
from real_service import Service, owns, read
from stored import stored_offset

from allocator import Consumer, GroupedConsumer, Kafka, RebalanceListener, TopicPartition, ZooKeeper
from allocator.core.consumer import client_of
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.errors import (
    AllocatorError,
    Closed,
    CommitFailed,
    DeserializationError,
    NoOffsetsError,
    NotOwned,
)
from allocator.operate.switching import SwitchingConsumer
from allocator.testing import FaultProxy, LocalCluster, wait_until_async


class Setting(Service):
    """Also has what stands between a consumer and ZooKeeper."""

    def proxy(self) -> FaultProxy:
        return FaultProxy(int(self.cluster.zookeeper.rpartition(":")[2]))

    def through(self, proxy: FaultProxy) -> str:
        return f"{proxy.address}/{self.group}"

    @contextlib.asynccontextmanager
    async def ensemble(self) -> AsyncIterator[ZooKeeperClient]:
        client = ZooKeeperClient(f"{self.cluster.zookeeper}/{self.group}")
        await client.connect()
        try:
            yield client
        finally:
            await client.close()


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


@pytest.fixture(params=["zookeeper", "kafka"])
def setting(
    request: pytest.FixtureRequest, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> Setting:
    return Setting(kafka_cluster, topic_factory(4), group, request.param)


through_zookeeper = pytest.mark.parametrize("setting", ["zookeeper"], indirect=True)


async def test_everything_is_delivered_in_order_and_committed(setting: Setting) -> None:
    await setting.produce(0, 1000)
    by_partition = defaultdict(list)
    async with setting.consumer() as consumer:
        count = 0
        async for batch in consumer:
            for record in batch:
                by_partition[record.partition].append(int(record.value))
                count += 1
            if count == 1000:
                break
        await consumer.commit()
        for number, values in by_partition.items():
            assert values == list(range(number, 1000, 4))
        partition = TopicPartition(setting.topic, 0)
        committed = await consumer.committed(partition)
        assert committed is not None
        assert committed[:2] == (250, "")
        assert committed.leader_epoch >= 0
        who = f"generation {consumer.generation} member {consumer.member_id}"
        topic_id = consumer.topic_id(partition)
        assert topic_id is not None
        stands = await stored_offset(setting.cluster.bootstrap, setting.group, partition)
        assert stands.metadata == f"{who} topic {topic_id}"
    async with setting.consumer() as again:
        assert await again.getbatch(0.5) is None
        await owns(again, 4)
        assert await again.position(TopicPartition(setting.topic, 3)) == 250


async def test_what_was_not_asked_past_is_not_committed(setting: Setting) -> None:
    """A consumer that crashes in a batch has not committed it."""
    await setting.produce(0, 100)
    with contextlib.suppress(ZeroDivisionError):
        async with setting.consumer() as consumer:
            await consumer.getbatch(30)
            batch = await consumer.getbatch(30)
            raise ZeroDivisionError
    async with setting.consumer() as again:
        values = await read(again, 75)
    assert len(values) == 75
    assert {int(record.value) for record in batch} <= set(values)


async def test_a_partition_moves_only_when_the_batch_in_hand_is_done(setting: Setting) -> None:
    await setting.produce(0, 400)
    async with setting.consumer() as first:
        await owns(first, 4)  # not 2 of them, on the way there
        batch = await first.getbatch(30)
        assert batch is not None
        async with setting.consumer() as second:
            held = TopicPartition(batch.topic, batch.partition)
            read_by_second: list[int] = []
            # the other partition moves; this one is in use, so it stays
            await wait_until_async(lambda: len(first.assignment()) == 2, 30, "the revocation")
            moving = held not in first.assignment()
            if moving:
                await second.getbatch(0.5)
                assert held not in second.assignment()
            await first.getbatch(0)  # it is done with the batch
            await owns(second, 2)
            await read(second, 200 if not moving else 100, read_by_second)
            mine = {int(record.value) for record in batch}
            assert not mine & set(read_by_second), "records that were done before the move were delivered again"


async def test_getone_and_getmany_leave_nothing_out(setting: Setting) -> None:
    await setting.produce(0, 300)
    values = []
    async with setting.consumer() as consumer:
        for _ in range(50):
            record = await consumer.getone(30)
            assert record is not None
            values.append(int(record.value))
        while len(values) < 200:
            for records in (await consumer.getmany(30, max_records=7)).values():
                values += [int(record.value) for record in records]
        while len(values) < 290:
            for records in (await consumer.getmany(30)).values():
                values += [int(record.value) for record in records]
        values += await read(consumer, 300 - len(values))
        assert await consumer.getone(0) is None
        assert await consumer.getmany(0) == {}
    assert sorted(values) == list(range(300))


async def test_seek_and_pause_lose_nothing(setting: Setting) -> None:
    await setting.produce(0, 400)
    async with setting.consumer() as consumer:
        record = await consumer.getone(30)
        assert record is not None
        partition = TopicPartition(record.topic, record.partition)
        consumer.pause(partition)
        assert consumer.paused() == {partition}
        others = await read(consumer, 300)
        assert len(others) == 300
        assert all(value % 4 != partition.partition for value in others)
        assert await consumer.getbatch(0.3) is None
        consumer.resume(partition)
        rest = await read(consumer, 99)
        assert rest == list(range(partition.partition + 4, 400, 4))
        consumer.seek(partition, 98)
        assert await read(consumer, 2) == rest[-2:]
        with pytest.raises(NotOwned, match=f"does not own {setting.topic}:77"):
            consumer.seek(TopicPartition(setting.topic, 77), 0)


class Recording(RebalanceListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        self.on_revoked: Callable[[frozenset[TopicPartition]], Awaitable[None]] | None = None

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if self.on_revoked is not None:
            await self.on_revoked(partitions)
        self.calls.append(("revoked", partitions))

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))


async def test_listeners_hear_of_moves_and_may_commit_in_them(setting: Setting) -> None:
    await setting.produce(0, 400)
    heard = Recording()
    async with setting.consumer(auto_commit_interval_s=None, listener=heard) as first:
        await read(first, 400)
        assert await first.getbatch(0) is None  # done with the last one

        async def commit(partitions: frozenset[TopicPartition]) -> None:
            await first.commit(dict.fromkeys(partitions, 42))

        heard.on_revoked = commit
        async with setting.consumer() as second:
            await owns(second, 2)
            assert heard.calls[0] == ("assigned", frozenset(setting.partitions))
            assert heard.calls[1] == ("revoked", second.assignment())
            for partition in second.assignment():
                assert await second.position(partition) == 42
        heard.on_revoked = None
        await owns(first, 4)


async def test_a_listener_that_raises_or_asks_for_positions_stops_nothing(setting: Setting) -> None:
    await setting.produce(0, 40)
    positions: list[int] = []

    class Awkward(RebalanceListener):
        async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            positions.extend([await consumer.position(partition) for partition in partitions])
            raise ZeroDivisionError("a bug of the user's")

    consumer = setting.consumer(listener=Awkward())
    async with consumer:
        assert len(await read(consumer, 40)) == 40
    assert positions == [0, 0, 0, 0]


async def test_where_to_begin_without_a_commit(setting: Setting) -> None:
    await setting.produce(0, 40)
    async with setting.consumer(auto_offset_reset="latest") as consumer:
        await owns(consumer, 4)
        assert [await consumer.position(partition) for partition in setting.partitions] == [10] * 4
        await setting.produce(40, 44)
        assert sorted(await read(consumer, 4)) == [40, 41, 42, 43]
    setting.group += "-none"
    async with setting.consumer(auto_offset_reset="none") as consumer:
        with pytest.raises(NoOffsetsError, match="no offset to start at"):
            await consumer.getbatch(30)
    setting.group += "-time"
    async with setting.consumer(auto_offset_reset=int(time.time() * 1000) + 3_600_000) as consumer:
        await owns(consumer, 4)
        # no record is at or after that time, so the position is the end
        assert await consumer.position(setting.partitions[0]) == 11
    setting.group += "-past"
    async with setting.consumer(auto_offset_reset=1) as consumer:
        await owns(consumer, 4)
        assert await consumer.position(setting.partitions[0]) == 0


@through_zookeeper
async def test_a_value_that_does_not_deserialize_is_named_and_passed(setting: Setting) -> None:
    await in_thread(
        lambda: setting.cluster.produce(setting.topic, [(None, b"1", 0), (None, b"oops", 0), (None, b"3", 0)])
    )
    async with setting.consumer(value_deserializer=int) as consumer:
        record = await consumer.getone(30)
        assert record is not None
        assert record.value == 1
        with pytest.raises(DeserializationError, match=f"{setting.topic}:0.*1"):
            await consumer.getone(30)
        record = await consumer.getone(30)
        assert record is not None
        assert record.value == 3
        consumer.seek(TopicPartition(setting.topic, 0), 0)
        many = await consumer.getmany(30)
        assert [record.value for records in many.values() for record in records] == [1]
        with pytest.raises(DeserializationError):
            await consumer.getmany(30)
        many = await consumer.getmany(30)
        assert [record.value for records in many.values() for record in records] == [3]


async def test_misuse_explains_itself(setting: Setting) -> None:
    consumer = setting.consumer()
    with pytest.raises(Closed, match="not started"):
        await consumer.getbatch(0)
    async with consumer:
        reader = asyncio.ensure_future(consumer.getbatch())
        await owns(consumer, 4)
        await asyncio.sleep(0)  # the reader's turn
        with pytest.raises(RuntimeError, match="two tasks read"):
            await consumer.getbatch(0)
        reader.cancel()
        await asyncio.wait({reader})
        with pytest.raises(NotOwned, match="does not own"):
            await consumer.commit({TopicPartition("other", 0): 1})
    with pytest.raises(Closed, match="is closed"):
        await consumer.getbatch(0)
    await consumer.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"group": "a/b"}, "group name 'a/b' cannot be a znode"),
        ({"assignor": "navie"}, "naive"),
        ({"assignor": []}, "at least one"),
        ({"weight": 0}, "weight = 0: must be a number"),
        ({"auto_commit_interval_s": 0}, "auto_commit_interval_s"),
        ({"auto_offset_reset": "erliest"}, "earliest"),
        ({"membership": ZooKeeper(zookeeper_options={"use_sll": True})}, "use_ssl"),
        ({"security": {"sasl_mechansim": "PLAIN"}}, "sasl_mechanism"),
        ({"prefetch_bytes": -1}, "prefetch_bytes"),
        ({"membership": "zk"}, 'membership = .zk.: must be "zookeeper" or "kafka" or "fixed"'),
        ({"group": None}, "group not set with membership = 'zookeeper': only membership=\"fixed\""),
        ({"pattern": "o"}, "they exclude each other"),
        ({"pattern": "["}, "not a regular expression"),
        ({"membership": Kafka(heartbeat_interval_s=6)}, "heartbeat_interval_s is 6; at most half"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_touched(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(AllocatorError, match=says):
        Consumer("t", **{"brokers": "b:1", "group": "g", "zookeeper": "z:1", **settings})


async def test_closing_from_another_task_waits_for_the_reader(setting: Setting) -> None:
    await setting.produce(0, 4)
    may_go_on, taken = asyncio.Event(), asyncio.Event()
    ended = []

    async def work(consumer: Consumer) -> None:
        async for _ in consumer:
            taken.set()
            await may_go_on.wait()
        ended.append("told")

    consumer = setting.consumer()
    await consumer.start()
    worker = asyncio.ensure_future(work(consumer))
    await asyncio.wait_for(taken.wait(), 30)
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0.3)
    assert not closing.done(), "the partition was released while a delivered batch was not done"
    may_go_on.set()
    await asyncio.wait_for(asyncio.gather(closing, worker), 30)
    assert ended == ["told"]


async def test_a_topic_that_comes_later_is_waited_for(kafka_cluster: LocalCluster, group: str) -> None:
    setting = Setting(kafka_cluster, f"{group}-later", group, partitions=2)
    consumer = setting.consumer()
    async with consumer:
        assert await consumer.getbatch(0.3) is None
        await in_thread(lambda: kafka_cluster.create_topic(setting.topic, 2))
        await setting.produce(0, 10)
        await client_of(consumer).refresh()  # the default interval is long
        assert sorted(await read(consumer, 10)) == list(range(10))


@contextlib.asynccontextmanager
async def own_cluster(cluster_factory: Callable[..., LocalCluster], **options: Any) -> AsyncIterator[LocalCluster]:
    yield await in_thread(lambda: cluster_factory(**options))


async def test_a_broker_that_is_down_at_start_is_waited_for(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    async with own_cluster(cluster_factory, kafka="3.9.1", heap="385m") as cluster:
        setting = Setting(cluster, topic_factory(2, cluster=cluster), group, partitions=2)
        await setting.produce(0, 10)
        await in_thread(cluster.brokers[0].kill)
        consumer = setting.consumer()
        starting = asyncio.ensure_future(consumer.start())
        await in_thread(cluster.brokers[0].start)
        await starting
        try:
            assert sorted(await read(consumer, 10)) == list(range(10))
        finally:
            await consumer.close()


@pytest.mark.deadline(150)
async def test_a_broker_of_three_killed_under_load(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    cluster = await in_thread(lambda: racked_brokers(cluster_factory))
    setting = Setting(cluster, topic_factory(6, replication=3, cluster=cluster), group, partitions=6)
    await setting.produce(0, 3000)
    async with setting.consumer(auto_commit_interval_s=0.2) as consumer:
        seen = await read(consumer, 500)
        victim = await in_thread(lambda: cluster.leader(setting.topic, 0))
        await in_thread(victim.kill)
        await setting.produce(3000, 6000)
        await read(consumer, 6000, seen, timeout_s=60)
        assert sorted(set(seen)) == list(range(6000))
        assert len(seen) == 6000, "records came twice"
        await consumer.commit()
        for partition in setting.partitions:
            committed = await consumer.committed(partition)
            assert committed is not None
            assert committed.offset == 1000


@through_zookeeper
async def test_after_a_lost_session_nothing_is_committed(setting: Setting) -> None:
    await setting.produce(0, 40)
    heard = Recording()
    own = {"session_timeout_s": 4.0, "listener": heard, "auto_commit_interval_s": 60.0}
    async with setting.proxy() as proxy, setting.consumer(**own, zookeeper=setting.through(proxy)) as consumer:
        assert len(await read(consumer, 40)) == 40
        assert await consumer.getbatch(0) is None  # done with the last one
        partition = setting.partitions[0]
        proxy.drop()
        proxy.reset()
        await wait_until_async(lambda: not consumer.may_act(), 30, "the pause")
        with pytest.raises(CommitFailed, match="so another member may own them now") as refusal:
            await consumer.commit({partition: 10})
        assert refusal.value.retriable
        await setting.produce(40, 44)
        assert await consumer.getbatch(0.5) is None, "a record was delivered without a valid lease"
        async with setting.consumer(session_timeout_s=4.0) as heir:
            await owns(heir, 4)
            proxy.heal()
            await wait_until_async(lambda: len(heard.calls) > 1, 30, "the call for the loss")
            assert heard.calls[1] == ("lost", frozenset(setting.partitions))
            await owns(heir, 2)
        # It had processed the first ten records of each partition, and continues after them although no commit
        # succeeded.
        await owns(consumer, 4)
        assert min([await consumer.position(p) for p in setting.partitions]) >= 10


@through_zookeeper
async def test_the_reader_of_several_closes_them_together(setting: Setting) -> None:
    await setting.produce(0, 40)
    where = {"brokers": setting.cluster.bootstrap, "zookeeper": setting.cluster.zookeeper + "/" + setting.group}
    plain = setting.consumer()
    switching = SwitchingConsumer(setting.topic, **joined(group=setting.group + "-switching", **where))
    grouped = GroupedConsumer(where["brokers"].split(","), setting.group + "-grouped", [where["zookeeper"]])
    await asyncio.gather(plain.start(), switching.start(), grouped.connect())
    for each in (plain, switching):
        for _ in range(2):
            assert await each.getbatch(30) is not None
    while not await grouped.consume(setting.topic):
        pass
    closing = asyncio.gather(plain.close(), switching.close(), grouped.close())
    done, _ = await asyncio.wait({closing}, timeout=40)
    assert done, "it waits for the reader, which waits for it"
    closing.result()


@through_zookeeper
async def test_the_reader_may_close_while_another_task_closes(setting: Setting) -> None:
    """The first close waits for the reader, which does not request more records."""
    await setting.produce(0, 40)
    for consumer in (
        setting.consumer(),
        SwitchingConsumer(
            setting.topic,
            group=setting.group + "-switching",
            brokers=setting.cluster.bootstrap,
            zookeeper=setting.cluster.zookeeper + "/" + setting.group,
        ),
    ):
        await consumer.start()
        assert await consumer.getbatch(30) is not None
        # of another context: a task that the reader started would count as the reader
        first = contextvars.Context().run(asyncio.ensure_future, consumer.close())
        await asyncio.sleep(0)
        await asyncio.wait_for(consumer.close(), 40)
        await asyncio.wait_for(first, 40)


class FromAiokafka(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Has no `on_partitions_lost`, and no attribute besides."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def on_partitions_assigned(self, assigned: frozenset[TopicPartition]) -> None:
        self.calls.append("assigned")

    def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
        self.calls.append("revoked")


@through_zookeeper
async def test_a_listener_of_another_client_survives_a_loss(setting: Setting) -> None:
    """The missing method ended the membership, and the consumer with it."""
    heard = FromAiokafka()
    async with setting.consumer(listener=heard) as consumer:
        await owns(consumer, 4)
        member = consumer.member_id
        async with setting.ensemble() as zk:
            await zk.delete(f"/allocator/{setting.group}/members/{member}")
        await wait_until_async(lambda: len(heard.calls) == 3, 60, "the loss and the return")
        assert heard.calls == ["assigned", "revoked", "assigned"]
        assert consumer.member_id != member
        await setting.produce(0, 8)
        assert len(await read(consumer, 8)) == 8
    assert heard.calls[3:] == ["revoked"]


@through_zookeeper
async def test_closing_does_not_wait_for_a_zookeeper_that_is_gone(setting: Setting) -> None:
    await setting.produce(0, 40)
    heard = Recording()
    async with setting.proxy() as proxy:
        own = {"session_timeout_s": 2.0, "listener": heard, "zookeeper": setting.through(proxy)}
        async with setting.consumer(**own) as consumer:
            assert len(await read(consumer, 40)) == 40
            proxy.drop()
            proxy.reset()
            await wait_until_async(lambda: not consumer.may_act(), 30, "the pause")
            started = time.monotonic()
        assert time.monotonic() - started < 60
    assert heard.calls[-1][0] in ("revoked", "lost")


async def test_who_commits_by_hand_goes_on_from_what_was_committed(setting: Setting) -> None:
    """With manual commits, a new request does not mean that the records are done: they may still be in the user's
    queues."""
    await setting.produce(0, 40)
    async with setting.consumer(auto_commit_interval_s=None) as consumer:
        assert len(await read(consumer, 40)) == 40
        assert await consumer.getbatch(0) is None
        await consumer.commit(dict.fromkeys(setting.partitions, 5))
        async with setting.consumer(auto_commit_interval_s=None) as other:
            await owns(other, 2)
            moved = other.assignment()
        await owns(consumer, 4)
        assert [await consumer.position(partition) for partition in sorted(moved)] == [5, 5]
