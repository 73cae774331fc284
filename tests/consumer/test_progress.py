"""How far a partition is: nothing is skipped, set back or forgotten, whoever asks, pauses, seeks or loses it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kazoo.client import KazooClient

from allocator import Consumer, GroupCommands
from allocator.errors import Closed, DeserializationError, IllegalState, NotOwned
from allocator.sinks import SqliteSink
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.topics import zookeeper_client
from allocator.types import Record
from tests.consumer.real_service import Recording, Service, owns, read
from tests.stored import stored_offset


@pytest.fixture
def service(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> Service:
    with zookeeper_client(kafka_cluster.zookeeper) as client:
        client.ensure_path(f"/{group}")  # an operator does not create the chroot
    return Service(kafka_cluster, topic_factory(2), group, partitions=2)


async def produce(service: Service, partition: int, *values: bytes) -> None:
    await asyncio.to_thread(service.cluster.produce, service.topic, [(None, value, partition) for value in values])


def operator(service: Service) -> GroupCommands:
    return GroupCommands(f"{service.cluster.zookeeper}/{service.group}", service.group, who="alice")


async def until_committed(service: Service, offset: int) -> None:
    async def is_there() -> bool:
        with contextlib.suppress(KeyError):
            found = await stored_offset(service.cluster.bootstrap, service.group, service.partitions[0])
            return int(found.offset) == offset
        return False

    await wait_until_async(is_there, 30, f"the commit of {offset}")


async def end_session(service: Service, consumer: Consumer) -> None:
    """Deletes the member's znode, as the ensemble does when the session expires."""
    zk = KazooClient(service.cluster.zookeeper)
    await asyncio.to_thread(zk.start)
    try:
        path = f"/{service.group}/allocator/{service.group}/members/{consumer.member_id}"
        await asyncio.to_thread(zk.delete, path)
    finally:
        await asyncio.to_thread(zk.stop)


def refuses(*values: bytes) -> Callable[[bytes], bytes]:
    def deserialize(value: bytes) -> bytes:
        if value in values:
            raise ValueError("poison")
        return value

    return deserialize


# -- errors while reading ---------------------------------------------------------------------------------------------


async def test_getmany_returns_what_it_took_before_a_record_that_cannot_be_decoded(service: Service) -> None:
    await produce(service, 0, b"a", b"b", b"c")
    await produce(service, 1, b"poison", b"d")
    async with service.consumer(value_deserializer=refuses(b"poison"), prefetch_bytes=1 << 20) as consumer:
        await owns(consumer, 2)
        lag = consumer.lag
        await wait_until_async(lambda: len(lag()) == 2, 30, "both batches")
        seen: list[bytes] = []
        errors: list[DeserializationError] = []
        while len(seen) < 4:
            try:
                for records in (await consumer.getmany(1)).values():
                    seen += [record.value for record in records]
            except DeserializationError as error:
                errors.append(error)
        assert sorted(seen) == [b"a", b"b", b"c", b"d"]
        assert [error.offset for error in errors] == [0]


# -- pauses and seeks in the middle of a batch ------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["getone", "getmany"])
@pytest.mark.parametrize("sink", [False, True], ids=["", "sink"])
async def test_an_operators_pause_in_the_middle_of_a_batch_skips_nothing(
    service: Service, reading: str, sink: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = [b"%d" % n for n in range(20)]
    await produce(service, 0, *values)
    seen: list[bytes] = []

    async def more(consumer: Consumer) -> None:
        if reading == "getone":
            record = await consumer.getone(0.1)
            found = [record] if record is not None else []
        else:
            found = [each for part in (await consumer.getmany(0.1, max_records=3)).values() for each in part]
        seen.extend(record.value for record in found)

    options: dict[str, Any] = {"sink": SqliteSink(tmp_path / "sink.db")} if sink else {}
    async with service.consumer(**options) as consumer, operator(service) as commands:
        while len(seen) < 5:
            await more(consumer)
        await commands.pause([service.partitions[0]])
        await wait_until_async(lambda: "takes effect: pause" in caplog.text, 30, "the pause")
        read_before = len(seen)
        for _ in range(5):
            await more(consumer)
        assert len(seen) == read_before < 20
        await commands.resume([service.partitions[0]])

        async def all_read() -> bool:
            await more(consumer)
            return len(seen) >= 20

        await wait_until_async(all_read, 30, lambda: f"the rest after {seen}")
        assert seen == values


async def test_getbatch_after_getone_returns_no_batch_without_records(service: Service) -> None:
    await produce(service, 0, b"a", b"b")
    async with service.consumer() as consumer:
        assert [(await consumer.getone(30)).value for _ in range(2)] == [b"a", b"b"]  # type: ignore[union-attr]
        assert await consumer.getbatch(0.5) is None
        await produce(service, 0, b"c")
        batch = await consumer.getbatch(30)
        assert batch is not None
        assert [record.value for record in batch] == [b"c"]


@pytest.mark.parametrize("reset", ["earliest", "none"])
async def test_an_operators_seek_beyond_the_log_stops_at_its_end(service: Service, reset: str) -> None:
    zero = service.partitions[0]
    await produce(service, 0, *[b"old"] * 3)
    async with service.consumer(auto_offset_reset="earliest") as first:
        await read_values(first, 3)
    async with service.consumer(auto_offset_reset=reset) as consumer, operator(service) as commands:
        await owns(consumer, 2)
        await commands.seek([zero], "5000000")

        async def result() -> str | None:
            await consumer.getone(0.05)
            return next((r.what for each in await commands.list() for r in each.command.results), None)

        what = await wait_until_async(result, 30, "the result")
        assert what is not None
        assert "sought to 3 (the end of the log, which does not have 5000000)" in what
        await produce(service, 0, b"new")
        assert await read_values(consumer, 1) == [b"new"]
        assert consumer.losses == ()


async def read_values(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < count:
        batch = await consumer.getbatch(30)
        assert batch is not None
        values += [record.value for record in batch]
    await consumer.getbatch(0)  # they are done
    return values


# -- commits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_the_start_of_latest_is_committed_before_the_first_record(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, membership: str
) -> None:
    """Otherwise a restart begins at the new end, and skips what was written in between."""
    service = Service(kafka_cluster, await asyncio.to_thread(topic_factory, 2), group, membership, partitions=2)
    await produce(service, 0, b"before")
    async with service.consumer(auto_offset_reset="latest") as consumer:
        await owns(consumer, 2)
        assert await consumer.position(service.partitions[0]) == 1
    await produce(service, 0, *[b"%d" % n for n in range(10)])
    async with service.consumer(auto_offset_reset="latest") as consumer:
        assert await read(consumer, 10) == list(range(10))


@pytest.mark.parametrize("called", [False, True], ids=["read", "process"])
@pytest.mark.parametrize("end", ["marker", "aborted", "emptied"])
async def test_an_idle_group_has_no_lag(service: Service, end: str, called: bool) -> None:
    """A position that moves without a record is committed, too."""
    await produce(service, 0, *[b"x"] * 3)
    if end == "emptied":
        admin = await asyncio.to_thread(KafkaAdminClient, bootstrap_servers=service.cluster.bootstrap)
        await asyncio.to_thread(admin.delete_records, {service.partitions[0]: 3})
        await asyncio.to_thread(admin.close)
    # a reader of uncommitted records gets the marker alone
    isolation: Any = "read_uncommitted" if end == "marker" else "read_committed"
    async with contextlib.AsyncExitStack() as stack:
        consumer = service.consumer(isolation_level=isolation, auto_commit_interval_s=0.1)
        await stack.enter_async_context(consumer)
        work = consumer.process(lambda record: None, commit_interval_s=0.1) if called else read_values(consumer, 100)
        task = asyncio.ensure_future(work)
        stack.push_async_callback(asyncio.wait, {task})
        stack.callback(task.cancel)
        await until_committed(service, 3)
        if end == "emptied":
            return
        writer = await asyncio.to_thread(
            KafkaProducer, bootstrap_servers=service.cluster.bootstrap, transactional_id=service.group
        )
        stack.callback(writer.close)
        await asyncio.to_thread(writer.init_transactions)
        writer.begin_transaction()
        await asyncio.to_thread(writer.send(service.topic, b"y", partition=0).get, 30)
        if end == "marker":
            await until_committed(service, 4)
        await asyncio.to_thread(writer.commit_transaction if end == "marker" else writer.abort_transaction)
        await until_committed(service, 5)
        task.cancel()
        await asyncio.wait({task})
        assert await consumer.position(service.partitions[0]) == 5  # a retried commit must not set it back


async def test_lag_has_no_record_that_waits_for_the_end_of_a_transaction(service: Service) -> None:
    """A consumer that waits for another producer is not behind. Java's consumer and librdkafka count the same."""
    zero = service.partitions[0]
    await produce(service, 0, *[b"%d" % n for n in range(5)])
    writer = await asyncio.to_thread(
        KafkaProducer, bootstrap_servers=service.cluster.bootstrap, transactional_id=service.group
    )
    with contextlib.closing(writer):
        await asyncio.to_thread(writer.init_transactions)
        writer.begin_transaction()
        await asyncio.to_thread(writer.send(service.topic, b"5", partition=0).get, 30)
        await produce(service, 0, *[b"%d" % n for n in range(6, 20)])
        async with service.consumer(isolation_level="read_committed") as consumer:
            assert await read(consumer, 5) == list(range(5))
            assert (await consumer.position(zero), await consumer.end_offsets([zero])) == (5, {zero: 5})
            assert (consumer.lag()[zero], consumer.high_watermark(zero)) == (0, 20)
            assert consumer.metrics()["records-lag-max"] == 0
            await asyncio.to_thread(writer.commit_transaction)
            assert (await read(consumer, 15))[:1] == [5]
    async with service.consumer(group=None, membership="fixed") as consumer:
        assert (await consumer.getone(30)).offset == 0
        assert consumer.lag()[zero] == 20


async def test_an_uncommitted_seek_is_no_progress_when_the_partition_returns(service: Service) -> None:
    zero = service.partitions[0]
    await produce(service, 0, *[b"%d" % n for n in range(20)])
    listener = Recording()
    async with service.consumer(auto_commit_interval_s=60.0, listener=listener) as consumer:
        await owns(consumer, 2)
        await consumer.seek_to_beginning(zero)
        for _ in range(5):
            await consumer.getone(30)
        await consumer.commit()
        consumer.seek(zero, 15)
        record = await consumer.getone(30)
        assert record is not None
        assert record.offset == 15
        await end_session(service, consumer)
        await wait_until_async(lambda: "lost" in {event for event, _ in listener.calls}, 30, "the loss")
        await owns(consumer, 2)
        assert await consumer.position(zero) == 5


async def test_a_commit_of_records_that_were_lost_raises(service: Service) -> None:
    await produce(service, 0, b"x")
    listener = Recording()
    async with service.consumer(listener=listener) as consumer:
        assert await consumer.getone(30) is not None
        await end_session(service, consumer)
        await wait_until_async(lambda: "lost" in {event for event, _ in listener.calls}, 30, "the loss")
        with pytest.raises(NotOwned):
            await consumer.commit()
        with pytest.raises(NotOwned):
            consumer.commit_async()
        await owns(consumer, 2)
        with pytest.raises(NotOwned):
            await consumer.commit()


@pytest.mark.parametrize("called", [False, True], ids=["read", "process"])
async def test_a_close_without_a_commit_commits_nothing(service: Service, called: bool) -> None:
    await produce(service, 0, b"x", b"y")
    consumer, handled = service.consumer(auto_commit_interval_s=60.0), asyncio.Event()
    await consumer.start()
    if called:

        async def handle(record: Record) -> None:
            if record.offset == 1:
                handled.set()

        task = asyncio.ensure_future(consumer.process(handle, commit_interval_s=60.0))
        await asyncio.wait_for(handled.wait(), 60)
        await consumer.close(commit=False)
        await asyncio.wait({task})
    else:
        await read_values(consumer, 2)
        await consumer.close(commit=False)
    with pytest.raises(KeyError):
        await stored_offset(service.cluster.bootstrap, service.group, service.partitions[0])


async def test_a_commit_comes_after_an_earlier_offset_of_the_user_that_is_under_way(service: Service) -> None:
    await produce(service, 0, b"0", b"1", b"2")
    async with service.consumer(auto_commit_interval_s=None) as consumer:
        assert len(await read(consumer, 3)) == 3
        await consumer.commit()
        consumer.commit_async({service.partitions[0]: 1})
        await consumer.commit()
    found = await stored_offset(service.cluster.bootstrap, service.group, service.partitions[0])
    assert found.offset == 3


async def test_commit_async_calls_its_callback_although_there_is_nothing_to_commit(service: Service) -> None:
    calls: list[tuple[Any, Exception | None]] = []
    async with service.consumer() as consumer:
        await owns(consumer, 2)
        await consumer.position(service.partitions[0])
        await consumer.position(service.partitions[1])
        await consumer.commit()
        consumer.commit_async(callback=lambda offsets, error: calls.append((offsets, error)))
        consumer.commit_async({}, callback=lambda offsets, error: calls.append((offsets, error)))
        await wait_until_async(lambda: len(calls) == 2, 30, "the callbacks")
    assert calls == [({}, None), ({}, None)]


# -- holds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
async def test_a_call_whose_partition_was_lost_may_not_act(service: Service, plain: bool) -> None:
    await produce(service, 0, b"x")
    inside, may_go, may_end, results = asyncio.Event(), asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()
    async with service.consumer() as consumer:

        async def handle(record: Record) -> None:
            inside.set()
            with contextlib.suppress(asyncio.CancelledError):
                await may_go.wait()
            await may_go.wait()
            results.append((consumer.may_act(), consumer.may_act(record)))

        def handle_plain(record: Record) -> None:
            loop.call_soon_threadsafe(inside.set)
            may_end.wait(60)
            results.append((consumer.may_act(), consumer.may_act(record)))

        work = asyncio.ensure_future(consumer.process(handle_plain if plain else handle, drain_timeout_s=0.1))
        await asyncio.wait_for(inside.wait(), 60)
        assert consumer.may_act()
        member = consumer.member_id
        await end_session(service, consumer)
        try:
            await wait_until_async(lambda: consumer.member_id != member, 30, "the next session")
            await owns(consumer, 2)
        finally:
            may_go.set()
            may_end.set()
        await wait_until_async(lambda: results, 30, "the end of the call")
        assert results[0] == (False, False)
        work.cancel()
        await asyncio.wait({work})


async def test_a_reader_delays_only_the_partitions_that_it_has_records_of(
    service: Service, topic_factory: Callable[..., str]
) -> None:
    service = Service(service.cluster, await asyncio.to_thread(topic_factory, 4), service.group)
    zero, *others = service.partitions
    await produce(service, 0, b"x")
    async with service.consumer(client_id="a") as slow:
        batch = await slow.getbatch(30)
        assert batch is not None
        async with operator(service) as commands, service.consumer(client_id="b") as other:
            await owns(other, 2)
            await commands.pin(service.partitions, "b")
            await wait_until_async(lambda: other.assignment() == {*others}, 30, "those that nobody works on")
            assert slow.may_act(batch)
            assert await slow.getbatch(0) is None
            await wait_until_async(lambda: other.assignment() == {zero, *others}, 30, "the last one")
            assert not slow.may_act(batch)


# -- misuse -----------------------------------------------------------------------------------------------------------


async def test_a_consumer_is_refused_in_another_event_loop_and_after_its_end(service: Service) -> None:
    consumer = service.consumer()
    await consumer.start()

    def elsewhere(call: Callable[[], Awaitable[object]]) -> BaseException | None:
        async def run() -> None:
            await call()

        try:
            asyncio.run(run())
        except IllegalState as error:
            return error
        return None

    for call in (consumer.commit, consumer.close, lambda: consumer.getone(1)):
        error = await asyncio.to_thread(elsewhere, call)
        assert error is not None
        assert "another event loop" in str(error)
    await consumer.close()
    with pytest.raises(Closed):
        await consumer.process(print)
