"""Finds records that a mirror wrote before a crash and did not commit, so that it does not write them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from hashlib import blake2b

from allocator.core.client import KafkaClient
from allocator.core.fetch import Batch, RangeReader
from allocator.migrate.offset_map import Run
from allocator.types import Record, TopicPartition


def digest(record: Record, *, timed: bool = True) -> bytes:
    """Returns 16 bytes that identify key, value, headers and, if `timed`, the timestamp of a record."""
    content = blake2b(digest_size=16)
    for part in (record.key, record.value, *(part for each in record.headers for part in each)):
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        content.update(b"-" if data is None else b"%d:" % len(data))
        content.update(data or b"")
    if timed:
        content.update(b"%d" % record.timestamp)
    return content.digest()


class Tail:
    """Matches the records of a new partition after the committed target with the records of the old partition.

    `start` and `end` are the offsets of the new log. Call `match` with the batches of the old log from the committed
    offset on until `over`, then `finish`.

    Guarantee: each old record before `next_source` is on the new cluster, or the new cluster has deleted it (by
    retention or compaction): its offset there has no record, and a later record follows.
    """

    def __init__(self, start: int, end: int, records: deque[tuple[int, bytes]]) -> None:
        self._start = start
        self._end = end
        self.next_target = start
        """New offset after the last record that is known to be a copy."""
        self._records = records
        self.runs: list[Run] = []
        """Offsets of the matched records."""
        self.next_source: int | None = None
        """Old offset after the last matched record."""
        self.present = 0
        """Number of old records that the new cluster has, or has deleted."""
        self.unexpected = 0
        """Number of records of the new cluster that match no old record."""
        self.over = not records
        """Whether all records are matched, or no further record can match."""
        self._read = 0
        self._missing = 0  # old records since the last match without a new record
        self._ahead = (0, 0)  # offsets and records of the new log before the first match

    def match(self, batch: Batch) -> None:
        """Matches the old records of `batch`.

        Skips new records that the old partition no longer has: compaction may have removed them since.
        """
        for record in batch:
            if self.over:
                return
            self._read += 1
            self._match(record.offset, digest(record))

    def _match(self, source: int, wanted: bytes) -> None:
        passed = next((n for n, (_, content) in enumerate(self._records) if content == wanted), None)
        if passed is None:
            self._missing += 1
            self.over = self._missing > self._end - self.next_target - len(self._records)
            return
        target = self._records[passed][0]
        empty = target - self.next_target - passed  # offsets without a record: the new cluster deleted these
        if self._missing > empty:
            self.over = True
            return
        if self.next_source is None:
            self._ahead = (target - self._start - self._missing, passed)
        for _ in range(passed + 1):
            self._records.popleft()
        self.runs.append(Run(source, target))
        self.present += self._missing + 1
        self.unexpected += passed
        self.next_source, self.next_target, self._missing = source + 1, target + 1, 0
        self.over = not self._records

    def finish(self, deleted: int) -> int:
        """Counts the unmatched records. Returns the number of new offsets that are copies of deleted old records.

        `deleted` is the number of old offsets right before the first batch that the old cluster has deleted. The new
        offsets before the first match are their copies, unless there are more of them.
        """
        offsets, records = self._ahead
        if not self._read:
            offsets, records = self._end - self._start, len(self._records)
        self.unexpected += len(self._records)
        if offsets > deleted:
            return 0
        self.unexpected -= records
        self.next_target = max(self.next_target, self._start + offsets)
        return offsets


async def read_tails(
    client: KafkaClient, spans: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, Tail]:
    """Reads the records of these spans of the new cluster. A partition without records is absent."""
    found: dict[TopicPartition, deque[tuple[int, bytes]]] = {}
    async for batch in RangeReader(client).read(spans):
        records = found.setdefault(TopicPartition(batch.topic, batch.partition), deque())
        records.extend((record.offset, digest(record)) for record in batch)
    return {partition: Tail(*spans[partition], records) for partition, records in found.items() if records}


async def match_tails(
    client: KafkaClient, spans: Mapping[TopicPartition, tuple[int, int]], tails: Mapping[TopicPartition, Tail]
) -> None:
    """Matches the tails with the committed records of these spans of the old cluster."""
    wanted = {each: span for each, span in spans.items() if not tails[each].over}
    reader = RangeReader(client, isolation_level="read_committed")
    async for batch in reader.read(wanted, enough=lambda each: tails[each].over):
        tails[TopicPartition(batch.topic, batch.partition)].match(batch)
