"""Parses JSON and numbers that strangers write: in znodes, records, requests and responses.

Guarantee: the parser takes bounded time and memory, and fails only with `BadJson`. What it returns has no NaN, no
infinity, and no number that a float cannot hold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Optional, Union

from allocator.core.text.quoting import shown

# a group of 1,000 members, 1,000 topics and 1,000,000 partitions stays below each limit, even while all partitions move
MAX_STRINGS = 4_100_000  # names of topics and ranges
MAX_NUMBERS = 200_000  # this library writes a few for each member
MAX_CONTAINERS = 200_000  # this library writes a few for each member. The parser takes many seconds for millions
LONGEST_NUMBER = 40  # digits; parsing millions of digits takes minutes, and a float holds about 300


def whole_number(text: str) -> Optional[int]:
    """Returns the number that these ASCII digits write; None for another text, and for too many digits.

    `str.isdigit` also accepts digits that `int` refuses, such as "²".
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else None


class BadJson(ValueError):
    """The text is not JSON, or exceeds a limit of `parse_json`."""


def parse_json(data: Union[bytes, str], *, limited: bool = True, exact: bool = False) -> Any:
    """Returns the parsed value. Raises BadJson.

    `limited`: False removes the limits of lists, objects, strings and numbers, for records, whose size the brokers
    limit. `exact`: raises BadJson for what could not be written back unchanged: an object that repeats a field.
    """
    quote, opening = ('"', "[{") if isinstance(data, str) else (b'"', (b"[", b"{"))
    if limited and sum(map(data.count, opening)) > MAX_CONTAINERS:  # type: ignore[arg-type]
        raise BadJson("more lists and objects than any group needs")
    if limited and data.count(quote) > 2 * MAX_STRINGS:  # type: ignore[arg-type]
        raise BadJson("more strings than any group needs")
    left = iter(range(MAX_NUMBERS))
    try:
        return json.loads(
            data,
            parse_int=_parser(int, left) if limited else None,
            parse_float=_parser(_finite, left) if limited else _finite,
            parse_constant=_refuse,
            object_pairs_hook=_unique if exact else None,
        )
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:
        raise BadJson(shown(error)) from error


def _parser(kind: Callable[[str], Any], left: Iterator[int]) -> Callable[[str], Any]:
    """Returns a parser of single numbers. It raises BadJson once `left` is exhausted, which limits the count."""

    def parse(text: str) -> Any:
        if len(text) > LONGEST_NUMBER or next(left, None) is None:
            raise BadJson("more or longer numbers than any group needs")
        return kind(text)

    return parse


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(name: str) -> NoReturn:
    raise BadJson(f"{shown(name)} is not JSON")


def _unique(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(fields)
    if len(found) != len(fields):
        raise BadJson("an object has two fields of the same name")
    return found
