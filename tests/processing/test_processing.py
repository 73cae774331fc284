"""A processor with ordering by key on a consumer in memory: done records, limits, failures, processes."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from allocator.core.consumer.commit_metadata import IDS_CHARACTERS, STAMP_CHARACTERS
from allocator.core.subscription.done import DoneSet
from allocator.core.subscription.loss import topic_of_offset
from allocator.errors import ConfigError, DeserializationError, HandlerCutOff, HandlerFailed
from allocator.handlers.policy import Action, ErrorPolicy, Retries
from allocator.handlers.results import Produce
from allocator.handlers.window import Window, fingerprint
from allocator.types import Record
from tests.consumer.fake_source import Cluster, FakeSource, positions
from tests.processing import engine
from tests.processing.engine import PARTITION, Letters, another_handles_all, until

DONE_CHARACTERS = 500  # fewer than a window with 1,000 records in hand needs
running = functools.partial(engine.running, ordering="key", batch_size=50)


class Value(bytes):
    log: Fleeting

    def __del__(self) -> None:
        self.log.alive -= 1


class Fleeting(Sequence[Record]):
    """A log that does not keep its records: each read returns new ones, and `alive` counts those that are in use."""

    def __init__(self, count: int, keys: int) -> None:
        self._count, self._keys = count, keys
        self.alive = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: Any) -> Any:
        return [self._record(offset) for offset in range(self._count)[rows]]

    def _record(self, offset: int) -> Record:
        value = Value(b"%d" % offset)
        value.log = self
        self.alive += 1
        return Record(*PARTITION, offset, 0, 0, b"%d" % (offset % self._keys), value, [])


def fleeting(count: int, keys: int) -> tuple[Cluster, Fleeting]:
    cluster, log = Cluster(), Fleeting(count, keys)
    cluster.logs[PARTITION] = log
    return cluster, log


# -- windows ----------------------------------------------------------------------------------------------------


async def test_records_without_a_key_wait_for_no_other() -> None:
    """Producers spread records without a key over the partitions, so no user can rely on their order."""
    cluster = Cluster(records=6)
    cluster.logs[PARTITION] = [Record("t", 0, n, 0, 0, None, b"", []) for n in range(6)]
    held, done = asyncio.Event(), []

    async def handle(record: Record) -> None:
        if record.offset == 0:
            await held.wait()
        done.append(record.offset)

    async with running(cluster, handle):
        await until(lambda: len(done) == 5)
        held.set()


async def test_a_stuck_key_delays_no_other_key_and_costs_bounded_memory() -> None:
    (cluster, log), held = fleeting(20_000, keys=2000), asyncio.Event()
    done: list[int] = []
    most = 0

    async def handle(record: Record) -> None:
        if record.offset % 2000 == 0:
            await held.wait()
        done.append(record.offset)

    async with running(cluster, handle, in_hand_records=100, in_hand_bytes=15_000, concurrency=8) as it:
        while len(done) < 20_000 - 10:
            for _ in range(20):
                await asyncio.sleep(0)
            most = max(most, log.alive)
        assert positions(it.source) == {PARTITION: 0}
        held.set()
        await it.stop()
    assert most <= 100 + 50, "records in hand, and a batch that waits"
    assert cluster.committed == {PARTITION: 20_000}


async def test_batches_release_their_bytes_when_few_records_are_left() -> None:
    cluster, held = Cluster(records=3000, keys=100), asyncio.Event()
    done: list[int] = []

    async def handle(record: Record) -> None:
        if record.key == b"7":
            await held.wait()
        done.append(record.offset)

    # each batch of 5,000 bytes has a record of the stuck key: 30,000 bytes would be full after six of them
    async with running(cluster, handle, in_hand_bytes=30_000, batch_size=50) as it:
        await until(lambda: len(done) == 2970)
        held.set()
        await it.stop()
    assert cluster.committed == {PARTITION: 3000}


async def test_records_of_a_revoked_partition_do_not_count_in_the_window() -> None:
    """Otherwise their bytes would block the batches behind a stuck record."""
    cluster = Cluster(partitions=2, records=100, keys=10)
    gone, stays = cluster.partitions
    done: list[int] = []

    async def handle(record: Record) -> None:
        if record.partition == gone.partition or record.key == b"7":
            await asyncio.Event().wait()
        done.append(record.offset)

    # a batch has 1,000 bytes
    options = {"in_hand_bytes": 2_500, "batch_size": 10, "concurrency": 20, "drain_timeout_s": 0.01}
    async with running(cluster, handle, **options) as it:
        await until(lambda: {gone, stays} <= positions(it.source).keys())
        await it.source.revoke([gone])
        await until(lambda: len(done) == 90, "the other keys of the partition that stays")


# -- handled records ---------------------------------------------------------------------------------------------------


class Half:
    """Handles all keys but one, which is stuck."""

    def __init__(self, stuck: bytes = b"3") -> None:
        self.stuck = stuck
        self.done: list[int] = []
        self.held = asyncio.Event()

    async def __call__(self, record: Record) -> None:
        if record.key == self.stuck:
            await self.held.wait()
        self.done.append(record.offset)


async def leave_one_key(cluster: Cluster) -> Half:
    """Leaves the progress of a member that handled nine of ten keys, committed, and was killed."""
    half = Half()
    async with running(cluster, half, commit_interval_s=0.005) as it:
        await until(lambda: len(half.done) == 90 and sum(e - f for f, e in done_runs(cluster)) == 87)
        it.source.commit_error = ConfigError("killed")
        await it.source.lose()
    return half


def done_runs(cluster: Cluster) -> tuple[tuple[int, int], ...]:
    found = cluster.beyond.get(PARTITION)
    return () if found is None else found.runs


@pytest.mark.parametrize("ordering", ["key", "partition", "none"])
async def test_the_next_member_handles_only_records_that_are_not_done(ordering: str) -> None:
    cluster = Cluster(records=100, keys=10)
    await leave_one_key(cluster)
    assert cluster.committed == {PARTITION: 3}
    again: list[int] = []

    async def handle(record: Record) -> None:
        again.append(record.offset)

    async with running(cluster, handle, ordering=ordering) as it:
        await until(lambda: positions(it.source).get(PARTITION) == 100)
        await it.stop()
    assert again == list(range(3, 100, 10))
    assert cluster.committed == {PARTITION: 100}


async def test_done_records_that_are_not_reached_yet_stay_in_every_commit() -> None:
    cluster = Cluster(records=100, keys=10)
    await leave_one_key(cluster)
    before = done_runs(cluster)
    half = Half()
    few = {"in_hand_records": 2, "batch_size": 5, "commit_interval_s": 0.005, "drain_timeout_s": 0.01}
    async with running(cluster, half, **few) as it:
        await until(lambda: positions(it.source).get(PARTITION) == 3)
        await until(lambda: it.source.measures.records_not_repeated)
        with pytest.raises(HandlerCutOff):
            await it.stop()
    assert done_runs(cluster) == before


async def test_a_commit_waits_for_the_automatic_commit_that_is_under_way() -> None:
    """Otherwise the consumer's own commit of an earlier offset would overtake it."""
    cluster = Cluster()

    async def handle(record: Record) -> None: ...

    async with running(cluster, handle, commit_interval_s=0.001) as it:
        it.source.may_send.clear()
        await until(lambda: positions(it.source).get(PARTITION) == 10)
        it.source.seek(PARTITION, 5)
        await until(lambda: positions(it.source).get(PARTITION) == 10)
        committing = asyncio.ensure_future(it.source.commits.commit_done({PARTITION}))
        for _ in range(100):
            await asyncio.sleep(0)
        assert cluster.commits == []
        it.source.may_send.set()
        await committing
        assert cluster.commits[-1] == {PARTITION: 10}
        await it.stop()


@pytest.mark.parametrize("what", ["another record", "no record", "a later epoch"])
async def test_records_done_in_another_log_are_handled(what: str) -> None:
    """The topic was created again, compacted, or cut by an unclean election; offsets alone would skip records."""
    cluster = Cluster(records=100, keys=10)
    cluster.logs[PARTITION] = [_at_epoch(record, 4) for record in cluster.logs[PARTITION]]
    await leave_one_key(cluster)
    assert cluster.beyond[PARTITION].epoch == 4
    log = cluster.logs[PARTITION]
    if what == "another record":
        log[3] = Record("t", 0, 3, 7, 0, b"3", b"other", [], 4)
    elif what == "no record":
        cluster.beyond[PARTITION] = DoneSet(2, cluster.beyond[PARTITION].runs, 4, fingerprint(log[2]))
        cluster.committed[PARTITION] = 2
        log[2] = Record("t", 0, 2, 7, 0, b"2", b"compacted", [], 4)
    else:
        log[50:] = [_at_epoch(record, 5) for record in log[50:]]
    again: list[int] = []

    async def handle(record: Record) -> None:
        again.append(record.offset)

    async with running(cluster, handle) as it:
        await until(lambda: positions(it.source).get(PARTITION) == 100)
    if what == "a later epoch":
        assert sorted(again) == [*range(3, 50, 10), *range(50, 100)]
    else:
        assert sorted(again) == list(range(2 if what == "no record" else 3, 100))


def _at_epoch(record: Record, epoch: int) -> Record:
    return Record("t", 0, record.offset, record.timestamp, 0, record.key, record.value, [], epoch)


async def test_a_partition_that_returns_continues_with_the_records_that_are_not_done() -> None:
    cluster, half = Cluster(records=100, keys=10), Half()
    async with running(cluster, half, drain_timeout_s=0.01) as it:
        await until(lambda: len(half.done) == 90)
        await it.source.revoke([PARTITION])
        assert cluster.committed == {PARTITION: 3}
        await it.source.assign([PARTITION])
        half.held.set()
        await until(lambda: len(half.done) == 100)
        await it.stop()
    assert sorted(half.done) == list(range(100))
    assert cluster.committed == {PARTITION: 100}


async def test_the_position_of_a_partition_that_returns_names_its_topic() -> None:
    """If the topic was created again meanwhile, the consumer starts at its first record."""
    cluster, done = Cluster(records=10), []
    async with running(cluster, done.append) as it:
        it.source.topics[PARTITION] = topic_id = uuid.UUID(int=1)
        await until(lambda: len(done) == 10)
        await it.source.revoke([PARTITION])
        it.source.commit_error = None
        await it.source.assign([PARTITION])
        point = it.source.state.position(PARTITION)
        assert point is not None
        assert (point.offset, topic_of_offset(point)) == (10, topic_id)


@pytest.mark.parametrize("kind", ["a seek", "a restart", "a seek of another owner"])
async def test_records_from_a_lower_offset_on_are_handled_again(kind: str) -> None:
    """Also if the partition leaves after a restart and returns, or another owner was set back meanwhile."""
    cluster, done = Cluster(records=30, keys=3), []

    async def handle(record: Record) -> None:
        done.append(record.offset)

    async with running(cluster, handle) as it:
        await until(lambda: len(done) == 30)
        if kind == "a seek":
            it.source.seek(PARTITION, 10)
            it.source.wake()
        else:
            if kind == "a restart":
                it.source.seek(PARTITION, 10)
            await it.source.revoke([PARTITION])
            if kind == "a seek of another owner":
                cluster.committed[PARTITION] = 10
            await it.source.assign([PARTITION])
        await until(lambda: len(done) == 50)
        await it.stop()
    assert sorted(done[30:]) == list(range(10, 30))
    assert cluster.committed == {PARTITION: 30}


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_partition_moves_only_after_the_calls_that_a_seek_replaced(goes_on: bool) -> None:
    """With `goes_on`, a record after the seek waits behind that call."""
    cluster, inside, may_end = Cluster(records=6, keys=1), asyncio.Event(), asyncio.Event()
    done: list[int] = []

    async def handle(record: Record) -> None:
        if record.offset == 5:
            inside.set()
            await may_end.wait()
        done.append(record.offset)

    async with running(cluster, handle, drain_timeout_s=30.0) as it:
        await inside.wait()
        it.source.seek(PARTITION, 3)
        if goes_on:
            it.source.wake()
            await until(lambda: PARTITION in positions(it.source))
        release = asyncio.ensure_future(it.source.revoke([PARTITION]))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not release.done(), "the next owner would begin while the handler works"
        may_end.set()
        await release
        assert done == [0, 1, 2, 3, 4, 5]
        await it.stop()


@pytest.mark.parametrize("ordering", ["none", "key", "partition"])
@pytest.mark.parametrize("at_once", [False, True])
async def test_records_of_a_paused_partition_are_freed_when_it_moves(ordering: str, at_once: bool) -> None:
    """`at_once`: the partition moves before the handler's tasks have seen that it is paused."""
    cluster, log = fleeting(50, keys=50)

    async def handle(record: Record) -> None:
        raise AssertionError("it is paused")

    class PauseAtTake(asyncio.Event):
        def set(self) -> None:
            it.source.pause(PARTITION)
            super().set()

    async with running(cluster, handle, ordering=ordering) as it:
        it.source.taken = PauseAtTake()
        for _ in range(3):
            await it.source.taken.wait()
            it.source.taken.clear()
            if not at_once:
                await another_handles_all()
            await it.source.revoke([PARTITION])
            # the feed still refers to the batch that it took last
            await until(lambda: gc.collect() >= 0 and log.alive <= 50)
            await it.source.assign([PARTITION])
        await it.stop()


async def test_the_window_narrows_before_done_records_exceed_the_metadata() -> None:
    cluster, held, rng = Cluster(records=5000, keys=5000), asyncio.Event(), random.Random(3)
    done: list[int] = []
    slow = set(rng.sample(range(5000), 1500))

    async def handle(record: Record) -> None:
        if record.offset in slow:
            await held.wait()
        done.append(record.offset)

    def prepare(source: FakeSource) -> None:
        source.offsets.limit = DONE_CHARACTERS + IDS_CHARACTERS + STAMP_CHARACTERS

    async with running(cluster, handle, concurrency=1000, in_hand_records=1000, prepare=prepare) as it:
        await until(lambda: it.source.measures.windows_narrowed)
        counts: list[int] = [-1]
        while counts[-1] != len(done):
            counts.append(len(done))
            for _ in range(20):
                await asyncio.sleep(0)
        assert len(done) < 3500
        found = it.source.state.assignment[PARTITION].done()[1]
        assert found.encoded(DONE_CHARACTERS)[1], "all of it fits"
        held.set()
        await until(lambda: len(done) == 5000)
        await it.stop()
    assert cluster.committed == {PARTITION: 5000}


async def test_the_window_does_not_narrow_without_metadata() -> None:
    """Without metadata, done records beyond the offset are not committed, so no record waits for their size."""
    cluster, held = Cluster(records=3000, keys=3000), asyncio.Event()
    done: list[int] = []

    async def handle(record: Record) -> None:
        if record.offset == 0:
            await held.wait()
        done.append(record.offset)

    def prepare(source: FakeSource) -> None:
        source.offsets.limit = 96

    async with running(cluster, handle, in_hand_records=100, prepare=prepare) as it:
        await until(lambda: len(done) == 2999)
        assert it.source.measures.windows_narrowed == 0
        held.set()


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_record_that_fails_delays_its_key_alone() -> None:
    cluster, tried, done = Cluster(records=40, keys=4), Counter(), []

    async def handle(record: Record) -> None:
        tried[record.offset] += 1
        if record.offset == 1 and tried[1] < 3:
            assert 5 not in done
            raise ValueError("not yet")
        done.append(record.offset)

    async with running(cluster, handle, retries=Retries(5, 0.05, 0.05)) as it:
        await until(lambda: len(done) == 30)
        assert not any(offset % 4 == 1 for offset in done)
        await until(lambda: len(done) == 40)
        await it.stop()
    assert [offset for offset in done if offset % 4 == 1] == list(range(1, 40, 4))


class Refused(ValueError):
    """Of the handler's own."""


@pytest.mark.parametrize(
    ("lists", "letters", "skipped", "attempts"),
    [
        ({"dead_letter_on": [ValueError]}, [5], 0, 1),
        ({"skip_on": [Refused]}, [], 1, 1),
        ({"dead_letter_on": [ValueError], "skip_on": [Refused]}, [], 1, 1),
        ({"retry_on": [Refused], "dead_letter_on": [ValueError]}, [5], 0, 3),
        ({"retry_on": [KeyError]}, [5], 0, 1),
        ({}, [5], 0, 3),
    ],
)
async def test_the_class_of_an_error_decides(lists: Any, letters: list[int], skipped: int, attempts: int) -> None:
    cluster, tried, topic = Cluster(records=10, keys=3), Counter(), Letters()

    async def handle(record: Record) -> None:
        tried[record.offset] += 1
        if record.offset == 5:
            raise Refused("never")

    async with running(cluster, handle, topic, policy=ErrorPolicy.of(**lists)) as it:
        await until(lambda: positions(it.source).get(PARTITION) == 10)
        assert it.source.measures.records_skipped == skipped
        assert it.source.measures.dead_letters == len(letters)
    assert topic.offsets == letters
    assert tried[5] == attempts


async def test_an_error_in_stop_on_stops_the_processor_and_skips_no_record() -> None:
    cluster, topic = Cluster(records=10, keys=10), Letters()

    async def handle(record: Record) -> None:
        if record.offset == 5:
            raise Refused("never")

    async with running(cluster, handle, topic, policy=ErrorPolicy.of(stop_on=[Refused])) as it:
        await asyncio.wait({it.task}, timeout=30)
        assert isinstance(it.task.exception(), HandlerFailed)
    assert topic.offsets == []
    assert cluster.committed == {PARTITION: 5}


async def test_retries_end_after_their_time() -> None:
    cluster, topic, times = Cluster(records=1), Letters(), []

    async def handle(record: Record) -> None:
        times.append(asyncio.get_running_loop().time())
        raise ValueError

    async with running(cluster, handle, topic, retries=Retries(1000, 0.01, 0.01, limit_s=0.1)):
        await until(lambda: topic.offsets == [0])
    assert len(times) < 1000
    # uvloop counts whole milliseconds
    assert all(at - times[0] < 0.102 for at in times[:-1]), "the last one may begin late"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ValuError", "not a built-in error class"),
        ("no_such_package.Error", "cannot be imported"),
        ("int", "not an error class"),
    ],
)
def test_an_invalid_list_of_error_classes_is_rejected(name: str, says: str) -> None:
    assert ErrorPolicy.of(retry_on=["ValueError", "allocator.errors.BrokerError", "json:JSONDecodeError"])
    assert ErrorPolicy.of(skip_on=["Exception"]).action(ValueError()) is Action.SKIP
    with pytest.raises(ConfigError, match=says):
        ErrorPolicy.of(retry_on=[name])
    with pytest.raises(ConfigError, match="retry_on and skip_on both name ValueError"):
        ErrorPolicy.of(retry_on=[ValueError], skip_on=[ValueError])


class EndsMeanwhile:
    """A unit whose call ends in a thread between two reads of its argument."""

    def __init__(self, record: Record) -> None:
        self._values = [None, record]

    @property
    def argument(self) -> Record | None:
        return self._values.pop() if self._values else None


def test_a_call_that_ends_in_a_thread_while_the_position_is_computed_does_no_harm() -> None:
    record, window = Record("t", 0, 7, 0, 0, None, b"", []), Window(7)
    window.admit(window.open(7, 1, None), [EndsMeanwhile(record)], 8, 1, complete=False)  # type: ignore[list-item]
    assert window.base == 7
    assert window.base == 8


@pytest.mark.parametrize("lost", [True, False])
async def test_a_record_is_given_up_only_while_the_partition_is_owned(lost: bool) -> None:
    """A process that stood still in a call sees its error before it sees the end of its session."""
    cluster, letters, failed = Cluster(records=1), Letters(), asyncio.Event()

    async def fail(record: Record) -> None:
        it.source.active = False
        failed.set()
        raise ValueError("the connection broke meanwhile")

    async with running(cluster, fail, letters, retries=Retries(0)) as it:
        await failed.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert letters.offsets == []
        if lost:
            await it.source.lose()
        it.source.active = True
        it.source.wake()
        await until(lambda: lost or letters.offsets)
        await it.stop()
    assert letters.offsets == ([] if lost else [0])


# -- processes ---------------------------------------------------------------------------------------------------------


def work_in_process(record: Record) -> None:
    """Of this module, so that another process finds it."""
    if record.offset == 2:
        raise Refused(str(os.getpid()))
    if record.offset == 4 and not os.path.exists(os.environ["DIED_FILE"]):
        open(os.environ["DIED_FILE"], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    with open(os.environ["DONE_FILE"], "a") as file:
        file.write(f"{record.offset} {os.getpid()}\n")


def promise_in_process(record: Record) -> Any:
    """Forgets `await`."""

    async def work() -> None: ...

    return work()


def refuse_in_process(record: Record) -> None:
    raise DeserializationError("t", 0, record.offset, "value", ValueError("not a number"))


class Numbered(LookupError):
    """pickle cannot make it again: `args` has one value."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Ending(BaseException):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def raise_in_process(record: Record) -> None:
    class Local(Numbered):
        pass

    class LocalEnding(Ending):
        pass

    raise [Numbered, Local, Ending, LocalEnding][record.offset](4, "x")


class Formatted(Exception):
    """Its text needs an attribute, and another attribute does not pickle."""

    def __init__(self, order: int) -> None:
        super().__init__(order)
        self.order, self.connection = order, threading.Lock()

    def __str__(self) -> str:
        return f"order {self.order} failed"

    def __repr__(self) -> str:
        return f"Formatted(order={self.order})"


class Argless(ValueError):
    @property
    def args(self) -> Any:
        raise AttributeError("args")


Unimportable = type("Unimportable", (Exception,), {"__module__": "extension_part"})
"""As confluent-kafka's errors: the module that the class names cannot be imported."""


def fail_differently(record: Record) -> None:
    class Local(LookupError):
        pass

    if record.offset == 4:
        sys.path.insert(0, os.environ["VENDORED"])
        importlib.import_module(os.environ["VENDORED_MODULE"]).fail()
    raise [Formatted, Argless, Unimportable, Local][record.offset](17)


def fail_in_a_group(record: Record) -> None:
    raise ExceptionGroup("two failed", [Formatted(17), Unimportable("u")])  # type: ignore[name-defined] # noqa: F821


class Order:
    """Its repr has its address, which is another one in each process."""


class OrderFailed(Exception):
    pass


def fail_with_an_order(record: Record) -> None:
    raise OrderFailed(Order())


def fail_unimportably(record: Record) -> None:
    raise Unimportable("u")


def terminate_in_process(record: Record) -> None:
    command = subprocess.Popen(["sleep", "100"])
    command.terminate()
    with open(os.environ["DONE_FILE"], "a") as file:
        file.write(f"{command.wait(60)}\n")


async def test_a_handler_in_a_process_that_only_makes_an_awaitable_is_rejected_at_once() -> None:
    cluster = Cluster(records=3)
    async with running(cluster, promise_in_process, Letters(), workers="processes") as it:
        error = await it.failed()
    assert "returned an awaitable, so nothing was done" in str(error)
    assert cluster.committed == {PARTITION: 0}


async def test_an_error_of_the_library_has_its_class_after_its_way_from_a_process() -> None:
    cluster, letters = Cluster(records=3), Letters()
    policy = ErrorPolicy.of(skip_on=[DeserializationError])
    async with running(cluster, refuse_in_process, letters, workers="processes", policy=policy) as it:
        await until(lambda: positions(it.source).get(PARTITION) == 3)
        await it.stop()
    assert letters.offsets == []


def produce_a_lock(record: Record) -> Any:
    return Produce("results", threading.Lock())  # type: ignore[arg-type]


async def test_a_result_that_cannot_leave_its_process_is_an_error_of_the_handler() -> None:
    letters = Letters()
    async with running(Cluster(records=1), produce_a_lock, letters, workers="processes", retries=Retries(0)) as it:
        await until(lambda: letters.offsets == [0])
        await it.stop()
    assert (dict(letters.headers[0])["allocator.error"] or b"").startswith(b"builtins.TypeError: cannot pickle")


@pytest.mark.parametrize("workers", ["threads", "processes"])
async def test_the_class_of_an_error_decides_in_a_process_too(workers: str) -> None:
    cluster, letters = Cluster(records=4), Letters()
    policy = ErrorPolicy.of(retry_on=[], skip_on=[Numbered], dead_letter_on=[Exception])
    options: dict[str, Any] = {"ordering": "partition", "workers": workers}
    async with running(cluster, raise_in_process, letters, policy=policy, **options) as it:
        error = await it.failed()
    assert "Ending" in str(error)
    assert "4: x" in str(error)
    assert cluster.committed == {PARTITION: 2}
    assert it.source.measures.records_skipped == 2
    assert letters.offsets == []


@pytest.mark.parametrize("workers", ["processes", "threads"])
async def test_a_letter_and_the_log_have_the_class_and_the_text_of_the_error_whatever_the_workers(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, workers: str
) -> None:
    module = f"vendored_{uuid.uuid4().hex}"
    (tmp_path / f"{module}.py").write_text("class Missing(Exception): pass\ndef fail(): raise Missing('no stock')\n")
    monkeypatch.setenv("VENDORED", str(tmp_path))
    monkeypatch.setenv("VENDORED_MODULE", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    cluster, letters = Cluster(records=5), Letters()
    options: dict[str, Any] = {"workers": workers, "ordering": "partition", "retries": Retries(0)}
    async with running(cluster, fail_differently, letters, **options) as it:
        await until(lambda: letters.offsets == [0, 1, 2, 3, 4])
        await it.stop()
    expected = [
        (f"{__name__}.Formatted", "order 17 failed", "Formatted(order=17)"),
        (f"{__name__}.Argless", "17", "Argless(17)"),
        ("extension_part.Unimportable", "17", "Unimportable(17)"),
        (f"{__name__}.fail_differently.<locals>.Local", "17", "Local(17)"),
        (f"{module}.Missing", "no stock", "Missing('no stock')"),
    ]
    errors = [each for each in caplog.records if each.exc_info]
    for (kind, text, quoted), headers, logged in zip(expected, map(dict, letters.headers), errors):
        assert headers["allocator.error"] == f"{kind}: {text}".encode()
        assert headers["kafka_dlt-exception-fqcn"] == kind.encode()
        assert headers["kafka_dlt-exception-message"] == text.encode()
        assert (headers["kafka_dlt-exception-stacktrace"] or b"").endswith(f"{kind}: {text}\n".encode())
        assert f": {quoted}; writing it to the dead-letter topic" in logged.getMessage()
        assert (logged.exc_text or "").endswith(f"{kind}: {text}")
    assert len(errors) == len(expected)


async def test_an_error_with_an_address_in_its_text_comes_whole_and_keeps_nothing_alive_but_its_places() -> None:
    async with running(Cluster(records=1), fail_with_an_order, None, workers="processes", retries=Retries(0)) as it:
        error = (await it.failed()).__cause__
    assert type(error) is OrderFailed
    assert isinstance(error.args[0], Order)
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    assert frame.f_code.co_name == "fail_with_an_order"
    assert frame.f_back is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has groups of errors from 3.11 on")
async def test_a_group_of_errors_keeps_its_class_and_shows_its_errors_after_its_way_from_a_process() -> None:
    group = ExceptionGroup  # type: ignore[name-defined] # noqa: F821
    cluster, letters = Cluster(records=1), Letters()
    policy = ErrorPolicy.of(dead_letter_on=[group])
    async with running(cluster, fail_in_a_group, letters, workers="processes", policy=policy) as it:
        await until(lambda: letters.offsets == [0])
        await it.stop()
    headers = dict(letters.headers[0])
    assert headers["allocator.error"] == b"builtins.ExceptionGroup: two failed (2 sub-exceptions)"
    stack = (headers["kafka_dlt-exception-stacktrace"] or b"").decode()
    assert f"| {__name__}.Formatted: order 17 failed\n" in stack
    assert "| extension_part.Unimportable: u\n" in stack
    assert letters.attempts == [1]


@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("action", Action)
async def test_an_error_that_cannot_be_pickled_is_matched_by_its_class(action: Action, workers: str) -> None:
    cluster, letters = Cluster(records=1), Letters()
    others = Action.DEAD_LETTER if action is Action.RETRY else Action.RETRY
    policy = ErrorPolicy.of(**{action.value: [Unimportable], others.value: [Exception]})
    async with running(cluster, fail_unimportably, letters, workers=workers, policy=policy) as it:
        if action is Action.STOP:
            assert "Unimportable('u')" in str(await it.failed())
        else:
            await until(lambda: positions(it.source).get(PARTITION) == 1)
            await it.stop()
    assert it.source.measures.records_skipped == (action is Action.SKIP)
    assert letters.attempts == {Action.RETRY: [3], Action.DEAD_LETTER: [1]}.get(action, [])
    assert cluster.committed == {PARTITION: int(action is not Action.STOP)}


async def test_a_command_that_a_handler_starts_in_a_process_ends_at_sigterm(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DONE_FILE", str(tmp_path / "done"))
    async with running(Cluster(records=1), terminate_in_process, Letters(), workers="processes") as it:
        await until(lambda: positions(it.source).get(PARTITION) == 1)
        await it.stop()
    assert (tmp_path / "done").read_text() == f"{-signal.SIGTERM}\n"


class Importing:
    """A handler whose module takes until a file exists to import."""

    def __call__(self, record: Record) -> None:
        with open(os.environ["DONE_FILE"], "a") as file:
            file.write(f"{record.offset}\n")

    def __setstate__(self, state: Any) -> None:
        with open(os.environ["PIDS_FILE"], "a") as file:
            file.write(f"{os.getpid()}\n")
        while not os.path.exists(os.environ["IMPORTED_FILE"]):
            time.sleep(0.005)

    def __getstate__(self) -> Any:
        return True


@pytest.mark.parametrize("moment", ["starts", "imports"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_to_a_process_that_starts_costs_no_record(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, moment: str
) -> None:
    """A terminal and systemd send it to the processes of the handler too."""
    for name in ("DONE", "PIDS", "IMPORTED"):
        monkeypatch.setenv(f"{name}_FILE", str(tmp_path / name))
    cluster, letters = Cluster(records=3), Letters()
    options: dict[str, Any] = {"retries": Retries(0), "policy": ErrorPolicy.of(skip_on=[RuntimeError])}
    before = {child.pid for child in multiprocessing.active_children()}

    def starting() -> list[int]:
        if moment == "starts":
            return [each.pid for each in multiprocessing.active_children() if each.pid and each.pid not in before]
        return [int(pid) for pid in (tmp_path / "PIDS").read_text().split()] if (tmp_path / "PIDS").exists() else []

    async with running(cluster, Importing(), letters, workers="processes", concurrency=1, **options) as it:
        await until(starting)
        os.kill(starting()[0], number)
        (tmp_path / "IMPORTED").touch()
        await until(lambda: positions(it.source).get(PARTITION) == 3)
        await it.stop()
    assert letters.offsets == []
    assert it.source.measures.records_skipped == 0
    assert (tmp_path / "DONE").read_text().split() == ["0", "1", "2"]


def die_in_process(record: Record) -> None:
    with open(os.environ["PIDS_FILE"], "a") as file:
        file.write(f"{os.getpid()}\n")
    signal.pause()


@pytest.mark.parametrize("action", ["dead_letter_on", "skip_on"])
async def test_a_record_whose_process_dies_while_its_worker_stops_is_left_to_the_next_owner(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setenv("PIDS_FILE", str(tmp_path / "pids"))
    cluster, letters = Cluster(records=1), Letters()
    policy = ErrorPolicy.of(retry_on=[], **{action: [Exception]})
    async with running(cluster, die_in_process, letters, workers="processes", policy=policy) as it:
        await until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
        it.processor.stop()
        os.kill(int((tmp_path / "pids").read_text()), signal.SIGKILL)
        await it.stop()
    assert letters.offsets == []
    assert cluster.committed == {PARTITION: 0}


async def test_plain_handlers_may_run_in_processes_and_one_that_dies_costs_an_attempt(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DONE_FILE", str(tmp_path / "done"))
    monkeypatch.setenv("DIED_FILE", str(tmp_path / "died"))
    cluster, topic = Cluster(records=8, keys=8), Letters()
    policy = ErrorPolicy.of(dead_letter_on=[Refused])
    async with running(cluster, work_in_process, topic, workers="processes", concurrency=2, policy=policy) as it:
        await until(lambda: positions(it.source).get(PARTITION) == 8)
        await it.stop()
    lines = [line.split() for line in (tmp_path / "done").read_text().splitlines()]
    assert sorted(int(offset) for offset, _ in lines) == [0, 1, 3, 4, 5, 6, 7]
    assert str(os.getpid()) not in {process for _, process in lines}
    assert topic.offsets == [2]
    assert (tmp_path / "died").exists()
