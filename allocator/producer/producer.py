"""One producer: records or whole batches to partitions, in order, several requests under way.

Protocol: Produce v0 to v12 with one batch for a partition, InitProducerId (KIP-98). From Kafka 0.11 on, the producer's
id and the sequence numbers make the broker count a repeated batch once and refuse one that overtook another. Older
brokers get one request at a time for a partition, so the order holds there too, and a repeated batch counts twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Optional

from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from allocator.core.aio import BackgroundTasks, Backoff, wait_for_event, wall_ms
from allocator.core.client import ErrorCode, KafkaClient, for_code
from allocator.errors import AllocatorError, BrokerError, Closed, ConfigError, TopicNotFound
from allocator.producer.builder import BatchBuilder
from allocator.producer.columns import ColumnsToSend, accelerated, by_partition
from allocator.producer.encoding import CODECS, TARGET_BYTES, Encoded, written
from allocator.producer.partitioner import Partitioner
from allocator.producer.requests import init_request, produce_request, produced
from allocator.types import Record, TopicPartition

log = logging.getLogger(__name__)

V1, V2, ZSTD = 2, 3, 7  # the first Produce versions with message sets of v1, with batches of v2, and with zstd
# Brokers remember this many batches per producer and partition. With more under way, they might not recognise a
# repeated one.
UNDER_WAY: Final = 5
# Bytes of one request. More: fewer requests; less: the leader's other partitions wait for a shorter time
REQUEST_BYTES: Final = 4 << 20
# seconds between two calls of `may_send`
ASK_AGAIN_S: Final = 0.1

LOST: Final = frozenset(
    (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID)
)
# The broker stored nothing, and may take the batch under a new epoch: it lost what it knew of the producer, for example
# with the last record that retention deleted. 0.11 gives the first of these codes for that
FORGOTTEN: Final = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))
# the batch may be written nevertheless
UNSURE: Final = frozenset(
    (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
)
LAST_EPOCH: Final = 0x7FFF
# A batch may arrive damaged. But brokers before 2.4 also give this code for a record that they never take, such as one
# without a key for a compacted topic. More: such a record fails later; less: a bad network fails a batch
CORRUPT_TRIES: Final = 5
RESEND_MAX_S: Final = 3.0  # pause before failed batches are sent again, at most

Acked = Callable[[TopicPartition, Encoded, int], None]


class SequenceLost(AllocatorError):
    """The brokers have forgotten the sequence of this producer, or another process took it over; create a new one."""

    retriable = True


class DeliveryFailed(AllocatorError):
    """Records of one partition were not acknowledged.

    `maybe_written`: a broker may have stored them, as a request that held them got no answer.
    """

    def __init__(self, partition: TopicPartition, records: int, error: AllocatorError, maybe_written: bool) -> None:
        super().__init__(
            f"{partition.topic}:{partition.partition} did not acknowledge {records} records, "
            f"{'which may be written' if maybe_written else 'which are not written'}: {error}"
        )
        self.partition = partition
        self.records = records
        self.error = error
        self.maybe_written = maybe_written
        self.retriable = error.retriable


@dataclass
class _Item:
    batch: Any  # an `AnyBatch`; batches from `put` are `Encoded`
    sequence: int
    expires_at: float = math.inf
    delivered: Optional[asyncio.Future[None]] = None
    target: Optional[int] = None
    maybe_written: bool = False
    corrupt: int = 0
    """How often a broker said that it arrived damaged."""


@dataclass
class _Open:
    """The batch that takes the next records of a partition."""

    builder: BatchBuilder
    closes_at: float
    expires_at: float
    delivered: asyncio.Future[None]


@dataclass
class ProduceQueue:
    """Batches of one partition in order: those that wait, and those under way."""

    producer: int
    epoch: int
    sequence: int = 0
    open: Optional[_Open] = None
    waiting: deque[_Item] = field(default_factory=deque)
    sent: deque[_Item] = field(default_factory=deque)
    unanswered: int = 0  # requests under way
    most: int = 1  # under way: brokers accept any sequence in the first batch of a producer that is new to them
    broken: bool = False
    forgotten: Optional[SequenceLost] = None
    """The refusal of a broker that no longer knows the producer."""
    resume_at: float = 0.0
    tries: int = 0


class Producer:
    """Sends records, or whole batches, over a connected client.

    Guarantee: all replicas in sync have an acknowledged batch, and batches of a partition are stored in the order of
    the calls. With brokers from 0.11 on no retry repeats a batch. A broker that has forgotten the producer, because
    retention deleted its records, gets the next batches under a new epoch.

    `append` and `append_columns` take records, and collect them into batches of up to `batch_bytes` for up to
    `linger_s`; they wait while `buffer_bytes` are not acknowledged. `flush` returns when everything is acknowledged, or
    raises DeliveryFailed. A batch that is not acknowledged within `timeout_s` fails, and so do those behind it in its
    partition; later records go on under a new producer id. Use `async with`.

    `put` takes batches of partitions that were added with `add`. They are sent until they are acknowledged, and `acked`
    gets each in order with the offset of its first record. A fault that no retry mends raises in `run`, which the
    caller runs as a task. Nothing is sent while `may_send` returns False: a process that was replaced while it was
    suspended writes nothing behind its successor. `room` bounds the memory; the caller awaits it before each `put`.
    """

    def __init__(
        self,
        client: KafkaClient,
        acked: Acked | None = None,
        may_send: Callable[[], bool] | None = None,
        *,
        buffer_bytes: int = 64 << 20,
        batch_bytes: int = TARGET_BYTES,
        linger_s: float = 0.02,
        compression: str = "none",
        timeout_s: float = 60.0,
        request_timeout_s: float = 30.0,
    ) -> None:
        self._client = client
        self._acked = acked
        self._may_send = may_send
        self._buffer_bytes = buffer_bytes
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._compression = compression
        self._timeout_s = timeout_s
        self._request_timeout_s = request_timeout_s
        self.magic = 2
        """Version of the record format that the brokers take; known after `open`."""
        self.takes_zstd = True
        """Whether the brokers take records that are compressed by zstd (Kafka 2.1 and newer); known after `open`."""
        self._queues: dict[TopicPartition, ProduceQueue] = {}
        self._under_way: dict[int, int] = defaultdict(int)
        self._ready: dict[TopicPartition, None] = {}  # partitions with batches to send, in turn
        self._wait_s: float | None = None
        self._held = 0
        self.stopped = False
        """Whether the producer was closed, or ended by a failure."""
        self._wake: asyncio.Event
        self._progress: asyncio.Event
        # of records
        self._partitioner = Partitioner()
        self._topics: set[str] = set()
        self._identity: tuple[int, int] | None = None
        self._adding: asyncio.Lock
        self._failed: DeliveryFailed | None = None
        self._failed_records = 0
        self._flushing = 0
        self._tasks: BackgroundTasks | None = None

    async def __aenter__(self) -> Producer:
        self.open()
        self._tasks = BackgroundTasks(self._fail_all)
        self._tasks.start(self.run(self._tasks), "producer")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._tasks is not None
        await self._tasks.close()
        self._fail_all(BrokerError("the producer was closed"))

    def open(self) -> None:
        """Finds the format that the brokers take. Raises ConfigError if they do not take the compression."""
        self._wake, self._progress, self._adding = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        version = self._client.api_version(ProduceRequest) or 0
        self.takes_zstd = version >= ZSTD
        if self._compression == "zstd" and not self.takes_zstd:
            name = ".".join(map(str, self._client.broker_version))
            raise ConfigError(f"compression zstd needs brokers of Kafka 2.1 or newer; these are {name}")
        idempotent = self._client.api_version(InitProducerIdRequest) is not None
        self.magic = 2 if version >= V2 and idempotent else 1 if version >= V1 else 0

    async def run(self, tasks: BackgroundTasks) -> None:
        """Sends until cancelled; `tasks` runs the requests."""
        try:
            while True:
                self._wake.clear()
                while self._send(tasks):
                    pass
                await wait_for_event(self._wake, self._wait_s)
        finally:
            self.stopped = True  # ends every wait for an acknowledgement
            self._progress.set()

    # -- records --------------------------------------------------------------------------------------------------

    async def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[None]:
        """Adds a record. The future ends when it is acknowledged, or raises DeliveryFailed.

        Without `partition` the key chooses it, as in Java's producer. `timestamp`: milliseconds, default now. Raises
        TopicNotFound; ConfigError for headers on brokers before 0.11.
        """
        if headers and self.magic < 2:
            raise ConfigError("brokers before 0.11 have no record headers; leave them out")
        partitions = self._client.partitions(topic) if topic in self._topics else None
        if not partitions:
            partitions = await self.find(topic)
        if partition is None:
            partition = self._partitioner.choose(key, len(partitions))
        at = TopicPartition(topic, partition)
        if self._held > self._buffer_bytes:
            await self.room(0)
        queue = self._queues.get(at) or await self._queue(at, partitions)
        taking = queue.open or self._open_batch(at, queue)
        builder = taking.builder
        before = builder.size
        builder.append(key, value, headers, wall_ms() if timestamp is None else timestamp)
        self._held += builder.size - before
        if builder.size >= self._batch_bytes:
            self._close_batch(at, queue)
        return taking.delivered

    async def append_columns(self, topic: str, columns: ColumnsToSend, chosen: Any = None) -> None:
        """Adds rows of Arrow columns, with the present time. Raises as `append`.

        This needs format v2 and the compiled encoder (`takes_columns`). `chosen`: an Arrow array with the partition of
        each row, null for its key's.
        """
        partitions = self._client.partitions(topic) if topic in self._topics else None
        if not partitions:
            partitions = await self.find(topic)
        now = wall_ms()
        for partition, rows in by_partition(columns, chosen, len(partitions), self._partitioner):
            at = TopicPartition(topic, partition)
            done, end = 0, len(rows.values)
            while done < end:
                await self.room(0)
                queue = self._queues.get(at) or await self._queue(at, partitions)
                builder = (queue.open or self._open_batch(at, queue)).builder
                before = builder.size
                done += builder.append_rows(rows.encoder(done, end), now, self._batch_bytes)
                self._held += builder.size - before
                if builder.size >= self._batch_bytes:
                    self._close_batch(at, queue)

    @property
    def takes_columns(self) -> bool:
        return self.magic == 2 and accelerated

    async def flush(self) -> None:
        """Returns when all that was added is acknowledged. Raises the first DeliveryFailed since the last call."""
        self._flushing += 1
        try:
            self._wake.set()
            await self.drained(self._queues)
        finally:
            self._flushing -= 1
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """Raises the first DeliveryFailed that this method has not raised yet."""
        if self._failed is not None:
            failed, records = self._failed, self._failed_records
            self._failed, self._failed_records = None, 0
            if records == failed.records:
                raise failed
            raise DeliveryFailed(failed.partition, records, failed.error, failed.maybe_written)

    async def find(self, topic: str) -> tuple[int, ...]:
        """Returns the partitions of a topic. Creates the topic if the brokers allow that.

        Raises TopicNotFound if there is none within `timeout_s`.
        """
        self._topics.add(topic)
        self._client.follow(self._topics)
        deadline = time.monotonic() + self._timeout_s
        while True:
            await self._client.refresh([topic])
            partitions = self._client.partitions(topic)
            if partitions:
                return partitions
            await self._client.send_any(_creating(topic))
            if time.monotonic() > deadline:
                raise TopicNotFound([topic])
            await asyncio.sleep(self._client.retry_backoff_s)

    async def _queue(self, at: TopicPartition, partitions: Sequence[int]) -> ProduceQueue:
        if at.partition not in partitions:
            error = BrokerError(f"the topic has {len(partitions)} partitions")
            raise DeliveryFailed(at, 1, error, maybe_written=False)
        async with self._adding:
            if at not in self._queues:
                if self._identity is None:
                    self._identity = await self._new_identity()
                self._queues[at] = ProduceQueue(*self._identity)
        return self._queues[at]

    def _open_batch(self, at: TopicPartition, queue: ProduceQueue) -> _Open:
        if self.stopped:
            raise Closed("this producer was closed, or has failed; create another one")
        loop = asyncio.get_running_loop()
        delivered = loop.create_future()
        delivered.add_done_callback(_retrieve)
        now = loop.time()
        builder = BatchBuilder(self.magic, CODECS[self._compression])
        queue.open = _Open(builder, now + self._linger_s, now + self._timeout_s, delivered)
        self._ready[at] = None
        self._wake.set()
        return queue.open

    def _close_batch(self, at: TopicPartition, queue: ProduceQueue) -> None:
        taken, queue.open = queue.open, None
        assert taken is not None
        batch = taken.builder.encode()
        self._held -= taken.builder.size
        self._enqueue(at, queue, _Item(batch, queue.sequence, taken.expires_at, taken.delivered))

    # -- whole batches --------------------------------------------------------------------------------------------

    async def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Prepares `put` to these, under a producer id of their own: requests still under way cannot mix with them."""
        identity = await self._new_identity()
        for partition in partitions:
            self._queues[partition] = ProduceQueue(*identity)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets the unacknowledged batches of these partitions."""
        for partition in partitions:
            queue = self._queues.pop(partition, None)
            if queue is not None:
                self._held -= sum(item.batch.size for item in (*queue.waiting, *queue.sent))
                self._held -= 0 if queue.open is None else queue.open.builder.size
        self._progress.set()

    async def room(self, size: int) -> None:
        """Returns when there is room for this number of bytes."""
        while self._held and self._held + size > self._buffer_bytes and not self.stopped:
            self._progress.clear()
            await self._progress.wait()

    def queue(self, partition: TopicPartition) -> ProduceQueue | None:
        """The queue that `put` takes. It changes when the partition is dropped and added again."""
        return self._queues.get(partition)

    def put(self, partition: TopicPartition, queue: ProduceQueue | None, encoded: Encoded) -> bool:
        """Sends a batch behind those before; False if the partition was dropped after the caller got `queue`.

        The partition may have a new queue, which begins elsewhere: a batch that was read before does not belong there.
        """
        if queue is None or self._queues.get(partition) is not queue:
            return False
        self._enqueue(partition, queue, _Item(encoded, queue.sequence))
        return True

    def idle(self, partition: TopicPartition) -> bool:
        """Whether everything of the partition is acknowledged."""
        queue = self._queues.get(partition)
        return queue is None or not (queue.waiting or queue.sent or queue.open)

    async def drained(self, partitions: Iterable[TopicPartition]) -> None:
        """Returns when everything of these partitions is acknowledged or failed, or when sending has ended."""
        wanted = list(partitions)
        while not (self.stopped or all(map(self.idle, wanted))):
            self._progress.clear()
            await self._progress.wait()

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

    def _enqueue(self, partition: TopicPartition, queue: ProduceQueue, item: _Item) -> None:
        queue.waiting.append(item)
        queue.sequence = (queue.sequence + item.batch.records) & 0x7FFFFFFF
        self._ready[partition] = None
        self._held += item.batch.size
        self._wake.set()

    def _send(self, tasks: BackgroundTasks) -> bool:
        """Starts one request to each leader that is free; False if none is. Sets `_wait_s`."""
        if self._ready and self._may_send is not None and not self._may_send():
            self._wait_s = ASK_AGAIN_S
            return False
        now = asyncio.get_running_loop().time()
        chosen: dict[int, dict[TopicPartition, _Item]] = defaultdict(dict)
        sizes: dict[int, int] = defaultdict(int)
        later: list[float] = []
        for partition in list(self._ready):
            queue = self._queues.get(partition)
            if queue is None or not (queue.waiting or queue.open):
                del self._ready[partition]
                continue
            if queue.open is not None and not queue.waiting:
                if not self._flushing and now < queue.open.closes_at:
                    later.append(queue.open.closes_at - now)
                    continue
                self._close_batch(partition, queue)
            item = queue.waiting[0]
            if item.expires_at <= now and not queue.unanswered:
                self._fail(partition, queue, BrokerError(f"no answer within {self._timeout_s:g} s", retriable=True))
                continue
            leader = self._client.leader(partition)
            if leader is None or now < queue.resume_at:
                later.append(max(self._client.retry_backoff_s, queue.resume_at - now))
                continue
            if queue.broken or self._under_way[leader] >= UNDER_WAY or len(queue.sent) >= queue.most:
                continue
            if sizes[leader] and sizes[leader] + item.batch.size > REQUEST_BYTES:
                continue
            sizes[leader] += item.batch.size
            chosen[leader][partition] = queue.waiting.popleft()
            queue.sent.append(item)
            queue.unanswered += 1
            # the partition's next turn comes after those of the others
            self._ready[partition] = self._ready.pop(partition)
        for leader, items in chosen.items():
            self._under_way[leader] += 1
            tasks.start(self._exchange(leader, items, {each: self._queues[each] for each in items}), "produce")
        self._wait_s = min(later, default=None)
        return bool(chosen)

    async def _exchange(
        self, leader: int, items: dict[TopicPartition, _Item], queues: dict[TopicPartition, ProduceQueue]
    ) -> None:
        codes: dict[TopicPartition, tuple[int, int]] = {}
        why: AllocatorError | None = None
        try:
            stamped = {
                partition: item.batch.stamped(queues[partition].producer, queues[partition].epoch, item.sequence)
                for partition, item in items.items()
            }
            answer = await self._client.send(
                leader, produce_request(stamped, self._request_timeout_s), self._request_timeout_s + 5.0
            )
        except BrokerError as error:
            if not error.retriable:
                raise
            why = error
        else:
            codes = {partition: (code, base) for partition, code, base in produced(answer)}
        finally:
            self._under_way[leader] -= 1
            self._wake.set()
        failed = False
        for partition, item in items.items():
            queue = queues[partition]
            queue.unanswered -= 1
            if self._queues.get(partition) is not queue:
                continue  # the partition was dropped in the meantime
            code, base = codes.get(partition, (-1, -1))
            if code == 0 or (code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER and item.delivered is not None):
                item.target, queue.tries = base, 0
                queue.most = 1 if queue.producer < 0 else UNDER_WAY
            else:
                failed = True
                where = f"{partition.topic}:{partition.partition}"
                item.maybe_written |= why is not None or code in UNSURE
                self._note_failure(partition, queue, item, why or for_code(code, where))
            if self._queues.get(partition) is queue:
                self._settle(partition, queue)
        self._progress.set()
        if failed:
            # the leader may have moved; if no broker answers, the next attempt shows it
            with contextlib.suppress(AllocatorError):
                await self._client.refresh()

    def _note_failure(self, partition: TopicPartition, queue: ProduceQueue, item: _Item, error: AllocatorError) -> None:
        code = getattr(error, "code", None)
        where = f"{partition.topic}:{partition.partition}"
        first = bool(queue.sent) and queue.sent[0] is item
        if code in LOST or (code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and first and not queue.broken):
            lost = SequenceLost(f"{where}: {error}; goes on from what is committed, as a new producer")
            if item.delivered is None:
                raise lost
            if code not in FORGOTTEN:
                self._fail(partition, queue, lost, item)
                return
            queue.forgotten = lost
        elif not self._sends_again(item, error):
            if item.delivered is None:
                raise BrokerError(
                    f"the new cluster refuses old offsets {item.batch.first} to {item.batch.next - 1} of {where} "
                    f"({item.batch.size} bytes): {error}; nothing is skipped, correct it and start again",
                    code=code,
                )
            self._fail(partition, queue, error, item)
            return
        queue.broken = True
        queue.tries += 1
        log.log(logging.WARNING if queue.tries in (1, 10) else logging.DEBUG, "%s: sent again: %s", where, error)

    def _sends_again(self, item: _Item, error: AllocatorError) -> bool:
        code = getattr(error, "code", None)
        if code == ErrorCode.CORRUPT_MESSAGE:
            item.corrupt += 1
            return item.corrupt < CORRUPT_TRIES
        return error.retriable or code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def _settle(self, partition: TopicPartition, queue: ProduceQueue) -> None:
        while queue.sent and queue.sent[0].target is not None:
            item = queue.sent.popleft()
            self._held -= item.batch.size
            assert item.target is not None
            if item.delivered is not None and not item.delivered.done():
                item.delivered.set_result(None)
            if self._acked is not None:
                self._acked(partition, item.batch, item.target)
        if queue.broken and not queue.unanswered:
            if queue.forgotten is not None and not self._begin_epoch(queue):
                self._fail(partition, queue, queue.forgotten)
                return
            # restores their order; the broker recognises batches that it acknowledged out of order, and counts them
            # once
            queue.waiting.extendleft(reversed(queue.sent))
            for item in queue.sent:
                item.target = None
            queue.sent.clear()
            queue.broken = False
            backoff = Backoff(self._client.retry_backoff_s, RESEND_MAX_S)
            queue.resume_at = asyncio.get_running_loop().time() + backoff.nth(queue.tries + 1)
            self._ready[partition] = None

    def _begin_epoch(self, queue: ProduceQueue) -> bool:
        """Numbers the batches from 0 under the next epoch of the producer, as Java's producer does.

        Returns False if that could store a batch twice: the broker would not recognise it under its new number.
        """
        items = [*queue.sent, *queue.waiting]
        if queue.epoch >= LAST_EPOCH or any(item.maybe_written or item.target is not None for item in items):
            return False
        queue.forgotten = None
        queue.epoch += 1
        queue.sequence = 0
        # the broker takes any number first in an epoch, so the next request has the batch 0 alone
        queue.most = 1
        for item in items:
            item.sequence = queue.sequence
            queue.sequence = (queue.sequence + item.batch.records) & 0x7FFFFFFF
        return True

    # -- failures of records --------------------------------------------------------------------------------------

    def _fail(
        self, partition: TopicPartition, queue: ProduceQueue, error: AllocatorError, refused: _Item | None = None
    ) -> None:
        """Gives up all batches of a partition: with one missing, brokers would refuse the sequence of the next.

        `refused`: the batch that a broker refused, if any.
        """
        self.drop([partition])
        self._identity = None  # a new queue of the partition begins a new sequence
        items = [*queue.sent, *queue.waiting]
        if queue.open is not None:
            items.append(_Item(queue.open.builder, 0, delivered=queue.open.delivered))
        under_way = len(queue.sent) if queue.unanswered else 0
        for number, item in enumerate(items):
            if item.target is not None:  # acknowledged out of order
                if item.delivered is not None and not item.delivered.done():
                    item.delivered.set_result(None)
                continue
            maybe_written = item.maybe_written or (number < under_way and item is not refused)
            failed = DeliveryFailed(partition, item.batch.records, error, maybe_written)
            self._failed = self._failed or failed
            self._failed_records += failed.records
            if item.delivered is not None and not item.delivered.done():
                item.delivered.set_exception(failed)
        self._progress.set()

    def _fail_all(self, error: BaseException) -> None:
        known = error if isinstance(error, AllocatorError) else BrokerError(f"the producer failed: {error!r}")
        self.stopped = True
        for partition, queue in list(self._queues.items()):
            self._fail(partition, queue, known)
        self._progress.set()


async def append(client: KafkaClient, partition: TopicPartition, records: Iterable[Record]) -> None:
    """Appends records, without sequence numbers: after a lost response they may be stored twice. Raises BrokerError."""
    for encoded in written(iter(records), 0):
        await _append(client, partition, encoded)


async def _append(client: KafkaClient, partition: TopicPartition, encoded: Encoded, timeout_s: float = 30.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    where = f"{partition.topic}:{partition.partition}"
    corrupt = 0
    while True:
        leader = client.leader(partition)
        error = BrokerError(f"{where} has no leader", retriable=True)
        if leader is not None:
            try:
                request = produce_request({partition: encoded.stamped(-1, -1, -1)}, timeout_s)
                ((_, code, _),) = produced(await client.send(leader, request))
            except BrokerError as failed:
                error = failed
            else:
                if not code:
                    return
                error = for_code(code, where)
                corrupt += code == ErrorCode.CORRUPT_MESSAGE
                error.retriable = error.retriable or 0 < corrupt < CORRUPT_TRIES
        if not error.retriable or asyncio.get_running_loop().time() > deadline:
            raise error
        await asyncio.sleep(client.retry_backoff_s)
        with contextlib.suppress(AllocatorError):  # if no broker answers, the next attempt shows it
            await client.refresh([partition.topic])


def _retrieve(delivered: asyncio.Future[None]) -> None:
    """Reads the future's error, because a caller that only awaits `flush` does not."""
    if not delivered.cancelled():
        delivered.exception()


def _creating(topic: str) -> Any:
    """A metadata request that makes brokers create the topic, if auto.create.topics.enable is set."""
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
