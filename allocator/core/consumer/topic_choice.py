"""The user's choice of what a consumer reads: topics, a pattern, or partitions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from allocator.core.client.client import KafkaClient
from allocator.core.consumer.membership_config import MembershipConfig
from allocator.core.consumer.ownership import Ownership
from allocator.core.errors import TopicAuthorizationFailed
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.membership.membership import Membership
from allocator.core.settings.patterns import does_not_exist, topic_pattern, with_topics
from allocator.core.subscription.listener import check_listener
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import Listener, TopicPartition


class TopicChoice:
    """Holds the user's choice, and passes its changes to the membership. `config` holds the initial choice."""

    def __init__(
        self,
        config: MembershipConfig,
        client: KafkaClient,
        state: SubscriptionState,
        fetcher: Fetcher,
        membership: Membership,
        ownership: Ownership,
    ) -> None:
        self.config = config
        """The membership's settings, with the topics or partitions that the consumer reads now."""
        self._client = client
        self._state = state
        self._fetcher = fetcher
        self._membership = membership
        self._ownership = ownership
        self._chosen = config.topics, config.pattern
        self._also: tuple[str, ...] = ()
        self._nonexistent: set[TopicPartition] = set()
        self.ever_made = config.chosen
        """Whether the user has ever subscribed to topics or assigned partitions."""

    def follow(self) -> None:
        """Makes the client request the metadata of the chosen topics."""
        self._client.on_metadata(self._check)
        self._client.follow(self.topics())
        if self.config.pattern is not None:
            self._client.follow_all()

    def topics(self) -> list[str]:
        """Returns the topics that the subscription or the assigned partitions name."""
        return list(dict.fromkeys([*self.config.topics, *(topic for topic, _ in self.config.partitions)]))

    def subscribed(self) -> frozenset[str]:
        """Returns the subscribed topics; for a pattern, the matching topics whose metadata is known."""
        pattern = self.config.pattern
        if pattern is None:
            return frozenset(self.config.topics)
        if self.config.membership == "zookeeper":
            matches: Callable[[str], Any] = topic_pattern(pattern).matches
        else:
            matches = re.compile(pattern).match
        return frozenset(filter(matches, self._client.topics()))

    def subscribe(self, topics: Sequence[str], pattern: str | None, listener: Listener | None = None) -> None:
        """Replaces the subscription, and the listener if one is given.

        Without topics and pattern, ends the subscription, or the assignment that `assign` made.

        Raises ConfigError, IllegalState after `assign`, or TypeError for the listener, and changes nothing.
        """
        check_listener(listener)
        self._subscribe(topics, pattern)
        self._chosen = topics, pattern
        if listener is not None:
            self._ownership.listener = listener

    def also_read(self, topics: Sequence[str]) -> None:
        """Subscribes to these topics in addition to the user's. Replaces earlier additional topics.

        Their partitions begin at the first record if there is no committed offset. The processor calls it for its retry
        topics.
        """
        before, self._also = self._also, tuple(topics)
        self._state.begin_at_start = frozenset(topics)
        if before != self._also:
            self._subscribe(*self._chosen)

    def _subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        if topics or pattern is not None:
            topics, pattern = with_topics(topics, pattern, self._also)
        config = dataclasses.replace(self.config, topics=topics, pattern=pattern, partitions=())
        config.check()
        if config.chosen and self.config.partitions:
            from allocator.core.kafka_errors import OutOfTurn

            raise OutOfTurn(
                "topics cannot be subscribed while partitions are assigned by hand; call unsubscribe() first"
            )
        self._replace(config)
        if pattern is not None:
            self._client.follow_all()
        self._membership.subscribe(topics, pattern)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Assigns these partitions and no others. If the consumer is started, they are assigned when this returns.

        Raises IllegalState when topics are subscribed or a group assigns, ConfigError for a partition that its topic
        does not have. An error changes nothing.
        """
        if not partitions:
            self.subscribe((), None)
            return
        from allocator.core.kafka_errors import OutOfTurn

        if self.config.membership != "fixed":
            raise OutOfTurn(
                f"the group assigns the partitions with membership={self.config.membership!r}; to assign them by "
                'hand, create the consumer with membership="fixed"'
            )
        if self.config.topics or self.config.pattern:
            raise OutOfTurn(
                "partitions cannot be assigned by hand while topics are subscribed; call unsubscribe() first"
            )
        config = dataclasses.replace(self.config, partitions=partitions)
        config.check()
        gained = self._membership.assign(partitions)
        self._replace(config)
        if gained:
            self._ownership.assign(gained)

    def _replace(self, config: MembershipConfig) -> None:
        for topic in self.topics():
            self._fetcher.healed(topic)
        self.config, self.ever_made = config, self.ever_made or config.chosen
        self._check()

    def _check(self) -> None:
        """Reports chosen topics that the brokers hide from this user, and partitions that their topic does not have.

        Called on new metadata, which may follow `assign`.
        """
        for topic in self.topics():
            if self._client.hides(topic):
                self._fetcher.fail(topic, TopicAuthorizationFailed(topic))
            else:
                self._fetcher.healed(topic)
        for partition in self.config.partitions:
            error = does_not_exist(self._client, partition)
            if error is not None:
                self._nonexistent.add(partition)
                self._fetcher.fail(partition, error, lasting=True)
            elif partition in self._nonexistent:
                self._nonexistent.discard(partition)
                self._fetcher.healed(partition)
