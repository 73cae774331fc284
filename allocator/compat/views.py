"""`consumer.offsets`, as in kiel: a mutable mapping of the positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping

from allocator.types import TopicPartition

Positions = Callable[[], Mapping[TopicPartition, int]]
Seek = Callable[[TopicPartition, int], None]


class OffsetsByTopic(MutableMapping[str, MutableMapping[int, int]]):
    """A view of the current positions: topic -> partition -> the next offset to read. Setting an offset seeks, as in
    kiel.

    It contains only partitions with a known position. `seek` raises for a partition that the consumer does not own, and
    for an invalid offset. Entries cannot be deleted.
    """

    def __init__(self, positions: Positions, seek: Seek) -> None:
        self._positions = positions
        self._seek = seek

    def __getitem__(self, topic: str) -> MutableMapping[int, int]:
        # raises no KeyError for a topic without positions, so that offsets[topic][0] = 7 calls `seek`
        return _OfTopic(topic, self._positions, self._seek)

    def __setitem__(self, topic: str, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self._seek(TopicPartition(topic, partition), offset)

    def __delitem__(self, topic: str) -> None:
        raise TypeError(f"offsets[{topic!r}] cannot be deleted; set the offset to read from instead")

    def __contains__(self, topic: object) -> bool:
        return any(partition.topic == topic for partition in self._positions())

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(partition.topic for partition in self._positions()))

    def __len__(self) -> int:
        return len({partition.topic for partition in self._positions()})

    def __repr__(self) -> str:
        return repr({topic: dict(offsets) for topic, offsets in self.items()})


class _OfTopic(MutableMapping[int, int]):
    def __init__(self, topic: str, positions: Positions, seek: Seek) -> None:
        self._topic = topic
        self._positions = positions
        self._seek = seek

    def _known(self) -> dict[int, int]:
        return {p.partition: offset for p, offset in self._positions().items() if p.topic == self._topic}

    def __getitem__(self, partition: int) -> int:
        return self._positions()[TopicPartition(self._topic, partition)]

    def __setitem__(self, partition: int, offset: int) -> None:
        self._seek(TopicPartition(self._topic, partition), offset)

    def __delitem__(self, partition: int) -> None:
        raise TypeError(f"offsets[{self._topic!r}][{partition!r}] cannot be deleted; set the offset to read from")

    def __iter__(self) -> Iterator[int]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def __repr__(self) -> str:
        return repr(self._known())
