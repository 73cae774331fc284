"""The records that are done beyond a committed offset, as the metadata of the commit keeps them. Pure."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from allocator.varint import read_uvarint, uvarint

__all__ = ["DoneSet", "done_of", "fingerprint", "joined", "with_done"]

Run = tuple[int, int]

# after the text that a member adds to its commits, so that older versions see nothing but that text
_IN_METADATA: Final = re.compile(r"generation \d+ member .* done ([A-Za-z0-9_-]+)(?: topic \S+)?", re.DOTALL)
_RUNS, _BITMAP = 1, 2
_MARK_BYTES: Final = 4
_CHECKSUM_BYTES: Final = 4
_MOST: Final = 10  # bytes of a number


@dataclass(frozen=True)
class DoneSet:
    """Offsets at and above `base` that are done, although the record at `base` is not.

    It is about one log: a record counts as done only if the record at `base` is still the one that it was, by its
    `mark`, and only up to `epoch`. A record of a later leader epoch replaced the one that was done.
    """

    base: int
    """The lowest offset that is not done, which is the committed one."""
    runs: tuple[Run, ...]
    """(first, end) of each range that is done; ascending, apart from each other, above `base`."""
    epoch: int = -1
    """The highest leader epoch of the records in the runs; -1: unknown (before Kafka 0.11)."""
    mark: int = 0
    """`fingerprint` of the record at `base`; 0: not known."""

    @property
    def end(self) -> int:
        """The offset after the last one that is done."""
        return self.runs[-1][1] if self.runs else self.base

    def has(self, offset: int, epoch: int | None) -> bool:
        """Whether the record at `offset`, of this leader epoch, is done."""
        if epoch is not None and 0 <= self.epoch < epoch:
            return False
        place = bisect_right(self.runs, (offset, float("inf"))) - 1
        return place >= 0 and offset < self.runs[place][1]

    def encoded(self, limit: int) -> tuple[str, bool]:
        """Text of at most `limit` characters, and whether it has all runs. The last runs are left out if it is short.

        "" where no run fits.
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
        """The reverse of `encoded`; None if the text is none of ours, or about another offset than `base`."""
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


def done_of(metadata: str | None, offset: int) -> DoneSet | None:
    """What the metadata of a commit says to be done beyond its `offset`; None if it says nothing."""
    if not metadata or " done " not in metadata:
        return None
    found = _IN_METADATA.fullmatch(metadata)
    return None if found is None else DoneSet.decoded(found[1], offset)


def with_done(stamp: str, text: str) -> str:
    """The metadata of a commit with an encoded set; `stamp` says which member commits."""
    return f"{stamp} done {text}" if text else stamp


def joined(one: DoneSet | None, other: DoneSet | None) -> DoneSet | None:
    """What either of two sets of the same base has; the first alone if they are about different logs."""
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


def fingerprint(record: Any) -> int:
    """A number that tells a record apart from one with the same offset in another log. It is never 0."""
    text = f"{record.timestamp} {record.serialized_key_size} {record.serialized_value_size}".encode()
    mark = zlib.crc32(text)
    for part in (record.key, record.value):
        if isinstance(part, bytes):
            mark = zlib.crc32(part, mark)
    return mark or 1


def _steps(base: int, runs: Sequence[Run]) -> Iterator[int]:
    """Lengths by turns: not done, done, not done, ..."""
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
    """The lowest bit of the first byte is `base`."""
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
