"""Where each assigned partition stands, and which may be read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from allocator.errors import NotAssigned
from allocator.subscription.errors import OutOfTurn
from allocator.subscription.partition import Changes, TopicPartitionState, as_position
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["Positions"]

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

    def move_partition_to_end(self, partition: TopicPartition) -> None:
        """Let the others come first in `fetchable_partitions` from now on. Unassigned: nothing happens."""
        if partition in self.assignment:
            self.assignment[partition] = self.assignment.pop(partition)

    # -- what may be fetched

    def pause(self, partition: TopicPartition) -> None:
        """Hand out nothing of it until `resume`; the position stays."""
        self._of(partition).pause()

    def resume(self, partition: TopicPartition) -> None:
        self._of(partition).resume()

    def is_paused(self, partition: TopicPartition) -> bool:
        state = self.assignment.get(partition)
        return state is not None and state.paused

    def paused_partitions(self) -> set[TopicPartition]:
        return {tp for tp, state in self.assignment.items() if state.paused}

    def is_fetchable(self, partition: TopicPartition) -> bool:
        """Assigned, with a position that needs no validation, not paused, not about to be revoked."""
        state = self.assignment.get(partition)
        return state is not None and state.is_fetchable()

    def fetchable_partitions(self) -> list[TopicPartition]:
        """In the order of assignment."""
        return [tp for tp, state in self.assignment.items() if state.is_fetchable()]

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

    def has_all_fetch_positions(self) -> bool:
        """Whether every assigned partition has a position (True when none is assigned)."""
        return all(state.has_valid_position for state in self.assignment.values())

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
