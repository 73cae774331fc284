"""Rules for a leader that follows load: when an imbalance counts, how many partitions may move, which may not. Pure.

The assignment document stores the past moves (`LoadHistory`), so a new leader continues with the same budget and the
same resting partitions. The leader alone knows how long an imbalance has lasted; a new leader measures it again from 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

LOOK_S = 30.0  # between two checks of the load. Higher: the leader reacts later; lower: the leader works more
# how long an imbalance lasts before partitions move. Higher: a change takes effect later; lower: a short peak moves
# partitions
LASTING_S = 180.0
# how long a moved partition stays. Higher: a hot partition waits longer; lower: noise may move it back and forth
REST_MS = 3_600_000
DAY_MS = 86_400_000
DAY_SHARE = 0.05  # share of all partitions that may move for load in a day, on average. Higher: follows faster changes
DAY_LEAST = 24.0  # moves in a day, on average, that even a small group may make
SAVED_DAYS = 4.0  # days whose unused moves accumulate, because a group that starts to follow load needs more at first


@dataclass(frozen=True)
class LoadHistory:
    """The moves that the load has caused so far. A new history has the largest possible allowance."""

    spent: float = 0.0
    """Moves that count against the allowance at `at_ms`."""
    at_ms: int = 0
    """The time of `spent`, in milliseconds since the epoch."""
    rests: tuple[tuple[int, Partitions], ...] = ()
    """The partitions that moved in the last hour, with the time in milliseconds since the epoch; oldest first."""

    def allowance(self, total: int, now_ms: int) -> int:
        """Returns how many partitions may move now, in a group with `total` partitions."""
        return max(0, int(SAVED_DAYS * _per_day(total) - self._left(total, now_ms)))

    def resting(self, now_ms: int) -> Partitions:
        """Returns the partitions that moved in the last hour. They must not move again yet."""
        return NO_PARTITIONS.union(*(parts for _, parts in self._recent(now_ms)))

    def with_moves(self, partitions: Iterable[TopicPartition], total: int, now_ms: int) -> LoadHistory:
        """Returns the history with these moves added. They start now, in a group with `total` partitions."""
        moving = frozenset(partitions)
        return LoadHistory(
            round(self._left(total, now_ms) + len(moving), 3), now_ms, (*self._recent(now_ms), (now_ms, moving))
        )

    def _left(self, total: int, now_ms: int) -> float:
        # if this leader's clock is slower than its predecessor's, counts no time as passed
        return max(0.0, self.spent - max(0, now_ms - self.at_ms) / DAY_MS * _per_day(total))

    def _recent(self, now_ms: int) -> tuple[tuple[int, Partitions], ...]:
        """Treats a time in the future, which a leader with another clock wrote, as now."""
        return tuple((min(when, now_ms), parts) for when, parts in self.rests if when + REST_MS > now_ms)


def _per_day(total: int) -> float:
    return max(DAY_LEAST, DAY_SHARE * total)


class ImbalanceTimer:
    """Measures how long an imbalance has lasted. Times are in seconds, by any monotonic clock."""

    def __init__(self, lasting_s: float = LASTING_S) -> None:
        self._lasting_s = lasting_s
        self._since: float | None = None

    def lasting(self, uneven: bool, now_s: float) -> bool:
        """Returns True once `uneven` has been true in every call for `lasting_s` seconds, then starts again from 0.

        `uneven` says whether the load would move partitions now. A call with False also starts again from 0.
        """
        since = now_s if self._since is None else self._since
        lasted = uneven and now_s - since >= self._lasting_s
        self._since = since if uneven and not lasted else None
        return lasted
