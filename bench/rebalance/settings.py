"""The settings of all peers, and the measured events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["EVENTS", "TOPIC", "Settings"]

TOPIC = "rebalance"
EVENTS = ("leave", "join", "crash")


@dataclass(frozen=True)
class Settings:
    """Settings of a group, equal for all peers that have them. Times in seconds."""

    bootstrap: str
    zookeeper: str
    group: str
    partitions: int
    topic: str = TOPIC
    session_timeout_s: float = 6.0
    heartbeat_s: float = 2.0
    fetch_wait_s: float = 0.1
    """fetch.max.wait of the other clients (default: 0.5), whose fetch of new partitions waits for the one in flight.
    This library keeps its default, also 0.5, because it fetches new partitions over a second connection."""
    poll_s: float = 0.05
    """Longest call of `poll` in the blocking clients, which react to the group only between calls."""
    settle_s: float = 0.1
    """SetPartitioner's time_boundary: how long its party must be unchanged before it divides the set (default: 30)."""

    @property
    def all(self) -> Iterable[int]:
        return range(self.partitions)
