"""What a topic may be called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from allocator.errors import ConfigError

__all__ = ["check_topic", "checked"]

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_topic(name: Any) -> None:
    """The rule that brokers apply (Kafka's `Topic.validate`).

    A wrong name would otherwise only fail much later, and there as a topic that does not exist. Raises `TypeError`
    for what is no string, `ConfigError` (a `ValueError`) for a name that no topic can have.
    """
    if not isinstance(name, str):
        raise TypeError(f"a topic name is a string, not {name!r}")
    if name in (".", "..") or not _TOPIC_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no topic name: 1 to 249 of letters, digits, '.', '_' and '-', and not '.' or '..'"
        )


def checked(topics: str | Iterable[str]) -> set[str]:
    """One topic or several, all valid; a new set."""
    several = (topics,) if isinstance(topics, str) else tuple(topics)
    for topic in several:
        check_topic(topic)
    return set(several)
