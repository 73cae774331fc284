"""Sends each batch to its partition once and in order, with several requests in flight.

Protocol: Produce v0 to v12 with one batch for each partition, InitProducerId (KIP-98). From Kafka 0.11 on, producer id
and sequence numbers let the broker ignore a repeated batch and refuse a batch that overtook another. Brokers before 1.0
get one request at a time for each partition, because 0.11 recognises only the last batch. Before 0.11, that keeps the
order, but a repeated batch is stored twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple, Optional, Protocol, TypeVar

from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from allocator.core.aio import BackgroundTasks, Backoff, TaskGroup, wait_for_event
from allocator.core.client import ErrorCode, KafkaClient, for_code
from allocator.errors import AllocatorError, BrokerError
from allocator.producer.encoding import SMALL_BYTES, TARGET_BYTES
from allocator.producer.requests import ALL, init_request, produce_request, produced
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

V1, V2, ZSTD = 2, 3, 7  # the first Produce versions with message sets of v1, with batches of v2, and with zstd
# Brokers remember this many batches per producer and partition. With more in flight, they might not recognise a
# repeated batch. Brokers before `REMEMBERS` remember only the last one (KAFKA-5494).
UNDER_WAY: Final = 5
REMEMBERS: Final = 5  # the Produce version of Kafka 1.0
# Bytes of one request. Higher: fewer requests; lower: the leader's other partitions wait for a shorter time
REQUEST_BYTES: Final = 4 << 20
# seconds between two calls of `may_send` while it returns False
ASK_AGAIN_S: Final = 0.1
# Shortest limit of a request whose batch expires soon. Higher: it fails later; lower: a healthy broker may be late
LEAST_S: Final = 0.5

SEQUENCE_LOST: Final = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID))
# Error codes after which the broker may have stored the batch. The last three are also for a request that waits for the
# followers while the broker ceases to lead the partition
MAYBE_WRITTEN: Final = frozenset(
    (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
TOO_LARGE: Final = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
LAST_EPOCH: Final = 0x7FFF
# A batch may arrive damaged. But brokers before 2.4 also send CORRUPT_MESSAGE for a record that they never accept, such
# as a record without a key for a compacted topic. Higher: such a record fails later; lower: a bad network fails a batch
CORRUPT_TRIES: Final = 5
# The default of socket.request.max.bytes. Brokers close the connection for a longer request, and say nothing
CONNECTION_BYTES: Final = 100 << 20
LOST: Final = (-2, -1)  # no producer id, no epoch
NO_PRODUCER: Final = (-1, -1)  # what a broker gets that gave no producer id, or for a topic of an older format
OLD_FORMAT: Final = (
    "a topic with a message.format.version before 0.11 stores neither headers nor zstd; raise that version, or leave "
    "them out"
)
RESEND_MAX_S: Final = 3.0  # the longest pause before failed batches are sent again


class Sendable(Protocol):
    """A batch that `BatchSender` can send. It must not grow after the first call of `stamped`."""

    @property
    def records(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes in memory."""

    @property
    def needs_v2(self) -> bool:
        """Whether an older format cannot store the batch."""

    def stamped(self, producer: int, epoch: int, sequence: int) -> bytes:
        """Returns the bytes to send with this producer id, epoch and first sequence number."""


B = TypeVar("B", bound=Sendable)
# batches of one partition in order -> the same records in fewer batches
Merge = Callable[[Sequence[B]], Iterable[B]]


class SequenceLost(BrokerError):
    """The brokers have lost the sequence of this producer, or another process has taken it over."""


@dataclass
class Pending(Generic[B]):
    """A batch that is not sent or not acknowledged yet."""

    batch: B
    size: int = 0
    """Bytes of this batch that `BatchSender.held` counts."""
    ready_at: float = 0.0
    """Earliest time to send the batch, by the clock of the loop; 0: at once."""
    expires_at: float = math.inf
    sequence: Optional[int] = None
    """Sequence number of its first record; None before the first attempt."""
    offset: Optional[int] = None
    """Offset at which the broker stored the batch, kept while an earlier batch is not acknowledged."""
    time: int = -1
    """Time of the broker's append, if the topic replaces the timestamps of records with it; else -1."""
    maybe_written: bool = False
    """Whether a broker may have stored the batch, or has acknowledged it."""
    corrupt: int = 0
    """Number of CORRUPT_MESSAGE errors, and of lost connections if the batch is too large for most brokers."""


@dataclass
class PartitionQueue(Generic[B]):
    """The batches of one partition, in order. `sent` are in flight, or acknowledged before an earlier batch; `waiting`
    follow."""

    producer: int
    epoch: int
    sequence: int = 0
    sent: deque[Pending[B]] = field(default_factory=deque)
    waiting: deque[Pending[B]] = field(default_factory=deque)
    unanswered: int = 0
    """Requests in flight."""
    max_sent: int = 1
    """Maximum length of `sent`. Starts at 1, because brokers accept any sequence number from a new producer."""
    broken: bool = False
    """Whether a batch of `sent` failed. Then nothing is sent until all responses have arrived."""
    error: Optional[BrokerError] = None
    """The last failure since a batch was acknowledged."""
    refused: bool = False
    """Whether `error` means that no retry of the first batch can succeed."""
    resume_at: float = 0.0
    tries: int = 0
    merge: Optional[Merge[B]] = None
    """Merges small batches that wait, because few batches may be in flight. None: each is sent as it is."""
    settled: int = 0
    """Number of records that were acknowledged, or dropped after a refusal."""
    merged_bytes: int = TARGET_BYTES
    """Maximum size of the batches that become one."""

    @property
    def pending(self) -> list[Pending[B]]:
        """All batches in order. If a batch was refused, it is the first."""
        return [*self.sent, *self.waiting]

    @property
    def first(self) -> Pending[B] | None:
        """The first batch that is not acknowledged."""
        queue = self.sent or self.waiting
        return queue[0] if queue else None

    @property
    def refuses_identity(self) -> bool:
        """Whether the topic refused the producer id of the first batch, and may take the batch without one."""
        code = None if self.error is None else self.error.code
        return self.refused and code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and self.producer >= 0

    @property
    def in_doubt(self) -> bool:
        """Whether a batch that is not acknowledged may be written, or will be by a request that arrives late."""
        return self.unanswered > 0 or any(item.maybe_written for item in self.pending)

    def take(self) -> bytes:
        """Moves the first waiting batch to `sent`, and returns its bytes."""
        item = self.waiting.popleft()
        if item.sequence is None:
            item.sequence = self.sequence
        data = item.batch.stamped(self.producer, self.epoch, item.sequence)
        self.sequence = (item.sequence + item.batch.records) & 0x7FFFFFFF
        self.sent.append(item)
        self.unanswered += 1
        return data

    def merge_waiting(self) -> tuple[list[Pending[B]], list[Pending[B]]]:
        """Merges the small batches at the front of `waiting` that were never sent. Returns those before and after."""
        small: list[Pending[B]] = []
        size = 0
        for item in self.waiting:
            size += item.size
            if item.sequence is not None or item.size >= SMALL_BYTES or size > self.merged_bytes:
                break
            small.append(item)
        if self.merge is None or len(small) < 2:
            return [], []
        made = [Pending(batch) for batch in self.merge([item.batch for item in small])]
        for _ in small:
            self.waiting.popleft()
        self.waiting.extendleft(reversed(made))
        return small, made

    def failed(self, item: Pending[B], error: BrokerError) -> None:
        """Stores why a batch was not acknowledged. Only the first batch can be refused; later batches are sent
        again."""
        first, misplaced = item is self.sent[0], error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        again = error.retriable or misplaced
        unwelcome = error.code is None and item.size > CONNECTION_BYTES
        if unwelcome or error.code == ErrorCode.CORRUPT_MESSAGE:
            item.corrupt += 1
            again = item.corrupt < CORRUPT_TRIES
        if unwelcome and not again:
            why = f"{error}; a request of {item.size} bytes may exceed the broker's socket.request.max.bytes"
            error = BrokerError(why, code=ErrorCode.MESSAGE_TOO_LARGE)
        if first and (error.code in SEQUENCE_LOST or (misplaced and not self.broken)):
            again = False
            error = SequenceLost(str(error), code=error.code, retriable=True)
        if first or self.error is None:
            self.error, self.refused = error, first and not again
        self.broken = True
        self.tries += 1

    def rewind(self) -> None:
        """Moves all batches of `sent` back to `waiting`. Brokers recognise batches that they have already stored."""
        for item in self.sent:
            item.offset = None
        self.waiting.extendleft(reversed(self.sent))
        self.sent.clear()
        self.broken = self.refused = False

    def renumber(self, first: int | None = None) -> bool:
        """Numbers the batches from `first` on; None: from 0 under the next epoch, as Java's producer does.

        Returns False if one of them is in doubt: a broker may store it again under the new number.
        """
        if self.in_doubt or (first is None and self.epoch >= LAST_EPOCH):
            return False
        if first is None:
            self.epoch += 1
            # a broker accepts any first sequence number of an epoch, so only batch 0 may be in flight at first
            self.max_sent = 1
        self.sequence = first or 0
        for item in self.pending:
            item.sequence = None
        return True


# partition, batch, offset of its first record (-1 if the broker had stored it earlier and does not return the offset),
# `Pending.time`
Acked = Callable[[TopicPartition, B, int, int], None]
# partition, its queue, the reason why the first batch is not sent again
Refused = Callable[[TopicPartition, PartitionQueue[B], BrokerError], None]


def _raise(partition: TopicPartition, queue: PartitionQueue[Any], error: BrokerError) -> None:
    raise error


class _Terms(NamedTuple):
    """What all Produce requests of a sender have in common."""

    timeout_s: float
    transactional_id: Optional[str]
    acks: int


class BatchSender(Generic[B]):
    """Sends batches over a connected client.

    Guarantee: an acknowledged batch is on all replicas in sync, and the batches of a partition are stored in the order
    of the calls. On brokers from 0.11 on, no retry stores a batch twice, except in topics that keep an older format.

    Call `add` for a partition, then `put` its batches. `run` sends them until they are acknowledged.

    - `acked` is called for each acknowledged batch, in the order of its partition.
    - `refused` is called if the first batch of a partition has expired, or no retry can succeed. The callback drops the
      partition, changes the queue so that its batches can be sent again, or raises the error, which ends `run`. The
      default raises.
    - While `may_send` returns False, nothing is sent. So a process that was replaced while it was suspended writes
      nothing after its successor.
    - `find_leaders` is awaited for the topics whose partitions have no known leader. The default reads their metadata.
    - `buffer_bytes` bounds the memory if the caller awaits `wait_for_space` before each `put`.
    - `transactional_id`: all batches are part of its transaction. Set `identity` first.
    - `acks` 1: only the leader has an acknowledged batch, and a retry may store a batch twice.
    """

    def __init__(
        self,
        client: KafkaClient,
        acked: Acked[B] | None = None,
        refused: Refused[B] = _raise,
        may_send: Callable[[], bool] | None = None,
        *,
        find_leaders: Callable[[set[str]], Awaitable[None]] | None = None,
        buffer_bytes: int = 64 << 20,
        request_timeout_s: float = 30.0,
        transactional_id: str | None = None,
        acks: int = ALL,
    ) -> None:
        self._client = client
        self._acked = acked
        self._refused = refused
        self._may_send = may_send
        self._refresh = find_leaders or client.refresh
        self.buffer_bytes = buffer_bytes
        self.held = 0
        """Bytes of batches that are not acknowledged."""
        self._terms = _Terms(request_timeout_s, transactional_id, acks)
        self.identity: tuple[int, int] | None = None
        """Producer id and epoch for partitions that are added next; `LOST`: a new id is requested; None: the first."""
        self.queues: dict[TopicPartition, PartitionQueue[B]] = {}
        self.old_topics: set[str] = set()
        """Topics that store a format without producer ids (message.format.version), as their brokers reported."""
        self.stopped = False
        """Whether `run` has ended, or `stop` was called."""
        self._under_way: dict[int, int] = defaultdict(int)  # leader -> requests in flight
        self._ready: dict[TopicPartition, None] = {}  # partitions with batches to send, the next one first
        self._drains = 0
        self._asking: dict[str, asyncio.Task[None]] = {}  # what batches wait for -> the task that requests it
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()

    @property
    def magic(self) -> int:
        """Version of the record format that the brokers accept."""
        version = self._client.api_version(ProduceRequest) or 0
        idempotent = self._client.api_version(InitProducerIdRequest) is not None
        return 2 if version >= V2 and idempotent else 1 if version >= V1 else 0

    @property
    def takes_zstd(self) -> bool:
        """Whether the brokers accept zstd (Kafka 2.1 and newer)."""
        return (self._client.api_version(ProduceRequest) or 0) >= ZSTD

    @property
    def _remembered(self) -> int:
        """Number of batches of a partition that brokers recognise if they are repeated."""
        return UNDER_WAY if (self._client.api_version(ProduceRequest) or 0) >= REMEMBERS else 1

    async def run(self, tasks: BackgroundTasks) -> None:
        """Sends batches until cancelled. `tasks` runs the requests."""
        self.stopped = False
        self._under_way.clear()  # forgets requests that were cancelled before they started, which nothing else removes
        try:
            while True:
                self._wake.clear()
                started, wait_s = True, None
                while started:
                    started, wait_s = self._send(tasks)
                await wait_for_event(self._wake, wait_s)
        finally:
            self.stop()

    def stop(self) -> None:
        """Wakes all callers that wait for an acknowledgement."""
        self.stopped = True
        self._progress.set()

    async def send_all(self) -> None:
        """Sends until all batches are acknowledged. Raises the errors that `refused` raises."""
        tasks = TaskGroup()
        await tasks.run(self.drained(self.queues), sender=self.run(tasks))

    # -- batches --------------------------------------------------------------------------------------------------

    async def add(self, partitions: Iterable[TopicPartition], merge: Merge[B] | None = None) -> None:
        """Prepares `put` for these partitions. Drops their unacknowledged batches. Raises BrokerError.

        `merge`: batches that wait may be merged, so they are put without times.
        """
        added = list(partitions)
        self.drop(added)
        if self.identity is None or self.identity == LOST:
            await self._find_identity()
        for partition in added:
            self.queues.setdefault(partition, PartitionQueue(*self._identity_for(partition), merge=merge))

    def add_now(self, partition: TopicPartition) -> None:
        """Like `add`, after a first call of it, but leaves it to `run` to request a new producer id. If no broker gives
        one, the batches expire, or `refused` gets the error."""
        self.queues[partition] = PartitionQueue(*self._identity_for(partition))

    def _identity_for(self, partition: TopicPartition) -> tuple[int, int]:
        assert self.identity is not None
        return NO_PRODUCER if partition.topic in self.old_topics else self.identity

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drops the unacknowledged batches of these partitions.

        Partitions that are added later get the next epoch, as in Java's producer. So once a partition has a new batch,
        brokers refuse a request for an old one that arrives late.
        """
        for partition in partitions:
            queue = self.queues.pop(partition, None)
            if queue is None:
                continue
            self.held -= sum(item.size for item in queue.pending)
            fenced = queue.error is not None and queue.error.code == ErrorCode.INVALID_PRODUCER_EPOCH
            if fenced or queue.epoch >= LAST_EPOCH or self._terms.transactional_id is not None:
                self.identity = LOST
            elif self.identity is not None and self.identity[0] == queue.producer >= 0:
                self.identity = max(self.identity, (queue.producer, queue.epoch + 1))
        self._progress.set()

    def put(
        self,
        partition: TopicPartition,
        queue: PartitionQueue[B] | None,
        batch: B,
        ready_at: float = 0.0,
        expires_at: float = math.inf,
    ) -> Pending[B] | None:
        """Adds a batch. Returns None if the partition was dropped after the caller got `queue`.

        The partition may have another queue by then, and the batch may not fit after its batches.
        """
        if queue is None or self.queues.get(partition) is not queue:
            return None
        item = Pending(batch, ready_at=ready_at, expires_at=expires_at)
        self.resize(item)
        queue.waiting.append(item)
        self._ready[partition] = None
        self._wake.set()  # wakes `run` even if the batch is not ready, because `run` must recompute how long to wait
        return item

    def resize(self, item: Pending[B]) -> None:
        """Called when a batch has grown, or has become ready."""
        self.held += item.batch.size - item.size
        item.size = item.batch.size
        if not item.ready_at:
            self._wake.set()

    def replace_first(self, partition: TopicPartition, batches: Iterable[B]) -> bool:
        """Replaces the first batch of a partition, which a broker refused.

        The refused batch may be written, by an attempt without a response: brokers check a batch before they look for
        its number. Then the later batches keep their numbers. Brokers that miss it report that, and the later batches
        continue under a new epoch. Otherwise the batches are numbered again from its number on. Returns False if one of
        them is in doubt; then drop the partition.
        """
        queue = self.queues[partition]
        queue.rewind()
        refused = queue.waiting.popleft()
        assert refused.sequence is not None
        self.held -= refused.size
        queue.tries = 0
        new = [replace(refused, batch=batch, size=0, sequence=None) for batch in batches]
        queue.settled += refused.batch.records - sum(item.batch.records for item in new)
        queue.waiting.extendleft(reversed(new))
        for item in new:
            self.resize(item)
        return (refused.maybe_written and not new) or queue.renumber(refused.sequence)

    async def wait_for_space(self, size: int) -> None:
        """Waits until `size` more bytes fit into `buffer_bytes`."""
        while not self.has_space(size):
            self._progress.clear()
            await self._progress.wait()

    def has_space(self, size: int) -> bool:
        """Returns whether `wait_for_space` returns at once."""
        return self.stopped or not self.held or self.held + size <= self.buffer_bytes

    @property
    def in_doubt(self) -> bool:
        """Whether a batch of any partition is in doubt (`PartitionQueue.in_doubt`)."""
        return any(queue.in_doubt for queue in self.queues.values())

    def idle(self, partition: TopicPartition) -> bool:
        """Returns whether all batches of the partition are acknowledged."""
        queue = self.queues.get(partition)
        return queue is None or not (queue.waiting or queue.sent)

    async def drained(self, partitions: Iterable[TopicPartition]) -> None:
        """Waits until all present batches of these partitions are acknowledged or dropped, or until `run` has ended."""
        queues = {partition: self.queues[partition] for partition in partitions if partition in self.queues}
        ends = {at: queue.settled + sum(item.batch.records for item in queue.pending) for at, queue in queues.items()}
        self._drains += 1
        self._wake.set()
        try:
            while not self.stopped:
                ends = {at: end for at, end in ends.items() if self._lacks(at, queues[at], end)}
                if not ends:
                    break
                self._progress.clear()
                await self._progress.wait()
        finally:
            self._drains -= 1

    def _lacks(self, partition: TopicPartition, queue: PartitionQueue[B], end: int) -> bool:
        """Returns whether fewer than `end` records of the queue are settled."""
        return self.queues.get(partition) is queue and queue.settled < end

    # -- sending --------------------------------------------------------------------------------------------------

    async def _find_identity(self) -> None:
        """Requests a producer id for all partitions that are added from now on. Raises BrokerError."""
        found = await self._new_identity()
        # of several callers, the first sets it: brokers compare the epochs of `drop` only within one id
        if self.identity is None or self.identity == LOST:
            self.identity = found

    async def _new_identity(self) -> tuple[int, int]:
        """Requests a producer id and its epoch; both are -1 on brokers before 0.11 and with acks 1. Raises
        BrokerError."""
        if self.magic < 2 or self._terms.acks != ALL:
            return NO_PRODUCER
        while True:
            response = await self._client.send_any(init_request(), self._terms.timeout_s)
            if not response.error_code:
                return response.producer_id, response.producer_epoch
            what = "cannot get a producer id"
            if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                what += " without the right IdempotentWrite on the cluster, or with acks other than 1"
            error = for_code(response.error_code, what)
            if not error.retriable:
                raise error
            log.debug("%s", error)  # a temporary failure, for example while the coordinator starts
            await asyncio.sleep(self._client.retry_backoff_s)

    def _send(self, tasks: BackgroundTasks) -> tuple[bool, float | None]:
        """Starts one request to each leader that can take one. Returns whether it started any, and seconds to wait for
        `_wake` (None: no limit)."""
        if self._ready and self._may_send is not None and not self._may_send():
            return False, ASK_AGAIN_S
        now = asyncio.get_running_loop().time()
        chosen: dict[int, dict[TopicPartition, tuple[PartitionQueue[B], Pending[B], bytes]]] = defaultdict(dict)
        sizes: dict[int, int] = defaultdict(int)
        later: list[float] = []
        leaderless: set[str] = set()
        unidentified = False
        for partition in list(self._ready):
            queue = self.queues.get(partition)
            if queue is None or not queue.waiting:
                del self._ready[partition]
                continue
            item = queue.waiting[0]
            if item.expires_at <= now and not queue.unanswered:
                late = "not acknowledged in time" if queue.error is None else f"not acknowledged in time: {queue.error}"
                self._refused(partition, queue, BrokerError(late, retriable=True))
                continue
            leader = self._client.leader(partition)
            resume_at = queue.resume_at if self._drains else max(queue.resume_at, item.ready_at)
            if leader is None:
                leaderless.add(partition.topic)
                later.append(self._client.retry_backoff_s)
                continue
            if now < resume_at:
                later.append(resume_at - now)
                continue
            if (queue.producer, queue.epoch) == LOST and self.identity is not None:
                if self.identity == LOST:
                    unidentified = True
                    later.append(self._client.retry_backoff_s)
                    continue
                queue.producer, queue.epoch = self.identity
            if queue.broken or self._under_way[leader] >= UNDER_WAY or len(queue.sent) >= queue.max_sent:
                continue
            before, after = queue.merge_waiting()
            self.held -= sum(each.size for each in before)
            for each in after:
                self.resize(each)
            item = queue.waiting[0]
            if partition.topic in self.old_topics and item.batch.needs_v2:
                # the broker would only report an unknown error, as if another attempt could succeed
                item.sequence = queue.sequence
                why = f"{partition.topic}:{partition.partition}: {OLD_FORMAT}"
                self._refused(partition, queue, BrokerError(why, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT))
                self._wake.set()
                continue
            if sizes[leader] and sizes[leader] + item.batch.size > REQUEST_BYTES:
                continue
            chosen[leader][partition] = queue, item, queue.take()
            self.resize(item)
            sizes[leader] += item.size
            # moves the partition after all others
            self._ready[partition] = self._ready.pop(partition)
        for leader, batches in chosen.items():
            self._under_way[leader] += 1
            tasks.start(self._exchange(leader, batches), "produce")
        if leaderless and self._may_ask("leaders"):
            self._asking["leaders"] = tasks.start(self._find_leaders(leaderless), "leaders")
        if unidentified and self._may_ask("producer id"):
            self._asking["producer id"] = tasks.start(self._identify(), "producer id")
        return bool(chosen), min(later, default=None)

    def _may_ask(self, what: str) -> bool:
        return what not in self._asking or self._asking[what].done()

    async def _identify(self) -> None:
        """Requests a producer id for the partitions of `add_now`."""
        try:
            await self._find_identity()
        except BrokerError as error:
            for partition, queue in list(self.queues.items()):
                if (queue.producer, queue.epoch) == LOST and queue.waiting:
                    queue.error = error
                    if not error.retriable:
                        self._refused(partition, queue, error)
            await asyncio.sleep(self._client.retry_backoff_s)
        self._wake.set()

    async def _find_leaders(self, topics: set[str]) -> None:
        # the client refreshes only topics that it follows by itself
        with contextlib.suppress(AllocatorError):
            await self._refresh(topics)
        await asyncio.sleep(self._client.retry_backoff_s)

    async def _exchange(
        self, leader: int, batches: dict[TopicPartition, tuple[PartitionQueue[B], Pending[B], bytes]]
    ) -> None:
        codes: dict[TopicPartition, tuple[int, int, int]] = {}
        lost: BrokerError | None = None
        request = produce_request({partition: data for partition, (_, _, data) in batches.items()}, *self._terms)
        left_s = min(item.expires_at for _, item, _ in batches.values()) - asyncio.get_running_loop().time()
        try:
            limit_s = min(self._terms.timeout_s + 5.0, max(left_s, LEAST_S))
            response = await self._client.send(leader, request, limit_s)
            codes = {partition: (code, base, time) for partition, code, base, time in produced(response)}
        except BrokerError as error:
            if not error.retriable:
                raise
            lost = error
        finally:
            self._under_way[leader] -= 1
            self._wake.set()
        failed = set()
        for partition, (queue, item, _) in batches.items():
            queue.unanswered -= 1
            if self.queues.get(partition) is not queue:
                continue  # the partition was dropped meanwhile
            code, base, item.time = codes.get(partition, (ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1))
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                item.offset, item.maybe_written, queue.tries = -1 if code else base, True, 0
                queue.max_sent = 1 if queue.producer < 0 else self._remembered
            else:
                failed.add(partition.topic)
                item.maybe_written |= code in MAYBE_WRITTEN if lost is None else self._client.was_sent(request)
                why = lost or for_code(code, f"{partition.topic}:{partition.partition}")
                if why.code == ErrorCode.UNKNOWN_SERVER_ERROR and item.batch.needs_v2:
                    why = BrokerError(f"{why}; {OLD_FORMAT}", code=why.code, retriable=why.retriable)
                queue.failed(item, why)
            self._settle(partition, queue)
        self._progress.set()
        if failed:
            # the leader may have moved; if no broker responds, the next attempt fails too
            with contextlib.suppress(AllocatorError):
                await self._client.refresh(failed)

    def _settle(self, partition: TopicPartition, queue: PartitionQueue[B]) -> None:
        """Reports batches that are acknowledged in order, and prepares the next attempt after a failure."""
        while queue.sent and queue.sent[0].offset is not None and self.queues.get(partition) is queue:
            item = queue.sent.popleft()
            self.held -= item.size
            queue.settled += item.batch.records
            if not queue.broken:
                queue.error = None
            if self._acked is not None:
                assert item.offset is not None
                self._acked(partition, item.batch, item.offset, item.time)
        if queue.broken and not queue.unanswered and self.queues.get(partition) is queue:
            if queue.refuses_identity and self._terms.transactional_id is None:
                self._forgo_identity(partition, queue)
            elif queue.refused:
                assert queue.error is not None
                self._refused(partition, queue, queue.error)
                if self.queues.get(partition) is not queue:
                    return
            else:
                level = logging.WARNING if queue.tries in (1, 10) else logging.DEBUG
                log.log(level, "%s:%d: sending batches again: %s", *partition, queue.error)
            queue.rewind()
            if queue.tries:  # 0: the first batch was replaced
                backoff = Backoff(self._client.retry_backoff_s, RESEND_MAX_S)
                queue.resume_at = asyncio.get_running_loop().time() + backoff.nth(queue.tries + 1)
            self._ready[partition] = None

    def _forgo_identity(self, partition: TopicPartition, queue: PartitionQueue[B]) -> None:
        """Sends the batches of a partition without a producer id from now on, one at a time."""
        if partition.topic not in self.old_topics:
            self.old_topics.add(partition.topic)
            log.warning(
                "%s: the topic has a message.format.version before 0.11, which has no producer ids: after a failure, "
                "records may be written twice",
                partition.topic,
            )
        queue.producer, queue.epoch = NO_PRODUCER
        queue.max_sent, queue.tries, queue.error = 1, 0, None
