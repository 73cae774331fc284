"""The partitions that a member owns, and the position of each."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Optional

from allocator.core.errors import ConfigError, NotAssigned
from allocator.core.subscription.loss import as_written, listed
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.progress import Hold, ReaderHolds
from allocator.core.subscription.tenures import Pause, Tenures
from allocator.core.types import (
    EARLIEST,
    LAST_EPOCH,
    LAST_OFFSET,
    LATEST,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetReset,
    TopicPartition,
)

TIMESTAMPS: Final = {"earliest": EARLIEST, "latest": LATEST, "none": None}


class LogTruncation(NamedTuple):
    """A log was truncated: it no longer has some records that were read before a position."""

    partition: TopicPartition
    position: OffsetAndMetadata
    """The position when the log was truncated."""
    divergent: Optional[OffsetAndMetadata]
    """The offset where the log begins to differ from the records that were read; None if the leader does not know their
    epoch."""
    resolved: bool
    """Whether reading continues at `divergent` or by a reset. False: no strategy is set, so the user has to seek."""


class SubscriptionState(Tenures[TopicPartitionState]):
    """The owned partitions and their positions. The consumer, the membership and `fetch` share it.

    Guarantee: a partition keeps its state (position, pause, epoch, replica) and its place in the fetch order until its
    tenure ends. A new tenure begins with empty state. A result of a request becomes the position only if the partition
    has the epoch of the request. No record is delivered while the position of its partition awaits validation
    (KIP-320), or lies beyond the end of the log. A call that raises changes nothing.

    Methods that take a partition raise `NotAssigned` (a `KeyError`) if it is not assigned. Methods `is_...` return
    False instead. Late results of `fetch` about such a partition have no effect.

    Use it in one thread. `reset_strategy`, a name or a time in milliseconds since the epoch, applies to a partition
    without a committed offset. `clock` returns seconds, for retries and for leases of replicas. `shuffle` reorders
    newly claimed partitions in place; None keeps their order. The default is a random order, so that short-lived
    consumers do not all begin with the same partition.
    """

    def __init__(
        self,
        reset_strategy: OffsetReset | int = "earliest",
        *,
        clock: Callable[[], float] = time.monotonic,
        shuffle: Callable[[list[TopicPartition]], None] | None = random.shuffle,
    ) -> None:
        super().__init__(lambda partition, fence: TopicPartitionState(partition, fence, self, clock))
        self.reset_strategy = reset_strategy
        self._default_reset = reset_strategy if isinstance(reset_strategy, int) else TIMESTAMPS[reset_strategy.lower()]
        self.begin_at_start: frozenset[str] = frozenset()
        """Topics whose partitions are reset to their first record, whatever the strategy."""
        self._shuffle = shuffle
        self._former: dict[TopicPartition, TopicPartitionState] = {}
        """The last tenure of each partition that this member owned."""
        self.members: set[str] = set()
        """The member ids under which this process has committed."""
        self.on_freed: Callable[[], None] = lambda: None
        """Called when someone has ended the work on delivered records."""
        self.on_read: Callable[[], None] = lambda: None
        """Called when the reader has got its first records, so that no processor handles them."""
        self.on_start: Callable[[], None] = lambda: None
        """Called when a reset has found the start of a partition without a committed offset, past earlier records."""
        self.on_doubt: Callable[[], None] | None = None
        """Called when a log came into doubt (`TopicPartitionState.in_doubt`); None if nobody can decide."""
        self.doubts: Counter[str] = Counter()
        """How often each topic came into doubt: offsets that were read before may be those of a former topic."""
        self.reader = ReaderHolds(lambda: self.on_freed(), lambda: self.on_read())
        """What the reader works on. Empty while a processor handles the records."""

    # -- assignment

    def claim(self, fences: Mapping[TopicPartition, int | None]) -> None:
        order = list(fences)
        if self._shuffle is not None:
            self._shuffle(order)
        super().claim({tp: fences[tp] for tp in order})
        for tp in order:
            former = self._former.get(tp)
            if former is not None:
                # the next release of the partition waits for the work that began in an earlier tenure, too
                self.assignment[tp].holds = [hold for hold in former.holds if hold.busy]

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment by these partitions, in their order. No group takes part."""
        wanted = dict.fromkeys(partitions)
        self._end([state for tp, state in self.assignment.items() if tp not in wanted])
        new = dict.fromkeys(tp for tp in wanted if tp not in self.assignment)
        if new:
            super().claim(new)

    def _end(self, tenures: list[TopicPartitionState]) -> None:
        super()._end(tenures)
        self._former.update((tenure.partition, tenure) for tenure in tenures)

    def former(self, partition: TopicPartition) -> TopicPartitionState | None:
        """Returns the last tenure of this partition that has ended; None if this member never owned it."""
        return self._former.get(partition)

    def topics(self) -> set[str]:
        """Returns the topics of the partitions that this member owns or owned."""
        return {tp.topic for each in (self.assignment, self._former) for tp in each}

    def forget_logs(self, are_gone: Callable[[str], bool] = lambda topic: True) -> None:
        """Called when the logs of some topics are gone. Forgets what this process has handled of them."""
        for tp in [tp for tp in self._former if are_gone(tp.topic)]:
            self._former[tp].proof = None
            if not any(hold.busy for hold in self._former[tp].holds):
                del self._former[tp]
        for tp, tenure in self.assignment.items():
            if tenure.handled_from is not None and are_gone(tp.topic):
                tenure.handled_from = None

    def holds_of(self, record: Any) -> list[Hold]:
        """Returns the hold of a record or batch that was delivered: of its partition, or of the retry topic through
        which it came, or both if the record does not tell; none if nobody works on it any more."""
        here = self.assignment.get(TopicPartition(record.topic, record.partition))
        found = [] if here is None else _holds_of(here, record)
        if self.begin_at_start and getattr(record, "headers", None):
            for partition, tenure in list(self.assignment.items()):  # a thread may ask
                if partition.topic in self.begin_at_start and tenure is not here:
                    found += _holds_of(tenure, record)
        return found

    def is_in_doubt(self, partition: TopicPartition) -> bool:
        """Returns whether the topic of an owned partition may have been created again."""
        state = self.assignment.get(partition)
        return state is not None and state.in_doubt > 0

    # -- fetching

    def pause(self, partition: TopicPartition, *, set_aside: bool = False) -> None:
        """Stops the delivery of the partition until `resume`. Its position stays.

        `set_aside` marks the pause as that of a processor. A partition that the user has paused remains the user's.
        """
        tenure = self._of(partition)
        if not set_aside:
            tenure.pause = Pause.USER
        elif tenure.pause is None:
            tenure.pause = Pause.PROCESS
        self._pauses_changed([partition])

    def resume(self, partition: TopicPartition) -> None:
        self._of(partition).pause = None
        self._pauses_changed([partition])

    def paused_partitions(self) -> set[TopicPartition]:
        return {tp for tp, state in self.assignment.items() if state.pause is not None}

    def is_fetchable(self, partition: TopicPartition) -> bool:
        """Returns whether `fetch` may read the partition.

        The partition must be owned, not draining, not paused and not held back, and its position must be valid.
        """
        state = self.assignment.get(partition)
        return state is not None and state.is_fetchable()

    def is_wanted(self, partition: TopicPartition) -> bool:
        """Like `is_fetchable`, but does not check the position."""
        state = self.assignment.get(partition)
        return state is not None and state.is_wanted()

    def hold_back(self, partitions: frozenset[TopicPartition]) -> None:
        """Stops the delivery of these partitions, assigned or not, because an operator command pauses them.

        Replaces the earlier set. The user's pauses stay.
        """
        if partitions != self.held_back:
            before, self.held_back = self.held_back, partitions
            self._pauses_changed(before ^ partitions)

    def _pauses_changed(self, partitions: Iterable[TopicPartition]) -> None:
        self.version += 1
        for partition in partitions:
            tenure = self.assignment.get(partition)
            for hold in () if tenure is None else tenure.holds:
                hold.pause_changed()

    # -- positions

    def begin(self, partition: TopicPartition, committed: OffsetAndMetadata) -> None:
        """Sets the first position of a tenure: the committed offset, or beyond it what this process has handled."""
        own = as_written(committed).member in self.members
        self._of(partition).begin(committed, self._former.get(partition), own=own)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata | OffsetAndTimestamp) -> None:
        """Sets the position. Drops records that were read ahead, and ends a reset or validation in progress.

        Raises `ConfigError` (a `ValueError`) for an offset or a leader epoch that no log can have.
        """
        position = OffsetAndMetadata(offset, "", -1) if isinstance(offset, int) else offset
        if isinstance(position, OffsetAndTimestamp):
            position = listed(position)
        name = f"{partition.topic}:{partition.partition}"
        if position.offset > LAST_OFFSET or position.leader_epoch > LAST_EPOCH:
            what = f"offset {position.offset} with leader epoch {position.leader_epoch}"
            raise ConfigError(f"{name}: {what} is too large; offsets have 63 bits, and leader epochs 31")
        if position.offset < 0:
            raise ConfigError(
                f"{name}: offset {position.offset} is below 0; to seek to an end of the log, reset the position"
            )
        self._of(partition).seek(position)

    def position(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Returns the offset of the next record to deliver; None if it is not known yet."""
        return self._of(partition).position

    def update_position(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Moves the position past records that were taken or that are not delivered. `leader_epoch` is that of the last
        record, -1 if its format has none.

        Raises `OutOfTurn` if there is no position.
        """
        state = self._of(partition)
        if state.position is None:
            from allocator.core.kafka_errors import OutOfTurn

            raise OutOfTurn(f"{partition.topic}:{partition.partition} has no position yet; seek it first")
        state.pass_by(offset, leader_epoch)

    def all_consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the known positions."""
        return {tp: state.position for tp, state in self.assignment.items() if state.position is not None}

    def epoch(self, partition: TopicPartition) -> int | None:
        """Returns a number that changes when records that were read ahead become invalid, and never repeats. None if
        the partition is not assigned."""
        state = self.assignment.get(partition)
        return None if state is None else state.epoch

    def fence(self, partition: TopicPartition) -> int | None:
        """Returns the fencing token of this ownership; None if the partition is not assigned, or without a
        membership."""
        state = self.assignment.get(partition)
        return None if state is None else state.fence

    def topic_id(self, partition: TopicPartition) -> Any:
        """Returns the id of the position's topic; None if it is unknown, or the partition is not assigned."""
        state = self.assignment.get(partition)
        return None if state is None else state.topic_id

    # -- resets and validations

    def has_default_offset_reset_policy(self) -> bool:
        """Returns whether a reset strategy applies to a partition without an offset."""
        return self._default_reset is not None

    def request_offset_reset(self, partition: TopicPartition) -> None:
        """Drops the position and awaits a new one from the reset strategy. Raises `NoPosition` if that is "none"."""
        strategy = EARLIEST if partition.topic in self.begin_at_start else self._default_reset
        state = self._of(partition)
        if strategy is None:
            from allocator.core.kafka_errors import NoPosition

            raise NoPosition([partition])
        state.reset(strategy)

    def complete_reset(
        self, partition: TopicPartition, position: OffsetAndMetadata, epoch: int, current_leader_epoch: int | None
    ) -> bool:
        """Sets the position that a reset has found, unless a seek, reset or new assignment came after `epoch`.

        Returns whether it was set. `current_leader_epoch` belongs to the leader that found the position.
        """
        state = self.assignment.get(partition)
        if state is None or not state.awaiting_reset or state.epoch != epoch:
            return False
        passes = state.reset_strategy != EARLIEST and state.committed is None
        state.complete_reset(position, current_leader_epoch)
        if passes:
            self.on_start()
        return True

    def maybe_complete_validation(
        self, partition: TopicPartition, asked: OffsetAndMetadata, end_offset: int, end_epoch: int, *, epoch: int
    ) -> LogTruncation | None:
        """Ends a validation with the response to OffsetForLeaderEpoch. Returns the truncation, or None.

        `asked` and `epoch` are the position and `epoch()` at the time of the request. If they have changed since, the
        response has no effect. `end_epoch` is the newest epoch in the leader's log that is not above that of `asked`,
        and `end_offset` the offset after its last record. Negative values: the leader has no such epoch.
        """
        state = self.assignment.get(partition)
        if state is None or not state.awaiting_validation or (state.position, state.epoch) != (asked, epoch):
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
            # stop: reading on would skip records of the new log, and another request would get the same response
            state.truncated()
        elif divergent is None:
            self.request_offset_reset(partition)
        else:
            # only records after the divergence are read again
            state.cut_to(divergent)
        return LogTruncation(partition, asked, divergent, resolved)

    def _of(self, partition: TopicPartition) -> TopicPartitionState:
        try:
            return self.assignment[partition]
        except KeyError:
            raise NotAssigned(partition) from None


def _holds_of(tenure: TopicPartitionState, record: Any) -> list[Hold]:
    return [each for each in list(tenure.holds) if each.tenure is tenure and each.is_of(record)]
