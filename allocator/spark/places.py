"""Where reading begins and ends, as an option says it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from allocator.clock import milliseconds
from allocator.subscription.topics import checked
from allocator.types import TopicPartition

__all__ = ["COMMITTED", "EARLIEST", "LATEST", "Place", "partitions_of", "read_place", "read_times"]

EARLIEST = "earliest"
LATEST = "latest"
COMMITTED = "committed"

# how an offset in JSON says "the beginning" and "the end", as in Spark's connector and in ListOffsets
ENDS = {-2: EARLIEST, -1: LATEST}
ALLOWED = (
    'earliest, latest, committed, "timestamp:" and milliseconds since the epoch or an ISO 8601 time with its zone, '
    'or JSON such as {"orders": {"0": 23, "1": -2}} (-2: earliest, -1: latest)'
)


@dataclass(frozen=True)
class Place:
    """A point in each partition.

    `everywhere` holds where `each` says nothing: EARLIEST, LATEST, COMMITTED, or a time in ms; None: it is to be said
    of every partition. `each` has an offset, EARLIEST or LATEST; `times` a time in ms.
    """

    everywhere: Optional[Union[str, int]] = None
    each: Mapping[TopicPartition, Union[int, str]] = field(default_factory=dict)
    times: Mapping[TopicPartition, int] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> tuple[str, Any]:
        """("offset", n), ("time", ms) or ("word", EARLIEST ...); ("", None) if nothing says it."""
        if tp in self.times:
            return "time", self.times[tp]
        where = self.each.get(tp, self.everywhere)
        if where is None:
            return "", None
        if isinstance(where, str):
            return "word", where
        return ("offset" if tp in self.each else "time"), where

    def only(self, tps: Collection[TopicPartition]) -> Place:
        """The same, of these partitions."""
        return Place(
            self.everywhere,
            {tp: at for tp, at in self.each.items() if tp in tps},
            {tp: at for tp, at in self.times.items() if tp in tps},
        )

    @property
    def named(self) -> frozenset[TopicPartition]:
        """The partitions of which it speaks by name."""
        return frozenset(self.each) | frozenset(self.times)


def read_place(text: str, words: tuple[str, ...]) -> Place:
    """The place that an option's text means. Raises ValueError saying what is wrong with it."""
    text = text.strip()
    if text.lower() in words:
        return Place(text.lower())
    if text.startswith("{"):
        offsets = _by_partition(text)
        for tp, offset in offsets.items():
            if offset < -2:
                raise ValueError(f"{tp.topic}:{tp.partition} has the offset {offset}, below -2")
        return Place(None, {tp: ENDS.get(offset, offset) for tp, offset in offsets.items()})
    kind, colon, rest = text.partition(":")
    if kind.lower() == "timestamp" and colon:
        return Place(milliseconds(rest))
    raise ValueError


def read_times(text: str) -> Place:
    """A time for all partitions, or JSON of times by partition. Raises ValueError."""
    text = text.strip()
    if not text.startswith("{"):
        return Place(milliseconds(text))
    times = _by_partition(text)
    for tp, at in times.items():
        if at < 0:
            raise ValueError(f"{tp.topic}:{tp.partition} has the time {at}, below 0")
    return Place(None, {}, times)


def partitions_of(text: str) -> tuple[TopicPartition, ...]:
    """{"orders": [0, 1]}, as Spark's `assign` has it. Raises ValueError."""
    found = []
    for topic, numbers in _object(text).items():
        checked([topic])
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic!r} needs a list of partition numbers, not {json.dumps(numbers)}")
        found += [TopicPartition(topic, _number(topic, number)) for number in numbers]
    repeated = sorted({tp for tp in found if found.count(tp) > 1}) if len(found) != len(set(found)) else []
    if repeated:
        raise ValueError(f"{repeated[0].topic}:{repeated[0].partition} stands there twice")
    if not found:
        raise ValueError("it names no partition")
    return tuple(found)


def _by_partition(text: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _object(text).items():
        checked([topic])
        if not isinstance(numbers, Mapping) or not numbers:
            raise ValueError(f"{topic!r} needs an object of partition numbers, not {json.dumps(numbers)}")
        for number, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{topic}:{number} needs a whole number, not {json.dumps(value)}")
            tp = TopicPartition(topic, _number(topic, number))
            if tp in found:
                raise ValueError(f"{topic}:{tp.partition} stands there twice")
            found[tp] = value
    if not found:
        raise ValueError("it names no partition")
    return found


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError("the JSON must be an object of topics")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the JSON has a name twice")
    return found


def _number(topic: str, value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,10}", text) or int(text) >= 2**31:
        raise ValueError(f"{topic!r} has no partition {json.dumps(value)}: a number from 0 is needed")
    return int(text)
