"""Finds records that a mirror wrote before a crash and did not commit, so that it does not write them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from allocator.fetch.batch import Batch
from allocator.migrate.offset_map import Run
from allocator.migrate.spans import read_spans
from allocator.record import Record
from allocator.types import TopicPartition

__all__ = ["Tail", "digest", "first_records", "read_tails"]


def digest(record: Record, *, timed: bool = True) -> bytes:
    """16 bytes that two records share only if key, value, headers and, when `timed`, timestamp are the same."""
    content = blake2b(digest_size=16)
    for part in (record.key, record.value, *(part for each in record.headers for part in each)):
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        content.update(b"-" if data is None else b"%d:" % len(data))
        content.update(data or b"")
    if timed:
        content.update(b"%d" % record.timestamp)
    return content.digest()


class Tail:
    """The records of one new partition behind the translated committed offset."""

    def __init__(self, records: deque[tuple[int, bytes]]) -> None:
        self._records = records
        self._runs: list[Run] = []
        self.next_source = -1
        """The old offset after the last record that matched."""
        self.taken_now = 0
        """Records that the last `match` found."""
        self.skipped_now = 0
        """Records that the last `match` passed to find them."""
        self.over = False
        """Whether there are no more records to match."""

    @property
    def left(self) -> int:
        """Number of records that did not match."""
        return len(self._records)

    @property
    def next_target(self) -> int:
        return self._records[0][0] if self._records else -1

    def match(self, batch: Batch) -> Batch:
        """The rest of `batch` that the new partition does not have.

        Passes records that the old partition does not have any more: compaction may have removed them since.
        """
        self.taken_now = self.skipped_now = 0
        for record in batch:
            skipped = self._find(digest(record))
            if skipped is None:
                self.over = True
                return batch.from_offset(record.offset)
            for _ in range(skipped):
                self._records.popleft()
            self.skipped_now += skipped
            target, _ = self._records.popleft()
            self._runs.append(Run(record.offset, target))
            self.next_source = record.offset + 1
            self.taken_now += 1
        self.over = not self._records
        return batch.from_offset(batch.next_offset)

    def _find(self, wanted: bytes) -> int | None:
        """The number of records before the first one with this digest; None if there is none."""
        return next((n for n, (_, content) in enumerate(self._records) if content == wanted), None)

    def skip_to(self, record: Record | None, most: int) -> int:
        """Drops the records before `record`, or all records if it is None, and returns their number.

        Drops nothing and returns 0 if `record` is not there, or behind more than `most` records.
        """
        wanted = None if record is None else digest(record)
        before = [content for _, content in self._records]
        count = len(before) if wanted is None else before.index(wanted) if wanted in before else most + 1
        if count > most:
            return 0
        for _ in range(count):
            self._records.popleft()
        return count

    def runs(self) -> list[Run]:
        """The offsets of the matched records since the last call."""
        found, self._runs = self._runs, []
        return found


async def first_records(
    brokers: str, spans: Mapping[TopicPartition, tuple[int, int]], security: Mapping[str, Any] | None
) -> dict[TopicPartition, Record]:
    """The first committed record of each span that has one."""
    found: dict[TopicPartition, Record] = {}
    batches = read_spans(brokers, spans, security, isolation_level="read_committed")
    try:
        async for batch in batches:
            if len(batch):
                found.setdefault(TopicPartition(batch.topic, batch.partition), batch[0])
            if len(found) == len(spans):
                break
    finally:
        await batches.aclose()
    return found


async def read_tails(
    brokers: str, spans: Mapping[TopicPartition, tuple[int, int]], security: Mapping[str, Any] | None
) -> dict[TopicPartition, Tail]:
    """The records of these spans. A partition without records is absent."""
    found: dict[TopicPartition, deque[tuple[int, bytes]]] = {}
    async for batch in read_spans(brokers, spans, security):
        records = found.setdefault(TopicPartition(batch.topic, batch.partition), deque())
        records.extend((record.offset, digest(record)) for record in batch)
    return {partition: Tail(records) for partition, records in found.items()}
