"""`Producer`: writes records to topics, for users."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from allocator.core.aio import ClosesOnce, warn_unclosed
from allocator.core.client import KafkaClient
from allocator.core.consumer import ConsumerBase
from allocator.core.settings import DEFAULT, check_topic, keyword_faults, names_arguments
from allocator.core.text import shown
from allocator.errors import Closed, ConfigError, DeliveryFailed, IllegalState
from allocator.producer.columns import ColumnsToSend, RowsToSend, check_lengths
from allocator.producer.consumer_transaction import ConsumerTransactions, Transaction
from allocator.producer.encoding import encode_headers
from allocator.producer.intake import Intake, TakenRecord, check_timestamp, own_headers
from allocator.producer.partitioner import Partitions, as_number
from allocator.producer.requests import ALL
from allocator.producer.settings import PRODUCING, PRODUCING_DEFAULT
from allocator.producer.writer import TURN, RecordWriter
from allocator.types import Acks, Compression, RecordMetadata, Serializer, TopicPartition

log = logging.getLogger(__name__)


@names_arguments
class Producer:
    """Writes records to topics. It collects the records of a partition into batches.

    Guarantee: once the future of a record has its result, all in-sync replicas have the record. From Kafka 0.11 on, no
    retry writes a record twice. Older brokers, and topics that keep their format (message.format.version), may have it
    twice after a failure. Records of one partition are stored in the order in which `send` returned.

        async with Producer(brokers="b1:9092") as producer:
            await producer.send_and_wait("orders", b"value", key=b"customer")

    `send` returns as soon as the record is in the buffer, with a future of its `RecordMetadata`. The producer repeats
    failed requests for `delivery_timeout_s`. Then the record fails with `DeliveryFailed`, and so do the later records
    of its partition, because they must not overtake it. A record that its topic refuses, for example because it is too
    large, fails alone.

    Use one producer for all topics, in the event loop that starts it. docs/reference/settings.md lists the settings
    with their defaults and ranges. Only Python code can pass these arguments:

    key_serializer     a function that converts a key to bytes; it is not called for None
    value_serializer   a function that converts a value to bytes; it is not called for None
    partitioner        a function (key, partitions) that returns one of the partitions, which are numbers in ascending
                       order. Without one, the key chooses the partition, as in Java's producer, and records without a
                       key go to each partition with a leader in turn, in runs
    security           TLS and SASL to Kafka, under kafka-python's names
    """

    def __init__(
        self,
        *,
        brokers: str | Sequence[str],
        acks: Acks = PRODUCING_DEFAULT["acks"],
        linger_s: float = PRODUCING_DEFAULT["linger_s"],
        compression: Compression | None = PRODUCING_DEFAULT["compression"],
        buffer_bytes: int = PRODUCING_DEFAULT["buffer_bytes"],
        batch_bytes: int = PRODUCING_DEFAULT["batch_bytes"],
        delivery_timeout_s: float = PRODUCING_DEFAULT["delivery_timeout_s"],
        key_serializer: Serializer = None,
        value_serializer: Serializer = None,
        partitioner: Callable[[bytes | None, Sequence[int]], int] | None = None,
        client_id: str | None = PRODUCING_DEFAULT["client_id"],
        security: Mapping[str, Any] | None = DEFAULT["security"],
        connect_timeout_s: float = DEFAULT["connect_timeout_s"],
    ) -> None:
        sizes = {"buffer_bytes": buffer_bytes, "batch_bytes": batch_bytes}
        times = {"linger_s": linger_s, "delivery_timeout_s": delivery_timeout_s, "connect_timeout_s": connect_timeout_s}
        names = {"brokers": brokers, "client_id": client_id, "acks": str(acks), "compression": compression}
        faults = keyword_faults({**names, **sizes, **times, "security": security}, PRODUCING)
        if faults:
            raise ConfigError("; ".join(faults.values()))
        for name, function in {
            "key_serializer": key_serializer,
            "value_serializer": value_serializer,
            "partitioner": partitioner,
        }.items():
            if function is not None and not callable(function):
                raise ConfigError(f"{name} is {shown(function)}; pass a function")
        self._client = KafkaClient(brokers, client_id=client_id or "allocator", security=security)
        self._connect_timeout_s = connect_timeout_s
        self._writing: dict[str, Any] = {
            "acks": 1 if str(acks) == "1" else ALL,
            "compression": compression or "none",
            "timeout_s": delivery_timeout_s,
            "linger_s": linger_s,
            "choose": partitioner,
            **sizes,
        }
        self.buffer_bytes = buffer_bytes
        self._intake = Intake(key_serializer, value_serializer)
        self._serializes = self._intake.serializes
        self._writer: RecordWriter | None = None  # None unless the producer is started and not closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = ClosesOnce()
        self._sent = 0
        self._transactions: WeakKeyDictionary[ConsumerBase, ConsumerTransactions] = WeakKeyDictionary()

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects. Raises BrokersUnavailable after `connect_timeout_s`, and ConfigError if the brokers do not accept
        the compression."""
        if self._loop is not None:
            raise RuntimeError("start() was called already; create another Producer")
        self._loop = asyncio.get_running_loop()
        try:
            await self._client.connect(self._connect_timeout_s)
            if self._closing.begun:
                raise Closed("the producer was closed while it started")
            writer = RecordWriter(self._client, **self._writing)
            await writer.__aenter__()
        except BaseException:
            await self._client.close()
            raise
        if writer.magic < 2:
            log.warning(
                "%r: brokers before 0.11 do not recognise repeated batches: after a failure, records may be written "
                "twice",
                self._client,
            )
        self._writer = writer

    async def close(self) -> None:
        """Waits until all records are acknowledged or have failed, and closes the connections.

        Raises DeliveryFailed as `flush` does. Calls of `send` that still wait raise Closed. If it is cancelled, the
        records that are not acknowledged fail. May be called repeatedly; each call returns once the producer is closed.
        """
        self._must_be_here()
        await self._closing.run(self._close)

    async def _close(self) -> None:
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                try:
                    await writer.finish()
                finally:
                    await writer.__aexit__()
        finally:
            await self._client.close()

    def __del__(self) -> None:
        if getattr(self, "_writer", None) is not None:  # `__init__` may have raised
            warn_unclosed(self, f"for {self._client.bootstrap}")

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except DeliveryFailed as failed:
            if error is None:
                raise
            log.error("%s", failed)  # the error of the block is raised

    # -- records --------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> asyncio.Future[RecordMetadata]:
        """Adds a record to the buffer, and waits while the buffer is full. Returns a future of its `RecordMetadata`.

        The future raises DeliveryFailed if the record is not acknowledged. Cancelling the future does not withdraw the
        record. If `send` itself raises or is cancelled, the record is not written. `timestamp`: milliseconds since the
        epoch; None: now. `headers`: pairs (str, bytes or None), for brokers from 0.11.

        The first call waits for a producer id, and the first one of a topic for its partitions. If the brokers do not
        give them within `delivery_timeout_s`, it raises their error. It also raises TopicNotFound if the topic does not
        exist within ten seconds and brokers do not create it, TopicAuthorizationFailed, and BrokerError without the
        right to be idempotent. Each call may raise DeliveryFailed for a partition that the topic does not have,
        TypeError for a key, a value or headers of the wrong type, ConfigError for a timestamp that Kafka does not have
        and for headers before 0.11, and Closed.
        """
        writer = self._writer
        if writer is None or self._loop is not asyncio.get_running_loop():
            writer = self._open_writer()
        plain = value.__class__ is bytes and (key is None or key.__class__ is bytes) and timestamp is None
        if not plain or headers or self._serializes:
            key, value, headers = self._intake.take(topic, value, key, timestamp, headers)
        if partition is None:
            partition = writer.choose(topic, key)
        elif partition.__class__ is not int:
            partition = as_number(topic, "partition", partition)
        self._sent += 1
        pause = not self._sent % TURN
        future = None if pause else writer.append_now(topic, key, value, headers, partition, timestamp)
        if future is None:
            check_topic(topic)
            future = await writer.append(
                topic, key, value, headers=headers, partition=partition, timestamp=timestamp, pause=pause
            )
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> RecordMetadata:
        """Sends a record, and returns its `RecordMetadata` when it is acknowledged. Raises DeliveryFailed otherwise.

        If it is cancelled while it waits for the acknowledgement, the record is still sent.
        """
        awaited = self._open_writer().awaited
        future = await self.send(topic, value, key, partition, timestamp, headers)
        awaited.add(future)
        try:
            return await future
        finally:
            awaited.discard(future)

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> list[asyncio.Future[RecordMetadata]]:
        """Sends a record for each value, and returns the futures of the records, in the same order.

        `keys` has a key for each value; other lengths raise ValueError. The other arguments hold for all records, and
        are those of `send`. With values and keys as Arrow arrays of binary or string, brokers from 0.11 and the
        compiled encoder, no Python object is created for a key or a value. If `send_many` raises or is cancelled, the
        first records may be written.
        """
        writer = self._open_writer()
        check_topic(topic)
        if partition is not None:
            partition = (await writer.place(topic, None, partition)).partition
        in_columns = hasattr(values, "buffers") and (keys is None or hasattr(keys, "to_pylist"))
        if in_columns and writer.takes_columns and not self._serializes:
            if timestamp is not None:
                check_timestamp(topic, timestamp)
            headers = own_headers(topic, headers)
            import pyarrow as pa

            size = len(values)  # type: ignore[arg-type, unused-ignore]
            encoded = pa.repeat(pa.scalar(encode_headers(headers), pa.binary()), size) if headers else None
            chosen = None if partition is None else pa.repeat(pa.scalar(partition, pa.int32()), size)
            columns = ColumnsToSend.of(keys, values, encoded)
            return await self._append_columns(writer, topic, columns, size, chosen, timestamp)
        rows = _rows(values, as_bytes=self._intake.value_serializer is None)
        own = None if keys is None else _rows(keys, as_bytes=self._intake.key_serializer is None)
        if own is not None:
            check_lengths(rows, own)
        if not rows:
            return []
        rows, own, headers = self._intake.take_many(topic, rows, own, timestamp, headers)
        to_send = RowsToSend(own, rows, encode_headers(headers) if headers else None)
        return await self._append_columns(writer, topic, to_send, len(rows), partition, timestamp)

    async def flush(self) -> None:
        """Returns when the records that were sent before are acknowledged or have failed.

        Raises DeliveryFailed if records have failed since the last call. Its `records` counts them, and its `partition`
        is that of the first. A failure that `send_and_wait` has raised does not count.
        """
        await self._open_writer().flush()

    async def partitions_for(self, topic: str) -> tuple[int, ...]:
        """Returns the partitions of a topic, in ascending order. Raises TopicNotFound as `send` does."""
        return (await self._partitions(topic)).every

    def transaction(self, consumer: Any) -> Transaction:
        """Returns a transaction of what is sent in it and of the offset of a `Consumer` after its records in hand.

            async for batch in consumer:
                async with producer.transaction(consumer) as tx:
                    for record in batch:
                        await tx.send("totals", total(record), key=record.key)

        Guarantee: a reader with isolation level "read_committed" sees the results of each record once, whichever
        process is killed or frozen, if all members of the group commit only in such transactions. The records in hand
        must be of one partition. If the block raises, or the transaction fails, nothing is written and the consumer
        reads the records in hand again. Continue after errors that are `retriable`.

        The transactional id of a partition is `<group>:<topic>:<partition>`. Needs brokers from 0.11. Raises
        ConfigError unless the consumer was created with `transactions=` this producer, which then commits all its
        offsets in transactions.
        """
        self._open_writer()
        if not isinstance(consumer, ConsumerBase):
            raise TypeError(f"a transaction takes a Consumer, not {shown(consumer)}")
        found = self._transactions.get(consumer)
        if found is None or consumer._member.commits.transact != found.commit_offset:
            raise ConfigError(
                f"the consumer of group {consumer.group!r} may commit outside of transactions, and such a commit that "
                "arrives late would repeat results; create it with transactions=<this producer>"
            )
        return Transaction(found)

    @property
    def has_failed(self) -> bool:
        """Whether an error that no retry can help has ended the producer. Then close it, and create another one."""
        return self._writer is not None and self._writer.stopped

    # -- inside ---------------------------------------------------------------------------------------------------

    def _commits_of(self, consumer: ConsumerBase) -> ConsumerTransactions:
        """Returns what commits the offsets of a consumer with `transactions=` this producer. Raises ConfigError."""
        transactions = self._transactions_of(consumer)
        if consumer._member.commits.are_automatic:
            raise ConfigError(
                f"the consumer of group {consumer.group!r} commits offsets by itself, also of records whose results "
                "are not written; give it auto_commit_interval_s=None"
            )
        return transactions

    def _transactions_of(self, consumer: ConsumerBase) -> ConsumerTransactions:
        """Returns the transactions of a consumer."""
        found = self._transactions.get(consumer)
        if found is None:
            found = self._transactions[consumer] = ConsumerTransactions(self, consumer)
        return found

    async def _partitions(self, topic: str) -> Partitions:
        check_topic(topic)
        return await self._open_writer().find(topic)

    def _known_partitions(self, topic: str) -> Partitions | None:
        """Returns what `_partitions` returns without waiting; None if it has to wait."""
        return self._open_writer().partitions_now(topic)

    async def _append_columns(
        self,
        writer: RecordWriter,
        topic: str,
        columns: ColumnsToSend | RowsToSend,
        size: int,
        chosen: Any,
        timestamp: int | None,
    ) -> list[asyncio.Future[RecordMetadata]]:
        futures: list[asyncio.Future[RecordMetadata]] = [asyncio.Future(loop=self._loop) for _ in range(size)]
        before = self._sent
        self._sent += size
        pause = self._sent // TURN > before // TURN
        await writer.append_columns(topic, columns, chosen, timestamp, futures, pause=pause)
        return futures

    async def _append(self, taken: TakenRecord) -> asyncio.Future[RecordMetadata]:
        """Sends a record as `send` does. `flush` and `close` do not raise its failure, which the caller handles."""
        topic, partition, (key, value, timestamp, headers) = taken
        writer = self._open_writer()
        future = await writer.append(topic, key, value, headers=headers, partition=partition, timestamp=timestamp)
        writer.awaited.add(future)
        future.add_done_callback(writer.awaited.discard)
        return future

    async def _place(self, taken: TakenRecord) -> TopicPartition:
        """Returns the partition of a record for a transaction. Raises the errors of `send`."""
        return await self._open_writer().place(taken.topic, taken.record.key, taken.partition)

    def _open_writer(self) -> RecordWriter:
        if self._loop is not asyncio.get_running_loop():
            self._must_be_here()
        if self._writer is None:
            begun = "is closed; create another one" if self._closing.begun else "is not started; use `async with`"
            raise Closed(f"this producer {begun}")
        return self._writer

    def _must_be_here(self) -> None:
        if self._loop not in (None, asyncio.get_running_loop()):
            raise IllegalState(
                "this producer was started in another event loop; use it there, with "
                "asyncio.run_coroutine_threadsafe from other threads"
            )


def _rows(column: Any, *, as_bytes: bool) -> list[Any]:
    """Returns the values of an iterable or Arrow column. `as_bytes`: text of an Arrow column becomes bytes, because no
    serializer converts it."""
    if not hasattr(column, "to_pylist"):
        return list(column)
    rows: list[Any] = column.to_pylist()
    return [each.encode() if isinstance(each, str) else each for each in rows] if as_bytes else rows
