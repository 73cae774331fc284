"""Records for which `may_act` is False are not done: they come again once the lease is renewed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from allocator import Batch, Consumer, Record, TopicPartition
from allocator.errors import Fenced, NotOwned
from allocator.handlers.handlers import Handler
from allocator.handlers.handling import Handling
from allocator.handlers.processor import Processor
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
            assert (self.consumer.may_act(record) if self._named else self.consumer.may_act()) == acts
            if not acts:
                return
        elif self._named and not self.consumer.may_act(record):
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


@pytest.mark.parametrize(
    "how",
    [
        "plain",
        "async",
        "without a context",
        "from a retry topic, without a context",
        "from a retry topic, without a context, beside an earlier one",
    ],
)
async def test_a_handler_is_called_again_for_a_record_on_which_it_could_not_act(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, how: str
) -> None:
    async with using(kafka_cluster, topic_factory(1), group, named="without a context" in how) as user:
        retries: dict[str, Any] = {}
        if "retry" in how:
            retries = {"retries": 0, "retry_topics": ["1s"], "create_retry_topics": True}
            retries["dead_letter_topic"] = topic_factory(1)
        beside = "beside" in how
        if beside:
            retries["ordering"] = "none"
        retried = asyncio.Event()

        async def handle(record: Record) -> None:
            if beside and record.offset == 0:
                await retried.wait()
            if retries and record.offset == 2 and "allocator.attempts" not in dict(record.headers):
                raise ValueError("its first attempt fails")
            if how == "async":
                await asyncio.to_thread(user.acts_on, record)
            else:
                await asyncio.get_running_loop().run_in_executor(None, user.acts_on, record)
            if 2 in user.done:
                retried.set()

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
    """Whether it asked or not: the reader asks without a record, and the lease is back before the next one."""
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
                try:
                    await sink.write_async(record, lambda _, unit: stored.append(unit.offset))
                except Fenced:
                    refused += 1
    assert stored == [*range(COUNT)]
    assert refused == COUNT - 2


# -- without servers: the lease ends and comes back by hand ------------------------------------------------------------


@contextlib.asynccontextmanager
async def owner_of(
    *partitions: TopicPartition, batches: int = 1, **settings: Any
) -> AsyncIterator[tuple[Consumer, HandMembership]]:
    """The owner of these partitions, each with some records."""
    cluster = GroupCluster(ids=True)
    consumer, made = consumer_by_hand(cluster, **settings)
    cluster.create(partitions)
    async with consumer:
        for partition in partitions:
            for _ in range(batches):
                cluster.produce(partition, COUNT)
            await made[0].take(partition, partition.partition, lambda: None)
        yield consumer, made[0]


@pytest.mark.parametrize("later", ["by record", "in hand", "until"])
@pytest.mark.parametrize("first", ["by record", "in hand"])
async def test_a_refusal_of_a_handlers_record_is_final_until_the_next_call(first: str, later: str) -> None:
    """In whatever form it has asked before and asks again."""
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        done: list[int] = []
        calls: list[int] = []
        again: list[object] = []

        async def handle(record: Record) -> None:
            calls.append(record.offset)
            if record.offset == 2 and not again:
                hand.suspend()
                assert not (consumer.may_act(record) if first == "by record" else consumer.may_act())
                if later == "until":
                    asyncio.get_running_loop().call_later(0.05, hand.resume)
                    try:
                        again.append(await asyncio.wait_for(consumer.until_may_act(), 30))
                    except NotOwned:
                        again.append(False)
                        raise
                hand.resume()
                again.append(consumer.may_act(record) if later == "by record" else consumer.may_act())
            elif consumer.may_act():
                done.append(record.offset)

        processing = asyncio.ensure_future(consumer.process(handle, retries=0))
        await wait_until_async(lambda: COUNT - 1 in done, 30, lambda: f"the last record: {done}")
        processing.cancel()
        await asyncio.wait({processing})
        assert again == [False]
        assert calls == [0, 1, 2, *range(2, COUNT)]
        assert done == [*range(COUNT)]


@pytest.mark.parametrize("how", ["wait_for", "create_task", "gather"])
@pytest.mark.parametrize("who", ["reader", "batch handler"])
async def test_no_wait_of_any_task_lifts_a_refusal(who: str, how: str) -> None:
    """Each effect asks right before, so each is there once."""
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        done: list[int] = []
        raised: list[BaseException] = []
        left_out = False

        async def wait() -> None:
            try:
                await consumer.until_may_act()
            except NotOwned as error:
                raised.append(error)

        async def act(records: list[Record]) -> None:
            nonlocal left_out
            for record in records:
                if record.offset == 2 and not left_out:
                    left_out = True
                    hand.suspend()
                    assert not consumer.may_act(record)
                    hand.resume()
                    continue
                if consumer.may_act(record):
                    done.append(record.offset)
            if left_out and not raised and 2 not in done:
                waits = {"wait_for": lambda: asyncio.wait_for(wait(), 30), "gather": lambda: asyncio.gather(wait())}
                await waits.get(how, lambda: asyncio.get_running_loop().create_task(wait()))()

        async def handle(batch: Batch) -> None:
            await act(list(batch))

        processor = Processor(Handler("test", handle, by_batch=True), Handling())
        processing = None if who == "reader" else asyncio.ensure_future(processor.run(consumer))

        async def is_done() -> bool:
            if processing is None:
                for records in (await consumer.getmany(0.1)).values():
                    await act(records)
            return {*done} == {*range(COUNT)}

        await wait_until_async(is_done, 30, lambda: f"all records: {done}")
        if processing is not None:
            processing.cancel()
            await asyncio.wait({processing})
        assert len(raised) == 1
        assert done[2:] in ([*range(2, COUNT)], [*range(COUNT)])  # a wait that is refused gives all records in hand up


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


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("who", ["reader", "record handler", "batch handler"])
async def test_a_record_is_done_if_and_only_if_its_last_delivery_was_not_refused(who: str, seed: int) -> None:
    """Tasks ask and wait in any order while the lease comes and goes; each effect asks right before."""
    choose = random.Random(seed)
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        done: list[int] = []
        broken: list[int] = []
        trouble = 12

        async def ask(record: Record, told: list[bool]) -> None:
            nonlocal trouble
            for _ in range(choose.randrange(1, 4)):
                if trouble and choose.random() < 0.3:
                    trouble -= 1
                    hand.suspend()
                    asyncio.get_running_loop().call_later(choose.choice([0, 0.002]), hand.resume)
                if choose.random() < 0.2:
                    with contextlib.suppress(NotOwned):
                        await asyncio.wait_for(consumer.until_may_act(), 30)
                told.append(consumer.may_act(record))
                if told != sorted(told, reverse=True):
                    broken.append(record.offset)
                await asyncio.sleep(0)

        async def act(records: list[Record]) -> None:
            refused = False
            for record in records:
                told: list[bool] = []
                await asyncio.gather(ask(record, told), ask(record, told))
                acts = consumer.may_act(record)
                if acts and (refused or False in told):
                    broken.append(record.offset)
                refused = refused or not acts
                if acts:
                    done.append(record.offset)

        async def handle(unit: Any) -> None:
            await act([unit] if isinstance(unit, Record) else list(unit))

        processing: asyncio.Future[Any] | None = None
        if who == "record handler":
            processing = asyncio.ensure_future(consumer.process(handle, retries=0))
        elif who == "batch handler":
            processing = asyncio.ensure_future(Processor(Handler("t", handle, by_batch=True), Handling()).run(consumer))

        async def is_done() -> bool:
            if processing is None:
                for records in (await consumer.getmany(0.05)).values():
                    await act(records)
            elif processing.done():
                processing.result()
            return {*done} == {*range(COUNT)}

        await wait_until_async(is_done, 30, lambda: f"all records: {done}")
        if processing is not None:
            processing.cancel()
            await asyncio.wait({processing})
        assert not broken, "True after a False in one delivery"
        if who == "record handler":
            assert done == [*range(COUNT)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("who", ["reader", "batch handler"])
async def test_a_sink_stores_each_record_once_whatever_is_refused(who: str, seed: int, tmp_path: Path) -> None:
    """Whatever is asked for, in whatever form, and written alone or together, whether that was allowed or not."""
    choose = random.Random(seed)
    sink = SqliteSink(tmp_path / "sink.db")
    async with owner_of(TopicPartition("t", 0), batches=2, sink=sink) as (consumer, hand):
        stored: list[int] = []
        refused: set[int] = set()
        written: list[int] = []
        in_hand: list[Batch] = []
        empty: list[Batch] = []
        trouble = 12

        def ask(unit: Record | Batch | None) -> None:
            nonlocal trouble
            if trouble and choose.random() < 0.2:
                trouble -= 1
                hand.suspend()
            acts = consumer.may_act(unit)
            hand.resume()
            if isinstance(unit, Record):
                first, end = unit.offset, unit.offset + 1
            else:
                first, end = (unit or in_hand[-1]).base_offset, (unit or in_hand[-1]).next_offset
            assert not (acts and any(offset < end for offset in refused))
            if not acts:
                refused.update(range(first, end))

        def store(_: object, unit: Any) -> None:
            units = [unit] if isinstance(unit, Record) else list(unit)
            assert refused.isdisjoint(record.offset for record in units)
            if choose.random() < 0.3:
                ask(choose.choice(units))
            written.extend(record.offset for record in units)

        def write(unit: Record | Batch) -> None:
            written.clear()
            sink.write(unit, store)
            assert refused.isdisjoint(written)
            stored.extend(written)

        async def act(batch: Batch) -> None:
            if not list(batch):
                empty.append(batch)
            refused.clear()
            in_hand[:] = [batch]
            at = batch.base_offset
            while at < batch.next_offset:
                part = batch.from_offset(at).until_offset(choose.randrange(at, batch.next_offset) + 1)
                at = part.next_offset
                for unit in (None, part, *part):
                    if choose.random() < 0.3:
                        ask(unit)
                try:
                    for unit in [part] if choose.random() < 0.5 else part:
                        write(unit)
                except Fenced:
                    if choose.random() < 0.3 and min(refused) <= len(stored):
                        consumer.seek(TopicPartition("t", 0), len(stored))  # to get it again; it does so anyway
                    if choose.random() < 0.4:
                        raise
                    if choose.random() < 0.5:
                        return
            ask(None)
            if choose.random() < 0.5 and refused:
                await consumer.until_may_act()

        processing: asyncio.Future[Any] | None = None
        if who == "batch handler":
            processing = asyncio.ensure_future(Processor(Handler("t", act, by_batch=True), Handling()).run(consumer))

        async def is_done() -> bool:
            if processing is None:
                with contextlib.suppress(Fenced, NotOwned):
                    if (batch := await consumer.getbatch(0.05)) is not None:
                        await act(batch)
            elif processing.done():
                processing.result()
            return {*stored} == {*range(2 * COUNT)}

        await wait_until_async(is_done, 30, lambda: f"all records: {stored}")
        if processing is not None:
            processing.cancel()
            await asyncio.wait({processing})
        assert stored == [*range(2 * COUNT)]
        assert not empty


async def test_a_question_about_a_former_record_says_nothing_of_those_in_hand() -> None:
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        former, current = await consumer.getone(10), await consumer.getone(10)
        hand.suspend()
        assert not consumer.may_act(former)
        hand.resume()
        assert consumer.may_act(current)
        following = await consumer.getone(10)
        assert following is not None
        assert following.offset == 2


async def test_a_batch_whose_sink_has_it_is_done_although_its_handler_was_refused_afterwards(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "sink.db")
    partition = TopicPartition("t", 0)
    async with owner_of(partition, sink=sink, auto_commit_interval_s=0.1) as (consumer, hand):
        calls: list[int] = []

        async def handle(batch: Batch) -> None:
            calls.append(batch.base_offset)
            for record in batch:
                sink.write(record, lambda *_: None)
            if len(calls) == 1:
                hand.suspend()
                assert not consumer.may_act()
                hand.resume()
                await consumer.until_may_act()

        async def is_done() -> bool:
            if processing.done():
                processing.result()
            committed = await consumer.committed(partition)
            return committed is not None and committed.offset == COUNT

        processing = asyncio.ensure_future(
            Processor(Handler("t", handle, by_batch=True), Handling(retries=0)).run(consumer)
        )
        await wait_until_async(is_done, 30, "the commit")
        processing.cancel()
        await asyncio.wait({processing})
        assert calls == [0]


async def test_a_seek_lifts_no_refusal_before_the_next_request() -> None:
    partition = TopicPartition("t", 0)
    async with owner_of(partition) as (consumer, hand):
        (records,) = (await consumer.getmany(10)).values()
        hand.suspend()
        assert not consumer.may_act(records[2])
        hand.resume()
        consumer.seek(partition, 2)
        assert not consumer.may_act(records[3])
        assert not consumer.may_act()
        with pytest.raises(NotOwned):
            await consumer.until_may_act()
        (again,) = (await consumer.getmany(10)).values()
        assert consumer.may_act(again[0])
        assert [record.offset for record in again] == [*range(2, COUNT)]


class Ends(BaseException):
    """Ends the process, as SystemExit does."""


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, Ends])
async def test_a_call_that_fails_after_a_refusal_is_made_again_unless_the_process_is_to_end(
    error: type[BaseException], threads: bool
) -> None:
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        loop = asyncio.get_running_loop()
        done: list[int] = []
        calls: list[int] = []

        async def leave_out(record: Record) -> None:
            hand.suspend()
            assert not consumer.may_act(record)
            hand.resume()

        def in_thread(record: Record) -> None:
            calls.append(record.offset)
            if record.offset == 2 and calls.count(2) == 1:
                asyncio.run_coroutine_threadsafe(leave_out(record), loop).result()
                raise error
            done.append(record.offset)

        async def handle(record: Record) -> None:
            calls.append(record.offset)
            if record.offset == 2 and calls.count(2) == 1:
                await leave_out(record)
                raise error
            done.append(record.offset)

        handler: Any = in_thread if threads else handle
        processing = asyncio.ensure_future(
            consumer.process(handler, retries=0, skip_on=["ValueError", "asyncio.TimeoutError"])
        )
        if error is Ends:
            await asyncio.wait({processing}, timeout=30)
            raised = processing.exception()
            assert isinstance(raised.__cause__ if raised is not None else None, Ends)
            assert done == [0, 1]
        else:
            await wait_until_async(lambda: COUNT - 1 in done, 30, lambda: f"the last record: {done}")
            processing.cancel()
            await asyncio.wait({processing})
            assert calls == [0, 1, 2, *range(2, COUNT)]
            assert done == [*range(COUNT)]


async def test_a_late_question_about_a_record_that_is_done_refuses_no_other() -> None:
    """From a thread without the context of a call."""
    async with owner_of(TopicPartition("t", 0), batches=2) as (consumer, hand):
        loop = asyncio.get_running_loop()
        former: list[Record] = []
        answers: list[bool] = []

        async def handle(batch: Batch) -> None:
            if former:
                hand.suspend()
                assert not await loop.run_in_executor(None, consumer.may_act, former[2])
                hand.resume()
            former.extend(batch)
            for record in batch:
                answers.append(await loop.run_in_executor(None, consumer.may_act, record))

        processing = asyncio.ensure_future(
            Processor(Handler("t", handle, by_batch=True), Handling(in_hand_records=1)).run(consumer)
        )
        await wait_until_async(lambda: len(answers) >= 2 * COUNT, 30, lambda: f"all records: {answers}")
        processing.cancel()
        await asyncio.wait({processing})
        assert answers == [True] * 2 * COUNT


class _StartsAtOnce(ThreadPoolExecutor):
    """Goes on only once the job's handler has asked, as if the loop's thread had lost its processor meanwhile."""

    def __init__(self, asked: threading.Event, *args: Any) -> None:
        super().__init__(*args)
        self._asked = asked

    def submit(self, *args: Any, **more: Any) -> Any:
        self._asked.clear()
        job = super().submit(*args, **more)
        job.add_done_callback(lambda _: self._asked.set())
        assert self._asked.wait(30)
        return job


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_a_refusal_counts_even_if_the_loop_is_slow_to_note_that_a_thread_has_begun(
    ordering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owner_of(TopicPartition("t", 0)) as (consumer, hand):
        asked, asking = threading.Event(), threading.local()
        done: list[int] = []
        calls: list[int] = []

        def may_act(record: Record) -> bool:
            asking.without_lease = calls.count(record.offset) == 1
            return consumer.may_act(record)

        def handle(record: Record) -> None:
            calls.append(record.offset)
            with ThreadPoolExecutor(1) as pool:  # without the context of the call
                if pool.submit(may_act, record).result():
                    done.append(record.offset)
            asked.set()

        monkeypatch.setattr(hand, "may_act", lambda: not getattr(asking, "without_lease", False))
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor", partial(_StartsAtOnce, asked))
        processing = asyncio.ensure_future(consumer.process(handle, ordering=ordering, concurrency=1, retries=0))
        await wait_until_async(lambda: {*done} == {*range(COUNT)}, 30, lambda: f"all records: {done}")
        processing.cancel()
        await asyncio.wait({processing})
        assert sorted(done) == [*range(COUNT)]
