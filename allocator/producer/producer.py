"""Writes records to topics. The key chooses the partition, and records of one partition share batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from kafka import errors  # noqa: F401 - imports `kafka` first, see `protocol.load`
from kafka.protocol.metadata import MetadataRequest

from allocator.core.aio import BackgroundTasks, wall_ms
from allocator.core.client import ErrorCode, KafkaClient
from allocator.errors import AllocatorError, BrokerError, Closed, ConfigError, TopicNotFound
from allocator.producer.builder import BatchBuilder
from allocator.producer.columns import ColumnsToSend, accelerated, by_partition
from allocator.producer.encoding import CODECS, TARGET_BYTES
from allocator.producer.partitioner import Partitioner
from allocator.producer.sender import BatchSender, PartitionQueue, Pending
from allocator.types import TopicPartition

# The broker has forgotten the producer's sequence numbers, for example because retention deleted its last record. The
# broker stored nothing, and accepts the batch under a new epoch. Kafka 0.11 sends the first of these codes
STATE_LOST = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))


class DeliveryFailed(AllocatorError):
    """Records of one partition were not acknowledged.

    `maybe_written`: a broker may have stored some of them, for example because a response was lost.
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


class _RecordBatch(BatchBuilder):
    def __init__(self, magic: int, codec: int) -> None:
        super().__init__(magic, codec)
        self.delivered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # retrieves the error for callers that only await `flush`; otherwise asyncio logs it as never retrieved
        self.delivered.add_done_callback(lambda delivered: delivered.cancelled() or delivered.exception())


class Producer:
    """Sends records over a connected client, in the order of the calls within a partition. Use `async with`.

    It collects records into batches of up to `batch_bytes` for up to `linger_s`. `append` and `append_columns` wait
    while `buffer_bytes` are not acknowledged. `flush` returns when all records are acknowledged, or raises
    DeliveryFailed. If a batch is not acknowledged within `timeout_s`, it fails together with the later batches of its
    partition, and new records are sent under a new producer id. When retention deletes the producer's records, brokers
    also forget its sequence numbers; the producer then continues under a new epoch.
    """

    def __init__(
        self,
        client: KafkaClient,
        *,
        buffer_bytes: int = 64 << 20,
        batch_bytes: int = TARGET_BYTES,
        linger_s: float = 0.02,
        compression: str = "none",
        timeout_s: float = 60.0,
    ) -> None:
        self._client = client
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._compression = compression
        self._timeout_s = timeout_s
        self._sender: BatchSender[_RecordBatch] = BatchSender(
            client, self._acked, self._refused, buffer_bytes=buffer_bytes, request_timeout_s=timeout_s / 2
        )
        self.magic = 2
        """Version of the record format that the brokers accept. Valid inside `async with`."""
        self._open: dict[TopicPartition, Pending[_RecordBatch]] = {}  # the batches that get the next records
        self._partitioner = Partitioner()
        self._topics: set[str] = set()
        self._failed: DeliveryFailed | None = None
        self._tasks = BackgroundTasks(self._fail_all)

    async def __aenter__(self) -> Producer:
        """Raises ConfigError if the brokers do not accept the compression."""
        self.magic = self._sender.magic
        if self._compression == "zstd" and not self._sender.takes_zstd:
            name = ".".join(map(str, self._client.broker_version))
            raise ConfigError(f"compression zstd needs brokers of Kafka 2.1 or newer; these are {name}")
        self._tasks.start(self._sender.run(self._tasks), "producer")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        self._fail_all(BrokerError("the producer was closed"))

    @property
    def takes_columns(self) -> bool:
        """Whether `append_columns` works: the brokers accept format v2, and the encoder is compiled."""
        return self.magic == 2 and accelerated

    @property
    def stopped(self) -> bool:
        """Whether the producer was closed or has failed."""
        return self._sender.stopped

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
        """Adds a record. Returns a future that ends when the record is acknowledged, or raises DeliveryFailed.

        `partition` None: the key chooses it, as in Java's producer. `timestamp`: milliseconds since the epoch, or None
        for now. Raises TopicNotFound, DeliveryFailed for a partition that the topic does not have, and ConfigError for
        headers on brokers before 0.11.
        """
        if headers and self.magic < 2:
            raise ConfigError("brokers before 0.11 have no record headers; leave them out")
        partitions = (topic in self._topics and self._client.partitions(topic)) or await self.find(topic)
        if partition is None:
            partition = self._partitioner.choose(key, len(partitions))
        sender = self._sender
        if sender.held > sender.buffer_bytes:
            await sender.wait_for_space(0)
        at = TopicPartition(topic, partition)
        item = self._open.get(at)
        if item is None or item.batch.encoded is not None:
            item = await self._batch(at, partitions)
        item.batch.append(key, value, headers, wall_ms() if timestamp is None else timestamp)
        self._grown(item)
        return item.batch.delivered

    async def append_columns(self, topic: str, columns: ColumnsToSend, chosen: Any = None) -> None:
        """Adds rows of Arrow columns with the current time. Raises the same errors as `append`.

        Check `takes_columns` first. `chosen`: Arrow array with the partition of each row; null: the key chooses it.
        """
        partitions = (topic in self._topics and self._client.partitions(topic)) or await self.find(topic)
        now = wall_ms()
        for partition, rows in by_partition(columns, chosen, len(partitions), self._partitioner):
            done, end = 0, len(rows.values)
            while done < end:
                await self._sender.wait_for_space(0)
                item = await self._batch(TopicPartition(topic, partition), partitions)
                done += item.batch.append_rows(rows.encoder(done, end), now, self._batch_bytes)
                self._grown(item)

    async def flush(self) -> None:
        """Returns when all records are acknowledged. Raises the first DeliveryFailed since the last call."""
        await self._sender.drained(self._sender.queues)
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """Raises the first DeliveryFailed since the last call. Its `records` counts all records that have failed."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    async def find(self, topic: str) -> tuple[int, ...]:
        """Returns the partitions of a topic. The metadata request creates the topic if the brokers allow that.

        Raises TopicNotFound if the topic does not exist after `timeout_s`.
        """
        self._topics.add(topic)
        self._client.follow(self._topics)
        deadline = time.monotonic() + self._timeout_s
        while True:
            await self._client.refresh([topic])
            partitions = self._client.partitions(topic)
            if partitions:
                return partitions
            await self._client.send_any(_creation_request(topic))
            if time.monotonic() > deadline:
                raise TopicNotFound([topic])
            await asyncio.sleep(self._client.retry_backoff_s)

    async def _batch(self, at: TopicPartition, partitions: Sequence[int]) -> Pending[_RecordBatch]:
        """Returns the batch for the next records of a partition."""
        item = self._open.get(at)
        if item is not None and item.batch.encoded is None:
            return item
        if at.partition not in partitions:
            error = BrokerError(f"the topic has {len(partitions)} partitions")
            raise DeliveryFailed(at, 1, error, maybe_written=False)
        if at not in self._sender.queues:
            await self._sender.add([at])
            return await self._batch(at, partitions)  # another task may have created a batch meanwhile
        if self.stopped:
            raise Closed("this producer was closed, or has failed; create another one")
        now = asyncio.get_running_loop().time()
        added = self._sender.put(
            at,
            self._sender.queues[at],
            _RecordBatch(self.magic, CODECS[self._compression]),
            ready_at=now + self._linger_s,
            expires_at=now + self._timeout_s,
        )
        assert added is not None
        self._open[at] = added
        return added

    def _grown(self, item: Pending[_RecordBatch]) -> None:
        if item.batch.size >= self._batch_bytes:
            item.batch.encode()
            item.ready_at = 0.0
        self._sender.resize(item)

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _acked(self, partition: TopicPartition, batch: _RecordBatch, offset: int) -> None:
        if self._open[partition].batch is batch:
            del self._open[partition]  # frees the memory of the batch
        if not batch.delivered.done():  # done if the caller cancelled it
            batch.delivered.set_result(None)

    def _refused(self, partition: TopicPartition, queue: PartitionQueue[_RecordBatch], error: BrokerError) -> None:
        if error.code not in STATE_LOST or not queue.start_epoch():
            self._fail(partition, queue, error)

    def _fail(self, partition: TopicPartition, queue: PartitionQueue[_RecordBatch], error: AllocatorError) -> None:
        """Fails all batches of a partition: without the first batch, brokers would refuse the sequence number of the
        next."""
        self._sender.drop([partition])
        self._open.pop(partition, None)
        for item in queue.pending:
            maybe_written = item.maybe_written or (item.sequence is not None and queue.unanswered > 0)
            failed = DeliveryFailed(partition, item.batch.records, error, maybe_written)
            if not item.batch.delivered.done():
                item.batch.delivered.set_exception(failed)
            first = self._failed
            if first is not None:
                records = first.records + failed.records
                failed = DeliveryFailed(first.partition, records, first.error, first.maybe_written)
            self._failed = failed

    def _fail_all(self, error: BaseException) -> None:
        known = error if isinstance(error, AllocatorError) else BrokerError(f"the producer failed: {error!r}")
        self._sender.stop()
        for partition, queue in list(self._sender.queues.items()):
            self._fail(partition, queue, known)


def _creation_request(topic: str) -> Any:
    """Returns a metadata request that makes brokers create the topic, if auto.create.topics.enable is set."""
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
