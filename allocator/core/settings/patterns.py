"""Selects the topics that a member subscribes to, by name and by pattern.

A member matches its own pattern with Python's `re` (`TopicSelection`). The leader of a ZooKeeper group matches the
patterns of other members with RE2 (`topic_pattern`; https://github.com/google/re2/wiki/Syntax), like brokers in
KIP-848. RE2 takes time linear in the length of the name. With `re`, one bad pattern could block the leader, and so the
group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from allocator.core.errors import ConfigError, MissingExtra
from allocator.core.settings.names import check_pattern_syntax
from allocator.core.types import TopicPartition

ANY_TOPIC = ".*"
"""The pattern that matches every topic. It works without google-re2."""
# maximum bytes of a compiled expression, which also bounds the time of a match. An alternation of 2,000 names fits
MEMORY = 256 << 10


class PartitionCountSource(Protocol):
    """The methods of `KafkaClient` that a membership uses."""

    def follow(self, topics: Iterable[str]) -> None: ...

    def follow_all(self) -> None: ...

    async def refresh(self, topics: Iterable[str] | None = None) -> None: ...

    def partitions(self, topic: str) -> tuple[int, ...] | None: ...

    def hides(self, topic: str) -> bool: ...

    def topics(self, internal: bool = False) -> frozenset[str]: ...

    def racks(self, tp: TopicPartition) -> tuple[str | None, ...]: ...

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]: ...


def does_not_exist(client: PartitionCountSource, partition: TopicPartition) -> ConfigError | None:
    """Returns the error for a partition that its topic does not have; None if it exists or the topic is unknown."""
    topic, number = partition
    known = client.partitions(topic)
    if known is None or number in known:
        return None
    return ConfigError(f"partition {topic}:{number} does not exist; the topic has {len(known)} partitions")


class TopicSelection:
    """The topics that a member reads, by name or by a pattern that matches at the start of the name.

    Raises ConfigError for a pattern that is not a regular expression.
    """

    def __init__(self, topics: Iterable[str] = (), pattern: str | None = None) -> None:
        self.topics = frozenset(topics)
        self.pattern = compiled(pattern)

    def __contains__(self, topic: str) -> bool:
        return topic in self.topics or (self.pattern is not None and bool(self.pattern.match(topic)))

    def among(self, existing: Iterable[str]) -> frozenset[str]:
        """Returns the named topics, and those of `existing` that match the pattern."""
        if self.pattern is None:
            return self.topics
        return self.topics.union(filter(self.pattern.match, existing))

    def follow(self, source: PartitionCountSource, also: frozenset[str] = frozenset()) -> None:
        """Makes `source` refresh the metadata of these topics."""
        source.follow(self.topics | also)
        if self.pattern is not None:
            source.follow_all()


class TopicPattern:
    """An RE2 expression that matches at the start of a topic's name, like `re.match`. Caches its results."""

    def __init__(self, text: str) -> None:
        self._found: dict[str, bool] = {}
        if text == ANY_TOPIC:
            self._match: Callable[[str], object] = bool
            return
        try:
            import re2
        except ImportError as error:
            raise MissingExtra(
                f"pattern {text[:200]!r}: patterns in ZooKeeper need google-re2: pip install "
                "'zk-partition-allocator[patterns]'"
            ) from error
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = MEMORY
        try:
            self._match = re2.compile(text, options).match
        except (re2.error, UnicodeEncodeError) as error:
            why = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else error
            raise ConfigError(
                f"pattern {text[:200]!r} is not a valid RE2 expression: {why}. RE2 works without lookaround, "
                "backreferences and \\Z, and refuses expressions that are too large"
            ) from None

    def matches(self, topic: str) -> bool:
        found = self._found.get(topic)
        if found is None:
            found = self._found[topic] = bool(self._match(topic))
        return found


@lru_cache(maxsize=256)
def topic_pattern(text: str) -> TopicPattern:
    """Compiles an expression. Raises ConfigError if RE2 does not accept it, MissingExtra without google-re2."""
    return TopicPattern(text)


def with_topics(topics: Sequence[str], pattern: str | None, more: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """Returns the subscription (topics and pattern) with `more` topics, in syntax that both `re` and RE2 accept."""
    if pattern is None:
        return tuple(dict.fromkeys([*topics, *more])), None
    if not more or pattern == ANY_TOPIC:
        return topics, pattern
    names = "|".join(topic.replace(".", r"\.") for topic in more)
    return topics, f"(?:{pattern})|(?:{names})$"


def compiled(pattern: str | None) -> re.Pattern[str] | None:
    """Compiles a pattern. Raises ConfigError if it is not a regular expression."""
    if pattern is None:
        return None
    check_pattern_syntax(pattern)
    return re.compile(pattern)


def check_pattern(pattern: str | None, membership: str) -> None:
    """Raises ConfigError if the membership does not support the pattern, MissingExtra if it needs google-re2."""
    compiled(pattern)
    if membership == "zookeeper" and pattern is not None:
        topic_pattern(pattern)
