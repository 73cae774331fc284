"""Expressions that members subscribe with: a member's own is `compiled`, another's is a `topic_pattern`.

Python's own `re` can take years for a short expression, and a leader that another member's expression holds up moves
nothing. So those that a leader matches are RE2's (https://github.com/google/re2/wiki/Syntax), as a broker's are that
matches them (KIP-848): they take time linear in the topic's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from allocator.errors import ConfigError, MissingExtra

__all__ = ["ANY_TOPIC", "TopicPattern", "check_pattern", "compiled", "topic_pattern"]

ANY_TOPIC = ".*"
"""Needs nothing that is not installed."""
# bounds the compiled expression, and so the milliseconds that one name takes; two thousand plain names fit
MEMORY = 256 << 10


class TopicPattern:
    """Matched at the start of a topic's name, as `re.match` does; what was found is remembered."""

    def __init__(self, text: str) -> None:
        self._found: dict[str, bool] = {}
        if text == ANY_TOPIC:
            self._match: Callable[[str], object] = bool
            return
        try:
            import re2
        except ImportError as error:
            raise MissingExtra(
                f"pattern {text[:200]!r}: patterns in ZooKeeper need google-re2: "
                "pip install 'zk-partition-allocator[patterns]'"
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
                f"pattern {text[:200]!r} is not a regular expression that the leader matches: {why}; it must be one of "
                "RE2's, without lookaround, backreferences and \\Z, and not too large"
            ) from None

    def matches(self, topic: str) -> bool:
        found = self._found.get(topic)
        if found is None:
            found = self._found[topic] = bool(self._match(topic))
        return found


@lru_cache(maxsize=256)
def topic_pattern(text: str) -> TopicPattern:
    """The compiled expression. Raises ConfigError for what RE2 does not take, MissingExtra where there is no RE2."""
    return TopicPattern(text)


def compiled(pattern: str | None) -> re.Pattern[str] | None:
    """What topics' names are to begin with. Raises ConfigError."""
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern {pattern!r} is not a regular expression: {error}") from None


def check_pattern(pattern: str | None, membership: str) -> None:
    """Whether one can subscribe with it there. Raises ConfigError, and MissingExtra where that cannot be told."""
    compiled(pattern)
    if membership == "zookeeper" and pattern is not None:
        topic_pattern(pattern)
