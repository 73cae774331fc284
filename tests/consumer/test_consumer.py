"""Consumers of one group on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, cast

import pytest

from allocator import Consumer, GroupedConsumer, Kafka, RebalanceListener, TopicPartition, ZooKeeper
from allocator.errors import (
    AllocatorError,
    Closed,
    CommitFailed,
    DeserializationError,
    NoOffsetsError,
    NotOwned,
    OffsetOutOfRange,
)
from allocator.operate.switching import SwitchingConsumer
from allocator.testing import FaultProxy, LocalCluster, wait_until_async
from tests.consumer.fake_kafka import GroupCluster, consumer_by_hand
from tests.consumer.real_service import Recording, Service, owns, read, read_on
from tests.joining import joined
from tests.stored import stored_offset


class Setting(Service):
    """Also has a proxy between a consumer and ZooKeeper."""

    def proxy(self) -> FaultProxy:
        return FaultProxy(int(self.cluster.zookeeper.rpartition(":")[2]))

    def through(self, proxy: FaultProxy) -> str:
        return f"{proxy.address}/{self.group}"


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
        assert committed[:2] == (250, "")
        assert committed.leader_epoch >= 0
        writer = f"generation {consumer.generation} member {consumer.member_id}"
        topic_id = consumer.topic_id(partition)
        assert topic_id is not None
        stored = await stored_offset(setting.cluster.bootstrap, setting.group, partition)
        assert stored.metadata == f"{writer} topic {topic_id}"
        await consumer.commit({partition: committed})
        again = await stored_offset(setting.cluster.bootstrap, setting.group, partition)
        assert again.metadata.endswith(f" topic {topic_id}"), "a later member would not detect a topic created again"
    async with setting.consumer() as again:
        assert await again.getbatch(0.5) is None
        await owns(again, 4)
        assert await again.position(TopicPartition(setting.topic, 3)) == 250


async def test_a_delivered_batch_is_not_committed_before_the_next_request(setting: Setting) -> None:
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
            # the other partition moves; this one is in use, so it stays
            await wait_until_async(lambda: len(first.assignment()) == 2, 30, "the revocation")
            moving = held not in first.assignment()
            if moving:
                await second.getbatch(0.5)
                assert held not in second.assignment()
            await first.getbatch(0)  # it is done with the batch
            await owns(second, 2)
            moved = await read(second, 200 if not moving else 100)
            assert not {int(record.value) for record in batch} & set(moved), "records done before the move came again"


@through_zookeeper
async def test_getone_and_getmany_return_every_record_but_one_that_does_not_deserialize(setting: Setting) -> None:
    await setting.produce(0, 300)
    decoded: list[int] = []
    values: list[int] = []
    bad: list[int] = []

    def number(data: bytes) -> int:
        decoded.append(int(data))
        return 1 // (decoded[-1] != 230) and decoded[-1]

    async with setting.consumer(value_deserializer=number) as consumer:
        for _ in range(50):  # less than the offset of the bad one
            values.append((await consumer.getone(30)).value)
        while len(values) < 299:
            try:
                found = await consumer.getmany(30, max_records=7 if len(values) < 200 else None)
            except DeserializationError as error:
                bad.append(error.partition + 4 * error.offset)
            else:
                values += [record.value for records in found.values() for record in records]
        assert await consumer.getone(0) is None
        assert await consumer.getmany(0) == {}
    assert bad == [230]
    assert sorted([*values, 230]) == list(range(300))
    counts = Counter(decoded)
    assert counts.pop(230) <= 2, "once more if the records before it were returned first"
    assert counts == Counter(values), "each was decoded once"
    for partition in range(4):
        mine = [value for value in values if value % 4 == partition]
        assert mine == sorted(mine)


@through_zookeeper
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


async def test_listeners_are_called_at_moves_and_at_close_and_may_commit(setting: Setting) -> None:
    await setting.produce(0, 400)
    listener = Recording()
    async with setting.consumer(auto_commit_interval_s=None, listener=listener) as first:
        await read(first, 400)
        assert await first.getbatch(0) is None  # done with the last one

        async def commit(partitions: frozenset[TopicPartition]) -> None:
            assert not partitions & first.assignment()
            await first.commit(dict.fromkeys(partitions, 42))

        listener.on_revoked = commit
        async with setting.consumer() as second:
            await owns(second, 2)
            assert listener.calls[0] == ("assigned", frozenset(setting.partitions))
            assert listener.calls[1] == ("revoked", second.assignment())
            for partition in second.assignment():
                assert await second.position(partition) == 42
        await owns(first, 4)
    assert listener.calls[-1] == ("revoked", frozenset(setting.partitions))
    async with setting.consumer() as successor:
        await owns(successor, 4)
        assert {await successor.position(partition) for partition in setting.partitions} == {42}


async def test_a_listener_that_raises_or_awaits_positions_stops_nothing(setting: Setting) -> None:
    await setting.produce(0, 40)
    positions: list[int] = []

    class Awkward(RebalanceListener):
        async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            positions.extend([await consumer.position(partition) for partition in partitions])
            raise ZeroDivisionError("a bug in the listener")

    consumer = setting.consumer(listener=Awkward())
    async with consumer:
        assert len(await read(consumer, 40)) == 40
    assert positions == [0, 0, 0, 0]


@through_zookeeper
async def test_a_listener_may_close_the_consumer_whose_partitions_move(setting: Setting) -> None:
    listener = Recording()
    async with setting.consumer(listener=listener) as one:
        await owns(one, 4)
        listener.on_revoked = lambda partitions: one.close()
        async with setting.consumer() as other:
            with pytest.raises(Closed):
                await asyncio.wait_for(read_on(one), 60)
            await one.close()
            await owns(other, 4)
    assert listener.calls[-1][0] == "revoked"


@pytest.mark.parametrize("waits_for", ["listener", "commit"])
async def test_after_a_cancelled_close_the_next_member_need_not_wait_for_the_end_of_the_session(
    setting: Setting, waits_for: str
) -> None:
    await setting.produce(0, 4)
    listener, called = Recording(), asyncio.Event()

    async def block(_: object) -> None:
        called.set()
        await asyncio.Event().wait()

    kafka: dict[str, Any] = {"rebalance_timeout_s": 40.0} if setting.membership == "kafka" else {}
    consumer = setting.consumer(listener=listener, session_timeout_s=40.0, **kafka)
    await consumer.start()
    await read(consumer, 4)
    broker = setting.cluster.brokers[0]
    if waits_for == "commit":
        await asyncio.to_thread(broker.pause)
        consumer.commit_async()
    else:
        listener.on_revoked = block
    try:
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.wait({closing, asyncio.ensure_future(called.wait())}, timeout=1, return_when="FIRST_COMPLETED")
        assert not closing.done()
        closing.cancel()
        await asyncio.wait({closing}, timeout=1)
    finally:
        await asyncio.to_thread(broker.resume)
    await asyncio.wait_for(consumer.close(), 20)
    closed = time.monotonic()
    async with setting.consumer(connect_timeout_s=15.0) as successor:
        await owns(successor, 4)
        assert time.monotonic() - closed < 30


async def test_a_member_that_ends_at_once_leaves_before_its_listener_and_close_waits_for_both(setting: Setting) -> None:
    await setting.produce(0, 4)
    called, ended = asyncio.Event(), asyncio.Event()

    class Slow(Recording):
        async def on_partitions_lost(self, partitions: object) -> None:
            called.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async def block(_: object) -> None:
        called.set()
        await asyncio.Event().wait()

    listener = Slow()
    listener.on_revoked = block
    kafka: dict[str, Any] = {"rebalance_timeout_s": 40.0} if setting.membership == "kafka" else {}
    consumer = setting.consumer(listener=listener, session_timeout_s=40.0, **kafka)
    await consumer.start()
    await read(consumer, 4)
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.wait_for(called.wait(), 20)
    called.clear()
    closing.cancel()
    await asyncio.wait_for(called.wait(), 20)
    async with setting.consumer(connect_timeout_s=15.0) as successor:
        await asyncio.wait_for(owns(successor, 4), 20)
        assert not ended.is_set()
        closing.cancel()
        await asyncio.wait({closing}, timeout=20)
        assert closing.cancelled()
        await asyncio.wait_for(consumer.close(), 20)
        assert ended.is_set(), "the member still ran"


async def test_the_reset_policy_sets_the_first_position(setting: Setting) -> None:
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


async def made(call: Callable[[], Any]) -> Any:
    """Makes a call that may be a coroutine's."""
    result = call()
    return await result if asyncio.iscoroutine(result) else result


@through_zookeeper
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
        own, wrong = setting.partitions[0], cast(Any, "x")
        calls: dict[str, Callable[[], Any]] = {
            "timeout_s is a number of seconds or None, not 'x'": lambda: consumer.getbatch(wrong),
            "max_records is an int or None, not 'x'": lambda: consumer.getmany(0, wrong),
            "max_records is an int or None, not 1.5": lambda: consumer.getmany(0, cast(Any, 1.5)),
            r"offsets are a dict by partition, such as .*, not \[Topic": lambda: consumer.commit(cast(Any, [own])),
            "offsets are a dict by partition, .* not 'x'": lambda: consumer.commit_async(wrong),
            "times are a dict by partition, .* not 'x'": lambda: consumer.offsets_for_times(wrong),
            "may_act takes a record or a batch .* not 'x'": lambda: consumer.may_act(wrong),
            "may_act takes a record or a batch .* not Topic": lambda: consumer.may_act(cast(Any, own)),
            "a partition is a TopicPartition .* not 'x'": lambda: consumer.report_load(wrong, 1.0),
            "a load is a finite number, .* not 'x'": lambda: consumer.report_load(own, wrong),
            "partitions are a list of TopicPartition .* not 5": lambda: consumer.end_offsets(cast(Any, 5)),
            "a topic name is a string, not 5": lambda: consumer.partitions_for_topic(cast(Any, 5)),
        }
        for why, call in calls.items():
            with pytest.raises(TypeError, match=why):
                await made(call)
        assert await consumer.getbatch(float("nan")) is None, "as with no wait"
    with pytest.raises(Closed, match="is closed"):
        await consumer.getbatch(0)
    await consumer.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"group": "a/b"}, "group name 'a/b' cannot be a znode"),
        ({"assignor": "navie"}, "naive"),
        ({"assignor": []}, "at least one"),
        ({"auto_offset_reset": "erliest"}, "earliest"),
        ({"membership": ZooKeeper(zookeeper_options={"use_sll": True})}, "use_ssl"),
        ({"security": {"sasl_mechansim": "PLAIN"}}, "sasl_mechanism"),
        ({"membership": "zk"}, 'membership = .zk.: must be "zookeeper" or "kafka" or "fixed"'),
        ({"group": None}, "group not set with membership = 'zookeeper': only membership=\"fixed\""),
        ({"pattern": "o"}, "they exclude each other"),
        ({"pattern": "["}, "not a regular expression"),
        ({"membership": Kafka(heartbeat_interval_s=6)}, "heartbeat_interval_s is 6; at most half"),
    ],
)
def test_an_invalid_setting_is_named_by_the_constructor(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(AllocatorError, match=says):
        Consumer("t", **{"brokers": "b:1", "group": "g", "zookeeper": "z:1", **settings})


@through_zookeeper
@pytest.mark.parametrize(
    ("switching", "closing_task_has_read", "fails"),
    [(False, False, False), (False, True, False), (False, False, True), (True, False, False)],
)
async def test_closing_from_another_task_waits_for_the_reader(
    setting: Setting, switching: bool, closing_task_has_read: bool, fails: bool
) -> None:
    await setting.produce(0, 4)
    may_go_on, taken = asyncio.Event(), asyncio.Event()
    values: list[int] = []

    async def work() -> str:
        async for batch in consumer:
            values.extend(int(record.value) for record in batch)
            taken.set()
            await may_go_on.wait()
            if fails:
                raise ZeroDivisionError
        return "the loop ended"

    where = {"brokers": setting.cluster.bootstrap, "zookeeper": f"{setting.cluster.zookeeper}/{setting.group}"}
    consumer: Any = SwitchingConsumer(setting.topic, **where, group=setting.group) if switching else setting.consumer()
    await consumer.start()
    if closing_task_has_read:
        values += [int(record.value) for record in await consumer.getbatch(30)]
    worker = asyncio.ensure_future(work())
    await asyncio.wait_for(taken.wait(), 30)
    closing = asyncio.ensure_future(consumer.close())
    async with setting.consumer(group=f"{setting.group}-later") as later:  # closes after it if both wait for nothing
        assert len(await read(later, 4)) == 4
    assert not closing.done(), "the partition was released while a delivered batch was not done"
    may_go_on.set()
    (result,) = await asyncio.gather(worker, return_exceptions=True)
    await asyncio.wait_for(closing, 30)
    assert isinstance(result, ZeroDivisionError) if fails else result == "the loop ended"
    async with setting.consumer() as successor:
        again = await read(successor, 4 - len(values) + fails)
    assert sorted([*values, *again]) == sorted([*range(4), *(values[-1:] if fails else ())])


@pytest.mark.long
async def test_a_broker_that_is_down_at_start_is_waited_for(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    cluster = await asyncio.to_thread(lambda: cluster_factory(kafka="3.9.1", heap="385m"))
    setting = Setting(cluster, topic_factory(2, cluster=cluster), group, partitions=2)
    await setting.produce(0, 10)
    await asyncio.to_thread(cluster.brokers[0].kill)
    consumer = setting.consumer()
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.to_thread(cluster.brokers[0].start)
    await starting
    try:
        assert sorted(await read(consumer, 10)) == list(range(10))
    finally:
        await consumer.close()


@through_zookeeper
async def test_after_a_lost_session_nothing_is_committed(setting: Setting) -> None:
    await setting.produce(0, 40)
    listener = Recording()
    own = {"session_timeout_s": 4.0, "listener": listener, "auto_commit_interval_s": 60.0}
    async with setting.proxy() as proxy, setting.consumer(**own, zookeeper=setting.through(proxy)) as consumer:
        assert len(await read(consumer, 40)) == 40
        assert await consumer.getbatch(0) is None  # done with the last one
        await consumer.commit(dict.fromkeys(setting.partitions, 5))
        partition = setting.partitions[0]
        proxy.drop()
        proxy.reset()
        await wait_until_async(lambda: not consumer.may_act(), 30, "the pause")
        with pytest.raises(CommitFailed, match="so another member may own them now") as refusal:
            await consumer.commit({partition: 10})
        assert refusal.value.retriable
        await setting.produce(40, 44)
        assert await consumer.getbatch(0.5) is None, "a record was delivered without a valid lease"
        async with setting.consumer(session_timeout_s=4.0) as successor:
            await owns(successor, 4)
            proxy.heal()
            await wait_until_async(lambda: len(listener.calls) > 1, 30, "the call for the loss")
            assert listener.calls[1] == ("lost", frozenset(setting.partitions))
            await owns(successor, 2)
        # It had processed the first ten records of each partition, and continues after them although no further commit
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
    assert done, "the close and the reader wait for each other"
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


@through_zookeeper
async def test_closing_does_not_wait_for_a_zookeeper_that_is_gone(setting: Setting) -> None:
    await setting.produce(0, 40)
    listener = Recording()
    async with setting.proxy() as proxy:
        own = {"session_timeout_s": 2.0, "listener": listener, "zookeeper": setting.through(proxy)}
        async with setting.consumer(**own) as consumer:
            assert len(await read(consumer, 40)) == 40
            proxy.drop()
            proxy.reset()
            await wait_until_async(lambda: not consumer.may_act(), 30, "the pause")
            started = time.monotonic()
        assert time.monotonic() - started < 60
    assert listener.calls[-1][0] in ("revoked", "lost")


async def test_with_manual_commits_a_moved_partition_continues_at_its_committed_offset(setting: Setting) -> None:
    """A further request does not mean that the records are done: they may still be in the user's queues."""
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


@pytest.mark.parametrize("ends", ["a seek", "a pause"])
async def test_getmany_raises_an_error_behind_records_while_it_lasts(ends: str) -> None:
    """It meets the error behind the records of another partition, once that error is due again."""
    out, other = TopicPartition("t", 0), TopicPartition("t", 1)
    cluster = GroupCluster(ids=True)
    consumer, made = consumer_by_hand(cluster, auto_offset_reset="none")
    cluster.create([out, other])
    loop = asyncio.get_running_loop()
    async with consumer:
        for partition, start in ((out, 500), (other, 0)):
            await made[0].take(partition, partition.partition, lambda: None)
            consumer.seek(partition, start)
        errors, raised, end, read = 0, True, 0, 0
        while errors < 3 or raised:  # it is reported, although there are records of the other partition each time
            assert end < 60
            due_at, end = loop.time() + 0.1, end + 3
            cluster.produce(other, 3)
            await wait_until_async(lambda: consumer.high_watermark(other) == end, 10, "the records")  # noqa: B023
            await wait_until_async(lambda: loop.time() > due_at, 10, "that the error is due")  # noqa: B023
            try:
                read += len((await consumer.getmany(5))[other])
                raised = False
            except OffsetOutOfRange:
                errors, raised = errors + 1, True
        if ends == "a seek":
            consumer.seek(out, 0)
        else:
            consumer.pause(out)
        while read < end:
            read += len((await consumer.getmany(5))[other])
        assert await consumer.getmany(0.2) == {}
