"""Checks a history. Pure.

Ownership is measured by processing: the *active span* of a turn is from the start of its first record to the end of its
last one. Overlapping spans of two members in one partition mean two owners, even if they processed no records at the
same instant.

Where members hear of each loss in time (none stands still, none is cut off), the turns themselves are judged as well:
two members that own a partition at one time, though one of them has done nothing with it, and turns that were lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .history import Commit, Did, Fault, History, Turn

__all__ = ["Regression", "Verdict", "check", "repeated_in", "standstill"]


@dataclass(frozen=True)
class Regression:
    """A commit with a lower offset than an earlier one."""

    before: Commit
    after: Commit


@dataclass
class Verdict:
    """The violations. An empty list means that the promise held."""

    produced: int = 0
    processed: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    """(partition, offset) that nobody processed."""
    overlaps: list[tuple[Turn, Turn]] = field(default_factory=list)
    """Two members that owned a partition at one time."""
    together: list[tuple[Turn, Turn]] = field(default_factory=list)
    """Two members that owned a partition at one time by what they were told. Only with `told`."""
    dropped: list[Turn] = field(default_factory=list)
    """Turns that ended as lost. Only with `told`."""
    strays: list[Did] = field(default_factory=list)
    """Records processed by members that did not own the partition."""
    duplicates: int = 0
    """How often a record was processed once more."""
    allowed: int = 0
    """How many duplicates there may be: what was uncommitted where a turn ended."""
    beyond: list[tuple[int, int]] = field(default_factory=list)
    """(partition, offset) that was processed more often than the ends of turns explain."""
    disorder: list[tuple[Did, Did]] = field(default_factory=list)
    """Two records of one key: the first time of the second was before the first, or both were worked on at once."""
    unclean: list[Turn] = field(default_factory=list)
    """Turns that ended in good order and left something uncommitted, though no commit had failed."""
    regressions: list[Regression] = field(default_factory=list)
    """Committed offsets set back by more than what was uncommitted where the turn of the late commit ended."""
    unfinished: list[int] = field(default_factory=list)
    """Partitions whose last committed offset is not their end."""

    @property
    def holds(self) -> bool:
        owners = (self.overlaps, self.together, self.dropped, self.strays)
        broken = (self.lost, *owners, self.beyond, self.disorder, self.unclean, self.regressions, self.unfinished)
        return self.produced > 0 and not any(broken)

    def __str__(self) -> str:
        parts = [
            f"{self.produced} produced, {self.processed} processed at least once, {len(self.lost)} lost",
            f"{len(self.overlaps)} overlapping owners, {len(self.strays)} records processed without owning",
            f"{self.duplicates} duplicates of at most {self.allowed}, {len(self.beyond)} records beyond that",
            f"{len(self.unclean)} orderly ends that left something uncommitted",
            f"{len(self.regressions)} offset regressions, {len(self.unfinished)} partitions not committed to their end",
        ]
        if self.disorder:
            parts.append(f"{len(self.disorder)} records of a key out of order")
        if self.together:
            parts.append(
                f"{len(self.together)} times two owners by what they were told, {seconds(self.together):.1f} s"
            )
        if self.dropped:
            parts.append(f"{len(self.dropped)} turns lost")
        return "; ".join(parts)


def check(history: History, *, told: bool = False) -> Verdict:
    """Checks a history. `told`: members are notified of each loss in time."""
    counts = Counter((did.partition, did.offset) for did in history.did)
    verdict = Verdict(sum(history.ends.values()), len(counts))
    verdict.lost = [(p, o) for p, end in sorted(history.ends.items()) for o in range(end) if not counts[p, o]]
    verdict.strays = list(history.strays)
    verdict.overlaps = overlaps(history.turns)
    if told:
        verdict.together = together(history.turns)
        verdict.dropped = [turn for turn in history.turns if turn.ending == "lost"]
    verdict.duplicates = sum(counts.values()) - len(counts)
    excused: Counter[tuple[int, int]] = Counter()
    for turn in history.turns:
        if turn.ending == "running":
            continue
        left = turn.uncommitted
        excused.update((turn.partition, offset) for offset in left)
        if left and turn.ending == "revoked" and not turn.refused:
            verdict.unclean.append(turn)
    verdict.allowed = sum(excused.values())
    verdict.beyond = sorted(key for key, count in counts.items() if count - 1 > excused[key])
    verdict.disorder = disorder(history)
    verdict.regressions = regressions(history)
    verdict.unfinished = [p for p, end in sorted(history.ends.items()) if end and history.final.get(p) != end]
    return verdict


def disorder(history: History) -> list[tuple[Did, Did]]:
    """Records of one key that were worked on at one time, or whose first times are not in the order of the log."""
    by_key: dict[tuple[int, str], list[Did]] = {}
    for did in history.did:
        if did.key is not None:
            by_key.setdefault((did.partition, did.key), []).append(did)
    found = []
    for each in by_key.values():
        each.sort(key=lambda did: did.end)
        found += [(before, after) for before, after in zip(each, each[1:]) if after.begin < before.end]
        seen: set[int] = set()
        highest = each[0]
        for did in each:
            if did.offset not in seen and did.offset < highest.offset:
                found.append((did, highest))
            seen.add(did.offset)
            highest = max(highest, did, key=lambda other: other.offset)
    return found


def overlaps(turns: Iterable[Turn]) -> list[tuple[Turn, Turn]]:
    by_partition: dict[int, list[tuple[float, float, Turn]]] = {}
    for turn in turns:
        if turn.did:
            span = (min(did.begin for did in turn.did), max(did.end for did in turn.did), turn)
            by_partition.setdefault(turn.partition, []).append(span)
    found = []
    for spans in by_partition.values():
        spans.sort(key=lambda span: span[:2])
        latest = spans[0]
        for span in spans[1:]:
            if span[0] < latest[1] and span[2].member != latest[2].member:
                found.append((latest[2], span[2]))
            if span[1] > latest[1]:
                latest = span
    return found


def together(turns: Iterable[Turn]) -> list[tuple[Turn, Turn]]:
    """Pairs of turns of two members in one partition that overlap in time, with or without processing."""
    by_partition: dict[int, list[Turn]] = {}
    for turn in turns:
        by_partition.setdefault(turn.partition, []).append(turn)
    found = []
    for each in by_partition.values():
        each.sort(key=lambda turn: turn.begin)
        found += [
            (first, second)
            for place, first in enumerate(each)
            for second in each[place + 1 :]
            if second.begin < first.end and second.member != first.member
        ]
    return found


def seconds(pairs: Iterable[tuple[Turn, Turn]]) -> float:
    """The longest overlap of a pair of turns."""
    return max((min(first.end, second.end) - second.begin for first, second in pairs), default=0.0)


def regressions(history: History) -> list[Regression]:
    """Commits in the order of their acknowledgements; one below an earlier one must be explained.

    It is, if what the late commit covered had been left uncommitted by a turn of that member which ended abruptly: the
    request was under way when the member was stopped or cut off.
    """
    abrupt: dict[tuple[str, int], set[int]] = {}
    for turn in history.turns:
        if turn.ending in ("lost", "died") or turn.refused:
            abrupt.setdefault((turn.member, turn.partition), set()).update(did.offset + 1 for did in turn.did)
    highest: dict[int, Commit] = {}
    found = []
    for commit in sorted(history.commits, key=lambda commit: commit.at):
        before = highest.get(commit.partition)
        if before is None or commit.offset >= before.offset:
            highest[commit.partition] = commit
        elif commit.offset not in abrupt.get((commit.member, commit.partition), ()):
            found.append(Regression(before, commit))
    return found


def standstill(history: History, fault: Fault, until: float) -> float:
    """The longest time without processing of any partition, from the fault until `until`."""
    longest = 0.0
    for partition, end in history.ends.items():
        if not end:
            continue
        times = sorted(d.end for d in history.did if d.partition == partition and fault.begin <= d.end < until)
        points = [fault.begin, *times, until]
        longest = max(longest, max(later - earlier for earlier, later in zip(points, points[1:])))
    return longest


def repeated_in(history: History, begin: float, until: float) -> int:
    """Records whose repeated processing ended in that time."""
    seen: set[tuple[int, int]] = set()
    count = 0
    for did in sorted(history.did, key=lambda did: did.end):
        key = (did.partition, did.offset)
        count += key in seen and begin <= did.end < until
        seen.add(key)
    return count
