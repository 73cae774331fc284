"""The state of one assigned partition."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from allocator.core.subscription.progress import Progress
from allocator.core.subscription.tenures import Phase, Tenures
from allocator.core.types import OffsetAndMetadata, TopicPartition


class FetchState(enum.Enum):
    """The state of the position of an assigned partition."""

    INITIALIZING = "no position, and none requested"
    AWAIT_RESET = "no position; a reset strategy is finding one"
    FETCHING = "a position to read from"
    AWAIT_VALIDATION = "a position that must be compared with the log of a new leader (KIP-320)"
    TRUNCATED = "a position past the point where the log was truncated; the user has to seek"


_SOUGHT = {FetchState.FETCHING, FetchState.AWAIT_RESET}
MOVES: Final[Mapping[FetchState, frozenset[FetchState]]] = {
    # no state returns to INITIALIZING: a partition that is assigned again gets a new object; a partition without a
    # position has nothing to validate
    FetchState.INITIALIZING: frozenset(_SOUGHT),
    FetchState.AWAIT_RESET: frozenset(_SOUGHT),
    FetchState.FETCHING: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION}),
    # AWAIT_VALIDATION may follow itself: the leader changed again during the validation
    FetchState.AWAIT_VALIDATION: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION, FetchState.TRUNCATED}),
    # a newer leader may have the complete log
    FetchState.TRUNCATED: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION}),
}


class TopicPartitionState(Progress):
    """The progress of one tenure, with what the fetch needs: pause, high watermark, validation and preferred replica.

    Guarantee: `fetch_state` changes only as `MOVES` allows, and the partition has a position only in the states that
    have one.

    `epoch` changes when records that were read ahead become invalid: at an assignment, a seek or a reset, when the
    tenure drains, or when a new leader may have truncated the log. A response counts only if the partition still has
    the epoch of the request. `clock` returns seconds.
    """

    __slots__ = (
        "_clock",
        "_current_leader_epoch",
        "_doubted_epoch",
        "_preferred_read_replica",
        "_preferred_read_replica_expiration",
        "epoch",
        "fetch_state",
        "high_watermark",
        "in_doubt",
        "last_stable_offset",
        "record",
        "reset_from",
        "reset_strategy",
        "retry_at",
    )

    def __init__(
        self,
        partition: TopicPartition,
        fence: int | None,
        record: Tenures[Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(partition, fence)
        self.record = record
        """All tenures of the member."""
        self.stored = partial(record.stored, partition)
        self._clock = clock
        self.epoch = self.record.next_epoch()
        self.fetch_state = FetchState.INITIALIZING
        self.in_doubt = 0
        """The number of times that the log came into doubt since this was last decided: it may be that of another
        topic with the same name. 0: it is not in doubt."""
        self.reset_from: int | None = None
        """The position that the log did not have, while a reset is awaited."""
        self.reset_strategy: int | None = None
        """The timestamp that the awaited reset sends to ListOffsets; None if no reset is awaited."""
        self.retry_at = -math.inf
        """The reading of `clock` from which the awaited reset or validation may be requested."""
        self.high_watermark: int | None = None
        """The offset after the last record that consumers may read, from the last fetch; None before the first one."""
        self.last_stable_offset: int | None = None
        """The offset before which no transaction is open, from the last fetch; None unless "read_committed" is set."""
        # the newest leader epoch whose log was compared with the position. The record before the position may have an
        # older epoch, so without this field the position would be validated at each metadata response
        self._current_leader_epoch = -1
        # a leader epoch that is older than the position's and has already caused a validation
        self._doubted_epoch: int | None = None
        self._preferred_read_replica: int | None = None
        self._preferred_read_replica_expiration: float | None = None

    # -- position

    @property
    def lag(self) -> int | None:
        """The number of offsets between the position and the end of what this consumer may read; None while either is
        unknown."""
        end = self.high_watermark if self.last_stable_offset is None else self.last_stable_offset
        if end is None or self._position is None:
            return None
        return max(0, end - self._position.offset)

    def begin(self, committed: OffsetAndMetadata, former: Progress | None, *, own: bool) -> OffsetAndMetadata:
        start = super().begin(committed, former, own=own)
        self._set(start)
        self._fetch_from_here()
        return start

    def seek(self, position: OffsetAndMetadata) -> None:
        """Sets the position, drops records that were read ahead, and ends a reset or validation in progress."""
        super().seek(position)
        self._fetch_from_here()

    def complete_reset(self, position: OffsetAndMetadata, current_leader_epoch: int | None) -> None:
        """Sets the position that the awaited reset has found in the log of the leader with this epoch."""
        self.reset_to(position, before=self.reset_from)
        self._fetch_from_here()
        if current_leader_epoch is not None:
            # the position comes from the log of this leader, so it needs no comparison with that log
            self._current_leader_epoch = max(self._current_leader_epoch, current_leader_epoch)

    def cut_to(self, position: OffsetAndMetadata) -> None:
        super().cut_to(position)
        self._fetch_from_here()

    def hand_back(self) -> None:
        before = self._position
        super().hand_back()
        if self._position is not before:
            self.fetch_again()

    @property
    def can_commit(self) -> bool:
        # past the truncation, the position belongs to records that the log no longer has
        return self._position is not None and self.fetch_state is not FetchState.TRUNCATED

    def fetch_again(self) -> None:
        """Drops the records that were read ahead. The position stays, with its leader epoch and topic id."""
        self.epoch = self.record.next_epoch()
        self.record.version += 1

    # -- gates

    def doubt_log(self) -> None:
        """Stops deliveries and commits until `end_doubt`: the topic may have been created again."""
        if self._position is not None:
            self.in_doubt += 1
            self.record.version += 1

    def end_doubt(self) -> None:
        self.in_doubt = 0
        self.record.version += 1

    def drain(self) -> None:
        super().drain()
        self.fetch_again()

    def is_fetchable(self) -> bool:
        """Returns whether records may be delivered.

        The position must be valid, and the partition must be neither paused nor held back nor draining nor in doubt
        nor held by a handler that takes no more.
        """
        return self.fetch_state is FetchState.FETCHING and self.is_wanted()

    def is_wanted(self) -> bool:
        """Like `is_fetchable`, but does not check the position."""
        if self.record.is_paused(self) or self.in_doubt or self.phase is not Phase.ACTIVE:
            return False
        return not self.holds or not any(hold.full for hold in self.holds)

    # -- resets

    @property
    def awaiting_reset(self) -> bool:
        return self.fetch_state is FetchState.AWAIT_RESET

    def reset(self, timestamp: int) -> None:
        """Drops the position. The partition then awaits the offset that ListOffsets returns for `timestamp`."""
        if self._position is not None:
            self.reset_from = self._position.offset
        self._move(FetchState.AWAIT_RESET)
        self.reset_strategy = timestamp
        self._unset()
        self.clear_preferred_read_replica()
        self.fetch_again()

    def lose_log(self) -> None:
        super().lose_log()
        self.reset_from = None
        if self._position is None:
            self.topic_id = None

    # -- validation of the position (KIP-320)

    @property
    def awaiting_validation(self) -> bool:
        return self.fetch_state is FetchState.AWAIT_VALIDATION

    def maybe_validate_position(self, current_leader_epoch: int | None) -> bool:
        """Starts a validation if the leader is newer than the leader whose log was compared with the position.

        Returns whether it started one. Without a position, or if an epoch is unknown, there is nothing to compare.
        """
        if self.position is None or current_leader_epoch is None or current_leader_epoch < 0:
            return False
        # the position is valid up to the epoch of the last fetched record, and of the last validation
        if current_leader_epoch <= max(self._current_leader_epoch, self.position.leader_epoch):
            return False
        self._current_leader_epoch = current_leader_epoch
        if self.position.leader_epoch < 0:
            return False
        # the former leader chose the replica
        self.clear_preferred_read_replica()
        self._validate()
        return True

    def doubt_position(self, current_leader_epoch: int | None) -> bool:
        """Starts a validation if the leader is older than the last record that was read.

        Returns whether it started one. Either the metadata is old, or the topic was created again.
        """
        if self.position is None or current_leader_epoch is None or current_leader_epoch < 0:
            return False
        if current_leader_epoch >= self.position.leader_epoch or current_leader_epoch == self._doubted_epoch:
            return False
        self._doubted_epoch = current_leader_epoch
        self._validate()
        return True

    def request_position_validation(self) -> bool:
        """Starts a validation after a broker has rejected the leader epoch as fenced or unknown.

        Returns whether it started one. The preferred replica stays, because the error does not concern it.
        """
        if self.position is None or self.position.leader_epoch < 0:
            return False
        self._validate()
        return True

    def complete_validation(self) -> None:
        """Ends the validation: the leader's log contains the records before the position."""
        self._move(FetchState.FETCHING)
        self.record.version += 1

    def truncated(self) -> None:
        """Stops delivery until a seek: the log ends before the position, and no reset strategy applies."""
        self._move(FetchState.TRUNCATED)
        self.record.version += 1

    def recreated(self) -> None:
        """Stops delivery until a seek: the topic was created again, and no reset strategy applies."""
        self._validate()
        self.truncated()

    # -- preferred read replica (KIP-392)

    def preferred_read_replica(self) -> int | None:
        """Returns the node to fetch from instead of the leader; None without one, or after its lease has ended."""
        expiry = self._preferred_read_replica_expiration
        if expiry is not None and self._clock() >= expiry:
            self.clear_preferred_read_replica()
        return self._preferred_read_replica

    def update_preferred_read_replica(self, node_id: int, expiration_time: float) -> bool:
        """Sets the node to fetch from until `expiration_time`. Returns whether it differs from the former node.

        The same node keeps its earlier deadline, so that the consumer fetches from the leader now and then.
        """
        if node_id == self._preferred_read_replica:
            return False
        self._preferred_read_replica = node_id
        self._preferred_read_replica_expiration = expiration_time
        self.record.version += 1
        return True

    def clear_preferred_read_replica(self) -> int | None:
        """Makes the leader the node to fetch from. Returns the former replica; None if there was none."""
        previous = self._preferred_read_replica
        self._preferred_read_replica = None
        self._preferred_read_replica_expiration = None
        if previous is not None:
            self.record.version += 1
        return previous

    # -- inside

    def _fetch_from_here(self) -> None:
        """Drops records that were read ahead, and ends a reset or validation in progress."""
        self._move(FetchState.FETCHING)
        # these epochs were compared with the former position
        self._current_leader_epoch = -1
        self._doubted_epoch = None
        self.clear_preferred_read_replica()
        self.fetch_again()

    def _move(self, to: FetchState) -> None:
        if to not in MOVES[self.fetch_state]:
            from allocator.core.kafka_errors import OutOfTurn

            raise OutOfTurn(f"a partition that is {self.fetch_state.name} cannot become {to.name}")
        self.fetch_state = to
        self.retry_at = -math.inf
        self.reset_strategy = None

    def _validate(self) -> None:
        self._move(FetchState.AWAIT_VALIDATION)
        # the log of the records that were read ahead may have been truncated
        self.fetch_again()
