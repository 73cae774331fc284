"""Checks the content of a group's znodes: size limits before parsing, types afterwards.

A znode with invalid content raises `InvalidZnode`, which names the znode. The memory that a check takes is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from allocator.core.text import parse_json, plain, shown
from allocator.errors import AllocatorError

T = TypeVar("T")

FORMAT = 1


class InvalidZnode(AllocatorError):
    """The data of a znode is not in any format that this library writes. `version` is the version of that data, if
    known."""

    version = -1

    def __init__(self, path: str, why: str) -> None:
        self.why = why
        super().__init__(f"znode {plain(path)} is not readable: {why}; delete it if nothing else owns it")


def parse_object(path: str, data: bytes) -> dict[str, Any]:
    try:
        doc = parse_json(data)
    except ValueError as error:
        raise InvalidZnode(path, str(error)) from error
    if not isinstance(doc, dict):
        raise InvalidZnode(path, f"a JSON object is expected, not {type(doc).__name__}")
    if doc.get("format") != FORMAT:
        raise InvalidZnode(path, f"format {shown(doc.get('format'))}; this version reads format {FORMAT}")
    return doc


def encode_object(doc: Mapping[str, Any]) -> bytes:
    """Encodes an object as JSON with the format's number; the inverse of `parse_object`."""
    return json.dumps({"format": FORMAT, **doc}, separators=(",", ":")).encode()


def check_text(path: str, what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidZnode(path, f"{what} is {type(value).__name__}, not text")
    return value


def check_list(path: str, what: str, value: object, length: int | None = None) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidZnode(path, f"{what} is {type(value).__name__}, not a list")
    if length not in (None, len(value)):
        raise InvalidZnode(path, f"{what} has {len(value)} entries, not {length}")
    return value


def check_texts(path: str, what: str, value: object, length: int | None = None) -> list[str]:
    return [check_text(path, what, item) for item in check_list(path, what, value, length)]


def check_number(path: str, what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise InvalidZnode(path, f"{what} is {shown(value)}, not a count")
    return value


def check_real(path: str, what: str, value: object, low: float = 0, high: float = 1e9, *, zero: bool = False) -> float:
    """Accepts numbers greater than `low` and up to `high`, and 0 if `zero`."""
    if type(value) not in (int, float) or not (low < value <= high or (zero and value == 0)):  # type: ignore[operator]
        raise InvalidZnode(path, f"{what} is {shown(value)}")
    return float(value)  # type: ignore[arg-type]


def check_mapping(path: str, what: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidZnode(path, f"{what} is {type(value).__name__}, not an object")
    return value


def optional(check: Callable[[str, str, object], T], path: str, doc: Mapping[str, Any], what: str) -> T | None:
    """Returns None if `doc` does not have the field `what`, or if it is null."""
    value = doc.get(what)
    return None if value is None else check(path, what, value)
