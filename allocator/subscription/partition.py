"""The state of one assigned partition."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Optional

from allocator.errors import ConfigError
from allocator.subscription.kinds import EARLIEST, LATEST, MOVES, FetchState, ResetStrategy, reset_timestamp
from allocator.subscription.loss import OutOfTurn, topic_of_offset
from allocator.types import OffsetAndMetadata

__all__ = [
    "EARLIEST",
    "LATEST",
    "Changes",
    "PartitionState",
    "ResetStrategy",
    "TopicPartitionState",
    "reset_timestamp",
]


class Changes:
    """Counts what happens to the partitions of one consumer."""

    __slots__ = ("_epochs", "version")

    def __init__(self) -> None:
        self.version = 0
        self._epochs = itertools.count(1)

    def next_epoch(self) -> int:
        """Never the same number twice, for no partition."""
        return next(self._epochs)


class TopicPartitionState:
    """Position, gates, marks of the log and preferred replica of one assigned partition; names are kafka-python's.

    Guarantee: `phase` moves as `kinds.MOVES` says and in no other way, and there is a position exactly when the phase
    has one. `epoch` changes whenever what was read ahead for the partition has become worthless (new assignment, seek,
    reset, a leader that may have cut the log): an answer that was asked for under another epoch is to be dropped.

    `changes` is shared by all partitions of a consumer, `clock` gives seconds.
    """

    __slots__ = (
        "_changes",
        "_clock",
        "_current_leader_epoch",
        "_doubted_epoch",
        "_pending_revocation",
        "_position",
        "_preferred_read_replica",
        "_preferred_read_replica_expiration",
        "drop_pending_record_batch",
        "epoch",
        "fence",
        "high_watermark",
        "last_stable_offset",
        "next_allowed_retry_time",
        "paused",
        "phase",
        "reset_strategy",
        "topic_id",
    )

    def __init__(self, changes: Changes | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._changes = changes or Changes()
        self._clock = clock
        self.epoch = self._changes.next_epoch()
        self.phase = FetchState.INITIALIZING
        self.paused = False
        self._pending_revocation = False
        self._position: OffsetAndMetadata | None = None
        self.reset_strategy: int | None = None
        """What ListOffsets is to be asked for; None when no reset is awaited."""
        self.next_allowed_retry_time: float | None = None
        """Of the reset or validation under way, on the clock."""
        self.drop_pending_record_batch = False
        """Set by each seek. Whoever compares epochs needs it not; it is there for code that knows kafka-python's."""
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        # the newest leader whose log the position is known to fit, which may be newer than the record before the
        # position: without it, a position at an old record would be validated again for ever
        self._current_leader_epoch = -1
        # an older leader epoch that was announced since, because of which the position was compared with the log
        self._doubted_epoch: int | None = None
        self.fence: int | None = None
        """The number of this member's ownership; None where no membership has said it."""
        self.topic_id: Any = None
        """Of the topic that the position belongs to; None: not known (yet)."""
        self._preferred_read_replica: int | None = None
        self._preferred_read_replica_expiration: float | None = None

    # -- position

    @property
    def position(self) -> OffsetAndMetadata | None:
        """The next record to hand out. Setting it moves on within what was read: read-ahead stays valid.

        Setting raises `OutOfTurn` while there is none (a revoked or resetting partition must not get one by
        accident), `TypeError` for anything but an OffsetAndMetadata.
        """
        return self._position

    @position.setter
    def position(self, offset: Optional[OffsetAndMetadata]) -> None:
        if self._position is None:
            raise OutOfTurn("a partition without a position cannot move on; seek it first")
        if not isinstance(offset, OffsetAndMetadata):
            raise TypeError(f"a position is an OffsetAndMetadata, not {offset!r}")
        self._position = offset

    @property
    def has_valid_position(self) -> bool:
        return self._position is not None

    def is_missing_position(self) -> bool:
        """Neither a position nor a reset that will bring one."""
        return self.phase is FetchState.INITIALIZING

    def seek(self, offset: int | OffsetAndMetadata) -> None:
        """Go to `offset`; a bare int has no metadata and no leader epoch. A reset or validation under way is over.

        Raises `TypeError` for anything else, `ConfigError` (a `ValueError`) below 0.
        """
        position = as_position(offset)
        self._move(FetchState.FETCHING)
        self._position = position
        self.drop_pending_record_batch = True
        # what was compared with a leader's log was another position
        self._current_leader_epoch = -1
        self._doubted_epoch = None
        self.topic_id = topic_of_offset(position)
        self.clear_preferred_read_replica()
        self._void()

    # -- gates

    @property
    def highwater(self) -> int | None:
        """kafka-python's name of `high_watermark`."""
        return self.high_watermark

    @highwater.setter
    def highwater(self, offset: Optional[int]) -> None:
        self.high_watermark = offset

    @property
    def pending_revocation(self) -> bool:
        """Whether it is about to be taken away (KIP-429)."""
        return self._pending_revocation

    def pause(self) -> None:
        self.paused = True
        self._changes.version += 1

    def resume(self) -> None:
        self.paused = False
        self._changes.version += 1

    def mark_pending_revocation(self, val: bool = True) -> None:
        """Hand out nothing more of it. Over when an assignment keeps it, or drops this object."""
        self._pending_revocation = val
        self._changes.version += 1

    def is_fetchable(self) -> bool:
        """Whether its records may be handed out: a position that needs no validation, no pause, no revocation."""
        return self.phase is FetchState.FETCHING and not self.paused and not self._pending_revocation

    # -- resets

    @property
    def awaiting_reset(self) -> bool:
        return self.phase is FetchState.AWAIT_RESET

    def reset(self, strategy: ResetStrategy) -> None:
        """Give the position up and wait for the one that `strategy` finds. Raises `ConfigError` for none."""
        timestamp = reset_timestamp(strategy)
        if timestamp is None:
            raise ConfigError("a reset by the strategy 'none' finds no offset; give another one, or seek")
        self._move(FetchState.AWAIT_RESET)
        self.reset_strategy = timestamp
        self._position = None
        self.topic_id = None
        self.clear_preferred_read_replica()
        self._void()

    def is_reset_allowed(self, now: float | None = None) -> bool:
        """Whether a reset may be tried now: strictly after the time set by the last try."""
        return self._is_allowed(now)

    def set_reset_pending(self, next_allowed_retry_time: float) -> None:
        """A reset was asked for; no second try before that time. Nothing happens when no reset is awaited."""
        if self.awaiting_reset:
            self.next_allowed_retry_time = next_allowed_retry_time

    def reset_failed(self, next_allowed_retry_time: float) -> None:
        """It failed; try again after that time. Nothing happens when it is not awaited any more."""
        self.set_reset_pending(next_allowed_retry_time)

    # -- validation of the position (KIP-320)

    @property
    def awaiting_validation(self) -> bool:
        return self.phase is FetchState.AWAIT_VALIDATION

    def maybe_validate_position(self, current_leader_epoch: int | None) -> bool:
        """Close the gate if the leader is newer than the position is known to fit. Returns whether it was closed now.

        Not without a position, nor when an epoch is unknown: then there is nothing to compare.
        """
        if self._position is None or current_leader_epoch is None or current_leader_epoch < 0:
            return False
        # a record that was fetched proves its own epoch, a validation that of the leader it asked
        if current_leader_epoch <= max(self._current_leader_epoch, self._position.leader_epoch):
            return False
        self._current_leader_epoch = current_leader_epoch
        if self._position.leader_epoch < 0:
            return False
        # the replica was chosen by a leader that is no more
        self.clear_preferred_read_replica()
        self._validate()
        return True

    def doubt_position(self, current_leader_epoch: int | None) -> bool:
        """Close the gate if the leader is older than the last record read. Returns whether it was closed now.

        Either the metadata is old, or the topic was created again: the leader's log tells.
        """
        if self._position is None or current_leader_epoch is None or current_leader_epoch < 0:
            return False
        if current_leader_epoch >= self._position.leader_epoch or current_leader_epoch == self._doubted_epoch:
            return False
        self._doubted_epoch = current_leader_epoch
        self._validate()
        return True

    def request_position_validation(self) -> bool:
        """Close the gate because a broker named our leader epoch fenced or unknown. Returns whether it is closed.

        The preferred replica stays: such an answer says nothing about it.
        """
        if self._position is None or self._position.leader_epoch < 0:
            return False
        self._validate()
        return True

    def is_validation_allowed(self, now: float | None = None) -> bool:
        """Whether a validation may be tried now: strictly after the time set by the last try."""
        return self._is_allowed(now)

    def set_validation_pending(self, next_allowed_retry_time: float) -> None:
        """A validation was asked for; no second try before that time. Nothing happens when none is awaited."""
        if self.awaiting_validation:
            self.next_allowed_retry_time = next_allowed_retry_time

    def validation_failed(self, next_allowed_retry_time: float) -> None:
        """It failed; try again after that time. Nothing happens when it is not awaited any more."""
        self.set_validation_pending(next_allowed_retry_time)

    def complete_validation(self, validated_position: OffsetAndMetadata | None = None) -> bool:
        """Open the gate, at `validated_position` if the log demands another one. Returns whether it was closed.

        Nothing happens when no validation is awaited: a seek or reset came first, and its position counts.
        """
        if validated_position is not None and not isinstance(validated_position, OffsetAndMetadata):
            raise TypeError(f"a position is an OffsetAndMetadata, not {validated_position!r}")
        if self.phase not in (FetchState.AWAIT_VALIDATION, FetchState.TRUNCATED):
            return False
        before = self._position
        self._move(FetchState.FETCHING)
        if validated_position is not None:
            self._position = validated_position
            if before is None or before.offset != validated_position.offset:
                self._void()
        self._changes.version += 1
        return True

    def truncated(self) -> None:
        """The log does not reach the position, and no strategy says where to go on instead: keep the gate closed."""
        self._move(FetchState.TRUNCATED)
        self._changes.version += 1

    def recreated(self) -> None:
        """The position is one of a topic that is gone, and no strategy says where to go on: keep the gate closed."""
        self._validate()
        self.truncated()

    # -- preferred read replica (KIP-392)

    def preferred_read_replica(self) -> int | None:
        """The node to fetch from instead of the leader; None when there is none, or its lease is over."""
        expiry = self._preferred_read_replica_expiration
        if expiry is not None and self._clock() >= expiry:
            self.clear_preferred_read_replica()
        return self._preferred_read_replica

    def update_preferred_read_replica(self, node_id: int | None, expiration_time: float | None) -> bool:
        """The leader named a replica, to be used until `expiration_time` on the clock; below 0 or None: no replica.

        Returns whether it is another one than before. The same one keeps its old deadline, so that the leader is
        asked again from time to time.
        """
        if node_id is None or node_id < 0:
            return self.clear_preferred_read_replica() is not None
        if node_id == self._preferred_read_replica:
            return False
        self._preferred_read_replica = node_id
        self._preferred_read_replica_expiration = expiration_time
        self._changes.version += 1
        return True

    def clear_preferred_read_replica(self) -> int | None:
        """Back to the leader, as after an error of the replica. Returns the replica that it was."""
        previous = self._preferred_read_replica
        self._preferred_read_replica = None
        self._preferred_read_replica_expiration = None
        if previous is not None:
            self._changes.version += 1
        return previous

    # -- inside

    def _move(self, to: FetchState) -> None:
        if to not in MOVES[self.phase]:
            raise OutOfTurn(f"a partition that is {self.phase.name} cannot become {to.name}")
        self.phase = to
        self.next_allowed_retry_time = None
        self.reset_strategy = None

    def _validate(self) -> None:
        self._move(FetchState.AWAIT_VALIDATION)
        # what was read ahead came from a log that may have been cut after the position
        self._void()

    def _void(self) -> None:
        self.epoch = self._changes.next_epoch()
        self._changes.version += 1

    def _is_allowed(self, now: float | None) -> bool:
        if self.next_allowed_retry_time is None:
            return True
        return self.next_allowed_retry_time < (self._clock() if now is None else now)


PartitionState = TopicPartitionState


def as_position(offset: Any, where: str = "") -> OffsetAndMetadata:
    """An offset as a position. Raises `TypeError` for what is none, `ConfigError` below 0, both naming `where`."""
    if isinstance(offset, int) and not isinstance(offset, bool):
        offset = OffsetAndMetadata(offset, "", -1)
    elif not isinstance(offset, OffsetAndMetadata):
        raise TypeError(f"{where}an offset is an int or OffsetAndMetadata, not {offset!r}")
    if offset.offset < 0:
        raise ConfigError(f"{where}offset {offset.offset} is below 0; to go to an end of the log, request a reset")
    return offset
