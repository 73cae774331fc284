"""Compressed JSON documents that name many partitions, and the limits that bound what reading one takes.

A document may be hostile: a few bytes can stand for a million partitions. An `InflateBudget` counts them before any is
created.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any

from allocator.core.text import shown
from allocator.documents.checked import InvalidZnode, check_mapping, check_text, encode_object
from allocator.types import PartitionLike, Partitions, TopicPartition

Counts = Callable[[str], "int | None"]
"""Returns the partition count of a topic, or None if it is not known."""

SHARD_BYTES = 900_000  # a znode may hold 1 MiB by default (jute.maxbuffer); the rest is for path and headers
# These limits, and those of `checked`, bound the memory that a hostile document takes. A group of 1 000 members, 1 000
# topics and 1 000 000 partitions stays below each of them, even while all partitions move
INFLATED_BYTES = 64_000_000
MAX_PARTITIONS = 1_000_000  # partitions that members hold in one group; as many more may be promised
# bytes after inflation. A larger document, or one with more than SMALL_PARTITIONS partitions, takes long to decode
SMALL_BYTES = 100_000
SMALL_PARTITIONS = 20_000
RUN = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?\Z")  # of partitions, numbers below MAX_PARTITIONS
LONG = re.compile(rb'[",]([0-9]{1,6})-([0-9]{1,6})(?=[",])')


def to_ranges(partitions: Iterable[PartitionLike]) -> dict[str, str]:
    """Encodes partitions as {"orders": "0-3,7"}, which is short in JSON and deflates well."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return {topic: _ranges(sorted(ids)) for topic, ids in sorted(by_topic.items())}


def _ranges(ids: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    for number in ids:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class RangesOfMembers:
    """Encodes the partitions of each member as `to_ranges` does. Keeps the last results, because most members keep
    their partitions from one document to the next."""

    def __init__(self) -> None:
        self._last: dict[Partitions, dict[str, str]] = {}

    def __call__(self, partitions: Mapping[str, Partitions]) -> dict[str, dict[str, str]]:
        found = {member: self._last.get(each) or to_ranges(each) for member, each in sorted(partitions.items())}
        self._last = {each: found[member] for member, each in partitions.items()}
        return found


class InflateBudget:
    """Limits how many partitions the znodes that are in memory together may name. Thread-safe.

    A few bytes can stand for a million partitions, but each partition has one owner at most. So znodes that name more
    than `most` partitions in all, or several times the partition count of a topic, cannot be valid. `counts` may be
    older than the znode, so the limit for a topic is loose.
    """

    def __init__(self, counts: Counts | None = None, most: int = MAX_PARTITIONS) -> None:
        self._counts = counts
        self._most = most
        self._total = 0
        self._paths: dict[str, int] = {}
        self._topics: dict[str, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_claims(cls) -> InflateBudget:
        """Allows for claims that are read at different times: a moving partition may be in two of them."""
        return cls(most=2 * MAX_PARTITIONS)

    def take(self, path: str, ranges: object) -> None:
        """Counts the partitions of `ranges` ({topic: "0-3,7"}) without creating them. Raises InvalidZnode."""
        for topic, text in check_mapping(path, "partitions", ranges).items():
            number = check_text(path, "partitions", text).count(",") + 1
            if number <= self._most:
                for run in text.split(","):
                    found = RUN.match(run)
                    if found is None or (found[2] and int(found[2]) < int(found[1])):
                        raise InvalidZnode(path, f"partitions {shown(run)} of topic {shown(topic)}")
                    if found[2]:
                        number += int(found[2]) - int(found[1])
            with self._lock:
                self._paths[path] = self._paths.get(path, 0) + number
                of_topic = self._topics[topic] = self._topics.get(topic, 0) + number
                self._total += number
                total = self._total
            if total > self._most:
                raise InvalidZnode(path, f"more than {self._most} partitions in all")
            known = None if self._counts is None else self._counts(topic)
            if known is not None and of_topic > 2 * known + SMALL_PARTITIONS:
                raise InvalidZnode(path, f"{of_topic} partitions of topic {shown(topic)}, which has {known}")

    def give_back(self, path: str) -> None:
        """Returns the partitions of the znode at `path` to the budget, because it was deleted or is read again."""
        with self._lock:
            self._total -= self._paths.pop(path, 0)

    def keep(self, paths: Iterable[str]) -> None:
        """Returns the partitions of all other znodes to the budget, because they were deleted."""
        for path in set(self._paths) - set(paths):
            self.give_back(path)


def from_ranges(ranges: Mapping[str, str]) -> Partitions:
    """The inverse of `to_ranges`, for ranges that an `InflateBudget` has allowed."""
    found: list[TopicPartition] = []
    for topic, text in ranges.items():
        numbers: list[int] = []
        for run in text.split(","):
            first, dash, last = run.partition("-")
            if dash:
                numbers.extend(range(int(first), int(last) + 1))
            else:  # common, because round-robin assignment leaves many ranges of one partition
                numbers.append(int(first))
        found.extend(map(TopicPartition, repeat(topic), numbers))
    return frozenset(found)


def deflate(doc: Mapping[str, Any]) -> bytes:
    return zlib.compress(encode_object(doc), 6)


def quick(data: bytes) -> bool:
    """Returns whether a claim or document decodes in a few milliseconds. A larger znode would block the event loop."""
    try:
        raw = data if data.startswith(b"{") else zlib.decompressobj().decompress(data, SMALL_BYTES)
    except zlib.error:
        return True
    if len(raw) >= SMALL_BYTES:
        return False
    return sum(abs(int(last) - int(first)) for first, last in LONG.findall(raw)) < SMALL_PARTITIONS


def inflate(path: str, data: bytes, most: int = INFLATED_BYTES) -> bytes:
    """Returns the JSON of a compressed object, for `parse_object`. Raises InvalidZnode."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, most)
    except zlib.error as error:
        raise InvalidZnode(path, str(error)) from error
    if not inflater.eof:
        raise InvalidZnode(path, "it is cut short or inflates beyond measure")
    return raw
