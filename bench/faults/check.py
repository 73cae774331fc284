"""Checks a history for violations. Pure.

A `Tenure` is active from the start of its first record to the end of its last record. If two members are active in
one partition at the same time, it has two owners, even if the members processed no records at the same instant.

If members are notified of each loss in time (no member is paused or cut off), the check is stricter: no two tenures
of a partition may overlap, even if one member has processed nothing, and no tenure may end as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .history import Commit, Did, Fault, History, Tenure

__all__ = ["Regression", "Verdict", "check", "repeated_in", "standstill"]


@dataclass(frozen=True)
class Regression:
    """A commit with a lower offset than an earlier commit."""

    before: Commit
    after: Commit


@dataclass
class Verdict:
    """The violations in a history. An empty list means that the promise held."""

    produced: int = 0
    processed: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    """(partition, offset) of records that no member processed."""
    overlaps: list[tuple[Tenure, Tenure]] = field(default_factory=list)
    """Tenures of two members that were active in a partition at the same time."""
    together: list[tuple[Tenure, Tenure]] = field(default_factory=list)
    """Tenures of two members that overlap, even if one is not active. Checked only with `notified`."""
    dropped: list[Tenure] = field(default_factory=list)
    """Tenures that ended as lost. Checked only with `notified`."""
    strays: list[Did] = field(default_factory=list)
    """Records that a member processed without owning the partition."""
    duplicates: int = 0
    """Number of times that any record was processed again."""
    allowed: int = 0
    """Maximum number of duplicates: the records that were uncommitted when a tenure ended."""
    beyond: list[tuple[int, int]] = field(default_factory=list)
    """(partition, offset) of records that were repeated more often than tenures left them uncommitted."""
    disorder: list[tuple[Did, Did]] = field(default_factory=list)
    """Two records of one key that were processed in the wrong order, or at the same time."""
    unclean: list[Tenure] = field(default_factory=list)
    """Tenures that were revoked with uncommitted records although no commit had failed."""
    regressions: list[Regression] = field(default_factory=list)
    """Commits that lowered the offset and that no abrupt end explains; see `regressions`."""
    unfinished: list[int] = field(default_factory=list)
    """Partitions whose committed offset at the end of the run is not the end of the log."""

    @property
    def holds(self) -> bool:
        owners = (self.overlaps, self.together, self.dropped, self.strays)
        broken = (self.lost, *owners, self.beyond, self.disorder, self.unclean, self.regressions, self.unfinished)
        return self.produced > 0 and not any(broken)

    def __str__(self) -> str:
        parts = [
            f"{self.produced} produced, {self.processed} processed at least once, {len(self.lost)} lost",
            f"{len(self.overlaps)} overlapping owners, {len(self.strays)} records processed without ownership",
            f"{self.duplicates} duplicates ({self.allowed} allowed), {len(self.beyond)} records repeated too often",
            f"{len(self.unclean)} revocations with uncommitted records",
            f"{len(self.regressions)} offset regressions, {len(self.unfinished)} partitions not committed to the end",
        ]
        if self.disorder:
            parts.append(f"{len(self.disorder)} records of a key out of order")
        if self.together:
            parts.append(f"{len(self.together)} overlapping tenures, for up to {seconds(self.together):.1f} s")
        if self.dropped:
            parts.append(f"{len(self.dropped)} tenures ended as lost")
        return "; ".join(parts)


def check(history: History, *, notified: bool = False) -> Verdict:
    """Returns the violations in a history. Set `notified` if members were notified of each loss in time."""
    counts = Counter((did.partition, did.offset) for did in history.did)
    verdict = Verdict(sum(history.ends.values()), len(counts))
    verdict.lost = [(p, o) for p, end in sorted(history.ends.items()) for o in range(end) if not counts[p, o]]
    verdict.strays = list(history.strays)
    verdict.overlaps = overlaps(history.tenures)
    if notified:
        verdict.together = together(history.tenures)
        verdict.dropped = [tenure for tenure in history.tenures if tenure.ending == "lost"]
    verdict.duplicates = sum(counts.values()) - len(counts)
    excused: Counter[tuple[int, int]] = Counter()
    for tenure in history.tenures:
        if tenure.ending == "running":
            continue
        left = tenure.uncommitted
        excused.update((tenure.partition, offset) for offset in left)
        if left and tenure.ending == "revoked" and not tenure.refused:
            verdict.unclean.append(tenure)
    verdict.allowed = sum(excused.values())
    verdict.beyond = sorted(key for key, count in counts.items() if count - 1 > excused[key])
    verdict.disorder = disorder(history)
    verdict.regressions = regressions(history)
    verdict.unfinished = [p for p, end in sorted(history.ends.items()) if end and history.final.get(p) != end]
    return verdict


def disorder(history: History) -> list[tuple[Did, Did]]:
    """Returns pairs of records of one key that were processed at the same time or in the wrong order.

    Only the first processing of a record has to be in order; a repetition may come later.
    """
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


def overlaps(tenures: Iterable[Tenure]) -> list[tuple[Tenure, Tenure]]:
    by_partition: dict[int, list[tuple[float, float, Tenure]]] = {}
    for tenure in tenures:
        if tenure.did:
            span = (min(did.begin for did in tenure.did), max(did.end for did in tenure.did), tenure)
            by_partition.setdefault(tenure.partition, []).append(span)
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


def together(tenures: Iterable[Tenure]) -> list[tuple[Tenure, Tenure]]:
    """Returns pairs of tenures of two members in one partition that overlap, even if one is not active."""
    by_partition: dict[int, list[Tenure]] = {}
    for tenure in tenures:
        by_partition.setdefault(tenure.partition, []).append(tenure)
    found = []
    for each in by_partition.values():
        each.sort(key=lambda tenure: tenure.begin)
        found += [
            (first, second)
            for place, first in enumerate(each)
            for second in each[place + 1 :]
            if second.begin < first.end and second.member != first.member
        ]
    return found


def seconds(pairs: Iterable[tuple[Tenure, Tenure]]) -> float:
    """Returns the seconds of the longest overlap among these pairs."""
    return max((min(first.end, second.end) - second.begin for first, second in pairs), default=0.0)


def regressions(history: History) -> list[Regression]:
    """Returns the commits that lowered the offset of a partition and that no abrupt end explains.

    Commits are in the order of their acknowledgements. A tenure ends abruptly if the member dies, loses the
    partition, or fails to commit. A request may then still be in flight. So a later commit of the records that the
    member processed in this tenure is no regression.
    """
    abrupt: dict[tuple[str, int], set[int]] = {}
    for tenure in history.tenures:
        if tenure.ending in ("lost", "died") or tenure.refused:
            abrupt.setdefault((tenure.member, tenure.partition), set()).update(did.offset + 1 for did in tenure.did)
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
    """Returns the longest time, between the fault and `until`, in which no record of one partition was processed."""
    longest = 0.0
    for partition, end in history.ends.items():
        if not end:
            continue
        times = sorted(d.end for d in history.did if d.partition == partition and fault.begin <= d.end < until)
        points = [fault.begin, *times, until]
        longest = max(longest, max(later - earlier for earlier, later in zip(points, points[1:])))
    return longest


def repeated_in(history: History, begin: float, until: float) -> int:
    """Returns how many repetitions of records ended between `begin` and `until`."""
    seen: set[tuple[int, int]] = set()
    count = 0
    for did in sorted(history.did, key=lambda did: did.end):
        key = (did.partition, did.offset)
        count += key in seen and begin <= did.end < until
        seen.add(key)
    return count
