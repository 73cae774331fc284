"""Text and data that others wrote: znodes, brokers' answers, records, web requests.

Before such a value enters a log line, an error or a terminal it goes through here: control characters could forge a
line or steer a terminal, and a value of 60 MB would be copied into every place that shows the error.
"""

from __future__ import annotations

import os
import re
import reprlib

__all__ = ["CONTROL", "SHOWN", "os_cause", "plain", "readable", "shown"]

SHOWN = 80  # characters of one foreign value


SHOWN_ERROR = 300  # of an exception that may quote one


# and what ends lines or turns the direction of writing round
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def plain(text: str, *, lines: bool = False) -> str:
    """The text with control characters spelt out. `lines`: except for the ends of lines."""

    def spelt(found: re.Match[str]) -> str:
        return found[0] if lines and found[0] == "\n" else found[0].encode("unicode_escape").decode()

    return CONTROL.sub(spelt, text)


def shown(value: object) -> str:
    """How an error or a log line quotes a foreign value: in one line, and at most SHOWN characters of it.

    Text and bytes are cut before they are quoted, so that it takes no longer for a large value. An exception, which
    may quote one, gets SHOWN_ERROR characters.
    """
    if isinstance(value, BaseException):
        # the repr of a UnicodeError has all that did not decode
        text = plain(f"{type(value).__name__}({value})" if isinstance(value, UnicodeError) else repr(value))
        return text if len(text) <= SHOWN_ERROR else text[: SHOWN_ERROR - 3] + "..."
    if isinstance(value, (str, bytes, bytearray)):
        text = repr(value[:SHOWN])
        if len(value) > SHOWN:
            text = text[: SHOWN - 3] + "..."
    else:
        text = _SHORT.repr(value)
    text = plain(text)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def os_cause(error: BaseException) -> str:
    """Why the operating system did not connect, as a person says it: "Connection refused".

    asyncio writes "[Errno 111] Connect call failed ('127.0.0.1', 9092)", once for each address that the host has.
    """
    causes = {os.strerror(int(number)) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    # a failed look-up has a negative number, which `strerror` does not know
    return ", ".join(sorted(causes)) or re.sub(r"^\[Errno -?\d+\] ", "", str(error))


_SHORT = reprlib.Repr()


_SHORT.maxlevel = 3


_SHORT.maxstring = _SHORT.maxother = SHOWN


# -- readable ----------
# Bytes of records, for people. Pure.


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
