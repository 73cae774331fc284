"""Which topics this member wants, and which ones its group wants."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from allocator.errors import ConfigError
from allocator.subscription.errors import OutOfTurn
from allocator.subscription.kinds import KINDS, SubscriptionType
from allocator.subscription.listener import check_listener
from allocator.subscription.topics import checked

__all__ = ["Choice"]

log = logging.getLogger(__name__)


class Choice:
    """Topics by name, by pattern, or partitions by hand: one of them at a time.

    Guarantee: a call that raises has changed nothing.
    """

    def __init__(self) -> None:
        self.subscription: set[str] | None = None
        """This member's topics; empty while a pattern has matched none, None when nothing is subscribed.

        Replaced by each change, so that one who holds it sees no change.
        """
        self.subscription_type = SubscriptionType.NONE
        self.subscribed_pattern: re.Pattern[str] | None = None
        self.rebalance_listener: Any = None
        self._group_subscription: frozenset[str] = frozenset()

    def subscribe(
        self, topics: Sequence[str] = (), pattern: str | re.Pattern[str] | None = None, listener: Any = None
    ) -> None:
        """Choose topics by name or by regular expression (matched at the start of the name), replacing what was.

        The assignment stays until the next rebalance changes it; the listener is replaced too, by None as well.
        Partitions are shared out anew when a topic appears, goes or gets partitions, and when members come or go.

        Raises `ConfigError` (a `ValueError`) for neither or a bad name or expression, `OutOfTurn` for both or after
        `assign_from_user`, `TypeError` for topics that are no list or a listener that is none.
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
        """Replace the topics, within the kind of subscription that there is. Caller: consumer, metadata watcher.

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
        self._group_subscription |= wanted

    def group_subscribe(self, topics: str | Iterable[str]) -> None:
        """Add the topics of the other members. Caller: the group's leader, whose metadata must cover them all."""
        self._need_auto()
        self._group_subscription |= {topics} if isinstance(topics, str) else frozenset(topics)

    def reset_group_subscription(self) -> None:
        """Back to this member's own topics. Caller: a member that leads no more."""
        self._need_auto()
        if self.subscription is None:
            raise OutOfTurn("nothing is subscribed")
        self._group_subscription &= self.subscription

    def group_subscription(self) -> set[str]:
        """The topics whose metadata this member should watch: everyone's for a leader, else its own. A copy."""
        return set(self._group_subscription)

    def partitions_auto_assigned(self) -> bool:
        """Whether a group assigns the partitions (False also while nothing is chosen)."""
        return self.subscription_type in (SubscriptionType.AUTO_TOPICS, SubscriptionType.AUTO_PATTERN)

    def _forget_choice(self) -> None:
        # the listener stays, for partitions may still be on their way out; so do the group's topics
        self.subscription = None
        self.subscribed_pattern = None
        self._set_subscription_type(SubscriptionType.NONE)

    def _is_subscribed(self, topic: str) -> bool:
        if self.subscription is not None and topic in self.subscription:
            return True
        # the group's leader may know a matching topic before this member's metadata does
        return self.subscribed_pattern is not None and self.subscribed_pattern.match(topic) is not None

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
