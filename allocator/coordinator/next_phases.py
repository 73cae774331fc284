"""Where a member of the next-generation protocol may stand, and what wakes it."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field

__all__ = ["NextPhase", "Signals"]


class NextPhase(enum.Enum):
    JOINING = "no member, or not any more; the next heartbeat joins"
    RECONCILING = "a member that does not hold yet, or still holds too much of, what it was given"
    STABLE = "holds what it was given"
    AWAY = "left because the user was silent for too long; joins again at the next sign of life"
    CLOSED = "left for good, or fenced"


@dataclass
class Signals:
    """Made when the member begins to run: asyncio's events belong to a loop."""

    news: asyncio.Event = field(default_factory=asyncio.Event)  # there is something to do
    beat: asyncio.Event = field(default_factory=asyncio.Event)  # look again at when a heartbeat is due
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # the coordinator does not count more as ours than is
