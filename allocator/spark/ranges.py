"""Parses and computes offsets: ranges of tasks, starts and ends in options, positions in a checkpoint. No I/O.

A stream's checkpoint has the format of Spark's own connector, {"orders": {"0": 23}}: the next offset of each
partition. The key "@begin" has the first offset of partitions that do not start where the batch before ended, in the
first batch of all partitions, so that a batch that is repeated after a crash reads exactly the same records. No topic
can have this name. "@ids" has the id of each topic if
the brokers report it (Kafka 2.8 and newer): {"orders": "fc5b..."}.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, Union

from allocator.core.aio import milliseconds
from allocator.core.settings import check_topic
from allocator.spark.errors import CheckpointMismatch
from allocator.types import TopicPartition

EARLIEST = "earliest"
LATEST = "latest"
COMMITTED = "committed"
# in JSON, these offsets stand for the start and the end, as in Spark's connector and ListOffsets
ENDS = {-2: EARLIEST, -1: LATEST}
ALLOWED = (
    'earliest, latest, committed, or JSON such as {"orders": {"0": 23, "1": -2}} (-2: earliest, -1: latest); '
    "starting_timestamps takes times"
)
# Where a partition begins that a checkpoint or an archive does not have: it is new, so nobody has read its records. If
# the log begins later, records were deleted unread
NEW_PARTITION_START = 0
BEGIN, IDS, UNRESOLVED = "@begin", "@ids", "@unresolved"


class Range(NamedTuple):
    """The records of one partition from offset `start` up to, not including, `end`.

    `topic_id` is the id of the topic when the range was planned; None if the brokers report none.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: Optional[str] = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition} offsets {self.start} to {self.end - 1}"


def split(ranges: Iterable[Range], at_least: Optional[int] = None, at_most_each: Optional[int] = None) -> list[Range]:
    """Splits the ranges into at least `at_least` parts, none longer than `at_most_each` and none empty.

    The result has no more parts than there are offsets. It splits the ranges with the largest parts further. The parts
    of a range are consecutive, and their lengths differ by at most one offset.
    """
    full = [found for found in ranges if found.size > 0]
    parts = [1 if at_most_each is None else -(-found.size // at_most_each) for found in full]
    if at_least is not None:
        # the largest part first; a single offset cannot be split
        largest = [(-found.size / count, number) for number, (found, count) in enumerate(zip(full, parts))]
        heapify(largest)
        for _ in range(min(at_least, sum(found.size for found in full)) - sum(parts)):
            _, number = largest[0]
            parts[number] += 1
            heapreplace(largest, (-full[number].size / parts[number], number))
    result = []
    for found, count in zip(full, parts):
        edges = [found.start + found.size * number // count for number in range(count + 1)]
        result += [found._replace(start=low, end=high) for low, high in zip(edges, edges[1:])]
    return result


def pack(ranges: Sequence[Range], at_most: int) -> list[list[Range]]:
    """Packs the ranges into at most `at_most` lists of similar size: the largest first, into the smallest list.

    Each list keeps the order of `ranges`.
    """
    if len(ranges) <= at_most:
        return [[found] for found in ranges]
    packs: list[list[int]] = [[] for _ in range(at_most)]
    emptiest = [(0, number) for number in range(at_most)]
    for index in sorted(range(len(ranges)), key=lambda index: -ranges[index].size):
        size, number = emptiest[0]
        packs[number].append(index)
        heapreplace(emptiest, (size + ranges[index].size, number))
    return [[ranges[index] for index in sorted(each)] for each in packs]


def limit_ends(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """Returns `end`, lowered so that at most `most` offsets are between `start` and it.

    Each partition with new offsets gets one, and a share of the rest in proportion to its offsets, so that busy
    partitions do not keep a quiet one waiting. If `most` is too small for that, the partitions take turns.
    """
    sizes = {tp: end[tp] - start[tp] for tp in sorted(end) if start.get(tp, end[tp]) < end[tp]}
    total, count = sum(sizes.values()), len(sizes)
    if total <= most:
        return dict(end)
    if most < count:
        # the sum grows with each batch by its size, so the next batch begins after the last partition of this one
        turn, waiting = sum(start[tp] for tp in sizes) % count, list(sizes)
        shares = dict.fromkeys((waiting + waiting)[turn : turn + most], 1)
    else:
        rests = {tp: divmod((most - count) * (size - 1), total - count) for tp, size in sizes.items()}
        shares = {tp: 1 + whole for tp, (whole, _) in rests.items()}
        # the offsets that rounding down leaves go to the partitions that lost most by rounding
        by_rest = sorted(sizes, key=lambda tp: -rests[tp][1])
        for tp in by_rest[: most - sum(shares.values())]:
            shares[tp] += 1
    return {tp: start.get(tp, end[tp]) + shares.get(tp, 0) for tp in end}


class Time(NamedTuple):
    """The first record that is not older than `ms`, in milliseconds since the epoch."""

    ms: int


@dataclass(frozen=True)
class StartOrEnd:
    """A point in each partition: an offset, a Time, EARLIEST, LATEST or COMMITTED.

    `everywhere` applies to partitions that `each` does not name; if None, `each` must name every partition.
    """

    everywhere: Optional[Union[str, Time]] = None
    each: Mapping[TopicPartition, Union[int, str, Time]] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> Union[int, str, Time, None]:
        return self.each.get(tp, self.everywhere)


def read_place(text: str, words: tuple[str, ...]) -> StartOrEnd:
    """Parses one of `words`, or JSON of offsets.

    Raises ValueError, with the reason unless the text is in none of the forms.
    """
    text = text.strip()
    if text.lower() in words:
        return StartOrEnd(text.lower())
    if text.startswith("{"):
        offsets = _by_partition(text, "offset", -2)
        if EARLIEST not in words and -2 in offsets.values():
            raise ValueError("-2 (earliest) cannot be the end")
        return StartOrEnd(None, {tp: ENDS.get(offset, offset) for tp, offset in offsets.items()})
    raise ValueError


def read_times(text: str) -> StartOrEnd:
    """Parses a time for all partitions, or JSON of times by partition. Raises ValueError."""
    text = text.strip()
    if not text.startswith("{"):
        return StartOrEnd(Time(milliseconds(text)))
    return StartOrEnd(None, {tp: Time(at) for tp, at in _by_partition(text, "time", 0).items()})


def read_duration(text: str) -> float:
    """Parses "90s", "15m", or milliseconds without a unit, into seconds. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,15})\s*(ms|s|min|m|h|d)?", text.strip().lower())
    if found is None:
        raise ValueError("it is not a whole number and a unit")
    return int(found[1]) * {None: 0.001, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2]]


def partitions_of(text: str) -> tuple[TopicPartition, ...]:
    """Parses {"orders": [0, 1]}, the form of Spark's `assign`. Raises ValueError."""
    found = []
    for topic, numbers in _object(text).items():
        check_topic(topic)
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic!r} needs a list of partition numbers, not {json.dumps(numbers)}")
        found += [TopicPartition(topic, _number(topic, number)) for number in numbers]
    repeated = [tp for tp, count in Counter(found).items() if count > 1]
    if repeated:
        raise ValueError(f"{min(repeated).topic}:{min(repeated).partition} is listed twice")
    if not found:
        raise ValueError("it names no partition")
    return tuple(found)


def _by_partition(text: str, what: str, least: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _object(text).items():
        check_topic(topic)
        if not isinstance(numbers, Mapping) or not numbers:
            raise ValueError(f"{topic!r} needs an object of partition numbers, not {json.dumps(numbers)}")
        for number, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{topic}:{number} needs a whole number, not {json.dumps(value)}")
            tp = TopicPartition(topic, _number(topic, number))
            if tp in found:
                raise ValueError(f"{topic}:{tp.partition} is listed twice")
            if value < least:
                raise ValueError(f"{topic}:{tp.partition} has the {what} {value}, below {least}")
            if value >= 2**63:
                raise ValueError(f"{topic}:{tp.partition} has the {what} {value}, which has more than 63 bits")
            found[tp] = value
    if not found:
        raise ValueError("it names no partition")
    return found


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError("the JSON must be an object of topics")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the JSON has a duplicate name")
    return found


def _number(topic: str, value: Any) -> int:
    text = str(value)
    if not re.fullmatch(r"\d{1,10}", text) or int(text) >= 2**31:
        raise ValueError(f"{topic!r} has no partition {json.dumps(value)}: a number from 0 is needed")
    return int(text)


class StreamOffsets(NamedTuple):
    """The positions of a stream.

    `next` has the next offset to read. `begin` has the start of partitions that do not start at the position before:
    they are new to the stream, another member read them, or their log was lost. `ids`: topic -> its id, if known.
    `resolved` is False before the first batch is planned: its start is still that of the options.
    """

    next: Mapping[TopicPartition, int]
    begin: Mapping[TopicPartition, int]
    ids: Mapping[str, str] = MappingProxyType({})
    resolved: bool = True

    @property
    def is_start(self) -> bool:
        """Returns whether no batch has read records before these positions."""
        return self.begin == self.next

    def recreated(self, ids: Mapping[str, str]) -> list[str]:
        """Returns the topics that have another id in `ids`, sorted."""
        return sorted(topic for topic, known in self.ids.items() if ids.get(topic, known) != known)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form. Its order never changes, because Spark compares the text to detect new data."""
        text: dict[str, Any] = _by_topic(self.next)
        if self.begin:
            text[BEGIN] = _by_topic(self.begin)
        if self.ids:
            text[IDS] = dict(sorted(self.ids.items()))
        if not self.resolved:
            text[UNRESOLVED] = {}
        return text

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> StreamOffsets:
        """Parses the JSON form, or that of Spark's connector. Raises CheckpointMismatch for any other."""
        topics = dict(given)
        begin, ids = topics.pop(BEGIN, {}), topics.pop(IDS, {})
        resolved = topics.pop(UNRESOLVED, None) is None
        try:
            known = {_topic(each): str(found) for each, found in ids.items()}
            return cls(_partitions(topics), _partitions(begin), known, resolved)
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointMismatch(
                f"the checkpoint has no offsets of topics ({error}): another source wrote it; give the query its own "
                "checkpointLocation"
            ) from error


def stream_lag(progress: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Returns the lag of a streaming query in records, by partition: `stream_lag(query.lastProgress)`.

    The lag counts the records from the end of the micro-batch to the end of the partition when the batch was planned.
    If two sources read a partition, the larger lag counts. Sources that report no end are left out.
    """
    lags: dict[TopicPartition, int] = {}
    for source in progress["sources"]:
        try:
            read, there = (
                StreamOffsets.of_json(json.loads(source[name] or "null")).next for name in ("endOffset", "latestOffset")
            )
        except (CheckpointMismatch, KeyError, TypeError, ValueError):
            continue  # a source of another format
        for tp, end in there.items():
            if tp in read:
                lags[tp] = max(lags.get(tp, 0), end - read[tp])
    return lags


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def _partitions(topics: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(_topic(topic), int(number)): int(offset)
        for topic, numbers in topics.items()
        for number, offset in numbers.items()
    }


def _topic(name: str) -> str:
    check_topic(name)
    return name
