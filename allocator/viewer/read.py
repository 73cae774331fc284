"""Finds records of a topic around an offset, from a time on, at the end, or by key.

Joins no group and commits nothing. Limits in records, bytes and time bound each read. The result names the offsets that
were read.
"""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Optional

from allocator.core.aio import milliseconds, within
from allocator.core.client import KafkaClient
from allocator.core.fetch import Batch, RangeReader
from allocator.core.settings import DEFAULT
from allocator.errors import ConfigError
from allocator.producer import by_key
from allocator.types import IsolationLevel, Record, TopicPartition

Offsets = Mapping[TopicPartition, int]
Ranges = Mapping[TopicPartition, tuple[int, int]]

WIDER = 4  # factor by which a window with too few records grows
BYTES_AHEAD = 4 << 20
# Seconds to wait for leaders before a read leaves partitions out. Higher: a longer election costs no records; lower: a
# lasting failure delays the others for a shorter time
ELECTION_S = 3.0


@dataclass(frozen=True)
class Position:
    """The start of a read. `at`: milliseconds since the epoch for "time", the offset for "offset"."""

    kind: Literal["earliest", "latest", "offset", "time"]
    at: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parses "earliest", "latest", an offset, or an ISO 8601 time with a zone. Raises ConfigError."""
        if text == "earliest" or text == "latest":
            return cls(text)  # type: ignore[arg-type]
        if re.fullmatch(r"[0-9]{1,18}", text):
            return cls("offset", int(text))
        try:
            return cls("time", milliseconds(text))
        except ValueError as error:
            raise ConfigError(
                f"position {text!r} is not earliest, latest, an offset or a time such as 2026-01-31T12:00:00Z ({error})"
            ) from None


def parse_key(text: Optional[str], as_hex: Optional[str]) -> Optional[bytes]:
    """Returns a key from text, or from hex; None without both. Raises ConfigError."""
    if text is not None and as_hex is not None:
        raise ConfigError("give the key as text or as hex, not both")
    if as_hex is None:
        try:
            return None if text is None else text.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"key {text!r} is not valid UTF-8; give its bytes as hex") from None
    try:
        return bytes.fromhex(as_hex)
    except ValueError:
        raise ConfigError(f"key {as_hex!r} is not hex, such as 00ff10") from None


@dataclass(frozen=True)
class Bounds:
    """The limits of one read, which stops at the first limit that it reaches."""

    scanned: int = 200_000
    """Number of records read, including records that do not match the key."""
    size: int = 64 << 20
    """Bytes of keys and values read."""
    seconds: float = 15.0


@dataclass(frozen=True)
class Query:
    """The records to find. If there are several partitions, the result is sorted by timestamp."""

    topic: str
    partition: Optional[int] = None
    """None: all partitions, or with a key, the partition that Kafka's default partitioner chooses."""
    position: Position = field(default_factory=lambda: Position("latest"))
    limit: int = 50
    """Maximum number of records at and after the position."""
    before: int = 0
    """Maximum number of records before the position. For "latest", 0 means `limit`."""
    key: Optional[bytes] = None
    every_partition: bool = False
    """Searches all partitions for the key: for another partitioner, or if partitions were added."""
    isolation_level: IsolationLevel = DEFAULT["isolation_level"]

    def __post_init__(self) -> None:
        if self.limit < 0 or self.before < 0 or self.limit + self.before < 1:
            raise ConfigError(f"limit {self.limit} and before {self.before} must be 0 or more, and one of them above 0")


@dataclass
class ReadWindow:
    """The part of a partition that was read: offsets `first` to `next` - 1. The log has `begin` to `end` - 1."""

    partition: int
    first: int
    next: int
    begin: int
    end: int


@dataclass(frozen=True)
class ReadResult:
    """The records found, and the ranges of offsets that were read to find them."""

    topic: str
    records: list[Record]
    windows: list[ReadWindow]
    scanned: int
    """Number of records read, including records that did not match."""
    stopped: str
    """The limit that ended the read: "records", "bytes" or "time"; "" if the read is complete."""
    by_partitioner: bool
    """True if the read covered only the partition that Kafka's default partitioner chooses for the key."""
    leaderless: list[int] = field(default_factory=list)
    """Partitions that were not read, because they have no leader."""


@dataclass
class Reader:
    """Reads from one cluster. Each read opens its own connection."""

    brokers: str
    security: Optional[Mapping[str, Any]] = field(default=None, repr=False)
    bounds: Bounds = Bounds()
    timeout_s: float = 10.0
    """Maximum seconds to wait for a response of the brokers."""

    async def read(self, query: Query) -> ReadResult:
        """Returns the records of a query.

        Raises TopicNotFound, ConfigError for a missing partition, BrokersUnavailable, BrokerError.
        """
        client = KafkaClient(self.brokers, security=self.security)
        try:
            await client.connect(self.timeout_s)
            await client.refresh([query.topic])
            wanted = await _partitions(client, query)
            partitions = await _led(client, wanted)
            reader = RangeReader(
                client,
                isolation_level=query.isolation_level,
                patience_s=max(self.timeout_s, 2 * self.bounds.seconds),  # the limit in seconds ends a read first
                prefetch_bytes=BYTES_AHEAD,
            )
            logs = await reader.bounds(partitions)
            starts = await _starts(reader, query.position, logs)
            scan = _Scan(reader, query.key, self.bounds)
            older, later = query.before, query.limit
            if query.position.kind == "latest":
                older, later = query.before or query.limit, 0
            before = await scan.backward(starts, logs, older)
            after = await scan.forward({p: (starts[p], end) for p, (_, end) in logs.items()}, later)
        finally:
            await client.close()
        ranges = {p: scan.ranges.get(p, (starts[p], starts[p])) for p in partitions}
        return ReadResult(
            query.topic,
            [*(_in_order(before)[-older:] if older else ()), *_in_order(after)[:later]],
            [ReadWindow(p.partition, *ranges[p], *logs[p]) for p in partitions],
            scan.scanned,
            scan.stopped,
            query.key is not None and query.partition is None and not query.every_partition,
            [each.partition for each in wanted if each not in partitions],
        )


async def _partitions(client: KafkaClient, query: Query) -> list[TopicPartition]:
    numbers = client.partitions(query.topic)
    if not numbers:
        raise await client.absence([query.topic])
    wanted = query.partition
    if wanted is None and query.key is not None and not query.every_partition:
        wanted = by_key(query.key, len(numbers))
    if wanted is None:
        if query.position.kind == "offset" and len(numbers) > 1:
            raise ConfigError(f"an offset needs a partition, such as {query.topic}:0 for offset {query.position.at}")
        return [TopicPartition(query.topic, number) for number in sorted(numbers)]
    if wanted not in numbers:
        raise ConfigError(f"{query.topic} has partitions 0 to {max(numbers)}; there is no {wanted}")
    return [TopicPartition(query.topic, wanted)]


async def _led(client: KafkaClient, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Returns the partitions with a leader; all, for which the read raises an error, if none has one."""
    deadline = time.monotonic() + ELECTION_S
    while True:
        led = [each for each in partitions if client.leader(each) is not None]
        if len(led) == len(partitions) or time.monotonic() > deadline:
            return led or partitions
        await asyncio.sleep(client.retry_backoff_s)
        await client.refresh([partitions[0].topic])


async def _starts(reader: RangeReader, position: Position, logs: Ranges) -> dict[TopicPartition, int]:
    if position.kind == "time":
        since = await reader.bounds(logs, position.at)
        return {p: min(since[p][0], end) for p, (_, end) in logs.items()}
    if position.kind == "offset":
        return {p: max(begin, min(position.at, end)) for p, (begin, end) in logs.items()}
    return {p: begin if position.kind == "earliest" else end for p, (begin, end) in logs.items()}


def _in_order(records: list[Record]) -> list[Record]:
    """Sorts by offset within one partition, and by timestamp if there are several."""
    if len({record.partition for record in records}) < 2:
        return sorted(records, key=lambda record: record.offset)
    return sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset))


class _Scan:
    """The state of one read: the remaining limits, and the offsets that were read."""

    def __init__(self, reader: RangeReader, key: Optional[bytes], bounds: Bounds) -> None:
        self._reader = reader
        self._key = key
        self._bounds = bounds
        self._size = 0
        self._until = time.monotonic() + bounds.seconds
        self.scanned = 0
        self.stopped = ""
        self.ranges: dict[TopicPartition, tuple[int, int]] = {}

    async def backward(self, stops: Offsets, logs: Ranges, most: int) -> list[Record]:
        """Returns at least `most` records before `stops`, if they exist. Reads larger and larger windows backwards."""
        found: list[Record] = []
        left, size = {p: stop for p, stop in stops.items() if stop > logs[p][0]}, most
        while left and len(found) < most and not self.stopped:
            # a window that the limit cuts off would lack its newest records
            size = min(size, (self._bounds.scanned - self.scanned) // len(left))
            if size < 1:
                self.stopped = "records"
                break
            windows = {p: (max(logs[p][0], stop - size), stop) for p, stop in left.items()}
            older = await self._pass(windows, None)
            if self.stopped and self.ranges:
                break  # these windows do not reach the windows that were read before
            found += self._keep(older)
            left = {p: first for p, (first, _) in windows.items() if first > logs[p][0]}
            size *= WIDER
        return found

    async def forward(self, windows: Ranges, most: int) -> list[Record]:
        """Returns the first `most` records of each window (first offset, offset after the last)."""
        return self._keep(await self._pass(windows, most)) if most and not self.stopped else []

    def _keep(self, passed: Mapping[TopicPartition, _Passed]) -> list[Record]:
        for partition, each in passed.items():
            first, next_ = self.ranges.get(partition, (each.first, each.next))
            self.ranges[partition] = (min(first, each.first), max(next_, each.next))
        return [record for each in passed.values() for record in each.records]

    async def _pass(self, windows: Ranges, most: Optional[int]) -> dict[TopicPartition, _Passed]:
        """Reads at most `most` records of each window, until a limit."""
        passed = {p: _Passed(first, first, stop) for p, (first, stop) in windows.items() if first < stop}
        try:
            await within(self._read(windows, passed, most), max(0.0, self._until - time.monotonic()))
        except asyncio.TimeoutError:
            self.stopped = "time"
        return passed

    async def _read(self, windows: Ranges, passed: Mapping[TopicPartition, _Passed], most: Optional[int]) -> None:
        batches = self._reader.read(windows, enough=lambda p: len(passed[p].records) == most)
        try:
            async for batch in batches:
                self._take(batch, passed[TopicPartition(batch.topic, batch.partition)], most)
                if self.stopped:
                    return
        finally:
            await batches.aclose()
        for each in passed.values():
            if len(each.records) != most:
                each.next = each.stop

    def _take(self, batch: Batch, into: _Passed, most: Optional[int]) -> None:
        for record in batch:
            if len(into.records) == most:
                return
            self.scanned += 1
            self._size += len(record.value or b"") + len(record.key or b"")
            into.next = record.offset + 1
            if self._key is None or record.key == self._key:
                into.records.append(copy.copy(record))  # a copy, so that the memory of the batch is released
            if self.scanned >= self._bounds.scanned:
                self.stopped = "records"
            elif self._size >= self._bounds.size:
                self.stopped = "bytes"
            if self.stopped:
                return
        if len(into.records) != most:
            into.next = batch.next_offset  # only transaction markers and compacted records follow


@dataclass
class _Passed:
    """The part of a window that was read: offsets `first` to `next` - 1. The window ends before `stop`."""

    first: int
    next: int
    stop: int
    records: list[Record] = field(default_factory=list)
