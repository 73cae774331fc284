"""Reads the primitive types of Kafka's responses from a received frame (https://kafka.apache.org/protocol)."""

from __future__ import annotations

import struct
from typing import Final

from allocator.core.varint import read_uvarint

_INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
_LONGEST: Final = 5  # maximum bytes of a compact length


class ResponseReader:
    """Reads a frame, without its length, from front to back.

    In a flexible version lengths and counts are compact, and tagged fields may follow each structure (KIP-482).
    Raises `struct.error`, `IndexError` or `ValueError` if the bytes do not decode.
    """

    def __init__(self, frame: memoryview, version: int, *, flexible: bool) -> None:
        self.frame = frame
        self.pos = 0
        self.version = version
        self.flexible = flexible

    def header(self) -> int:
        """Reads the header and returns the correlation id."""
        (correlation_id,) = self.unpack(INT32)
        self.tags()
        return correlation_id

    def text(self) -> str:
        size = self.uvarint() - 1 if self.flexible else self.unpack(_INT16)[0]
        return str(self.taken(size), "utf-8")

    def count(self) -> int:
        """Reads a count or a length; null is 0."""
        count: int = self.uvarint() - 1 if self.flexible else self.unpack(INT32)[0]
        return max(0, count)

    def tags(self) -> None:
        """Skips tagged fields. This client uses none of them."""
        if not self.flexible:
            return
        if self.frame[self.pos] == 0:  # the usual case: no tagged fields
            self.pos += 1
            return
        for _ in range(self.uvarint()):
            self.uvarint()
            self.taken(self.uvarint())

    def uvarint(self) -> int:
        value = self.frame[self.pos]
        if value < 0x80:
            self.pos += 1
            return value
        value, self.pos = read_uvarint(self.frame, self.pos, _LONGEST)
        return value

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self.frame, self.pos)
        self.pos += form.size
        return found

    def taken(self, size: int) -> memoryview:
        end = self.pos + size
        if size < 0 or end > len(self.frame):
            raise ValueError(f"{size} bytes where {len(self.frame) - self.pos} are left")
        found = self.frame[self.pos : end]
        self.pos = end
        return found
