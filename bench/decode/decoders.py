"""The contenders: functions that decode a record set and return the number of records.

All verify checksums. If a decoder returns records, the function reads offset, key and value of each, as a handler does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional

import crc32c
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_UNCOMMITTED, PartitionRecords
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from allocator.core.fetch import Batch, decode_plain

try:
    from allocator.core import _records
except ImportError:
    _records = None  # type: ignore[assignment]

__all__ = ["CONTENDERS", "REFERENCE", "limit"]

Decoder = Callable[[bytes], int]
REFERENCE = "ours, columns"


def limit(data: bytes) -> Callable[[bytes], int]:
    """Returns a function that only copies and checksums the bytes: the least work for a decoder that copies."""
    room = memoryview(bytearray(len(data)))

    def both(data: bytes) -> int:
        room[:] = data
        crc32c.crc32c(data)
        return 0

    return both


def columns(decoder: Any, data: bytes) -> int:
    found = decoder.scan(data, topic="t", partition=0, start=0)
    return len(found.columns(0, len(found.segments)))


def arrow(decoder: Any, data: bytes) -> int:
    rows: int = Batch("t", 0, decoder.scan(data, topic="t", partition=0, start=0)).to_arrow().num_rows
    return rows


def arrow_copied(decoder: Any, data: bytes) -> int:
    rows: int = Batch("t", 0, decoder.scan(data, topic="t", partition=0, start=0)).to_arrow(views=False).num_rows
    return rows


def look_at(records: Iterable[Any]) -> int:
    count = 0
    for record in records:
        # reading an attribute decodes it if it is lazy
        record.offset  # noqa: B018
        record.key  # noqa: B018
        record.value  # noqa: B018
        count += 1
    return count


def records(decoder: Any, data: bytes) -> int:
    return look_at(Batch("t", 0, decoder.scan(data, topic="t", partition=0, start=0)))


def by_peer(kind: Any, data: bytes) -> int:
    found, count = kind(data), 0
    while found.has_next():
        batch = found.next_batch()
        if not batch.validate_crc():
            raise ValueError("wrong checksum")
        count += look_at(batch)
    return count


def by_aiokafkas_consumer(data: bytes) -> int:
    """Creates the `ConsumerRecord` objects that aiokafka's consumer returns."""
    where = TopicPartition("t", 0)
    return look_at(PartitionRecords(where, AiokafkaRecords(data), [], 0, None, None, True, READ_UNCOMMITTED))


def _contenders() -> dict[str, Optional[Decoder]]:
    found: dict[str, Optional[Decoder]] = {}
    for name, function in (
        ("columns", columns),
        ("Arrow", arrow),
        ("Arrow, copied", arrow_copied),
        ("records", records),
    ):
        found[f"ours, {name}"] = None if _records is None else _of(function, _records)
    found["aiokafka, records"] = _of(by_peer, AiokafkaRecords)
    found["aiokafka, its consumer's"] = by_aiokafkas_consumer
    found["kafka-python, records"] = _of(by_peer, KafkaPythonRecords)
    found["plain, columns"] = _of(columns, decode_plain)
    found["plain, records"] = _of(records, decode_plain)
    return found


def _of(function: Callable[[Any, bytes], int], decoder: Any) -> Decoder:
    return lambda data: function(decoder, data)


CONTENDERS = _contenders()
"""Name -> decoder, or None if the compiled extension is missing."""
