"""Joins the journals of all members to one history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Commit", "Did", "Fault", "History", "Turn", "read"]

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
    """Only with ordering by key."""


@dataclass(frozen=True)
class Commit:
    """One committed offset of one partition, acknowledged to a member at time `at`."""

    member: str
    partition: int
    offset: int
    at: float


@dataclass
class Turn:
    """The time in which a member considered itself the owner of a partition, and the records that it processed."""

    member: str
    partition: int
    begin: float
    end: float = FOREVER
    ending: str = "running"
    """"revoked" (in good order), "lost", "died" (it was killed), or "running"."""
    did: list[Did] = field(default_factory=list)
    committed: int = -1
    """The highest offset that was acknowledged in this turn."""
    done: Sequence[tuple[int, int]] = ()
    """Ranges after the offset that the latest acknowledged commit names as done."""
    refused: bool = False
    """True if the last commit failed."""

    @property
    def uncommitted(self) -> list[int]:
        """Processed offsets that no acknowledged commit of this turn covers."""
        return [
            did.offset
            for did in self.did
            if did.offset >= self.committed and not any(first <= did.offset < end for first, end in self.done)
        ]


@dataclass(frozen=True)
class Fault:
    """One fault. `end` is the end of the fault, not of the recovery."""

    kind: str
    victim: str
    begin: float
    end: float


@dataclass
class History:
    """`ends`: partition -> end of the log; `final`: partition -> committed offset at the end of the run."""

    turns: Sequence[Turn] = ()
    commits: Sequence[Commit] = ()
    ends: Mapping[int, int] = field(default_factory=dict)
    final: Mapping[int, int] = field(default_factory=dict)
    faults: Sequence[Fault] = ()
    strays: Sequence[Did] = ()
    """Records processed by a member that did not own the partition."""

    @property
    def did(self) -> list[Did]:
        return [*(did for turn in self.turns for did in turn.did), *self.strays]


def read(
    files: Mapping[str, Path],
    died: Mapping[str, float],
    ends: Mapping[int, int],
    final: Mapping[int, int],
    faults: Iterable[Fault] = (),
) -> History:
    """Returns the history from the journals. `died`: member -> time of its kill, which is not in its journal."""
    history = History([], [], ends, final, list(faults), [])
    for member, path in files.items():
        lines = path.read_text().splitlines() if path.exists() else []
        add(history, member, [json.loads(line) for line in lines], died.get(member))
    return history


def add(history: History, member: str, events: Sequence[Mapping[str, Any]], died: float | None = None) -> None:
    """Adds the events of one member, in their order."""
    turns, commits, strays = list(history.turns), list(history.commits), list(history.strays)
    now: dict[int, Turn] = {}
    for event in events:
        what, at = event["what"], event["at"]
        if what == "own":
            for partition in event["partitions"]:
                now[partition] = Turn(member, partition, at)
                turns.append(now[partition])
        elif what in ("revoked", "lost"):
            for partition in event["partitions"]:
                turn = now.pop(partition, None)
                if turn is not None:
                    turn.end, turn.ending = at, what
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
                turn = now.get(int(key))
                if turn is not None:
                    turn.refused = what == "refused"
                    if what == "commit":
                        turn.committed = max(turn.committed, offset)
                        turn.done = event.get("done", {}).get(key, ())
    for turn in now.values():
        if died is not None:
            turn.end, turn.ending = died, "died"
    history.turns, history.commits, history.strays = turns, commits, strays
