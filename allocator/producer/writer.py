"""Writes records to topics over a connected client. The key chooses the partition, and records of one partition share
batches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, count, repeat
from typing import Any, Final, Optional, TypeVar

from kafka.protocol.metadata import MetadataRequest

from allocator.core.aio import BackgroundTasks, wall_ms
from allocator.core.client import ErrorCode, KafkaClient
from allocator.core.fetch import Batch, scan
from allocator.errors import AllocatorError, BrokerError, Closed, ConfigError, DeliveryFailed, TopicNotFound
from allocator.producer.builder import BatchBuilder
from allocator.producer.columns import ColumnsToSend, RowsToSend, accelerated, by_partition
from allocator.producer.encoding import CODECS, TARGET_BYTES, Encoded, encode_headers
from allocator.producer.partitioner import Partitioner, Partitions, as_number
from allocator.producer.requests import ALL
from allocator.producer.sender import TOO_LARGE, BatchSender, PartitionQueue, Pending
from allocator.types import RecordMetadata, TopicPartition

# The broker has forgotten the producer's sequence numbers, for example because retention deleted its last record. The
# broker stored nothing, and accepts the batch under a new epoch. Kafka 0.11 sends the first of these codes
STATE_LOST: Final = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))
# The topic does not accept a record of the batch, or accepts fewer records at once
RECORD_REFUSED: Final = TOO_LARGE | {ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP, ErrorCode.CORRUPT_MESSAGE}
# Seconds for which brokers may not know a topic, because they create it or have just started. Higher: a wrong name
# delays the caller longer; lower: the first record of a new topic may fail
UNKNOWN_S: Final = 10.0
# Records after which a loop of `send` lets other tasks run, such as the one that sends the batches. Higher: less CPU;
# lower: the event loop is blocked for a shorter time
TURN: Final = 1000
T = TypeVar("T")
Chooser = Callable[[Optional[bytes], Sequence[int]], int]


class _RecordBatch(BatchBuilder):
    """A batch with the future of each record. `open_batches` has it while it accepts records."""

    def __init__(
        self,
        magic: int,
        codec: int,
        limit: int,
        at: tuple[str, int],
        open_batches: dict[tuple[str, int], Pending[_RecordBatch]],
    ) -> None:
        super().__init__(magic, codec)
        self.limit = limit
        """Size in bytes at which the batch ends."""
        self.loop = asyncio.get_running_loop()
        self._at = at
        self._open_batches = open_batches
        self.futures: list[asyncio.Future[RecordMetadata] | None] = []

    def halves(self) -> list[_RecordBatch]:
        """Returns the records of a batch, which has several, as two batches."""
        rows = list(Batch("", 0, scan(self.stamped(-1, -1, -1), topic="", partition=0, start=0)))
        times, half, made = self.rows.times(), len(rows) // 2, []
        for part in (slice(0, half), slice(half, None)):
            batch = _RecordBatch(self.magic, self._codec, self.limit, self._at, self._open_batches)
            batch.futures = self.futures[part]
            for row, timestamp in zip(rows[part], times[part]):
                batch.append(row.key, row.value, row.headers, timestamp)
            made.append(batch)
        return made

    def encode(self) -> Encoded | bytes:
        item = self._open_batches.get(self._at)
        if item is not None and item.batch is self:
            del self._open_batches[self._at]
        return super().encode()


class RecordWriter:
    """Sends records over a connected client, in the order of the calls within a partition. Use `async with`.

    It collects records into batches of up to `batch_bytes` for up to `linger_s`. `append` and `append_columns` wait
    while `buffer_bytes` are not acknowledged. `flush` returns when the present records are acknowledged, or raises
    DeliveryFailed. If a batch is not acknowledged within `timeout_s`, it fails together with the later batches of its
    partition, and new records are sent under a new epoch. When retention deletes the producer's records, brokers
    also forget its sequence numbers; the writer then continues under a new epoch. If a topic refuses a batch because of
    its records, the writer divides the batch, until each refused record is alone.
    """

    def __init__(
        self,
        client: KafkaClient,
        *,
        acks: int = ALL,
        buffer_bytes: int = 64 << 20,
        batch_bytes: int = TARGET_BYTES,
        linger_s: float = 0.02,
        compression: str = "none",
        timeout_s: float = 60.0,
        choose: Chooser | None = None,
    ) -> None:
        self._client = client
        self._linger_s = linger_s
        self._compression = compression
        self._timeout_s = timeout_s
        self._sender: BatchSender[_RecordBatch] = BatchSender(
            client,
            self._acked,
            self._refused,
            find_leaders=partial(_refresh, client),
            buffer_bytes=buffer_bytes,
            request_timeout_s=timeout_s / 2,
            acks=acks,
        )
        self.magic = 2
        """Version of the record format that the brokers accept. Valid inside `async with`."""
        self._open: dict[tuple[str, int], Pending[_RecordBatch]] = {}  # the batches that get the next records
        # topic -> size at which a batch ends; lower for topics that refused a batch for its size
        self._limits: dict[str, int] = defaultdict(lambda: batch_bytes)
        self._partitioner = Partitioner()
        self._choose = choose
        self._topics: set[str] = set()
        # A broker that has just started may not know the topic for a while
        self._known: dict[str, Partitions] = {}
        self._waiting = 0  # callers that wait for space
        self._turn = asyncio.Lock()
        self.awaited: set[asyncio.Future[RecordMetadata]] = set()
        """Futures whose failure `flush` need not raise, because a caller awaits them."""
        self._failed: DeliveryFailed | None = None
        self._tasks = BackgroundTasks(self._fail_all)
        self._finishing = False

    async def __aenter__(self) -> RecordWriter:
        """Raises ConfigError if the brokers do not accept the compression."""
        self.magic = self._sender.magic
        if self._compression == "zstd" and not self._sender.takes_zstd:
            name = ".".join(map(str, self._client.broker_version))
            raise ConfigError(f"compression zstd needs brokers of Kafka 2.1 or newer; these are {name}")
        self._tasks.start(self._run(), "producer")
        return self

    async def _run(self) -> None:
        forget = self._client.on_metadata(self._note_partitions)
        try:
            await self._sender.run(self._tasks)
        finally:
            forget()

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        self._fail_all(BrokerError("the producer was closed"))

    @property
    def takes_columns(self) -> bool:
        """Whether `append_columns` works: the brokers accept format v2, and the encoder is compiled."""
        return self.magic == 2 and accelerated and self._choose is None

    @property
    def stopped(self) -> bool:
        """Whether the writer was closed or has failed."""
        return self._sender.stopped

    def takes_headers(self, topic: str) -> bool:
        """Whether brokers store headers in this topic, as far as they have reported."""
        return self.magic == 2 and topic not in self._sender.old_topics

    def choose(self, topic: str, key: bytes | None) -> int | None:
        """Returns the partition for the next record with this key; None while the topic is not known."""
        partitions = self._known.get(topic)
        if partitions is None:
            return None
        if self._choose is not None:
            return as_number(topic, "result of the partitioner", self._choose(key, partitions.every))
        return self._partitioner.choose(key, partitions)

    def append_now(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int | None,
        timestamp: int | None,
    ) -> asyncio.Future[RecordMetadata] | None:
        """Like `append` after `choose`, if nothing has to be awaited. Otherwise returns None."""
        sender = self._sender
        if partition is None or self._waiting or sender.held > sender.buffer_bytes:
            return None
        at = topic, partition
        item = self._open.get(at)
        if item is None and at not in sender.queues:
            return None
        return self._put(at, item, key, value, headers, timestamp)

    async def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        pause: bool = False,
    ) -> asyncio.Future[RecordMetadata]:
        """Adds a record. Returns a future that ends when the record is acknowledged, or raises DeliveryFailed.

        `partition` None: the key chooses it, as in Java's producer. `timestamp`: milliseconds since the epoch, or None
        for now. `pause`: first lets other tasks run. If the call raises or is cancelled, the record is not written.
        Raises TopicNotFound, DeliveryFailed for a partition that the topic does not have, and ConfigError for headers
        on brokers before 0.11.
        """
        at = await self.place(topic, key, partition)
        await self._prepare(at, pause=pause)
        return self._put(at, self._open.get(at), key, value, headers, timestamp)

    async def place(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Returns the partition of a record. Raises TopicNotFound, and DeliveryFailed if the topic does not have it."""
        if topic not in self._known or _is_missing(self._client, topic):
            await self.find(topic)
        if partition is None:
            partition = self.choose(topic, key)
            assert partition is not None
        at = TopicPartition(topic, as_number(topic, "partition", partition))
        await self._must_exist(at)
        return at

    async def append_columns(
        self,
        topic: str,
        columns: ColumnsToSend | RowsToSend,
        chosen: Any = None,
        timestamp: int | None = None,
        futures: Sequence[asyncio.Future[RecordMetadata]] = (),
        *,
        pause: bool = False,
    ) -> None:
        """Adds rows of Arrow columns or lists. Raises the same errors as `append`.

        Check `takes_columns` first for Arrow columns. `chosen`: an Arrow array with the partition of each row, or one
        partition for lists; null: the key chooses it. `futures`: those of the rows; without any, only `flush` tells the
        outcome. `pause`: first lets other tasks run, as after each `TURN` rows.
        """
        partitions = self._known.get(topic)
        if partitions is None or _is_missing(self._client, topic):
            partitions = await self.find(topic)
        parts: Iterator[tuple[int, ColumnsToSend | RowsToSend, Sequence[int]]]
        if isinstance(columns, RowsToSend):
            runs = None if self._choose is not None else partial(self._partitioner.runs, partitions=partitions)
            parts = columns.by_partition(chosen, partial(self.choose, topic), runs)
        else:
            timestamp = wall_ms() if timestamp is None else timestamp
            parts = by_partition(columns, chosen, partitions, self._partitioner)
        unpaused = TURN if pause else 0
        for partition, rows, numbers in parts:
            at = TopicPartition(topic, partition)
            done, end = 0, len(rows.values)
            while done < end:
                pause = done > 0 or unpaused >= TURN  # encoding takes a while
                await self._prepare(at, pause=pause)
                item = self._open.get(at)
                batch = self._new_batch(at) if item is None else item.batch
                now = wall_ms() if timestamp is None else timestamp
                added = rows.append_to(batch, done, end, now, batch.limit) - done
                own = map(futures.__getitem__, numbers[done : done + added]) if futures else repeat(None, added)
                batch.futures.extend(own)
                done += added
                unpaused = added if pause else unpaused + added
                self._grown(at, batch, item)

    async def flush(self) -> None:
        """Returns when the present records are acknowledged. Raises the first DeliveryFailed since the last call."""
        await self._sender.drained(self._sender.queues)
        self.raise_if_failed()

    async def finish(self) -> None:
        """Like `flush`, before the writer is closed. Callers that still wait to add a record get Closed: their record
        would come too late for this flush."""
        self._finishing = True
        await self.flush()

    def raise_if_failed(self) -> None:
        """Raises the first DeliveryFailed since the last call. Its `records` counts all records that have failed."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    async def find(self, topic: str) -> Partitions:
        """Returns the partitions of a topic. The metadata request creates the topic if the brokers allow that.

        Raises TopicNotFound if brokers do not know the topic for ten seconds, TopicAuthorizationFailed if they do not
        show it to this user, and the error of the last attempt after `timeout_s`.
        """
        self._topics.add(topic)
        self._client.follow(self._topics)

        async def find() -> Partitions:
            if not self._client.partitions(topic):
                await _refresh(self._client, [topic])
            partitions = self.partitions_now(topic)
            if partitions is not None:
                return partitions
            self._client.refuse_hidden([topic], "write")
            raise TopicNotFound([topic])

        try:
            self._known[topic] = await self._until_it_succeeds(find)
        except TopicNotFound:
            self._known.pop(topic, None)  # it was deleted
            raise
        finally:
            if topic not in self._known:  # otherwise the client would request it forever
                self._topics.discard(topic)
                self._client.follow(self._topics)
        return self._known[topic]

    # -- batches --------------------------------------------------------------------------------------------------

    def _note_partitions(self) -> None:
        for topic in self._known:
            self._known[topic] = self.partitions_now(topic) or self._known[topic]

    def partitions_now(self, topic: str) -> Partitions | None:
        """Returns what the latest metadata have; None if they lack the topic."""
        every = self._client.partitions(topic)
        if not every:
            return None
        led = tuple(number for number in every if self._client.leader(TopicPartition(topic, number)) is not None)
        return Partitions(every, led or every)

    async def _until_it_succeeds(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeats retriable errors for `timeout_s`, or an unknown topic for `UNKNOWN_S`."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return await attempt()
            except AllocatorError as error:
                if isinstance(error, TopicNotFound):
                    deadline = min(deadline, time.monotonic() + UNKNOWN_S)
                if not error.retriable or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(self._client.retry_backoff_s)

    async def _must_exist(self, at: TopicPartition) -> None:
        known = self._known.get(at.topic)
        if known is None or at.partition not in known.every:
            await self._client.refresh([at.topic])  # the partition may be newer than the metadata
            partitions = self._client.partitions(at.topic) or ()
            if at.partition not in partitions:
                error = BrokerError(f"the topic has {len(partitions)} partitions")
                raise DeliveryFailed(at, 1, error, maybe_written=False)

    async def _prepare(self, at: TopicPartition, *, pause: bool) -> None:
        """Returns when `_put` may be called for the partition. Callers proceed in the order of their calls."""
        await self._must_exist(at)
        if pause or self._waiting or self._sender.held > self._sender.buffer_bytes:
            self._waiting += 1
            try:
                # the lock has a queue: if each wake-up woke all callers, thousands of them would keep the loop busy
                async with self._turn:
                    if pause:
                        await asyncio.sleep(0)
                    await self._sender.wait_for_space(0)
            finally:
                self._waiting -= 1
        while at not in self._sender.queues and not self.stopped:
            if self._sender.identity is None:  # the caller gets the error of the first request, which may be a refusal
                await self._until_it_succeeds(partial(self._add, at))
            else:
                self._sender.add_now(at)
        if self._finishing:
            raise Closed("this producer was closed; create another one")

    async def _add(self, at: TopicPartition) -> None:
        if at not in self._sender.queues:  # another caller may have added it: adding it again would drop its batches
            await self._sender.add([at])

    def _new_batch(self, at: tuple[str, int]) -> _RecordBatch:
        if self.stopped:
            raise Closed("this producer was closed, or has failed; create another one")
        return _RecordBatch(self.magic, CODECS[self._compression], self._limits[at[0]], at, self._open)

    def _put(
        self,
        at: tuple[str, int],
        item: Pending[_RecordBatch] | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp: int | None,
    ) -> asyncio.Future[RecordMetadata]:
        batch = self._new_batch(at) if item is None else item.batch
        size = batch.rows.append(key, value, encode_headers(headers) if headers else None, timestamp)
        future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=batch.loop)
        batch.futures.append(future)
        if item is None or size >= batch.limit:
            self._grown(at, batch, item)
        else:  # what `BatchSender.resize` does, in less time
            self._sender.held += size - item.size
            item.size = size
        return future

    def _grown(self, at: tuple[str, int], batch: _RecordBatch, item: Pending[_RecordBatch] | None) -> None:
        """Called after records were added to a batch. Puts a new batch into the queue: an empty one is never sent."""
        if item is None:
            partition, now = TopicPartition(*at), batch.loop.time()
            item = self._sender.put(
                partition,
                self._sender.queues[partition],
                batch,
                ready_at=now + self._linger_s,
                expires_at=now + self._timeout_s,
            )
            assert item is not None
            self._open[partition] = item
        if batch.size >= batch.limit:
            batch.encode()
            item.ready_at = 0.0
        self._sender.resize(item)

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _acked(self, partition: TopicPartition, batch: _RecordBatch, offset: int, time: int) -> None:
        topic, number = partition
        times: Iterable[int] = repeat(time) if self.magic == 0 or time >= 0 else batch.rows.times()
        offsets: Iterable[int] = count(offset) if offset >= 0 else repeat(offset)
        # loops of C take three quarters of the time of others, and `tuple.__new__` half of that of the class
        results: Iterable[RecordMetadata] = map(
            tuple.__new__, repeat(RecordMetadata), zip(repeat(topic), repeat(number), offsets, times)
        )
        waiting = [future for future in reversed(batch.futures) if future is not None]
        if len(waiting) < len(batch.futures):
            results = compress(results, batch.futures)
        batch.futures = []  # a future that no caller keeps is freed at once, which saves the garbage collector work
        told = map(asyncio.Future.set_result, map(list.pop, repeat(waiting, len(waiting))), results)
        while waiting:
            with contextlib.suppress(asyncio.InvalidStateError):  # the caller cancelled it
                deque(told, 0)

    def _refused(self, partition: TopicPartition, queue: PartitionQueue[_RecordBatch], error: BrokerError) -> None:
        first = queue.pending[0]
        batch = first.batch
        if error.code in STATE_LOST and queue.renumber():
            return
        old_format = error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        if error.code not in RECORD_REFUSED and not old_format:
            missing = error.code is None and _is_missing(self._client, partition.topic)
            self._fail(partition, queue, TopicNotFound([partition.topic]) if missing else error)
            return
        if error.code in TOO_LARGE and batch.records > 1:
            self._limits[partition.topic] = min(batch.limit, batch.rows.size // 2)
        hopeless = old_format and self._compression == "zstd"  # no record of the batch can be stored
        parts = batch.halves() if batch.records > 1 and not first.maybe_written and not hopeless else ()
        if not parts:
            self._reject(partition, batch, error, first.maybe_written)
        if not self._sender.replace_first(partition, parts):
            why = f"an earlier record was refused, and a request for later ones had no response: {error}"
            self._fail(partition, queue, BrokerError(why, retriable=True))

    def _fail(self, partition: TopicPartition, queue: PartitionQueue[_RecordBatch], error: AllocatorError) -> None:
        """Fails all batches of a partition: without the first batch, brokers would refuse the sequence number of the
        next."""
        self._sender.drop([partition])
        self._open.pop(partition, None)
        for item in queue.pending:
            maybe_written = item.maybe_written or (item.sequence is not None and queue.unanswered > 0)
            self._reject(partition, item.batch, error, maybe_written)

    def _reject(
        self, partition: TopicPartition, batch: _RecordBatch, error: AllocatorError, maybe_written: bool
    ) -> None:
        untold = 0
        for future in batch.futures:
            untold += future not in self.awaited
            if future is not None and not future.done():
                future.set_exception(DeliveryFailed(partition, 1, error, maybe_written))
                future.exception()  # marks it as retrieved: `flush` raises it for callers that await no future
        first = self._failed
        if untold and first is None:
            self._failed = DeliveryFailed(partition, untold, error, maybe_written)
        elif untold and first is not None:
            records = first.records + untold
            self._failed = DeliveryFailed(first.partition, records, first.error, first.maybe_written or maybe_written)

    def _fail_all(self, error: BaseException) -> None:
        known = error if isinstance(error, AllocatorError) else BrokerError(f"the producer failed: {error!r}")
        self._sender.stop()
        for partition, queue in list(self._sender.queues.items()):
            self._fail(partition, queue, known)


async def _refresh(client: KafkaClient, topics: Iterable[str]) -> None:
    """Reads the metadata. Requests the creation of topics that brokers do not know: no record was sent to them, or they
    were deleted while records wait."""
    await client.refresh(topics)
    for topic in topics:
        if _is_missing(client, topic):
            await client.send_any(_creation_request(topic))


def _is_missing(client: KafkaClient, topic: str) -> bool:
    """Returns whether brokers have reported that they do not know the topic, or have not reported on it."""
    return client.partitions(topic) is None and not client.hides(topic)


def _creation_request(topic: str) -> Any:
    """Returns a metadata request that makes brokers create the topic, if auto.create.topics.enable is set."""
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
