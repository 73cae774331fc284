"""Committed offsets of one group in memory, with the queue of real commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from allocator.core.offsets.pending_commit import TERMS, PendingCommit, Terms, ToCommit
from allocator.errors import CommitFailed
from allocator.types import OffsetAndMetadata, Partitions, TopicPartition


class MemoryOffsets:
    """Implements what `Commits` uses of `StoredOffsets`. Subclasses override `send` to delay or refuse a request."""

    group, storage, committer, may_expire = "g", "kafka", None, True
    limit = 4096
    """Bytes of the metadata of a commit."""
    silent_s = 0.0

    def __init__(self) -> None:
        self.coordinator = self
        self.stored: dict[TopicPartition, OffsetAndMetadata] = {}
        self.sent: list[dict[TopicPartition, int]] = []
        self._calls: set[PendingCommit] = set()
        self._turn = asyncio.Lock()

    async def send(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.sent.append({p: each.offset for p, each in offsets.items()})
        self.stored.update(offsets)

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return {p: self.stored[p] for p in partitions if p in self.stored}

    async def commit(self, offsets: ToCommit, terms: Terms = TERMS) -> None:
        await self._finish(self._enter(offsets, terms))

    def commit_async(self, *call: Any) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._finish(self._enter(*call)))  # type: ignore[return-value]

    def _enter(self, *call: Any) -> PendingCommit:
        entered = PendingCommit(*call)
        self._calls.add(entered)
        return entered

    async def _finish(self, call: PendingCommit) -> None:
        try:
            async with self._turn:
                while call.left or (call.choice is not None and self._choose(call)):
                    if any(call.withdraw_refused()):
                        raise CommitFailed("refused")
                    sent = dict(call.left)
                    await self.send(sent)
                    call.confirm(sent, dict.fromkeys(sent, call))
        finally:
            self._calls.discard(call)
            call.ended.set_result(None)

    def _choose(self, call: PendingCommit) -> bool:
        assert call.choice is not None
        call.replace(dict(call.choice(call.over)))
        return bool(call.left)

    def pending(self, partitions: Partitions | None) -> set[asyncio.Future[None]]:
        return {call.ended for call in self._calls if partitions is None or not partitions.isdisjoint(call.left)}

    async def settled(self, partitions: Partitions) -> None:
        while ends := self.pending(partitions):
            await asyncio.wait(ends)

    async def metadata_bytes(self) -> int:
        return self.limit

    async def find(self) -> None: ...

    async def close(self) -> None: ...

    async def retention_s(self) -> None: ...
