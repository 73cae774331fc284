"""Records that handlers return are written before their record is done, or in a transaction with its offset."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from allocator import Consumer, Produce, Record
from allocator.errors import Closed, ConfigError, DeliveryFailed, HandlerFailed
from allocator.handlers.results import Committing
from allocator.testing import LocalCluster, wait_until_async
from tests.producer import result_handlers
from tests.producer.test_transactions import (
    LATE,
    PARTITIONS,
    Two,
    Walk,
    batch_of,
    disturb,
    held_requests,
    in_transaction,
    long,
    numbered,
    two,
    walk,
)
from tests.producer.witnesses import committed_values, confluent

__all__ = ["two", "walk"]
MODES = ("at-least-once", "exactly-once")
COUNT = 200


async def fill(here: Two) -> None:
    async with here.producer() as producer:
        for n in range(COUNT):
            await producer.send(here.source, b"%d" % n, b"k%d" % (n % 7), partition=n % 7 % PARTITIONS)


async def until_written(here: Two, count: int, topic: str | None = None) -> list[bytes]:
    found: list[bytes] = []

    async def are_there() -> bool:
        found[:] = await asyncio.to_thread(committed_values, here.cluster.bootstrap, topic or here.out)
        return len(found) >= count

    await wait_until_async(are_there, timeout_s=60)
    return found


@contextlib.asynccontextmanager
async def reader(here: Two, mode: str) -> AsyncIterator[Consumer]:
    if mode == "exactly-once":
        async with here.owner(0, 1) as (_, consumer):
            yield consumer
    else:
        async with here.consumer(0, 1, auto_commit_interval_s=5.0) as consumer:
            yield consumer


async def process(consumer: Consumer, handler: Callable[[Record], Any], until: Any, **options: Any) -> Any:
    processing = asyncio.ensure_future(consumer.process(handler, **options))
    found = asyncio.ensure_future(until)
    await asyncio.wait({processing, found}, return_when=asyncio.FIRST_COMPLETED)
    if not found.done():
        found.cancel()
        processing.result()
    processing.cancel()
    await asyncio.gather(processing, return_exceptions=True)
    return await found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_results_are_written_in_the_order_of_each_key(mode: str, ordering: Any, two: Two) -> None:
    await fill(two)

    async def handle(record: Record) -> list[Produce]:
        await asyncio.sleep(0.001 * (record.offset % 3))
        return [Produce(two.out, b"%s/%d" % (record.value, n), key=record.key, headers=[("n", b"1")]) for n in (0, 1)]

    async with reader(two, mode) as consumer:
        wanted = until_written(two, 2 * COUNT)
        written = await process(consumer, handle, wanted, results=mode, ordering=ordering, commit_interval_s=0.2)
        ends = await consumer.end_offsets(consumer.assignment())
        for partition, end in ends.items():
            committed = await consumer.committed(partition)
            assert committed is not None
            assert committed.offset == end
    assert Counter(written) == Counter(b"%d/%d" % (n, part) for n in range(COUNT) for part in (0, 1))
    by_key: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for value in written:
        number, part = map(int, value.split(b"/"))
        by_key[number % 7].append((number, part))
    assert all(each == sorted(each) for each in by_key.values())


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("mode", MODES)
async def test_plain_handlers_return_results_too(mode: str, workers: Any, two: Two, monkeypatch: Any) -> None:
    await fill(two)
    await asyncio.to_thread(two.cluster.create_topic, result_handlers.OUT, PARTITIONS)
    try:
        async with reader(two, mode) as consumer:
            await process(
                consumer,
                result_handlers.plain,
                until_written(two, COUNT - COUNT // 5, result_handlers.OUT),
                results=mode,
                workers=workers,
                ordering="key",
                concurrency=2,
            )
        written = await asyncio.to_thread(committed_values, two.cluster.bootstrap, result_handlers.OUT)
        assert set(Counter(written).values()) == {1}
    finally:
        await asyncio.to_thread(two.cluster.delete_topic, result_handlers.OUT)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_a_result_is_what_the_handler_returned_whatever_it_changes_afterwards(
    mode: str, plain: bool, two: Two
) -> None:
    await fill(two)
    value, headers = bytearray(), [("n", b"")]

    def result(record: Record) -> Produce:
        value[:], headers[:] = record.value, [("n", record.value)]
        return Produce(two.out, value, headers=headers)  # type: ignore[arg-type]

    async def handle(record: Record) -> Produce:
        return result(record)

    async with reader(two, mode) as consumer:
        await process(
            consumer,
            result if plain else handle,
            until_written(two, COUNT),
            results=mode,
            ordering="key",
            concurrency=1 if plain else 20,
        )
    rows = await confluent(two.cluster.bootstrap, two.out, COUNT, (3, 9))
    assert Counter(row.value for row in rows.values()) == Counter(b"%d" % n for n in range(COUNT))
    assert [row for row in rows.values() if row.headers != [("n", row.value)]] == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_result_that_cannot_be_written_is_a_failure_of_the_handler(
    mode: str, two: Two, topic_factory: Callable[..., str]
) -> None:
    await fill(two)
    letters = await asyncio.to_thread(topic_factory, PARTITIONS)
    calls: Counter[bytes] = Counter()

    async def handle(record: Record) -> Produce:
        calls[record.value] += 1
        once: Any = iter([("h", b"")])
        bad = {
            b"20": Produce(two.out, bytes(2_000_000)),
            b"25": Produce(two.out, b"", headers=[("h\ud800", b"")]),
            b"28": Produce(two.out, b"", headers=once),
            b"30": Produce(two.out, b"", partition=77),
        }
        return bad.get(record.value, Produce(two.out, record.value, key=record.key))

    async with reader(two, mode) as consumer:
        await process(
            consumer,
            handle,
            until_written(two, COUNT - 4),
            results=mode,
            ordering="key",
            retries=2,
            retry_backoff_s=0.01,
            dead_letter_topic=letters,
        )
    written = await two.results()
    assert Counter(written) == Counter(b"%d" % n for n in range(COUNT) if n not in (20, 25, 28, 30))
    refused = [b"20", b"25", b"28", b"30"]
    assert Counter(await until_written(two, 4, letters)) == Counter(refused)
    assert {calls[each] for each in refused} == {3}
    by_key: dict[int, list[int]] = defaultdict(list)
    for value in written:
        by_key[int(value) % 7].append(int(value))
    assert all(each == sorted(each) for each in by_key.values())
    async with reader(two, mode) as consumer:
        consumer.seek((two.source, 0), 0)
        with pytest.raises(HandlerFailed, match="Produce and other values"):
            await consumer.process(lambda record: [Produce(two.out, b""), 1], results=mode)  # type: ignore[arg-type]


async def test_a_refused_result_has_few_others_written_again(two: Two, topic_factory: Callable[..., str]) -> None:
    """They wait for it in the order of their records, and each transaction with it is aborted."""
    letters = await asyncio.to_thread(topic_factory, PARTITIONS)
    async with two.producer() as producer:
        for n in range(COUNT):
            await producer.send(two.source, b"%d" % n, partition=0)
    waiting = asyncio.Event()

    async def handle(record: Record) -> Produce:
        if record.offset == COUNT - 1:
            waiting.set()
        await waiting.wait()
        return Produce(two.out, bytes(2_000_000) if record.offset in (50, COUNT - 1) else record.value, partition=0)

    async with two.owner(0) as (_, consumer):
        options: dict[str, Any] = {"results": "exactly-once", "retries": 0, "dead_letter_topic": letters}
        found = until_written(two, 2, letters)
        await process(consumer, handle, found, ordering="none", concurrency=COUNT, **options)
        assert len(await until_written(two, COUNT - 2)) == COUNT - 2
        (end,) = (await consumer.end_offsets([(two.out, 0)])).values()
    assert end < 6 * COUNT, "a few times as many offsets as results"


async def test_the_producer_of_the_consumer_closes_well_after_a_result_became_a_dead_letter(
    two: Two, topic_factory: Callable[..., str]
) -> None:
    letters = await asyncio.to_thread(topic_factory, PARTITIONS)
    await two.fill(3)

    async def handle(record: Record) -> list[Produce]:
        return [Produce(two.out, record.value), Produce(two.out, bytes(2_000_000) if record.offset == 1 else b"")]

    async with two.owner() as (producer, consumer):
        written = until_written(two, 1, letters)
        assert await process(
            consumer, handle, written, results="at-least-once", retries=0, dead_letter_topic=letters
        ) == [b"1"]
        await producer.flush()
        (await producer.send(two.out, bytes(2_000_000))).cancel()
        with pytest.raises(DeliveryFailed, match="did not acknowledge 1 record"):
            await producer.flush()


async def test_an_error_of_the_transaction_ends_the_call_and_is_no_fault_of_a_record(
    two: Two, topic_factory: Callable[..., str]
) -> None:
    await fill(two)
    letters = await asyncio.to_thread(topic_factory, PARTITIONS)
    async with two.owner() as (producer, consumer):
        closing = asyncio.Event()

        async def handle(record: Record) -> Produce:
            await producer.close()
            closing.set()
            return Produce(two.out, record.value)

        options: dict[str, Any] = {"results": "exactly-once", "retries": 0, "dead_letter_topic": letters}
        with pytest.raises(Closed, match="producer is closed"):
            await asyncio.wait_for(consumer.process(handle, **options), 60)
        assert closing.is_set()
    assert await asyncio.to_thread(committed_values, two.cluster.bootstrap, letters) == []


async def test_a_stop_that_results_without_a_topic_delay_names_these_and_not_the_handler(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    await two.fill(1)
    returned = asyncio.Event()

    async def handle(record: Record) -> Produce:
        returned.set()
        return Produce(f"{two.out}-missing", record.value)

    async with two.owner() as (_, consumer):
        work = asyncio.ensure_future(consumer.process(handle, results="exactly-once", drain_timeout_s=1))
        await asyncio.wait_for(returned.wait(), 30)
        work.cancel()
        await asyncio.wait({work})
    assert f"{two.source}:0: the results are not committed within 1 s at offset 0" in caplog.text
    assert "has not returned" not in caplog.text


async def test_a_consumer_that_may_have_committed_otherwise_is_refused(two: Two) -> None:
    async with two.consumer(0) as consumer:
        with pytest.raises(ConfigError, match="create it with transactions=<a Producer>"):
            await consumer.process(print, results="exactly-once")


def test_results_are_written_once_whatever_stops_their_process(walk: Callable[..., Walk]) -> None:
    stops = [("EndTxn", "before", "freeze", 2), ("EndTxn", "after", "kill", 3)]
    disturb(walk("2.8.2", "zookeeper"), stops, mode="process")


@long
@pytest.mark.parametrize("kafka", ["0.11.0.3", "4.4.0"])
@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
def test_results_are_written_once_on_other_versions(kafka: str, membership: str, walk: Callable[..., Walk]) -> None:
    stops = [
        ("TxnOffsetCommit", "before", "freeze", 2),
        ("EndTxn", "after", "freeze", 2),
        ("Produce", "after", "kill", 2),
    ]
    disturb(walk(kafka, membership), stops, mode="process")


async def test_what_contradicts_exactly_once_is_named(two: Two) -> None:
    async with two.consumer(0) as consumer:
        with pytest.raises(ConfigError, match="retry_topics with results: a record may come into a retry topic twice"):
            await consumer.process(print, results="exactly-once", retry_topics=["1s"], dead_letter_topic="x")
        with pytest.raises(ConfigError, match="results"):
            await consumer.process(print, results="twice")  # type: ignore[arg-type]


@pytest.mark.parametrize("move", ["seek", "recreation"])
async def test_results_that_wait_for_their_topic_do_not_hide_a_move_of_the_position(
    move: str, kafka_cluster: LocalCluster, two: Two
) -> None:
    """Their offset was chosen before the move, and belongs to another position or to the former topic."""
    out, calls, sent, hang = f"{two.out}-later", 0, 0, asyncio.Event()
    await two.fill(20)

    async def handle(record: Record) -> Any:
        nonlocal calls, sent
        calls += 1
        if sent == 20:
            await hang.wait()
        sent += 1
        return Produce(out, b"%d" % record.offset)

    async with two.owner() as (_, consumer):
        work = asyncio.ensure_future(consumer.process(handle, results="exactly-once", drain_timeout_s=1))
        await wait_until_async(lambda: sent == 20, 30, "the calls")
        if move == "seek":
            consumer.seek((two.source, 0), 5)
        else:
            kafka_cluster.delete_topic(two.source)
            kafka_cluster.create_topic(two.source, 1, 1)
            await two.fill(30)
            await wait_until_async(lambda: bool(consumer.losses), 60, "the new topic to be found")
        kafka_cluster.create_topic(out, 1, 1)
        wanted = 5 if move == "seek" else 0

        async def committed() -> bool:
            found = await consumer.committed((two.source, 0))
            return found is not None and found.offset == wanted

        await wait_until_async(committed, 30, "the commit of the position")
        await wait_until_async(lambda: calls > 20, 30, "the calls for the records there")
        work.cancel()
        await asyncio.wait({work})
    async with two.owner() as (_, consumer):
        found = await consumer.committed((two.source, 0))
        assert found is not None
        assert found.offset == wanted


@pytest.mark.servers
@pytest.mark.deadline(180)
@pytest.mark.parametrize("mode", MODES)
async def test_results_of_a_log_that_was_cut_commit_no_offset_beyond_the_cut(mode: str) -> None:
    """An unclean election cuts off 10 of the 20 records that calls have. The calls return when others are there."""
    config = {**LATE, "unclean.leader.election.enable": "true", "offsets.topic.replication.factor": 1}
    async with LocalCluster("2.8.2", 3, broker_config=config) as cluster:
        for name, partitions, replicas in (("in", 2, 2), ("out", 1, 1), ("warm", 1, 1)):
            await asyncio.to_thread(cluster.create_topic, name, partitions, replicas)
        stays, first, second = cluster.brokers
        assert cluster.leader("in", 1) is first
        here = Two(cluster, "in", "out", await coordinated_by(stays, cluster))
        goes_on, calls = asyncio.Event(), 0

        async def handle(record: Record) -> Produce:
            nonlocal calls
            calls += 1
            await (goes_on if calls <= 20 else asyncio.Event()).wait()
            return Produce("out", record.value)

        async def write(value: bytes, count: int) -> None:
            await asyncio.to_thread(cluster.produce, "in", [(None, value, 1)] * count)

        async def is_read(consumer: Consumer, end: int) -> bool:
            return await consumer.position(("in", 1)) == end

        await write(b"both", 10)
        await asyncio.to_thread(second.kill)
        await write(b"only the first", 10)
        async with here.owner(1) if mode == "exactly-once" else owner_without_transactions(here) as (_, consumer):
            options: dict[str, Any] = {"ordering": "none", "concurrency": 30, "drain_timeout_s": 1.0}
            work = asyncio.ensure_future(consumer.process(handle, results=mode, commit_interval_s=0.2, **options))
            await wait_until_async(lambda: calls == 20, 60, "the calls")
            await asyncio.to_thread(first.kill)
            await asyncio.to_thread(second.start, 120)
            await write(b"only the second", 30)
            await wait_until_async(lambda: is_read(consumer, 40), 60, "the records of the second")
            goes_on.set()
            await wait_until_async(lambda: calls > 20, 60, "their calls")
            work.cancel()
            await asyncio.wait({work})
        async with here.owner(1) as (_, consumer):
            assert (await batch_of(consumer)).base_offset == 10
        found = await asyncio.to_thread(committed_values, cluster.bootstrap, "out", 1)
        cut = 0 if mode == "exactly-once" else 10
        assert sorted(found) == [b"both"] * 10 + [b"only the first"] * cut


@contextlib.asynccontextmanager
async def owner_without_transactions(here: Two) -> AsyncIterator[tuple[None, Consumer]]:
    async with here.consumer(1, auto_commit_interval_s=0.2) as consumer:
        yield None, consumer


async def coordinated_by(broker: Any, cluster: LocalCluster) -> str:
    """Returns the name of a group of which this broker coordinates the offsets, and the transactions of "in", 1."""
    warm = Two(cluster, "warm", "warm", "warm")
    await warm.fill(1)
    async with warm.owner() as (producer, consumer):  # creates the internal topics
        await batch_of(consumer)
        await in_transaction(producer, consumer)

    def fits(group: str) -> bool:
        places = [("__consumer_offsets", numbered(group, 4)), ("__transaction_state", numbered(f"{group}:in:1", 5))]
        return all(cluster.leader(*place) is broker for place in places)

    return next(name for name in map("g{}".format, range(500)) if fits(name))


def placed(monkeypatch: pytest.MonkeyPatch, goes_on: asyncio.Event | None = None) -> asyncio.Event:
    """Returns an event: results have the offsets that are committed with them. With `goes_on` they wait for it then."""
    inner, waits = Committing._placed, asyncio.Event()

    async def noted(self: Committing, units: Any) -> Any:
        found = await inner(self, units)
        waits.set()
        if goes_on is not None:
            await goes_on.wait()
        return found

    monkeypatch.setattr(Committing, "_placed", noted)
    return waits


async def test_a_result_from_before_a_seek_is_not_committed_after_it(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seek is committed while the result waits: then nothing would commit it once more."""
    await two.fill(3)
    goes_on, calls = asyncio.Event(), 0
    waits = placed(monkeypatch, goes_on)

    async def handle(record: Record) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            await asyncio.Event().wait()
        return Produce(two.out, b"%d" % record.offset)

    async with two.owner() as (_, consumer):
        options = {"results": "exactly-once", "commit_interval_s": 0.2, "drain_timeout_s": 1}
        work = asyncio.ensure_future(consumer.process(handle, **options))
        await waits.wait()
        consumer.seek((two.source, 0), 0)

        async def is_committed() -> bool:
            found = await consumer.committed((two.source, 0))
            return found is not None and found.offset == 0

        await wait_until_async(is_committed, 30, "the commit of the seek")
        goes_on.set()
        await wait_until_async(lambda: calls > 3, 30, "the records after the seek")
        work.cancel()
        await asyncio.wait({work})
        assert await is_committed()
    assert await two.results() == []


async def test_a_result_that_waits_behind_a_former_owners_transaction_is_written_once(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former owner was frozen before the end of its transaction, which then comes before the next owner's first
    request. So the next owner reads on at another offset than the one that it knew, also the records of the result."""
    await two.fill(3)
    hang, handled, waits = asyncio.Event(), 0, placed(monkeypatch)

    async def hangs(record: Record) -> None:
        await hang.wait()

    async def handle(record: Record) -> Any:
        nonlocal handled
        await begins.wait()  # in the commit of where the partition begins
        handled += 1
        return Produce(two.out, b"%d" % record.offset)

    options: dict[str, Any] = {"results": "exactly-once", "commit_interval_s": 0.2, "drain_timeout_s": 1}
    async with two.owner() as (_, former), two.owner() as (_, heir):
        async with held_requests(monkeypatch, "EndTxn") as (is_ending, ends):
            works = [asyncio.ensure_future(former.process(hangs, **options))]
            await is_ending.wait()  # it commits where the partition begins
        async with held_requests(monkeypatch, "InitProducerId") as (begins, goes_on):
            works.append(asyncio.ensure_future(heir.process(handle, **options)))
            await waits.wait()  # the results wait for their turn
            ends.set()

            async def is_committed() -> bool:
                return await former.committed((two.source, 0)) is not None

            await wait_until_async(is_committed, 30, "the transaction of the former owner")
            goes_on.set()
            await wait_until_async(lambda: handled == 6, 30, "the records to be handled again")

        async def all_committed() -> bool:
            found = await heir.committed((two.source, 0))
            return found is not None and found.offset == 3

        await wait_until_async(all_committed, 30, "the commit of all records")
        for work in works:
            work.cancel()
        await asyncio.wait(works)
    assert await two.results() == [b"0", b"1", b"2"]
