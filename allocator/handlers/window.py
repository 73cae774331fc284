"""Tracks the admitted records of one partition, and which of them are done. Pure."""

from __future__ import annotations

import copy
import zlib
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from allocator.core.subscription import DoneSet

# With this number of spans or more, neighbouring done spans are joined. Higher: more memory; lower: more CPU.
JOIN_SPANS = 32


def fingerprint(record: Any) -> int:
    """Returns a checksum that distinguishes a record from one at the same offset of another log. It is never 0."""
    text = f"{record.timestamp} {record.serialized_key_size} {record.serialized_value_size}".encode()
    mark = zlib.crc32(text)
    for part in (record.key, record.value):
        if isinstance(part, bytes):
            mark = zlib.crc32(part, mark)
    return mark or 1


class Unit:
    """One call of the handler. `argument` is a record or a batch; None once the call is done.

    A handler thread may set `argument` to None or to the rest of a batch, and `results`. Threads change nothing else in
    a window.
    """

    __slots__ = ("argument", "results", "span")

    def __init__(self, argument: Any, span: Span) -> None:
        self.argument = argument
        self.span = span
        self.results: Sequence[Any] | None = None
        """What the call has returned, until it is committed; None before, and if results are no part of a commit."""


class Span:
    """Admitted records of one batch, in order."""

    __slots__ = ("at", "complete", "end", "left", "nbytes", "start", "units")

    def __init__(self, start: int, nbytes: int) -> None:
        self.start = start
        self.end = start
        """The offset after the last admitted record; after the whole batch when it is complete."""
        self.units: list[Unit] = []
        self.at = 0
        """Index of the first unit that is not done."""
        self.left = 0
        """Number of units that the loop has not marked as done."""
        self.complete = False
        """True once the whole batch is admitted."""
        self.nbytes = nbytes
        """Bytes of memory that the unfinished records keep in use."""


class Window:
    """Tracks the offsets of one partition, from the first that is not done to the last that was admitted."""

    def __init__(self, start: int, known: DoneSet | None = None) -> None:
        self.known = known
        """Records that an earlier process has handled, and that this process has not read yet."""
        self._base = start
        self.end = start
        """The offset after the last admitted record."""
        self._epoch = -1
        self._spans: deque[Span] = deque()
        self.nbytes = self.counted = 0
        """Bytes of the batches with admitted records: the current value, and the value last reported to the budget."""
        self.left = 0
        """Number of units that are not done."""

    @property
    def width(self) -> int:
        """Number of offsets from the first that is not done to the last that was admitted."""
        return self.end - self._base

    @property
    def base(self) -> int:
        """The first offset that is not done."""
        while self._spans:
            span = self._spans[0]
            units, at = span.units, span.at
            count = len(units)
            argument = None
            # reads each argument once, because a thread may set it to None at any time
            while at < count and (argument := units[at].argument) is None:
                at += 1
            span.at = at
            if argument is not None:
                self._base = offset_of(argument)
                break
            self._base = span.end
            if not span.complete:
                break
            self._spans.popleft()
        return self._base

    def open(self, start: int, nbytes: int, epoch: int | None) -> Span:
        """Adds the span of a batch that begins at `start`."""
        span = Span(start, nbytes)
        self._spans.append(span)
        self.nbytes += nbytes
        if epoch is not None and epoch > self._epoch:
            self._epoch = epoch
        return span

    def hold(self, span: Span, nbytes: int) -> None:
        """Adds bytes that the records of `span` keep in use; removes some if `nbytes` is negative."""
        span.nbytes += nbytes
        self.nbytes += nbytes

    def admit(self, span: Span, units: list[Unit], end: int, undone: int, *, complete: bool) -> None:
        """Adds units to `span`, up to the offset `end`. `undone` of them must still be handled.

        `complete`: the batch has no more records.
        """
        span.units += units
        span.left += undone
        self.left += undone
        span.end = self.end = end
        span.complete = complete
        if complete and not span.left:
            self._empty(span)

    def returned(self, most: int) -> tuple[list[Unit], int]:
        """Returns the first units, if their calls have returned, and the offset after them. `most`: at most so many; 0:
        all."""
        found: list[Unit] = []
        end = self.base
        for span in self._spans:
            for unit in span.units[span.at :]:
                if unit.argument is None:
                    continue
                if unit.results is None or 0 < most == len(found):
                    return found, offset_of(unit.argument)
                found.append(unit)
            end = span.end
            if not span.complete:
                break
        return found, end

    def finish(self, units: Collection[Unit]) -> None:
        """Marks units as done."""
        self.left -= len(units)
        for unit in units:
            span = unit.span
            span.left -= 1
            if not span.left and span.complete:
                self._empty(span)

    def _empty(self, span: Span) -> None:
        self.nbytes -= span.nbytes
        span.nbytes = 0
        span.units, span.at = [], 0
        if len(self._spans) > JOIN_SPANS:
            self._join()

    def _join(self) -> None:
        """Joins neighbouring done spans, so that a record that is never done does not make the window grow without
        limit."""
        joined: deque[Span] = deque()
        for span in self._spans:
            if joined and _done(joined[-1]) and _done(span):
                joined[-1].end = span.end
            else:
                joined.append(span)
        self._spans = joined

    def relieve(self, busy: Collection[Unit]) -> None:
        """Copies the remaining records of almost finished batches, so that the bytes of these batches are freed.

        Does not change batches with a unit in `busy`, whose calls run.
        """
        for span in self._spans:
            left = [unit for unit in span.units[span.at :] if unit.argument is not None]
            if not span.complete or not left or 4 * len(left) > len(span.units) or any(unit in busy for unit in left):
                continue
            nbytes = sum(_size(unit.argument) for unit in left)
            if nbytes < span.nbytes:
                for unit in left:
                    unit.argument = copy.copy(unit.argument)
                self.nbytes += nbytes - span.nbytes
                span.nbytes = nbytes

    def done_set(self) -> tuple[int, DoneSet | None]:
        """Returns the offset to commit, and the done records beyond it (None: none).

        A gap between two done records counts as done, so it does not split a run.
        """
        base = at = self.base
        runs: list[tuple[int, int]] = []
        first, seen = None, False
        for span in self._spans:
            seen = seen or _done(span)
            for unit in span.units[span.at :]:
                argument = unit.argument
                if argument is None:
                    seen = True
                    continue
                offset = offset_of(argument)
                if seen and offset > at:
                    runs.append((at, offset))
                first = argument if first is None else first
                at, seen = _end(argument), False
        if seen and self.end > at:
            runs.append((at, self.end))
        runs = self._with_known(runs)
        if runs and runs[0][0] == base:  # the record at `base` is done: by a thread just now, or by an earlier process
            base = runs.pop(0)[1]
        if not runs:
            return base, None
        epoch = self._epoch if self.known is None else max(self._epoch, self.known.epoch)
        mark = fingerprint(first) if first is not None and offset_of(first) == base else 0
        return base, DoneSet(base, tuple(runs), epoch, mark)

    def _with_known(self, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Adds the done records of an earlier process beyond the last admitted record."""
        for first, end in () if self.known is None else self.known.runs:
            first = max(first, self.end)
            if first >= end:
                continue
            if runs and runs[-1][1] == first:
                first = runs.pop()[0]
            runs.append((first, end))
        return runs


def _done(span: Span) -> bool:
    return span.complete and not span.units


def offset_of(argument: Any) -> int:
    """Returns the offset of a record, or the first one of a batch."""
    offset: int = argument.offset if hasattr(argument, "offset") else argument.base_offset
    return offset


def _end(argument: Any) -> int:
    end: int = argument.offset + 1 if hasattr(argument, "offset") else argument.next_offset
    return end


def _size(record: Any) -> int:
    size: int = 100 + max(0, record.serialized_key_size) + max(0, record.serialized_value_size)
    return size
