"""The settings of all peers, and the measured events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["EVENTS", "TOPIC", "Settings"]

TOPIC = "rebalance"
EVENTS = ("leave", "join", "crash")


@dataclass(frozen=True)
class Settings:
    """Equal for all peers that have the setting. Times in seconds."""

    bootstrap: str
    zookeeper: str
    group: str
    partitions: int
    topic: str = TOPIC
    session_timeout_s: float = 6.0
    heartbeat_s: float = 2.0
    fetch_wait_s: float = 0.1
    """fetch.max.wait of the others, whose fetch of new partitions waits for the one under way (their default: 0.5).
    Ours keeps its default, also 0.5: it asks for new partitions on a second connection."""
    poll_s: float = 0.05
    """How long the blocking clients may sit in `poll`; they react to the group only in between."""
    settle_s: float = 0.1
    """SetPartitioner's time_boundary: how long its party must stand still before it divides (its default: 30)."""

    @property
    def all(self) -> Iterable[int]:
        return range(self.partitions)
