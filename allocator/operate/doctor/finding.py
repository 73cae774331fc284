"""A finding of the doctor: a problem, its consequence, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Optional

from allocator.operate.group_report import listed, name_of
from allocator.operate.shell_command import ShellCommand
from allocator.types import TopicPartition

COULD_NOT_LOOK = "could-not-look"
NOT_NAMED = ", which was not named"
"""The end of the name of a place that the doctor has not read, because the caller gave no address of it."""
CHROOT_MISSING = "chroot-missing"


class Severity(IntEnum):
    """INFO needs no action. WARNING will become a problem. CRITICAL loses or repeats records, or stops partitions."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    def __str__(self) -> str:
        return self.name.lower()


class Fix(NamedTuple):
    """A remedy that `allocator doctor --fix` executes. It changes neither an owner nor an offset."""

    kind: Literal["commands", "groups", "chroot"]
    text: str
    """The action in the imperative: "delete the empty znodes of 2 groups"."""
    names: tuple[str, ...]
    """The ids of the operator commands, the groups, or the chroot."""


@dataclass(frozen=True)
class Finding:
    """One finding. `id` is stable, so alerts and scripts may use it; docs/doctor.md lists all ids."""

    id: str
    severity: Severity
    what: str
    where: tuple[str, ...]
    """The affected partitions, members, brokers or znodes."""
    why: str
    """The consequence."""
    do: str
    command: Optional[ShellCommand] = None
    """The command that is the remedy, or its first step. The user replaces words in capitals."""
    fix: Optional[Fix] = None
    """The automatic remedy; None if an automatic remedy would not be safe."""

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "severity": str(self.severity),
            "where": list(self.where),
            "command": self.command and str(self.command),
            "fix": self.fix and self.fix.text,
        }

    @property
    def is_unseen(self) -> bool:
        """True if a cluster could not be examined."""
        return self.id in (COULD_NOT_LOOK, CHROOT_MISSING)

    @property
    def place(self) -> str:
        """`where` in one line, shortened."""
        return listed(self.where)


def names(partitions: Iterable[TopicPartition]) -> tuple[str, ...]:
    return tuple(map(name_of, sorted(partitions)))
