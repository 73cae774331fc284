"""The values of the subscription state: reset strategies, kinds of subscription, states of a position, topic names."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, Optional, Union

from allocator.core.errors import ConfigError
from allocator.core.settings.names import check_topic

EARLIEST: Final = -2
"""The timestamp by which ListOffsets returns the first offset of the log."""
LATEST: Final = -1
"""The timestamp by which ListOffsets returns the end of the log."""
ResetStrategy = Union[str, int]
_BY_NAME: Final[dict[str, Optional[int]]] = {"earliest": EARLIEST, "latest": LATEST, "none": None}


def reset_timestamp(strategy: Any) -> int | None:
    """The timestamp of the ListOffsets request of a strategy; None for "none".

    `strategy` is "earliest", "latest", "none" (in any case) or a time in milliseconds since the epoch: the first
    record of that time or later, the end of the log if there is none. kafka-python's `OffsetResetStrategy.EARLIEST`
    and `.LATEST` are these same numbers. Raises `ConfigError` for anything else.
    """
    if isinstance(strategy, str) and strategy.lower() in _BY_NAME:
        return _BY_NAME[strategy.lower()]
    if isinstance(strategy, int) and not isinstance(strategy, bool) and strategy >= EARLIEST:
        return strategy
    raise ConfigError(
        f"auto_offset_reset is {strategy!r}; give 'earliest', 'latest', 'none' or milliseconds since the epoch"
    )


class SubscriptionType(enum.IntEnum):
    """How partitions are chosen."""

    NONE = 0
    AUTO_TOPICS = 1
    AUTO_PATTERN = 2
    USER_ASSIGNED = 3


_NONE = SubscriptionType.NONE
KINDS: Final[Mapping[SubscriptionType, frozenset[SubscriptionType]]] = {
    # another kind may be chosen only after `unsubscribe`: partitions that were assigned one way would stay when the
    # other way replaces the assignment
    _NONE: frozenset(SubscriptionType),
    **{kind: frozenset({kind, _NONE}) for kind in SubscriptionType if kind is not _NONE},
}


class FetchState(enum.Enum):
    """The state of the position of an assigned partition."""

    INITIALIZING = "no position, and none requested"
    AWAIT_RESET = "no position; a reset strategy is finding one"
    FETCHING = "a position to read from"
    AWAIT_VALIDATION = "a position that must be compared with the log of a new leader (KIP-320)"
    TRUNCATED = "a position past the point where the log was truncated; the user has to seek"


_SOUGHT = {FetchState.FETCHING, FetchState.AWAIT_RESET}
MOVES: Final[Mapping[FetchState, frozenset[FetchState]]] = {
    # nothing returns to INITIALIZING: a partition that is assigned again starts as a new object;
    # without a position there is nothing to compare with a log
    FetchState.INITIALIZING: frozenset(_SOUGHT),
    FetchState.AWAIT_RESET: frozenset(_SOUGHT),
    FetchState.FETCHING: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION}),
    # again while a validation is under way: the leader changed once more
    FetchState.AWAIT_VALIDATION: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION, FetchState.TRUNCATED}),
    # a newer leader may have the whole log
    FetchState.TRUNCATED: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION}),
}


def checked(topics: str | Iterable[str]) -> set[str]:
    """A new set of one topic or several. Raises as `check_topic`."""
    several = (topics,) if isinstance(topics, str) else tuple(topics)
    for topic in several:
        check_topic(topic)
    return set(several)
