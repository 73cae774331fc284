"""Records that the handler refused for good, kept in a topic of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import kafka.errors as kafka_errors

from allocator.client.client import KafkaClient
from allocator.errors import BrokerError
from allocator.foreign import shown
from allocator.types import Record

__all__ = ["DeadLetterTopic", "headers_of"]

log = logging.getLogger(__name__)

PREFIX = "allocator."
ERROR_BYTES = 1000  # of the error's text; more could make a record that just fits its topic too large
TIMEOUT_S = 30


class DeadLetterTopic:
    """Sends records on, key and value as they were, with headers that say where from and why.

    Guarantee: `send` returns only after all in-sync replicas have acknowledged every record. It may send a record
    twice, never lose one. Brokers before 0.11 have no headers: there the log line is the only trace of the cause.

    kafka-python's producer blocks, so it lives in one thread of its own, and starts with the first dead letter.
    """

    def __init__(
        self,
        topic: str,
        brokers: str,
        group: str,
        *,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._group = group
        self._security = dict(security or {})
        self._api_version: tuple[int, ...] | None = None
        self._producer: Any = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    async def send(self, records: Sequence[Record], error: BaseException, attempts: int) -> None:
        """Raises BrokerError when the topic does not take them all."""
        if self._api_version is None:
            # the producer cannot find it by itself on brokers before 0.10
            async with KafkaClient(self._brokers, security=self._security) as client:
                self._api_version = client.broker_version
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "dead-letters")
        letters = [(record, headers_of(record, self._group, error, attempts)) for record in records]
        await asyncio.get_running_loop().run_in_executor(self._thread, self._send, letters)

    async def close(self) -> None:
        """Safe to call twice."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        await asyncio.get_running_loop().run_in_executor(thread, self._close)
        thread.shutdown(wait=False)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _send(self, letters: Sequence[tuple[Record, list[tuple[str, bytes]]]]) -> None:
        try:
            producer = self._open()
            with_headers = producer.config["api_version"] >= (0, 11)
            sent = [
                # the producer refuses a record without key and value; an empty value stands for none then
                producer.send(
                    self.topic,
                    key=record.key,
                    value=record.value if record.key is not None or record.value is not None else b"",
                    headers=headers if with_headers else None,
                )
                for record, headers in letters
            ]
            for future in sent:
                future.get(timeout=TIMEOUT_S)
        except kafka_errors.KafkaError as error:
            first = letters[0][0]
            raise BrokerError(
                f"dead-letter topic {self.topic!r} did not take {first.topic}:{first.partition} offset {first.offset}: "
                f"{shown(error)}; look at the topic's existence, its max.message.bytes and this client's rights",
                retriable=True,
            ) from error

    def _open(self) -> Any:
        if self._producer is None:
            from kafka import KafkaProducer  # slow to import, and seldom needed

            settings = dict(self._security)
            if self._api_version is not None and self._api_version < (0, 10):
                settings["api_version"] = self._api_version
            self._producer = KafkaProducer(
                bootstrap_servers=self._brokers.split(","),
                client_id=f"allocator-dead-letters-{self._group}",
                acks="all",
                retries=5,
                max_block_ms=TIMEOUT_S * 1000,
                delivery_timeout_ms=TIMEOUT_S * 1000,
                request_timeout_ms=TIMEOUT_S * 500,
                max_request_size=1 << 28,  # the broker decides what is too large
                **settings,
            )
        return self._producer

    def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout=5)


def headers_of(record: Record, group: str, error: BaseException, attempts: int) -> list[tuple[str, bytes]]:
    """The record's own headers, then ours: `allocator.topic`, `.partition`, `.offset`, `.timestamp`, `.group`,
    `.error`, `.attempts`. Those of an earlier time as a dead letter stay; the last ones count.
    """
    ours = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "group": group,
        "error": f"{type(error).__module__}.{type(error).__qualname__}: {error}",
        "attempts": str(attempts),
    }
    if record.key is None and record.value is None:
        ours["null_value"] = "true"
    # kafka-python cannot send a header without a value
    kept = [(name, value if value is not None else b"") for name, value in record.headers]
    return kept + [(PREFIX + name, text.encode()[:ERROR_BYTES]) for name, text in ours.items()]
