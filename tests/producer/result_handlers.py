"""Handlers of `test_results.py`, for other processes too."""

from __future__ import annotations

from typing import Any, Optional

from allocator import Produce

OUT = "results-of-processes"


def plain(record: Any) -> Optional[Produce]:
    return None if record.offset % 5 == 4 else Produce(OUT, record.value, key=record.key)
