"""Results and offsets in one transaction: a reader of committed records sees one result for each record."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.producer import EndTxnRequest

from allocator import Consumer, GroupCommands, Producer, ZooKeeper
from allocator.core.client import KafkaClient
from allocator.errors import BrokerError, Closed, ConfigError, Fenced, IllegalState
from allocator.producer import NewRecord, TransactionalWriter
from allocator.testing import FaultProxy, LocalCluster, wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.inside import member_of
from tests.producer.witnesses import (
    committed_values,
    committed_values_of_aiokafka,
    committed_values_of_kafka_python,
    confluent,
)

HERE = Path(__file__).parent
TopicFactory = Callable[..., str]
long = pytest.mark.long
PARTITIONS = 2
VERSIONS = [
    ("2.8.2", "zookeeper"),
    ("4.1.1", "kafka"),
    *(
        pytest.param(version, membership, marks=long)
        for version, membership in (
            ("2.8.2", "kafka"),
            ("4.1.1", "zookeeper"),
            ("0.11.0.3", "zookeeper"),
            ("0.11.0.3", "kafka"),
            ("3.9.1", "zookeeper"),
            ("3.9.1", "kafka"),
            ("4.4.0", "zookeeper"),
            ("4.4.0", "kafka"),
        )
    ),
]
REQUESTS = ("InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")


class Member:
    """One process that writes results."""

    def __init__(self, settings: dict[str, Any]) -> None:
        command = [sys.executable, str(HERE / "transaction_member.py"), json.dumps(settings)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def word(self, wanted: str) -> None:
        """Waits until the process says this word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == wanted:
                return
        raise AssertionError(f"the process ended before it said {wanted!r}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Walk:
    """A topic, results, and the processes of a group."""

    def __init__(self, cluster: LocalCluster, source: str, out: str, group: str, membership: str) -> None:
        self.cluster, self.source, self.out, self.group, self.membership = cluster, source, out, group, membership
        self.written: list[bytes] = []
        self.members: list[Member] = []

    def start(self, *stop: Any, mode: str = "block") -> Member:
        consumer = {
            "topics": [self.source],
            "brokers": self.cluster.bootstrap,
            "group": self.group,
            "membership": self.membership,
            "auto_offset_reset": "earliest",
            "max_wait_s": 0.05,
            "joins": {"session_timeout_s": 6.0 if self.membership == "kafka" else 2.0},
        }
        if self.membership == "zookeeper":
            consumer["zookeeper"] = f"{self.cluster.zookeeper}/{self.group}"
        else:
            consumer["joins"]["heartbeat_interval_s"] = 0.3
        member = Member({"out": self.out, "stop": stop or None, "mode": mode, "consumer": consumer})
        self.members.append(member)
        return member

    def produce(self, count: int) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 1})
        for _ in range(count):
            value = b"%d" % len(self.written)
            producer.produce(self.source, value, partition=len(self.written) % PARTITIONS, key=b"k" + value[-1:])
            self.written.append(value)
        assert producer.flush(30) == 0

    def until_all(self) -> None:
        """Waits until each record has a result. Raises AssertionError once one has two."""
        late = time.monotonic() + 90
        counts: Counter[bytes] = Counter()
        while time.monotonic() < late:
            counts = Counter(committed_values(self.cluster.bootstrap, self.out))
            twice = {value: count for value, count in counts.items() if count > 1}
            assert not twice
            if len(counts) == len(self.written):
                return
            time.sleep(0.2)
        raise AssertionError(f"{len(self.written) - len(counts)} of {len(self.written)} records have no result")

    def end(self) -> None:
        for member in self.members:
            member.end()


@pytest.fixture
def walk(cluster_factory: Any, topic_factory: TopicFactory, group: str) -> Iterator[Callable[..., Walk]]:
    walks: list[Walk] = []

    def start(kafka: str, membership: str, **cluster: Any) -> Walk:
        servers = cluster_factory(kafka=kafka, **cluster)
        topics = [topic_factory(PARTITIONS, 1, None, servers) for _ in range(2)]
        walks.append(Walk(servers, *topics, group, membership))
        return walks[-1]

    yield start
    for each in walks:
        each.end()


def disturb(walk: Walk, stops: list[tuple[str, str, str, int]], mode: str = "block") -> None:
    for stop in stops:
        former = walk.start(*stop, mode=mode)
        walk.produce(30)
        former.word("stops")
        successor = walk.start(mode=mode)
        walk.produce(10)
        walk.until_all()
        former.send(signal.SIGCONT)
        walk.produce(10)
        walk.until_all()
        former.end()
        successor.end()
    for others in (committed_values_of_aiokafka, committed_values_of_kafka_python):
        values = asyncio.run(others(walk.cluster.bootstrap, walk.out, len(walk.written)))
        assert Counter(values) == Counter(walk.written)


@pytest.mark.parametrize(("kafka", "membership"), VERSIONS)
def test_each_record_has_one_result_whatever_stops_its_owner(
    kafka: str, membership: str, walk: Callable[..., Walk]
) -> None:
    # before the end: the transaction of a frozen owner is whole, and must not be committed after that of its successor;
    # after it: the owner is killed before it knows that it has committed
    stops = [("EndTxn", "before", "freeze", 1), ("EndTxn", "after", "kill", 1), ("Produce", "after", "freeze", 2)]
    disturb(walk(kafka, membership), stops)


@pytest.mark.parametrize(("kafka", "membership"), VERSIONS[:2])
def test_each_record_has_one_result_while_partitions_move(
    kafka: str, membership: str, walk: Callable[..., Walk]
) -> None:
    here = walk(kafka, membership)
    ends = threading.Event()

    def produce() -> None:
        while not ends.wait(0.1):
            here.produce(4)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        for _ in range(3):
            here.start().word("committed")  # it has got a partition of the member that lives
            if len(here.members) > 1:
                here.members.pop(0).end()
    finally:
        ends.set()
        producing.join()
    here.until_all()


def test_each_record_has_one_result_when_the_brokers_restart(walk: Callable[..., Walk]) -> None:
    here = walk("3.9.1", "zookeeper")
    member = here.start()
    here.produce(40)
    member.word("committed")
    (broker,) = here.cluster.brokers
    broker.kill()
    broker.start()
    here.produce(40)
    here.until_all()


@long
@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize(
    ("kafka", "membership"), [("0.11.0.3", "zookeeper"), ("2.8.2", "kafka"), ("4.4.0", "zookeeper")]
)
def test_each_record_has_one_result_if_an_owner_stops_at_any_request(
    kafka: str, membership: str, request_name: str, walk: Callable[..., Walk]
) -> None:
    ways = [(when, how) for when in ("before", "after") for how in ("freeze", "kill", "cut")]
    disturb(walk(kafka, membership), [(request_name, when, how, 1) for when, how in ways])


# -- one process ------------------------------------------------------------------------------------------------------


class Two:
    """Two consumers that own the same partition, because no group keeps them apart, and their producers."""

    def __init__(self, cluster: LocalCluster, source: str, out: str, group: str) -> None:
        self.cluster, self.source, self.out, self.group = cluster, source, out, group

    def consumer(self, *partitions: int, **options: Any) -> Consumer:
        settings: dict[str, Any] = {
            "brokers": self.cluster.bootstrap,
            "group": self.group,
            "membership": "fixed",
            "auto_offset_reset": "earliest",
            "auto_commit_interval_s": None,
            "max_wait_s": 0.05,
            **options,
        }
        consumer = Consumer(**settings)
        consumer.assign([(self.source, number) for number in partitions or (0,)])
        return consumer

    def producer(self, **options: Any) -> Producer:
        return Producer(brokers=self.cluster.bootstrap, linger_s=0.0, **options)

    @contextlib.asynccontextmanager
    async def owner(self, *partitions: int, **options: Any) -> AsyncIterator[tuple[Producer, Consumer]]:
        producer = self.producer(**options)
        async with producer, self.consumer(*partitions, transactions=producer) as consumer:
            yield producer, consumer

    async def fill(self, count: int, partition: int = 0) -> None:
        async with self.producer() as producer:
            await producer.send_many(self.source, [b"%d" % n for n in range(count)], partition=partition)

    async def results(self) -> list[bytes]:
        return await asyncio.to_thread(committed_values, self.cluster.bootstrap, self.out)


@pytest.fixture
def two(kafka_cluster: LocalCluster, topic_factory: TopicFactory, group: str) -> Two:
    return Two(kafka_cluster, topic_factory(PARTITIONS), topic_factory(PARTITIONS), group)


async def batch_of(consumer: Consumer) -> Any:
    batch = await consumer.getbatch(30)
    assert batch is not None
    return batch


async def in_transaction(
    producer: Producer,
    consumer: Consumer,
    *results: tuple[str, bytes],
    after: Awaitable[None] | None = None,
    fails: bool = False,
) -> None:
    async with producer.transaction(consumer) as tx:
        for topic, value in results:
            await tx.send(topic, value)
        if after is not None:
            await after
        if fails:
            raise ZeroDivisionError


async def test_an_owner_whose_successor_has_begun_commits_nothing(two: Two) -> None:
    await two.fill(3)
    async with two.owner() as (p1, former), two.owner() as (p2, next_one):
        await batch_of(former)
        await batch_of(next_one)
        with pytest.raises(Fenced) as error:
            await in_transaction(
                p1, former, (two.out, b"former"), after=in_transaction(p2, next_one, (two.out, b"next"))
            )
        assert error.value.retriable
        await batch_of(former)  # the same records again, and only the next transaction knows that they have a result
        with pytest.raises(Fenced, match=f"{two.source}:0: a transaction has committed offset 3"):
            async with p1.transaction(former):
                pass
        assert await former.getbatch(0.5) is None
        assert (await former.committed((two.source, 0))).offset == 3
    assert await two.results() == [b"next"]


async def test_a_result_that_the_former_owner_committed_late_is_not_written_again(two: Two) -> None:
    await two.fill(3)
    async with two.owner() as (p1, former), two.owner() as (p2, next_one):
        await batch_of(former)
        second = await batch_of(next_one)  # it has read the committed offset: none
        async with p1.transaction(former) as tx:
            await tx.send(two.out, b"former")
        with pytest.raises(Fenced, match=r"committed offset 3 since this member read the committed offset \(none\)"):
            async with p2.transaction(next_one):
                raise AssertionError("the block must not run")
        await two.fill(4)
        batch = await batch_of(next_one)
        assert (batch.base_offset, second.base_offset) == (3, 0)
        async with p2.transaction(next_one) as tx:
            await tx.send(two.out, b"next")
    assert Counter(await two.results()) == Counter([b"former", b"next"])


async def test_a_transaction_up_to_the_committed_offset_is_found_without_its_response(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a seek back to records that end there, the offset alone would not tell whether it is committed."""
    await two.fill(3)
    async with two.owner() as (producer, consumer):
        await batch_of(consumer)
        await in_transaction(producer, consumer, (two.out, b"first"))
        consumer.seek((two.source, 0), 1)
        await batch_of(consumer)
        async with held_requests(monkeypatch, "EndTxn", after="Produce", answered=True) as (ends, _):
            again = asyncio.ensure_future(in_transaction(producer, consumer, (two.out, b"second")))
            await ends.wait()
            again.cancel()
            await asyncio.wait({again})
        assert (await batch_of(consumer)).base_offset == 1
        with pytest.raises(Fenced, match="committed offset 3"):
            await in_transaction(producer, consumer, (two.out, b"third"))
        assert (await consumer.committed((two.source, 0))).offset == 3
    assert await two.results() == [b"first", b"second"]


@pytest.mark.parametrize("by", ["user", "operator"])
async def test_a_seek_after_a_transaction_without_a_response_is_not_lost(
    by: str, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.fill(3)
    where = f"{two.cluster.zookeeper}/{two.group}"
    async with (
        two.producer() as producer,
        Consumer(
            two.source,
            brokers=two.cluster.bootstrap,
            group=two.group,
            zookeeper=where,
            auto_commit_interval_s=None,
            transactions=producer,
        ) as consumer,
        GroupCommands(where, two.group) as commands,
    ):
        await batch_of(consumer)
        async with held_requests(monkeypatch, "EndTxn", answered=True) as (ends, _):
            first = asyncio.ensure_future(in_transaction(producer, consumer, (two.out, b"first")))
            await ends.wait()
            first.cancel()
            await asyncio.wait({first})
        if by == "user":
            consumer.seek((two.source, 0), 1)
        else:
            await commands.seek([TopicPartition(two.source, 0)], "1")

            async def is_done() -> bool:
                return [each.state for each in await commands.list()] == ["done"]

            await wait_until_async(is_done, 30, "the seek")
            assert (await consumer.committed((two.source, 0))).offset == 1
        assert (await batch_of(consumer)).base_offset == 1
        await in_transaction(producer, consumer, (two.out, b"again"))
        assert (await consumer.committed((two.source, 0))).offset == 3
    assert await two.results() == [b"first", b"again"]


async def test_a_block_that_raises_writes_nothing_and_its_records_are_read_again(two: Two) -> None:
    await two.fill(3)
    async with two.owner() as (producer, consumer):
        batch = await batch_of(consumer)
        with pytest.raises(ZeroDivisionError):
            await in_transaction(producer, consumer, (two.out, b"lost"), fails=True)
        again = await batch_of(consumer)
        assert (again.base_offset, len(again)) == (batch.base_offset, len(batch))
        async with producer.transaction(consumer) as tx:
            for record in again:
                await tx.send(two.out, record.value, b"k")
        assert (await consumer.committed((two.source, 0))).offset == 3
        with pytest.raises(IllegalState, match="records of none"):
            async with producer.transaction(consumer):
                pass
        await producer.send_and_wait(two.out, b"outside")
    assert Counter(await two.results()) == Counter([b"0", b"1", b"2", b"outside"])


async def test_a_transaction_has_one_block(two: Two) -> None:
    """A second block would write the results of the first one again."""
    await two.fill(4)
    async with two.owner() as (producer, consumer):
        for fails in (False, True):
            record = await consumer.getone(30)
            assert record is not None
            tx = producer.transaction(consumer)
            with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
                async with tx:
                    await tx.send(two.out, record.value)
                    with pytest.raises(IllegalState, match="has begun, and a transaction has only one block"):
                        async with tx:
                            pass
                    if fails:
                        raise ZeroDivisionError
            await consumer.getone(30)
            with pytest.raises(IllegalState, match="has ended, and a transaction has only one block"):
                async with tx:
                    await tx.send(two.out, b"again")
            consumer.seek((two.source, 0), 1)
        for number in (1, 2, 3):
            record = await consumer.getone(30)
            assert record is not None
            assert record.value == b"%d" % number
            await in_transaction(producer, consumer, (two.out, record.value))
    assert Counter(await two.results()) == Counter([b"0", b"1", b"2", b"3"])


async def test_a_transaction_whose_records_are_in_another_one_is_refused(two: Two) -> None:
    await two.fill(1)
    async with two.owner() as (producer, consumer):
        await batch_of(consumer)
        inner = in_transaction(producer, consumer, (two.out, b"inner"))
        with pytest.raises(IllegalState, match="another transaction has the records in hand"):
            await in_transaction(producer, consumer, (two.out, b"outer"), after=inner)
        await batch_of(consumer)
        entries = await asyncio.gather(
            *(in_transaction(producer, consumer, (two.out, name)) for name in (b"first", b"second")),
            return_exceptions=True,
        )
        assert [type(each) for each in entries] == [type(None), IllegalState]
    assert await two.results() == [b"first"]


async def test_a_result_outside_of_the_block_is_refused(two: Two) -> None:
    await two.fill(1)
    async with two.owner() as (producer, consumer):
        await batch_of(consumer)
        tx = producer.transaction(consumer)
        with pytest.raises(IllegalState, match="its transaction has not begun; await send"):
            await tx.send(two.out, b"early")
        async with tx:
            await tx.send(two.out, b"in time")
            later = [asyncio.create_task(tx.send(two.out, b"late")) for _ in range(2)]
        for outcome in await asyncio.gather(*later, return_exceptions=True):
            assert isinstance(outcome, IllegalState)
            assert "its transaction has come to its end" in str(outcome)
        with pytest.raises(IllegalState, match="its transaction has ended"):
            await tx.send(two.out, b"last")
    assert await two.results() == [b"in time"]


async def test_a_block_that_does_not_await_its_results_writes_nothing(two: Two) -> None:
    """Otherwise the offset of a record would be committed without its result."""
    await two.fill(1)
    sending: list[asyncio.Task[None]] = []

    async def block(producer: Producer, consumer: Consumer) -> None:
        async with producer.transaction(consumer) as tx:
            # the first record of a topic waits for its partitions
            sending.append(asyncio.create_task(tx.send(two.out, b"not awaited")))
            await asyncio.sleep(0)

    async with two.owner() as (producer, consumer):
        await batch_of(consumer)
        with pytest.raises(IllegalState, match="nothing is written, because a call of send"):
            await block(producer, consumer)
        with pytest.raises(IllegalState, match="the block of its transaction has"):
            await sending[0]
        assert (await batch_of(consumer)).base_offset == 0
        await in_transaction(producer, consumer, (two.out, b"awaited"))
    assert await two.results() == [b"awaited"]


async def test_a_result_is_that_of_the_call_whatever_becomes_of_its_arguments(two: Two) -> None:
    await two.fill(3)
    value, headers = bytearray(1), [("n", b"")]
    async with two.owner() as (producer, consumer):
        batch = await batch_of(consumer)
        async with producer.transaction(consumer) as tx:
            for record in batch:
                value[:], headers[:] = record.value, [("n", record.value)]
                await tx.send(two.out, value, key=memoryview(value), partition=0, headers=headers)
            headers[:] = [("n", 1)]  # type: ignore[list-item]
    rows = await confluent(two.cluster.bootstrap, two.out, len(batch), (3, 9))
    assert [(row.key, row.value, row.headers) for _, row in sorted(rows.items())] == [
        (each, each, [("n", each)]) for each in (b"0", b"1", b"2")
    ]


async def test_a_result_that_does_not_fit_leaves_room_for_others(two: Two) -> None:
    await two.fill(1)
    async with two.owner(buffer_bytes=1000) as (producer, consumer):
        await batch_of(consumer)
        async with producer.transaction(consumer) as tx:
            with pytest.raises(IllegalState, match="buffer_bytes=1000"):
                await tx.send(two.out, bytes(1000))
            await tx.send(two.out, b"fits")
    assert await two.results() == [b"fits"]


async def test_a_long_timeout_does_not_make_brokers_refuse_transactions(two: Two) -> None:
    await two.fill(1)
    async with two.owner(delivery_timeout_s=86_400) as (producer, consumer):
        await batch_of(consumer)
        await in_transaction(producer, consumer, (two.out, b"v"))
    assert await two.results() == [b"v"]


async def test_single_records_and_several_partitions(two: Two) -> None:
    await two.fill(2, 0)
    await two.fill(2, 1)
    async with two.owner(0, 1) as (producer, consumer):
        for _ in range(4):
            record = await consumer.getone(30)
            assert record is not None
            async with producer.transaction(consumer) as tx:
                await tx.send(two.out, b"%d:%d" % (record.partition, record.offset))
            assert (await consumer.committed((two.source, record.partition))).offset == record.offset + 1
        consumer.seek((two.source, 0), 0)
        consumer.seek((two.source, 1), 0)
        await wait_until_async(lambda: min(consumer.lag().values()) == 2)
        found: dict[Any, Any] = {}
        while len(found) < 2:
            found = await consumer.getmany(5)
            for partition in found if len(found) < 2 else ():
                consumer.seek(partition, 0)
        with pytest.raises(IllegalState, match=f"records of {two.source}:0, {two.source}:1"):
            async with producer.transaction(consumer):
                pass
    assert Counter(await two.results()) == Counter([b"0:0", b"0:1", b"1:0", b"1:1"])


async def test_a_result_that_its_topic_refuses_leaves_nothing(
    two: Two, kafka_cluster: LocalCluster, topic_factory: TopicFactory
) -> None:
    small = await asyncio.to_thread(topic_factory, 1, 1, {"max.message.bytes": "1000"}, kafka_cluster)
    await two.fill(2)
    async with two.owner() as (producer, consumer):
        await batch_of(consumer)
        with pytest.raises(BrokerError, match=f"{small}:0 does not accept a record with 3000 bytes"):
            await in_transaction(producer, consumer, (two.out, b"fits"), (small, bytes(3000)))
        await batch_of(consumer)
        async with producer.transaction(consumer) as tx:
            await tx.send(two.out, b"second attempt")
        await two.fill(1)
        await batch_of(consumer)
        async with two.owner(buffer_bytes=1000) as (tiny, another):
            await two.fill(1)
            await batch_of(another)
            with pytest.raises(IllegalState, match="buffer_bytes=1000"):
                async with tiny.transaction(another) as tx:
                    await tx.send(two.out, bytes(1000))
    assert await two.results() == [b"second attempt"]


async def test_other_commits_of_the_consumer_are_transactions_too(two: Two) -> None:
    """A plain commit that a frozen process sends late could lower the offset, and nothing would fence it."""
    await two.fill(3)
    async with two.owner() as (p1, former):
        await batch_of(former)
        async with p1.transaction(former):
            pass
        former.seek((two.source, 0), 1)
        await batch_of(former)
        await former.commit({(two.source, 0): 2})
        assert (await former.committed((two.source, 0))).offset == 2
        async with two.owner() as (p2, next_one):
            await batch_of(next_one)
            async with p2.transaction(next_one) as tx:
                await tx.send(two.out, b"next")
        with pytest.raises(Fenced):
            await former.commit({(two.source, 0): 0})
        assert (await former.committed((two.source, 0))).offset == 3


async def test_a_consumer_whose_commits_could_bypass_the_transactions_is_refused(two: Two) -> None:
    async with two.producer() as producer, two.producer() as other:
        with pytest.raises(ConfigError, match="auto_commit_interval_s=None"):
            two.consumer(auto_commit_interval_s=5.0, transactions=producer)
        with pytest.raises(ConfigError, match="group=None"):
            two.consumer(group=None, transactions=producer)
        with pytest.raises(ConfigError, match="transactions is 1; pass a Producer"):
            two.consumer(transactions=1)
        async with two.consumer() as plain, two.consumer(transactions=other) as foreign:
            for consumer in (plain, foreign):
                with pytest.raises(ConfigError, match="create it with transactions=<this producer>"):
                    producer.transaction(consumer)


async def test_records_are_read_again_if_their_transaction_cannot_begin(
    cluster_factory: Any, topic_factory: TopicFactory, group: str
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka="2.8.2")
    topics = [await asyncio.to_thread(topic_factory, PARTITIONS, 1, None, cluster) for _ in range(2)]
    here = Two(cluster, *topics, group)
    await here.fill(3)
    async with here.owner(delivery_timeout_s=2.0) as (producer, consumer):
        for cancelled in (False, True):
            batch = await batch_of(consumer)
            await asyncio.to_thread(cluster.brokers[0].pause)
            try:
                began = asyncio.ensure_future(in_transaction(producer, consumer, (here.out, b"none")))
                if cancelled:
                    await asyncio.sleep(0)
                    began.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await began
                else:
                    with pytest.raises(BrokerError) as error:
                        await began
                    assert error.value.retriable
            finally:
                await asyncio.to_thread(cluster.brokers[0].resume)
            assert batch.base_offset == 0
        await here.fill(2)
        while len(await here.results()) < 5:
            batch = await batch_of(consumer)
            async with producer.transaction(consumer) as tx:
                for record in batch:
                    await tx.send(here.out, b"%d" % record.offset)
    assert Counter(await here.results()) == Counter([b"0", b"1", b"2", b"3", b"4"])


LATE = {
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 5,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    # the coordinator aborts no transaction by itself meanwhile
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 3_600_000,
}


def numbered(name: str, partitions: int) -> int:
    """Returns the partition that brokers choose for a name, by Java's hash of strings."""
    number = 0
    for each in name:
        number = (31 * number + ord(each)) & 0xFFFFFFFF
    return abs(number - (1 << 32) if number >> 31 else number) % partitions


@pytest.mark.parametrize("kafka", ["2.8.2", pytest.param("0.11.0.3", marks=long), pytest.param("3.9.1", marks=long)])
@pytest.mark.parametrize("silent", ["leader of the results", "coordinator of the group"])
async def test_a_request_that_arrives_after_its_transaction_changes_nothing(
    kafka: str, silent: str, cluster_factory: Any, topic_factory: TopicFactory, group: str
) -> None:
    cluster = await asyncio.to_thread(lambda: cluster_factory(kafka=kafka, brokers=2, proxied=True, broker_config=LATE))
    source, out, other = [await asyncio.to_thread(topic_factory, 1, 1, None, cluster) for _ in range(3)]
    warm = Two(cluster, source, other, f"{group}-warm")
    await warm.fill(1)
    async with warm.owner() as (producer, consumer):  # creates the internal topics
        await batch_of(consumer)
        await in_transaction(producer, consumer, (other, b""))

    def leader(topic: str, name: str | None = None) -> Any:
        partitions = {"__consumer_offsets": 4, "__transaction_state": 5}
        return cluster.leader(topic, 0 if name is None else numbered(name, partitions[topic]))

    def victim(group: str) -> Any:
        return leader(out) if silent == "leader of the results" else leader("__consumer_offsets", group)

    def fits(group: str) -> bool:
        others = [leader("__transaction_state", f"{group}:{source}:0")]
        others.append(leader("__consumer_offsets", group) if silent == "leader of the results" else leader(out))
        return victim(group).id not in {each.id for each in others}

    here = Two(cluster, source, out, next(filter(fits, (f"{group}-{n}" for n in range(200)))))
    proxy = victim(here.group).proxy
    async with here.owner(delivery_timeout_s=4.0) as (producer, consumer):
        await batch_of(consumer)
        await in_transaction(producer, consumer, (out, b"0"))  # opens the connections
        await here.fill(1)
        await batch_of(consumer)

        async def silence() -> None:
            proxy.drop(direction="to_server", client=os.getpid())

        with pytest.raises(BrokerError) as error:
            await in_transaction(producer, consumer, (out, b"1"), after=silence())
        assert error.value.retriable
        proxy.heal(client=os.getpid())
    async with here.owner() as (producer, consumer):
        await batch_of(consumer)
        await in_transaction(producer, consumer, (out, b"1"))
    assert await asyncio.to_thread(committed_values, cluster.bootstrap, out, 1) == [b"0", b"1"]
    assert await committed_values_of_aiokafka(cluster.bootstrap, out, 2, 1) == [b"0", b"1"]


@pytest.mark.parametrize("inside", [False, True])
async def test_a_seek_of_the_records_in_hand_is_a_retriable_error(two: Two, inside: bool) -> None:
    """Operators seek too."""
    await two.fill(2)

    async def seek() -> None:
        consumer.seek((two.source, 0), 1)

    async with two.owner() as (producer, consumer):
        await batch_of(consumer)
        if not inside:
            await seek()
        with pytest.raises(Fenced, match="request the next records") as error:
            await in_transaction(producer, consumer, (two.out, b"never"), after=seek() if inside else None)
        assert error.value.retriable
        assert (await batch_of(consumer)).base_offset == 1
        await in_transaction(producer, consumer, (two.out, b"next"))
    assert await two.results() == [b"next"]


async def test_a_partition_that_is_lost_in_the_block_is_a_retriable_error(two: Two) -> None:
    await two.fill(2)
    assert two.cluster.zookeeper is not None

    def member(producer: Producer, zookeeper: str) -> Consumer:
        return Consumer(
            two.source,
            brokers=two.cluster.bootstrap,
            group=two.group,
            membership=ZooKeeper(f"{zookeeper}/{two.group}", session_timeout_s=2.0),
            auto_commit_interval_s=None,
            transactions=producer,
        )

    zookeeper = FaultProxy(int(two.cluster.zookeeper.rpartition(":")[2]))
    async with zookeeper as proxy, two.producer() as producer, member(producer, proxy.address) as former:
        await batch_of(former)

        async def be_replaced() -> None:
            proxy.drop()
            proxy.reset()
            async with two.producer() as other, member(other, str(two.cluster.zookeeper)) as successor:
                await batch_of(successor)
                await in_transaction(other, successor, (two.out, b"next"))
                proxy.heal()
                await wait_until_async(lambda: (two.source, 0) not in former.assignment(), 30)

        with pytest.raises(Fenced, match=f"{two.source}:0 was lost since its records were read") as error:
            await in_transaction(producer, former, (two.out, b"never"), after=be_replaced())
        assert error.value.retriable
    assert await two.results() == [b"next"]


async def test_the_first_commit_of_a_consumer_is_a_transaction_too(two: Two) -> None:
    await two.fill(3)
    async with two.owner() as (_, former), two.owner() as (p2, next_one):
        await batch_of(former)
        await former.commit({(two.source, 0): 1})
        await batch_of(next_one)
        with pytest.raises(Fenced):
            async with p2.transaction(next_one):
                pass
        await batch_of(next_one)
        await in_transaction(p2, next_one, (two.out, b"next"))
        with pytest.raises(Fenced):
            await former.commit({(two.source, 0): 0})
        assert (await next_one.committed((two.source, 0))).offset == 3


async def test_a_commit_after_the_producer_has_closed_is_refused(two: Two) -> None:
    await two.fill(3)
    producer = two.producer()
    async with two.consumer(transactions=producer) as consumer:
        async with producer:
            await batch_of(consumer)
            await in_transaction(producer, consumer, (two.out, b"1"))
        with pytest.raises(Closed, match="this producer is closed"):
            await consumer.commit({(two.source, 0): 1})


async def test_no_writer_is_kept_for_a_partition_that_moved_away(two: Two, topic_factory: TopicFactory) -> None:
    def writers() -> int:
        gc.collect()
        return sum(isinstance(each, TransactionalWriter) for each in gc.get_objects())

    two.source = await asyncio.to_thread(topic_factory, 6)
    before = writers()
    async with two.owner() as (producer, consumer):
        for number in range(6):
            await two.fill(1, number)
            consumer.assign([(two.source, number)])
            await batch_of(consumer)
            await in_transaction(producer, consumer, (two.out, b"v"))
        assert writers() <= before + 2  # the former partition may still be released


class FirstEndLost(KafkaClient):
    """Loses the response to the first EndTxn."""

    lost = False

    async def send(self, node_id: int, request: Any, *args: Any, **options: Any) -> Any:
        response = await super().send(node_id, request, *args, **options)
        if isinstance(request, EndTxnRequest) and not self.lost:
            self.lost = True
            raise BrokerError("lost", retriable=True)
        return response


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_writer_goes_on_after_a_lost_response_unless_another_one_has_begun(
    replaced: bool, kafka_cluster: LocalCluster, topic_factory: TopicFactory, unique_name: Callable[[], str]
) -> None:
    """The lost request may still arrive, and would end the next transaction of its epoch."""
    at, name = TopicPartition(await asyncio.to_thread(topic_factory, PARTITIONS), 0), unique_name()
    async with FirstEndLost(kafka_cluster.bootstrap) as client, KafkaClient(kafka_cluster.bootstrap) as other:
        writer, next_one = TransactionalWriter(client, name), TransactionalWriter(other, name)
        await writer.open()
        await writer.write({at: [NewRecord(None, b"0", 1)]})
        assert client.lost
        if replaced:
            await next_one.open()
            with pytest.raises(BrokerError, match="another process may have written"):
                await writer.write({at: [NewRecord(None, b"1", 1)]})
        else:
            await writer.write({at: [NewRecord(None, b"1", 1)]})
            with pytest.raises(RuntimeError, match="call open"):
                await next_one.write({})
    values = await asyncio.to_thread(committed_values, kafka_cluster.bootstrap, at.topic)
    assert values == [b"0"] if replaced else [b"0", b"1"]


async def test_brokers_before_0_11_are_named(cluster_factory: Any, topic_factory: TopicFactory, group: str) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka="0.9.0.1")
    topic = await asyncio.to_thread(topic_factory, PARTITIONS, 1, None, cluster)
    old = Two(cluster, topic, topic, group)
    await old.fill(1)
    async with old.owner() as (producer, consumer):
        await batch_of(consumer)
        with pytest.raises(ConfigError, match=r"transactions need brokers of Kafka 0\.11 or newer; these are 0\.9"):
            async with producer.transaction(consumer):
                pass


async def test_one_call_commits_any_number_of_partitions(two: Two, topic_factory: TopicFactory) -> None:
    many = topic_factory(45, cluster=two.cluster)
    async with two.producer() as producer:
        consumer = Consumer(
            brokers=two.cluster.bootstrap,
            group=two.group,
            membership="fixed",
            auto_commit_interval_s=None,
            transactions=producer,
        )
        consumer.assign([(many, number) for number in range(45)])
        async with consumer:
            await consumer.commit({(many, number): 7 for number in range(45)})
            found = [await consumer.committed((many, number)) for number in range(45)]
    assert [each and each.offset for each in found] == [7] * 45


async def test_a_commit_of_many_partitions_never_replaces_a_later_one(two: Two, topic_factory: TopicFactory) -> None:
    many = topic_factory(25, cluster=two.cluster)
    everything = [TopicPartition(many, number) for number in range(25)]
    async with two.owner() as (_, consumer):
        consumer.assign(everything)
        first = asyncio.ensure_future(consumer.commit(dict.fromkeys(everything, 7)))
        await asyncio.sleep(0)  # it has begun
        await consumer.commit({everything[-1]: 9})
        await first
        found = [await consumer.committed(each) for each in everything]
    assert [each and each.offset for each in found] == [7] * 24 + [9]


@contextlib.asynccontextmanager
async def held_requests(
    monkeypatch: pytest.MonkeyPatch, name: str, *, after: str = "", answered: bool = False
) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Holds the requests of this name: sets the first event when one waits, and goes on after the second.

    With `after`, only those that follow one of that name. With `answered`, the brokers get them, and their responses
    are held.
    """
    send, waits, goes_on = KafkaClient.send, asyncio.Event(), asyncio.Event()
    begun = not after

    async def held(self: Any, node: int, message: Any, *rest: Any, **more: Any) -> Any:
        nonlocal begun
        kind = type(message).__name__
        begun = begun or kind.startswith(after)
        response = await send(self, node, message, *rest, **more) if answered else None
        if kind.startswith(name) and begun:
            waits.set()
            await goes_on.wait()
        return response if answered else await send(self, node, message, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(KafkaClient, "send", held)
        yield waits, goes_on


@contextlib.asynccontextmanager
async def ending(
    two: Two, producer: Producer, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[asyncio.Future[None], asyncio.Event]]:
    """Runs a transaction with the result "first" up to its end, which it requests after the event."""
    await batch_of(consumer)
    async with held_requests(monkeypatch, "EndTxn") as (waits, goes_on):
        running = asyncio.ensure_future(in_transaction(producer, consumer, (two.out, b"first")))
        await waits.wait()
        yield running, goes_on


async def test_a_commit_that_waits_for_its_transaction_does_not_hide_a_seek(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.fill(20)
    async with two.owner() as (_, consumer), held_requests(monkeypatch, "InitProducerId") as (waits, goes_on):
        await batch_of(consumer)
        first = asyncio.ensure_future(consumer.commit({(two.source, 0): 15}))
        await waits.wait()
        consumer.seek((two.source, 0), 5)
        goes_on.set()
        await first
        await consumer.commit()
        assert (await consumer.committed((two.source, 0))).offset == 5


async def test_an_idle_offset_that_is_committed_again_does_not_hide_a_seek(two: Two) -> None:
    await two.fill(20)
    async with two.owner() as (producer, consumer):
        await batch_of(consumer)
        await in_transaction(producer, consumer)
    async with two.owner() as (producer, consumer):
        consumer.seek((two.source, 0), 5)
        idle = member_of(consumer).commits._idle
        assert idle is not None
        await idle.commit_again({TopicPartition(two.source, 0)})
        assert (await batch_of(consumer)).base_offset == 5
        await in_transaction(producer, consumer, (two.out, b"again"))
        assert (await consumer.committed((two.source, 0))).offset == 20
    assert await two.results() == [b"again"]


@pytest.mark.parametrize("request_more", ["getone", "commit"])
async def test_the_records_in_hand_are_not_confirmed_inside_the_block(two: Two, request_more: str) -> None:
    await two.fill(3)
    async with two.owner() as (producer, consumer):
        await consumer.getone(30)
        with pytest.raises(IllegalState, match="end its block before you request more records"):
            await in_transaction(producer, consumer, (two.out, b"first"), after=getattr(consumer, request_more)())
        record = await consumer.getone(30)
        assert record is not None
        assert record.offset == 0, "it is read again"
        await in_transaction(producer, consumer, (two.out, b"again"))
    assert await two.results() == [b"again"]


async def test_records_that_are_requested_while_the_block_ends_are_not_confirmed_with_it(two: Two) -> None:
    await two.fill(3)
    async with two.owner() as (producer, consumer):
        for number in range(3):
            record = await consumer.getone(30)
            assert record is not None
            assert record.offset == number
            committing = asyncio.create_task(in_transaction(producer, consumer, (two.out, record.value)))
            await asyncio.sleep(0)
            while not committing.done():
                with pytest.raises(IllegalState, match="end its block before you request more records"):
                    await consumer.getone(0)
                await asyncio.sleep(0)
            await committing
    assert Counter(await two.results()) == Counter([b"0", b"1", b"2"])


async def test_an_offset_below_0_is_refused_before_anything_is_sent(two: Two) -> None:
    async with two.owner() as (_, consumer):
        with pytest.raises(ConfigError, match="offset -5 cannot be committed"):
            await consumer.commit({(two.source, 0): -5})
        assert await consumer.committed((two.source, 0)) is None


async def test_a_seek_to_the_committed_offset_waits_for_the_transaction_that_is_under_way(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.fill(3)
    async with two.owner() as (producer, consumer):
        async with ending(two, producer, consumer, monkeypatch) as (first, goes_on):
            sought = asyncio.ensure_future(consumer.seek_to_committed((two.source, 0)))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(sought), 1.0)
            goes_on.set()
            await first
            assert await sought == {TopicPartition(two.source, 0): 3}
        assert await consumer.getone(0.5) is None
    assert await two.results() == [b"first"]


async def test_metadata_that_is_too_large_is_left_out_of_a_transaction(
    cluster_factory: Any, topic_factory: TopicFactory, group: str
) -> None:
    cluster = cluster_factory(kafka="3.9.1", broker_config={**LATE, "offset.metadata.max.bytes": 20})
    here = Two(cluster, *(topic_factory(PARTITIONS, cluster=cluster) for _ in range(2)), group)
    await here.fill(3)
    async with here.owner() as (producer, consumer):
        await batch_of(consumer)
        await in_transaction(producer, consumer, (here.out, b"first"))
        await here.fill(1)
        await batch_of(consumer)
        await in_transaction(producer, consumer, (here.out, b"second"))
        assert (await consumer.committed((here.source, 0))).offset == 4
    assert await here.results() == [b"first", b"second"]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_an_owner_begins_though_the_transaction_of_a_dead_one_is_open(
    two: Two, isolation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open for a minute, unless the first transaction of the next owner ends it."""
    await two.fill(3)
    async with two.owner() as (p1, former):
        async with ending(two, p1, former, monkeypatch) as (dead, _):
            pass
        p2 = two.producer()
        async with p2, two.consumer(transactions=p2, isolation_level=isolation) as next_one:
            assert (await batch_of(next_one)).base_offset == 0
            await in_transaction(p2, next_one, (two.out, b"next"))
        dead.cancel()
        await asyncio.wait({dead})
    assert await two.results() == [b"next"]


async def test_a_commit_that_comes_after_that_of_a_later_seek_changes_nothing(
    two: Two, topic_factory: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call for many partitions has its turns one after the other."""
    many = topic_factory(25, cluster=two.cluster)
    async with two.producer() as producer:
        await asyncio.gather(*(producer.send_many(many, [b"x"] * 9, partition=number) for number in range(25)))
        options: dict[str, Any] = {"group": two.group, "membership": "fixed", "auto_commit_interval_s": None}
        consumer = Consumer(brokers=two.cluster.bootstrap, transactions=producer, **options)
        consumer.assign([(many, number) for number in range(25)])
        async with consumer, held_requests(monkeypatch, "InitProducerId") as (waits, goes_on):
            for number in range(25):
                await consumer.position((many, number))
            first = asyncio.ensure_future(consumer.commit({(many, number): 7 for number in range(25)}))
            await waits.wait()
            consumer.seek((many, 24), 3)
            sought = asyncio.ensure_future(member_of(consumer).commits.commit_done({TopicPartition(many, 24)}))
            goes_on.set()
            await asyncio.gather(first, sought)
            assert (await consumer.committed((many, 24))).offset == 3
            assert (await consumer.committed((many, 0))).offset == 7


async def test_commit_async_is_refused_before_it_confirms_a_record(two: Two) -> None:
    await two.fill(1)
    async with two.owner() as (producer, consumer):
        await batch_of(consumer)
        with pytest.raises(IllegalState, match="commits in transactions"):
            consumer.commit_async()
        await in_transaction(producer, consumer, (two.out, b"result"))
    assert await two.results() == [b"result"]


async def test_no_result_is_written_for_records_that_an_election_has_cut_off(two: Two) -> None:
    """An unclean one, between the request for the records and the block."""
    await two.fill(3)
    async with two.owner() as (producer, consumer):
        assert (await batch_of(consumer)).next_offset == 3
        member_of(consumer).state.assignment[TopicPartition(two.source, 0)].cut_to(OffsetAndMetadata(1, "", -1))
        with pytest.raises(Fenced, match="its log was cut") as found:
            await in_transaction(producer, consumer, (two.out, b"cut"))
        assert found.value.retriable
        assert (await batch_of(consumer)).base_offset == 0
        await in_transaction(producer, consumer, (two.out, b"again"))
    assert await two.results() == [b"again"]
