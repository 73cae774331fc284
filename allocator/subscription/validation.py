"""Positions that are to be compared with the log of another leader (KIP-320).

After an unclean election the log may end before a position, or go on differently: reading on from there would skip
records without a word. So a partition whose leader changed is not read until OffsetForLeaderEpoch has said where the
epoch of the last record read ends in the leader's log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional

from allocator.subscription.kinds import FetchState
from allocator.subscription.resets import Resets
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["LogTruncation", "Validations"]


class LogTruncation(NamedTuple):
    """Records before the position are not in the log any more."""

    partition: TopicPartition
    position: OffsetAndMetadata
    """Where the partition stood."""
    divergent: Optional[OffsetAndMetadata]
    """Where the log parted from what was read; None if the leader does not know that epoch at all."""
    resolved: bool
    """True: the position was moved there, or is being reset. False: the user has to seek, as no strategy is set."""


class Validations(Resets):
    """Which positions await a validation, when it may be tried, and what its answer means.

    Guarantee: while a position awaits validation, or was found past the end of the log, nothing is handed out.
    Validation and reset exclude each other.
    """

    def maybe_validate_position_for_current_leader(
        self, partition: TopicPartition, current_leader_epoch: int | None
    ) -> bool:
        """Await a validation if the leader is newer than the position. Returns whether it is awaited from now on.

        Caller: fetch, for every partition after each metadata update.
        """
        state = self.assignment.get(partition)
        return state is not None and state.maybe_validate_position(current_leader_epoch)

    def doubt_position(self, partition: TopicPartition, current_leader_epoch: int | None) -> bool:
        """Await a validation if the leader is older than the position. Returns whether it is awaited from now on.

        Caller: fetch, as above.
        """
        state = self.assignment.get(partition)
        return state is not None and state.doubt_position(current_leader_epoch)

    def request_position_validation(self, partition: TopicPartition) -> bool:
        """As a broker called our leader epoch fenced or unknown. Returns whether one is awaited. Caller: fetch."""
        state = self.assignment.get(partition)
        return state is not None and state.request_position_validation()

    def is_offset_validation_needed(self, partition: TopicPartition) -> bool:
        state = self.assignment.get(partition)
        return state is not None and state.awaiting_validation

    def partitions_needing_validation(self) -> set[TopicPartition]:
        """Those that await a validation and may try it now."""
        now = self._clock()
        return {tp for tp, s in self.assignment.items() if s.awaiting_validation and s.is_validation_allowed(now)}

    def next_offset_validation_retry_time(self) -> float | None:
        """When the first validation that failed may be tried again, on the clock; None if there is none."""
        times = (s.next_allowed_retry_time for s in self.assignment.values() if s.awaiting_validation)
        return min((t for t in times if t is not None), default=None)

    def set_validation_pending(self, partitions: Iterable[TopicPartition], next_allowed_retry_time: float) -> None:
        """A validation has been asked of the brokers; no second try before that time. Caller: fetch."""
        for state in self._all_of(partitions):
            state.set_validation_pending(next_allowed_retry_time)

    def validation_failed(self, partitions: Iterable[TopicPartition], next_allowed_retry_time: float) -> None:
        """It failed; try again after that time. Partitions that are gone are skipped. Caller: fetch."""
        for state in self._assigned_of(partitions):
            state.validation_failed(next_allowed_retry_time)

    def complete_validation(
        self, partition: TopicPartition, validated_position: OffsetAndMetadata | None = None
    ) -> bool:
        """Read on, from `validated_position` if there is one. Returns whether a validation was awaited."""
        state = self.assignment.get(partition)
        return state is not None and state.complete_validation(validated_position)

    def maybe_complete_validation(
        self,
        partition: TopicPartition,
        asked: OffsetAndMetadata,
        end_offset: int,
        end_epoch: int,
        *,
        epoch: int | None = None,
    ) -> LogTruncation | None:
        """What OffsetForLeaderEpoch answered: the last epoch in the log up to that of `asked`, and where it ends.

        `asked` is the position the question was about, and `epoch` what `epoch()` was then. If either is another one
        by now, the answer is out of date, and nothing happens. Negative values say that the leader has no such epoch.
        Returns what was lost, None if nothing was. Caller: fetch.
        """
        state = self.assignment.get(partition)
        if state is None or not state.awaiting_validation or state.position != asked:
            return None
        if epoch is not None and state.epoch != epoch:
            return None
        if end_offset < 0 or end_epoch < 0:
            divergent = None
        elif end_offset < asked.offset:
            divergent = OffsetAndMetadata(end_offset, "", end_epoch)
        else:
            state.complete_validation()
            return None
        resolved = self.has_default_offset_reset_policy()
        if not resolved:
            # reading on would skip what now stands there; asking again would bring the same answer
            state.truncated()
        elif divergent is None:
            self.request_offset_reset(partition)
        else:
            # only what follows the divergence is read again
            state.seek(divergent)
        return LogTruncation(partition, asked, divergent, resolved)

    def truncated_partitions(self) -> set[TopicPartition]:
        """Those that wait for the user to seek them, because the log was cut before their position."""
        return {tp for tp, state in self.assignment.items() if state.phase is FetchState.TRUNCATED}
