"""Writes records to several partitions, and an offset of a group, in one transaction (KIP-98).

Protocol: FindCoordinator for transactions, InitProducerId, AddPartitionsToTxn, Produce, AddOffsetsToTxn,
TxnOffsetCommit, EndTxn, in the versions before KIP-890, which brokers from 0.11 to 4.x support.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Optional

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

from allocator.core.aio import Backoff
from allocator.core.client import Coordinator, ErrorCode, KafkaClient, Reaction, for_code, reaction_to
from allocator.errors import AllocatorError, BrokerError, ConfigError, TopicAuthorizationFailed
from allocator.producer.builder import BatchBuilder
from allocator.producer.encoding import CODECS, TARGET_BYTES
from allocator.producer.requests import init_request
from allocator.producer.sender import TOO_LARGE, BatchSender, PartitionQueue
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

# the newest versions before KIP-890, in which a commit does not change the epoch
ADD_VERSION, END_VERSION = 3, 4
OFFSET_VERSION = 2  # later versions can name the member, which the transactional id replaces
FIRST_PAUSE_S = 0.005  # the markers of the last transaction are usually written by then
REPLACED: Final = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED))
# another owner has begun, or the coordinator has aborted the transaction, or forgotten the transactional id
OVER: Final = REPLACED | {ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
# what a topic does not accept, whoever sends it and under whatever sequence number
BY_CONTENT: Final = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_RECORD,
    )
)


class NewRecord(NamedTuple):
    """A record to write. `timestamp`: milliseconds since the epoch."""

    key: Optional[bytes]
    value: Optional[bytes]
    timestamp: int
    headers: Sequence[tuple[str, Optional[bytes]]] = ()

    @property
    def size(self) -> int:
        """Approximate bytes in memory."""
        return 100 + len(self.key or b"") + len(self.value or b"") + sum(len(value or b"") for _, value in self.headers)


class GroupOffset(NamedTuple):
    """The offset of one partition of a group, to commit with the records."""

    coordinator: Coordinator
    """That of the group."""
    group: str
    partition: TopicPartition
    offset: OffsetAndMetadata
    refusal: Callable[[], Optional[AllocatorError]]
    """Returns why the transaction may not be committed (any more). Called just before."""


class RefusedByTopic(BrokerError):
    """A topic does not accept a record. The transaction is not to blame, nor are other records."""


class TooLargeForTopic(RefusedByTopic):
    """The topic does not accept a record of this size. Raise its max.message.bytes."""


class _Batch(BatchBuilder):
    """A batch that keeps its records, so that it can be split."""

    def __init__(self, rows: Sequence[NewRecord], codec: int) -> None:
        super().__init__(2, codec, transactional=True)
        self.source = rows
        for row in rows:
            self.append(row.key, row.value, row.headers, row.timestamp)


class TransactionalWriter:
    """Writes one transaction at a time. `name`: transactional id.

    Guarantee: a reader with isolation_level "read_committed" sees all records of a `write` or none, and sees them once
    `write` has returned. `open` aborts the unfinished transaction of any other writer with this name. That writer can
    no longer write. Readers with "read_uncommitted" also see records of aborted transactions.
    """

    def __init__(self, client: KafkaClient, name: str, *, timeout_s: float = 60.0, compression: str = "none") -> None:
        self._client = client
        self._name = name
        self._timeout_s = timeout_s
        self._codec = CODECS[compression]
        self._coordinator = Coordinator(client, name, client.retry_backoff_s, for_transactions=True)
        self._sender: BatchSender[_Batch] = BatchSender(
            client, refused=self._refused, request_timeout_s=timeout_s / 2, transactional_id=name
        )
        self._identity: tuple[int, int] | None = None
        self._ended = -1, -1
        """The identity of the last commit."""
        self._unanswered = 0
        """Requests to coordinators that had no response (yet) since `open`."""
        self._topic_refused: RefusedByTopic | None = None
        """Why a topic did not accept a batch of the transaction that is being sent."""

    @property
    def is_open(self) -> bool:
        """Whether `write` can be called. False before the first `open`, and after an error that needs another one."""
        return self._identity is not None

    @property
    def in_doubt(self) -> bool:
        """Whether a request of this epoch had no response, timed out or was cancelled. It may still arrive.

        After the end of its transaction it would become part of the next one, or of one that never ends. Only a new
        epoch makes the brokers refuse it: `open`.
        """
        return bool(self._unanswered) or self._sender.in_doubt

    async def open(self) -> None:
        """Makes this process the only writer with its name. Raises BrokerError, ConfigError for brokers before 0.11."""
        if self._client.api_version(EndTxnRequest) is None:
            name = ".".join(map(str, self._client.broker_version))
            raise ConfigError(f"transactions need brokers of Kafka 0.11 or newer; these are {name}")
        request = init_request(self._name, self._timeout_s)
        response = await self._request(request, lambda response: response.error_code)
        self._unanswered = 0  # an earlier request that arrives now is refused, for its epoch is over
        self._sender.drop(list(self._sender.queues))
        self._identity = self._sender.identity = response.producer_id, response.producer_epoch

    async def write(self, records: Mapping[TopicPartition, Sequence[NewRecord]]) -> None:
        """Writes all records, in their order within each partition. Raises BrokerError.

        Splits a batch that a topic does not accept. After an error nothing is written, unless the response to the
        commit was lost. After an error that leaves `is_open` False, call `open` before the next write. Errors about one
        topic, such as TooLargeForTopic and TopicAuthorizationFailed, usually leave it True.
        """
        if self.in_doubt and self._identity is not None:
            producer, epoch = self._identity
            await self.open()
            if self._identity != (producer, epoch + 1):  # each `open` adds 1
                self._identity = None
                raise BrokerError(f"another process may have written as {self._name!r} meanwhile", retriable=True)
        await self.commit(records)
        await self.settle()

    async def commit(
        self, records: Mapping[TopicPartition, Sequence[NewRecord]], offset: GroupOffset | None = None
    ) -> OffsetAndMetadata | None:
        """Like `write`, but returns once the transaction is committed, with the offset as it is stored. Readers may see
        it only after `settle`."""
        stored = None
        identity = self._identity
        if identity is None:
            raise RuntimeError("call open() first")
        self._identity = None
        try:
            if records:
                await self._client.refresh({partition.topic for partition in records})
                await self._add(records, identity)
                await self._produce(records)
            if offset is not None:
                stored = await self._add_offset(offset, identity)
                if self.in_doubt:  # a commit has no sequence number, so the group would take a late one
                    raise BrokerError("a request of the transaction had no response", retriable=True)
        except TopicAuthorizationFailed:
            self._identity = identity  # the coordinator has added no partition, so there is no transaction to abort
            raise
        except RefusedByTopic as error:
            if error is not self._topic_refused:
                await self._abort_quietly(identity, error)
                raise
            await self._end(identity, commit=False)
            # the brokers acknowledged or refused each batch, so the next sequence numbers are known
            self._identity = identity
            raise
        except BaseException as error:
            await self._abort_quietly(identity, error)
            raise
        await self._end(identity, commit=True)
        self._ended = identity
        return stored

    async def settle(self) -> None:
        """Returns once readers see the last commit. After an error, call `open` before the next write."""
        # The coordinator responds before it has written the markers, without which readers do not see the records. It
        # refuses a second commit until the markers are written
        await self._end(self._ended, commit=True)
        self._identity = self._ended

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
            codes: dict[int, str] = {}
            for topic in response.results_by_topic_v3_and_below:
                codes.update((part.partition_error_code, topic.name) for part in topic.results_by_partition)
            codes.pop(ErrorCode.NONE, None)
            codes.pop(ErrorCode.OPERATION_NOT_ATTEMPTED, None)  # because of another topic
            if ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes:
                raise TopicAuthorizationFailed(codes[ErrorCode.TOPIC_AUTHORIZATION_FAILED], "write")
            return next(iter(codes), 0)

        await self._request(request, code)

    async def _produce(self, records: Mapping[TopicPartition, Sequence[NewRecord]]) -> None:
        sender, late = self._sender, asyncio.get_running_loop().time() + self._timeout_s
        self._topic_refused = None
        await sender.add(partition for partition in records if partition not in sender.queues)
        for partition, some in records.items():
            for chunk in _chunks(some):
                sender.put(partition, sender.queues[partition], _Batch(chunk, self._codec), expires_at=late)
        await sender.send_all()
        if self._topic_refused is not None:
            raise self._topic_refused

    def _refused(self, partition: TopicPartition, queue: PartitionQueue[_Batch], error: BrokerError) -> None:
        """Splits a batch that is too large. Drops one that its topic does not accept, for `_produce` to raise the error
        once the other batches are acknowledged. Raises all other errors."""
        where = f"{partition.topic}:{partition.partition}"
        if error.code not in TOO_LARGE:
            if error.code is None:
                raise error
            refusal = self._refusal(error.code, where)
            if error.code in OVER or refusal.retriable:
                raise refusal
            refused_by_topic = RefusedByTopic(str(refusal), code=error.code)
            if error.code not in BY_CONTENT or queue.in_doubt:
                raise refused_by_topic
            self._topic_refused = refused_by_topic
            self._sender.replace_first(partition, ())
            return
        if queue.in_doubt:  # only a new epoch makes sure that the sequence numbers are known
            raise BrokerError(f"{where}: a batch is refused, and may be written: {error}", retriable=True)
        refused = queue.pending[0].batch
        half = refused.records // 2
        if half:
            parts = refused.source[:half], refused.source[half:]
            self._sender.replace_first(partition, [_Batch(part, self._codec) for part in parts])
            return
        size = sum(len(part or b"") for part in refused.source[0][:2])
        self._topic_refused = TooLargeForTopic(
            f"{where} does not accept a record with {size} bytes of key and value; raise its max.message.bytes",
            code=error.code,
        )
        self._sender.replace_first(partition, ())

    async def _add_offset(self, to_commit: GroupOffset, identity: tuple[int, int]) -> OffsetAndMetadata:
        """Makes the offset part of the transaction, and returns it: without metadata if that is too large. Raises the
        error of `refusal` if it may not be committed."""
        names = {"transactional_id": self._name, "group_id": to_commit.group}
        who = {"producer_id": identity[0], "producer_epoch": identity[1]}
        await self._request(
            AddOffsetsToTxnRequest(**names, **who, max_version=ADD_VERSION), lambda response: response.error_code
        )
        (topic, partition), offset = to_commit.partition, to_commit.offset
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic

        async def add(offset: OffsetAndMetadata) -> OffsetAndMetadata:
            part = kind.TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
            request = TxnOffsetCommitRequest(
                **names, **who, topics=[kind(name=topic, partitions=[part])], max_version=OFFSET_VERSION
            )
            await self._request(
                request, lambda response: response.topics[0].partitions[0].error_code, to_commit.coordinator
            )
            return offset

        try:
            stored = await add(offset)
        except BrokerError as error:
            if error.code != ErrorCode.OFFSET_METADATA_TOO_LARGE or not offset.metadata:
                raise
            what = f"the metadata of {topic}:{partition} is too large ({len(offset.metadata)} characters)"
            log.warning("group %s: %s, committing without it", to_commit.group, what)
            stored = await add(OffsetAndMetadata(offset.offset, "", offset.leader_epoch))
        refusal = to_commit.refusal()
        if refusal is not None:
            raise refusal
        return stored

    async def _abort_quietly(self, identity: tuple[int, int], error: BaseException) -> None:
        if getattr(error, "code", None) not in REPLACED:
            with contextlib.suppress(AllocatorError):
                await self._abort(identity)

    async def _abort(self, identity: tuple[int, int]) -> None:
        if self.in_doubt:
            await self.open()  # which aborts the transaction, and its late requests
            self._identity = None
        else:
            await self._end(identity, commit=False)

    async def _end(self, identity: tuple[int, int], *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=identity[0],
            producer_epoch=identity[1],
            committed=commit,
            max_version=END_VERSION,
        )
        await self._request(request, lambda response: response.error_code)

    async def _request(
        self, request: Any, code_of: Callable[[Any], int], coordinator: Coordinator | None = None
    ) -> Any:
        """Sends a request to the coordinator of transactions, or another one, until it succeeds. Raises BrokerError."""
        deadline = time.monotonic() + self._timeout_s
        coordinator = coordinator or self._coordinator
        backoff = Backoff(FIRST_PAUSE_S, self._client.retry_backoff_s)
        while True:
            self._unanswered += 1
            try:
                response = await coordinator.send(request, deadline, self._client.request_timeout_s)
            except BrokerError as failed:
                error = failed
            else:
                self._unanswered -= 1
                code = code_of(response)
                if not code:
                    return response
                error = self._refusal(code, f"transaction {self._name!r}")
                if reaction_to(code, {}) is Reaction.REFIND:
                    coordinator.forget()
            if not error.retriable or time.monotonic() > deadline:
                raise error
            await asyncio.sleep(backoff.next())

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
        if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            what += f": its timeout (delivery_timeout_s) is {self._timeout_s:g} s; lower it"
        return for_code(code, what)


def _chunks(rows: Sequence[NewRecord]) -> Iterator[Sequence[NewRecord]]:
    """Yields the records in batches of about `TARGET_BYTES`."""
    start = size = 0
    for index, row in enumerate(rows):
        if size > TARGET_BYTES:
            yield rows[start:index]
            start, size = index, 0
        size += row.size
    if start < len(rows):
        yield rows[start:]
