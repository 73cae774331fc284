"""When a leader follows load: how long an imbalance has to last, what it may cost, and which partitions rest. Pure.

What it cost so far is in the assignment document (`LoadHistory`), so a new leader goes on with the budget and the rests
of the one before it. How long an imbalance has lasted is known to one leader only; its successor waits anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

__all__ = ["LASTING_S", "LOOK_S", "ImbalanceTimer", "LoadHistory"]

LOOK_S = 30.0  # between two looks of the leader. more: it acts later; less: more work for it
LASTING_S = 180.0  # more: a change of load is followed later; less: a short peak moves partitions
REST_MS = 3_600_000  # more: a partition that got heavy again waits; less: noise may move it to and fro
DAY_MS = 86_400_000
DAY_SHARE = 0.05  # of all partitions, that may move for load in a day, on average. more: follows faster changes
DAY_LEAST = 24.0  # moves in a day, on average, that a small group may make too
SAVED_DAYS = 4.0  # for which moves may be saved up: a group that starts to follow load has more to move than later


@dataclass(frozen=True)
class LoadHistory:
    """What the moves for load have cost. A new one has all that may be saved up."""

    spent: float = 0.0
    """Moves that are not earned back yet."""
    at_ms: int = 0
    """When `spent` was right, in milliseconds since the epoch."""
    rests: tuple[tuple[int, Partitions], ...] = ()
    """When which partitions moved; of the last hour, the oldest first."""

    def allowance(self, total: int, now_ms: int) -> int:
        """How many of `total` partitions may move now."""
        return max(0, int(SAVED_DAYS * _per_day(total) - self._left(total, now_ms)))

    def resting(self, now_ms: int) -> Partitions:
        """The partitions that moved lately, and stay where they are for now."""
        return NO_PARTITIONS.union(*(parts for _, parts in self._recent(now_ms)))

    def with_moves(self, partitions: Iterable[TopicPartition], total: int, now_ms: int) -> LoadHistory:
        """With these moves of `total` partitions, which begin now."""
        moving = frozenset(partitions)
        return LoadHistory(
            round(self._left(total, now_ms) + len(moving), 3), now_ms, (*self._recent(now_ms), (now_ms, moving))
        )

    def _left(self, total: int, now_ms: int) -> float:
        # by the clock of a leader that is behind, no time has passed
        return max(0.0, self.spent - max(0, now_ms - self.at_ms) / DAY_MS * _per_day(total))

    def _recent(self, now_ms: int) -> tuple[tuple[int, Partitions], ...]:
        """A time in the future, by the clock of another leader, counts as now."""
        return tuple((min(when, now_ms), parts) for when, parts in self.rests if when + REST_MS > now_ms)


def _per_day(total: int) -> float:
    return max(DAY_LEAST, DAY_SHARE * total)


class ImbalanceTimer:
    """Tells whether an imbalance has lasted long enough. Times are in seconds, of any monotonic clock."""

    def __init__(self, lasting_s: float = LASTING_S) -> None:
        self._lasting_s = lasting_s
        self._since: float | None = None

    def lasting(self, uneven: bool, now_s: float) -> bool:
        """`uneven`: whether partitions would move now. After True it waits anew."""
        if not uneven:
            self._since = None
            return False
        if self._since is None:
            self._since = now_s
        if now_s - self._since < self._lasting_s:
            return False
        self._since = None
        return True
