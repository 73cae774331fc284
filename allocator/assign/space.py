"""Partitions as numbers: what the assignors work on, and what they hand out without making an object a partition."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import partial
from itertools import chain, repeat
from operator import eq
from typing import Any, TypeVar, cast

from allocator.types import TopicPartition

__all__ = ["Share", "Space"]

Told = TypeVar("Told")

# the class's own constructor costs twice as much, and there may be a million of them
_partition = partial(tuple.__new__, TopicPartition)


class Space:
    """The partitions of some topics, numbered from 0 by topic name and partition id.

    Cost: 2 bytes a partition, and about 100 more from when `partitions` is first read.
    """

    __slots__ = ("_partitions", "counts", "size", "starts", "topic_of", "topics")

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = {topic: counts[topic] for topic in sorted(counts)}
        self.topics = tuple(self.counts)
        self.starts: dict[str, int] = {}
        self.topic_of = array("i" if len(self.counts) > 60_000 else "H")
        """Number -> index into `topics`."""
        for index, (topic, count) in enumerate(self.counts.items()):
            self.starts[topic] = len(self.topic_of)
            self.topic_of.extend(array(self.topic_of.typecode, (index,)) * count)
        self.size = len(self.topic_of)
        self._partitions: list[TopicPartition] | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        """All of them, by number; made when first asked for."""
        if self._partitions is None:
            self._partitions = list(map(_partition, self._names()))
        return self._partitions

    def numbers(self, topic: str) -> range:
        """Of a topic's partitions."""
        return range(self.starts[topic], self.starts[topic] + self.counts[topic])

    def some(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """Those with these numbers, in their order."""
        if self._partitions is not None:
            return [self._partitions[number] for number in numbers]
        topics, topic_of = self.topics, self.topic_of
        starts = list(self.starts.values())
        return [
            _partition((topics[topic], number - starts[topic])) for number in numbers for topic in (topic_of[number],)
        ]

    def told(self, of: Mapping[TopicPartition, Told]) -> list[Told | None]:
        """What a mapping says of each partition, by number, None where it says nothing; makes no objects.

        A mapping of exactly these in their order, as our leaders make it, costs a sixth of one that has to be searched.
        """
        if len(of) == self.size and all(map(eq, of, self._names())):
            return list(of.values())
        return list(map(cast("Mapping[tuple[str, int], Told]", of).get, self._names()))

    def _names(self) -> Iterator[tuple[str, int]]:
        return chain.from_iterable(zip(repeat(topic), range(count)) for topic, count in self.counts.items())

    def number(self, item: object) -> int | None:
        """The number of a (topic, partition), None when it is not one of these."""
        if isinstance(item, tuple) and len(item) == 2:
            topic, partition = item
            count = self.counts.get(topic)
            if count is not None and isinstance(partition, int) and 0 <= partition < count:
                return self.starts[topic] + partition
        return None

    def runs(self, numbers: list[int]) -> Iterator[list[int]]:
        """Sorted numbers, cut where the topic changes."""
        begin = 0
        while begin < len(numbers):
            topic = self.topics[self.topic_of[numbers[begin]]]
            end = bisect_right(numbers, self.numbers(topic)[-1], begin)
            yield numbers[begin:end]
            begin = end


class Share(Set[TopicPartition]):
    """What one member is given: an immutable set of TopicPartition, kept as sorted numbers.

    Equal to a set or frozenset of the same partitions. Iterating yields TopicPartition in order of topic and id.
    Cost: 4 bytes a partition; `partitions()` makes the objects, but for those that the member had before.
    """

    __slots__ = ("_before", "numbers", "space")

    def __init__(
        self, space: Space, numbers: Iterable[int], before: tuple[frozenset[TopicPartition], list[int]] | None = None
    ) -> None:
        """`before`: what the member had, as objects and as numbers; all of it still exists."""
        self.space = space
        self.numbers = array("i", sorted(numbers))
        self._before = before

    def partitions(self) -> frozenset[TopicPartition]:
        make = self.space.some
        if self._before is None:
            return frozenset(make(self.numbers))
        objects, numbers = frozenset(self._before[0]), self._before[1]
        had, has = set(numbers), set(self.numbers)
        gone, new = had - has, has - had
        kept = objects.difference(make(gone)) if gone else objects
        return kept.union(make(new)) if new else kept

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.space.some(self.numbers))

    def __contains__(self, item: object) -> bool:
        number = self.space.number(item)
        if number is None:
            return False
        place = bisect_right(self.numbers, number)
        return place > 0 and self.numbers[place - 1] == number

    def __hash__(self) -> int:
        return hash(self.partitions())

    def __repr__(self) -> str:
        return f"Share({list(self)!r})"

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> frozenset[Any]:
        return frozenset(it)
