"""Text of other programs: quoted in logs, errors and tables or escaped in HTML; and what an OS error means."""

from __future__ import annotations

from allocator.core.text.html import table
from allocator.core.text.limits import limit_reached
from allocator.core.text.quoting import CONTROL, plain, shown, text_of, utf8

__all__ = [
    "CONTROL",
    "limit_reached",
    "plain",
    "shown",
    "table",
    "text_of",
    "utf8",
]
