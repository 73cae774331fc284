"""Positions for partitions that have none: where a reset strategy points, asked of the leaders."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from allocator.errors import AllocatorError, Closed
from allocator.subscription import LATEST, SubscriptionState
from allocator.types import TopicPartition
from allocator.wire.list_offsets import Found, list_offsets

if TYPE_CHECKING:
    from allocator.wire.kafka import KafkaClient

__all__ = ["Resets"]

log = logging.getLogger(__name__)

# seconds until something that retrying alone does not mend is tried again, as someone may have mended it
HOPELESS_S = 2.0


class Resets:
    """Carries out the resets that the state asks for.

    Guarantee: what a reset finds is adopted only if no seek, other reset or reassignment came meanwhile; partitions
    that fail do not hold up those of other leaders or topics. Errors that retrying does not mend go to
    `tell`, once until the topic's next success. `found` gets each partition, its offset, and the epoch of the request.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        *,
        isolation_level: str,
        backoff_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        tell: Callable[[AllocatorError], None],
        found: Callable[[TopicPartition, int, int], None],
    ) -> None:
        self._client = client
        self._state = state
        self._isolation_level = isolation_level
        self._backoff_s = backoff_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._tell = tell
        self._found = found
        # topics whose error the consumer knows of
        self._told: set[str] = set()

    def next_time(self) -> float | None:
        return self._state.next_offset_reset_retry_time()

    def due(self) -> set[TopicPartition]:
        """Partitions to reset now; they are not due again before their attempt ended or timed out."""
        due = self._state.partitions_needing_reset()
        self._state.set_reset_pending(due, self._clock() + 2 * self._timeout_s)
        return due

    async def run(self, due: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Reset them. Returns those whose leader should be looked up, as none is known."""
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        lost = set()
        for tp in due:
            leader = self._client.leader(tp)
            if leader is None:
                lost.add(tp)
            else:
                by_leader[leader].append(tp)
        self._failed(lost)
        await asyncio.gather(*(self._ask(tps) for tps in by_leader.values()))
        return lost

    async def _ask(self, tps: Iterable[TopicPartition]) -> None:
        state = self._state
        wanted = {tp: (state.epoch(tp), state.reset_strategy(tp)) for tp in tps if state.is_offset_reset_needed(tp)}
        at = {tp: strategy for tp, (_, strategy) in wanted.items() if strategy is not None}
        if not at:
            return
        try:
            found = await self._list(at)
            late = {tp: LATEST for tp, there in found.items() if there is None}
            if late:  # no record is as young as the time that was asked for
                found.update(await self._list(late))
        except Closed:
            raise
        except AllocatorError as error:
            topics = {tp.topic for tp in at}
            if not error.retriable and len(topics) > 1:
                # the answer is for all or none, so one topic that may not be read would stop the others
                await asyncio.gather(*(self._ask([tp for tp in at if tp.topic == topic]) for topic in topics))
                return
            log.info("no position for %d partitions of %s yet: %s", len(at), ", ".join(sorted(topics)), error)
            self._failed(at, self._backoff_s if error.retriable else HOPELESS_S)
            if not error.retriable and not topics <= self._told:
                self._told |= topics
                self._tell(error)
            return
        self._told -= {tp.topic for tp in at}
        for tp, there in found.items():
            epoch = wanted[tp][0]
            if there is not None and epoch is not None and state.complete_reset(tp, there.offset, epoch):
                log.info("%s:%d starts at offset %d", tp.topic, tp.partition, there.offset)
                self._found(tp, there.offset, epoch)

    async def _list(self, at: dict[TopicPartition, int]) -> Found:
        return await list_offsets(self._client, at, isolation_level=self._isolation_level, timeout_s=self._timeout_s)

    def _failed(self, tps: Iterable[TopicPartition], delay_s: float | None = None) -> None:
        self._state.reset_failed(tps, self._clock() + (self._backoff_s if delay_s is None else delay_s))
