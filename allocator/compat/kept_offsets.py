"""The offsets of a `ConsumerGroup`, kept from expiring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets, IdleOffsets, commit_again
from allocator.types import OffsetAndMetadata, TopicPartition


class KeptOffsets(GroupOffsets):
    """`GroupOffsets` for a member that Kafka does not know, and whose user commits any offsets at any time."""

    def __init__(self, client: KafkaClient, group: str, *, timeout_s: float, retention_s: float | None) -> None:
        super().__init__(client, group, timeout_s=timeout_s, retention_s=retention_s)
        self._known: dict[TopicPartition, int] = {}
        self._under_way = 0
        self._idle = IdleOffsets(lambda: self._known.keys(), self._all_again, self.retention_s)
        self._still_ours: Callable[[], bool] = bool

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._under_way += 1
        try:
            await super().commit(offsets)
        finally:
            self._under_way -= 1
        self._known.update({p: value.offset for p, value in offsets.items()})
        self._idle.committed(offsets)

    async def keep(self, committed: Mapping[TopicPartition, OffsetAndMetadata], still_ours: Callable[[], bool]) -> None:
        """Keeps these offsets, and those committed later, from expiring while `still_ours`. Runs until cancelled."""
        self._known = {p: value.offset for p, value in committed.items()}
        self._still_ours = still_ours
        await self._idle.run()

    async def _all_again(self, partitions: Collection[TopicPartition]) -> None:
        if self._still_ours():
            await commit_again(self, partitions, self._not_under_way, self.commit)

    def _not_under_way(self, partition: TopicPartition) -> int | None:
        return None if self._under_way or not self._still_ours() else self._known.get(partition)
