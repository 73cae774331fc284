"""Records of the assigned partitions, read ahead from all leaders at once."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from allocator.errors import AllocatorError, Closed, ConfigError, CorruptRecordError, OffsetOutOfRange, TopicRecreated
from allocator.fetch.batch import Batch
from allocator.fetch.brokers import BrokerFetchers
from allocator.fetch.buffer import ByteBudget, Chunk, Failure, OutOfRange, PartitionBuffer
from allocator.subscription import LogTruncation, RecordsLost, SubscriptionState, reset_timestamp
from allocator.subscription.partition import ResetStrategy
from allocator.types import Deserializer, TopicPartition

if TYPE_CHECKING:
    from allocator.client.client import KafkaClient

__all__ = ["Fetcher"]

log = logging.getLogger(__name__)

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


class _Resetting(NamedTuple):
    """A position that was given up, until the reset has found another one."""

    position: int
    why: str
    recreated: bool
    epoch: int | None  # of the state since then


class Fetcher:
    """Fetches the fetchable partitions of `state` ahead of the consumer and hands out `Batch`es.

    Guarantees:
    - Batches of a partition come in the order of offsets, without gap, from its position on; none is handed out that
      was asked for before a seek, a reset or a reassignment, or while the partition is paused.
    - What is held and asked for stays within `prefetch_bytes`. One answer may exceed it: a record batch that is
      larger than what was asked for comes whole, as the broker sends it so that a consumer can go on (KIP-74).
    - Partitions do not hold each other up: one that is paused, failing or not consumed keeps only its own share when
      others need the room.
    - An error of a partition is raised by `next_batch` once, after all that was read before it.

    Partitions for which the state asks for a reset get their position here (ListOffsets); those that have neither a
    position nor a reset are left alone: they are the consumer's to seek. `lost` is called when a position that the
    log does not have was replaced by another one, before anything is handed out from there.

    Start it in the loop it will run in, and close it there, or use `async with`.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        *,
        max_wait_s: float = 0.5,  # more: fewer requests when idle; less: brokers answer an idle partition sooner
        min_bytes: int = 1,  # more: fewer, larger answers, which come up to max_wait_s later
        max_bytes: int = 52_428_800,  # of one answer; before 0.10.1 also the largest record that can be read
        max_partition_bytes: int = 1_048_576,  # of a partition in one answer; more: others come later
        prefetch_bytes: int = 33_554_432,  # more: longer stalls are bridged; less: less memory
        auto_offset_reset: ResetStrategy = "earliest",
        isolation_level: str = "read_uncommitted",  # or "read_committed"
        rack: str | None = None,  # of this machine: replicas in the same one are read, if brokers select them (KIP-392)
        check_crcs: bool = True,  # False saves a little CPU and hands out what disks and networks damaged
        key_deserializer: Deserializer = None,
        value_deserializer: Deserializer = None,
        retry_backoff_s: float = 0.1,  # more: slower to come back after an error; less: more requests meanwhile
        lost: Callable[[RecordsLost], None] | None = None,
    ) -> None:
        whole = {"max_bytes": max_bytes, "max_partition_bytes": max_partition_bytes, "prefetch_bytes": prefetch_bytes}
        wrong = [
            f"{name} is {value!r}, not a whole number above 0" for name, value in whole.items() if not _count(value)
        ]
        if not _count(min_bytes) and min_bytes != 0:
            wrong.append(f"min_bytes is {min_bytes!r}, not a whole number from 0")
        for name, seconds in (("max_wait_s", max_wait_s), ("retry_backoff_s", retry_backoff_s)):
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 2**31 / 1000:
                wrong.append(f"{name} is {seconds!r}, not a number of seconds")
        if isolation_level not in ISOLATION_LEVELS:
            wrong.append(f"isolation_level is {isolation_level!r}, not one of {', '.join(ISOLATION_LEVELS)}")
        if rack is not None and not isinstance(rack, str):
            wrong.append(f"rack is {rack!r}, not the name of a rack")
        for name, given in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
            if given is not None and not callable(given):
                wrong.append(f"{name} is {given!r}, not a function of bytes")
        if wrong:
            raise ConfigError("; ".join(wrong))
        self._state = state
        self._reset = auto_offset_reset
        self._lost = lost
        self._resetting: dict[TopicPartition, _Resetting] = {}
        self._has_reset = reset_timestamp(auto_offset_reset) is not None
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._budget = ByteBudget(
            prefetch_bytes=prefetch_bytes, max_bytes=max_bytes, max_partition_bytes=max_partition_bytes
        )
        self._leaders = BrokerFetchers(
            client,
            state,
            self,
            max_wait_s=max_wait_s,
            min_bytes=min_bytes,
            budget=self._budget,
            isolation_level=isolation_level,
            check_crcs=check_crcs,
            retry_backoff_s=retry_backoff_s,
            rack=rack or "",
        )
        # partitions with something to hand out, the next one first; those that may not come out wait in _parked
        self._ready: OrderedDict[TopicPartition, PartitionBuffer] = OrderedDict()
        self._parked: dict[TopicPartition, PartitionBuffer] = {}
        self._seen_version = -1
        self._errors: deque[AllocatorError] = deque()
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False
        self.broken: BaseException | None = None
        """The fault of ours that ended fetching."""

    async def start(self) -> None:
        """Begin to fetch. Raises `Closed` after `close`."""
        if self._closed:
            raise Closed("this fetcher is closed; make a new one")
        self._leaders.start()

    async def close(self) -> None:
        """End every task and forget what is held; those who wait for a batch get `Closed`. Idempotent."""
        self._closed = True
        self._let_go()
        await self._leaders.close()
        self._ready.clear()
        self._parked.clear()

    async def __aenter__(self) -> Fetcher:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def buffered_bytes(self) -> int:
        """What is held for `next_batch`, without what is being asked for."""
        return self._budget.held

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """The next batch of any fetchable partition, each in turn; None when there is none within `timeout_s`.

        0 does not wait, None waits for ever. It changes no position: call
        `state.update_position(tp, batch.next_offset)` when taking the batch, or when done with it at the latest.
        Cancelling loses nothing.

        Raises what befell a partition, once; it may be called on, and other partitions go on:
        `OffsetOutOfRange` (reset strategy "none"), `RecordTooLarge`, `CorruptRecordError` and refusals by the broker
        end the fetching of that partition until it is sought; `TopicAuthorizationFailed` does not. Raises `Closed`.
        """
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while True:
            batch = self.take()
            if batch is not None:
                return batch
            if not await self._wait(deadline):
                return None

    async def news(self, timeout_s: float | None = None) -> bool:
        """Until `take` may have something to return or to raise, or `wake` was called; False when time is up."""
        return await self._wait(None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s)

    def leader_epoch(self, tp: TopicPartition, offset: int) -> int:
        """The epoch of the record before `offset`, which was read; -1 if it was not, or Kafka is older than 0.11.

        To be stored with a position or a commit at `offset`: by it a log that was cut is told from one that grew
        (KIP-320).
        """
        return self._leaders.leader_epoch(tp, offset)

    def wake(self) -> None:
        """Look at the state anew. Caller: the consumer, after changing assignment, positions or pauses."""
        self._leaders.wake()
        self._let_go()

    def discard(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is held of them and hand out nothing of them until they are assigned anew or sought.

        Caller: the consumer, when they are revoked or lost.
        """
        for tp in partitions:
            self._ready.pop(tp, None)
            self._parked.pop(tp, None)
            self._leaders.discard(tp)

    def halt(self, tp: TopicPartition) -> None:
        """Leave a partition alone until it is sought. Caller: the consumer, when it cannot decode a batch."""
        self._ready.pop(tp, None)
        self._parked.pop(tp, None)
        self._leaders.halt_partition(tp)

    def halted(self) -> list[TopicPartition]:
        """Partitions that are left alone until they are sought; what was wrong with them was raised."""
        return self._leaders.halted()

    # -- what Leaders calls

    def arrived(self, feed: PartitionBuffer) -> None:
        """There is something in `feed`."""
        self._parked.pop(feed.tp, None)
        self._ready[feed.tp] = feed
        self._let_go()

    def tell(self, error: AllocatorError) -> None:
        """`error` is for whoever asks next."""
        self._errors.append(error)
        self._let_go()

    def broke(self, error: BaseException) -> None:
        """Fetching ended by a fault of ours: everyone who asks hears of it, rather than waiting for ever."""
        self.broken = error
        self._let_go()

    def recreated(self, tp: TopicPartition) -> None:
        """The position of `tp` is an offset of a topic that is gone; what was read ahead is dropped."""
        position = self._state.position(tp)
        if position is None:
            return
        if self._has_reset:
            self._begin_reset(tp, position.offset, "the topic was deleted and created again", recreated=True)
        else:
            self._state.halt_recreated(tp)
            self.tell(TopicRecreated(tp.topic, tp.partition, position.offset))

    def reset(self, tp: TopicPartition, offset: int, epoch: int) -> None:
        """The reset that the state asked for under `epoch` found `offset`."""
        before = self._resetting.pop(tp, None)
        if before is None or before.epoch != epoch:
            return  # there was no position before, or it was given up for another reason
        first = 0 if before.recreated else before.position
        last = offset - 1 if offset > first else None
        start = None if last is None else first
        self._tell_loss(RecordsLost(tp, before.position, offset, start, last, before.why, before.recreated))

    def cut(self, what: LogTruncation) -> None:
        """The log of a new leader ends before the position; the state goes on as `what` says."""
        tp, position, why = what.partition, what.position.offset, "the log of its new leader was cut before it"
        if what.divergent is not None:
            self._tell_loss(RecordsLost(tp, position, what.divergent.offset, None, None, why))
            return
        log.warning("%s:%d at offset %d: %s; resetting to %s", tp.topic, tp.partition, position, why, self._reset)
        self._resetting[tp] = _Resetting(position, why, False, self._state.epoch(tp))

    # -- inside

    def take(self, topic: str | None = None) -> Batch | None:
        """What `next_batch` returns, or raises, if it need not wait; of one topic only, if it is given."""
        if self._closed:
            raise Closed("this fetcher is closed; make a new one")
        if self._errors:
            raise self._errors.popleft()
        if self._state.version != self._seen_version:
            self._seen_version = self._state.version
            self._leaders.wake()
            # whoever was paused may be no more
            self._ready.update(self._parked)
            self._parked.clear()
        for _ in range(len(self._ready)):
            tp, feed = self._ready.popitem(last=False)
            if not self._leaders.is_current(feed):
                continue
            if topic is not None and tp.topic != topic:
                self._ready[tp] = feed
                continue
            if not self._state.is_fetchable(tp):
                self._parked[tp] = feed
                continue
            try:
                batch = self._next_of(feed)
            finally:
                if feed.queue:
                    self._ready[tp] = feed  # behind the others
            if batch is not None:
                return batch
        if self.broken is not None:
            raise self.broken
        return None

    def _next_of(self, feed: PartitionBuffer) -> Batch | None:
        """The next batch of one partition; raises its error when it comes to that."""
        tp, state = feed.tp, self._state
        while feed.queue:
            item = feed.queue[0]
            if isinstance(item, OutOfRange):
                position = state.position(tp)
                if position is None or position.offset < item.offset:
                    # a reset now would jump over records that the consumer holds; it updates the position first
                    return None
                feed.pop()
                self._out_of_range(feed, item.offset)
                return None
            self._leaders.pop(feed)
            if isinstance(item, Failure):
                raise item.error
            try:
                batch = self._batch(tp, item)
            except CorruptRecordError:
                # what follows must not come out as if nothing were missing
                self._leaders.halt(feed)
                raise
            if batch is not None:
                return batch
        return None

    def _batch(self, tp: TopicPartition, chunk: Chunk) -> Batch | None:
        """None if nothing in the chunk is to be seen: then the position passes over it here."""
        state, found = self._state, chunk.found
        batch = Batch(
            tp.topic,
            tp.partition,
            found,
            start=chunk.start,
            high_watermark=chunk.high_watermark,
            key_deserializer=self._key_deserializer,
            value_deserializer=self._value_deserializer,
        )
        # more than one segment has records for certain, as only the first can be cut; else look
        if len(found.segments) > 1 or (found.segments and len(batch)):
            return batch
        position = state.position(tp)
        if position is not None and position.offset == chunk.start:
            state.update_position(tp, found.next_offset)
        return None

    def _out_of_range(self, feed: PartitionBuffer, offset: int) -> None:
        tp = feed.tp
        if not self._has_reset:
            raise OffsetOutOfRange(
                tp.topic,
                tp.partition,
                offset,
                "the log does not reach there and auto_offset_reset is 'none'; seek to an offset that it has",
            )
        self._begin_reset(tp, offset, "the log does not have it")
        self._leaders.wake()

    def _begin_reset(self, tp: TopicPartition, position: int, why: str, *, recreated: bool = False) -> None:
        log.warning("%s:%d at offset %d: %s; resetting to %s", tp.topic, tp.partition, position, why, self._reset)
        self._state.request_offset_reset(tp, self._reset)
        self._resetting[tp] = _Resetting(position, why, recreated, self._state.epoch(tp))

    def _tell_loss(self, loss: RecordsLost) -> None:
        log.warning("%s", loss)
        if self._lost is not None:
            self._lost(loss)

    async def _wait(self, deadline: float | None) -> bool:
        """Until something may have come (True) or the deadline passed (False)."""
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            return False
        waiter: asyncio.Future[None] = loop.create_future()
        timer: Optional[asyncio.TimerHandle] = None
        if deadline is not None:
            timer = loop.call_at(deadline, _finish, waiter)
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
            if timer is not None:
                timer.cancel()
        return True

    def _let_go(self) -> None:
        for waiter in self._waiting:
            _finish(waiter)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
