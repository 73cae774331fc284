"""Text of other programs: quoted in logs, errors and tables or escaped in HTML; and what an OS error means."""

from __future__ import annotations

from allocator.core.text.html import SHOWN, escape, paragraph, table
from allocator.core.text.limits import limit_reached
from allocator.core.text.quoting import CONTROL, SHOWN_ERROR, encodable, plain, readable, shown, text_of, utf8

__all__ = [
    "CONTROL",
    "SHOWN",
    "SHOWN_ERROR",
    "encodable",
    "escape",
    "limit_reached",
    "paragraph",
    "plain",
    "readable",
    "shown",
    "table",
    "text_of",
    "utf8",
]
