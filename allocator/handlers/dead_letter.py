"""Writes the records that the handler refused for good to a topic of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from allocator.errors import AllocatorError, BrokerError
from allocator.handlers.late_producer import LateProducer, Outgoing
from allocator.handlers.letter_headers import headers_of
from allocator.producer import DeliveryFailed
from allocator.types import Record


class DeadLetterTopic:
    """Copies records to the dead-letter topic with unchanged key and value, and adds headers that name the origin and
    the error.

    Guarantee: as for `LateProducer`. Brokers before 0.11 store no headers; there only the log has the error.
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
        self._group = group
        self._producer = LateProducer(brokers, f"allocator-dead-letters-{group}", security)

    async def send(self, records: Sequence[Record], error: BaseException, attempts: int) -> None:
        """Raises BrokerError if the topic does not accept all of them."""
        letters = [outgoing(record, headers_of(record, self._group, error, attempts)) for record in records]
        try:
            await self._producer.send(self.topic, letters)
        except AllocatorError as failure:
            raise not_taken(f"dead-letter topic {self.topic!r}", records[0], failure) from failure

    async def close(self) -> None:
        """Safe to call twice."""
        await self._producer.close()


def outgoing(record: Record, headers: Sequence[tuple[str, Optional[bytes]]]) -> Outgoing:
    # earlier versions also write an empty value if both key and value are missing
    return Outgoing(record.key, b"" if record.key is None and record.value is None else record.value, headers)


def not_taken(what: str, record: Record, failure: AllocatorError) -> BrokerError:
    """Returns the error of a topic that refused a record, with the broker's code if there is one."""
    refusal = failure.error if isinstance(failure, DeliveryFailed) else failure
    return BrokerError(
        f"{what} did not take {record.topic}:{record.partition} offset {record.offset}: "
        f"{failure}; look at the topic's existence, its max.message.bytes and this client's rights",
        code=getattr(refusal, "code", None),
        retriable=True,
    )
