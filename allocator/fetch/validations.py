"""Positions that are to be compared with the log of another leader (KIP-320), asked of that leader."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from allocator.errors import AllocatorError, BrokerError, Closed, LogTruncated
from allocator.fetch.resets import HOPELESS_S
from allocator.subscription import LogTruncation, SubscriptionState
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.wire.offset_for_leader_epoch import ends_of_epochs, is_supported

if TYPE_CHECKING:
    from allocator.wire.kafka import KafkaClient

__all__ = ["Validations"]

log = logging.getLogger(__name__)


Asked = dict[TopicPartition, tuple[OffsetAndMetadata, int]]
"""The position that is asked about, and the state's epoch of the partition then."""


class Validations:
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
