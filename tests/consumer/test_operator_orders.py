"""Operators pause, skip, quarantine and seek partitions of a running group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from joining import joined

from allocator import Consumer, GroupOrders, TopicPartition
from allocator.cli.commands import main
from allocator.core.consumer import ConsumerCore, MembershipConfig
from allocator.operate.dead_letters import DeadLetterQueue, Letter
from allocator.sinks import SqliteSink
from allocator.testing import LocalCluster, WaitTimeout, wait_until_async
from allocator.types import Record


def options(cluster: LocalCluster, group: str) -> dict[str, Any]:
    return {
        "brokers": cluster.bootstrap,
        "zookeeper": cluster.zookeeper,
        "group": group,
        "session_timeout_s": 15.0,
        "max_wait_s": 0.05,
    }


async def until_state(orders: GroupOrders, state: str) -> str:
    """Waits until one order has this state; returns the reason."""

    async def reason() -> str | None:
        return next((each.why for each in await orders.list() if each.state == state), None)

    why: str = await wait_until_async(reason, 30, state)  # type: ignore[assignment]
    return why


@contextlib.asynccontextmanager
async def ended(task: asyncio.Future[Any]) -> Any:
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_partition_that_drains_is_left_to_the_seek_of_its_next_owner() -> None:
    zero = TopicPartition("t", 0)
    config = MembershipConfig.of("zookeeper", zookeeper="z:2181", group="g", topics=("t",))
    core = ConsumerCore(
        config,
        brokers="b:9092",
        listener=None,
        auto_commit_interval_s=5,
        auto_offset_reset="latest",
    )
    core.state.claim({zero: 1})
    assert core.sought(zero, 7)
    tenures = core.state.drain([zero])
    assert not core.sought(zero, 3)
    assert core.progress.uncommitted() == {zero: 7}
    core.state.release(tenures)
    assert not core.sought(zero, 3), "it has left while the operator's offset was looked up"


async def test_a_handler_obeys_every_order_and_its_undoing(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, dead = topic_factory(2), topic_factory(1)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    handled: list[tuple[int, int]] = []
    broken = {2}

    async def handle(record: Record) -> None:
        if record.partition == 0 and record.offset in broken:
            raise ValueError("it never works")
        handled.append((record.partition, record.offset))

    async def produce(count: int, partition: int) -> None:
        records = [(None, b"x", partition)] * count
        await asyncio.to_thread(kafka_cluster.produce, topic, records)

    async def until(*wanted: tuple[int, int]) -> None:
        await wait_until_async(lambda: set(wanted) <= set(handled), 30, lambda: f"{wanted}; handled: {handled}")

    async with Consumer(topic, **joined(**options(kafka_cluster, group))) as consumer:
        work = asyncio.ensure_future(
            consumer.process(handle, retries=1_000_000, retry_backoff_s=600.0, dead_letter_topic=dead)
        )
        async with ended(work), GroupOrders(kafka_cluster.zookeeper, group, who="alice") as orders:
            # a record that always fails holds its partition up; an order leaves it out
            await produce(4, 0)
            await until((0, 1))
            await orders.skip(zero, 2, why="it never works")
            await until((0, 3))
            assert (0, 2) not in handled

            await orders.pause([zero, one])
            await wait_until_async(lambda: "takes effect: pause" in caplog.text, 30, "the pause")
            await produce(2, 0)
            await produce(2, 1)
            assert [each.order.kind for each in await orders.list()] == ["skip", "pause"]
            await orders.resume([one])
            await until((1, 1))
            assert (0, 4) not in handled
            await orders.resume([zero])
            await until((0, 5))

            failures = consumer.measures.handler_failures
            await orders.quarantine([one], why="its producer is broken")
            await wait_until_async(lambda: "takes effect: quarantine" in caplog.text, 30, "the quarantine")
            await produce(2, 1)
            async with DeadLetterQueue(dead, kafka_cluster.bootstrap) as letters:

                async def both() -> list[Letter]:
                    found = [letter async for letter in letters.read()]
                    return found if len(found) == 2 else []

                found = await wait_until_async(both, 30, "two letters")
            assert "Quarantined: quarantine" in found[0].error
            assert "by alice: its producer is broken" in found[0].error
            assert found[0].attempts == 0, "the handler was not called"
            assert consumer.measures.handler_failures == failures
            await orders.lift([one])
            await wait_until_async(lambda: "in effect here: quarantine" in caplog.text, 30, "the lift")
            await produce(1, 1)
            await until((1, 4))
            assert not {(1, 2), (1, 3)} & set(handled)

            handled.clear()
            await orders.seek([zero], "1")
            await until((0, 1), (0, 3), (0, 5))
            assert (0, 0) not in handled
            assert await until_state(orders, "done") == "sought to 1 from 6"
            assert not work.done()


async def test_a_seek_waits_for_no_retry_and_is_done_when_it_is_committed(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = topic_factory(1)
    zero = TopicPartition(topic, 0)
    handled: list[int] = []

    async def handle(record: Record) -> None:
        if record.offset == 2:
            raise ValueError("it never works")
        handled.append(record.offset)

    kafka_cluster.produce(topic, [b"%d" % n for n in range(4)])
    async with Consumer(topic, **joined(**options(kafka_cluster, group))) as consumer:
        work = asyncio.ensure_future(
            consumer.process(handle, retries=1_000_000, retry_backoff_s=600.0, commit_interval_s=600.0)
        )
        async with ended(work), GroupOrders(kafka_cluster.zookeeper, group) as orders:
            await wait_until_async(lambda: handled == [0, 1], 30, "the record that never works")
            for to, after in (("1", [0, 1, 1]), ("3", [0, 1, 1, 3])):
                order = (await orders.seek([zero], to)).order

                async def is_done(id: str = order.id) -> bool:
                    return any(each.order.id == id and each.state == "done" for each in await orders.list())

                await wait_until_async(is_done, 30, f"the seek to {to}")
                found = await consumer.committed(zero)
                assert found is not None
                assert found.offset >= int(to)
                await wait_until_async(lambda after=after: handled == after, 30, f"the records from {to} on")  # type: ignore[misc]
            assert not work.done()


async def test_a_consumer_that_reads_by_itself_obeys_what_it_can_and_says_what_it_cannot(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_factory(1)

    async def command(*words: str) -> None:
        given = ["group", *words, "--zookeeper", kafka_cluster.zookeeper]
        done = await asyncio.to_thread(CliRunner().invoke, main, given)
        assert done.exit_code == 0, done.output

    zero = TopicPartition(topic, 0)
    kafka_cluster.produce(topic, [b"%d" % n for n in range(5)])
    async with GroupOrders(kafka_cluster.zookeeper, group) as orders:
        async with Consumer(topic, **joined(**options(kafka_cluster, group))) as first:
            assert (await first.getbatch(30)) is not None
            await first.getbatch(0)
            await command("pause", group, f"{topic}:0", "--why", "a test")
            await orders.quarantine([zero])
            await wait_until_async(lambda: "takes effect: pause" in caplog.text, 30, "the pause")
            await until_state(orders, "not kept")
        # the next owner obeys from its first record on
        async with Consumer(topic, **joined(**options(kafka_cluster, group))) as second:
            await command("seek", group, f"{topic}:0", "--to", "earliest")
            await until_state(orders, "done")
            assert await second.getbatch(0) is None
            found = await second.committed(zero)
            assert found is not None
            assert found.offset == 0, "the next owner would go on where the group was before"
            await command("resume", group, f"{topic}:0")
            batch = await second.getbatch(30)
            assert batch is not None
            assert batch.base_offset == 0


async def is_done(orders: GroupOrders, id: str) -> bool:
    return any(each.order.id == id and each.state == "done" for each in await orders.list())


@pytest.mark.parametrize("called", [False, True], ids=["read", "process"])
async def test_a_seek_holds_when_the_partition_returns_to_an_earlier_owner(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, called: bool
) -> None:
    topic = topic_factory(1)
    zero = TopicPartition(topic, 0)
    handled: list[int] = []
    kafka_cluster.produce(topic, [b"%d" % n for n in range(100)])

    async def handle(record: Record) -> None:
        handled.append(record.offset)

    async def read(consumer: Consumer) -> None:
        if called:
            await consumer.process(handle)
        async for batch in consumer:
            handled.extend(record.offset for record in batch)

    given = options(kafka_cluster, group)
    a, steering = Consumer(topic, **joined(**given, client_id="a")), GroupOrders(kafka_cluster.zookeeper, group)
    async with a, steering as orders, ended(asyncio.ensure_future(read(a))):
        await wait_until_async(lambda: len(handled) == 100, 30, "a's records")
        async with Consumer(topic, **joined(**given, client_id="b")) as b:
            await orders.evacuate("a")
            await wait_until_async(lambda: b.assignment() == {zero}, 30, "the move")
            order = (await orders.seek([zero], "0")).order
            await wait_until_async(lambda: is_done(orders, order.id), 30, "the seek of b")
            await orders.uncordon("a")
        await wait_until_async(lambda: len(handled) == 200, 30, lambda: f"the replay: {len(handled)} records")
        assert sorted(handled[100:]) == list(range(100))


@pytest.mark.parametrize("called", [False, True], ids=["read", "process"])
async def test_a_partition_waits_for_what_was_in_hand_before_a_seek(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, called: bool
) -> None:
    topic = topic_factory(1)
    zero = TopicPartition(topic, 0)
    inside, may_end = asyncio.Event(), asyncio.Event()
    kafka_cluster.produce(topic, [b"%d" % n for n in range(6)])

    async def handle(record: Record) -> None:
        if record.offset == 5:
            inside.set()
            await may_end.wait()

    async def read(consumer: Consumer) -> None:
        if called:
            await consumer.process(handle)
        async for batch in consumer:
            for record in batch:
                await handle(record)

    given = options(kafka_cluster, group)
    a, steering = Consumer(topic, **joined(**given, client_id="a")), GroupOrders(kafka_cluster.zookeeper, group)
    b = Consumer(topic, **joined(**given, client_id="b"))
    async with a, steering as orders, ended(asyncio.ensure_future(read(a))), b:
        await wait_until_async(inside.is_set, 30, "the handler at the last record")
        order = (await orders.seek([zero], "3")).order
        await wait_until_async(lambda: is_done(orders, order.id), 30, "the seek")
        await orders.evacuate("a")
        await wait_until_async(lambda: not a.assignment(), 30, "the release")
        with pytest.raises(WaitTimeout):
            await wait_until_async(b.assignment, 2, "it does not move while the handler works")
        may_end.set()
        await wait_until_async(lambda: b.assignment() == {zero}, 30, "the move")
        found = await b.committed(zero)
        assert found is not None
        assert found.offset == 3


@pytest.mark.parametrize("called", [False, True], ids=["read", "process"])
async def test_a_sink_goes_where_an_operator_sought_though_a_handler_still_writes(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path, called: bool
) -> None:
    """What is written after the sink went back would set it forward again, and the replay be refused."""
    topic = topic_factory(1)
    zero = TopicPartition(topic, 0)
    inside, may_end = asyncio.Event(), asyncio.Event()
    stored: list[int] = []
    kafka_cluster.produce(topic, [b"%d" % n for n in range(6)])

    async def handle(record: Record) -> None:
        if record.offset == 5:
            inside.set()
            await may_end.wait()
        await sink.write_async(record, lambda connection, record: stored.append(record.offset))

    async def read(consumer: Consumer) -> None:
        if called:
            await consumer.process(handle)
        while record := await consumer.getone():
            await handle(record)

    sink = SqliteSink(tmp_path / "effects.db")
    consumer = Consumer(topic, **joined(**options(kafka_cluster, group), sink=sink))
    async with consumer, GroupOrders(kafka_cluster.zookeeper, group) as orders:
        reading = asyncio.ensure_future(read(consumer))
        async with ended(reading):
            await wait_until_async(inside.is_set, 30, "the handler at the last record")
            order = (await orders.seek([zero], "3")).order
            with contextlib.suppress(WaitTimeout):
                await wait_until_async(lambda: is_done(orders, order.id), 1, "the seek, while the handler works")
            may_end.set()
            await wait_until_async(lambda: len(stored) >= 9 or reading.done(), 30, lambda: f"the replay: {stored}")
            assert not reading.done(), reading.exception()
            assert stored == [0, 1, 2, 3, 4, 5, 3, 4, 5]
            await wait_until_async(lambda: is_done(orders, order.id), 30, "the seek")
    sink.close()
