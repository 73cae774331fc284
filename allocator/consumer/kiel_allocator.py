"""`consumer.allocator`, which services written for kiel look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from allocator.assign.kiel import naive_allocator

if TYPE_CHECKING:
    from allocator.consumer.grouped import GroupedConsumer

__all__ = ["KielAllocator"]


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
