"""Batches to partitions: in order, each once, several requests under way.

Protocol: Produce v0 to v12 with one batch for a partition, InitProducerId (KIP-98). From Kafka 0.11 on, the producer's
id and the sequence numbers make the broker count a repeated batch once and refuse one that overtook another. Older
brokers get one request at a time for a partition, so the order holds there too, and a repeated batch counts twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Optional, Protocol, TypeVar

from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from allocator.core.aio import BackgroundTasks, Backoff, TaskGroup, wait_for_event
from allocator.core.client import ErrorCode, KafkaClient, for_code
from allocator.errors import AllocatorError, BrokerError
from allocator.producer.requests import init_request, produce_request, produced
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

V1, V2, ZSTD = 2, 3, 7  # the first Produce versions with message sets of v1, with batches of v2, and with zstd
# Brokers remember this many batches per producer and partition. With more under way, they might not recognise a
# repeated one.
UNDER_WAY: Final = 5
# Bytes of one request. More: fewer requests; less: the leader's other partitions wait for a shorter time
REQUEST_BYTES: Final = 4 << 20
# seconds between two calls of `may_send`
ASK_AGAIN_S: Final = 0.1

LOST: Final = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID))
# the batch may be written nevertheless
UNSURE: Final = frozenset(
    (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
)
LAST_EPOCH: Final = 0x7FFF
# A batch may arrive damaged. But brokers before 2.4 also give this code for a record that they never take, such as one
# without a key for a compacted topic. More: such a record fails later; less: a bad network fails a batch
CORRUPT_TRIES: Final = 5
RESEND_MAX_S: Final = 3.0  # pause before failed batches are sent again, at most


class Sendable(Protocol):
    """A batch. The first call of `stamped` ends its growth."""

    @property
    def records(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes in memory."""

    def stamped(self, producer: int, epoch: int, sequence: int) -> bytes:
        """The bytes to send under this producer id, epoch and first sequence number."""


B = TypeVar("B", bound=Sendable)


class SequenceLost(BrokerError):
    """The brokers have forgotten the sequence of this producer, or another process took it over."""


@dataclass
class Pending(Generic[B]):
    """A batch that is not acknowledged yet."""

    batch: B
    size: int = 0
    """Bytes that count as held."""
    ready_at: float = 0.0
    """When to send it, by the clock of the loop."""
    expires_at: float = math.inf
    sequence: Optional[int] = None
    """Sequence number of its first record, from the first attempt on."""
    offset: Optional[int] = None
    """Where the broker stored it, if that is known before the batches ahead of it are acknowledged."""
    maybe_written: bool = False
    """Whether a broker may have stored it, or has acknowledged it."""
    corrupt: int = 0
    """How often a broker said that it arrived damaged."""


@dataclass
class PartitionQueue(Generic[B]):
    """Batches of one partition in order: those under way, and those that wait."""

    producer: int
    epoch: int
    sequence: int = 0
    sent: deque[Pending[B]] = field(default_factory=deque)
    waiting: deque[Pending[B]] = field(default_factory=deque)
    unanswered: int = 0  # requests under way
    most: int = 1  # under way: brokers accept any sequence in the first batch of a producer that is new to them
    broken: bool = False
    error: Optional[BrokerError] = None
    """The last failure since a batch was acknowledged."""
    refused: bool = False
    """Whether `error` is the reason why the first batch cannot be sent again."""
    resume_at: float = 0.0
    tries: int = 0

    @property
    def pending(self) -> list[Pending[B]]:
        """All batches in their order, the first of which may have been refused."""
        return [*self.sent, *self.waiting]

    def take(self) -> bytes:
        """Moves the first batch that waits to those under way, and returns its bytes."""
        item = self.waiting.popleft()
        if item.sequence is None:
            item.sequence = self.sequence
        data = item.batch.stamped(self.producer, self.epoch, item.sequence)
        self.sequence = (item.sequence + item.batch.records) & 0x7FFFFFFF
        self.sent.append(item)
        self.unanswered += 1
        return data

    def failed(self, item: Pending[B], error: BrokerError) -> None:
        """Notes why a batch was not acknowledged. Only the first is refused for good; later ones are sent again."""
        first, misplaced = item is self.sent[0], error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        again = error.retriable or misplaced
        if error.code == ErrorCode.CORRUPT_MESSAGE:
            item.corrupt += 1
            again = item.corrupt < CORRUPT_TRIES
        if first and (error.code in LOST or (misplaced and not self.broken)):
            again = False
            error = SequenceLost(f"{error}; a new producer has to go on", code=error.code, retriable=True)
        if first or self.error is None:
            self.error, self.refused = error, first and not again
        self.broken = True
        self.tries += 1

    def rewind(self) -> None:
        """Restores the order of the batches under way. Brokers recognise those that they acknowledged out of order."""
        for item in self.sent:
            item.offset = None
        self.waiting.extendleft(reversed(self.sent))
        self.sent.clear()
        self.broken = self.refused = False

    def begin_epoch(self) -> bool:
        """Numbers the batches from 0 under the next epoch of the producer, as Java's producer does.

        Returns False if that could store a batch twice: the broker would not recognise it under its new number.
        """
        items = self.pending
        if self.epoch >= LAST_EPOCH or any(item.maybe_written for item in items):
            return False
        self.epoch += 1
        # the broker takes any number first in an epoch, so the next request has the batch 0 alone
        self.sequence, self.most = 0, 1
        for item in items:
            item.sequence = None
        return True


# the partition, the batch, and the offset of its first record; -1 if the broker had it already, and does not say where
Acked = Callable[[TopicPartition, B, int], None]
# the partition, its queue, and the reason why the first batch is not sent again
Refused = Callable[[TopicPartition, PartitionQueue[B], BrokerError], None]


def _raise(partition: TopicPartition, queue: PartitionQueue[Any], error: BrokerError) -> None:
    raise error


class BatchSender(Generic[B]):
    """Sends batches over a connected client.

    Guarantee: all replicas in sync have an acknowledged batch, and batches of a partition are stored in the order of
    the calls. With brokers from 0.11 on no retry repeats a batch.

    `put` takes batches of partitions that were added with `add`, and `run` sends them until they are acknowledged.
    `acked` gets each in order. `refused` gets the queue of a partition whose first batch no retry helps, or which has
    expired: it drops the partition, changes the queue so that its batches can be sent again, or raises, which ends
    `run`; by default it raises. Nothing is sent while `may_send` returns False: a process that was replaced while it
    was suspended writes nothing behind its successor. `buffer_bytes` bounds the memory if the caller awaits `room`
    before each `put`. `transactional_id`: all batches are part of its transaction; set `identity` first.
    """

    def __init__(
        self,
        client: KafkaClient,
        acked: Acked[B] | None = None,
        refused: Refused[B] = _raise,
        may_send: Callable[[], bool] | None = None,
        *,
        buffer_bytes: int = 64 << 20,
        request_timeout_s: float = 30.0,
        transactional_id: str | None = None,
    ) -> None:
        self._client = client
        self._acked = acked
        self._refused = refused
        self._may_send = may_send
        self.buffer_bytes = buffer_bytes
        self.held = 0
        """Bytes of the batches that are not acknowledged."""
        self._request_timeout_s = request_timeout_s
        self._transactional_id = transactional_id
        self.identity: tuple[int, int] | None = None
        """Producer id and epoch of the partitions that are added next; None: the brokers give a new id."""
        self.queues: dict[TopicPartition, PartitionQueue[B]] = {}
        self.stopped = False
        """Whether `run` has ended, or `stop` was called."""
        self._under_way: dict[int, int] = defaultdict(int)
        self._ready: dict[TopicPartition, None] = {}  # partitions with batches to send, in turn
        self._wait_s: float | None = None
        self._hurry = 0
        self._look_up: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()

    @property
    def magic(self) -> int:
        """Version of the record format that the brokers take."""
        version = self._client.api_version(ProduceRequest) or 0
        idempotent = self._client.api_version(InitProducerIdRequest) is not None
        return 2 if version >= V2 and idempotent else 1 if version >= V1 else 0

    @property
    def takes_zstd(self) -> bool:
        """Whether the brokers take records that are compressed by zstd (Kafka 2.1 and newer)."""
        return (self._client.api_version(ProduceRequest) or 0) >= ZSTD

    async def run(self, tasks: BackgroundTasks) -> None:
        """Sends until cancelled; `tasks` runs the requests."""
        self.stopped = False
        self._under_way.clear()  # a request that was cancelled before its first step is still counted
        try:
            while True:
                self._wake.clear()
                while self._send(tasks):
                    pass
                await wait_for_event(self._wake, self._wait_s)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends every wait for an acknowledgement."""
        self.stopped = True
        self._progress.set()

    async def send_all(self) -> None:
        """Runs until all batches are acknowledged. Raises what `refused` raises."""
        tasks = TaskGroup()
        await tasks.run(self.drained(self.queues), sender=self.run(tasks))

    # -- batches --------------------------------------------------------------------------------------------------

    async def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Prepares `put` to these. Their batches that are not acknowledged are forgotten."""
        added = list(partitions)
        self.drop(added)
        if self.identity is None:
            self.identity = await self._new_identity()
        for partition in added:
            self.queues.setdefault(partition, PartitionQueue(*self.identity))

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets the unacknowledged batches of these partitions.

        Partitions that are added later get a new producer id: requests still under way cannot mix with theirs.
        """
        for partition in partitions:
            queue = self.queues.pop(partition, None)
            if queue is not None:
                self.identity = None
                self.held -= sum(item.size for item in queue.pending)
        self._progress.set()

    def put(
        self,
        partition: TopicPartition,
        queue: PartitionQueue[B] | None,
        batch: B,
        ready_at: float = 0.0,
        expires_at: float = math.inf,
    ) -> Pending[B] | None:
        """Sends a batch behind those before; None if the partition was dropped after the caller got `queue`.

        The partition may have a new queue, which begins elsewhere: a batch that was read before does not belong there.
        """
        if queue is None or self.queues.get(partition) is not queue:
            return None
        item = Pending(batch, ready_at=ready_at, expires_at=expires_at)
        self.resize(item)
        queue.waiting.append(item)
        self._ready[partition] = None
        self._wake.set()  # also to wait until it is ready
        return item

    def resize(self, item: Pending[B]) -> None:
        """Counts the bytes of a batch that has grown, and sends it if it is ready."""
        self.held += item.batch.size - item.size
        item.size = item.batch.size
        if not item.ready_at:
            self._wake.set()

    def replace_first(self, partition: TopicPartition, batches: Iterable[B]) -> None:
        """Puts other batches in the place of the first of a partition, of which a broker stored nothing."""
        queue = self.queues[partition]
        queue.rewind()
        refused = queue.waiting.popleft()
        assert refused.sequence is not None
        self.held -= refused.size
        queue.sequence, queue.tries = refused.sequence, 0
        queue.waiting.extendleft(Pending(batch, expires_at=refused.expires_at) for batch in reversed(list(batches)))
        for item in queue.waiting:
            item.sequence = None
            self.resize(item)

    async def room(self, size: int) -> None:
        """Returns when there is room for this number of bytes."""
        while self.held and self.held + size > self.buffer_bytes and not self.stopped:
            self._progress.clear()
            await self._progress.wait()

    def idle(self, partition: TopicPartition) -> bool:
        """Whether everything of the partition is acknowledged."""
        queue = self.queues.get(partition)
        return queue is None or not (queue.waiting or queue.sent)

    async def drained(self, partitions: Iterable[TopicPartition]) -> None:
        """Returns when everything of these partitions is acknowledged or dropped, or when sending has ended."""
        wanted = list(partitions)
        self._hurry += 1
        self._wake.set()
        try:
            while not (self.stopped or all(map(self.idle, wanted))):
                self._progress.clear()
                await self._progress.wait()
        finally:
            self._hurry -= 1

    # -- sending --------------------------------------------------------------------------------------------------

    async def _new_identity(self) -> tuple[int, int]:
        """A producer id and its epoch; -1 for both where brokers have none. Raises BrokerError."""
        if self.magic < 2:
            return -1, -1
        while True:
            answer = await self._client.send_any(init_request(), self._request_timeout_s)
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            error = for_code(answer.error_code, "the brokers give no producer id")
            if not error.retriable:
                raise error
            log.debug("%s", error)  # a coordinator that has just started
            await asyncio.sleep(self._client.retry_backoff_s)

    def _send(self, tasks: BackgroundTasks) -> bool:
        """Starts one request to each leader that is free; False if none is. Sets `_wait_s`."""
        if self._ready and self._may_send is not None and not self._may_send():
            self._wait_s = ASK_AGAIN_S
            return False
        now = asyncio.get_running_loop().time()
        chosen: dict[int, dict[TopicPartition, tuple[PartitionQueue[B], Pending[B], bytes]]] = defaultdict(dict)
        sizes: dict[int, int] = defaultdict(int)
        later: list[float] = []
        leaderless: set[str] = set()
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
            resume_at = queue.resume_at if self._hurry else max(queue.resume_at, item.ready_at)
            if leader is None:
                leaderless.add(partition.topic)
                later.append(self._client.retry_backoff_s)
                continue
            if now < resume_at:
                later.append(resume_at - now)
                continue
            if queue.broken or self._under_way[leader] >= UNDER_WAY or len(queue.sent) >= queue.most:
                continue
            if sizes[leader] and sizes[leader] + item.batch.size > REQUEST_BYTES:
                continue
            chosen[leader][partition] = queue, item, queue.take()
            self.resize(item)
            sizes[leader] += item.size
            # the partition's next turn comes after those of the others
            self._ready[partition] = self._ready.pop(partition)
        for leader, batches in chosen.items():
            self._under_way[leader] += 1
            tasks.start(self._exchange(leader, batches), "produce")
        if leaderless and (self._look_up is None or self._look_up.done()):
            self._look_up = tasks.start(self._find_leaders(leaderless), "leaders")
        self._wait_s = min(later, default=None)
        return bool(chosen)

    async def _find_leaders(self, topics: set[str]) -> None:
        # the client looks again by itself only for topics that it follows
        with contextlib.suppress(AllocatorError):
            await self._client.refresh(topics)
        await asyncio.sleep(self._client.retry_backoff_s)

    async def _exchange(
        self, leader: int, batches: dict[TopicPartition, tuple[PartitionQueue[B], Pending[B], bytes]]
    ) -> None:
        codes: dict[TopicPartition, tuple[int, int]] = {}
        lost: BrokerError | None = None
        try:
            request = produce_request(
                {partition: data for partition, (_, _, data) in batches.items()},
                self._request_timeout_s,
                self._transactional_id,
            )
            answer = await self._client.send(leader, request, self._request_timeout_s + 5.0)
            codes = {partition: (code, base) for partition, code, base in produced(answer)}
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
                continue  # the partition was dropped in the meantime
            code, base = codes.get(partition, (ErrorCode.UNKNOWN_SERVER_ERROR, -1))
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                item.offset, item.maybe_written, queue.tries = -1 if code else base, True, 0
                queue.most = 1 if queue.producer < 0 else UNDER_WAY
            else:
                failed.add(partition.topic)
                item.maybe_written |= lost is not None or code in UNSURE
                queue.failed(item, lost or for_code(code, f"{partition.topic}:{partition.partition}"))
            self._settle(partition, queue)
        self._progress.set()
        if failed:
            # the leader may have moved; if no broker answers, the next attempt shows it
            with contextlib.suppress(AllocatorError):
                await self._client.refresh(failed)

    def _settle(self, partition: TopicPartition, queue: PartitionQueue[B]) -> None:
        """Passes on what is acknowledged in order, and prepares the next attempt if something failed."""
        while queue.sent and queue.sent[0].offset is not None and self.queues.get(partition) is queue:
            item = queue.sent.popleft()
            self.held -= item.size
            if not queue.broken:
                queue.error = None
            if self._acked is not None:
                assert item.offset is not None
                self._acked(partition, item.batch, item.offset)
        if queue.broken and not queue.unanswered and self.queues.get(partition) is queue:
            if queue.refused:
                assert queue.error is not None
                self._refused(partition, queue, queue.error)
                if self.queues.get(partition) is not queue:
                    return
            else:
                level = logging.WARNING if queue.tries in (1, 10) else logging.DEBUG
                log.log(level, "%s:%d: sent again: %s", *partition, queue.error)
            queue.rewind()
            if queue.tries:  # else the first batch was replaced
                backoff = Backoff(self._client.retry_backoff_s, RESEND_MAX_S)
                queue.resume_at = asyncio.get_running_loop().time() + backoff.nth(queue.tries + 1)
            self._ready[partition] = None
