"""Positions for partitions that have none: where a reset strategy points, asked of the leaders."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from allocator.client.log_offsets import Found, ends_of_epochs, is_supported, list_offsets
from allocator.errors import AllocatorError, BrokerError, Closed, LogTruncated
from allocator.subscription import LATEST, LogTruncation, SubscriptionState
from allocator.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from allocator.client.client import KafkaClient

__all__ = ["ResetRequests", "ValidationRequests"]

log = logging.getLogger(__name__)

# seconds until something that retrying alone does not mend is tried again, as someone may have mended it
HOPELESS_S = 2.0


class ResetRequests:
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


# -- validations ----------
# Positions that are to be compared with the log of another leader (KIP-320), asked of that leader.


Asked = dict[TopicPartition, tuple[OffsetAndMetadata, int]]


"""The position that is asked about, and the state's epoch of the partition then."""


class ValidationRequests:
    """Carries out the validations that the state asks for.

    Guarantee: an answer counts only for the position that it was asked for. Where the log was cut, `cut` is told, and
    reading goes on there, or `tell` gets one `LogTruncated` if no reset strategy allows that. Other errors that
    retrying does not mend go to `tell` once, until the partition's next success.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        *,
        backoff_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        tell: Callable[[AllocatorError], None],
        cut: Callable[[LogTruncation], None],
    ) -> None:
        self._client = client
        self._state = state
        self._backoff_s = backoff_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._tell = tell
        self._cut = cut
        # partitions whose error the consumer knows of
        self._told: set[TopicPartition] = set()

    def look(self, partitions: Iterable[TopicPartition]) -> None:
        """After a metadata update: let positions be compared with the logs of leaders that are newer than they are.

        And of older ones, since epochs begin anew with a topic that is created again.
        """
        if is_supported(self._client):
            for tp in partitions:
                epoch = self._client.leader_epoch(tp)
                if not self._state.maybe_validate_position_for_current_leader(tp, epoch):
                    self._state.doubt_position(tp, epoch)

    def next_time(self) -> float | None:
        return self._state.next_offset_validation_retry_time()

    def due(self) -> set[TopicPartition]:
        """Partitions to validate now; they are not due again before their attempt ended or timed out."""
        due = self._state.partitions_needing_validation()
        self._state.set_validation_pending(due, self._clock() + 2 * self._timeout_s)
        return due

    async def run(self, due: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Validate them. Returns those whose leader should be looked up."""
        state, client = self._state, self._client
        by_leader: dict[int, Asked] = defaultdict(dict)
        lost = set()
        for tp in due:
            epoch, position = state.epoch(tp), None
            if state.is_offset_validation_needed(tp):
                position = state.position(tp)
            if epoch is None or position is None:
                continue
            leader = client.leader(tp)
            if position.leader_epoch < 0 or not is_supported(client):
                state.complete_validation(tp)  # nothing to compare, or nobody to ask
            elif leader is None:
                lost.add(tp)
            else:
                by_leader[leader][tp] = (position, epoch)
        self._failed(lost)
        for found in await asyncio.gather(*(self._ask(leader, asked) for leader, asked in by_leader.items())):
            lost |= found
        return lost

    async def _ask(
        self, leader: int, asked: dict[TopicPartition, tuple[OffsetAndMetadata, int]]
    ) -> set[TopicPartition]:
        """One leader. Returns those for which it may be the wrong one."""
        state = self._state
        try:
            ends = await ends_of_epochs(
                self._client,
                leader,
                {tp: position.leader_epoch for tp, (position, _) in asked.items()},
                timeout_s=self._timeout_s,
            )
        except Closed:
            raise
        except BrokerError as error:
            ends = dict.fromkeys(asked, error)
        doubted = set()
        for tp, end in ends.items():
            position, epoch = asked[tp]
            if isinstance(end, BrokerError):
                log.info("%s:%d at offset %d is not validated yet: %s", *tp, position.offset, end)
                self._failed([tp], self._backoff_s if end.retriable else HOPELESS_S)
                doubted.add(tp)
                if not end.retriable and tp not in self._told:
                    self._told.add(tp)
                    self._tell(end)
                continue
            self._told.discard(tp)
            cut = state.maybe_complete_validation(tp, position, end.offset, end.epoch, epoch=epoch)
            if cut is None:
                if state.epoch(tp) == epoch and state.is_offset_validation_needed(tp):
                    self._failed([tp], 0.0)  # the position moved on meanwhile: ask about where it is now
                continue
            there = None if cut.divergent is None else cut.divergent.offset
            if cut.resolved:
                self._cut(cut)
            else:
                self._tell(LogTruncated(tp.topic, tp.partition, position.offset, there))
        return doubted

    def _failed(self, tps: Iterable[TopicPartition], delay_s: float | None = None) -> None:
        self._state.validation_failed(tps, self._clock() + (self._backoff_s if delay_s is None else delay_s))
