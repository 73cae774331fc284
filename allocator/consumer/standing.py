"""What a membership says, made into whole generations."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from allocator.consumer.generation import Generation
from allocator.coordinator.identity import Committer
from allocator.tasks import Scope
from allocator.types import TopicPartition

__all__ = ["Round", "Standing"]

T = TypeVar("T")
Parts = frozenset[TopicPartition]


@dataclass(frozen=True)
class Round:
    """A generation that may begin."""

    id: int
    member_id: str
    partitions: Parts
    committer: Committer | None = field(default=None, compare=False)
    """Under whose name it commits; None where Kafka knows no members."""


class Standing:
    """The `Owner` of a membership, for a `ConsumerGroup`: any change of what is held ends the current generation.

    Guarantee: what the membership is told to wait for (`revoked`, `lost`, `ending`) returns only when the current
    generation is over. The next one begins with what `settle` was called with last, which its caller does when a
    whole assignment stands.
    """

    def __init__(self) -> None:
        self.round: Round | None = None
        self.current: Generation | None = None
        """The one that began last, until it is over."""
        self.reason: BaseException | None = None
        """Why this membership is given up."""
        self._suspended = False
        self._news = asyncio.Event()
        self._stop = asyncio.Event()

    # -- called by the membership ---------------------------------------------------------------------------------

    async def assigned(self, partitions: Parts) -> None:
        # not waited for: nobody else waits for what is gained
        self.round = None
        self._end(f"it gains {len(partitions)} partitions")

    async def revoked(self, partitions: Parts) -> None:
        await self.ending(f"{len(partitions)} partitions are revoked")

    async def lost(self, partitions: Parts) -> None:
        await self.ending(f"{len(partitions)} partitions are lost")

    def suspended(self, why: str) -> None:
        # its functions read and handle records by themselves: only their end keeps them from what may be another's
        self._suspended = True
        self._end(why)

    def resumed(self) -> None:
        self._suspended = False
        self._news.set()

    def failed(self, error: BaseException) -> None:
        self.stop(error)

    async def ending(self, why: str) -> None:
        """The current generation ends; returns when it is over."""
        self.round = None
        generation = self.current
        if generation is not None:
            generation.end(why)
            await generation.over()

    def settle(self, round: Round) -> None:
        """This is the whole assignment. Changes nothing when a generation with the same partitions goes on."""
        current = self.current
        if current is not None and not current.done:
            if (current.member_id, current.partitions) == (round.member_id, round.partitions):
                return
            current.end("another assignment stands")
        if round != self.round:
            self.round = round
            self._news.set()

    # -- called by the group --------------------------------------------------------------------------------------

    def stop(self, reason: BaseException) -> None:
        """Ends everything for this reason; only the first one counts."""
        if self.reason is None:
            self.reason = reason
            self._end(str(reason))
            self._stop.set()
            self._news.set()

    async def settled(self) -> Round:
        """The next generation to begin. Raises the reason to stop instead."""
        while True:
            self._news.clear()
            if self.reason is not None:
                raise self.reason
            if self.round is not None and not self._suspended:
                return self.round
            await self._news.wait()

    def may_begin(self, round: Round) -> bool:
        """Whether `round` still is what stands."""
        return self.round is round and not self._suspended and self.reason is None

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises the reason to stop if that comes first, and then `work` has ended."""
        return await Scope().run(work, stop=self._stopped())

    async def _stopped(self) -> None:
        await self._stop.wait()
        assert self.reason is not None
        raise self.reason

    def _end(self, why: str) -> None:
        if self.current is not None:
            self.current.end(why)
