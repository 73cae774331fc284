"""A state machine that drives the public interface of `Consumer` over a cluster in memory, in virtual time.

`progress_oracle` has the promises. Each rule is one event: a call of the user, a command of an operator, a move, a
loss, a fault of the coordinator, a change of the log, or some time without any. At the end of an example the faults
stop, and the group must get every record and reach lag 0.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import wraps
from typing import Any, Optional
from unittest import mock

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from allocator import Consumer
from allocator.commands import Command, Commands
from allocator.core.consumer import group_member
from allocator.core.subscription.loss import as_written
from allocator.errors import (
    AllocatorError,
    Closed,
    CommitFailed,
    DeserializationError,
    NoOffsetsError,
    NotOwned,
    OffsetOutOfRange,
)
from allocator.types import OffsetAndMetadata, Record, TopicPartition
from tests.consumer.fake_kafka import POISON, ByHand, ClientOfMember, GroupCluster, HandMembership, Log, MemorySink
from tests.consumer.progress_oracle import Broken, Oracle
from tests.groups.virtual_time import VirtualLoop

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
INTERVAL_S = 0.2  # of automatic commits
QUIET_S = 3.0  # long enough for an automatic commit and its response
SETTLED_ROUNDS = 60

members = st.sampled_from([0, 0, 1])  # 0: the owner of the first partition
partitions = st.sampled_from(PARTITIONS)
commits = st.sampled_from(["", "", "", "all", "first", "last"])
fractions = st.sampled_from([1.0, 0.0, 0.3, 0.6])


def event(**arguments: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A rule before which an owner may read and start a commit: most events matter while records are in hand, or while
    a commit is in flight."""

    def of(function: Callable[..., None]) -> Callable[..., None]:
        @rule(**arguments, reads=st.sampled_from(["", "some", "getone", "getbatch", "all"]), commits=commits)
        @wraps(function)
        def event(self: ProgressMachine, *given: Any, reads: str = "", commits: str = "", **drawn: Any) -> None:
            owner = next((each for each in self.owners.values() if each is not None), None)
            if owner is not None:
                self.reads(owner, [reads] if reads else [], 0.1, commits, later=True)
            function(self, *given, **drawn)

        return event

    return of


def refuse_poison(value: bytes) -> bytes:
    if value == POISON:
        raise ValueError("poison")
    return value


class Hold:
    """A record that someone works on."""

    def __init__(self, member: Member, record: Any, log: Log) -> None:
        self.member, self.log, self.record = member, log, record
        self.partition = TopicPartition(record.topic, record.partition)
        self.context = contextvars.copy_context()
        self.released: Optional[asyncio.Event] = None
        self.done = False
        """Whether the user has committed it while it was in hand."""

    @property
    def key(self) -> tuple[TopicPartition, int]:
        return self.partition, self.record.offset

    def may_act(self) -> bool:
        """Asks in both ways as the user's code would that works on the record."""
        asks = self.member.consumer.may_act
        return bool(self.context.run(asks) or self.context.run(asks, self.record))


class Member:
    """One process: a consumer, its user's reader, and the calls of its handler."""

    client_class = ClientOfMember

    def __init__(self, machine: ProgressMachine, number: int) -> None:
        self.machine, self.number = machine, number
        self.oracle, self.cluster = machine.oracle, machine.cluster
        self.client = self.client_class(machine.cluster)
        self.client.member = self  # type: ignore[attr-defined]
        self.hand: HandMembership
        with mock.patch.object(group_member, "KafkaClient", return_value=self.client):
            self.consumer = Consumer(
                "t",
                brokers="fake:9092",
                group="g",
                membership=ByHand(made=lambda hand: setattr(self, "hand", hand)),
                auto_offset_reset=machine.reset,  # type: ignore[arg-type]
                auto_commit_interval_s=INTERVAL_S if machine.auto else None,
                value_deserializer=refuse_poison,
                isolation_level="read_committed",
                max_wait_s=0.5,
                sink=machine.sink,
                **self.options(),
            )
        self.held: list[Hold] = []
        self.named: list[tuple[TopicPartition, Log, int]] = []
        """Records of the last request that an error named instead."""
        self.calls: list[Hold] = []
        self.gated = False
        """Whether calls of the handler wait until the machine lets them return, even if they are cut off."""
        self.processing: Optional[asyncio.Task[None]] = None
        self.paused: set[TopicPartition] = set()
        self._queue: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = asyncio.Queue()
        self.begin_reading()

    def options(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f"member {self.number}"

    def begin_reading(self) -> None:
        self.reader = asyncio.ensure_future(self._reads())

    async def _reads(self) -> None:
        """The user's task that reads."""
        while True:
            call, result = await self._queue.get()
            try:
                result.set_result(await call())
            except Exception as error:  # noqa: BLE001 - the machine raises it
                result.set_exception(error)

    async def as_reader(self, call: Callable[[], Awaitable[Any]]) -> Any:
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((call, result))
        return await result

    # -- reading -------------------------------------------------------------------------------------------------

    def work(self) -> list[tuple[Log, int]]:
        return [(hold.log, hold.record.offset) for hold in self.held] + [(log, offset) for _, log, offset in self.named]

    async def read(self, kind: str, timeout_s: float) -> bool:
        """Requests records. Returns whether anything came."""
        consumer = self.consumer
        self.oracle.asks(self, self.work())
        self.held, self.named = [], []
        records: list[Any] = []
        try:
            if kind == "getone":
                one = await consumer.getone(timeout_s)
                records = [] if one is None else [one]
            elif kind == "getbatch":
                batch = await consumer.getbatch(timeout_s)
                if batch is not None and not len(batch):
                    raise Broken("getbatch returns an empty batch")
                records = [] if batch is None else self._records_of(batch)
            else:
                found = await consumer.getmany(timeout_s, 3 if kind == "some" else None)
                records = [record for each in found.values() for record in each]
        except DeserializationError as error:
            self._named(TopicPartition(error.topic, error.partition), error.offset)
            return True
        except (OffsetOutOfRange, NoOffsetsError) as error:
            if self.machine.reset != "none":
                raise
            named = getattr(error, "partitions", None) or [TopicPartition(error.topic, error.partition)]  # type: ignore[union-attr]
            for partition in named:
                await self.seek(partition, self.cluster.content[partition].start)
            return True
        for record in records:
            self._got(record)
        return bool(records)

    def _records_of(self, batch: Any) -> list[Any]:
        """The user's loop over a batch, which goes on behind a record that the deserializer refuses."""
        found: list[Any] = []
        while True:
            try:
                for record in batch:
                    found.append(record)
                    last = record.offset
                return found
            except DeserializationError as error:
                found.append(error)
                last = error.offset
            batch = batch.from_offset(last + 1)

    def _named(self, partition: TopicPartition, offset: int) -> None:
        self.oracle.delivers(self, partition, offset, self.consumer.losses)
        self.named.append((partition, self.oracle.views[partition].log, offset))

    def _got(self, record: Any) -> None:
        partition = TopicPartition(record.topic, record.partition)
        if partition in self.paused | self.machine.paused:
            raise Broken(f"{self} gets a record of {partition}, which is paused")
        if isinstance(record, DeserializationError):
            self._named(partition, record.offset)
            return
        self.oracle.delivers(self, partition, record.offset, self.consumer.losses)
        self.held.append(Hold(self, record, self.oracle.views[partition].log))
        if self.machine.sink is not None:
            self.machine.sink.write(record)
            for log, offset in self.work():  # stored, whatever becomes of this process
                self.oracle.returned[log].add(offset)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        with suppress(NotOwned):
            fence = self.consumer.fence(partition)
            if self.machine.sink is not None:
                await self.machine.sink.rewind(partition, offset, self.client.topic_id(partition.topic))
                if self.consumer.fence(partition) != fence:
                    return
            self.consumer.seek(partition, offset)
            self.oracle.seeks(partition, offset)

    async def pause_or_resume(self, partition: TopicPartition) -> None:
        with suppress(NotOwned):
            if partition in self.paused:
                self.consumer.resume(partition)
                self.paused.discard(partition)
            else:
                self.consumer.pause(partition)
                self.paused.add(partition)

    # -- processing ----------------------------------------------------------------------------------------------

    async def handle(self, record: Record) -> None:
        try:
            await self._handle(record)
        except Broken as error:  # the processor would retry
            self.machine.failure = self.machine.failure or error

    async def _handle(self, record: Record) -> None:
        partition = TopicPartition(record.topic, record.partition)
        begun = self.oracle.calls(self, partition, record.offset)
        hold = Hold(self, record, self.oracle.views[partition].log)
        twins = [each for each in self.calls if each.key == hold.key and each.log is hold.log]
        if any(each.record.fence == record.fence for each in twins):
            raise Broken(f"{self} handles {hold.key} twice at a time")
        self.calls.append(hold)
        try:
            if self.gated:
                hold.released = asyncio.Event()
                while not hold.released.is_set():  # like a thread, the call ignores its cancellation
                    with suppress(asyncio.CancelledError):
                        await hold.released.wait()
            await asyncio.sleep(0.01)
            self.oracle.handled(self, partition, hold.log, record.offset, begun)
        finally:
            self.calls.remove(hold)

    def let_go(self) -> None:
        self.gated = False
        for hold in self.calls:
            if hold.released is not None:
                hold.released.set()

    async def process(self, ordering: Any) -> None:
        self.oracle.asks(self, self.work())
        self.held, self.named = [], []
        self.oracle.poison_counts = False
        self.processing = self.machine.in_background(
            self.as_reader(
                lambda: self.consumer.process(
                    self.handle,
                    ordering=ordering,
                    concurrency=3,
                    skip_on=[DeserializationError],
                    drain_timeout_s=2.0,
                    commit_interval_s=INTERVAL_S,
                )
            )
        )


class ProgressMachine(RuleBasedStateMachine):
    """Two members read two partitions of one topic."""

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("allocator").setLevel(logging.CRITICAL + 1)
        self.loop = VirtualLoop()
        self.failure: BaseException | None = None
        self.loop.set_exception_handler(self._unhandled)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failure = self.failure or error or Broken(context["message"])

    @contextmanager
    def _in_virtual_time(self) -> Iterator[None]:
        asyncio.set_event_loop(self.loop)
        try:
            with mock.patch.object(time, "monotonic", self.loop.time):
                yield
        finally:
            asyncio.set_event_loop(None)

    def go(self, work: Coroutine[Any, Any, Any] | None = None, rest_s: float = 0.02) -> None:
        """Does the work, lets some time pass, and checks what holds at any time."""

        async def run() -> None:
            if work is not None:
                await asyncio.wait_for(work, 200.0)
            await asyncio.sleep(rest_s)
            self._look()

        with self._in_virtual_time():
            try:
                self.loop.run_until_complete(run())
            except BaseException as error:  # noqa: BLE001 - raised below, and by no later step
                self.failure = self.failure or error
        if self.failure is not None:
            raise self.failure

    def _look(self) -> None:
        for partition, view in self.oracle.views.items():
            if view.member.processing is None:
                asking = view.member.consumer.position(partition)
                try:
                    asking.send(None)  # runs until it would wait
                except StopIteration as known:
                    self.oracle.at(view.member, partition, known.value)
                except AllocatorError:
                    pass
                else:
                    asking.close()
        for hold in [each for member in self.members for each in (*member.held, *member.calls)]:
            # one member owns a partition at a time, so then two holds of one record may never both act
            if not (hold.done or self._is_current(hold)) and hold.may_act():
                raise Broken(f"{hold.member} may act on {hold.key}, which it has lost")

    # -- the group -----------------------------------------------------------------------------------------------

    @initialize(
        ids=st.booleans(),
        reset=st.sampled_from(["earliest", "earliest", "latest", "none"]),
        auto=st.booleans(),
        sink=st.sampled_from([False, False, False, True]),
        latency_s=st.sampled_from([0.15, 0.01]),
        empty=st.sampled_from([False, False, True]),
    )
    def begin(self, ids: bool, reset: str, auto: bool, sink: bool, latency_s: float, empty: bool) -> None:
        self.reset, self.auto, self.sink = reset, auto, MemorySink() if sink else None
        cluster = GroupCluster(ids)
        cluster.latency_s = latency_s
        cluster.stored = self._stores
        self._begin(cluster, Oracle(cluster.content, reset, auto, self.sink), empty=empty)

    def _begin(self, cluster: GroupCluster, oracle: Any, *, empty: bool) -> None:
        self.cluster, self.oracle = cluster, oracle
        cluster.create(PARTITIONS)
        self.owners: dict[TopicPartition, Member | None] = dict.fromkeys(PARTITIONS)
        self.fences: dict[TopicPartition, int] = {}
        self.moves: dict[TopicPartition, asyncio.Task[None]] = {}
        self.paused: set[TopicPartition] = set()
        """Partitions that an operator pauses."""
        self.commands = Commands()
        self.fence = self.number = 0
        self.callbacks = 0
        """Callbacks of commits that are due."""
        self.background: set[asyncio.Future[Any]] = set()
        self.disturbed = False
        """Whether a fault since the last quiet time may have cost a commit."""
        self.members: list[Member] = []
        self.down: set[int] = set()
        """Members whose next process has not started yet."""

        async def start() -> None:
            for number in range(2):
                self.members.append(await self._started(number))
            for partition in PARTITIONS:
                await self._move(partition, 0)
                if not empty and self.reset == "latest":
                    await asyncio.sleep(0.1)  # the start is the end of an empty log
                for count in () if empty else (1, 3, 4):
                    self.cluster.produce(partition, count)
                    self.oracle.grew(partition)

        self.go(start())

    def _stores(self, client: ClientOfMember, partition: TopicPartition, offset: OffsetAndMetadata, log: Log) -> None:
        member_id = as_written(offset).member or ""
        author = next((each for each in self.members if member_id.startswith(f"{id(each.hand)}-")), None)
        try:
            self.oracle.stores(client.member, partition, offset.offset, log, author)  # type: ignore[attr-defined]
        except Broken as error:  # the consumer would log it
            self.failure = self.failure or error

    async def _started(self, number: int) -> Member:
        return await self._ready(Member(self, number))

    async def _ready(self, member: Member) -> Member:
        await member.consumer.start()
        assert member.hand.parts.on_commands is not None
        member.hand.parts.on_commands(self.commands, self)  # type: ignore[arg-type]
        return member

    async def _move(self, partition: TopicPartition, to: int | None) -> None:
        await self._release(partition)
        if to is not None:
            await self._claim(partition, to)

    async def _release(self, partition: TopicPartition) -> None:
        owner = self.owners[partition]
        if owner is not None:
            told = self._is_told(owner)
            task = owner.hand.give_up([partition])
            await asyncio.wait({task})
            if not task.cancelled():  # else the session was lost
                self._released(partition, told=told)

    def _is_told(self, member: Member) -> bool:
        """Returns whether the member commits by itself."""
        return self.auto or member.processing is not None

    def _released(self, partition: TopicPartition, *, commits: bool = True, told: bool = True) -> None:
        """`told`: whether the owner committed by itself when it began to release the partition."""
        owner = self.owners[partition]
        if owner is not None:
            owner.paused.discard(partition)
            told = told and self._is_told(owner)
            holds = [hold for hold in (*owner.held, *owner.calls) if hold.partition == partition and not hold.done]
            busy = [hold.key for hold in holds if self._is_current(hold)]
            if commits and busy and self.members.index(owner) not in self.down:
                raise Broken(f"{owner} releases {partition} while it works on {busy}")
            self.oracle.ends(partition, clean=commits and told and self.sink is None and not self.disturbed)
        self.owners[partition] = None

    async def _claim(self, partition: TopicPartition, to: int) -> None:
        self.fence += 1
        fence = self.fence

        def claims() -> None:
            self.owners[partition], self.fences[partition] = member, fence
            self.oracle.claims(member, partition)

        while True:
            member = self.members[to]
            if to not in self.down and await member.hand.take(partition, fence, claims):
                return
            await asyncio.sleep(0.01)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, (CommitFailed, NotOwned, Closed)):
            self.failure = self.failure or error

    def _nth(self, n: int) -> int:
        """Returns the number of the member that owns the first partition (0), or of the other (1)."""
        owner = self.owners[PARTITIONS[0]]
        return n if owner is None else n ^ self.members.index(owner)

    def _at(self, partition: TopicPartition, part: float) -> int:
        """Returns an offset in the log."""
        log = self.cluster.content[partition]
        return log.start + int(part * (log.end - log.start))

    def _moving(self, partition: TopicPartition) -> bool:
        return partition in self.moves and not self.moves[partition].done()

    @event(partition=partitions, to=members)
    def move(self, partition: TopicPartition, to: int) -> None:
        to = self._nth(to)
        if not self._moving(partition):
            self.moves[partition] = self.in_background(self._move(partition, to))
        self.go(rest_s=0.1)

    @event(n=members)
    def evacuate(self, n: int) -> None:
        """All partitions of a member move at once. Those of which nothing is in hand do not wait for the others."""
        n = self._nth(n)
        member = self.members[n]
        going = [p for p, owner in self.owners.items() if owner is member and not self._moving(p)]
        if len(going) < 2 or member.processing is not None:
            return

        async def move() -> None:
            task = member.hand.give_up(going)
            await asyncio.wait({task})
            for partition in going:
                if not task.cancelled():
                    self._released(partition, told=self.auto)
                    await self._claim(partition, 1 - n)

        moving = self.in_background(move())
        self.moves.update(dict.fromkeys(going, moving))
        self.go(rest_s=QUIET_S)
        held = {hold.partition for hold in member.held} | {partition for partition, _, _ in member.named}
        waits = [p for p in going if p not in held and member.hand.tenures.is_assigned(p)]
        if waits and not moving.done() and not self.disturbed:
            raise Broken(f"{waits} wait for the records of {held} that {member} has in hand")

    async def _lose(self, n: int) -> list[TopicPartition]:
        """The session of a member is lost. Returns its partitions without those that are moving already."""
        member = self.members[n]
        lost = [p for p, owner in self.owners.items() if owner is member]
        free = [p for p in lost if not self._moving(p)]
        member.client.cut()
        for partition in lost:
            self._released(partition, commits=False)
        await member.hand.lose()
        return free

    @event(
        n=members,
        sought=st.sampled_from([None, 1.0]),
        back=st.booleans(),
        then=st.sampled_from(["", "heir reads", "commit"]),
    )
    def lose_session(self, n: int, back: bool, then: str, sought: float | None = None) -> None:
        """The other member, or this one again, gets the partitions. `sought`: just before, the user seeks."""
        n = self._nth(n)

        async def lose() -> None:
            heir = n if back else 1 - n
            for partition, owner in self.owners.items():
                if sought is not None and owner is self.members[n] and owner.processing is None:
                    await owner.seek(partition, self._at(partition, sought))
            for partition in await self._lose(n):
                await self._claim(partition, heir)
            if then == "heir reads" and self.members[heir].processing is None:
                await self.members[heir].as_reader(lambda: self.members[heir].read("all", 0.3))
            if then == "commit" and self.members[n].processing is None:
                await self._commit(self.members[n], None, later=False)

        self.go(lose())

    @event(n=members)
    def suspend(self, n: int) -> None:
        """The connection to the group is gone for a moment."""
        hand = self.members[self._nth(n)].hand
        if not hand.may_act():
            return

        async def away() -> None:
            hand.suspend()
            await asyncio.sleep(
                0.303
            )  # it never comes back at the moment of another event, such as the next suspension
            hand.resume()

        self.in_background(away())
        self.go()

    @event(n=members, clean=st.booleans())
    def restart(self, n: int, clean: bool) -> None:
        """The next process gets the same partitions. Not `clean`: the process is killed."""
        n = self._nth(n)
        member = self.members[n]

        async def restart() -> None:
            member.let_go()
            self.down.add(n)
            if not clean:
                await self._lose(n)
            await self._stop_processing(member)
            await member.as_reader(lambda: member.consumer.close(commit=clean))
            member.reader.cancel()
            await asyncio.sleep(0.01)  # the moves of its partitions go on
            for partition, owner in self.owners.items():
                if owner is member:
                    self._released(partition)
            mine = [p for p, owner in self.owners.items() if owner is None and not self._moving(p)]
            self.members[n] = await self._started(n)
            self.down.discard(n)
            for partition in mine:
                await self._claim(partition, n)

        self.go(restart())

    # -- the user ------------------------------------------------------------------------------------------------

    @event(
        n=members,
        kinds=st.lists(st.sampled_from(["getone", "some", "getbatch", "all"]), min_size=1, max_size=3),
        timeout_s=st.sampled_from([0.3, 0.0]),
        then=commits,
        later=st.booleans(),
    )
    def read(self, n: int, kinds: list[str], timeout_s: float, then: str, later: bool) -> None:
        self.reads(self.members[self._nth(n)], kinds, timeout_s, then, later=later)

    def reads(self, member: Member, kinds: list[str], timeout_s: float, commits: str, *, later: bool) -> None:
        """Some requests, and perhaps a commit of all that was delivered, or up to the first or last record in hand."""
        if member.processing is not None:
            return
        for kind in kinds:
            self.go(member.as_reader(lambda kind=kind: member.read(kind, timeout_s)), rest_s=0.0)  # type: ignore[misc]
        held = member.held[::-1] if commits == "first" else member.held
        views = self.oracle.views  # a user neither goes back, nor commits what a seek has replaced
        held = [each for each in held if not each.done and each.partition in views]
        held = [each for each in held if each.record.offset in views[each.partition].in_hand]
        offsets = None if commits == "all" else {hold.partition: hold.record.offset + 1 for hold in held}
        if commits:
            self.go(self._commit(member, offsets, later=later), rest_s=0.0)

    @precondition(lambda self: self.sink is None and self.reset != "none")
    @event(n=members, ordering=st.sampled_from(["partition", "none"]), gated=st.booleans())
    def process(self, n: int, ordering: str, gated: bool) -> None:
        member = self.members[self._nth(n)]
        if member.processing is None:
            member.gated = gated
            self.go(member.process(ordering), rest_s=0.1)

    @precondition(lambda self: any(member.gated for member in self.members))
    @event(n=members)
    def let_calls_return(self, n: int) -> None:
        self.members[self._nth(n)].let_go()
        self.go(rest_s=0.1)

    @precondition(lambda self: any(member.processing for member in self.members))
    @event(n=members)
    def stop_processing(self, n: int) -> None:
        self.go(self._stop_processing(self.members[self._nth(n)]))

    async def _stop_processing(self, member: Member) -> None:
        if member.processing is not None:
            member.let_go()
            member.reader.cancel()
            await asyncio.wait({member.reader})
            self.oracle.ends_processing(member)
            member.processing.cancel()
            member.processing = None
            member.begin_reading()

    @event(partition=partitions, part=fractions, seconds=st.sampled_from([QUIET_S, 0.02]))
    def seek(self, partition: TopicPartition, part: float, seconds: float) -> None:
        owner = self.owners[partition]
        if owner is not None and owner.processing is None:
            self.go(owner.seek(partition, self._at(partition, part)), rest_s=0.0)
            self.wait(seconds)

    @event(partition=partitions, part=fractions)
    def visit(self, partition: TopicPartition, part: float) -> None:
        """The other member gets the partition, seeks, commits that, and gives the partition back."""
        owner = self.owners[partition]
        if owner is None or self._moving(partition) or any(member.processing for member in self.members):
            return
        there = self.members.index(owner)

        async def visit() -> None:
            assert owner is not None
            await self._move_with_readers(partition, 1 - there)
            await self.members[1 - there].seek(partition, self._at(partition, part))
            await self._commit(self.members[1 - there], None, later=False)
            await self._move_with_readers(partition, there)

        self.go(visit())

    async def _move_with_readers(self, partition: TopicPartition, to: int | None) -> None:
        """Moves a partition while the readers finish what is in hand."""
        self.moves[partition] = self.in_background(self._move(partition, to))
        while self._moving(partition):
            for member in self.members:
                await member.as_reader(lambda member=member: member.read("getone", 0.1))  # type: ignore[misc]

    @event(partition=partitions)
    def pause_or_resume(self, partition: TopicPartition) -> None:
        owner = self.owners[partition]
        if owner is not None and owner.processing is None:
            self.go(owner.pause_or_resume(partition))

    async def _commit(self, member: Member, offsets: dict[TopicPartition, int] | None, *, later: bool) -> None:
        """Commits these offsets, or all that was delivered. `later`: with a callback."""
        self.callbacks += later
        try:
            with self._everything_done(member) if offsets is None else nullcontext():
                if offsets is not None:
                    self.oracle.commits(member, offsets, member.work())
                if later:
                    member.consumer.commit_async(offsets, self._called)
                else:
                    await member.consumer.commit(offsets)
        except (CommitFailed, NotOwned):
            self.callbacks -= later

    @contextmanager
    def _everything_done(self, member: Member) -> Iterator[None]:
        """Around a commit of all that was delivered, which raises NotOwned if some of it was lost."""
        held = [hold for hold in member.held if not hold.done]
        lost = [hold.key for hold in held if not self._is_current(hold)]
        self.oracle.commits(member, None, member.work())
        for hold in held:
            hold.done = True
        try:
            yield
        except NotOwned:
            for hold in held:
                hold.done = False
            raise
        if lost:
            raise Broken(f"{member} commits what it has in hand, but {lost} were lost")

    def _is_current(self, hold: Hold) -> bool:
        return self.owners[hold.partition] is hold.member and self.fences[hold.partition] == hold.record.fence

    def _called(self, offsets: Any, error: BaseException | None) -> None:
        self.callbacks -= 1

    # -- the operator --------------------------------------------------------------------------------------------

    @event(partition=partitions)
    def operator_pauses_or_resumes(self, partition: TopicPartition) -> None:
        if partition in self.paused:
            self.paused.discard(partition)
            self.commands = replace(
                self.commands, entries=tuple(o for o in self.commands.entries if not self._pauses(o, partition))
            )
        else:
            self.paused.add(partition)
            self._command("pause", {"partitions": {"t": str(partition.partition)}})
        self.go(self._tell())

    @event(partition=partitions, part=fractions)
    def operator_seeks(self, partition: TopicPartition, part: float) -> None:
        to = self._at(partition, part)
        command = self._command("seek", {"partitions": {"t": str(partition.partition)}, "to": str(to)})
        self.oracle.on_commands(command, partition, to)
        self.go(self._tell())

    @staticmethod
    def _pauses(command: Command, partition: TopicPartition) -> bool:
        return command.kind == "pause" and partition in command.partitions

    def _command(self, kind: str, arguments: dict[str, Any]) -> str:
        self.number += 1
        command = Command.make(kind, arguments, who="operator", now_ms=0)
        command = replace(command, id=f"o-{self.number:08x}")
        self.commands = self.commands.put(command, 0)
        return command.id

    async def _tell(self) -> None:
        for member in self.members:
            assert member.hand.parts.on_commands is not None
            member.hand.parts.on_commands(self.commands, self)  # type: ignore[arg-type]

    async def add_results(self, command_id: str, results: Any) -> None:
        """Stores the results of a command. Called by the consumers."""
        self.commands = self.commands.with_results(command_id, results)
        for result in results:
            for partition in result.partitions:
                self.oracle.reported(command_id, partition, done=result.what.startswith("sought"))
        await self._tell()

    async def add_topics(self, command_id: str, topics: Any) -> None:
        """Stores the ids of a command's topics. Called by the consumers."""
        self.commands = self.commands.with_topics(command_id, topics)
        await self._tell()

    # -- the cluster ---------------------------------------------------------------------------------------------

    @event(
        partition=partitions,
        count=st.integers(1, 6),
        kind=st.sampled_from(["plain", "plain", "committed", "aborted", "compacted"]),
        poison=st.sampled_from([None, None, 0, 1, 2]),
    )
    def produce(self, partition: TopicPartition, count: int, kind: str, poison: int | None) -> None:
        if partition in self.cluster.leaders:
            self.cluster.produce(partition, count, kind, poison)
            self.oracle.grew(partition)
        self.go()

    @event(partition=partitions, part=fractions)
    def delete_records(self, partition: TopicPartition, part: float) -> None:
        self.cluster.delete_before(partition, self._at(partition, part))
        self.oracle.shrank(partition)
        self.go(rest_s=0.3)

    @event(how=st.sampled_from(["owned", "away", "at once", "another cluster"]), kept=st.booleans())
    def create_topic_again(self, how: str, kept: bool) -> None:
        """`owned`: an owner notices the new topic id. Otherwise sessions are lost first, because without ids members
        notice only that the topic was away, or that the cluster is another. `at once`: the topic is never away.

        `kept`: the committed offsets stay. A commit may arrive late, brokers before 0.10.2 do not delete them, and
        MirrorMaker copies them to another cluster.
        """
        kept = kept and self.sink is None and (how != "at once" or all(map(self.cluster.names_log, PARTITIONS)))
        busy = any(map(self._moving, PARTITIONS)) or any(member.processing for member in self.members)
        if busy or self.down or any(command.kind == "seek" and not command.done for command in self.commands.entries):
            return

        async def again() -> None:
            owned, owners = how == "owned" and self.cluster.knows_ids, {}
            if not owned:  # first, more is done than committed
                for partition in PARTITIONS:
                    self.cluster.produce(partition, 4)
                    self.oracle.grew(partition)
                for member in [*self.members, *self.members]:
                    await member.as_reader(lambda member=member: member.read("some", 0.0))  # type: ignore[misc]
                owners = {partition: n for n in (0, 1) for partition in await self._lose(n)}
                if how == "another cluster":
                    self.cluster.cluster_id += "x"
                elif how != "at once" or not self.cluster.knows_ids:
                    self.cluster.delete(PARTITIONS)
                    await asyncio.sleep(1.0)
            self.cluster.create(PARTITIONS, kept=kept)
            for partition in PARTITIONS:
                if kept:
                    self.cluster.produce(partition, 12)
                self.oracle.recreated(partition, kept, self.cluster.names_log(partition))
            if self.sink is not None and not self.cluster.knows_ids:
                self.sink.offsets.clear()  # without ids, this is up to the user
            for partition, owner in owners.items():
                await self._claim(partition, owner)

        self.go(again(), rest_s=0.1)

    @event(kind=st.sampled_from(["refused", "lost", "unanswered"]))
    def next_commit_fails(self, kind: str) -> None:
        self.cluster.faults.append(kind)
        self.disturbed = True
        self.go()

    @event(seconds=st.sampled_from([0.05, 0.3, QUIET_S]))
    def wait(self, seconds: float) -> None:
        quiet = not self.cluster.faults
        self.go(rest_s=seconds)
        if seconds == QUIET_S and quiet:
            self.disturbed = False
            for partition, view in list(self.oracle.views.items()):
                busy = self._moving(partition) or view.member.gated or (not self.auto and not view.member.processing)
                if not busy and self.sink is None:
                    self.oracle.check_committed(partition, view)

    # -- the end -------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if self.failure is None and hasattr(self, "members") and len(self.members) == 2:
                self._settle()
        finally:
            self._close()

    def _settle(self) -> None:
        """Without faults, pauses and gates, every record is delivered and the lag gets to 0."""
        self.cluster.faults.clear()
        self.paused.clear()
        self.commands = replace(self.commands, entries=tuple(o for o in self.commands.entries if o.kind != "pause"))

        async def settle() -> None:
            await self._tell()
            idle = 0
            for _ in range(SETTLED_ROUNDS):
                found = bool([command for command in self.commands.entries if not command.done])
                for member in self.members:
                    member.let_go()
                    for partition in member.paused:
                        with suppress(NotOwned):  # it has left meanwhile
                            member.consumer.resume(partition)
                    member.paused.clear()
                    if member.processing is None:
                        found |= await member.as_reader(lambda member=member: member.read("all", 0.3))  # type: ignore[misc]
                await asyncio.sleep(0.1)
                for partition, owner in self.owners.items():
                    if owner is None and not self._moving(partition):
                        await self._claim(partition, 0)
                idle = 0 if found or any(map(self._moving, PARTITIONS)) else idle + 1
                if idle == 4:
                    break
            else:
                raise Broken(f"the group does not settle: {self.commands.entries} {self.moves}")
            if not self.auto:
                for member in self.members:
                    if member.processing is None:
                        self.oracle.commits(member, None, member.work())
                        await member.consumer.commit()
            await asyncio.sleep(QUIET_S)

        self.go(settle())
        for partition, log in self.cluster.content.items():
            if self.oracle.missing(log):
                raise Broken(f"{partition}: nobody got {self.oracle.missing(log)}")
            at = self.cluster.committed.get(partition)
            offset = None if at is None else at.offset
            if not self.auto:  # a user's commit need not cover what a consumer passes without a record
                offset = log.next_visible(log.start if offset is None else offset)
            if offset != log.end:
                raise Broken(f"{partition} is idle with {offset} committed; its log ends at {log.end}")
        if self.callbacks:
            raise Broken(f"{self.callbacks} callbacks of commits are not called")

    def _close(self) -> None:
        async def close() -> None:
            for member in getattr(self, "members", []):
                member.let_go()
                member.reader.cancel()
                with suppress(BaseException):
                    await asyncio.wait_for(member.consumer.close(commit=False), 30.0)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=100.0)

        with self._in_virtual_time():
            self.loop.set_exception_handler(lambda *_: None)
            self.loop.run_until_complete(close())
            self.loop.close()


class Plain(HypothesisProvider):
    """Draws each example anew. Hypothesis's own backend spends most examples on copies with repeated parts."""


AVAILABLE_PROVIDERS["plain"] = Plain


def play(count: int, number: int | None = None, machine: type[ProgressMachine] = ProgressMachine) -> None:
    """Plays this number of examples; with a `number`, always the same ones."""
    run_state_machine_as_test(
        machine if number is None else seed(number)(machine),
        settings=settings(
            backend="plain",
            max_examples=count,
            stateful_step_count=30,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink] if number is None else [Phase.generate],
        ),
    )


if __name__ == "__main__":
    play(int(sys.argv[1]), int(sys.argv[2]))
