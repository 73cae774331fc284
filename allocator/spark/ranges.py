"""Runs of offsets: what a task reads, and how a read is cut into tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace
from typing import NamedTuple, Optional

from allocator.types import TopicPartition

__all__ = ["Range", "share_out", "split"]


class Range(NamedTuple):
    """The records of one partition from offset `start` up to, not including, `end`.

    `topic_id`: of the topic that these are offsets of; None where the brokers tell none.
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
    """The same offsets in `at_least` ranges or a few more, none longer than `at_most_each`; empty ones are left out.

    Only as many as there are offsets. Where there are fewer ranges than `at_least`, those whose parts would be the
    largest are cut further, and no other. Parts of one range differ by one offset at most, and follow each other.
    """
    full = [found for found in ranges if found.size > 0]
    parts = [1 if at_most_each is None else -(-found.size // at_most_each) for found in full]
    if at_least is not None:
        # the largest part first; what is cut down to single offsets stays
        largest = [(-found.size / count, number) for number, (found, count) in enumerate(zip(full, parts))]
        heapify(largest)
        for _ in range(min(at_least, sum(found.size for found in full)) - sum(parts)):
            _, number = largest[0]
            parts[number] += 1
            heapreplace(largest, (-full[number].size / parts[number], number))
    made = []
    for found, count in zip(full, parts):
        edges = [found.start + found.size * number // count for number in range(count + 1)]
        made += [found._replace(start=low, end=high) for low, high in zip(edges, edges[1:])]
    return made


def share_out(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """`end`, brought nearer to `start` so that not more than `most` offsets lie between the two in all.

    Each partition gets its share by how much it has, and where shares are smaller than 1, those that have the most
    come first; at least one offset moves if any can, so a stream never stands still under a small `most`.
    """
    sizes = {tp: max(0, end[tp] - start.get(tp, end[tp])) for tp in end}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    shares = {tp: most * size // total for tp, size in sizes.items()}
    left = most - sum(shares.values())
    # what rounding left over, to those from which it took the most
    by_rest = sorted(sizes, key=lambda tp: (-(most * sizes[tp] % total), tp))
    for tp in by_rest[:left]:
        shares[tp] += 1
    return {tp: start.get(tp, end[tp]) + shares[tp] for tp in end}
