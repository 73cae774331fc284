"""Records which partitions this member owns, and which of them drain.

Guarantee: a partition has at most one tenure at a time, and a tenure that has ended never begins again. Only the
membership changes the record.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from allocator.core.types import NO_PARTITIONS, Partitions, TopicPartition


class Phase(enum.Enum):
    """The phases of a tenure, in their order."""

    ACTIVE = "owned"
    DRAINING = "owned until the delivered records are done and committed; nothing more is delivered"
    ENDED = "released or lost; another member may own the partition"


class Pause(enum.Enum):
    """Who has paused a partition."""

    USER = "the user, until `resume`"
    PROCESS = "the end of `process`, until `process` begins again or the user resumes it"


class Tenure:
    """One ownership of one partition. A partition that comes back gets a new tenure.

    Code that awaits something keeps the tenure, and checks its `phase` before it continues.
    """

    __slots__ = ("fence", "partition", "pause", "phase")

    def __init__(self, partition: TopicPartition, fence: int | None = None) -> None:
        self.partition = partition
        self.fence = fence
        """The fencing token, which grows with each new owner of the partition. None without a membership."""
        self.phase = Phase.ACTIVE
        self.pause: Pause | None = None

    @property
    def is_set_aside(self) -> bool:
        """Whether `process` has paused the partition at its end, and not the user."""
        return self.pause is Pause.PROCESS

    @property
    def is_held(self) -> bool:
        """Whether someone works on the partition, so that it must not be released."""
        return False

    def drain(self) -> None:
        self.phase = Phase.DRAINING

    def end(self) -> None:
        self.phase = Phase.ENDED


T = TypeVar("T", bound=Tenure)


class Tenures(Generic[T]):
    """The tenures of one member. `begin` creates a tenure from a partition and its fencing token."""

    def __init__(self, begin: Callable[[TopicPartition, int | None], T]) -> None:
        self._begin = begin
        self.version = 0
        """A number that grows with each change that may affect what to fetch."""
        self._epochs = itertools.count(1)
        self.assignment: dict[TopicPartition, T] = {}
        """The owned partitions, in the order of fetching. A change replaces the dict."""
        self.held_back = NO_PARTITIONS
        """Partitions, owned or not, whose records are not delivered, because an operator command pauses them."""
        self.on_end: Callable[[list[T]], None] = lambda ended: None
        """Called with the tenures that have just ended."""
        self.stored: Callable[[TopicPartition], int | None] = lambda _: None
        """Returns the offset after what the sink has stored of a partition; None: there is no sink."""

    def next_epoch(self) -> int:
        """Returns a new epoch. No two partitions get the same epoch."""
        return next(self._epochs)

    @property
    def owned(self) -> Partitions:
        """The partitions that this member owns, including those that drain."""
        return frozenset(self.assignment)

    @property
    def held(self) -> Partitions:
        """The partitions that this member owns and that do not drain."""
        return frozenset(p for p, tenure in self.assignment.items() if tenure.phase is Phase.ACTIVE)

    def is_assigned(self, partition: TopicPartition) -> bool:
        """Returns whether this member owns the partition; it may drain."""
        return partition in self.assignment

    def is_paused(self, tenure: T) -> bool:
        """Returns whether the user or an operator command has paused the partition.

        A reader gets none of its records then, and a handler gets none of those that wait for it. A hold that takes no
        more records (`Hold.full`) stops the fetch only.
        """
        return tenure.pause is not None or tenure.partition in self.held_back

    # -- called by the membership

    def claim(self, fences: Mapping[TopicPartition, int | None]) -> None:
        """Starts a tenure for each partition, with its fencing token.

        Raises OutOfTurn if this member already owns one of the partitions.
        """
        if not self.assignment.keys().isdisjoint(fences):
            from allocator.core.kafka_errors import OutOfTurn

            raise OutOfTurn(f"{sorted(self.assignment.keys() & fences.keys())} are owned already")
        new = {partition: self._begin(partition, fence) for partition, fence in fences.items()}
        self.assignment = {**self.assignment, **new}
        self.version += 1

    def drain(self, partitions: Iterable[TopicPartition]) -> list[T]:
        """Starts to drain these owned partitions: from now on, none of their records is delivered.

        Returns their tenures, which the caller passes to `release` later.
        """
        tenures = [self.assignment[partition] for partition in partitions]
        for tenure in tenures:
            tenure.drain()
        self.version += 1
        return tenures

    def release(self, tenures: Iterable[T]) -> None:
        """Ends these drained tenures. Ignores tenures that have ended. Raises OutOfTurn for an active tenure."""
        ending = [tenure for tenure in tenures if tenure.phase is not Phase.ENDED]
        if any(tenure.phase is Phase.ACTIVE for tenure in ending):
            from allocator.core.kafka_errors import OutOfTurn

            raise OutOfTurn("an active partition must drain before it is released")
        self._end(ending)

    def lose(self) -> Partitions:
        """Ends all tenures. Returns their partitions."""
        lost = self.owned
        self._end(list(self.assignment.values()))
        return lost

    def _end(self, tenures: list[T]) -> None:
        if tenures:
            for tenure in tenures:
                tenure.end()
            self.assignment = {p: each for p, each in self.assignment.items() if each.phase is not Phase.ENDED}
            self.version += 1
            self.on_end(tenures)
