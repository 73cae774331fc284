"""The subscription and the assignment: the state in which the rooms meet."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from allocator.core.errors import ConfigError
from allocator.core.subscription.kinds import KINDS, ResetStrategy, SubscriptionType, checked
from allocator.core.subscription.listener import check_listener
from allocator.core.subscription.loss import OutOfTurn
from allocator.core.subscription.positions import Resets
from allocator.core.types import TopicPartition

__all__ = ["Choice", "SubscriptionState", "SubscriptionType"]

log = logging.getLogger(__name__)


class Choice:
    """Topics by name, topics by pattern, or partitions by hand: only one of them at a time.

    Guarantee: a call that raises changes nothing.
    """

    def __init__(self) -> None:
        self.subscription: set[str] | None = None
        """The topics of this member. Empty while a pattern matches none; None without a subscription.

        A change replaces the set, so a caller may keep an earlier one.
        """
        self.subscription_type = SubscriptionType.NONE
        self.subscribed_pattern: re.Pattern[str] | None = None
        self.rebalance_listener: Any = None

    def subscribe(
        self, topics: Sequence[str] = (), pattern: str | re.Pattern[str] | None = None, listener: Any = None
    ) -> None:
        """Subscribe to topics by name, or by a regular expression (matched at the start of the name). Replaces the
        earlier subscription.

        The assignment stays until the next rebalance. The listener is replaced too, also by None. The group rebalances
        when a topic is created, is deleted or gets partitions, and when members join or leave.

        Raises `ConfigError` (a `ValueError`) for a bad name or expression, or if both are missing; `OutOfTurn` if both
        are given, or after `assign_from_user`; `TypeError` for topics that are not a collection, or a listener of a
        wrong type.
        """
        if not topics and not pattern:
            raise ConfigError("subscribe needs topics or a pattern")
        if topics and pattern:
            raise OutOfTurn("subscribe takes topics or a pattern, not both")
        check_listener(listener)
        if pattern:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"topic pattern {pattern!r}: {error}") from error
            self._set_subscription_type(SubscriptionType.AUTO_PATTERN)
            self.subscribed_pattern = compiled
            # filled by change_subscription once metadata says which topics match
            self.subscription = set()
        else:
            if isinstance(topics, str) or not isinstance(topics, Sequence):
                raise TypeError(f"topics is a list of names, not {topics!r}")
            wanted = checked(topics)
            self._set_subscription_type(SubscriptionType.AUTO_TOPICS)
            self.change_subscription(wanted)
        self.rebalance_listener = listener

    def change_subscription(self, topics: str | Iterable[str]) -> None:
        """Replace the topics, but not the kind of subscription. Caller: consumer, metadata watcher.

        Raises `OutOfTurn` without a subscription, `TypeError` or `ConfigError` (a `ValueError`) for a bad name.
        """
        self._need_auto()
        wanted = checked(topics)
        if wanted == self.subscription:
            # at debug level: a watcher says what it found each time it looks
            log.debug("subscribed to the same %d topics as before", len(wanted))
            return
        log.info("subscribed to %s", ", ".join(sorted(wanted)) or "no topic")
        self.subscription = wanted

    def partitions_auto_assigned(self) -> bool:
        """Whether a group assigns the partitions. False without a subscription."""
        return self.subscription_type in (SubscriptionType.AUTO_TOPICS, SubscriptionType.AUTO_PATTERN)

    def _forget_choice(self) -> None:
        # the listener stays, because partitions may still be on their way out
        self.subscription = None
        self.subscribed_pattern = None
        self._set_subscription_type(SubscriptionType.NONE)

    def _set_subscription_type(self, subscription_type: SubscriptionType) -> None:
        if not isinstance(subscription_type, SubscriptionType):
            raise ConfigError(f"{subscription_type!r} is no SubscriptionType")
        if subscription_type not in KINDS[self.subscription_type]:
            raise self._one_way()
        self.subscription_type = subscription_type

    def _need_auto(self) -> None:
        if not self.partitions_auto_assigned():
            raise self._one_way()

    def _one_way(self) -> OutOfTurn:
        if self.subscription_type is SubscriptionType.NONE:
            return OutOfTurn("nothing is subscribed; subscribe to topics or a pattern first")
        return OutOfTurn(
            f"the consumer is already used by {self.subscription_type.name}; topics, a pattern and assigned partitions "
            "exclude each other, so unsubscribe first"
        )


class SubscriptionState(Choice, Resets):
    """The state in which consumer, membership and fetch meet. Its methods have kafka-python's names.

    Guarantee: a partition keeps its state (position, pause, epoch, replica) and its place in the fetch order until its
    tenure ends. A new tenure begins with empty state. A call that raises changes nothing.

    It has no lock: use it in one thread. `clock` returns seconds, for retries and for leases of replicas. `shuffle`
    reorders the newly claimed partitions of a group in place. By default the order is random, so that short-lived
    consumers do not all begin with the same partition. None keeps the given order.
    """

    def __init__(
        self,
        offset_reset_strategy: ResetStrategy = "earliest",
        *,
        clock: Callable[[], float] = time.monotonic,
        shuffle: Callable[[list[TopicPartition]], None] | None = random.shuffle,
    ) -> None:
        Choice.__init__(self)
        Resets.__init__(self, offset_reset_strategy, clock)
        self._shuffle = shuffle
        self._user_assignment: frozenset[TopicPartition] = frozenset()

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment by the user's choice, in its order. No group takes part. The same partitions again
        change nothing.

        Raises `OutOfTurn` after `subscribe`, `TypeError` for a value that is not a partition.
        """
        wanted = _partitions(partitions)
        self._set_subscription_type(SubscriptionType.USER_ASSIGNED)
        if self._user_assignment != frozenset(wanted):
            self._user_assignment = frozenset(wanted)
            self._end([state for tp, state in self.assignment.items() if tp not in self._user_assignment])
            super().claim(dict.fromkeys(tp for tp in wanted if tp not in self.assignment))

    def claim(self, fences: Mapping[TopicPartition, int | None]) -> None:
        order = list(fences)
        if self._shuffle is not None:
            self._shuffle(order)
        super().claim({tp: fences[tp] for tp in order})

    def unsubscribe(self) -> None:
        """Drop the topics, the pattern and all partitions. Any kind of subscription may follow.

        The listener stays until the next `subscribe`.
        """
        self._forget_choice()
        self._user_assignment = frozenset()
        self.lose()
        self._changes.version += 1


def _partitions(given: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The values without repetitions, in the order given."""
    several = list(given)
    for tp in several:
        if not isinstance(tp, TopicPartition):
            raise TypeError(f"a partition is a TopicPartition, not {tp!r}")
    return list(dict.fromkeys(several))
