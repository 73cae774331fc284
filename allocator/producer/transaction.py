"""Writes records to several partitions in one transaction (KIP-98).

Protocol: FindCoordinator for transactions, InitProducerId, AddPartitionsToTxn, Produce, EndTxn, in the versions before
KIP-890, which brokers from 0.11 to 4.x support.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Optional

from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest

from allocator.core.client import ErrorCode, KafkaClient, Reaction, for_code, reaction_to
from allocator.core.offsets import Coordinator
from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.producer.builder import BatchBuilder
from allocator.producer.requests import init_request
from allocator.producer.sender import TOO_LARGE, BatchSender, PartitionQueue
from allocator.types import TopicPartition

# the newest versions before KIP-890, in which a commit does not change the epoch
ADD_VERSION, END_VERSION = 3, 4
REPLACED: Final = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED))


class NewRecord(NamedTuple):
    """A record to write. `timestamp`: milliseconds since the epoch."""

    key: Optional[bytes]
    value: Optional[bytes]
    timestamp: int
    headers: Sequence[tuple[str, Optional[bytes]]] = ()


class TooLargeForTopic(BrokerError):
    """The topic does not accept a record of this size. Raise its max.message.bytes."""


class _Batch(BatchBuilder):
    """A batch that keeps its records, so that it can be split."""

    def __init__(self, rows: Sequence[NewRecord]) -> None:
        super().__init__(2, 0, transactional=True)
        self.rows = rows
        for row in rows:
            self.append(row.key, row.value, row.headers, row.timestamp)


class TransactionalWriter:
    """Writes one transaction at a time. `name`: transactional id.

    Guarantee: a reader with isolation_level "read_committed" sees all records of a `write` or none, and sees them once
    `write` has returned. `open` aborts the unfinished transaction of any other writer with this name. That writer can
    no longer write. Readers with "read_uncommitted" also see records of aborted transactions.
    """

    def __init__(self, client: KafkaClient, name: str, *, timeout_s: float = 60.0) -> None:
        self._client = client
        self._name = name
        self._timeout_s = timeout_s
        self._coordinator = Coordinator(client, name, client.retry_backoff_s, for_transactions=True)
        self._sender: BatchSender[_Batch] = BatchSender(
            client, refused=self._refused, request_timeout_s=client.request_timeout_s, transactional_id=name
        )
        self._identity: tuple[int, int] | None = None
        self._too_large: TooLargeForTopic | None = None

    async def open(self) -> None:
        """Makes this process the only writer with its name. Raises BrokerError, ConfigError for brokers before 0.11."""
        if self._client.api_version(EndTxnRequest) is None:
            name = ".".join(map(str, self._client.broker_version))
            raise ConfigError(f"transactions need brokers of Kafka 0.11 or newer; these are {name}")
        request = init_request(self._name, self._timeout_s)
        response = await self._request(request, lambda response: response.error_code)
        self._sender.drop(list(self._sender.queues))
        self._identity = self._sender.identity = response.producer_id, response.producer_epoch

    async def write(self, records: Mapping[TopicPartition, Sequence[NewRecord]]) -> None:
        """Writes all records, in their order within each partition. Raises BrokerError.

        Splits a batch that a topic does not accept. After an error nothing is written, unless the response to the
        commit was lost. After an error other than TooLargeForTopic, call `open` before the next write.
        """
        identity = self._identity
        if identity is None:
            raise RuntimeError("call open() first")
        self._identity = None
        try:
            await self._client.refresh({partition.topic for partition in records})
            await self._add(records, identity)
            await self._produce(records)
        except TooLargeForTopic:
            await self._end(identity, commit=False)
            # the brokers acknowledged or refused each batch, so the next sequence numbers are known
            self._identity = identity
            raise
        except BaseException:
            with contextlib.suppress(AllocatorError):
                await self._end(identity, commit=False)
            raise
        await self._end(identity, commit=True)
        # The coordinator responds before it has written the markers, without which readers do not see the records. It
        # refuses a second commit until the markers are written
        await self._end(identity, commit=True)
        self._identity = identity

    # ------------------------------------------------------------------------------------------------------------

    async def _add(self, partitions: Mapping[TopicPartition, Any], identity: tuple[int, int]) -> None:
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        topics = defaultdict(list)
        for partition in sorted(partitions):
            topics[partition.topic].append(partition.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=identity[0],
            v3_and_below_producer_epoch=identity[1],
            v3_and_below_topics=[kind(name=name, partitions=numbers) for name, numbers in topics.items()],
            max_version=ADD_VERSION,
        )

        def code(response: Any) -> int:
            topics = response.results_by_topic_v3_and_below
            codes = (part.partition_error_code for topic in topics for part in topic.results_by_partition)
            return next(filter(None, codes), 0)

        await self._request(request, code)

    async def _produce(self, records: Mapping[TopicPartition, Sequence[NewRecord]]) -> None:
        sender, late = self._sender, asyncio.get_running_loop().time() + self._timeout_s
        self._too_large = None
        await sender.add(partition for partition in records if partition not in sender.queues)
        for partition, some in records.items():
            if some:
                sender.put(partition, sender.queues[partition], _Batch(some), expires_at=late)
        await sender.send_all()
        if self._too_large is not None:
            raise self._too_large

    def _refused(self, partition: TopicPartition, queue: PartitionQueue[_Batch], error: BrokerError) -> None:
        """Splits a batch that is too large. Raises all other errors."""
        where = f"{partition.topic}:{partition.partition}"
        if error.code not in TOO_LARGE:
            raise error if error.code is None else self._refusal(error.code, where)
        refused = queue.pending[0].batch
        half = refused.records // 2
        if half:
            self._sender.replace_first(partition, [_Batch(refused.rows[:half]), _Batch(refused.rows[half:])])
            return
        size = sum(len(part or b"") for part in refused.rows[0][:2])
        self._too_large = TooLargeForTopic(
            f"{where} does not accept a record with {size} bytes of key and value; raise its max.message.bytes",
            code=error.code,
        )
        self._sender.replace_first(partition, ())

    async def _end(self, identity: tuple[int, int], *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=identity[0],
            producer_epoch=identity[1],
            committed=commit,
            max_version=END_VERSION,
        )
        await self._request(request, lambda response: response.error_code)

    async def _request(self, request: Any, code_of: Callable[[Any], int]) -> Any:
        """Sends a request to the coordinator until it succeeds. Raises BrokerError."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                response = await self._coordinator.send(request, deadline, self._client.request_timeout_s)
                code = code_of(response)
                if not code:
                    return response
                error = self._refusal(code, f"transaction {self._name!r}")
                if reaction_to(code, {}) is Reaction.REFIND:
                    self._coordinator.forget()
            except BrokerError as failed:
                error = failed
            if not error.retriable or time.monotonic() > deadline:
                raise error
            await asyncio.sleep(self._client.retry_backoff_s)

    def _refusal(self, code: int, what: str) -> BrokerError:
        if code in REPLACED:
            return BrokerError(
                f"{what}: another process has begun to write as {self._name!r}, and this one ends", code=code
            )
        # a partition sends this code while it does not know the newer epoch yet (KIP-890)
        if code == ErrorCode.INVALID_TXN_STATE:
            return BrokerError(
                f"{what}: the transaction {self._name!r} is over: another process has begun to write, or it took "
                f"longer than {self._timeout_s:.0f} s",
                code=code,
            )
        return for_code(code, what)
