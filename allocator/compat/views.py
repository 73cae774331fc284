"""`consumer.allocator` and `consumer.offsets`, which services written for kiel use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from allocator.assignors.kiel import naive_allocator
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from allocator.compat.grouped import GroupedConsumer

__all__ = ["KielAllocator", "OffsetsByTopic"]

Positions = Callable[[], Mapping[TopicPartition, int]]
Seek = Callable[[TopicPartition, int], None]


class KielAllocator:
    """What one member knows of its group, under the names of kiel's `PartitionAllocator`.

    `on_rebalance` is called without arguments in the consumer's loop after partitions have come or gone; replace it to
    be told. `allocator_fn` is the allocator function that the consumer was given. There is no `members` and no
    `mapping`: a member reads its own share alone.
    """

    def __init__(self, consumer: GroupedConsumer, zk_hosts: str | Sequence[str] | None, allocator_fn: Any) -> None:
        self.group_name = consumer.group_name
        self.consumer_name = consumer.name
        self.zk_hosts = zk_hosts
        self.allocator_fn = naive_allocator if allocator_fn is None else allocator_fn
        self.on_rebalance: Callable[[], Any] = _nothing
        self._consumer = consumer

    @property
    def allocation(self) -> dict[str, list[int]]:
        """The partitions that are the consumer's at this moment, by topic."""
        return self._consumer.allocation

    @property
    def partitions(self) -> set[str]:
        """All partitions that are shared out, as "topic:number"."""
        client = self._consumer._engine.client
        return {f"{topic}:{number}" for topic in client.topics() for number in client.partitions(topic) or ()}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"consumer.allocator has no {name!r}: kiel's members each know the whole group, ours their own share; "
            f"`allocator group describe {self.__dict__.get('group_name')}` shows members and owners"
        )


def _nothing() -> None:
    """Until a service sets its own."""


class OffsetsByTopic(MutableMapping[str, MutableMapping[int, int]]):
    """`consumer.offsets`: topic -> partition -> the next offset to read, always current. Setting it seeks, as in kiel.

    Only partitions with a known position are in it. `seek` raises for a partition that cannot
    be sought, and for a value that is no offset. Nothing can be deleted: a position cannot be taken back.
    """

    def __init__(self, positions: Positions, seek: Seek) -> None:
        self._positions = positions
        self._seek = seek

    def __getitem__(self, topic: str) -> MutableMapping[int, int]:
        # without a KeyError for a topic without positions: offsets[topic][0] = 7 must come to `seek`
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
