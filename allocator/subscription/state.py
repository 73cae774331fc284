"""Subscription, assignment and positions of one consumer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

from allocator.errors import ConfigError
from allocator.subscription.choice import Choice
from allocator.subscription.kinds import SubscriptionType
from allocator.subscription.partition import TopicPartitionState
from allocator.subscription.strategy import ResetStrategy
from allocator.subscription.validation import Validations
from allocator.types import TopicPartition

__all__ = ["SubscriptionState", "SubscriptionType"]


class SubscriptionState(Choice, Validations):
    """The one place where consumer, membership and fetch meet; method names are kafka-python's.

    Guarantee: partitions that stay through a reassignment keep their state (position, pause, epoch, replica) and
    their place in the fetch order; new ones start fresh; a call that raises has changed nothing.

    Not for more than one thread, so there is no lock. `clock` gives seconds and only matters to retry times and the
    leases of replicas. `shuffle` orders, in place, the partitions that a group newly assigns: at random, so that
    consumers that live only shortly do not all read the same partition first; None leaves them as they were given.
    """

    def __init__(
        self,
        offset_reset_strategy: ResetStrategy = "earliest",
        *,
        clock: Callable[[], float] = time.monotonic,
        shuffle: Callable[[list[TopicPartition]], None] | None = random.shuffle,
    ) -> None:
        Choice.__init__(self)
        Validations.__init__(self, offset_reset_strategy, clock)
        self._shuffle = shuffle
        self._user_assignment: frozenset[TopicPartition] = frozenset()

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment by the user's own choice, in his order. No group has a say in it, and none is told.

        The same partitions again change nothing. Raises `OutOfTurn` after `subscribe`, `TypeError` for what is no
        partition.
        """
        wanted = _partitions(partitions)
        self._set_subscription_type(SubscriptionType.USER_ASSIGNED)
        if self._user_assignment != frozenset(wanted):
            self._user_assignment = frozenset(wanted)
            self._assign(wanted, None)

    def assign_from_subscribed(self, assignments: Iterable[TopicPartition]) -> None:
        """Replace the assignment by the group's. Caller: membership, with the full set, not a difference.

        Raises `OutOfTurn` without a subscription, `ConfigError` (a `ValueError`) for a topic that is not subscribed,
        `TypeError` for what is no partition.
        """
        self._need_auto()
        wanted = _partitions(assignments)
        for tp in wanted:
            if not self._is_subscribed(tp.topic):
                raise ConfigError(f"{tp.topic}:{tp.partition} was assigned, but its topic is not subscribed")
        self._assign(wanted, self._shuffle)

    def unsubscribe(self) -> None:
        """Give up topics, pattern and every partition; afterwards any kind of subscription may be chosen.

        The listener stays until the next `subscribe`, the topics of the group until they are reset.
        """
        self._forget_choice()
        self._user_assignment = frozenset()
        self.assignment = {}
        self._changes.version += 1

    def _assign(self, wanted: list[TopicPartition], shuffle: Callable[[list[TopicPartition]], None] | None) -> None:
        keep = set(wanted)
        assignment = {tp: state for tp, state in self.assignment.items() if tp in keep}
        for state in assignment.values():
            # they were marked because nobody could know that they would stay
            state.mark_pending_revocation(False)
        new = [tp for tp in wanted if tp not in assignment]
        if shuffle is not None:
            shuffle(new)
        for tp in new:
            assignment[tp] = TopicPartitionState(self._changes, self._clock)
        self.assignment = assignment
        self._changes.version += 1


def _partitions(given: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Each once, in the order given."""
    several = list(given)
    for tp in several:
        if not isinstance(tp, TopicPartition):
            raise TypeError(f"a partition is a TopicPartition, not {tp!r}")
    return list(dict.fromkeys(several))
