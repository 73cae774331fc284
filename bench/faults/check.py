"""Checks a history. Pure.

Ownership is measured by processing: the *active span* of a turn is from the start of its first record to the end of its
last one. Overlapping spans of two members in one partition mean two owners, even if they processed no records at the
same instant.

If members are notified of each loss in time (no member is paused or cut off), the turns themselves are checked as well:
no two turns of a partition may overlap, even if one member has processed nothing, and no turn may end as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .history import Commit, Did, Fault, History, Turn

__all__ = ["Regression", "Verdict", "check", "repeated_in", "standstill"]


@dataclass(frozen=True)
class Regression:
    """A commit with a lower offset than an earlier commit."""

    before: Commit
    after: Commit


@dataclass
class Verdict:
    """The violations. An empty list means that the promise held."""

    produced: int = 0
    processed: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    """(partition, offset) of records that no member processed."""
    overlaps: list[tuple[Turn, Turn]] = field(default_factory=list)
    """Turns of two members that processed a partition at the same time."""
    together: list[tuple[Turn, Turn]] = field(default_factory=list)
    """Turns of two members that overlap, with or without processing. Only with `told`."""
    dropped: list[Turn] = field(default_factory=list)
    """Turns that ended as lost. Only with `told`."""
    strays: list[Did] = field(default_factory=list)
    """Records processed by members that did not own the partition."""
    duplicates: int = 0
    """How often a record was processed again."""
    allowed: int = 0
    """Most duplicates that are allowed: the uncommitted records at the ends of turns."""
    beyond: list[tuple[int, int]] = field(default_factory=list)
    """(partition, offset) of records that were processed more often than the ends of turns explain."""
    disorder: list[tuple[Did, Did]] = field(default_factory=list)
    """Two records of one key: the later one was processed first, or both were processed at the same time."""
    unclean: list[Turn] = field(default_factory=list)
    """Turns that were revoked in good order with uncommitted records, although no commit had failed."""
    regressions: list[Regression] = field(default_factory=list)
    """Committed offsets that were lowered by more than the uncommitted records of the late commit's turn."""
    unfinished: list[int] = field(default_factory=list)
    """Partitions whose last committed offset is not the end of the log."""

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
            parts.append(f"{len(self.together)} times two owners by their journals, {seconds(self.together):.1f} s")
        if self.dropped:
            parts.append(f"{len(self.dropped)} turns lost")
        return "; ".join(parts)


def check(history: History, *, told: bool = False) -> Verdict:
    """Checks a history. `told`: members were notified of each loss in time."""
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
    """Returns pairs of records of one key that were processed at the same time or first in another order."""
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
    """Returns pairs of overlapping turns of two members in one partition, with or without processing."""
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
    """Returns the longest overlap of a pair of turns, in seconds."""
    return max((min(first.end, second.end) - second.begin for first, second in pairs), default=0.0)


def regressions(history: History) -> list[Regression]:
    """Returns the commits below an earlier commit, in the order of acknowledgements, that no abrupt end explains.

    An abrupt end explains a late commit of records that the member had not committed when its turn ended: the request
    was in flight when the member was stopped or cut off.
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
    """Returns the longest time from the fault until `until` in which no record of some partition was processed."""
    longest = 0.0
    for partition, end in history.ends.items():
        if not end:
            continue
        times = sorted(d.end for d in history.did if d.partition == partition and fault.begin <= d.end < until)
        points = [fault.begin, *times, until]
        longest = max(longest, max(later - earlier for earlier, later in zip(points, points[1:])))
    return longest


def repeated_in(history: History, begin: float, until: float) -> int:
    """Returns how many records were processed again, with the end of processing in that time."""
    seen: set[tuple[int, int]] = set()
    count = 0
    for did in sorted(history.did, key=lambda did: did.end):
        key = (did.partition, did.offset)
        count += key in seen and begin <= did.end < until
        seen.add(key)
    return count
