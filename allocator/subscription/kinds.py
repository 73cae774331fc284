"""Where to begin when there is no position."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, Optional, Union

from allocator.errors import ConfigError
from allocator.names import check_topic

__all__ = [
    "EARLIEST",
    "KINDS",
    "LATEST",
    "MOVES",
    "FetchState",
    "ResetStrategy",
    "SubscriptionType",
    "checked",
    "reset_timestamp",
]

EARLIEST: Final = -2


"""ListOffsets asks for the first offset of the log with this timestamp."""


LATEST: Final = -1


"""ListOffsets asks for the end of the log with this timestamp."""


ResetStrategy = Union[str, int]


_BY_NAME: Final[dict[str, Optional[int]]] = {"earliest": EARLIEST, "latest": LATEST, "none": None}


def reset_timestamp(strategy: Any) -> int | None:
    """What ListOffsets is asked for under a strategy; None for "none".

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


# -- kinds ----------
# The ways to choose partitions, the states of a position, and which move leads where: two tables.


class SubscriptionType(enum.IntEnum):
    """How the partitions are chosen."""

    NONE = 0
    AUTO_TOPICS = 1
    AUTO_PATTERN = 2
    USER_ASSIGNED = 3


_NONE = SubscriptionType.NONE


KINDS: Final[Mapping[SubscriptionType, frozenset[SubscriptionType]]] = {
    # a kind may be chosen again, but another one only after `unsubscribe`: partitions that came one way would stay
    # when the other way takes them for its own
    _NONE: frozenset(SubscriptionType),
    **{kind: frozenset({kind, _NONE}) for kind in SubscriptionType if kind is not _NONE},
}


class FetchState(enum.Enum):
    """What is known of the position of an assigned partition."""

    INITIALIZING = "no position, and nobody is looking for one"
    AWAIT_RESET = "no position; a reset strategy is finding one"
    FETCHING = "a position to read from"
    AWAIT_VALIDATION = "a position that is still to be compared with the log of another leader (KIP-320)"
    TRUNCATED = "a position past the point where the log was cut; the user says where to go on"

    @property
    def has_position(self) -> bool:
        return self not in (FetchState.INITIALIZING, FetchState.AWAIT_RESET)


_SOUGHT = {FetchState.FETCHING, FetchState.AWAIT_RESET}


MOVES: Final[Mapping[FetchState, frozenset[FetchState]]] = {
    # nothing comes back to INITIALIZING, for a partition that was given away starts as a new object;
    # what has no position cannot be compared with a log
    FetchState.INITIALIZING: frozenset(_SOUGHT),
    FetchState.AWAIT_RESET: frozenset(_SOUGHT),
    FetchState.FETCHING: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION}),
    # again while it is under way: yet another leader has come
    FetchState.AWAIT_VALIDATION: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION, FetchState.TRUNCATED}),
    # a newer leader may have the log whole
    FetchState.TRUNCATED: frozenset(_SOUGHT | {FetchState.AWAIT_VALIDATION}),
}


def checked(topics: str | Iterable[str]) -> set[str]:
    """One topic or several, all valid; a new set."""
    several = (topics,) if isinstance(topics, str) else tuple(topics)
    for topic in several:
        check_topic(topic)
    return set(several)
