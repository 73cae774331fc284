"""Checks the guarantees against the members' journals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Claim", "History", "Turn", "verify"]


@dataclass(frozen=True)
class Turn:
    """A period in which one member had one partition."""

    member: str
    partition: int
    begin: float
    end: float


@dataclass
class History:
    """Joins the journals of all members."""

    journals: Mapping[str, list[dict[str, Any]]]
    killed: Mapping[str, float] = field(default_factory=dict)
    """Member -> time of its kill, which ended its turns."""

    @classmethod
    def read(cls, files: Mapping[str, Path], killed: Mapping[str, float]) -> History:
        journals = {}
        for member, path in files.items():
            lines = path.read_text().splitlines() if path.exists() else []
            journals[member] = [json.loads(line) for line in lines]
        return cls(journals, killed)

    def batches(self) -> Iterable[tuple[str, dict[str, Any]]]:
        for member, journal in self.journals.items():
            for event in journal:
                if event["what"] == "batch":
                    yield member, event

    def turns(self) -> list[Turn]:
        """Returns when members owned partitions, as their listeners recorded it."""
        found = []
        for member, journal in self.journals.items():
            since: dict[int, float] = {}
            for event in journal:
                if event["what"] == "assigned":
                    since.update(dict.fromkeys(event["partitions"], event["at"]))
                elif event["what"] in ("revoked", "lost"):
                    for partition in event["partitions"]:
                        found.append(Turn(member, partition, since.pop(partition), event["at"]))
            end = self.killed.get(member, float("inf"))
            found += [Turn(member, partition, begin, end) for partition, begin in since.items()]
        return found

    def work(self) -> list[Turn]:
        """Returns when members worked on records."""
        return [Turn(member, event["partition"], event["from"], event["to"]) for member, event in self.batches()]

    def processed(self) -> dict[int, dict[int, int]]:
        """Returns partition -> offset -> how often it was processed."""
        found: dict[int, dict[int, int]] = {}
        for _, event in self.batches():
            counts = found.setdefault(event["partition"], {})
            for first, last in event["offsets"]:
                for offset in range(first, last + 1):
                    counts[offset] = counts.get(offset, 0) + 1
        return found

    def settled(self, after: float, before: float) -> float | None:
        """Returns when the last partition was assigned in this period; None if none was."""
        times = [
            event["at"]
            for journal in self.journals.values()
            for event in journal
            if event["what"] == "assigned" and after <= event["at"] < before
        ]
        return max(times, default=None)


def overlaps(turns: Iterable[Turn]) -> list[tuple[Turn, Turn]]:
    """Returns pairs of turns in which two members had the same partition at the same time."""
    found = []
    by_partition: dict[int, list[Turn]] = {}
    for turn in turns:
        by_partition.setdefault(turn.partition, []).append(turn)
    for same in by_partition.values():
        same.sort(key=lambda turn: turn.begin)
        longest = same[0]
        for turn in same[1:]:
            if turn.begin < longest.end and turn.member != longest.member:
                found.append((longest, turn))
            if turn.end > longest.end:
                longest = turn
    return found


@dataclass(frozen=True)
class Claim:
    """A promise, what was observed, and whether it holds."""

    text: str
    found: str
    holds: bool


def at_risk(history: History, window_s: float) -> set[tuple[int, int]]:
    """Returns (partition, offset) of records that killed members processed too late to commit them for sure."""
    return {
        (event["partition"], offset)
        for member, when in history.killed.items()
        for event in history.journals.get(member, ())
        if event["what"] == "batch" and event["to"] > when - window_s
        for first, last in event["offsets"]
        for offset in range(first, last + 1)
    }


def verify(history: History, produced: Mapping[int, int], committed: Mapping[int, int], window_s: float) -> list[Claim]:
    """Checks each promise. `produced`, `committed`: partition -> end offset. `window_s`: limit between two commits."""
    total = sum(produced.values())
    processed = history.processed()
    distinct = sum(len(counts) for counts in processed.values())
    missing = sum(
        1 for partition, end in produced.items() for offset in range(end) if offset not in processed.get(partition, {})
    )
    repeated = {(p, offset) for p, counts in processed.items() for offset, count in counts.items() if count > 1}
    risk = at_risk(history, window_s)
    owning, working = overlaps(history.turns()), overlaps(history.work())
    wrong = {partition for partition, end in produced.items() if committed.get(partition) != end}
    return [
        Claim("every record is processed", f"{distinct} distinct of {total}, {missing} missing", missing == 0),
        Claim(
            "nothing but what was produced is processed", f"{distinct - (total - missing)} others", distinct <= total
        ),
        Claim(
            f"repeated is only what the killed member did in its last {window_s:g} s",
            f"{len(repeated)} repeated, {len(risk)} possible",
            repeated <= risk,
        ),
        Claim("no two members own a partition at one time", f"{len(owning)} overlaps", not owning),
        Claim("no two members work on a partition at one time", f"{len(working)} overlaps", not working),
        Claim(
            "the offsets stand in Kafka",
            f"{len(produced) - len(wrong)} of {len(produced)} partitions at their end",
            not wrong,
        ),
    ]
