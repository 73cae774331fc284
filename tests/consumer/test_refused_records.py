"""Records for which `may_act` is False are not done: they come again once the lease is renewed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from allocator import Consumer, Record, TopicPartition
from allocator.errors import Fenced
from allocator.sinks import SqliteSink
from allocator.testing import FaultProxy, LocalCluster, wait_until, wait_until_async
from tests.consumer.fake_kafka import GroupCluster, HandMembership, consumer_by_hand
from tests.consumer.real_service import Service
from tests.inside import member_of
from tests.stored import stored_offset

COUNT = 6


class User:
    """Acts on records, but not on that at offset 2 the first time: ZooKeeper is away then, within the session."""

    def __init__(self, consumer: Consumer, proxy: FaultProxy, *, named: bool) -> None:
        self.consumer, self._proxy, self._named = consumer, proxy, named
        self.done: list[int] = []
        self._asked = False

    def acts_on(self, record: Record) -> None:
        """Blocks, so call it in a thread that has the context of the reader or the call."""
        may_act = member_of(self.consumer).membership.may_act
        if record.offset == 2 and not self._asked:
            self._asked = True
            self._proxy.stop()
            wait_until(lambda: not may_act(), 30, "the end of the lease")
            acts = self.consumer.may_act(record) if self._named else self.consumer.may_act()
            self._proxy.start()
            wait_until(may_act, 30, "the lease")
            if not acts:
                return
        self.done.append(record.offset)

    @property
    def is_done(self) -> bool:
        return {*self.done} == {*range(COUNT)}


@contextlib.asynccontextmanager
async def using(cluster: LocalCluster, topic: str, group: str, *, named: bool) -> AsyncIterator[User]:
    service = Service(cluster, topic, group, partitions=1)
    await service.produce(0, COUNT)
    proxy = FaultProxy(int(cluster.zookeeper.rpartition(":")[2]))  # type: ignore[union-attr]
    async with proxy, service.consumer(zookeeper=proxy.address, auto_commit_interval_s=0.1) as consumer:
        user = User(consumer, proxy, named=named)
        yield user
        assert user.is_done

        async def is_committed() -> bool:
            with contextlib.suppress(KeyError):
                return int((await stored_offset(cluster.bootstrap, group, service.partitions[0])).offset) == COUNT
            return False

        await wait_until_async(is_committed, 30, "the commit of all records")


async def read(consumer: Consumer, form: str) -> list[Record]:
    if form == "getone":
        record = await consumer.getone(0.1)
        return [] if record is None else [record]
    if form == "getmany":
        return [record for records in (await consumer.getmany(0.1)).values() for record in records]
    return list(await consumer.getbatch(0.1) or ())


@pytest.mark.parametrize("form", ["getone", "getmany", "getbatch"])
@pytest.mark.parametrize("named", [False, True], ids=["in hand", "by record"])
async def test_a_reader_gets_a_record_again_on_which_it_could_not_act(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, form: str, named: bool
) -> None:
    async with using(kafka_cluster, topic_factory(1), group, named=named) as user:
        while not user.is_done:
            for record in await asyncio.wait_for(read(user.consumer, form), 30):  # on some Pythons a task of its own
                await asyncio.get_running_loop().run_in_executor(None, user.acts_on, record)  # without a context
        await user.consumer.getmany(0)  # the last ones are done
        if named:  # nothing before it comes again
            assert user.done.count(0) == user.done.count(1) == 1


@pytest.mark.parametrize("how", ["plain", "async", "without a context", "from a retry topic, without a context"])
async def test_a_handler_is_called_again_for_a_record_on_which_it_could_not_act(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, how: str
) -> None:
    async with using(kafka_cluster, topic_factory(1), group, named="without a context" in how) as user:
        retries: dict[str, Any] = {}
        if "retry" in how:
            retries = {"retries": 0, "retry_topics": ["1s"], "create_retry_topics": True}
            retries["dead_letter_topic"] = topic_factory(1)

        async def handle(record: Record) -> None:
            if retries and record.offset == 2 and "allocator.attempts" not in dict(record.headers):
                raise ValueError("its first attempt fails")
            if how == "async":
                await asyncio.to_thread(user.acts_on, record)
            else:
                await asyncio.get_running_loop().run_in_executor(None, user.acts_on, record)

        handler: Any = user.acts_on if how == "plain" else handle
        processing = asyncio.ensure_future(user.consumer.process(handler, commit_interval_s=0.1, **retries))
        await wait_until_async(lambda: user.is_done, 60, lambda: f"the effects of all records: {user.done}")
        assert sorted(user.done) == [*range(COUNT)]
        processing.cancel()
        await asyncio.wait({processing})


@pytest.mark.parametrize("named", [False, True], ids=["in hand", "by record"])
async def test_each_record_is_stored_once_in_a_sink_although_the_reader_could_not_act_on_one(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, named: bool, tmp_path: Path
) -> None:
    service = Service(kafka_cluster, topic_factory(1), group, partitions=1)
    await service.produce(0, COUNT)
    proxy = FaultProxy(int(kafka_cluster.zookeeper.rpartition(":")[2]))  # type: ignore[union-attr]
    stored: list[int] = []
    sink = SqliteSink(tmp_path / "sink.db")
    async with proxy, service.consumer(zookeeper=proxy.address, sink=sink) as consumer:
        user = User(consumer, proxy, named=named)
        while len({*stored}) < COUNT:
            for record in await read(consumer, "getmany"):
                await asyncio.to_thread(user.acts_on, record)
                if record.offset not in user.done:
                    break
                if named and not consumer.may_act(record):
                    continue
                await sink.write_async(record, lambda _, unit: stored.append(unit.offset))
    assert stored == [*range(COUNT)]


async def test_a_sink_stores_no_record_behind_one_that_the_reader_left_out(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    """The reader asks without a record, and the lease is back before the next one."""
    service = Service(kafka_cluster, topic_factory(1), group, partitions=1)
    await service.produce(0, COUNT)
    proxy = FaultProxy(int(kafka_cluster.zookeeper.rpartition(":")[2]))  # type: ignore[union-attr]
    stored: list[int] = []
    refused = 0
    sink = SqliteSink(tmp_path / "sink.db")
    async with proxy, service.consumer(zookeeper=proxy.address, sink=sink) as consumer:
        user = User(consumer, proxy, named=False)
        while len({*stored}) < COUNT:
            for record in await read(consumer, "getmany"):
                await asyncio.to_thread(user.acts_on, record)
                if record.offset in user.done and consumer.may_act():
                    try:
                        await sink.write_async(record, lambda _, unit: stored.append(unit.offset))
                    except Fenced:
                        refused += 1
    assert stored == [*range(COUNT)]
    assert refused == COUNT - 3


# -- without servers: the lease ends and comes back by hand ------------------------------------------------------------


@contextlib.asynccontextmanager
async def owner_of(*partitions: TopicPartition) -> AsyncIterator[tuple[Consumer, HandMembership]]:
    """The owner of these partitions, each with some records."""
    cluster = GroupCluster(ids=True)
    consumer, made = consumer_by_hand(cluster)
    cluster.create(partitions)
    async with consumer:
        for partition in partitions:
            cluster.produce(partition, COUNT)
            await made[0].take(partition, partition.partition, lambda: None)
        yield consumer, made[0]


@pytest.mark.parametrize("later", ["by record", "in hand", "until"])
@pytest.mark.parametrize("first", ["by record", "in hand"])
async def test_a_handler_that_goes_on_once_it_may_acts_on_each_record_once(first: str, later: str) -> None:
    """In whatever form it has asked before and asks again."""
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        done: list[int] = []
        asked = False

        async def handle(record: Record) -> None:
            nonlocal asked
            if record.offset == 2 and not asked:
                asked = True
                hand.suspend()
                assert not (consumer.may_act(record) if first == "by record" else consumer.may_act())
                if later == "until":
                    asyncio.get_running_loop().call_later(0.05, hand.resume)
                    await asyncio.wait_for(consumer.until_may_act(), 30)  # on some Pythons a task of its own
                else:
                    hand.resume()
                    assert consumer.may_act(record) if later == "by record" else consumer.may_act()
            done.append(record.offset)

        processing = asyncio.ensure_future(consumer.process(handle))
        await wait_until_async(lambda: COUNT - 1 in done, 30, lambda: f"the last record: {done}")
        processing.cancel()
        await asyncio.wait({processing})
        assert done == [*range(COUNT)]


@pytest.mark.parametrize("who", ["handler", "reader"])
async def test_a_task_that_goes_on_does_so_for_itself_and_not_for_another_that_could_not_act(who: str) -> None:
    async with owner_of(TopicPartition("t", 0), TopicPartition("t", 1)) as (consumer, hand):
        done: list[tuple[int, int]] = []
        left_out = False

        async def leave_out(record: Record) -> None:
            nonlocal left_out
            if not left_out:
                left_out = True
                hand.suspend()
                assert not consumer.may_act(record)
            elif consumer.may_act(record):
                done.append((record.partition, record.offset))

        async def go_on() -> None:
            hand.resume()
            await consumer.until_may_act()

        async def act(records: list[Record]) -> None:
            await asyncio.gather(*map(leave_out, records), go_on())

        async def handle(record: Record) -> None:
            await act([record])

        async def until_done() -> None:
            while {*done} != {(partition, offset) for partition in (0, 1) for offset in range(COUNT)}:
                if processing is None:
                    await act([record for each in (await consumer.getmany(0.1)).values() for record in each])
                else:
                    await asyncio.sleep(0.01)

        processing = None
        if who == "handler":
            processing = asyncio.ensure_future(consumer.process(handle))
        await asyncio.wait_for(until_done(), 30)
        if processing is not None:
            processing.cancel()
            await asyncio.wait({processing})


async def test_a_call_that_asks_for_the_records_of_other_calls_is_told_of_those() -> None:
    """As a loader that collects the records of many calls does."""
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        waiting: dict[int, tuple[Record, asyncio.Future[None]]] = {}
        done: list[int] = []
        left_out: list[int] = []

        async def load() -> None:
            await asyncio.sleep(0.05)
            batch = list(waiting.values())
            waiting.clear()
            for record, loaded in batch:
                if record.offset == 1 and not left_out:
                    hand.suspend()
                if consumer.may_act(record):
                    done.append(record.offset)
                else:
                    left_out.append(record.offset)
                hand.resume()
                loaded.set_result(None)

        async def handle(record: Record) -> None:
            loaded = asyncio.get_running_loop().create_future()
            if not waiting:
                asyncio.get_running_loop().create_task(load())
            waiting[record.offset] = record, loaded
            await loaded

        processing = asyncio.ensure_future(consumer.process(handle, ordering="none"))
        await wait_until_async(lambda: {*done} == {*range(COUNT)}, 30, lambda: f"all records: {done}")
        processing.cancel()
        await asyncio.wait({processing})
        assert left_out == [1]
        assert len(done) == COUNT


@pytest.mark.parametrize("who", ["handler", "reader"])
async def test_what_a_thread_was_told_counts_after_a_task_has_waited(who: str) -> None:
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        done: list[int] = []
        left_out = False

        def store(record: Record) -> None:
            nonlocal left_out
            if record.offset == 2 and not left_out:
                left_out = True
                hand._suspended = True  # as `suspend` does, without its report to the loop
                assert not consumer.may_act(record)
                hand._suspended = False
            else:
                done.append(record.offset)

        async def act(record: Record) -> None:
            await asyncio.to_thread(store, record)
            await consumer.until_may_act()  # for a next step

        processing = None if who == "reader" else asyncio.ensure_future(consumer.process(act))

        async def is_done() -> bool:
            if processing is None:
                for records in (await consumer.getmany(0.1)).values():
                    for record in records:
                        await act(record)
            return {*done} == {*range(COUNT)}

        await wait_until_async(is_done, 30, lambda: f"all records: {done}")
        if processing is not None:
            processing.cancel()
            await asyncio.wait({processing})


async def test_a_record_that_goes_back_to_a_queue_is_done_by_whichever_task_may_act_on_it() -> None:
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        done: list[int] = []
        queue: asyncio.Queue[Record] = asyncio.Queue()

        async def work() -> None:
            while True:
                record = await queue.get()
                if record.offset == 2 and not done.count(0):
                    hand.suspend()
                    asyncio.get_running_loop().call_later(0.05, hand.resume)
                if consumer.may_act(record):
                    done.append(record.offset)
                else:
                    await asyncio.sleep(0.01)
                    queue.put_nowait(record)

        (records,) = (await consumer.getmany(5)).values()
        for record in records[2:] + records[:2]:
            queue.put_nowait(record)
        workers = [asyncio.ensure_future(work()) for _ in range(3)]
        await wait_until_async(lambda: sorted(done) == [*range(COUNT)], 30, lambda: f"all records: {done}")
        for worker in workers:
            worker.cancel()
        assert not await consumer.getmany(0.2)  # none comes again
