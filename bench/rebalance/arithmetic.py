"""Computes the outcome of events from journals. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from .journal import Entry

__all__ = ["Outcome", "Summary", "balanced", "measure", "owners_at", "quietest", "ratio", "summarize"]

Journals = Mapping[str, Sequence[Entry]]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one event."""

    last_s: float
    """Seconds from the event until the new owner of every moved partition had read a record."""
    median_s: float
    """Seconds from the event until the new owners of half of the moved partitions had read a record."""
    moved: int
    """Number of partitions whose owner changed."""
    stopped: int
    """Number of partitions that were revoked and then assigned to the same owner again."""
    foreign: float = 0.0
    """Part of the machine's CPU time that other processes used meanwhile, from 0 to 1."""


@dataclass(frozen=True)
class Summary:
    """The medians over all repetitions of one event with one peer."""

    runs: int
    last_s: float
    """Median of `Outcome.last_s`; the next two are its minimum and maximum."""
    fastest_s: float
    slowest_s: float
    median_s: float
    moved: int
    stopped: int
    foreign: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def owners_at(journals: Journals, when: float) -> dict[int, str]:
    """Returns the owners at time `when`. A killed member stays the owner until another member owns the partition."""
    owners: dict[int, str] = {}
    entries = [(at, kind, member, parts) for member, each in journals.items() for at, kind, parts in each]
    for at, kind, member, parts in sorted(entries, key=lambda entry: entry[0]):
        if at > when:
            break
        for partition in parts:
            if kind == "own":
                owners[partition] = member
            elif kind == "drop" and owners.get(partition) == member:
                del owners[partition]
    return owners


def balanced(counts: Iterable[int], partitions: int) -> bool:
    """Returns whether these counts, one of each member, add up to `partitions` and differ by at most one."""
    given = list(counts)
    if not given or sum(given) != partitions:
        return False
    least, rest = divmod(partitions, len(given))
    return all(least <= count <= least + bool(rest) for count in given)


def measure(journals: Journals, event: float, end: float) -> Outcome:
    """Returns the outcome of the event at time `event`. `end` is a time at which the group was stable again.

    Raises ValueError if the new owner of a moved partition read nothing.
    """
    before, after = owners_at(journals, event), owners_at(journals, end)
    moved = {p: owner for p, owner in after.items() if before.get(p) != owner}
    first: dict[int, float] = {}
    stopped = set()
    for member, entries in journals.items():
        for at, kind, parts in entries:
            if not event < at <= end:
                continue
            for partition in parts:
                if kind == "got" and moved.get(partition) == member:
                    first[partition] = min(at, first.get(partition, at))
                elif kind == "drop" and partition not in moved and before.get(partition) == member:
                    stopped.add(partition)
    unread = moved.keys() - first.keys()
    if unread:
        raise ValueError(f"{len(unread)} partitions moved and were not read, for example {min(unread)}")
    times = [at - event for at in first.values()] or [0.0]
    return Outcome(max(times), statistics.median(times), len(moved), len(stopped))


def quietest(outcomes: Sequence[Outcome], limit: float, least: int) -> list[Outcome]:
    """Returns the outcomes in which other processes used at most `limit` of the machine.

    If these are fewer than `least`, adds the outcomes with the least load.
    """
    by_load = sorted(outcomes, key=lambda outcome: outcome.foreign)
    quiet = sum(outcome.foreign <= limit for outcome in outcomes)
    return by_load[: max(quiet, least)]


def summarize(outcomes: Sequence[Outcome]) -> Summary:
    times = [outcome.last_s for outcome in outcomes]
    return Summary(
        runs=len(outcomes),
        last_s=statistics.median(times),
        fastest_s=min(times),
        slowest_s=max(times),
        median_s=statistics.median(outcome.median_s for outcome in outcomes),
        moved=int(statistics.median(outcome.moved for outcome in outcomes)),
        stopped=int(statistics.median(outcome.stopped for outcome in outcomes)),
        foreign=statistics.median(outcome.foreign for outcome in outcomes),
    )


def ratio(theirs: Summary, ours: Summary) -> float:
    """Returns how many times longer the peer took than this library."""
    return theirs.last_s / ours.last_s if ours.last_s else float("inf")
