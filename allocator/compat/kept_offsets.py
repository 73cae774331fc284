"""Commits the offsets of a `ConsumerGroup`, and keeps them from expiring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets, IdleOffsets, Terms
from allocator.types import OffsetAndMetadata, TopicPartition


@dataclass
class _Kept:
    committed: Optional[tuple[int, None]]
    committed_at: Optional[float] = None


class KeptOffsets(GroupOffsets):
    """`GroupOffsets` that can be kept from being deleted while idle. The user may commit offsets at any time."""

    def __init__(self, client: KafkaClient, group: str, **options: Any) -> None:
        super().__init__(client, group, **options)
        self._known: dict[TopicPartition, _Kept] = {}
        self._idle = IdleOffsets(self, self._to_keep, super().commit)
        self._still_owned: Callable[[], bool] = bool

    async def commit(self, offsets: Any, terms: Terms | None = None) -> None:
        def note(sent: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            at = self._idle.clock()
            self._known.update((partition, _Kept((offset.offset, None), at)) for partition, offset in sent.items())
            if terms is not None and terms.stored is not None:
                terms.stored(sent)

        await super().commit(offsets, (terms or Terms())._replace(stored=note))

    async def keep(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata], still_owned: Callable[[], bool]
    ) -> None:
        """Commits these offsets, and later ones, again before they expire, while `still_owned` returns True. Runs until
        cancelled."""
        self._known = {p: _Kept((value.offset, None)) for p, value in committed.items()}
        self._still_owned = still_owned
        await self._idle.run()

    def _to_keep(self) -> Mapping[TopicPartition, _Kept]:
        return self._known if self._still_owned() else {}
