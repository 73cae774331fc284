"""Merges the journals of all members into one history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Commit", "Did", "Fault", "History", "Tenure", "read"]

FOREVER = float("inf")


@dataclass(frozen=True)
class Did:
    """One record that one member processed, from `begin` to `end`."""

    member: str
    partition: int
    offset: int
    begin: float
    end: float
    key: str | None = None
    """The record's key; None unless the member processes by key."""


@dataclass(frozen=True)
class Commit:
    """A committed offset of one partition. The broker acknowledged it to the member at time `at`."""

    member: str
    partition: int
    offset: int
    at: float


@dataclass
class Tenure:
    """The period in which a member considered itself the owner of a partition, with the records that it processed."""

    member: str
    partition: int
    begin: float
    end: float = FOREVER
    ending: str = "running"
    """How it ended: "revoked", "lost", "died" (the member was killed), or "running" at the end of the run."""
    did: list[Did] = field(default_factory=list)
    committed: int = -1
    """The highest acknowledged offset of this tenure, or -1."""
    done: Sequence[tuple[int, int]] = ()
    """Ranges (first, end) beyond the committed offset that the latest acknowledged commit marks as done."""
    refused: bool = False
    """True if its last commit failed."""

    @property
    def uncommitted(self) -> list[int]:
        """Offsets of processed records that no acknowledged commit of this tenure covers."""
        return [
            did.offset
            for did in self.did
            if did.offset >= self.committed and not any(first <= did.offset < end for first, end in self.done)
        ]


@dataclass(frozen=True)
class Fault:
    """A fault. The group may still be recovering at `end`."""

    kind: str
    victim: str
    begin: float
    end: float


@dataclass
class History:
    """The events of a run.

    `ends` has the log end offset of each partition, and `final` its committed offset at the end of the run.
    """

    tenures: Sequence[Tenure] = ()
    commits: Sequence[Commit] = ()
    ends: Mapping[int, int] = field(default_factory=dict)
    final: Mapping[int, int] = field(default_factory=dict)
    faults: Sequence[Fault] = ()
    strays: Sequence[Did] = ()
    """Records that a member processed without owning the partition."""

    @property
    def did(self) -> list[Did]:
        return [*(did for tenure in self.tenures for did in tenure.did), *self.strays]


def read(
    files: Mapping[str, Path],
    died: Mapping[str, float],
    ends: Mapping[int, int],
    final: Mapping[int, int],
    faults: Iterable[Fault] = (),
) -> History:
    """Reads the journals. `died` has the times at which members were killed, because their journals do not."""
    history = History([], [], ends, final, list(faults), [])
    for member, path in files.items():
        lines = path.read_text().splitlines() if path.exists() else []
        add(history, member, [json.loads(line) for line in lines], died.get(member))
    return history


def add(history: History, member: str, events: Sequence[Mapping[str, Any]], died: float | None = None) -> None:
    """Adds the events of one member, in chronological order. `died` is the time at which it was killed."""
    tenures, commits, strays = list(history.tenures), list(history.commits), list(history.strays)
    now: dict[int, Tenure] = {}
    for event in events:
        what, at = event["what"], event["at"]
        if what == "own":
            for partition in event["partitions"]:
                now[partition] = Tenure(member, partition, at)
                tenures.append(now[partition])
        elif what in ("revoked", "lost"):
            for partition in event["partitions"]:
                tenure = now.pop(partition, None)
                if tenure is not None:
                    tenure.end, tenure.ending = at, what
        elif what == "did":
            did = Did(member, event["partition"], event["offset"], event["from"], at, event.get("key"))
            if did.partition in now:
                now[did.partition].did.append(did)
            else:
                strays.append(did)
        elif what in ("commit", "refused"):
            for key, offset in event["offsets"].items():
                if what == "commit":
                    commits.append(Commit(member, int(key), offset, at))
                tenure = now.get(int(key))
                if tenure is not None:
                    tenure.refused = what == "refused"
                    if what == "commit":
                        tenure.committed = max(tenure.committed, offset)
                        tenure.done = event.get("done", {}).get(key, ())
    for tenure in now.values():
        if died is not None:
            tenure.end, tenure.ending = died, "died"
    history.tenures, history.commits, history.strays = tenures, commits, strays
