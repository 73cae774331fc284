"""Encodes the records that are done beyond a committed offset, for the metadata of the commit. No I/O."""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from allocator.core.varint import read_uvarint, uvarint

Run = tuple[int, int]

_RUNS, _BITMAP = 1, 2
_MARK_BYTES: Final = 4
_CHECKSUM_BYTES: Final = 4
_MOST: Final = 10  # longest encoded number, in bytes


@dataclass(frozen=True)
class DoneSet:
    """Offsets at or above `base` that are done, while the record at `base` is not.

    The set belongs to one log. It counts only if the record at `base` still has the fingerprint `mark`, and only for
    records up to leader epoch `epoch`. A record of a later epoch has replaced a done record.
    """

    base: int
    """The lowest offset that is not done. It is the committed offset."""
    runs: tuple[Run, ...]
    """(first, end) of each range of done offsets: ascending, with gaps between them, above `base`."""
    epoch: int = -1
    """The highest leader epoch of the records in the runs; -1 if unknown (before Kafka 0.11)."""
    mark: int = 0
    """`fingerprint` of the record at `base`; 0 if unknown."""

    @property
    def end(self) -> int:
        """The offset after the last done record."""
        return self.runs[-1][1] if self.runs else self.base

    def since(self, offset: int) -> DoneSet | None:
        """Returns the part beyond `offset`, whose record is not done; None if there is none."""
        if offset == self.base:
            return self
        runs = tuple((max(first, offset + 1), end) for first, end in self.runs if end > offset + 1)
        return DoneSet(offset, runs, self.epoch) if runs else None

    def has(self, offset: int, epoch: int | None) -> bool:
        """Returns whether the record at `offset` is done, if it has this leader epoch."""
        if epoch is not None and 0 <= self.epoch < epoch:
            return False
        place = bisect_right(self.runs, (offset, float("inf"))) - 1
        return place >= 0 and offset < self.runs[place][1]

    def encoded(self, limit: int) -> tuple[str, bool]:
        """Returns text of at most `limit` characters, and whether it has all runs.

        Omits the last runs if the limit is too low. The text is "" if no run fits.
        """
        runs = self.runs
        while runs:
            text = self._text(runs)
            if len(text) <= limit:
                return text, runs is self.runs
            runs = runs[: min(len(runs) - 1, len(runs) * limit // len(text))]
        return "", not self.runs

    def _text(self, runs: Sequence[Run]) -> str:
        head = uvarint(self.base) + uvarint(self.epoch + 1) + self.mark.to_bytes(_MARK_BYTES, "big")
        steps = b"".join(uvarint(step) for step in _steps(self.base, runs))
        kind, body = _RUNS, steps
        if (runs[-1][1] - self.base + 7) // 8 < len(steps):
            kind, body = _BITMAP, _bitmap(self.base, runs)
        data = bytes([kind]) + head + body
        data += zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "big")
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    @classmethod
    def decoded(cls, text: str, base: int) -> DoneSet | None:
        """Decodes the text of `encoded`. Returns None for other text, and for a set of another base."""
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            found = cls._read(data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:])
        except (binascii.Error, IndexError, ValueError):
            return None
        return found if found.base == base and found.runs else None

    @classmethod
    def _read(cls, data: bytes, checksum: bytes) -> DoneSet:
        if zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
            raise ValueError
        base, at = read_uvarint(data, 1, _MOST)
        epoch, at = read_uvarint(data, at, _MOST)
        mark = int.from_bytes(data[at : at + _MARK_BYTES], "big")
        body = data[at + _MARK_BYTES :]
        if data[0] not in (_RUNS, _BITMAP):
            raise ValueError
        runs = _runs_of_steps(base, body) if data[0] == _RUNS else _runs_of_bits(base, body)
        return cls(base, tuple(runs), epoch - 1, mark)


def joined(one: DoneSet | None, other: DoneSet | None) -> DoneSet | None:
    """Returns the union of two sets with the same base, or the first set if they belong to different logs."""
    if one is None or other is None:
        return one or other
    if one.base != other.base or (one.mark and other.mark and one.mark != other.mark):
        return one
    runs: list[Run] = []
    for first, end in sorted((*one.runs, *other.runs)):
        if runs and first <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((first, end))
    return DoneSet(one.base, tuple(runs), max(one.epoch, other.epoch), one.mark or other.mark)


def _steps(base: int, runs: Sequence[Run]) -> Iterator[int]:
    """Yields the lengths of alternating ranges: not done, done, not done, ..."""
    at = base
    for first, end in runs:
        yield first - at
        yield end - first
        at = end


def _runs_of_steps(base: int, data: bytes) -> Iterator[Run]:
    at, offset = 0, base
    while at < len(data):
        skipped, at = read_uvarint(data, at, _MOST)
        count, at = read_uvarint(data, at, _MOST)
        if not skipped or not count:
            raise ValueError
        yield offset + skipped, offset + skipped + count
        offset += skipped + count


def _bitmap(base: int, runs: Sequence[Run]) -> bytes:
    """Returns one bit for each offset; the lowest bit of the first byte is `base`."""
    bits = 0
    for first, end in runs:
        bits |= ((1 << (end - first)) - 1) << (first - base)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _runs_of_bits(base: int, data: bytes) -> Iterator[Run]:
    first = None
    for at in range(8 * len(data) + 1):
        done = at < 8 * len(data) and data[at >> 3] >> (at & 7) & 1
        if done and first is None:
            first = base + at
        elif not done and first is not None:
            yield first, base + at
            first = None
