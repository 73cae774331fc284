"""A producer that connects when it sends its first record, because most consumers never send any."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from allocator.core.client import ErrorCode, KafkaClient
from allocator.errors import AllocatorError, BrokerError, DeliveryFailed, TopicNotFound
from allocator.types import Record

if TYPE_CHECKING:
    from allocator.producer import RecordWriter

TIMEOUT_S = 30.0
BATCH_BYTES = 16 << 10  # Higher: fewer requests; lower: batches also fit topics with a small max.message.bytes


Headers = Sequence[tuple[str, Optional[bytes]]]
Copy = tuple[Record, Headers]


class LateProducer:
    """Opens an idempotent producer for the first record, and a new one after a producer has failed for good.

    Guarantee: `send` returns only after all in-sync replicas have acknowledged every record. It may write a record
    twice, but loses none. Brokers before 0.11, and topics that keep the format of such brokers, store no headers.
    """

    def __init__(self, brokers: str, client_id: str, security: Mapping[str, Any] | None = None) -> None:
        self._brokers = brokers
        self._client_id = client_id
        self._security = dict(security or {})
        self._stack = contextlib.AsyncExitStack()
        self._opening: asyncio.Lock | None = None
        self._open: tuple[KafkaClient, RecordWriter] | None = None

    async def send(self, topic: str, copies: Sequence[Copy], *, needs_headers: bool = False) -> None:
        """Writes the keys and values of records with these headers. Raises BrokerError if the topic refuses one.

        `needs_headers`: a topic that stores no headers refuses the records. Otherwise it gets them without headers. The
        error is retriable unless the topic would refuse the record again.
        """
        record, final = copies[0][0], False
        try:
            _, producer = await self.open()
            with_headers = needs_headers or producer.takes_headers(topic)
            failed = await self._write(producer, topic, copies, with_headers=with_headers)
            if failed and not (needs_headers or producer.takes_headers(topic)):
                failed = await self._write(producer, topic, [copy for copy, _ in failed], with_headers=False)
            if failed:
                from allocator.producer import RECORD_REFUSED

                refused = [each for each in failed if getattr(each[1].error, "code", None) in RECORD_REFUSED]
                (record, _), error = (refused or failed)[0]
                final = bool(refused)
                raise error
        except AllocatorError as failure:
            refusal = failure.error if isinstance(failure, DeliveryFailed) else failure
            raise BrokerError(
                f"topic {topic!r} did not accept {record.topic}:{record.partition} offset {record.offset}: "
                f"{failure}; {_remedy(refusal)}",
                code=getattr(refusal, "code", None),
                retriable=not final,
            ) from failure

    async def _write(
        self, producer: RecordWriter, topic: str, copies: Sequence[Copy], *, with_headers: bool
    ) -> list[tuple[Copy, DeliveryFailed]]:
        """Returns the records that were not acknowledged, with their errors."""
        sent = []
        for record, headers in copies:
            # earlier versions also write an empty value if both key and value are missing
            value = b"" if record.key is None and record.value is None else record.value
            sent.append(await producer.append(topic, record.key, value, headers=headers if with_headers else ()))
        failed = []
        for copy, delivered in zip(copies, sent):
            try:
                await asyncio.shield(delivered)
            except DeliveryFailed as failure:
                failed.append((copy, failure))
        return failed

    async def open(self) -> tuple[KafkaClient, RecordWriter]:
        """Returns the connected client and producer."""
        # Python 3.9 binds a lock to the loop that is current when the lock is created
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._open is not None and self._open[1].stopped:
                await self.close()
            if self._open is None:
                from allocator.producer import RecordWriter

                client = KafkaClient(self._brokers, client_id=self._client_id, security=self._security)
                async with contextlib.AsyncExitStack() as stack:
                    await stack.enter_async_context(client)
                    producer = RecordWriter(client, linger_s=0.0, batch_bytes=BATCH_BYTES, timeout_s=TIMEOUT_S)
                    self._open = client, await stack.enter_async_context(producer)
                    self._stack = stack.pop_all()
            return self._open

    async def close(self) -> None:
        """Closes the producer, if it was opened. Safe to call twice."""
        self._open = None
        await self._stack.aclose()


def _remedy(refusal: AllocatorError) -> str:
    unknown = (
        isinstance(refusal, TopicNotFound) or getattr(refusal, "code", None) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    if refusal.retriable and not unknown:
        return "check that its brokers run, and that as many replicas as its min.insync.replicas are in sync"
    return "check that the topic exists, its max.message.bytes and this client's permissions"
