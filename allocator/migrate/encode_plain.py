"""Records written as those of a v2 batch, in plain Python; the compiled decoder's iterators do the same by themselves.

Format: https://kafka.apache.org/documentation/#record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from allocator.errors import CorruptRecordError
from allocator.record import Record

__all__ = ["Rows", "Writer"]

# the bytes, how many records, base and max timestamp, the runs of old offsets as in `encode.Encoded`, and the offset
# after the last
Rows = tuple[bytes, int, int, int, list[tuple[int, int]], int]

_ATTRIBUTES, _NULL, _NONE = b"\0", b"\x01", b"\0"  # of a record: unused; a null's length; no headers
_INT64: Final = 1 << 63


class Writer:
    """Records in their order, a batch of them at a time."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._held: Record | None = None  # it did not go into the last batch

    def write(self, target: int) -> Rows | None:
        """The next of them, of `target` bytes or the first that goes beyond; None after the last.

        Fewer where a timestamp is so far from the first one that 64 bits do not hold the difference, and before what
        does not decode: then the call after it raises CorruptRecordError, and so does each after that.
        """
        parts: list[bytes] = []
        add, short, most = parts.extend, _SHORT, len(_SHORT)
        runs: list[tuple[int, int]] = []
        index = size = base_time = max_time = 0
        expected = -1
        records = self._records if self._held is None else chain((self._held,), self._records)
        self._held = None
        try:
            # everything of a record stands in this loop: a call for each of its parts would take most of the time
            for record in records:
                offset, time, key, value = record.offset, record.timestamp, record.key, record.value
                if not index:
                    base_time = max_time = time
                delta = time - base_time
                when = short[delta] if 0 <= delta < most else _long_varint(delta)
                if len(when) > 9 and not -_INT64 <= delta < _INT64:
                    self._held = record
                    break
                if time > max_time:
                    max_time = time
                if offset != expected:
                    runs.append((offset, index))
                expected = offset + 1
                place = short[index] if index < most else _long_varint(index)
                if key is None:
                    key, key_size = b"", _NULL
                else:
                    length = len(key)
                    key_size = short[length] if length < most else _long_varint(length)
                if value is None:
                    value, value_size = b"", _NULL
                else:
                    length = len(value)
                    value_size = short[length] if length < most else _long_varint(length)
                headers = _headers(record.headers) if record.timestamp_type is not None and record.headers else _NONE
                length = (
                    1 + len(when) + len(place) + len(key_size) + len(key) + len(value_size) + len(value) + len(headers)
                )
                total = short[length] if length < most else _long_varint(length)
                add((total, _ATTRIBUTES, when, place, key_size, key, value_size, value, headers))
                size += len(total) + length
                index += 1
                if size >= target:
                    break
        except CorruptRecordError:
            if not index:
                raise  # and at the next call, where something good stands before
        if not index:
            return None
        return b"".join(parts), index, base_time, max_time, runs, expected


def _headers(headers: list[tuple[str, bytes | None]]) -> bytes:
    named = ((name.encode("utf-8", "surrogateescape"), value) for name, value in headers)
    each = (
        (_varint(len(name)), name, _NULL if value is None else _varint(len(value)), value or b"")
        for name, value in named
    )
    return _varint(len(headers)) + b"".join(chain.from_iterable(each))


def _varint(value: int) -> bytes:
    """Zigzag."""
    return _SHORT[value] if 0 <= value < len(_SHORT) else _long_varint(value)


def _long_varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else ((-value) << 1) - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


_SHORT: Final = tuple(_long_varint(value) for value in range(8192))
