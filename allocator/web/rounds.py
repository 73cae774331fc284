"""What the doctor says of a group at which somebody looks again and again. No I/O."""

from __future__ import annotations

from typing import Optional

from allocator.migrate.doctor import Finding, Look, judge

__all__ = ["Rounds"]

# Within seconds, lag grows and nothing is committed in any group: what only time shows is judged over at least so
# long. More: told later; less: false alarms
TREND_S = 90.0
TRENDS = frozenset({"no-progress", "lag-grows"})


class Rounds:
    """The looks at one group. Keeps three of them, however many there were."""

    def __init__(self, root: str) -> None:
        self.last: Optional[Look] = None
        self._root = root
        self._old: Optional[Look] = None
        self._next: Optional[Look] = None

    def judge(self, now: Look) -> list[Finding]:
        """What is wrong, the worst first."""
        before, self.last = self.last or now, now
        if self._old is None or self._next is None:
            self._old = self._next = now
        elif now.ended_ms - self._next.ended_ms >= 1000 * TREND_S:
            self._old, self._next = self._next, now
        found = [finding for finding in judge(before, now, root=self._root) if finding.id not in TRENDS]
        if now.ended_ms - self._old.ended_ms >= 1000 * TREND_S:
            found += [finding for finding in judge(self._old, now, root=self._root) if finding.id in TRENDS]
        return sorted(found, key=lambda finding: -finding.severity)
