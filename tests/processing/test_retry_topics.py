"""Retry topics of a consumer in memory: delays, original records, acknowledgements, moves and loops."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.aio.clock import wall_ms
from allocator.core.client.errors import for_code
from allocator.core.telemetry.measures import Measures
from allocator.errors import BrokerError, ConfigError
from allocator.handlers.due import DueGate
from allocator.handlers.letter_headers import headers_of, restored
from allocator.handlers.policy import ErrorPolicy, Retries
from allocator.handlers.retry_topics import RetryPlan, RetryTopics
from allocator.types import Record, TopicPartition
from tests.consumer.fake_source import Batch, Cluster, FakeSource
from tests.processing import engine
from tests.processing.engine import PARTITION, until

PLAN = RetryPlan({"g.retry-a": 0.05, "g.retry-b": 0.1})
LATER = RetryPlan({"g.retry-1h": 3600})


class Topics:
    """Retry topics of one partition in the cluster in memory. While `closed` is set they take nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.source: FakeSource
        self.refusals = 0
        self.too_large = False
        self.held: asyncio.Event | None = None

    async def send(self, topic: str, copies: Sequence[Any], *, needs_headers: bool = False) -> None:
        if self.held is not None:
            await self.held.wait()
        if self.refusals:
            self.refusals -= 1
            raise BrokerError("not now", retriable=True)
        if self.too_large:
            raise for_code(10, topic)
        log = self.cluster.logs[TopicPartition(topic, 0)]
        for record, headers in copies:
            log.append(Record(topic, 0, len(log), wall_ms(), 0, record.key, record.value, headers))
        self.source.wake()

    async def open(self) -> Any:
        raise AssertionError("nothing is to be prepared")

    async def close(self) -> None: ...


class Prepared(RetryTopics):
    async def prepare(self) -> None: ...


def retry_topics(cluster: Cluster, plan: RetryPlan = PLAN) -> tuple[Topics, RetryTopics]:
    """Adds the retry topics to the cluster."""
    for topic in plan.topics:
        cluster.partitions.append(TopicPartition(topic, 0))
        cluster.logs.setdefault(TopicPartition(topic, 0), [])
    topics: Any = Topics(cluster)
    return topics, Prepared(plan, "g", topics)


@contextlib.asynccontextmanager
async def running(
    cluster: Cluster, function: Callable[[Record], Any], plan: RetryPlan = PLAN, *, held: bool = False, **settings: Any
) -> AsyncIterator[SimpleNamespace]:
    topics, written = retry_topics(cluster, plan)
    topics.held = asyncio.Event() if held else None
    letters = engine.Letters()
    chosen = {"retries": Retries(1, 0.001, 0.002), "commit_interval_s": 0.01, "drain_timeout_s": 30.0, **settings}
    async with engine.running(cluster, function, letters, retry_topics=written, **chosen) as it:
        topics.source = it.source
        yield SimpleNamespace(source=it.source, topics=topics, letters=letters)
    it.task.result()


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_record_passes_every_delay_becomes_a_dead_letter_and_delays_no_other(
    ordering: str, plain: bool
) -> None:
    cluster = Cluster(records=10)
    calls: list[tuple[str, int, int, float]] = []

    def handle(record: Record) -> None:
        calls.append((record.topic, record.partition, record.offset, time.monotonic()))
        if record.offset == 3:
            raise ValueError("bad")

    async def on_loop(record: Record) -> None:
        handle(record)

    async with running(cluster, handle if plain else on_loop, ordering=ordering) as it:
        await until(lambda: it.letters.records)
    # two calls in memory, and one for each delay, each with the record as it was at its first place
    times = [at for topic, partition, offset, at in calls if (topic, partition, offset) == ("t", 0, 3)]
    assert len(times) == 4
    # whole milliseconds of the wall clock, and another clock here
    assert times[2] - times[1] >= 0.04
    assert times[3] - times[2] >= 0.09
    assert [(each.topic, each.partition, each.offset) for each in it.letters.records] == [("t", 0, 3)]
    assert it.letters.attempts == [4]
    assert Counter(offset for _, _, offset, _ in calls) == {**dict.fromkeys(range(10), 1), 3: 4}
    assert it.source.measures.records_delayed == 2
    assert it.source.measures.due_ms == {}
    assert cluster.committed == {PARTITION: 10, **{TopicPartition(topic, 0): 1 for topic in PLAN.topics}}


async def test_a_record_is_done_only_when_its_retry_topic_acknowledged_it() -> None:
    cluster, seen = Cluster(records=6), []

    async def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 2 and seen.count(2) < 3:
            raise ValueError("bad")

    async with running(cluster, handle, held=True, ordering="none") as it:
        it.topics.refusals = 1
        await until(lambda: cluster.committed.get(PARTITION) == 2)
        await until(lambda: PARTITION in cluster.beyond)
        assert set(seen) == set(range(6))
        assert it.topics.held is not None
        it.topics.held.set()
        await until(lambda: cluster.committed[PARTITION] == 6)
        await until(lambda: seen.count(2) == 3)
    assert it.letters.records == []


async def test_a_record_that_its_headers_make_too_large_for_a_retry_topic_becomes_a_dead_letter() -> None:
    cluster, seen = Cluster(records=6), []

    async def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 2:
            raise ValueError("bad")

    async with running(cluster, handle) as it:
        it.topics.too_large = True
        await until(lambda: cluster.committed.get(PARTITION) == 6)
    assert (it.letters.offsets, it.letters.attempts) == ([2], [2])
    assert it.source.measures.records_delayed == 0
    assert sorted(set(seen)) == list(range(6))


async def test_waiting_records_move_with_their_partition() -> None:
    """No handler call holds a waiting record, so a move takes no time, and the next owner knows the due time."""
    cluster, seen = Cluster(records=3), []

    async def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 1 and seen.count(1) < 3:
            raise ValueError("bad")

    waiting = TopicPartition("g.retry-1h", 0)
    async with running(cluster, handle, LATER) as it:
        await until(lambda: waiting in it.source.measures.due_ms)
        assert it.source.measures.due_ms[waiting] > wall_ms() + 3_000_000
        await it.source.revoke([waiting])
        assert it.source.measures.due_ms == {}
        await it.source.assign([waiting])
        await until(lambda: waiting in it.source.measures.due_ms)
        # a seek does not wait for records that wait for their retry
        it.source.seek(waiting, 1)
        assert it.source.measures.due_ms == {}
    assert seen.count(1) == 2
    assert cluster.committed[PARTITION] == 3


@pytest.mark.parametrize(
    ("lists", "letters"), [({"dead_letter_on": [ValueError]}, [3]), ({"skip_on": [ValueError]}, [])]
)
async def test_only_errors_that_are_retried_go_to_a_retry_topic(lists: Any, letters: list[int]) -> None:
    cluster = Cluster(records=5)

    async def handle(record: Record) -> None:
        if record.offset == 3:
            raise ValueError("bad")

    async with running(cluster, handle, policy=ErrorPolicy.of(**lists)) as it:
        await until(lambda: cluster.committed.get(PARTITION) == 5)
    assert it.letters.offsets == letters
    assert it.source.measures.records_delayed == 0


# -- without a processor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"v", b"", None])
@pytest.mark.parametrize("key", [b"k", None])
async def test_a_record_returns_from_a_retry_topic_unchanged(key: bytes | None, value: bytes | None) -> None:
    cluster = Cluster(records=0)
    sender, topics = retry_topics(cluster)
    sender.source = FakeSource(cluster)
    record = Record("orders", 7, 42, 1234, 1, key, value, [("own", b"1"), ("own", None)])
    await topics.send(record, ValueError("bad"), 3)
    (waiting,) = cluster.logs[TopicPartition("g.retry-a", 0)]
    again = PLAN.original(waiting)
    for name in ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value"):
        assert getattr(again, name) == getattr(record, name), name
    assert [each for each in again.headers if not each[0].startswith("allocator.")] == [("own", b"1"), ("own", None)]
    assert PLAN.attempts(waiting) == 3
    await topics.send(waiting, ValueError("worse"), 1)
    (last,) = cluster.logs[TopicPartition("g.retry-b", 0)]
    assert PLAN.attempts(last) == 4
    assert PLAN.after(last) is None


def test_a_foreign_record_in_a_retry_topic_is_handled_unchanged() -> None:
    record = Record("g.retry-a", 0, 0, 0, 0, b"k", b"v", [("allocator.attempts", b"many")])
    assert PLAN.original(record) is record
    assert PLAN.attempts(record) == 0
    assert PLAN.after(record) == "g.retry-b"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("digits", [18, 30, 4300])
@pytest.mark.parametrize("name", ["due", "retries", "attempts", "partition", "offset", "timestamp"])
async def test_no_number_that_a_stranger_writes_ends_the_processing(name: str, digits: int, fails: bool) -> None:
    """Anyone who may write to a retry topic may write such a header, and each member would end at it in turn."""
    letter = {"topic": b"t", "partition": b"0", "offset": b"0", "timestamp": b"1"}
    letter[name] = b"9" * digits
    headers = [("allocator." + each, value) for each, value in letter.items()]
    waiting = TopicPartition("g.retry-a", 0)
    cluster, handled = Cluster(records=0), list[bytes]()
    cluster.logs[waiting] = [
        Record(*waiting, 0, 0, 0, b"k", b"poison", headers),
        Record(*waiting, 1, 0, 0, b"k", b"next", []),
    ]

    async def handle(record: Record) -> None:
        handled.append(record.value)
        if record.value == b"poison" and fails:
            raise ValueError("bad")

    async with running(cluster, handle, RetryPlan({"g.retry-a": 0.02})) as it:
        await until(lambda: len(handled) == 2)
        await until(lambda: len(it.letters.records) == fails)
    assert handled == [b"poison", b"next"]
    assert [each.value for each in it.letters.records] == [b"poison"] * fails


async def test_two_groups_that_read_each_others_retry_topics_do_not_loop() -> None:
    """Their patterns match all topics, so each group also consumes the other group's retry topics."""
    plans = [RetryPlan.of(group, ["1s", "2s"]) for group in ("one", "other")]
    record = Record("orders", 0, 0, 0, 0, b"k", b"v", [])
    steps = 0
    while (topic := plans[steps % 2].after(record)) is not None:
        cluster = Cluster()
        sender, topics = retry_topics(cluster, plans[steps % 2])
        sender.source = FakeSource(cluster)
        await topics.send(record, ValueError("bad"), 1)
        (record,) = cluster.logs[TopicPartition(topic, 0)]
        steps += 1
        assert steps < 10
    assert steps == 1


@given(dues=st.lists(st.integers(0, 100), min_size=1, max_size=12), step=st.integers(1, 40), first=st.integers(0, 5))
def test_records_pass_in_order_and_none_before_its_time(dues: list[int], step: int, first: int) -> None:
    headers = [[("allocator.due", b"%d" % each)] for each in dues]
    records = [Record("g.retry-1h", 0, first + n, 0, 0, None, b"", each) for n, each in enumerate(headers)]

    async def walk() -> list[int]:
        gate = DueGate(TopicPartition("g.retry-1h", 0), 3600, lambda: None, Measures(), lambda: now)
        rest: Any = Batch(records, first + len(records) + 2)
        now, passed = 0, list[int]()
        end = first
        while rest is not None:
            gate.open()
            ready, rest = gate.pass_on(rest)
            assert gate.shut == (rest is not None)
            if ready is not None:
                for record in ready:
                    assert dues[record.offset - first] <= now
                    passed.append(record.offset)
                assert end <= ready.next_offset
                end = ready.next_offset
            now += step
        gate.open()
        assert end == first + len(records) + 2
        return passed

    assert asyncio.run(walk()) == [first + n for n in range(len(dues))]


async def test_a_sender_whose_clock_is_wrong_delays_no_record_beyond_the_delay() -> None:
    record = Record("g.retry-1s", 0, 0, 0, 0, None, b"", [("allocator.due", b"%d" % (wall_ms() + 10**9))])
    again = asyncio.Event()
    gate = DueGate(TopicPartition("g.retry-1s", 0), 0.05, again.set, Measures())
    batch: Any = Batch([record], 1)
    assert gate.pass_on(batch)[0] is None
    await asyncio.wait_for(again.wait(), 30)
    assert gate.pass_on(batch) == (batch, None)


def test_names_of_retry_topics_are_checked() -> None:
    assert RetryPlan.of("billing", ["30s", "1h"]) == RetryPlan({"billing.retry-30s": 30, "billing.retry-1h": 3600})
    with pytest.raises(ConfigError, match=r"group 'bill ing' cannot have retry topics: 'bill ing.retry-1m'"):
        RetryPlan.of("bill ing", ["1m"])
    for wrong in ("0s", "31d", "1.5h"):
        with pytest.raises(ConfigError, match="is not a delay: write a whole number with s, m, h or d"):
            RetryPlan.of("billing", [wrong])


@pytest.mark.parametrize("name", ["trace", "allocator.topic", "kafka_dlt-original-topic", "__connect.errors.topic"])
def test_a_letter_after_retries_and_a_redriven_record_have_the_own_headers(name: str) -> None:
    """Whatever their names are. Retry headers are left out: a redriven record starts with all its retries."""
    plan = RetryPlan.of("g", ["5s"])
    record = Record("t", 0, 0, 0, 0, b"k", b"v", [(name, b"own")])
    marks = [("allocator.retries", b"2"), ("allocator.due", b"5")]
    waiting = Record("g.retry-5s", 0, 0, 0, 0, b"k", b"v", [*headers_of(record, "g", ValueError(), 1), *marks])
    assert plan.original(waiting).headers[0] == (name, b"own")
    assert ("allocator.retries", b"2") in plan.original(waiting).headers
    first = plan.original(waiting, marked=False)
    assert first == record
    letter = Record("t.dead", 0, 0, 0, 0, b"k", b"v", headers_of(first, "g", ValueError(), 1))
    assert restored(letter)[1][0] == (name, b"own")
    assert {name for name, _ in restored(letter)[1][1:]} == {"allocator.first_timestamp", "allocator.redrives"}
