"""Promises of a processor on a consumer in memory: order, retries, dead letters, drain, contiguous commits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import logging
import sys
import threading
import time
from collections import ChainMap, Counter, UserList, UserString, deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, MappingProxyType, ModuleType
from typing import Any

import pytest

from allocator import Produce
from allocator.core.consumer.record_processor import RecordCommands
from allocator.core.subscription import Hold
from allocator.daemon.daemon import Daemon
from allocator.daemon.logs import JsonFormatter
from allocator.errors import (
    AllocatorError,
    AlreadyStored,
    BrokerError,
    ConfigError,
    Fenced,
    HandlerCutOff,
    HandlerFailed,
    OffsetOutOfRange,
    TopicNotFound,
)
from allocator.handlers import lanes, processor
from allocator.handlers.handlers import Handler
from allocator.handlers.handling import Handling
from allocator.handlers.letter_headers import error_chain, headers_of
from allocator.handlers.policy import ErrorPolicy, Retries
from allocator.handlers.processor import Processor
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice
from allocator.types import OffsetAndMetadata, Record, TopicPartition
from tests.consumer.fake_source import Cluster, FakeSource, positions
from tests.processing.engine import DEADLINE_S, PARTITION, Letters, another_handles_all, running, until


class Recorder:
    """A handler that records its calls, and fails or waits at chosen records."""

    def __init__(self) -> None:
        self.done: list[Record] = []
        self.tried: Counter[tuple[TopicPartition, int]] = Counter()
        self.errors: dict[int, list[BaseException]] = {}
        """Offset -> the errors to raise, one per call."""
        self.holds: dict[int, asyncio.Event] = {}
        self.cancelled: list[int] = []
        self.running = 0
        self.most = 0

    def offsets(self, partition: int = 0) -> list[int]:
        return [record.offset for record in self.done if record.partition == partition]

    async def handle(self, record: Record) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            self.tried[TopicPartition(record.topic, record.partition), record.offset] += 1
            await asyncio.sleep(0)
            if record.offset in self.holds:
                await self.holds[record.offset].wait()
            self.fail(record)
            self.done.append(record)
        except asyncio.CancelledError:
            self.cancelled.append(record.offset)
            raise
        finally:
            self.running -= 1

    def handle_plain(self, record: Record) -> None:
        self.fail(record)
        self.done.append(record)

    def fail(self, record: Record) -> None:
        if self.errors.get(record.offset):
            raise self.errors[record.offset].pop(0)


# -- order and completeness --------------------------------------------------------------------------------------


async def test_a_handler_that_never_waits_leaves_the_loop_its_turns() -> None:
    cluster = Cluster(partitions=2, records=2000)
    done: list[Record] = []

    async def handle(record: Record) -> None:
        ends = time.monotonic() + 0.001
        while time.monotonic() < ends:
            pass
        done.append(record)

    async with running(cluster, handle, batch_size=2000, concurrency=1):
        most, before = 0, 0
        while len({record.partition for record in done}) < 2:
            await asyncio.sleep(0)
            most, before = max(most, len(done) - before), len(done)
    # within one turn of the loop, each partition gets at most one slice of its batch
    assert 0 < most <= 2 * (1000 * lanes.SLICE_S + 1)
    assert len(done) < 4000


async def test_offsets_without_records_at_the_end_are_committed_too() -> None:
    cluster, recorder = Cluster(records=5, markers=2), Recorder()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: len(recorder.done) == 5)
        await it.stop()
    assert cluster.committed == {PARTITION: 7}


async def test_a_slow_partition_is_paused() -> None:
    cluster, recorder = Cluster(partitions=2, records=100), Recorder()
    slow, fast = cluster.partitions
    hold = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.partition == 0:
            await hold.wait()
        await recorder.handle(record)

    async with running(cluster, handle) as it:
        await until(lambda: len(recorder.offsets(1)) == 100)
        assert it.source.full == {slow}
        # one in the handler, two that wait
        assert it.source.positions == {slow: 3 * 4, fast: 100}
        hold.set()
        await until(lambda: len(recorder.offsets(0)) == 100)
        assert it.source.full == set()


async def test_a_pause_of_the_user_stays_while_a_handler_is_full_and_after_it() -> None:
    cluster, recorder, hold = Cluster(records=100), Recorder(), asyncio.Event()

    async def handle(record: Record) -> None:
        await hold.wait()
        await recorder.handle(record)

    async with running(cluster, handle) as it:
        await until(lambda: it.source.full == {PARTITION})
        it.source.pause(PARTITION)
        hold.set()
        await until(lambda: len(recorder.done) == 1)
        await another_handles_all()
        assert (it.source.paused(), it.source.positions, recorder.offsets()) == ({PARTITION}, {PARTITION: 12}, [0])
        it.source.resume(PARTITION)
        await until(lambda: len(recorder.done) == 100)
        assert recorder.offsets() == list(range(100))


@pytest.mark.parametrize("by", ["user", "operator"])
@pytest.mark.parametrize(
    ("how", "ordering"),
    [*itertools.product(["coroutine", "thread"], ["none", "key", "partition"]), ("batch", "partition")],
)
async def test_queued_records_of_a_paused_partition_wait_until_it_is_resumed(by: str, how: str, ordering: str) -> None:
    """Calls run when one of two partitions is paused."""
    cluster = Cluster(partitions=2, records=200, keys=3)
    slow, other = cluster.partitions
    called: list[tuple[int, int]] = []
    may_end, loop = asyncio.Event(), asyncio.get_running_loop()

    async def handle(argument: Any) -> None:
        called.append((argument.partition, argument.base_offset if how == "batch" else argument.offset))
        await may_end.wait()

    def handle_plain(record: Record) -> None:
        asyncio.run_coroutine_threadsafe(handle(record), loop).result()

    options: dict[str, Any] = {"ordering": ordering, "concurrency": 8, "batch_size": 20, "by_batch": how == "batch"}
    async with running(cluster, handle_plain if how == "thread" else handle, **options) as it:

        def pause(paused: bool) -> None:
            if by == "operator":
                it.source.state.hold_back(frozenset({slow} if paused else ()))
                it.processor.command(RecordCommands())
                it.source.wake()
            else:
                (it.source.pause if paused else it.source.resume)(slow)

        def calls(partition: TopicPartition) -> list[int]:
            return [offset for number, offset in called if number == partition.partition]

        await until(lambda: len(called) == {"none": 8, "key": 6, "partition": 2}[ordering])
        pause(True)
        before = calls(slow)
        may_end.set()
        every = 200 // (20 if how == "batch" else 1)
        await until(lambda: len(calls(other)) == every)
        await another_handles_all()
        assert calls(slow) == before
        pause(False)
        await until(lambda: len(calls(slow)) == every)
        assert sorted(calls(slow)) == sorted(calls(other))
        assert it.source.paused() == set()
        await it.stop()
    assert cluster.committed == {slow: 200, other: 200}


@contextlib.contextmanager
def counted_instructions(module: ModuleType) -> Iterator[list[int]]:
    """Counts the instructions of this module that run in this thread, in calls that begin meanwhile."""
    count, before = [0], sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count[0] += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("end", ["resume", "stop"])
async def test_the_end_of_a_pause_takes_work_by_the_records_that_wait(end: str) -> None:
    async def work(partitions: int) -> int:
        cluster, may_end, ended = Cluster(partitions=partitions, records=20), asyncio.Event(), []

        async def handle(record: Record) -> None:
            await may_end.wait()
            ended.append(record)

        async with running(cluster, handle, ordering="none", concurrency=2, batch_size=20) as it:
            await until(lambda: list(it.source.positions.values()) == [20] * partitions)
            it.source.pause(*cluster.partitions)
            may_end.set()
            await until(lambda: len(ended) == 2)
            await another_handles_all()
            with counted_instructions(lanes) as count:
                if end == "resume":
                    it.source.resume(*cluster.partitions)
                else:
                    await it.stop()
        assert count[0]
        return count[0]

    assert await work(32) < 1.5 * 32 / 4 * await work(4)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_that_pauses_its_partition_gets_no_further_record(plain: bool) -> None:
    cluster, called = Cluster(records=100), []

    async def handle(record: Record) -> None:
        called.append(record.offset)
        if record.offset == 2:
            it.source.pause(PARTITION)

    def handle_plain(record: Record) -> None:
        asyncio.run_coroutine_threadsafe(handle(record), loop).result()

    loop = asyncio.get_running_loop()
    async with running(cluster, handle_plain if plain else handle, batch_size=50) as it:
        await until(lambda: len(called) >= 3)
        await another_handles_all()
        assert called == [0, 1, 2]
        it.source.resume(PARTITION)
        await until(lambda: len(called) == 100)


async def test_a_paused_partition_moves_and_stops_without_its_queued_records() -> None:
    cluster, recorder = Cluster(partitions=2, records=100), Recorder()
    first, second = cluster.partitions
    recorder.holds = {0: asyncio.Event()}
    async with running(cluster, recorder.handle) as it:
        await until(lambda: recorder.running == 2)
        it.source.pause(first, second)
        recorder.holds[0].set()
        await until(lambda: recorder.offsets(0) == recorder.offsets(1) == [0])
        await asyncio.wait_for(it.source.revoke([first]), DEADLINE_S)
        await it.stop()
    assert recorder.tried == {(first, 0): 1, (second, 0): 1}
    assert cluster.committed == {first: 1, second: 1}


async def test_a_pause_outlasts_a_retry_and_a_seek() -> None:
    cluster, recorder = Cluster(records=20), Recorder()
    recorder.errors[1] = [ValueError("once")]
    async with running(cluster, recorder.handle, retries=Retries(2, 0.01, 0.01)) as it:
        await until(lambda: it.source.measures.handler_failures == 1)
        it.source.pause(PARTITION)
        await asyncio.sleep(0.02)  # the wait for the retry ends meanwhile
        await another_handles_all()
        assert recorder.tried == {(PARTITION, 0): 1, (PARTITION, 1): 1}
        it.source.seek(PARTITION, 10)
        await another_handles_all()
        assert recorder.offsets() == [0]
        it.source.resume(PARTITION)
        await until(lambda: recorder.offsets() == [0, *range(10, 20)])


# -- operator commands -------------------------------------------------------------------------------------------


def waiting_for_retries(**settings: Any) -> dict[str, Any]:
    return {"ordering": "key", "retries": Retries(3, 600.0, 600.0), **settings}


@pytest.mark.parametrize("letters", [None, Letters()])
async def test_a_skip_uses_up_no_retry_of_other_records(letters: Letters | None) -> None:
    """Each change of commands or partitions repeats the commands that are in effect."""
    cluster, recorder = Cluster(records=10, keys=10), Recorder()
    recorder.errors = {offset: [ValueError("down")] * 9 for offset in range(10)}
    async with running(cluster, recorder.handle, letters, **waiting_for_retries()) as it:
        await until(lambda: it.source.measures.handler_failures == 10)
        skipped: set[int] = set()
        for offset in (2, 5, 7):
            skipped.add(offset)
            for _ in range(3):
                it.processor.command(RecordCommands(skipped={PARTITION: dict.fromkeys(skipped)}))
            await until(lambda: it.source.state.assignment[PARTITION].done()[0] == 0)
            await another_handles_all()
        assert set(recorder.tried.values()) == {1}
        recorder.errors.clear()
        await it.source.revoke([PARTITION])
        await it.source.assign([PARTITION])
        await until(lambda: len(recorder.done) == 7)
        assert sorted(recorder.offsets()) == [0, 1, 3, 4, 6, 8, 9]
        assert letters is None or not letters.records


@pytest.mark.parametrize(("topic_id", "handled"), [("former", [0, 1, 2]), ("present", [0, 2]), (None, [0, 2])])
async def test_a_skip_in_a_former_topic_skips_no_record_of_the_next(topic_id: str | None, handled: list[int]) -> None:
    cluster, recorder = Cluster(records=0), Recorder()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: PARTITION in it.source.positions)
        it.processor.command(RecordCommands(skipped={PARTITION: {1: topic_id}}))
        it.source.recreate(PARTITION, 3)
        it.source.state.assignment[PARTITION].topic_id = "present"
        await until(lambda: positions(it.source) == {PARTITION: 3})
        assert recorder.offsets() == handled


async def test_a_quarantine_uses_up_no_retry_and_calls_no_handler() -> None:
    cluster, recorder, letters = Cluster(partitions=2, records=5, keys=5), Recorder(), Letters()
    recorder.errors = {offset: [ValueError("down")] * 9 for offset in range(5)}
    async with running(cluster, recorder.handle, letters, **waiting_for_retries()) as it:
        await until(lambda: it.source.measures.handler_failures == 10)
        for _ in range(3):
            it.processor.command(RecordCommands(quarantined={PARTITION: "quarantine t:0"}))
            await until(lambda: len(letters.records) == 5)
        assert sorted((record.partition, record.offset) for record in letters.records) == [(0, n) for n in range(5)]
        assert letters.attempts == [1] * 5
        assert set(recorder.tried.values()) == {1}


async def test_a_record_that_fails_while_a_skip_comes_does_not_wait_for_its_retry() -> None:
    cluster, recorder = Cluster(records=3), Recorder()
    recorder.errors[0], recorder.holds[0] = [ValueError("down")] * 9, asyncio.Event()
    async with running(cluster, recorder.handle, **waiting_for_retries(ordering="partition")) as it:
        await until(lambda: recorder.running)
        it.processor.command(RecordCommands(skipped={PARTITION: {0: None}}))
        recorder.holds[0].set()
        await until(lambda: recorder.offsets() == [1, 2])
        assert recorder.tried[PARTITION, 0] == 1


async def test_a_skip_that_is_undone_during_a_pause_uses_up_no_retry() -> None:
    cluster, recorder = Cluster(records=3, keys=3), Recorder()
    recorder.errors[0] = [ValueError("down")] * 9
    async with running(cluster, recorder.handle, **waiting_for_retries()) as it:
        await until(lambda: recorder.offsets() == [1, 2])
        it.source.pause(PARTITION)
        it.processor.command(RecordCommands(skipped={PARTITION: {0: None}}))
        it.processor.command(RecordCommands())
        it.source.resume(PARTITION)
        await another_handles_all()
        assert recorder.tried == {(PARTITION, 0): 1, (PARTITION, 1): 1, (PARTITION, 2): 1}
        it.source.pause(PARTITION)
        it.processor.command(RecordCommands(skipped={PARTITION: {0: None}}))
        it.source.resume(PARTITION)
        await until(lambda: positions(it.source) == {PARTITION: 3})
        assert recorder.tried[PARTITION, 0] == 1


# -- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
async def test_a_failed_record_is_tried_again_before_the_next_one(plain: bool) -> None:
    """Each record has its own retries."""
    cluster, recorder = Cluster(records=6), Recorder()
    recorder.errors = {offset: [ValueError("once"), ValueError("twice")] for offset in range(6)}
    async with running(cluster, recorder.handle_plain if plain else recorder.handle) as it:
        await until(lambda: len(recorder.done) == 6)
        await it.stop()
    assert recorder.offsets() == list(range(6))


async def test_a_record_that_waits_for_its_retry_occupies_no_slot() -> None:
    cluster, recorder = Cluster(partitions=2, records=4), Recorder()

    async def handle(record: Record) -> None:
        if record.partition == 0:
            raise ValueError("always")
        await recorder.handle(record)

    async with running(cluster, handle, concurrency=1, retries=Retries(5, 60.0, 60.0)):
        await until(lambda: recorder.offsets(1) == [0, 1, 2, 3])


@pytest.mark.parametrize("plain", [False, True])
async def test_a_record_that_fails_for_good_stops_the_processor_and_is_not_skipped(plain: bool) -> None:
    """The other partition drains and commits."""
    cluster, recorder = Cluster(partitions=2, records=10), Recorder()
    bad, good = cluster.partitions

    def handle(record: Record) -> None:
        if record.partition == 0 and record.offset == 5:
            raise ValueError("poison")
        recorder.done.append(record)

    async with running(cluster, plain_and_coroutine(handle)[not plain]) as it:
        error = await it.failed()
    assert isinstance(error, HandlerFailed)
    assert (error.topic, error.partition, error.offset) == ("t", 0, 5)
    assert "failed 3 times at t:0 offset 5: ValueError('poison')" in str(error)
    assert cluster.committed[bad] == 5
    assert cluster.committed.get(good, 0) == len(recorder.offsets(1))
    assert it.source.events[-1] == "close"


async def test_a_result_that_cannot_be_written_needs_no_dead_letter_topic() -> None:
    """It stops the processor although there is one."""
    cluster, letters = Cluster(records=10), Letters()
    async with running(cluster, lambda record: [Produce("results", b"x"), "text"], letters) as it:
        error = await it.failed()
    assert isinstance(error, HandlerFailed)
    assert str(error).endswith("; correct it")
    assert letters.offsets == []


@pytest.mark.parametrize("refusals", [2, 9])
async def test_a_record_is_done_only_when_its_dead_letter_is_acknowledged(refusals: int) -> None:
    """After three attempts the processor stops instead of skipping the record."""
    cluster, recorder = Cluster(records=10), Recorder()
    recorder.errors[5] = [ValueError("poison")] * 3
    letters = Letters([BrokerError("down", retriable=True)] * refusals)
    async with running(cluster, recorder.handle, letters) as it:
        if refusals == 2:
            await until(lambda: len(recorder.done) == 9)
            await it.stop()
        else:
            assert isinstance(await it.failed(), BrokerError)
    assert letters.offsets == ([5] if refusals == 2 else [])
    assert cluster.committed == {PARTITION: 10 if refusals == 2 else 5}
    assert letters.closed


async def test_a_missing_dead_letter_topic_is_a_failure_at_the_record() -> None:
    """A restart would fail in the same way."""
    cluster, recorder = Cluster(records=10), Recorder()
    recorder.errors[5] = [ValueError("poison")] * 3
    refusal = BrokerError("topic 'missing' did not accept t:0 offset 5", retriable=True)
    refusal.__cause__ = TopicNotFound(["missing"])
    async with running(cluster, recorder.handle, Letters([refusal] * 9)) as it:
        error = await it.failed()
    assert isinstance(error, HandlerFailed)
    assert (error.offset, "its dead letter is refused: topic 'missing'" in str(error)) == (5, True)
    assert cluster.committed == {PARTITION: 5}


async def test_a_letter_that_is_refused_for_good_while_the_worker_stops_is_left_to_the_next_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As without a dead-letter topic: what leaves this member is no reason to end it."""
    cluster, called, go_on = Cluster(records=1), asyncio.Event(), asyncio.Event()

    async def handle(record: Record) -> None:
        called.set()
        await go_on.wait()
        raise ValueError("poison")

    letters = Letters([BrokerError("too large", code=10)])
    async with running(cluster, handle, letters, retries=Retries(0)) as it:
        await called.wait()
        it.processor.stop()
        await until(lambda: "1 partitions drain" in caplog.text)
        for _ in range(50):
            await asyncio.sleep(0)
        go_on.set()
        await it.stop()
    assert letters.refusals == []
    assert cluster.committed == {PARTITION: 0}


@pytest.mark.parametrize("kind", ["text", "note", "cause", "group"])
async def test_a_long_error_is_logged_short(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    error: BaseException = ValueError("x" * 1_000_000 if kind == "text" else "short")
    if kind == "note":
        if not hasattr(error, "add_note"):
            pytest.skip("no notes before Python 3.11")
        error.add_note("x" * 1_000_000)
    elif kind == "cause":
        error.__cause__ = ValueError("x" * 1_000_000)
    elif kind == "group":
        if sys.version_info < (3, 11):
            pytest.skip("no groups before Python 3.11")
        error = ExceptionGroup("several", [ValueError("x" * 1_000_000)])  # noqa: F821
    cluster, recorder, letters = Cluster(records=10), Recorder(), Letters()
    recorder.errors[5] = [error] * 3
    async with running(cluster, recorder.handle, letters) as it:
        await until(lambda: len(recorder.done) == 9)
        await it.stop()
    assert letters.offsets == [5]
    lines = [logging.Formatter().format(each) for each in caplog.records]
    assert 500 < max(map(len, lines)) < 50_000


class Odd(Exception):
    """An exception some of whose attributes raise. Each is a legal class."""


class OddTruth(Odd):
    def __bool__(self) -> bool:
        raise RuntimeError("bool")


class OddLength(Odd):
    def __len__(self) -> int:
        raise RuntimeError("len")


class OddAttributes(Odd):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class OddCause(Odd):
    @property
    def __cause__(self) -> Any:
        raise RuntimeError("cause")


class OddNotes(Odd):
    def __init__(self, notes: Any) -> None:
        self.__notes__ = notes


class OddNote:
    def __str__(self) -> str:
        raise RuntimeError("note")


def caused_by(cause: BaseException) -> BaseException:
    error = ValueError("bad")
    error.__cause__ = cause
    return error


ODD = [OddTruth(), OddLength(), OddAttributes(), OddCause(), *map(OddNotes, [5, None, [OddNote()], "text"])]


@pytest.mark.parametrize("quote_records", [True, False])
@pytest.mark.parametrize("caused", [False, True], ids=["itself", "cause"])
@pytest.mark.parametrize("odd", range(len(ODD)))
async def test_any_exception_is_retried_and_becomes_a_dead_letter(
    odd: int, caused: bool, quote_records: bool, caplog: pytest.LogCaptureFixture
) -> None:
    error = caused_by(ODD[odd]) if caused else ODD[odd]
    cluster, recorder, letters = Cluster(records=10), Recorder(), Letters()
    recorder.errors[5] = [error] * 3
    async with running(cluster, recorder.handle, letters) as it:
        await until(lambda: len(recorder.done) == 9 or it.task.done())
        await it.stop()
    assert letters.offsets == [5]
    assert letters.attempts == [3]
    headers = dict(letters.headers[0])
    kind = f"{type(error).__module__}.{type(error).__qualname__}".encode()
    assert headers["kafka_dlt-exception-fqcn"] == kind
    assert b"in fail" in (headers["kafka_dlt-exception-stacktrace"] or b"")
    lines = [JsonFormatter(quote_records=quote_records).format(each) for each in caplog.records]
    assert any(type(error).__qualname__ in line and "in fail" in line for line in lines)


async def test_an_odd_exception_that_stops_the_processor_is_logged() -> None:
    for error in [*ODD, *map(caused_by, ODD)]:
        recorder = Recorder()
        recorder.errors[5] = [error]
        async with running(
            Cluster(records=10), recorder.handle, policy=ErrorPolicy.of(stop_on=[Exception], retry_on=[])
        ) as it:
            failed = await it.failed()
        assert isinstance(failed, HandlerFailed)
        record = logging.makeLogRecord({"msg": "stopped", "exc_info": (type(failed), failed, failed.__traceback__)})
        assert "HandlerFailed" in JsonFormatter().format(record)


def test_a_cause_that_is_false_is_in_the_chain_of_an_error() -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    cause = Empty("x" * 1_000_000)
    assert list(error_chain(caused_by(cause)))[1:] == [cause]


async def test_a_record_that_a_sink_fenced_is_no_dead_letter() -> None:
    cluster, recorder, letters = Cluster(records=10), Recorder(), Letters()
    recorder.errors[5] = [Fenced("the owner with fence 9 has begun since")] * 3
    async with running(cluster, recorder.handle, letters) as it:
        assert isinstance(await it.failed(), HandlerFailed)
    assert letters.records == []
    assert cluster.committed == {PARTITION: 5}


async def test_a_batch_that_a_sink_has_stored_in_part_makes_no_dead_letters() -> None:
    """Its handler writes record by record, and fails once: a redrive would store the first effects twice."""
    cluster, letters, calls = Cluster(records=8), Letters(), 0

    async def handle(batch: Any) -> None:
        nonlocal calls
        calls += 1
        raise ConnectionError("once") if calls == 1 else AlreadyStored(PARTITION, 0, 3)

    async with running(cluster, handle, letters, by_batch=True) as it:
        assert isinstance(await it.failed(), AlreadyStored)
    assert letters.records == []
    assert calls == 2
    assert cluster.committed.get(PARTITION, 0) == 0


async def test_a_batch_that_fails_for_good_becomes_dead_letters_as_a_whole() -> None:
    cluster, letters, sizes = Cluster(records=8), Letters(), []

    async def handle(batch: Any) -> None:
        if batch.base_offset == 0:
            raise ValueError("poison")
        sizes.append(len(batch))

    async with running(cluster, handle, letters, by_batch=True):
        await until(lambda: sizes == [4])
    assert letters.offsets == [0, 1, 2, 3]


async def test_a_long_error_is_cut_before_it_is_logged_and_written(caplog: pytest.LogCaptureFixture) -> None:
    cluster, letters = Cluster(records=1), Letters()

    def handle(record: Record) -> None:
        try:
            raise ValueError("inner" * 1_000_000)
        except ValueError as cause:
            raise RuntimeError("x" * 5_000_000) from cause

    async with running(cluster, handle, letters, retries=Retries(1, 0.0)):
        await until(lambda: letters.offsets == [0])
    shown = caplog.text
    assert "RuntimeError" in shown
    assert len(shown) < 100_000
    error = ValueError("y" * 5_000_000)
    headers = headers_of(Record("t", 0, 0, 0, 0, None, b"", []), "g", error, 1)
    assert sum(len(data or b"") for _, data in headers) < 10_000
    assert dict(headers)["kafka_dlt-exception-fqcn"] == b"builtins.ValueError"


class WithoutClass(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_an_exception_that_cannot_be_asked_for_its_class_is_retried_and_becomes_a_dead_letter(kind: str) -> None:
    letters, calls = Letters(), 0

    def fail(record: Record) -> None:
        nonlocal calls
        calls += 1
        raise WithoutClass

    async def handle(record: Record) -> None:
        fail(record)

    async with running(Cluster(records=1), handle if kind == "coroutine" else fail, letters) as it:
        await until(lambda: letters.offsets or it.task.done())
        await it.stop()
    assert (letters.offsets, calls) == ([0], 3)
    assert b"WithoutClass" in (dict(letters.headers[0])["allocator.error"] or b"")


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_a_handler_that_returns_a_future_is_rejected_at_once(kind: str) -> None:
    result: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def handle(record: Record) -> Any:
        return result

    async with running(Cluster(), handle if kind == "coroutine" else lambda record: result, Letters()) as it:
        error = await it.failed()
    assert "returned a future, whose work may not be done" in str(error)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_a_handler_that_returns_an_awaitable_is_rejected_at_once(kind: str) -> None:
    async def work() -> None: ...

    async def handle(record: Record) -> Any:
        return work()

    async with running(Cluster(), handle if kind == "coroutine" else lambda record: work(), Letters()) as it:
        error = await it.failed()
    assert "returned an awaitable, so nothing was done" in str(error)


def generate(record: Any) -> Any:
    yield record


async def generate_async(record: Any) -> Any:
    yield record


class Generates:
    def __call__(self, record: Any) -> Any:
        yield record


@pytest.mark.parametrize(
    "function", [generate, generate_async, Generates(), functools.partial(generate), functools.partial(Generates())]
)
def test_a_generator_function_is_refused_as_a_handler_before_the_start(function: Any) -> None:
    with pytest.raises(ConfigError, match="is a generator function"):
        Handler("test", function)


async def test_a_plain_handler_that_returns_a_generator_is_rejected_at_once() -> None:
    cluster = Cluster()
    async with running(cluster, lambda record: generate(record), Letters()) as it:
        error = await it.failed()
    assert "returned a generator, so nothing was done" in str(error)
    assert cluster.committed == {PARTITION: 0}


WRAPPED: dict[str, Callable[[Produce], Any]] = {
    "deque": lambda result: deque([result]),
    "set": lambda result: {result},
    "dict": lambda result: {1: result},
    "dict_values": lambda result: {1: result}.values(),
    "list": lambda result: [[[[[[result]]]]]],
    "tuple": lambda result: ({"results": [result]},),
    "map": lambda result: map(str, [result]),
    "chain": lambda result: itertools.chain([result]),
    "list_iterator": lambda result: iter([result]),
    "list_reverseiterator": lambda result: reversed([result]),
    "enumerate": lambda result: enumerate([result]),
    "dict_keys": lambda result: {result: 1}.keys(),
    "UserList": lambda result: UserList([result]),
    "ChainMap": lambda result: ChainMap({result: 1}),
    "mappingproxy": lambda result: MappingProxyType({1: result}),
    "Reads": lambda result: Reads([result]),
    "list with generator": lambda result: [generate(result)],
}


class Reads:
    """An iterator of the user."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def __iter__(self) -> Reads:
        return self

    def __next__(self) -> Any:
        if not self._results:
            raise StopIteration
        return self._results.pop()


class Cursor(Reads):
    """Like the cursor of a database, whose statement was executed."""

    def __next__(self) -> Any:
        raise AssertionError("reading has effects")

    def close(self) -> None: ...


class Lazy(Sequence[Any]):
    """Like a result set whose connection is closed."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("reading has effects")

    def __len__(self) -> int:
        raise AssertionError("reading has effects")


LOOP: list[Any] = []
LOOP.append(LOOP)
DEEP: list[Any] = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
@pytest.mark.parametrize("wrapped", WRAPPED)
async def test_results_in_another_collection_than_a_flat_list_are_refused(kind: str, wrapped: str) -> None:
    cluster = Cluster()

    def work(record: Any) -> Any:
        return WRAPPED[wrapped](Produce("results", record.value))

    async def handle(record: Any) -> Any:
        return work(record)

    async with running(cluster, handle if kind == "coroutine" else work, Letters()) as it:
        error = await it.failed()
    assert f"returned a {wrapped}" in str(error)
    assert cluster.committed == {PARTITION: 0}


IGNORED = [[], {}, {"rows": [1, (2, "x")]}, deque(), Cursor([]), b"bytes", UserString("text"), [[], {1}], LOOP]


@pytest.mark.parametrize("result", [*IGNORED, pytest.param(DEEP, id="deep"), Lazy(), [Lazy()]])
async def test_other_results_of_a_handler_are_ignored(result: Any) -> None:
    handled: list[int] = []

    async def handle(record: Any) -> Any:
        handled.append(record.offset)
        return result

    async with running(Cluster(), handle, Letters()):
        await until(lambda: handled == list(range(10)))


class Unreadable(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Final(BaseException):
    pass


def plain_and_coroutine(function: Callable[[Record], None]) -> list[Any]:
    async def coroutine(record: Record) -> None:
        await asyncio.sleep(0)
        function(record)

    return [function, coroutine]


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, SystemExit, Final, Unreadable])
async def test_an_error_is_retried_or_stops_the_processor_and_names_the_record(
    kind: type[BaseException], plain: bool
) -> None:
    cluster, recorder, letters = Cluster(records=4), Recorder(), Letters()
    recorder.errors[1] = [kind()]
    function = plain_and_coroutine(recorder.handle_plain)[not plain]
    async with running(cluster, function, letters) as it:
        if kind in (asyncio.CancelledError, Unreadable):
            await until(lambda: len(recorder.done) == 4)
            await it.stop()
            assert recorder.offsets() == [0, 1, 2, 3]
        else:
            error = await it.failed()
            assert isinstance(error, HandlerFailed)
            assert f"failed once at t:0 offset 1: {kind.__name__}" in str(error)
            assert recorder.offsets() == [0]
    assert letters.offsets == []
    assert cluster.committed == {PARTITION: len(recorder.done)}


@pytest.mark.parametrize("kind", [SystemExit, Final, Unreadable])
async def test_a_listed_error_becomes_a_dead_letter_also_if_it_would_end_the_process(kind: type[BaseException]) -> None:
    cluster, recorder, letters = Cluster(records=4), Recorder(), Letters()
    recorder.errors[1] = [kind()]
    async with running(cluster, recorder.handle_plain, letters, policy=ErrorPolicy.of(dead_letter_on=[kind])) as it:
        await until(lambda: len(recorder.done) == 3)
        await it.stop()
    assert letters.offsets == [1]
    assert cluster.committed == {PARTITION: 4}


async def test_a_keyboard_interrupt_of_a_coroutine_counts_as_the_handlers_where_ctrl_c_raises_none() -> None:
    cluster, recorder, letters = Cluster(records=4), Recorder(), Letters()
    recorder.errors[1] = [KeyboardInterrupt()]
    policy = ErrorPolicy.of(dead_letter_on=[KeyboardInterrupt])
    async with running(cluster, recorder.handle, letters, policy=policy, catches_interrupts=True) as it:
        await until(lambda: len(recorder.done) == 3)
        await it.stop()
    assert letters.offsets == [1]
    assert cluster.committed == {PARTITION: 4}


@pytest.mark.parametrize("error", [BrokerError("moved", retriable=True), OffsetOutOfRange("t", 0, 4, "gone")])
async def test_an_error_of_the_consumer_stops_the_processor_unless_it_may_pass(error: AllocatorError) -> None:
    """Before it stops, it drains and commits."""
    cluster, recorder = Cluster(records=4), Recorder()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: len(recorder.done) == 4)
        it.source.fail_fetching(error)
        if error.retriable:
            cluster.logs[PARTITION].append(Record("t", 0, 4, 0, 0, b"0", b"4", []))
            await until(lambda: len(recorder.done) == 5)
            await it.stop()
        else:
            assert await it.failed() is error
    assert cluster.committed == cluster.ends()
    assert it.source.closed


# -- commits -----------------------------------------------------------------------------------------------------


async def test_a_failed_last_commit_is_an_error() -> None:
    cluster, recorder = Cluster(records=4), Recorder()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: len(recorder.done) == 4)
        it.source.commit_error = BrokerError("down", retriable=True)
        it.processor.stop()
        error = await it.failed()
    assert "the last commit failed" in str(error)


# -- rebalances --------------------------------------------------------------------------------------------------


class Tenth:
    """A handler that records offsets and waits in its tenth call."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.go_on = asyncio.Event()

    async def __call__(self, record: Record) -> None:
        self.offsets.append(record.offset)
        if len(self.offsets) == 10:
            await self.go_on.wait()


async def test_records_of_a_deleted_topic_are_handled_and_never_committed() -> None:
    """Committing offsets of the deleted topic would skip the first records of the new one."""
    cluster, handler = Cluster(records=20), Tenth()
    async with running(cluster, handler, commit_interval_s=0.01) as it:
        await until(lambda: len(handler.offsets) == 10)
        await until(lambda: cluster.committed)
        read = it.source.positions[PARTITION]
        it.source.recreate(PARTITION, 6)
        before = len(cluster.commits)
        handler.go_on.set()
        await until(lambda: cluster.committed == {PARTITION: 6})
        assert handler.offsets == [*range(read), *range(6)]
        assert all(commit[PARTITION] <= 6 for commit in cluster.commits[before:])
        await it.stop()


async def test_a_partition_that_leaves_after_its_topic_was_replaced_commits_nothing_of_the_old_one() -> None:
    cluster, handler = Cluster(records=20), Tenth()
    async with running(cluster, handler) as it:
        await until(lambda: len(handler.offsets) == 10)
        it.source.recreate(PARTITION, 6)
        revoking = asyncio.ensure_future(it.source.revoke([PARTITION]))
        await until(lambda: "on_partitions_revoked" in it.source.events)
        handler.go_on.set()
        await revoking
        assert cluster.commits == [{PARTITION: 0}], "the start of the new one"


async def test_a_partition_that_returns_continues_at_the_offset_of_the_last_owner() -> None:
    cluster, recorder = Cluster(records=40), Recorder()
    (partition,) = cluster.partitions
    recorder.holds[5] = asyncio.Event()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: recorder.tried[partition, 5] == 1)
        await it.source.lose()
        cluster.committed[partition] = 30
        await it.source.assign([partition])
        await until(lambda: recorder.offsets()[-1] == 39)
    assert recorder.offsets() == [0, 1, 2, 3, 4, *range(30, 40)]


async def test_a_call_has_a_hold_and_a_task_that_it_has_started_has_none_after_it() -> None:
    """Otherwise `may_act` would answer for that call for ever."""
    found: list[Hold | None] = []
    go_on, tasks = asyncio.Event(), []

    async def later() -> None:
        await go_on.wait()
        found.append(Hold.of_this_context())

    async def handle(record: Record) -> None:
        found.append(Hold.of_this_context())
        tasks.append(asyncio.ensure_future(later()))

    async with running(Cluster(records=1), handle) as it:
        await until(lambda: tasks)
        await it.stop()
    go_on.set()
    await tasks[0]
    assert found[0] is not None
    assert found[0].tenure.partition == PARTITION
    assert found[1] is None


async def test_commits_go_on_after_a_log_was_truncated() -> None:
    cluster, recorder = Cluster(records=20), Recorder()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: len(recorder.done) == 20)
        longer = Cluster(records=30)
        cluster.logs[PARTITION] = longer.logs[PARTITION]
        it.source.state.assignment[PARTITION].cut_to(OffsetAndMetadata(15, "", 0))
        it.source.wake()
        await until(lambda: len(recorder.done) == 35)
        await it.stop()
    assert recorder.offsets()[20:] == list(range(15, 30))
    assert cluster.committed == {PARTITION: 30}


async def test_a_lost_partition_is_cancelled_and_nothing_of_it_committed() -> None:
    cluster, recorder = Cluster(records=20), Recorder()
    recorder.holds[2] = asyncio.Event()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: recorder.offsets() == [0, 1] and recorder.running == 1)
        await it.source.lose()
        assert recorder.cancelled == [2]
        assert recorder.running == 0
        await it.stop()
    assert cluster.commits == []


async def test_a_partition_that_returns_waits_for_a_thread_that_still_works_on_it() -> None:
    cluster, release = Cluster(records=4), threading.Event()
    (partition,) = cluster.partitions
    inside: list[int] = []
    most: list[int] = []

    def handle(record: Record) -> None:
        inside.append(record.offset)
        most.append(len(inside))
        if record.offset == 1:
            release.wait(DEADLINE_S)
        inside.remove(record.offset)

    async with running(cluster, handle, drain_timeout_s=0.02) as it:
        await until(lambda: inside == [1])
        await it.source.lose()
        await it.source.assign([partition])  # this lane only waits, and is lost again
        await until(lambda: partition in positions(it.source))
        await it.source.lose()
        assert it.processor.stuck == {partition}
        await it.source.assign([partition])
        await until(lambda: it.source.positions[partition] == 4)
        assert inside == [1]
        release.set()
        await until(lambda: positions(it.source) == {partition: 4})
        assert it.processor.stuck == frozenset()
    assert set(most) == {1}


async def test_a_record_that_waits_for_its_retry_does_not_delay_a_revocation() -> None:
    cluster, recorder = Cluster(records=4), Recorder()
    (partition,) = cluster.partitions
    recorder.errors[1] = [ValueError()] * 9
    async with running(cluster, recorder.handle, retries=Retries(5, 60.0, 60.0)) as it:
        await until(lambda: recorder.tried[partition, 1] == 1)
        await asyncio.wait_for(it.source.revoke([partition]), 30)
    assert cluster.committed == {partition: 1}


async def test_no_record_is_handled_while_the_lease_is_in_doubt() -> None:
    cluster, recorder = Cluster(records=8), Recorder()
    recorder.holds[1] = asyncio.Event()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: recorder.running == 1 and len(recorder.done) == 1)
        it.source.active = False
        recorder.holds[1].set()
        await until(lambda: len(recorder.done) == 2)
        await another_handles_all()
        assert recorder.offsets() == [0, 1]
        it.source.active = True
        it.source.wake()
        await until(lambda: len(recorder.done) == 8)


# -- the end -----------------------------------------------------------------------------------------------------


async def test_stopping_finishes_running_calls_then_commits_then_leaves() -> None:
    cluster, recorder = Cluster(records=20), Recorder()
    recorder.holds[2] = asyncio.Event()
    async with running(cluster, recorder.handle) as it:
        await until(lambda: recorder.running == 1 and len(recorder.done) == 2)
        it.processor.stop()
        await another_handles_all()
        assert not it.task.done()
        recorder.holds[2].set()
        await it.stop()
    assert recorder.offsets() == [0, 1, 2]
    assert cluster.committed == {PARTITION: 3}
    assert it.source.events == ["start", "on_partitions_assigned", "commit", "on_partitions_revoked", "close"]


@pytest.mark.parametrize("outcome", ["dead letter", "skipped", "retried", "no letters"])
async def test_a_record_whose_last_attempt_fails_while_it_stops_gets_no_other(
    outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next owner would call the handler again."""
    caplog.set_level(logging.INFO)
    cluster, letters, called, stopped = Cluster(records=1), Letters(), asyncio.Event(), asyncio.Event()

    async def handle(record: Record) -> None:
        called.set()
        await stopped.wait()
        raise ValueError("no")

    options: dict[str, Any] = {"policy": ErrorPolicy.of(skip_on=[ValueError])} if outcome == "skipped" else {}
    options["retries"] = Retries(3 if outcome == "retried" else 0)
    async with running(cluster, handle, None if outcome == "no letters" else letters, **options) as it:
        await called.wait()
        it.processor.stop()
        await until(lambda: "partitions drain" in caplog.text)
        stopped.set()
        await it.stop()
    assert letters.offsets == ([0] if outcome == "dead letter" else [])
    assert cluster.committed.get(PARTITION, 0) == (outcome in ("dead letter", "skipped"))


async def test_a_second_cancellation_while_a_commit_hangs_ends_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source, recorder = FakeSource(Cluster(records=3)), Recorder()
    before = asyncio.all_tasks()
    work = asyncio.ensure_future(Processor(Handler("test", recorder.handle), Handling()).run(source))
    await until(lambda: recorder.offsets() == [0, 1, 2])
    source.may_send.clear()
    work.cancel()
    await until(lambda: "partitions drain" in caplog.text)
    work.cancel()
    source.may_send.set()
    await asyncio.wait({work}, timeout=DEADLINE_S)
    assert work.cancelled()
    assert source.closed
    await until(lambda: asyncio.all_tasks() == before)


class Choices:
    """A `ChoiceWatcher` that calls a function right after its choice was read for the first time."""

    def __init__(self, after_first_read: Callable[[], None]) -> None:
        self.choice = ClusterChoice("first")
        self.changed = asyncio.Event()
        self._after_first_read: Callable[[], None] | None = after_first_read

    @property
    def current(self) -> ClusterChoice:
        if self._after_first_read is not None:
            asyncio.get_running_loop().call_soon(self._after_first_read)
            self._after_first_read = None
        return self.choice

    async def start(self, timeout_s: float | None) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.parametrize("what", ["stop", "other brokers"])
async def test_a_stop_or_a_new_choice_before_the_processor_starts_counts(what: str) -> None:
    cluster, recorder, created = Cluster(records=3), Recorder(), []

    def change() -> None:
        if what == "stop":
            daemon.stop()
        else:
            choices.choice = ClusterChoice("second")
            choices.changed.set()

    def create(choice: ClusterChoice, listener: object) -> Any:
        created.append(choice.brokers)
        return FakeSource(cluster)

    choices: Any = Choices(change)
    daemon = Daemon(create, Handler("test", recorder.handle), Handling(), choices)
    work = asyncio.ensure_future(daemon.run())
    if what != "stop":
        await until(lambda: recorder.offsets() == [0, 1, 2])
        daemon.stop()
    await asyncio.wait_for(work, DEADLINE_S)
    assert created[-1] == ("first" if what == "stop" else "second")


@pytest.mark.parametrize("plain", [False, True])
async def test_a_partition_moves_when_its_call_has_ended_and_others_move_at_once(plain: bool) -> None:
    """However long the call outlasts the time to drain. A cancelled call does not count, even if it returns."""
    cluster, release, inside = Cluster(partitions=3, records=4), threading.Event(), threading.Event()
    slow = cluster.partitions[0]
    ended: list[int] = []

    def begin(record: Record) -> bool:
        if record.partition == 0 and record.offset == 2:
            inside.set()
            return True
        return False

    async def swallow(record: Record) -> None:
        while begin(record) and not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        ended.append(record.partition)

    def block(record: Record) -> None:
        if begin(record):
            release.wait(3 * DEADLINE_S)
        ended.append(record.partition)

    async with running(cluster, block if plain else swallow, drain_timeout_s=0.02) as it:
        await until(lambda: inside.is_set() and len(ended) == 10)
        revoking = asyncio.ensure_future(it.source.revoke(cluster.partitions))
        await until(lambda: set(it.source.positions) == {slow})
        assert cluster.committed == dict.fromkeys(cluster.partitions[1:], 4)
        await until(lambda: it.processor.stuck == {slow})
        assert not revoking.done()
        release.set()
        await asyncio.wait_for(revoking, DEADLINE_S)
        assert cluster.committed == {**cluster.ends(), slow: 3 if plain else 2}
        await it.stop()


async def test_a_stop_after_a_loss_waits_for_the_cancelled_calls_without_an_error() -> None:
    cluster, cancelled, may_end = Cluster(records=4), asyncio.Event(), asyncio.Event()
    inside = asyncio.Event()

    async def handle(record: Record) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await may_end.wait()

    async with running(cluster, handle) as it:
        await inside.wait()
        lost = asyncio.ensure_future(it.source.lose())
        await cancelled.wait()
        it.processor.stop()
        await another_handles_all()
        may_end.set()
        await asyncio.wait({it.task}, timeout=DEADLINE_S)
        assert it.task.exception() is None
        await lost


@pytest.mark.parametrize("kind", ["plain", "swallows", "heeds"])
async def test_stopping_waits_for_drain_timeout_s_once_and_names_the_call_that_was_cut_off(kind: str) -> None:
    cluster, release, inside = Cluster(partitions=2, records=4), threading.Event(), threading.Event()
    quick = cluster.partitions[1]

    def block(record: Record) -> None:
        if record.partition == 0:
            inside.set()
            release.wait(3 * DEADLINE_S)

    async def wait(record: Record) -> None:
        while record.partition == 0 and not release.is_set():
            inside.set()
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if kind == "heeds":
                    raise

    async with running(cluster, block if kind == "plain" else wait, drain_timeout_s=1.0) as it:
        try:
            await until(lambda: inside.is_set() and positions(it.source).get(quick) == 4)
            began = time.monotonic()
            it.processor.stop()
            error = await it.failed()
            assert 0.9 < time.monotonic() - began < 5.0 + 2 * processor.HEED_S
            assert isinstance(error, HandlerCutOff)
            assert "handler 'test' did not end within drain_timeout_s = 1 at t:0 offset 0;" in str(error)
            stuck = frozenset() if kind == "heeds" else {cluster.partitions[0]}
            assert error.running == it.processor.stuck == stuck
            assert it.source.positions.keys() >= stuck, "the partition is not released"
            assert cluster.committed == {cluster.partitions[0]: 0, quick: 4}
        finally:
            release.set()
        await until(lambda: not it.processor.stuck and not it.source.positions)
