"""Delivers the records of the assigned partitions, fetched ahead from all brokers in parallel."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from allocator.core.errors import AllocatorError, Closed, ConfigError, CorruptRecordError
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.buffer import ByteBudget, Chunk, Failure, OutOfRange, PartitionBuffer
from allocator.core.fetch.loop import FetchLoop
from allocator.core.fetch.planner import Planner
from allocator.core.fetch.position_requests import PositionRequests
from allocator.core.settings.table import BYTES, DEFAULT, check_keywords
from allocator.core.subscription import Phase, RecordsLost, SubscriptionState
from allocator.core.types import Deserializer, TopicPartition

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient
    from allocator.core.fetch.columns import Segment

log = logging.getLogger(__name__)

FaultPlace = Union[TopicPartition, str]
"""A partition, or the name of a topic of which the member may own no partition."""


class _Fault(NamedTuple):
    """An error of a partition or a topic, which `take` raises until it is resolved.

    `epoch`: the error is valid only in this epoch of the partition; None: until `healed`.
    """

    error: AllocatorError
    epoch: Optional[int]
    raised: bool


class Fetcher:
    """Fetches the fetchable partitions of `state` ahead of the consumer, and delivers `Batch`es.

    Guarantees:
    - Batches of a partition are in the order of offsets, without a gap, from its position on. Records that were
      requested before a seek, a reset or a reassignment are dropped. A paused partition delivers nothing.
    - Fetched and requested bytes stay within `prefetch_bytes`. One response may exceed it: if a record batch is
      larger than the request, the broker sends it whole, so that consumers can proceed (KIP-74).
    - Partitions do not delay each other. A partition that is paused, failing or not consumed keeps only its own share
      of `prefetch_bytes` when others need the bytes.
    - `take` raises an error of a partition after the records before it. Until the error is resolved, later calls raise
      it again, with pauses of the client's `retry_backoff_s`. Other partitions continue: between two errors, `take`
      returns a batch of another partition, if one is ready.

    The fetcher finds the positions of partitions that await a reset (ListOffsets). The consumer must seek partitions
    that have neither a position nor a reset. `lost` is called when a reset replaced a position that the log does not
    have, before records at the new position are delivered. `gate` is called before each delivery. While it returns
    False, nothing is delivered and no error of a partition or topic is raised. `take` raises the errors of `gate`.

    Start and close it in the event loop that it runs in, or use `async with`.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        *,
        max_wait_s: float = DEFAULT["max_wait_s"],
        min_bytes: int = DEFAULT["min_bytes"],
        latency_budget_s: float = DEFAULT["latency_budget_s"],
        prefetch_bytes: int = DEFAULT["prefetch_bytes"],
        # bytes of one partition in a response. Higher: larger batches; lower: smaller batches
        max_partition_bytes: int = 1 << 20,
        isolation_level: str = DEFAULT["isolation_level"],
        rack: str | None = None,  # read from replicas in this rack, if the brokers select them (KIP-392)
        key_deserializer: Deserializer = None,
        value_deserializer: Deserializer = None,
        lost: Callable[[RecordsLost], None] | None = None,
        gate: Callable[[], bool] | None = None,
    ) -> None:
        check_keywords(locals(), max_partition_bytes=BYTES)
        for name, given in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
            if given is not None and not callable(given):
                raise ConfigError(f"{name} is {given!r}, not a function of bytes")
        self._state = state
        self._gate = gate
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        budget = ByteBudget(prefetch_bytes=prefetch_bytes, max_partition_bytes=max_partition_bytes)
        self._planner = Planner(
            client, state, budget, max_wait_s=max_wait_s, latency_budget_s=latency_budget_s if min_bytes <= 1 else 0.0
        )
        self._positions = PositionRequests(client, state, self, lost, isolation_level=isolation_level)
        self._fetching = FetchLoop(
            client,
            state,
            self._planner,
            self._positions,
            self,
            min_bytes=min_bytes,
            isolation_level=isolation_level,
            rack=rack or "",
        )
        # partitions with something to deliver, the next one first; partitions that are not fetchable wait in _parked
        self._ready: OrderedDict[TopicPartition, PartitionBuffer] = OrderedDict()
        self._parked: dict[TopicPartition, PartitionBuffer] = {}
        self._seen_version = -1
        self._faults: dict[FaultPlace, _Fault] = {}
        self._retry_backoff_s = client.retry_backoff_s
        # the earliest time at which `take` may raise an error again
        self._repeat_at = 0.0
        # whether `take` returns a ready batch before it repeats an error: otherwise a reader that pauses after each
        # error would get only errors
        self._batch_first = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[bool]] = set()
        self._closed = False
        self.broken: BaseException | None = None
        """The unexpected error that ended fetching, or None."""

    async def start(self) -> None:
        """Starts fetching. Raises `Closed` after `close`."""
        if self._closed:
            raise Closed("this fetcher is closed; create a new one")
        self._fetching.start()

    async def close(self) -> None:
        """Ends all tasks and drops fetched records. Callers that wait for a batch get `Closed`. Idempotent."""
        self._closed = True
        self._wake_readers()
        await self._fetching.close()
        self._ready.clear()
        self._parked.clear()

    async def __aenter__(self) -> Fetcher:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fetched and not delivered."""
        return self._planner.budget.held

    async def news(self, timeout_s: float | None = None) -> bool:
        """Waits until `take` may return or raise something, or `wake` is called. Returns False after `timeout_s`."""
        if timeout_s is not None and timeout_s <= 0:
            return False
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = self._loop.create_future()
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, _finish, waiter, False)
        self._waiting.add(waiter)
        try:
            return await waiter
        finally:
            self._waiting.discard(waiter)
            if timer is not None:
                timer.cancel()

    def unreachable(self) -> set[TopicPartition]:
        """Returns the partitions to fetch whose leader is unknown, failed, or has not responded for a while."""
        return self._planner.unreachable(time.monotonic())

    def leader_epoch(self, tp: TopicPartition, offset: int) -> int:
        """Returns the epoch of the record before `offset`; -1 if it was not read since the last seek, or before 0.11.

        Store it with a position or a commit at `offset`, to detect a truncated log (KIP-320).
        """
        return self._planner.leader_epoch(tp, offset)

    def wake(self) -> None:
        """Called when the consumer has changed the assignment, positions or pauses."""
        self._fetching.wake()
        self._wake_readers()

    def compare(self, partitions: Iterable[TopicPartition]) -> None:
        """Compares positions with new metadata at once, before records that were read ahead are delivered."""
        self._positions.check(partitions)

    def recreated(self, tp: TopicPartition) -> None:
        """Called when the topic is known to have been created again: drops the position, and reports the loss."""
        self._positions.recreated(tp)

    def prepare(self, partitions: Iterable[TopicPartition]) -> None:
        """Connects to the leaders of partitions that will soon be assigned."""
        for tp in partitions:
            self._fetching.prepare(tp)

    def halt(self, tp: TopicPartition, error: AllocatorError, *, raised: bool = True) -> None:
        """Stops a partition until it is sought. Called when `error` stopped the decoding of a batch.

        `raised`: whether the user gets the error now. Otherwise the next `take` raises it.
        """
        self._ready.pop(tp, None)
        self._parked.pop(tp, None)
        self._planner.halt(tp)
        if raised:
            self._raised(tp, error)
        else:
            self.fail(tp, error)

    def halted(self) -> list[TopicPartition]:
        """Returns the partitions that are stopped until they are sought, and whose errors were raised."""
        return self._planner.halted()

    # -- called by the fetch loop

    def arrived(self, buffer: PartitionBuffer) -> None:
        """Called when `buffer` has something to deliver."""
        self._parked.pop(buffer.tp, None)
        self._ready[buffer.tp] = buffer
        self._wake_readers()

    def fail(self, at: FaultPlace, error: AllocatorError, *, lasting: bool = False) -> None:
        """Makes `take` raise `error` until the partition is sought, reset or revoked; `lasting`: until `healed`.

        The error of a topic is always `lasting`, and does not depend on the assignment.
        """
        before = self.fault(at)
        raised = before is not None and type(before) is type(error)
        self._faults[at] = _Fault(error, self._epoch_of_fault(at, lasting), raised)
        self._wake_readers()

    def _epoch_of_fault(self, at: FaultPlace, lasting: bool) -> int | None:
        return None if lasting or isinstance(at, str) else self._state.epoch(at)

    def healed(self, at: FaultPlace) -> None:
        """Ends a lasting error."""
        if at in self._faults and self._faults[at].epoch is None:
            del self._faults[at]

    def fault(self, at: FaultPlace) -> AllocatorError | None:
        """Returns the error that currently stops a partition or a topic, if any."""
        fault = self._faults.get(at)
        if fault is None or isinstance(at, str):
            return None if fault is None else fault.error
        state = self._state.assignment.get(at)
        if state is None or state.phase is not Phase.ACTIVE or fault.epoch not in (None, state.epoch):
            del self._faults[at]
            return None
        return fault.error

    def lasts(self, error: BaseException) -> bool:
        """Returns whether `take` may raise this error again. That of a partition is over once the partition is sought,
        reset or revoked; while it is paused, `take` does not raise it."""
        number = getattr(error, "partition", None)
        if number is None:
            return True
        tp = TopicPartition(getattr(error, "topic", ""), number)
        return self.fault(tp) is error and self._state.is_wanted(tp)

    def broke(self, error: BaseException) -> None:
        """Called when an unexpected error ended fetching. Each `take` raises it, so that no caller waits for ever."""
        if self.broken is None and isinstance(error, Closed):  # whoever cancels one task cancels the others, too
            log.error("reading has ended: %s", error)
        self.broken = error
        self._wake_readers()

    # -- delivering

    def take(self, topic: str | None = None) -> Batch | None:
        """Returns the next batch, or None if none is ready. If `topic` is given, only a batch of this topic.

        The fetchable partitions take turns. `take` changes no position. The caller must call
        `state.update_position(tp, batch.next_offset, fetcher.leader_epoch(tp, batch.next_offset))` when it takes the
        batch, or when it is done with the batch at the latest.

        Raises the error of a partition until it is resolved, at most once in `retry_backoff_s`. Calls in between return
        batches of other partitions. `OffsetOutOfRange` (reset strategy "none"), `RecordTooLarge`, `CorruptRecordError`
        and refusals by the broker stop their partition until it is sought; `TopicAuthorizationFailed` does not. Raises
        `Closed`.
        """
        if self._gate is not None and not self._gate():
            return None
        if self._closed:
            raise Closed("this fetcher is closed; create a new one")
        if self._faults:
            self._raise_a_fault(topic)
        if self._state.version != self._seen_version:
            self._seen_version = self._state.version
            self._fetching.wake()
            # some parked partitions may have been resumed
            self._ready.update(self._parked)
            self._parked.clear()
        for _ in range(len(self._ready)):
            tp, buffer = self._ready.popitem(last=False)
            if not self._planner.is_current(buffer):
                continue
            if topic is not None and tp.topic != topic:
                self._ready[tp] = buffer
                continue
            if not self._state.is_fetchable(tp):
                self._parked[tp] = buffer
                continue
            try:
                batch = self._next_of(buffer)
            finally:
                if buffer.queue:
                    self._ready[tp] = buffer  # after the others
            if batch is not None:
                self._batch_first = False
                return batch
        if self._batch_first:
            self._batch_first = False
            self._raise_a_fault(topic)
        if self.broken is not None:
            raise self.broken
        return None

    def _raise_a_fault(self, topic: str | None) -> None:
        """Raises the error of the next partition or topic that has one, if it is time."""
        may_repeat = time.monotonic() >= self._repeat_at and not self._batch_first
        for at in list(self._faults):
            error = self.fault(at)
            if error is None or topic not in (None, at if isinstance(at, str) else at.topic):
                continue
            if not isinstance(at, str) and not self._state.is_wanted(at):
                continue
            if may_repeat or not self._faults[at].raised:
                lasting = self._faults.pop(at).epoch is None  # `_raised` adds it again, after the others
                raise self._raised(at, error, lasting=lasting).with_traceback(None)

    def _raised(self, at: FaultPlace, error: AllocatorError, *, lasting: bool = False) -> AllocatorError:
        """Returns `error`, and notes that `take` raises it now and again after a pause."""
        self._faults[at] = _Fault(error, self._epoch_of_fault(at, lasting), True)
        self._repeat_at = time.monotonic() + self._retry_backoff_s
        self._batch_first = True
        asyncio.get_running_loop().call_later(self._retry_backoff_s, self._wake_readers)
        return error

    def _next_of(self, buffer: PartitionBuffer) -> Batch | None:
        """Returns the next batch of one partition, or raises its error if that comes next."""
        tp, state = buffer.tp, self._state
        while buffer.queue:
            item = buffer.queue[0]
            if isinstance(item, OutOfRange):
                position = state.position(tp)
                if position is None or position.offset < item.offset:
                    # the consumer still has records before it; a reset now would skip them
                    return None
                buffer.pop()
                error = self._positions.out_of_range(tp, item.offset)
                if error is not None:
                    raise self._raised(tp, error)
                self._fetching.wake()
                return None
            buffer.pop()
            if self._planner.short_of_bytes:
                self._fetching.wake()
            if isinstance(item, Failure):
                raise self._raised(tp, item.error)
            try:
                batch = self._batch(tp, item)
            except CorruptRecordError as damaged:
                # drops the records after the damaged ones, which must not be delivered as if none were missing
                self._planner.halt(tp)
                raise self._raised(tp, damaged) from None
            if batch is not None:
                return batch
        return None

    def _batch(self, tp: TopicPartition, chunk: Chunk) -> Batch | None:
        """Returns the batch of a chunk. If it has no visible record, moves the position past it and returns None."""
        state, found = self._state, chunk.found
        found.fence = state.fence(tp)
        batch = Batch(
            tp.topic,
            tp.partition,
            found,
            start=chunk.start,
            high_watermark=chunk.high_watermark,
            key_deserializer=self._key_deserializer,
            value_deserializer=self._value_deserializer,
        )
        # only the first segment can be without a record of the batch
        segments = found.segments
        if segments and (len(segments) > 1 or _has_records(segments[0], chunk.start) or len(batch)):
            return batch
        position = state.position(tp)
        if position is not None and position.offset == chunk.start:
            # passes the epoch of the markers or aborted records, because a truncation could not be detected without it
            state.update_position(tp, found.next_offset, self.leader_epoch(tp, found.next_offset))
        return None

    def _wake_readers(self) -> None:
        for waiter in self._waiting:
            _finish(waiter, True)


def _has_records(segment: Segment, start: int) -> bool:
    """Returns whether a segment has a record at `start` or above, as far as its header tells."""
    return segment.count > 0 and segment.base_offset >= start


def _finish(waiter: asyncio.Future[bool], result: bool) -> None:
    if not waiter.done():
        waiter.set_result(result)
