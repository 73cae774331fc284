"""Where to begin when there is no position."""

from __future__ import annotations

from typing import Any, Final, Optional, Union

from allocator.errors import ConfigError

__all__ = ["EARLIEST", "LATEST", "ResetStrategy", "reset_timestamp"]

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
