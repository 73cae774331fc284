"""The settings that all peers share, and the measured events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["EVENTS", "TOPIC", "Settings"]

TOPIC = "rebalance"
EVENTS = ("leave", "join", "crash")


@dataclass(frozen=True)
class Settings:
    """Settings of a group. All peers that have a setting get the same value. Times are in seconds."""

    bootstrap: str
    zookeeper: str
    group: str
    partitions: int
    topic: str = TOPIC
    session_timeout_s: float = 6.0
    heartbeat_s: float = 2.0
    fetch_wait_s: float = 0.1
    """fetch.max.wait of the other clients (default: 0.5), which fetch new partitions only after the fetch in flight.
    This library keeps its default, also 0.5, because it fetches new partitions over a second connection."""
    poll_s: float = 0.05
    """Timeout of `poll` in the blocking clients, which take part in a rebalance only between calls."""
    settle_s: float = 0.1
    """SetPartitioner's time_boundary: how long its party must be unchanged before it divides the set (default: 30)."""

    @property
    def all(self) -> Iterable[int]:
        return range(self.partitions)
