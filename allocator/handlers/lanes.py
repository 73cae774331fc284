"""Schedules the calls of the handler: which lane is next, and how many run at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from allocator.core.aio import BackgroundTasks
from allocator.core.consumer import RecordCommands
from allocator.core.subscription import Call, Hold, TopicPartitionState
from allocator.handlers.guard import guard_of
from allocator.handlers.handlers import Handler, check_done
from allocator.handlers.results import Results, produced
from allocator.handlers.subprocesses import Children
from allocator.handlers.window import Unit, offset_of

if TYPE_CHECKING:
    from allocator.producer import TakenRecord

# Seconds that one lane, or a coroutine handler that never waits, may run before others continue. Higher: fewer thread
# switches; lower: commits, stops, other keys and other partitions wait less.
SLICE_S = 0.1
# If calls take fewer seconds on average, one thread job runs the calls of several lanes, which saves thread switches.
SHORT_CALL_S = 0.001
SHORT_SLICE_S = 0.005  # maximum duration of a job with several lanes, in seconds
RECORDS_A_HOP = 64  # maximum number of records in a job with several lanes


class LaneOwner(Hold):
    """Worker of the partition that a lane belongs to: the hold of the records for which its lanes call the handler."""

    stopping: bool
    stopped: asyncio.Event
    """Set together with `stopping`."""
    lanes: dict[Any, Lane]
    """The lanes with records by key; with ordering "partition", one at None. `Lanes` adds to it, the owner removes."""
    calls: set[Lane]
    """The lanes whose calls run. `Lanes` adds to it, and `end` removes."""
    tenure: TopicPartitionState

    def __init__(self, tenure: TopicPartitionState, *, in_order: bool) -> None:
        super().__init__(tenure)
        self.partition = tenure.partition
        self.topic_id = tenure.topic_id
        """The id of the topic of its records; None if it is unknown."""
        self.in_order = in_order
        """Whether the records after a refused one in the same call come again with it, so that they are refused too."""

    @property
    def name(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition}"

    @property
    def is_paused(self) -> bool:
        return self.tenure.record.is_paused(self.tenure)

    def where(self, offset: int) -> dict[str, Any]:
        """Returns the topic, the partition and this offset as extra fields of a log line."""
        return {"topic": self.partition.topic, "partition": self.partition.partition, "offset": offset}

    def end(self, lane: Lane, finished: Sequence[Unit], error: BaseException | None, seconds: float) -> None:
        """Called after the calls of a lane, which took `seconds`.

        `finished` has the units whose calls returned. If `error` is given, the call for the next unit raised it: the
        handler has failed, unless `may_act` was False for a record of this unit.
        """

    def running(self) -> Sequence[Any]:
        """Returns the records or batches for which calls run. May be called in any thread."""
        raise NotImplementedError

    def _held_from(self, place: Any, end: Any, called: Any) -> Any:
        units = [called] if called is not None and self.has(called, place) else self.running()
        unit = next((each for each in units if self.has(each, place)), None)
        if unit is None:
            return None
        return offset_of(unit) if self.in_order else place

    def refused_of(self, unit: Any) -> list[Any]:
        """Returns the places of the records of this record or batch on which the user was told not to act."""
        return [place for place in list(self.refused) if self.has(unit, place)]

    def begin_again(self, unit: Any) -> None:
        """Called when this unit is delivered again: what was said before about its records counts no more."""
        if self.in_order:
            self.refused.clear()
        else:
            self.refused.difference_update(self.refused_of(unit))

    def unstored_part(self, unit: Any) -> Any:
        """Returns the part of a record or batch that the sink has not stored; None if it has stored it all."""
        stored = self.tenure.stored()
        if stored is None or stored <= offset_of(unit):
            return unit
        return unit.from_offset(stored) if self.has(unit, stored) else None


class Lane:
    """Records that are handled one after the other: all of a partition, those of one key in it, or a single record."""

    __slots__ = (
        "attempts",
        "call",
        "cut",
        "held",
        "key",
        "queued",
        "running",
        "since",
        "task",
        "timer",
        "turn",
        "units",
        "worker",
    )

    def __init__(self, worker: LaneOwner, key: Any = None) -> None:
        self.worker = worker
        self.key = key
        self.units: deque[Unit] = deque()
        self.queued = self.running = self.cut = False
        self.held = False
        """True while its first record has failed and waits for its next attempt."""
        self.attempts = 0
        """Number of failed calls for the first unit."""
        self.since = 0.0
        """Loop time of the first failure."""
        self.timer: asyncio.TimerHandle | None = None
        """Timer of the next attempt."""
        self.task: asyncio.Task[None] | None = None
        """The task that currently runs a coroutine handler for this lane."""
        self.call: concurrent.futures.Future[Any] | None = None
        """The latest turn of this lane in a thread."""
        self.turn: Sequence[Unit] | None = None
        """The units for which a turn in a thread calls the handler. None: calls run in the loop, one at a time."""

    def in_call(self) -> Sequence[Unit]:
        """Returns the units whose call may run now."""
        return (self.units[0],) if self.turn is None else self.turn


class Lanes:
    """Runs ready lanes in the order in which they became ready, at most `concurrency` at once.

    Guarantee: each lane has one call at a time. A call begins only while `may_act` returns True, the partition is not
    paused and the worker of the lane is not stopping. While it runs, its lane is in the worker's `calls`.
    """

    def __init__(
        self,
        handler: Handler,
        concurrency: int,
        ordering: str,
        *,
        may_act: Callable[[], bool],
        until_active: Callable[[], Awaitable[None]],
        broken: Callable[[BaseException], None],
        results: Results,
        processes: bool = False,
    ) -> None:
        self._handler = handler
        self._results = results
        self._concurrency = concurrency
        self._ordering = ordering
        self._may_act = may_act
        self._until_active = until_active
        self._ready: deque[Lane] = deque()
        self._parked: dict[LaneOwner, dict[Lane, None]] = {}
        """Ready lanes of paused partitions, by worker: an operator resumes hundreds of partitions in one step."""
        self.commands = RecordCommands()
        """The operator commands in effect. A turn ends after its current call once another object is here."""
        self._running = 0
        self._waits_for_lease = self._closing = False
        self._ends = 0.0
        """Time until which coroutines may keep the loop busy in this iteration."""
        self._renewal: asyncio.Handle | None = None
        self._call_s = SHORT_CALL_S
        """Average duration of a call in a thread."""
        self._tasks = BackgroundTasks(broken)
        self.threads = concurrent.futures.ThreadPoolExecutor(concurrency, "handler")
        self._children = Children(handler.function) if processes else None

    @cached_property
    def _run(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._run_on_loop if self._handler.on_loop else self._run_in_threads

    def add(self, owner: LaneOwner, units: Sequence[Unit]) -> None:
        """Adds records to the lanes of one partition, in the order that `Handling.ordering` demands."""
        if self._ordering == "partition":
            whole = owner.lanes.setdefault(None, Lane(owner))
            whole.units.extend(units)
            self.wake(whole)
            return
        by_key, lanes = self._ordering == "key", owner.lanes
        for unit in units:
            key = unit.argument.key if by_key else None
            # producers spread records without a key over the partitions, so these have no order
            lane = lanes.get(key) if key is not None else None
            if lane is None:
                lane = Lane(owner, key)
                if key is not None:
                    lanes[key] = lane
                lane.units.append(unit)
                self.wake(lane)
            else:
                lane.units.append(unit)  # the lane is queued, running or waits for a retry

    def wake(self, lane: Lane) -> None:
        """Queues a lane that has a record to handle. Does nothing if it is queued, runs, or waits for a retry."""
        if not (lane.queued or lane.running or lane.held):
            lane.queued = True
            self._ready.append(lane)
            self._start_one()

    def command(self, commands: RecordCommands) -> None:
        """Replaces the operator commands."""
        self.commands = commands

    def resume(self, worker: LaneOwner) -> None:
        """Queues the parked lanes of a worker whose partition is no longer paused."""
        for lane in self._parked.pop(worker, ()):
            self.wake(lane)

    def forget(self, worker: LaneOwner) -> None:
        """Drops the parked lanes of a worker that has ended, because a pause may last for days."""
        self._parked.pop(worker, None)

    def end_turns(self) -> None:
        """Ends each turn after its current call, because a partition was paused."""
        self.commands = replace(self.commands)

    def _start_one(self) -> None:
        if self._running < self._concurrency and not self._waits_for_lease:
            self._running += 1
            # a coroutine of the user may await tasks of the user, and ends with them
            self._tasks.start(self._run(), "handler", outlives=not self._handler.on_loop)

    def cut(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Cancels the calls of these lanes. Returns the lanes whose calls run in threads and cannot be cancelled."""
        left = []
        for lane in lanes:
            lane.cut = True
            if lane.task is not None:
                self._tasks.cancel(lane.task)
            elif self._children is None or not self._children.kill(lane):
                left.append(lane)
        return left

    async def close(self) -> None:
        """Cancels the running calls. Calls in threads cannot be cancelled; this does not wait for them."""
        self._closing = True
        self._ready.clear()
        if self._children is not None:
            self._children.close()
        await self._tasks.close()
        self.threads.shutdown(wait=False)

    # -- turns -------------------------------------------------------------------------------------------------------

    def _next(self) -> Lane | None:
        """Starts and returns the next ready lane; None if no lane is ready, the lease may have ended, or the loop
        ends."""
        while self._ready and not self._tasks.loop_ends:
            if not self._may_act():
                if not self._waits_for_lease:
                    self._waits_for_lease = True
                    self._tasks.start(self._wait_for_lease(), "lease")
                return None
            lane = self._ready.popleft()
            lane.queued = False
            if lane.worker.stopping or not lane.units:
                continue
            if lane.worker.is_paused:
                self._parked.setdefault(lane.worker, {})[lane] = None
            else:
                lane.running = True
                lane.worker.calls.add(lane)
                return lane
        return None

    async def _wait_for_lease(self) -> None:
        try:
            await self._until_active()
        finally:
            self._waits_for_lease = False
        for _ in range(len(self._ready)):
            self._start_one()

    def _end(self, lane: Lane, finished: Sequence[Unit], error: BaseException | None, seconds: float) -> None:
        lane.running = False
        if self._tasks.loop_ends:
            # that also cancels what a call awaits, so the call may fail, and its record comes again
            lane.worker.stop()
            error = None
        lane.worker.end(lane, finished, error, seconds)

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _run_on_loop(self) -> None:
        task = asyncio.current_task()
        try:
            while True:
                if self._pass_is_long():
                    await asyncio.sleep(0)
                lane = self._next()
                if lane is None:
                    return
                lane.task = task
                finished: list[Unit] = []
                error = None
                begun = time.monotonic()
                entered = lane.worker.enter()
                try:
                    error = await self._turn(lane, entered, finished)
                finally:
                    lane.worker.leave(entered)
                    lane.task = None
                    self._end(lane, finished, error, time.monotonic() - begun)
        except asyncio.CancelledError:
            if not self._tasks.loop_ends:
                raise
        finally:
            self._running -= 1
            if self._ready and not self._tasks.loop_ends:  # true if this task was cancelled together with its call
                self._start_one()

    async def _turn(self, lane: Lane, entered: Call, finished: list[Unit]) -> BaseException | None:
        units, worker, call, may_act = lane.units, lane.worker, self._handler.function, self._may_act
        commands, kept = self.commands, self._results.exactly_once
        guard = guard_of(commands, worker.partition, worker.topic_id)
        clock = asyncio.get_running_loop().time
        ends = clock() + SLICE_S
        while units:
            unit = units[0]
            try:
                records: Sequence[TakenRecord] = ()
                _begin(worker, entered, unit)
                if guard is not None:
                    guard(unit.argument)
                result = await call(unit.argument)
                if lane.cut or self._tasks.loop_ends:
                    break  # the call was cancelled, so its record comes again, although it did not raise that
                if worker.refused and comes_again(worker, unit):
                    break  # it did not act, so it is called again once it may
                if result is not None:
                    check_done(result, self._handler.name)
                    returned = produced(result, self._handler.name)
                    records = self._results.take(returned) if returned else ()
                    if records and not kept:
                        await self._results.write(records)
            except asyncio.CancelledError:
                if lane.cut or self._closing or self._tasks.loop_ends:
                    raise
                return _cancelled_from_within()
            # catches every class: if an error ended this task, the lane would be stuck
            except BaseException as raised:  # the user's; the policy decides what follows
                error = _readable(raised)
                if isinstance(error, KeyboardInterrupt) and not self._handler.catches_interrupts:
                    raise  # Ctrl-C interrupts any code that the loop runs; the handler did not fail
                return error
            _returned(unit, records, kept=kept)
            units.popleft()
            finished.append(unit)
            if self._pass_is_long() or worker.stopping or not may_act():
                break
            if self.commands is not commands:
                break  # otherwise a paused partition would go on
            if self._ready and clock() >= ends:
                break  # otherwise a key that always has records would block the waiting lanes forever
        return None

    def _pass_is_long(self) -> bool:
        """Returns whether calls have kept the loop busy for `SLICE_S`, so that other tasks must run.

        The time counts from the first call in an iteration of the loop. So it does not include the time that calls
        wait, even if they end in the same iteration.
        """
        now = time.monotonic()
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_soon(self._next_pass)
            self._ends = now + SLICE_S
        return now >= self._ends

    def _next_pass(self) -> None:
        self._renewal = None

    # -- in threads --------------------------------------------------------------------------------------------------

    async def _run_in_threads(self) -> None:
        try:
            while True:
                turn = self._bundle()
                if not turn:
                    return
                call = self.threads.submit(self._turn_in_thread, turn, self.commands, asyncio.get_running_loop())
                for lane, _ in turn:
                    lane.call = call
                results = await asyncio.wrap_future(call)
                calls = sum(count + (error is not None) for count, error, _ in results)
                if calls:
                    seconds = sum(seconds for _, _, seconds in results)
                    self._call_s += (seconds / calls - self._call_s) / 8
                for (lane, units), (count, error, seconds) in zip(turn, results):
                    for _ in range(count):
                        lane.units.popleft()
                    lane.turn = ()
                    self._end(lane, units[:count], error, seconds)
        finally:
            self._running -= 1

    def _bundle(self) -> list[tuple[Lane, list[Unit]]]:
        """Returns the lanes for the next thread job, with their units.

        Takes several lanes only if calls are short and enough lanes remain for the other threads.
        """
        turn: list[tuple[Lane, list[Unit]]] = []
        count = 0
        most = 1 + len(self._ready) // self._concurrency if self._call_s < SHORT_CALL_S else 1
        while len(turn) < most and count < RECORDS_A_HOP:
            lane = self._next()
            if lane is None:
                break
            lane.turn = units = list(lane.units)  # before the thread has them: the handler may ask about them at once
            turn.append((lane, units))
            count += len(units)
        return turn

    def _turn_in_thread(
        self, turn: Sequence[tuple[Lane, list[Unit]]], commands: RecordCommands, loop: asyncio.AbstractEventLoop
    ) -> list[tuple[int, BaseException | None, float]]:
        """Runs the calls of some lanes in a thread.

        Returns for each lane the number of finished calls, the error of the next call, and the seconds.
        """
        now = time.monotonic()
        ends = now + (SLICE_S if len(turn) == 1 else SHORT_SLICE_S)
        may_act, kept = self._may_act, self._results.exactly_once
        results: list[tuple[int, BaseException | None, float]] = []
        for lane, units in turn:
            call = self._handler.call_plain if self._children is None else partial(self._children.call, lane)
            error: BaseException | None = None
            count, worker, begun = 0, lane.worker, now
            guard = guard_of(commands, worker.partition, worker.topic_id)
            entered = worker.enter()  # in the context of this thread, which runs no other code
            for unit in units:
                if now >= ends or worker.stopping or self.commands is not commands or not may_act():
                    break
                try:
                    records: Sequence[TakenRecord] = ()
                    _begin(worker, entered, unit)
                    if guard is not None:
                        guard(unit.argument)
                    result = call(unit.argument)
                    if worker.refused and comes_again(worker, unit):
                        break  # it did not act, so it is called again once it may
                    if result is not None:
                        returned = produced(result, self._handler.name)
                        records = self._results.take_in_thread(returned, loop) if returned else ()
                    if records and not kept:
                        asyncio.run_coroutine_threadsafe(self._results.write(records), loop).result()
                except asyncio.CancelledError:
                    error = _cancelled_from_within()
                    break
                # catches every class: if an error ended this turn, its lanes would be stuck
                except BaseException as raised:  # noqa: BLE001 - the user's; the policy decides what follows
                    error = _readable(raised)
                    break
                finally:
                    now = time.monotonic()
                _returned(unit, records, kept=kept)
                count += 1
            results.append((count, error, now - begun))
        return results


def _begin(worker: LaneOwner, entered: Call, unit: Unit) -> None:
    if worker.refused:
        worker.begin_again(unit.argument)
    entered.unit = unit.argument


def comes_again(worker: LaneOwner, unit: Unit) -> bool:
    """Returns whether the unit, or the rest of it, is to be called again: its user was told not to act on some record,
    and the sink has not stored that all the same."""
    rest = worker.unstored_part(unit.argument) if worker.refused_of(unit.argument) else None
    if rest is None:
        return False
    unit.argument = rest
    return True


def _returned(unit: Unit, records: Sequence[TakenRecord], *, kept: bool) -> None:
    """Makes the unit done, or with `kept` its records wait for their transaction."""
    if kept:
        unit.results = records
    else:
        unit.argument = None


def _readable(error: BaseException) -> BaseException:
    """Returns the error, or a RuntimeError for one that cannot even be asked for its class: it would end the lane."""
    try:
        isinstance(error, KeyboardInterrupt)
    except Exception:  # noqa: BLE001 - whatever the user's class raises
        return RuntimeError(f"the handler raised {type(error).__qualname__}, whose attributes cannot be read")
    return error


def _cancelled_from_within() -> asyncio.TimeoutError:
    """Returns the error to report for a call that raised CancelledError although nothing cancelled it."""
    return asyncio.TimeoutError("the handler raised CancelledError, but nothing cancelled it")
