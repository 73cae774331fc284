"""Commits the offsets of a `ConsumerGroup`, and keeps them from expiring."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets, IdleOffsets
from allocator.errors import BrokerError
from allocator.types import OffsetAndMetadata, TopicPartition


class KeptOffsets(GroupOffsets):
    """`GroupOffsets` for a member that Kafka does not know. The user may commit offsets at any time."""

    def __init__(self, client: KafkaClient, group: str, *, timeout_s: float, retention_s: float | None) -> None:
        super().__init__(client, group, timeout_s=timeout_s, retention_s=retention_s)
        self._known: dict[TopicPartition, int] = {}
        self._under_way = 0
        self._idle = IdleOffsets(self, self._to_keep, self.commit)
        self._still_owned: Callable[[], bool] = bool

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        refusal: Callable[[TopicPartition], BrokerError | None] | None = None,
    ) -> None:
        self._under_way += 1
        try:
            await super().commit(offsets, refusal)
        finally:
            self._under_way -= 1
        self._known.update({p: value.offset for p, value in offsets.items()})
        self._idle.committed(offsets)

    async def keep(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata], still_owned: Callable[[], bool]
    ) -> None:
        """Commits these offsets, and later ones, again before they expire, while `still_owned` returns True. Runs until
        cancelled."""
        self._known = {p: value.offset for p, value in committed.items()}
        self._still_owned = still_owned
        await self._idle.run()

    def _to_keep(self) -> Mapping[TopicPartition, int]:
        return {} if self._under_way or not self._still_owned() else self._known
