"""The decoders that share the tests, and a plain way to call them."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any, Optional

from allocator.fetch import decode

DECODERS: list[ModuleType] = [decode]

Row = tuple[int, int, Optional[int], Optional[bytes], Optional[bytes], list[tuple[str, Optional[bytes]]]]


def rows(
    decoder: Any, data: bytes, start: int = 0, aborted: Iterable[tuple[int, int]] = (), check_crcs: bool = True
) -> list[Row]:
    """(offset, timestamp, timestamp type, key, value, headers) of each record from `start` on; raises what is bad."""
    found = decoder.scan(data, topic="t", partition=3, start=start, aborted=aborted, check_crcs=check_crcs)
    out: list[Row] = []
    for segment in found.segments:
        columns = decoder.columns(data, segment, topic="t", partition=3)
        assert segment.count in (-1, len(columns))
        kinds = [columns.timestamp_type] * len(columns)
        out += zip(columns.offsets, columns.timestamps, kinds, columns.keys(), columns.values(), columns.headers())
    if found.error is not None:
        raise found.error
    return [row for row in out if row[0] >= start]
