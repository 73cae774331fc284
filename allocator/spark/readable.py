"""Bytes of records, for people. Pure."""

from __future__ import annotations

__all__ = ["readable"]


def readable(data: bytes, most: int) -> str:
    """One line of at most about `most` characters: UTF-8 where it is that, escapes where it is not or cannot be seen.

    What is cut off is told by the size of the whole.
    """
    # a character has at most four bytes: what is cut off here would not be shown
    text = data[: 4 * most].decode("utf-8", "backslashreplace")
    shown = ""
    for character in text:
        seen = character if character.isprintable() else character.encode("unicode_escape").decode()
        if len(shown) + len(seen) > most:
            return f"{shown}... ({len(data)} bytes)"
        shown += seen
    return shown
