"""The fetch loop: which partition is requested from which broker, when, for how many bytes, and what comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Union, cast

from allocator.core.aio.backoff import Backoff
from allocator.core.client.errors import FETCH, Reaction, error_of, reaction_to
from allocator.core.client.fetch_messages import (
    BOUNDED,
    FetchAnswer,
    FetchedPartition,
    FetchRequest,
    FetchSession,
    Wanted,
)
from allocator.core.errors import AllocatorError, BrokerError, Closed, CorruptRecordError, RecordTooLarge
from allocator.core.fetch.buffer import ByteBudget, Chunk, Failure, OutOfRange, PartitionBuffer
from allocator.core.fetch.decode import RecordSet, scan
from allocator.core.fetch.position_requests import Lookups, ResetRequests, ValidationRequests
from allocator.core.fetch.repeats import RepeatedFailures
from allocator.core.subscription import LogTruncation, SubscriptionState
from allocator.core.types import TopicPartition

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient

log = logging.getLogger(__name__)

SESSIONLESS: Final = 0
# A second ("urgent") request fetches partitions that become fetchable while the main request waits at the broker.
# longer: fewer requests; shorter: the next such partition waits less
URGENT_WAIT_S: Final = 0.05
# After a full response the next main request returns at once. Partitions that were served meanwhile must not be served
# again before it. longer: a partition waits longer if that was wrong; shorter: slow brokers are unfair
FULL_WAIT_S: Final = 0.1
# the longest pause before a partition is fetched again after an error that may pass
BACKOFF_MAX_S: Final = 1.0
POSITION_TIMEOUT_S: Final = 10.0
# the lease of a replica ends without an event, so it is checked this often
LEASE_LOOK_S: Final = 5.0
# after checking the headers and checksums of so many bytes, let other tasks run
BREATH_BYTES: Final = 1 << 20
# pause before fetching again after an error that an operator has to fix
HOPELESS_S = 2.0
# how long a preferred replica is read before the leader is asked again (KIP-392)
REPLICA_LEASE_S = 300.0
# how long the leader is read after its replica failed: it names a dead replica until that broker's session expires,
# and sends no records to a client that it redirects
REPLICA_SHUNNED_S = 20.0
# how late a response may be before its partitions count as unreachable. Longer: noticed later; shorter: a busy broker
# counts as unreachable
LATE_S = 5.0

Chore = Union[ResetRequests, ValidationRequests]


class Sink(Protocol):
    """What the loop reports, and to which object: the `Fetcher`."""

    def arrived(self, buffer: PartitionBuffer) -> None: ...

    def fail(self, tp: TopicPartition, error: AllocatorError, *, lasting: bool = False) -> None: ...

    def healed(self, tp: TopicPartition) -> None: ...

    def broke(self, error: BaseException) -> None: ...

    def recreated(self, tp: TopicPartition) -> None: ...

    def reset(self, tp: TopicPartition, offset: int, epoch: int) -> None: ...

    def cut(self, what: LogTruncation) -> None: ...


class BrokerFetcher:
    """The fetchable partitions of one broker, the next one to request first, and its fetch session.

    The broker leads them, or is the replica that their leader named. The main request uses the session. The urgent
    request has a connection of its own, because it starts and ends while the broker holds the main request back.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        self.main: _Fetch | None = None
        self.urgent: _Fetch | None = None
        # when the main request was sent, and until when the broker may hold it back
        self.main_since = self.main_until = 0.0
        # the last response was full, so partitions without records in it may have some
        self.full = False
        self.session = FetchSession()

    def to_the_end(self, tps: Iterable[TopicPartition]) -> None:
        """Request these after all others."""
        for tp in tps:
            buffer = self.buffers.pop(tp, None)
            if buffer is not None:
                self.buffers[tp] = buffer


class _Fetch:
    """One request to one broker, until the records of its response are in the buffers."""

    __slots__ = ("broker", "buffers", "max_bytes", "repeated", "reserved", "session", "urgent", "wait_s", "wanted")

    def __init__(
        self,
        broker: BrokerFetcher,
        urgent: bool,
        buffers: dict[TopicPartition, PartitionBuffer],
        wanted: dict[TopicPartition, Wanted],
        max_bytes: int,
        reserved: int,
        wait_s: float,
    ) -> None:
        self.broker = broker
        self.urgent = urgent
        self.buffers = buffers
        self.wanted = wanted
        self.max_bytes = max_bytes
        self.reserved = reserved
        self.wait_s = wait_s
        self.session = FetchSession() if urgent else broker.session
        # the broker has refused the session once
        self.repeated = False

    @property
    def node(self) -> Any:
        """("urgent", node) is a second connection to that node."""
        return ("urgent", self.broker.node_id) if self.urgent else self.broker.node_id


class BrokerFetchers:
    """Keeps a request under way at each broker while there is a partition to fetch and room for the response.

    Guarantee: a partition is in at most one request, and the `budget` is kept. One task decides (`_plan`, which never
    waits); `close` cancels it and the tasks of the requests, and waits for them all.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        sink: Sink,
        *,
        max_wait_s: float,
        min_bytes: int,
        budget: ByteBudget,
        isolation_level: str,
        retry_backoff_s: float,
        rack: str,
    ) -> None:
        self._client = client
        self._state = state
        self._sink = sink
        self._max_wait_s = max_wait_s
        self._min_bytes = min_bytes
        self._committed_only = isolation_level == "read_committed"
        self._rack = rack
        self._backoff = Backoff(retry_backoff_s, BACKOFF_MAX_S)
        self.budget = budget
        chores: dict[str, Any] = {
            "backoff_s": retry_backoff_s,
            "timeout_s": POSITION_TIMEOUT_S,
            "clock": time.monotonic,
            "fail": sink.fail,
        }
        self._resets = ResetRequests(client, state, isolation_level=isolation_level, found=sink.reset, **chores)
        self._validations = ValidationRequests(client, state, cut=sink.cut, healed=sink.healed, **chores)
        # when to check for due requests; None: no partition awaits one
        self._due_at: dict[Chore, float | None] = {self._resets: None, self._validations: None}
        self._lookups = Lookups(client, retry_backoff_s, self.metadata_changed)
        self._failures = RepeatedFailures(log)
        self._buffers: dict[TopicPartition, PartitionBuffer] = {}
        self._brokers: dict[int, BrokerFetcher] = {}
        self._broker_of: dict[TopicPartition, int] = {}
        # partition -> the epoch under which its records are not wanted any more
        self._discarded: dict[TopicPartition, int] = {}
        # topic -> its earlier ids: a broker with old metadata may still announce one
        self._former: dict[str, set[Any]] = {}
        self._seen_version = -1
        self._new_metadata = True
        # brokers to which a fetch connection was opened while positions were looked up
        self._prepared: set[int] = set()
        # a request was put off for lack of room
        self._pressed = False
        self._lease_look_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._event: asyncio.Event | None = None
        self._forget_listener: Any = None

    def start(self) -> None:
        if self._event is None:
            self._event = asyncio.Event()
            self._forget_listener = self._client.on_metadata(self.metadata_changed)
            self._spawn(self._run())

    async def close(self) -> None:
        """Cancel all tasks and wait for them."""
        if self._forget_listener is not None:
            self._forget_listener()
            self._forget_listener = None
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._buffers.clear()
        self._brokers.clear()
        self.budget.held = self.budget.reserved = 0

    # -- called by the fetcher

    def halt(self, tp: TopicPartition) -> None:
        """Stop fetching a partition until the next seek, and drop its buffered records."""
        buffer = self._buffers.get(tp)
        if buffer is not None:
            buffer.clear()
            buffer.halted = True

    def halted(self) -> list[TopicPartition]:
        """Partitions that are not fetched any more and have nothing left to deliver."""
        return [tp for tp, each in self._buffers.items() if each.halted and not each.queue and self.is_current(each)]

    def wake(self) -> None:
        """Plan again soon."""
        if self._event is not None:
            self._event.set()

    def room_changed(self) -> None:
        """Records were delivered: plan again if that lets a request go out."""
        if self._pressed:
            self.wake()

    def metadata_changed(self) -> None:
        """Leaders may have moved. Caller: the client."""
        self._new_metadata = True
        self._seen_version = -1
        for buffer in self._buffers.values():
            buffer.wanted = None  # the metadata has the leader's epoch
        self.wake()

    def is_current(self, buffer: PartitionBuffer) -> bool:
        """Whether no seek, reset or reassignment has replaced `buffer`."""
        return self._buffers.get(buffer.tp) is buffer and self._state.epoch(buffer.tp) == buffer.epoch

    def prepare(self, tp: TopicPartition) -> None:
        """Connects to the leader of a partition that is assigned soon, or whose position is looked up."""
        leader = self._client.leader(tp)
        if leader is not None and leader not in self._prepared and not self._closed:
            self._prepared.add(leader)
            self._spawn(self._client.prepare(leader, FetchRequest))

    def discard(self, tp: TopicPartition) -> None:
        """Drops the buffered records of a partition, and fetches no more of it under this epoch."""
        epoch = self._state.epoch(tp)
        if epoch is not None:
            self._discarded[tp] = epoch
        buffer = self._buffers.pop(tp, None)
        if buffer is not None:
            buffer.clear()
        self._seen_version = -1
        self.wake()

    def unreachable(self) -> set[TopicPartition]:
        """The partitions to fetch whose leader is unknown or failed, or has not responded for a while."""
        late = time.monotonic() - LATE_S
        served = {
            tp
            for broker in self._brokers.values()
            if broker.main is None or broker.main_until > late
            for tp, buffer in broker.buffers.items()
            if not buffer.failures
        }
        return {tp for tp, partition in self._state.assignment.items() if partition.is_fetchable() and tp not in served}

    def leader_epoch(self, tp: TopicPartition, offset: int) -> int:
        """The epoch of the last record before `offset`; -1 if unknown."""
        buffer = self._buffers.get(tp)
        return buffer.leader_epoch(offset) if buffer is not None and self.is_current(buffer) else -1

    # -- planning

    async def _run(self) -> None:
        assert self._event is not None
        loop = asyncio.get_running_loop()
        while True:
            self._event.clear()
            again_at = self._plan()
            timer = None
            if again_at is not None:
                timer = loop.call_later(max(0.001, again_at - time.monotonic()), self._event.set)
            try:
                await self._event.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _plan(self) -> float | None:
        """Send the requests that can be sent. Returns when to plan again even without an event; None: never."""
        now = time.monotonic()
        times: list[float] = []
        if self._lease_look_at is not None and now >= self._lease_look_at:
            self._seen_version = -1
        if self._state.version != self._seen_version:
            self._sync(now)
        if self._lease_look_at is not None:
            times.append(self._lease_look_at)
        for chore, at in self._due_at.items():
            if at is not None and now >= at:
                due = chore.due()
                if due:
                    self._spawn(self._do(chore, due))
                at = self._due_at[chore] = chore.next_time()
            if at is not None:
                times.append(at + 0.001)  # the request is allowed only after that time, not at it
        topics = self._lookups.due(now, times)
        if topics:
            self._spawn(self._lookups.run(topics))
        self._pressed = False
        for broker in list(self._brokers.values()):
            if self._plan_broker(broker, now, times):
                # if there is not room for all, the other partitions come first
                self._brokers[broker.node_id] = self._brokers.pop(broker.node_id)
        return min(times, default=None)

    def _sync(self, now: float) -> None:
        """Adopt the changes of the subscription state and the metadata."""
        state = self._state
        # sought partitions too: the offset may have been committed under an older leader
        new = [tp for tp in state.assignment if tp not in self._buffers or state.epoch(tp) != self._buffers[tp].epoch]
        checked = list(state.assignment) if self._new_metadata else new
        self._check_topic_ids(checked)
        self._validations.look(checked)
        self._new_metadata = False
        self._seen_version = state.version
        for tp, buffer in list(self._buffers.items()):
            if state.epoch(tp) != buffer.epoch:
                del self._buffers[tp]
                buffer.clear()
        self._discarded = {tp: epoch for tp, epoch in self._discarded.items() if state.epoch(tp) == epoch}
        fetchable = self._fetchable_by_broker(now)
        for node_id in fetchable.keys() - self._brokers.keys():
            self._brokers[node_id] = BrokerFetcher(node_id)
        for node_id, broker in list(self._brokers.items()):
            mine = fetchable.get(node_id, set())
            # keep the order: partitions that were served last are at the end
            kept = {tp: self._buffers[tp] for tp in broker.buffers if tp in mine}
            broker.buffers = {**kept, **{tp: self._buffers[tp] for tp in mine}}
            if not mine and broker.main is None and broker.urgent is None:
                del self._brokers[node_id]

    def _fetchable_by_broker(self, now: float) -> dict[int, set[TopicPartition]]:
        """Which partitions are fetched from which broker; creates their buffers and divides the budget."""
        state = self._state
        self._lease_look_at = None
        self._lookups.lost = set()
        broker_of: dict[TopicPartition, int] = {}
        fetchable: dict[int, set[TopicPartition]] = {}
        count = 0
        for tp, partition in state.assignment.items():
            if partition.awaiting_reset:
                self._due_at[self._resets] = 0.0
            elif partition.awaiting_validation:
                self._due_at[self._validations] = 0.0
            if partition.position is None:
                self.prepare(tp)
            if partition.position is None or self._discarded.get(tp) == partition.epoch:
                continue
            if tp not in self._buffers:
                self._buffers[tp] = PartitionBuffer(tp, partition.epoch, partition.position, self.budget)
            if not partition.is_fetchable():
                continue
            count += 1
            broker = partition.preferred_read_replica()
            if broker is None:
                broker = self._client.leader(tp)
            else:
                self._lease_look_at = now + LEASE_LOOK_S
            if broker is None:
                self._lookups.lost.add(tp.topic)
                if tp in self._broker_of:
                    broker_of[tp] = self._broker_of[tp]  # shows later that the next broker is another one
                continue
            broker_of[tp] = broker
            fetchable.setdefault(broker, set()).add(tp)
            if self._broker_of.get(tp, broker) != broker:
                self._buffers[tp].next_try = 0.0  # a fetch that failed at one broker may succeed at another
        self._broker_of = broker_of
        self.budget.divide(count)
        return fetchable

    def _check_topic_ids(self, partitions: Iterable[TopicPartition]) -> None:
        """Report the positions of topics that were deleted and created again (brokers from 2.8)."""
        for tp in partitions:
            found = self._client.topic_id(tp.topic)
            if found is None or found in self._former.get(tp.topic, ()):
                continue
            before = self._state.note_topic(tp, found)
            if before is not None:
                self._former.setdefault(tp.topic, set()).add(before)
                self._sink.recreated(tp)

    def _plan_broker(self, broker: BrokerFetcher, now: float, times: list[float]) -> bool:
        """Send one request to a broker if possible. Adds to `times` when a back-off ends."""
        if broker.main is not None and (broker.urgent is not None or broker.main_until <= now):
            return False
        wanting = self._wanting(broker, now, times)
        if not wanting:
            return False
        urgent = broker.main is not None
        if urgent and broker.full and now < broker.main_since + FULL_WAIT_S:
            times.append(broker.main_since + FULL_WAIT_S)
            return False
        # One share stays free: idle long polls must not reserve the whole budget, or a new partition would wait for
        # their end.
        others = self._brokers.values()
        takers = 1 + (len(others) if urgent else sum(other.main is None for other in others))
        room = self.budget.room(len(others), takers, self._reclaim)
        if room is None:
            self._pressed = True
            return False
        version = self._client.api_version(FetchRequest)
        bounded = version is not None and version >= BOUNDED
        asked = self.budget.sizes(wanting, room, bounded=bounded)
        reserved = sum(size for _, size in asked)
        if bounded:
            reserved = min(room, reserved)
        else:
            # with or without records in the response: not all partitions fit into one request
            broker.to_the_end([buffer.tp for buffer, _ in asked])
        wait_s = min(URGENT_WAIT_S, broker.main_until - now) if urgent else self._max_wait_s
        for buffer, _ in asked:
            buffer.in_flight = True
        self.budget.reserve(reserved)
        buffers = {buffer.tp: buffer for buffer, _ in asked}
        wanted = {buffer.tp: self._wanted(buffer, size) for buffer, size in asked}
        fetch = _Fetch(broker, urgent, buffers, wanted, room, reserved, wait_s)
        if urgent:
            broker.urgent = fetch
        else:
            broker.main, broker.main_since, broker.main_until = fetch, now, now + wait_s
        self._send(fetch)
        return True

    def _wanting(self, broker: BrokerFetcher, now: float, times: list[float]) -> list[PartitionBuffer]:
        """The partitions of a broker that may be requested now."""
        wanting = []
        for buffer in broker.buffers.values():
            if buffer.in_flight or buffer.halted:
                continue
            if buffer.next_try > now:
                times.append(buffer.next_try)
            elif buffer.held >= self.budget.share:
                self._pressed = True
            else:
                wanting.append(buffer)
        return wanting

    def _reclaim(self, wanted: int) -> int:
        """Free the bytes of partitions that may not be delivered, the largest first; they are fetched again."""
        freed = 0
        idle = [buffer for buffer in self._buffers.values() if buffer.held and not self._state.is_fetchable(buffer.tp)]
        for buffer in sorted(idle, key=lambda buffer: buffer.held, reverse=True):
            if freed >= wanted:
                break
            freed += buffer.rewind()
        return freed

    # -- requests

    def _send(self, fetch: _Fetch) -> None:
        """Send one request: at once if its connection is ready, in a task if not."""
        client = self._client
        version = client.api_version(FetchRequest)
        turn = fetch.session.turn(fetch.wanted, SESSIONLESS if fetch.urgent or version is None else version)
        now = time.monotonic()
        leader_only = any(now < buffer.leader_until for buffer in fetch.buffers.values())
        request = FetchRequest(
            turn.asked,
            turn.forgotten,
            session=turn.session,
            max_version=turn.max_version,
            max_wait_s=fetch.wait_s,
            min_bytes=self._min_bytes,
            max_bytes=fetch.max_bytes,
            committed_only=self._committed_only,
            rack="" if leader_only else self._rack,
        )
        timeout_s = client.request_timeout_s + fetch.wait_s
        # a tracing span belongs to a task
        if client.measures.spans is None and client.send_now(
            fetch.node, request, timeout_s, partial(self._responded, fetch)
        ):
            return
        self._spawn(self._exchange(fetch, request, timeout_s))

    async def _exchange(self, fetch: _Fetch, request: FetchRequest, timeout_s: float) -> None:
        answer, error = None, None
        try:
            with self._client.measures.span("fetch", broker=fetch.broker.node_id, partitions=len(fetch.wanted)):
                answer = await self._client.send(fetch.node, request, timeout_s)
        except (BrokerError, Closed) as failure:
            error = failure
        self._responded(fetch, answer, error)

    def _responded(self, fetch: _Fetch, answer: FetchAnswer | None, error: AllocatorError | None) -> None:
        """The response to a request came, or none will. When the broker refuses the session, the request goes out once
        more, in a new one.
        """
        if self._closed:
            return
        try:
            if answer is None or error is not None:
                self._failed(fetch, error)
            elif fetch.session.answered(answer) or fetch.repeated:
                self._take_apart(fetch, answer)
            else:
                fetch.repeated = True
                self._send(fetch)
        except Exception as failure:  # noqa: BLE001 - the connection called, and is not at fault
            self._sink.broke(failure)

    def _failed(self, fetch: _Fetch, error: AllocatorError | None) -> None:
        fetch.session.lost()
        if isinstance(error, BrokerError):
            key = (fetch.broker.node_id, type(error), error.code)
            self._failures.note(key, "fetching from broker %s: %s", fetch.broker.node_id, error)
            self._no_response(fetch.buffers.values(), error, fetch.broker.node_id)
        elif error is not None and not isinstance(error, Closed):
            raise error
        self._end(fetch)
        self.wake()

    def _end(self, fetch: _Fetch) -> None:
        """Another request may go out."""
        self.budget.reserve(-fetch.reserved)
        for buffer in fetch.buffers.values():
            buffer.in_flight = False
        if fetch.urgent:
            fetch.broker.urgent = None
        else:
            fetch.broker.main = None

    def _go_on(self, fetch: _Fetch, with_records: list[TopicPartition]) -> None:
        """Send the next request before the consumer learns of these records: the broker works while it decodes them.

        Not when room is short, for then it may be the turn of another broker.
        """
        fetch.broker.to_the_end(with_records)
        self._end(fetch)
        times: list[float] = []
        next_sent = (
            self._state.version == self._seen_version
            and not self._pressed
            and self._plan_broker(fetch.broker, time.monotonic(), times)
        )
        version = self._client.api_version(FetchRequest)
        if not next_sent or times or version is None or version < BOUNDED:
            self.wake()
        for tp in with_records:
            if self.is_current(fetch.buffers[tp]):
                self._sink.arrived(fetch.buffers[tp])

    def _wanted(self, buffer: PartitionBuffer, size: int) -> Wanted:
        """The request for one partition; the same object as long as nothing of it has changed."""
        wanted = buffer.wanted
        if wanted is None or wanted.offset != buffer.fetch_offset or wanted.size != size:
            epoch = self._client.leader_epoch(buffer.tp)
            topic_id = self._client.topic_id(buffer.tp.topic)
            wanted = buffer.wanted = Wanted(buffer.fetch_offset, size, -1 if epoch is None else epoch, topic_id)
        return wanted

    async def _do(self, chore: Chore, due: set[TopicPartition]) -> None:
        try:
            self._lookups.doubted |= {tp.topic for tp in await chore.run(due)}
        except Closed:
            return
        finally:
            self._due_at[chore] = chore.next_time()
            self.wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._sink.broke(cast(BaseException, task.exception()))

    # -- responses

    def _take_apart(self, fetch: _Fetch, answer: FetchAnswer) -> None:
        """Put the records of each partition into its buffer."""
        version = answer.API_VERSION
        if answer.error_code:
            for tp in fetch.wanted:
                part = FetchedPartition(tp.topic, tp.partition, answer.error_code, -1, -1, -1, [], b"")
                self._take_partition(fetch, tp, part, version)
            self._go_on(fetch, [])
            return
        if not fetch.urgent:
            brought = sum(len(part.records) for part in answer.parts)
            fetch.broker.full = brought + self.budget.max_partition_bytes > fetch.max_bytes
        self._take_some(fetch, fetch.session.parts(answer.parts), version, [])

    def _take_some(
        self,
        fetch: _Fetch,
        parts: Iterator[tuple[TopicPartition, FetchedPartition]],
        version: int,
        with_records: list[TopicPartition],
    ) -> None:
        """Let other tasks run after `BREATH_BYTES`; the rest of the response follows."""
        breath = 0
        for tp, part in parts:
            if tp not in fetch.wanted:
                continue
            if part.records:
                with_records.append(tp)
                breath += len(part.records)
            self._take_partition(fetch, tp, part, version)
            if breath > BREATH_BYTES:
                self._spawn(self._take_rest(fetch, parts, version, with_records))
                return
        self._go_on(fetch, with_records)

    async def _take_rest(
        self,
        fetch: _Fetch,
        parts: Iterator[tuple[TopicPartition, FetchedPartition]],
        version: int,
        with_records: list[TopicPartition],
    ) -> None:
        self._take_some(fetch, parts, version, with_records)

    def _take_partition(self, fetch: _Fetch, tp: TopicPartition, part: FetchedPartition, version: int) -> None:
        """React to the part of one partition. `_go_on` reports its records, after it has sent the next request."""
        buffer, (offset, size, _, _) = fetch.buffers[tp], fetch.wanted[tp]
        if not self.is_current(buffer) or buffer.fetch_offset != offset or buffer.halted:
            return  # sought, reset, reassigned, reclaimed or halted since the request
        state = self._state
        reaction = reaction_to(part.code, FETCH)
        if reaction is Reaction.DONE:
            buffer.succeeded()
            self._sink.healed(tp)
            state.update_high_watermark(tp, part.high_watermark)
            state.update_last_stable_offset(tp, part.last_stable_offset)
            if part.preferred_replica >= 0:
                expiry = time.monotonic() + REPLICA_LEASE_S
                if state.update_preferred_read_replica(tp, part.preferred_replica, expiry):
                    log.info("%s:%d is read from broker %d, which is nearer", *tp, part.preferred_replica)
            if part.records:
                self._take_records(buffer, offset, size, part, version)
            return
        if part.code and reaction is not Reaction.RESET:
            self._failures.note(
                (tp, part.code), "%s:%d at offset %d: error %d, %s", *tp, offset, part.code, reaction.value
            )
        if self._leave_replica(buffer, fetch.broker.node_id):
            # the leader may have records that a replica lacks, and its error is the relevant one
            self._want_metadata(tp.topic)
        elif reaction in (Reaction.RETRY, Reaction.REFRESH, Reaction.REFIND, Reaction.VALIDATE):
            buffer.back_off(time.monotonic(), self._backoff)
            if reaction is not Reaction.RETRY:
                self._want_metadata(tp.topic)
            if reaction is Reaction.VALIDATE:
                state.request_position_validation(tp)
        elif reaction is Reaction.RESET:
            self._halt(buffer, OutOfRange(offset))
        elif reaction is Reaction.RAISE:
            self._report(buffer, error_of(part.code, tp, offset))
        else:
            self._halt(buffer, Failure(error_of(part.code, tp, offset)))

    def _take_records(
        self, buffer: PartitionBuffer, offset: int, size: int, part: FetchedPartition, version: int
    ) -> None:
        tp = buffer.tp
        found = scan(part.records, topic=tp.topic, partition=tp.partition, start=offset, aborted=part.aborted)
        if found.wanted is not None and found.error is None:
            self._take_incomplete(buffer, offset, size, found, version)
            return
        buffer.need = 0
        if buffer.precedes(found):
            self._sink.recreated(tp)
            return
        if found.next_offset > offset:
            buffer.push(Chunk(found, offset, part.high_watermark))
            fetched = self._client.measures.fetched
            if fetched is not None:
                fetched.add(tp, found.next_offset - offset, len(part.records))
        if found.error is not None:
            buffer.halt(Failure(found.error))
        elif found.next_offset <= offset:
            why = "the broker sent only records from before this offset"
            buffer.halt(Failure(CorruptRecordError(tp.topic, tp.partition, offset, why)))

    def _take_incomplete(self, buffer: PartitionBuffer, offset: int, size: int, found: RecordSet, version: int) -> None:
        """The response holds not even one whole record batch."""
        tp, wanted = buffer.tp, found.wanted or 0
        if version >= BOUNDED:
            # these brokers send the first batch whole whatever the limits, so its length field is wrong
            why = f"a record batch of {wanted} bytes of which {len(found.data)} came"
            self._halt(buffer, Failure(CorruptRecordError(tp.topic, tp.partition, offset, why)))
        elif max(wanted, size + 1) > self.budget.record_bytes:
            length = f"{wanted} bytes" if wanted else f"more than {size} bytes"
            limit = f"the most to request from this broker, {self.budget.record_bytes}"
            why = f"a message of {length}, above {limit}; raise prefetch_bytes to its size, or seek past it"
            self._halt(buffer, Failure(RecordTooLarge(tp.topic, tp.partition, offset, why)))
        else:
            buffer.need = min(max(wanted, 2 * size), self.budget.record_bytes)

    def _no_response(self, buffers: Iterable[PartitionBuffer], error: BrokerError, node_id: int) -> None:
        now = time.monotonic()
        for buffer in buffers:
            if not self.is_current(buffer):
                buffer.back_off(now, self._backoff)
                continue
            self._want_metadata(buffer.tp.topic)
            if self._leave_replica(buffer, node_id):
                continue
            buffer.back_off(now, self._backoff)
            if not error.retriable:
                self._report(buffer, error)

    def _leave_replica(self, buffer: PartitionBuffer, node_id: int) -> bool:
        """Return to the leader if broker `node_id` is the preferred replica. Returns whether it was."""
        if self._state.preferred_read_replica(buffer.tp) != node_id:
            return False
        self._state.clear_preferred_read_replica(buffer.tp)
        buffer.leader_until = time.monotonic() + REPLICA_SHUNNED_S
        log.info("%s:%d is read from its leader again, not from broker %d", *buffer.tp, node_id)
        return True

    def _want_metadata(self, topic: str) -> None:
        """The leaders of `topic` may have moved."""
        self._lookups.doubted.add(topic)
        self.wake()

    def _halt(self, buffer: PartitionBuffer, what: OutOfRange | Failure) -> None:
        buffer.halt(what)
        self._sink.arrived(buffer)

    def _report(self, buffer: PartitionBuffer, error: AllocatorError) -> None:
        buffer.next_try = time.monotonic() + HOPELESS_S
        self._sink.fail(buffer.tp, error, lasting=True)
