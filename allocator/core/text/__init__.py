"""Quotes foreign text in logs, errors, tables and HTML, and explains errors of the operating system."""

from __future__ import annotations

from allocator.core.text.bounded_json import parse_json
from allocator.core.text.html import table
from allocator.core.text.limits import limit_reached
from allocator.core.text.quoting import CONTROL, plain, shown, text_of, utf8

__all__ = [
    "CONTROL",
    "limit_reached",
    "parse_json",
    "plain",
    "shown",
    "table",
    "text_of",
    "utf8",
]
