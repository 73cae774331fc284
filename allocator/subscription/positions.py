"""Positions of the assigned partitions: which may be read, which await a reset or a validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional

from allocator.errors import NotAssigned
from allocator.subscription.kinds import ResetStrategy, reset_timestamp
from allocator.subscription.loss import NoPosition, OutOfTurn
from allocator.subscription.partition import Changes, TopicPartitionState, as_position
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["LogTruncation", "Positions", "Resets", "Validations"]

Partitions = Iterable[TopicPartition]


class Positions:
    """Positions, gates and marks of the assigned partitions, in the order in which they are to be fetched.

    Methods that name a partition raise `NotAssigned` (a `KeyError`) when it is not assigned; the `is_...` and
    `has_...` ones say False instead, and what fetch reports late is skipped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changes = Changes()
        self.assignment: dict[TopicPartition, TopicPartitionState] = {}
        self._held_back: frozenset[TopicPartition] = frozenset()

    @property
    def version(self) -> int:
        """Grows with each change that may change what to fetch: compare to know if anything is new."""
        return self._changes.version

    # -- what is assigned

    def assigned_partitions(self) -> set[TopicPartition]:
        """A copy of the assigned set."""
        return set(self.assignment)

    def is_assigned(self, partition: TopicPartition) -> bool:
        return partition in self.assignment

    def mark_pending_revocation(self, partitions: Partitions) -> None:
        """Hand out nothing more of them (KIP-429); ended by the next assignment. Unassigned ones are skipped.

        Caller: membership, right before it tells the listener that they are revoked or lost.
        """
        for tp in partitions:
            if tp in self.assignment:
                self.assignment[tp].mark_pending_revocation()

    # -- what may be fetched

    def pause(self, partition: TopicPartition) -> None:
        """Hand out nothing of it until `resume`; the position stays."""
        self._of(partition).pause()

    def resume(self, partition: TopicPartition) -> None:
        self._of(partition).resume()

    def paused_partitions(self) -> set[TopicPartition]:
        return {tp for tp, state in self.assignment.items() if state.paused}

    def is_fetchable(self, partition: TopicPartition) -> bool:
        """Assigned, with a position that needs no validation, not paused or held back, not about to be revoked."""
        state = self.assignment.get(partition)
        return state is not None and state.is_fetchable() and partition not in self._held_back

    def hold_back(self, partitions: frozenset[TopicPartition]) -> None:
        """Hand out nothing of these, assigned or not, beside those that the user paused; replaces the former ones.

        Caller: consumer, as operators order.
        """
        if partitions != self._held_back:
            self._held_back = partitions
            self._changes.version += 1

    # -- positions

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Read on from `offset`; what was read ahead is void, a reset or validation under way is over.

        Raises `TypeError` for what is no offset, `ConfigError` (a `ValueError`) below 0.
        """
        position = as_position(offset, f"{partition.topic}:{partition.partition}: ")
        self._of(partition).seek(position)

    def position(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The offset of the next record to hand out; None until it is known."""
        return self._of(partition).position

    def update_position(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Move on after handing records out; `leader_epoch` is that of the last one, -1 if its format has none.

        Caller: consumer. Raises `OutOfTurn` without a position.
        """
        state = self._of(partition)
        if state.position is None:
            raise OutOfTurn(f"{partition.topic}:{partition.partition} has no position to move on from; seek it first")
        state.position = OffsetAndMetadata(offset, "", leader_epoch)

    def has_valid_position(self, partition: TopicPartition) -> bool:
        state = self.assignment.get(partition)
        return state is not None and state.has_valid_position

    def missing_fetch_positions(self) -> set[TopicPartition]:
        """Partitions that have neither a position nor a reset under way: the consumer should look for offsets."""
        return {tp for tp, state in self.assignment.items() if state.is_missing_position()}

    def all_consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions that are known: what a commit would store."""
        return {tp: state.position for tp, state in self.assignment.items() if state.position is not None}

    def epoch(self, partition: TopicPartition) -> int | None:
        """Changes when what was read ahead became void; None when unassigned. Never the same number twice."""
        state = self.assignment.get(partition)
        return None if state is None else state.epoch

    def fence(self, partition: TopicPartition) -> int | None:
        """The number of this member's ownership (`Membership.fence`); None when unassigned, or without a membership."""
        state = self.assignment.get(partition)
        return None if state is None else state.fence

    def set_fence(self, partition: TopicPartition, fence: int) -> None:
        """Caller: consumer, when the partition is assigned."""
        self._of(partition).fence = fence

    def topic_id(self, partition: TopicPartition) -> Any:
        """Of the topic that the position belongs to; None if that is not known, or nothing is assigned."""
        state = self.assignment.get(partition)
        return None if state is None else state.topic_id

    def note_topic(self, partition: TopicPartition, topic_id: Any) -> Any:
        """The topic of this name has this id now. Returns the id of the one that the position belongs to, if that was
        another one: the position is worthless then. Caller: fetch."""
        state = self.assignment.get(partition)
        if state is None or state.position is None or state.topic_id == topic_id:
            return None
        if state.topic_id is None:
            state.topic_id = topic_id
            return None
        return state.topic_id

    # -- marks of the log

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """The offset after the last record that consumers may read, as of the last fetch; None before it."""
        return self._of(partition).high_watermark

    def update_high_watermark(self, partition: TopicPartition, offset: int) -> None:
        """Caller: fetch."""
        if partition in self.assignment:
            self.assignment[partition].high_watermark = offset

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """The offset of the first record whose transaction is still open, as of the last fetch; None before it."""
        return self._of(partition).last_stable_offset

    def update_last_stable_offset(self, partition: TopicPartition, offset: int | None) -> None:
        """None or below 0: the broker is older than transactions. Caller: fetch."""
        if partition in self.assignment:
            self.assignment[partition].last_stable_offset = None if offset is None or offset < 0 else offset

    def partition_lag(self, partition: TopicPartition, *, committed_only: bool = False) -> int | None:
        """Offsets between the position and the end of what may be read; None while either is unknown.

        The end is the high watermark, or the last stable offset for who reads committed records only.
        """
        state = self._of(partition)
        end = state.last_stable_offset if committed_only else state.high_watermark
        return None if end is None or state.position is None else max(0, end - state.position.offset)

    # -- preferred read replica (KIP-392)

    def preferred_read_replica(self, partition: TopicPartition) -> int | None:
        """The node to fetch it from instead of its leader; None: the leader."""
        return self._of(partition).preferred_read_replica()

    def update_preferred_read_replica(
        self, partition: TopicPartition, node_id: int | None, expiration_time: float
    ) -> bool:
        """The leader named another node, until that time on the clock. Returns whether it is news. Caller: fetch."""
        state = self.assignment.get(partition)
        return state is not None and state.update_preferred_read_replica(node_id, expiration_time)

    def clear_preferred_read_replica(self, partition: TopicPartition) -> int | None:
        """The replica failed: the leader again. Returns the replica that it was. Caller: fetch."""
        state = self.assignment.get(partition)
        return None if state is None else state.clear_preferred_read_replica()

    # -- inside

    def _of(self, partition: TopicPartition) -> TopicPartitionState:
        try:
            return self.assignment[partition]
        except KeyError:
            raise NotAssigned(partition) from None

    def _all_of(self, partitions: Partitions) -> list[TopicPartitionState]:
        """Looked up before the first is changed."""
        return [self._of(tp) for tp in partitions]

    def _assigned_of(self, partitions: Partitions) -> list[TopicPartitionState]:
        return [self.assignment[tp] for tp in partitions if tp in self.assignment]


class Resets(Positions):
    """Which partitions await a reset, and when it may be tried.

    Guarantee: only what a reset found under the partition's present epoch becomes its position.
    """

    def __init__(
        self, offset_reset_strategy: ResetStrategy = "earliest", clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._default_reset = reset_timestamp(offset_reset_strategy)

    def has_default_offset_reset_policy(self) -> bool:
        """Whether a partition without an offset has a strategy to find one."""
        return self._default_reset is not None

    def request_offset_reset(
        self, partition: TopicPartition, offset_reset_strategy: ResetStrategy | None = None
    ) -> None:
        """Give the position up and find a new one, by the default strategy if none is given.

        Raises `NoPosition` when that is "none".
        """
        given = offset_reset_strategy is not None
        strategy = reset_timestamp(offset_reset_strategy) if given else self._default_reset
        state = self._of(partition)
        if strategy is None:
            raise NoPosition([partition], "the given strategy" if given else "auto_offset_reset")
        state.reset(strategy)

    def halt_recreated(self, partition: TopicPartition) -> None:
        """The position is one of a topic that is gone: nothing is handed out until a seek. Caller: fetch."""
        self._of(partition).recreated()

    def is_offset_reset_needed(self, partition: TopicPartition) -> bool:
        state = self.assignment.get(partition)
        return state is not None and state.awaiting_reset

    def partitions_needing_reset(self) -> set[TopicPartition]:
        """Those that await a reset and may try it now."""
        now = self._clock()
        return {tp for tp, s in self.assignment.items() if s.awaiting_reset and s.is_reset_allowed(now)}

    def next_offset_reset_retry_time(self) -> float | None:
        """When the first reset that failed may be tried again, on the clock; None if there is none."""
        times = (s.next_allowed_retry_time for s in self.assignment.values() if s.awaiting_reset)
        return min((t for t in times if t is not None), default=None)

    def reset_strategy(self, partition: TopicPartition) -> int | None:
        """What ListOffsets is to be asked for it; None when it awaits no reset."""
        return self._of(partition).reset_strategy

    def set_reset_pending(self, partitions: Iterable[TopicPartition], next_allowed_reset_time: float) -> None:
        """A reset has been asked of the brokers; no second try before that time. Caller: fetch."""
        for state in self._all_of(partitions):
            state.set_reset_pending(next_allowed_reset_time)

    def reset_failed(self, partitions: Iterable[TopicPartition], next_retry_time: float) -> None:
        """It failed; try again after that time. Partitions that are gone are skipped. Caller: fetch."""
        for state in self._assigned_of(partitions):
            state.reset_failed(next_retry_time)

    def complete_reset(self, partition: TopicPartition, offset: int, epoch: int) -> bool:
        """Adopt what a reset found, unless a seek, another reset or a reassignment came since `epoch`. Caller: fetch.

        Returns whether it was adopted.
        """
        state = self.assignment.get(partition)
        if state is None or not state.awaiting_reset or state.epoch != epoch:
            return False
        state.seek(offset)
        return True


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
    """Which positions await a validation, when it may be tried, and what its result means (KIP-320).

    After an unclean election the log may end before a position, or continue differently; reading on would skip
    records without an error. So a partition whose leader changed is not read until OffsetForLeaderEpoch has told where
    the epoch of the last record ends in the log of the leader.

    Guarantee: nothing is delivered while a position awaits validation, or was found past the end of the log.
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
