"""The state of one assigned partition."""

from __future__ import annotations

from typing import Final, Optional, Union

from allocator.errors import ConfigError, IllegalState
from allocator.types import OffsetAndMetadata

__all__ = ["EARLIEST", "LATEST", "PartitionState", "ResetStrategy", "reset_timestamp"]

EARLIEST: Final = -2
"""ListOffsets asks for the first offset of the log with this timestamp."""
LATEST: Final = -1
"""ListOffsets asks for the end of the log with this timestamp."""

ResetStrategy = Union[str, int]
_BY_NAME: Final[dict[str, Optional[int]]] = {"earliest": EARLIEST, "latest": LATEST, "none": None}


def reset_timestamp(strategy: ResetStrategy) -> int | None:
    """What ListOffsets is asked for under a strategy; None for "none".

    `strategy` is "earliest", "latest", "none" (in any case) or a time in milliseconds since the epoch: the first
    record of that time or later, the end of the log if there is none.
    Raises `ConfigError` for anything else.
    """
    if isinstance(strategy, str) and strategy.lower() in _BY_NAME:
        return _BY_NAME[strategy.lower()]
    if isinstance(strategy, int) and not isinstance(strategy, bool) and strategy >= EARLIEST:
        return strategy
    raise ConfigError(
        f"auto_offset_reset is {strategy!r}; give 'earliest', 'latest', 'none' or milliseconds since the epoch"
    )


class PartitionState:
    """Position, pause, reset and high watermark of one assigned partition.

    Guarantee: a position and a pending reset exclude each other, and `epoch` changes whenever what was read ahead
    for the partition has become worthless (seek, reset, new assignment): an answer that was asked for under another
    epoch is to be dropped.
    """

    __slots__ = (
        "epoch",
        "high_watermark",
        "next_allowed_retry_time",
        "paused",
        "pending_revocation",
        "position",
        "reset_strategy",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.paused = False
        self.pending_revocation = False
        self.position: OffsetAndMetadata | None = None
        self.high_watermark: int | None = None
        self.reset_strategy: int | None = None
        # of the reset under way, on the clock of the SubscriptionState
        self.next_allowed_retry_time: float | None = None

    @property
    def awaiting_reset(self) -> bool:
        return self.reset_strategy is not None

    @property
    def has_valid_position(self) -> bool:
        return self.position is not None

    def is_missing_position(self) -> bool:
        """Neither a position nor a reset that will bring one."""
        return self.position is None and self.reset_strategy is None

    def is_reset_allowed(self, now: float) -> bool:
        """Whether a reset may be tried at `now`: strictly after the time set by the last failure."""
        return self.next_allowed_retry_time is None or self.next_allowed_retry_time < now

    def is_fetchable(self) -> bool:
        """Whether its records may be handed out."""
        return self.position is not None and not self.paused and not self.pending_revocation

    def seek(self, position: OffsetAndMetadata, epoch: int) -> None:
        """Go to `position`; a reset under way is over."""
        self.epoch = epoch
        self.position = position
        self.reset_strategy = None
        self.next_allowed_retry_time = None

    def reset(self, strategy: int, epoch: int) -> None:
        """Give the position up and wait for the one that `strategy` finds."""
        self.epoch = epoch
        self.position = None
        self.reset_strategy = strategy
        self.next_allowed_retry_time = None

    def advance(self, position: OffsetAndMetadata) -> None:
        """Move on within what was read; unlike a seek it leaves data read ahead valid."""
        if self.position is None:
            raise IllegalState("a partition without a position cannot advance; seek it first")
        self.position = position
