"""Where a member stands with its group."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["MOVES", "Loss", "Phase"]


class Phase(enum.Enum):
    OUT = "no member; nothing is held"
    PREPARING = "a rebalance is due; what must be given up is being drained and committed"
    JOINING = "JoinGroup is under way, or is about to be repeated"
    SYNCING = "in a new generation; its assignment is computed and handed out"
    STABLE = "assigned"
    AWAY = "left because the user was silent for too long; joins again at the next sign of life"
    CLOSED = "left for good, or fenced"


MOVES = {
    Phase.OUT: {Phase.PREPARING, Phase.CLOSED},
    Phase.PREPARING: {Phase.JOINING, Phase.OUT, Phase.AWAY, Phase.CLOSED},
    Phase.JOINING: {Phase.SYNCING, Phase.OUT, Phase.AWAY, Phase.CLOSED},
    # back to JOINING: the next rebalance began first, or the coordinator went; what was prepared still is
    Phase.SYNCING: {Phase.STABLE, Phase.JOINING, Phase.OUT, Phase.CLOSED},
    Phase.STABLE: {Phase.PREPARING, Phase.OUT, Phase.AWAY, Phase.CLOSED},
    Phase.AWAY: {Phase.OUT, Phase.CLOSED},
    Phase.CLOSED: set(),
}


@dataclass(frozen=True)
class Loss:
    """The end of a membership that this member did not choose."""

    why: str
    to: Phase
    forget_id: bool
