"""Writes records that cannot be handled to the dead-letter topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allocator.handlers.late_producer import LateProducer
from allocator.handlers.letter_headers import headers_of
from allocator.types import Record


class DeadLetterTopic:
    """Copies records to the dead-letter topic, with headers that name the origin and the error.

    Guarantee: that of `LateProducer`. Brokers before 0.11, and topics that keep the format of such brokers, store no
    headers, so the error is only in the log.
    """

    def __init__(self, topic: str, brokers: str, group: str, security: Mapping[str, Any] | None = None) -> None:
        self.topic = topic
        self._group = group
        self._producer = LateProducer(brokers, f"allocator-dead-letters-{group}", security)

    async def send(self, records: Sequence[Record], error: BaseException, attempts: int) -> None:
        """Writes the records, and returns once they are acknowledged. Raises BrokerError if the topic refuses one."""
        letters = [(record, headers_of(record, self._group, error, attempts)) for record in records]
        await self._producer.send(self.topic, letters)

    async def close(self) -> None:
        """Closes the producer. Safe to call twice."""
        await self._producer.close()
