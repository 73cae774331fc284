"""The state of repeated audits of the same two sides: the file that `audit(state=...)` reads and replaces.

It has the offset of each partition from which the next audit reads. Guarantee: all records before these offsets have
their equal partner before these offsets, so that no record without a partner is ever left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from allocator.documents import read_json, write_json
from allocator.errors import ConfigError
from allocator.spark.errors import DataLoss

VERSION = 1
SIDES = ("left", "right")
Offsets = Mapping[int, int]


@dataclass(frozen=True)
class SideState:
    """One side as an audit left it."""

    topic: str
    archive: Optional[str]
    """The directory of an archive; None for a topic."""
    cluster: Optional[str]
    topic_id: Optional[str]
    """The ids of cluster and topic; None for an archive and for old brokers."""
    next: Offsets
    """Partition -> offset from which the next audit reads."""
    copies: Offsets = field(default_factory=dict)
    """Partition -> offset. Earlier records may be copies of records that retention deleted on the other side."""
    isolation_level: Optional[str] = None
    """None for an archive."""

    def to_json(self) -> dict[str, Any]:
        offsets = {"next": self.next, "copies": self.copies}
        return {**self.__dict__, **{k: {str(p): o for p, o in sorted(found.items())} for k, found in offsets.items()}}

    def check(self, now: SideState, path: Path) -> None:
        """Raises ConfigError if `now` is another topic or archive, or is read with another isolation level, and
        DataLoss if it was created again or is shorter.

        `now.next` are the ends of the logs.
        """
        again = f"{path}: audit from the beginning with another file"
        same = (self.topic, self.archive) == (now.topic, now.archive)
        if not same or _differ(self.cluster, now.cluster):
            raise ConfigError(f"{path} is the state of {self._name()}, not of {now._name()}; name another file")
        if self.isolation_level != now.isolation_level:
            raise ConfigError(
                f"{path}: the previous audit read {self._name()} with isolation_level {self.isolation_level}, not "
                f"{now.isolation_level}; use the same level, or another file"
            )
        if _differ(self.topic_id, now.topic_id):
            raise DataLoss(f"topic {self.topic!r} was deleted and created again since the previous audit ({again})")
        if len(self.next) != len(now.next):
            raise ConfigError(
                f"{now._name()} had {len(self.next)} partitions at the previous audit and has {len(now.next)} ({again})"
            )
        short = sorted(p for p, offset in self.next.items() if now.next.get(p, -1) < offset)
        if short:
            raise DataLoss(
                f"{self.topic}:{short[0]} ends at offset {now.next.get(short[0])}, before {self.next[short[0]]}, where "
                f"the previous audit ended: its log was truncated ({again})"
            )

    def _name(self) -> str:
        return f"archive:{self.archive}" if self.archive else f"{self.topic!r} of cluster {self.cluster or 'unknown'}"


@dataclass(frozen=True)
class AuditState:
    """Both sides, and how they were compared."""

    by: str
    ignore: tuple[str, ...]
    left: SideState
    right: SideState

    @classmethod
    def load(cls, path: Path) -> Optional[AuditState]:
        """Reads the file; None if there is none. Raises ConfigError for another file."""
        if not path.exists():
            return None
        found = read_json(path)
        try:
            version = found["allocator_audit"]
            if version == VERSION:
                left, right = (_side(found[name]) for name in SIDES)
                return cls(str(found["by"]), tuple(map(str, found["ignore"])), left, right)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is not the state of an audit; name another file") from error
        raise ConfigError(f"{path} has version {version!r} of the state of an audit, not {VERSION}; name another file")

    def save(self, path: Path) -> None:
        sides = {name: getattr(self, name).to_json() for name in SIDES}
        write_json(path, {"allocator_audit": VERSION, "by": self.by, "ignore": list(self.ignore), **sides})

    def check(self, by: Optional[str], ignore: Collection[str], path: Path) -> None:
        """Raises ConfigError if an audit with these options cannot continue."""
        if by not in (None, self.by) or set(ignore) != set(self.ignore):
            options = f"by {self.by}" + (f", without {' and '.join(self.ignore)}" if self.ignore else "")
            raise ConfigError(f"{path}: the previous audit compared {options}; use the same options, or another file")


def _side(found: Mapping[str, Any]) -> SideState:
    offsets = {name: _offsets(found[name]) for name in ("next", "copies")}
    return SideState(**{**found, **offsets})


def _offsets(found: Mapping[str, Any]) -> Offsets:
    """Raises ValueError for a negative number, which would stand for the start or the end of a log."""
    offsets = {int(partition): offset for partition, offset in found.items()}
    if not all(type(offset) is int and offset >= 0 for offset in offsets.values()):
        raise ValueError(f"no offsets: {found}")
    return offsets


def _differ(one: Optional[str], other: Optional[str]) -> bool:
    return None not in (one, other) and one != other
