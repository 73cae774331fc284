"""Variable-length integers of Kafka's protocol (https://protobuf.dev/programming-guides/encoding/#varints)."""

from __future__ import annotations

from collections.abc import Sequence


def uvarint(value: int) -> bytes:
    """Encodes `value`, which must not be negative."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: Sequence[int], at: int, most: int) -> tuple[int, int]:
    """Decodes the number at `at`. Returns it and the position after it.

    Raises ValueError if it has more than `most` bytes, and IndexError if it is cut off.
    """
    value = 0
    for shift in range(0, 7 * most, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number of more than {most} bytes")


def signed_varint(value: int) -> bytes:
    """Encodes a number of 64 bits in zigzag form, which is short for numbers near 0."""
    return uvarint((value << 1) ^ (value >> 63))
