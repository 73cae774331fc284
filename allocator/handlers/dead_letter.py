"""Writes the records that the handler refused for good to a topic of their own."""

from __future__ import annotations

import struct
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from allocator.core.text import text_of, utf8
from allocator.errors import AllocatorError, BrokerError
from allocator.handlers.late_producer import LateProducer, Outgoing
from allocator.producer import DeliveryFailed
from allocator.types import Record

PREFIX = "allocator."
# the names that Spring Kafka's DeadLetterPublishingRecoverer and Kafka Connect write, because tools know them
SPRING = "kafka_dlt-"
CONNECT = "__connect.errors."
REDRIVES = "allocator.redrives"  # counts how often the record was written back to its topic
FIRST_TIMESTAMP = "allocator.first_timestamp"  # of a redriven record: its timestamp before the first redrive, in ms
ERROR_BYTES = 1000  # bytes of the error's text; a longer text could make a large record exceed the limit of the topic
STACK_BYTES = 4000


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


def headers_of(record: Record, group: str, error: BaseException, attempts: int) -> list[tuple[str, Optional[bytes]]]:
    """The record's own headers, then `allocator.topic`, `.partition`, `.offset`, `.timestamp`, `.group`, `.error` and
    `.attempts` as text, then the same and the stack under Spring Kafka's names, with its binary numbers.

    If the record was a dead letter before, its earlier headers are left out, except those of redrives.
    """
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    text = text_of(error)
    ours = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "group": group,
        "error": f"{kind}: {text}",
        "attempts": str(attempts),
    }
    if record.key is None and record.value is None:
        ours["null_value"] = "true"
    stack = utf8("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    time_type = (
        "NoTimestampType" if record.timestamp_type is None else ("CreateTime", "LogAppendTime")[record.timestamp_type]
    )
    springs = {
        "original-topic": utf8(record.topic),
        "original-partition": struct.pack(">i", record.partition),
        "original-offset": struct.pack(">q", record.offset),
        "original-timestamp": struct.pack(">q", record.timestamp),
        "original-timestamp-type": time_type.encode(),
        "original-consumer-group": utf8(group),
        "exception-fqcn": utf8(kind),
        "exception-message": utf8(text)[:ERROR_BYTES],
        # keep the end of the stack: it has the innermost call and the error
        "exception-stacktrace": stack[-STACK_BYTES:],
    }
    return [
        *own_headers(record),
        *((PREFIX + name, utf8(each)[:ERROR_BYTES]) for name, each in ours.items()),
        *((SPRING + name, data) for name, data in springs.items()),
    ]


def own_headers(record: Record) -> list[tuple[str, Optional[bytes]]]:
    """Returns the headers that a record had before it became a dead letter, and those of earlier redrives."""
    return [
        (name, value)
        for name, value in record.headers
        if name in (REDRIVES, FIRST_TIMESTAMP) or not name.startswith((PREFIX, SPRING, CONNECT))
    ]
