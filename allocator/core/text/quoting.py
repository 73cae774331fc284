"""Quotes foreign data in logs, errors and tables: znodes, broker responses, records, web requests.

Control characters could forge a log line or control a terminal, and a value of 60 MB would be copied into each log
line. So each value passes through a function of this module first.

A string may have lone surrogates, from JSON or file names, which UTF-8 cannot encode. `utf8` encodes such text.
"""

from __future__ import annotations

import os
import re
import reprlib
import traceback
from collections.abc import Collection, Sequence
from heapq import nsmallest
from typing import overload

SHOWN = 80  # characters of one value
SHOWN_ERROR = 300  # characters of an exception, which may quote a value

# control characters, line separators, marks that change the direction of text, and lone surrogates
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = SHOWN


class Quote(str):
    """Text of an error that user code raised. It may quote a record, so a log that must not has `hidden` instead."""

    hidden: str

    def __new__(cls, text: str, hidden: str = "...") -> Quote:
        quote = super().__new__(cls, text)
        quote.hidden = hidden
        return quote


def plain(text: str, *, lines: bool = False, json: bool = False) -> str:
    """Returns the text with control characters as escapes. `lines`: keeps line feeds. `json`: the text is encoded JSON,
    and is read as the same value."""

    def spelt(found: re.Match[str]) -> str:
        if json:
            return f"\\u{ord(found[0]):04x}"
        return found[0] if lines and found[0] == "\n" else found[0].encode("unicode_escape").decode()

    return CONTROL.sub(spelt, text)


def utf8(text: str) -> bytes:
    """Returns the text as UTF-8, with lone surrogates as escapes, which JSON reads as the same text."""
    return text.encode("utf-8", "backslashreplace")


def text_of(error: object) -> str:
    """Returns the text of an error, or of a note of one, even if the `__str__` of a user's class raises."""
    try:
        return str(error)
    except (Exception, SystemExit) as raised:  # noqa: BLE001 - whatever the user's class raises
        return f"<its __str__ raised {type(raised).__name__}>"


def places_of(error: BaseException) -> str:
    """Returns the traceback of an error without its text. A frame whose code is in no file, such as that of `exec`, has
    only its number: generated code may quote a record, also in names."""
    generated = "<generated code>"
    frames = [
        each
        if os.path.isfile(each.filename)
        else traceback.FrameSummary(generated, each.lineno or 0, generated, lookup_line=False, line="")
        for each in traceback.extract_tb(error.__traceback__)
    ]
    return "".join(traceback.StackSummary.from_list(frames).format())


def repr_of(error: BaseException) -> str:
    """Returns the repr of an error, even if the `__repr__` of a user's class raises. It may be large."""
    if isinstance(error, UnicodeError):  # its repr contains the whole input
        return f"{type(error).__name__}({text_of(error)})"
    try:
        return repr(error)
    except Exception as raised:  # noqa: BLE001 - whatever the user's class raises
        return f"<{type(error).__name__}, whose __repr__ raised {type(raised).__name__}>"


def shortened(text: str, most: int) -> str:
    """Returns the text, or its beginning with "..." if it has more than `most` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


@overload
def shown(value: BaseException) -> Quote: ...
@overload
def shown(value: object) -> str: ...
def shown(value: object) -> str:
    """Returns the value in one line of at most SHOWN characters. For an exception: a `Quote` of at most SHOWN_ERROR."""
    if isinstance(value, BaseException):
        text = plain(repr_of(value)[: 2 * SHOWN_ERROR])  # cut first: a quoted value of 60 MB takes seconds
        return Quote(shortened(text, SHOWN_ERROR), type(value).__qualname__)
    if isinstance(value, (str, bytes, bytearray)):
        text = repr(value[:SHOWN])  # cut first: quoting a large value takes time
        if len(value) > SHOWN:
            text = text[: SHOWN - 3] + "..."
    else:
        text = _SHORT.repr(value)
    return shortened(plain(text), SHOWN)


def some_of(names: Sequence[str], most: int = 5) -> str:
    """Returns the first `most` names and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def partition_names(partitions: Collection[tuple[str, int]], most: int = 5) -> str:
    """Returns the names of the first partitions, in their order: "orders:0, orders:7 and 3 more"."""
    some = nsmallest(most, partitions)
    names = ", ".join(f"{topic}:{partition}" for topic, partition in some)
    return names + (f" and {len(partitions) - most} more" if len(partitions) > most else "")


def os_cause(error: BaseException) -> str:
    """Returns why a connection failed, in the words of the operating system: "Connection refused".

    asyncio's text is "[Errno 111] Connect call failed ('127.0.0.1', 9092)", once for each address of the host.
    """
    causes = {os.strerror(int(number)) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    # a failed name lookup has a negative number, which `strerror` lacks
    return ", ".join(sorted(causes)) or re.sub(r"^\[Errno -?\d+\] ", "", str(error))
