"""Chooses partitions: by murmur2 of the key, like Java's producer. Records without a key go in turn to the partitions
that have a leader."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from allocator.core.fetch import accelerated
from allocator.core.text import shown

# Consecutive records without a key that go to one partition. Higher: larger batches; lower: more even partitions
RUN: Final = 500
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def as_number(topic: str, source: str, partition: Any) -> int:
    """Returns the partition as an int. Raises TypeError that names its source, also for an equal float or bool."""
    if isinstance(partition, bool) or not hasattr(partition, "__index__"):
        raise TypeError(f"{topic}: the {source} is {shown(partition)}; a partition is an int")
    return operator.index(partition)


class Partitions(NamedTuple):
    """The partitions of a topic, in ascending order."""

    every: tuple[int, ...]
    led: tuple[int, ...]
    """Those that had a leader in the latest metadata, or all if none had one."""


class Partitioner:
    """Chooses the partition of each record for which the caller names none."""

    def __init__(self) -> None:
        self.keyless = random.randrange(1 << 20) * RUN
        """Number of records without a key so far.

        It starts at random, so that short-lived producers do not all write to partition 0.
        """

    def choose(self, key: bytes | None, partitions: Partitions) -> int:
        if key is not None:
            return by_key(key, len(partitions.every))
        self.keyless += 1
        led = partitions.led
        return led[(self.keyless - 1) // RUN % len(led)]

    def runs(self, records: int, partitions: Partitions) -> Iterator[tuple[int, range]]:
        """Yields what `choose` returns for each of several records without a key: a partition, and their numbers."""
        start = 0
        while start < records:
            stop = min(records, start + RUN - self.keyless % RUN)
            partition = self.choose(None, partitions)
            self.keyless += stop - start - 1
            yield partition, range(start, stop)
            start = stop


def by_key(key: bytes, partitions: int) -> int:
    """Returns the partition that Java's producer chooses, whether or not it has a leader."""
    return (_hash(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2 (https://github.com/aappleby/smhasher) with the seed of Java's producer."""
    length = len(data)
    whole = length & ~3
    h = 0x9747B28C ^ length
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


if TYPE_CHECKING or not accelerated:
    _hash = murmur2
else:
    from allocator.core import _records

    _hash = _records.hash_key
