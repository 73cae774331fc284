"""Subscription, assignment and positions of one consumer."""

from __future__ import annotations

import enum
import itertools
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from allocator.errors import ConfigError, IllegalState, NoOffsetsError, NotAssigned
from allocator.subscription.partition import PartitionState, ResetStrategy, reset_timestamp
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["SubscriptionState", "SubscriptionType"]

_ONE_WAY = (
    "the consumer is already used by {now}; topics, a pattern and assigned partitions exclude each other, "
    "so unsubscribe first"
)
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class SubscriptionType(enum.IntEnum):
    """How the partitions are chosen."""

    NONE = 0
    AUTO_TOPICS = 1
    AUTO_PATTERN = 2
    USER_ASSIGNED = 3


def _check_topic(name: Any) -> None:
    # the rule of Kafka's own Topic.validate; a wrong name would only fail much later, at the broker
    if not isinstance(name, str):
        raise TypeError(f"a topic name is a string, not {name!r}")
    if name in (".", "..") or not _TOPIC_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no topic name: 1 to 249 of letters, digits, '.', '_' and '-', and not '.' or '..'"
        )


class SubscriptionState:
    """The one place where consumer, membership and fetch meet; method names are kafka-python's.

    Guarantee: partitions that stay through a reassignment keep their state (position, pause, epoch); new ones start
    fresh; arguments are checked before anything changes.

    Not for more than one thread. `clock` gives seconds and only matters to the retry times of resets.
    Methods that name a partition raise `NotAssigned` (a `KeyError`) when it is not assigned, the `is_...` ones say
    False instead.
    """

    def __init__(
        self, offset_reset_strategy: ResetStrategy = "earliest", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._default_reset = reset_timestamp(offset_reset_strategy)
        self._clock = clock
        self._epochs = itertools.count(1)
        self._group_subscription: set[str] = set()
        self._user_assignment: frozenset[TopicPartition] = frozenset()
        self.subscription: frozenset[str] | None = None
        self.subscription_type = SubscriptionType.NONE
        self.subscribed_pattern: re.Pattern[str] | None = None
        self.rebalance_listener: Any = None
        self.assignment: dict[TopicPartition, PartitionState] = {}
        self.version = 0
        """Grows with each change of assignment, pause, seek or reset: compare to know if anything is new."""

    # -- what is subscribed

    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None, listener: Any = None) -> None:
        """Choose topics by name or by regular expression (matched at the start of the name), replacing what was.

        The assignment stays until the next rebalance changes it. Raises `ConfigError` for neither or a bad name or
        expression, `IllegalState` for both or after `assign_from_user`, `TypeError` for a string as `topics`.
        """
        if not topics and not pattern:
            raise ConfigError("subscribe needs topics or a pattern")
        if topics and pattern:
            raise IllegalState("subscribe takes topics or a pattern, not both")
        if pattern:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"topic pattern {pattern!r}: {error}") from error
            self._claim_type(SubscriptionType.AUTO_PATTERN)
            self.subscribed_pattern = compiled
            # filled by change_subscription once metadata says which topics match
            self.subscription = frozenset()
        else:
            if isinstance(topics, str) or not isinstance(topics, Sequence):
                raise TypeError(f"topics is a list of names, not {topics!r}")
            for topic in topics:
                _check_topic(topic)
            self._claim_type(SubscriptionType.AUTO_TOPICS)
            self.change_subscription(topics)
        self.rebalance_listener = listener

    def change_subscription(self, topics: Iterable[str]) -> None:
        """Replace the topics within the kind of subscription that there is. Caller: consumer, metadata watcher."""
        self._need_auto()
        wanted = frozenset((topics,) if isinstance(topics, str) else topics)
        for topic in wanted:
            _check_topic(topic)
        self.subscription = wanted
        self._group_subscription |= wanted

    def group_subscribe(self, topics: Iterable[str]) -> None:
        """Add the topics of the other members. Caller: the group's leader, whose metadata must cover them all."""
        self._need_auto()
        self._group_subscription.update(topics)

    def reset_group_subscription(self) -> None:
        """Back to this member's own topics. Caller: a member that leads no more."""
        self._need_auto()
        if self.subscription is None:
            raise IllegalState("nothing is subscribed")
        self._group_subscription &= self.subscription

    def group_subscription(self) -> frozenset[str]:
        """The topics whose metadata this member should watch."""
        return frozenset(self._group_subscription)

    def unsubscribe(self) -> None:
        """Give up topics, pattern and every partition; afterwards any kind of subscription may be chosen."""
        self.subscription = None
        self.subscribed_pattern = None
        self.subscription_type = SubscriptionType.NONE
        self._user_assignment = frozenset()
        self.assignment = {}
        self.version += 1

    def partitions_auto_assigned(self) -> bool:
        """Whether a group assigns the partitions (False also while nothing is chosen)."""
        return self.subscription_type in (SubscriptionType.AUTO_TOPICS, SubscriptionType.AUTO_PATTERN)

    # -- what is assigned

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment by the user's own choice. Raises `IllegalState` after `subscribe`."""
        wanted = list(dict.fromkeys(partitions))
        self._claim_type(SubscriptionType.USER_ASSIGNED)
        if self._user_assignment != frozenset(wanted):
            self._user_assignment = frozenset(wanted)
            self._assign(wanted)

    def assign_from_subscribed(self, assignments: Iterable[TopicPartition]) -> None:
        """Replace the assignment by the group's. Caller: membership, with the full set, not a difference.

        New partitions come in random order, so that short-lived consumers do not all read the same one first.
        Raises `ConfigError` for a topic that is not subscribed.
        """
        self._need_auto()
        wanted = list(dict.fromkeys(assignments))
        for tp in wanted:
            if not self._subscribed(tp.topic):
                raise ConfigError(f"{tp.topic}:{tp.partition} was assigned, but its topic is not subscribed")
        random.shuffle(wanted)
        self._assign(wanted)

    def assigned_partitions(self) -> set[TopicPartition]:
        """A copy of the assigned set."""
        return set(self.assignment)

    def is_assigned(self, partition: TopicPartition) -> bool:
        return partition in self.assignment

    def mark_pending_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of them (KIP-429); ended by the next assignment. Unassigned ones are skipped."""
        for tp in partitions:
            if tp in self.assignment:
                self.assignment[tp].pending_revocation = True
        self.version += 1

    def move_partition_to_end(self, partition: TopicPartition) -> None:
        """Let the others come first in `fetchable_partitions` from now on."""
        if partition in self.assignment:
            self.assignment[partition] = self.assignment.pop(partition)

    # -- what may be fetched

    def pause(self, partition: TopicPartition) -> None:
        """Hand out nothing of it until `resume`; the position stays."""
        self._of(partition).paused = True
        self.version += 1

    def resume(self, partition: TopicPartition) -> None:
        self._of(partition).paused = False
        self.version += 1

    def is_paused(self, partition: TopicPartition) -> bool:
        state = self.assignment.get(partition)
        return state is not None and state.paused

    def paused_partitions(self) -> set[TopicPartition]:
        return {tp for tp, state in self.assignment.items() if state.paused}

    def is_fetchable(self, partition: TopicPartition) -> bool:
        """Assigned, with a position, not paused, not about to be revoked."""
        state = self.assignment.get(partition)
        return state is not None and state.is_fetchable()

    def fetchable_partitions(self) -> list[TopicPartition]:
        """In the order of assignment."""
        return [tp for tp, state in self.assignment.items() if state.is_fetchable()]

    # -- positions

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Read on from `offset`; what was read ahead is void, a reset under way is over."""
        if isinstance(offset, int) and not isinstance(offset, bool):
            offset = OffsetAndMetadata(offset, "", -1)
        elif not isinstance(offset, OffsetAndMetadata):
            raise TypeError(f"an offset is an int or OffsetAndMetadata, not {offset!r}")
        if offset.offset < 0:
            raise ConfigError(f"{partition.topic}:{partition.partition}: offset {offset.offset} is below 0")
        self._of(partition).seek(offset, next(self._epochs))
        self.version += 1

    def position(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The offset of the next record to hand out; None until it is known."""
        return self._of(partition).position

    def update_position(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Move on after handing records out. Caller: consumer. Raises `IllegalState` without a position."""
        self._of(partition).advance(OffsetAndMetadata(offset, "", leader_epoch))

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

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """The offset after the last record that consumers may read, as of the last fetch; None before it."""
        return self._of(partition).high_watermark

    def update_high_watermark(self, partition: TopicPartition, offset: int) -> None:
        """Caller: fetch. A partition that is gone meanwhile is skipped."""
        if partition in self.assignment:
            self.assignment[partition].high_watermark = offset

    # -- resets

    def has_default_offset_reset_policy(self) -> bool:
        """Whether a partition without an offset has a strategy to find one."""
        return self._default_reset is not None

    def request_offset_reset(
        self, partition: TopicPartition, offset_reset_strategy: ResetStrategy | None = None
    ) -> None:
        """Give the position up and find a new one, by the default strategy if none is given.

        Raises `NoOffsetsError` when that is "none".
        """
        given = offset_reset_strategy is not None
        strategy = reset_timestamp(offset_reset_strategy) if offset_reset_strategy is not None else self._default_reset
        state = self._of(partition)
        if strategy is None:
            where = "the given strategy" if given else "auto_offset_reset"
            raise NoOffsetsError(
                f"{partition.topic}:{partition.partition} has no offset to start at and {where} is 'none'; seek it"
            )
        state.reset(strategy, next(self._epochs))
        self.version += 1

    def reset_missing_positions(self) -> None:
        """Request a reset of every partition that has no position.

        Raises one `NoOffsetsError` naming them all when the default strategy is "none".
        """
        missing = sorted(self.missing_fetch_positions())
        if missing and self._default_reset is None:
            names = ", ".join(f"{tp.topic}:{tp.partition}" for tp in missing)
            raise NoOffsetsError(f"no offset to start at and auto_offset_reset is 'none', seek them: {names}")
        for tp in missing:
            self.request_offset_reset(tp)

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
        for tp in partitions:
            self._of(tp).next_allowed_retry_time = next_allowed_reset_time

    def reset_failed(self, partitions: Iterable[TopicPartition], next_retry_time: float) -> None:
        """It failed; try again after that time. Partitions that are gone are skipped. Caller: fetch."""
        for tp in partitions:
            if tp in self.assignment:
                self.assignment[tp].next_allowed_retry_time = next_retry_time

    def complete_reset(self, partition: TopicPartition, offset: int, epoch: int) -> bool:
        """Adopt what a reset found, unless a seek, another reset or a reassignment came since `epoch`. Caller: fetch.

        Returns whether it was adopted.
        """
        state = self.assignment.get(partition)
        if state is None or not state.awaiting_reset or state.epoch != epoch:
            return False
        self.seek(partition, offset)
        return True

    # -- inside

    def _of(self, partition: TopicPartition) -> PartitionState:
        try:
            return self.assignment[partition]
        except KeyError:
            raise NotAssigned(partition) from None

    def _subscribed(self, topic: str) -> bool:
        if self.subscription is not None and topic in self.subscription:
            return True
        # the group's leader may know a matching topic before this member's metadata does
        return self.subscribed_pattern is not None and self.subscribed_pattern.match(topic) is not None

    def _claim_type(self, kind: SubscriptionType) -> None:
        if self.subscription_type not in (SubscriptionType.NONE, kind):
            raise IllegalState(_ONE_WAY.format(now=self.subscription_type.name))
        self.subscription_type = kind

    def _need_auto(self) -> None:
        if not self.partitions_auto_assigned():
            raise IllegalState(_ONE_WAY.format(now=self.subscription_type.name))

    def _assign(self, wanted: Sequence[TopicPartition]) -> None:
        keep = set(wanted)
        assignment = {tp: state for tp, state in self.assignment.items() if tp in keep}
        for state in assignment.values():
            state.pending_revocation = False
        for tp in wanted:
            if tp not in assignment:
                assignment[tp] = PartitionState(next(self._epochs))
        self.assignment = assignment
        self.version += 1
