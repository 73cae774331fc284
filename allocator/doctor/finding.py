"""What the doctor says: one thing that is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Optional

from allocator.groups.describe import SHOWN, name_of
from allocator.types import TopicPartition

__all__ = ["COULD_NOT_LOOK", "Finding", "Severity", "names"]

COULD_NOT_LOOK = "could-not-look"


class Severity(IntEnum):
    """INFO is worth knowing; WARNING will cost somebody a night; CRITICAL loses or repeats records, or stands still."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `id` is stable: alerts and scripts may rely on it (docs/doctor.md lists them)."""

    id: str
    severity: Severity
    what: str
    where: tuple[str, ...]
    """Partitions, members, brokers, znodes: all of them, however many."""
    why: str
    """Why it matters."""
    do: str
    command: Optional[str] = None
    """What to type, where one command does it; values to be chosen stand in capitals."""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "severity": str(self.severity),
            "what": self.what,
            "where": list(self.where),
            "why": self.why,
            "do": self.do,
            "command": self.command,
        }

    @property
    def place(self) -> str:
        """`where` as one line, cut after some names."""
        more = f" and {len(self.where) - SHOWN} more" if len(self.where) > SHOWN else ""
        return ", ".join(self.where[:SHOWN]) + more


def names(partitions: Iterable[TopicPartition]) -> tuple[str, ...]:
    return tuple(map(name_of, sorted(partitions)))
