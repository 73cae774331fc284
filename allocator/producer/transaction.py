"""Records to several partitions, all or none of them (KIP-98).

Protocol: FindCoordinator for transactions, InitProducerId, AddPartitionsToTxn, Produce, EndTxn, in the versions before
KIP-890, which brokers from 0.11 to 4.x take.
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
from allocator.producer.sender import BatchSender, PartitionQueue
from allocator.types import TopicPartition

# the newest versions that an older client may send, and with an epoch that a commit does not change
ADD_VERSION, END_VERSION = 3, 4
TOO_LARGE: Final = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
REPLACED: Final = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED))


class NewRecord(NamedTuple):
    """A record to write. `timestamp` is milliseconds since the epoch."""

    key: Optional[bytes]
    value: Optional[bytes]
    timestamp: int
    headers: Sequence[tuple[str, Optional[bytes]]] = ()


class TooLargeForTopic(BrokerError):
    """The topic takes no record of this size, also not alone. Raise its max.message.bytes."""


class _Batch(BatchBuilder):
    """A batch that can be split."""

    def __init__(self, rows: Sequence[NewRecord]) -> None:
        super().__init__(2, 0, transactional=True)
        self.rows = rows
        for row in rows:
            self.append(row.key, row.value, row.headers, row.timestamp)


class TransactionalWriter:
    """Writes transactions under one name, one at a time.

    Guarantee: a reader with isolation_level "read_committed" sees all records of a `write` or none, and a `write` that
    returned is seen. `open` ends what a writer of the same name left unfinished, in whatever process it was, and that
    writer can write no more. Other readers also see the records of transactions that were given up.
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
        """Takes the name over. Raises ConfigError for brokers without transactions, BrokerError."""
        if self._client.api_version(EndTxnRequest) is None:
            name = ".".join(map(str, self._client.broker_version))
            raise ConfigError(f"transactions need brokers of Kafka 0.11 or newer; these are {name}")
        request = init_request(self._name, self._timeout_s)
        answer = await self._ask(request, lambda response: response.error_code)
        self._sender.drop(list(self._sender.queues))
        self._identity = self._sender.identity = answer.producer_id, answer.producer_epoch

    async def write(self, records: Mapping[TopicPartition, Sequence[NewRecord]]) -> None:
        """Writes all of these, in their order within a partition. Raises BrokerError.

        A batch that a topic does not take is split. After an error nothing is written, unless the answer to the commit
        was lost. Call `open` before the next write, except after TooLargeForTopic.
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
            # the brokers acknowledged or refused every batch, so the next sequence numbers are known
            self._identity = identity
            raise
        except BaseException:
            with contextlib.suppress(AllocatorError):
                await self._end(identity, commit=False)
            raise
        await self._end(identity, commit=True)
        # The coordinator answers before the partitions have the markers, without which readers see nothing. It refuses
        # the repetition until they have them
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

        await self._ask(request, code)

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
        """Splits a batch that is too large. Raises any other refusal."""
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
            f"{where} does not take a record with {size} bytes of key and value; raise max.message.bytes of the topic",
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
        await self._ask(request, lambda response: response.error_code)

    async def _ask(self, request: Any, code_of: Callable[[Any], int]) -> Any:
        """Asks the coordinator until it has carried the request out. Raises BrokerError."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                response = await self._coordinator.ask(request, deadline, self._client.request_timeout_s)
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
        # a partition that has not seen the newer epoch yet only finds that the transaction is over (KIP-890)
        if code == ErrorCode.INVALID_TXN_STATE:
            return BrokerError(
                f"{what}: the transaction {self._name!r} is over: another process has begun to write, or it took "
                f"longer than {self._timeout_s:.0f} s",
                code=code,
            )
        return for_code(code, what)
