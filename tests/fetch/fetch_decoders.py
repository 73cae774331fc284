"""The tested decoders, and helpers to call them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import pytest

from allocator.core.fetch import Batch
from allocator.core.fetch import decode_plain as plain

try:
    from allocator.core import _records
except ImportError:  # tests/fetch/test_extension.py decides whether it may be missing
    _records = None  # type: ignore[assignment]

DECODERS: list[Any] = [plain] if _records is None else [plain, _records]
needs_both_decoders = pytest.mark.skipif(len(DECODERS) < 2, reason="the compiled decoder is not built")

Row = tuple[int, int, Optional[int], Optional[bytes], Optional[bytes], list[tuple[str, Optional[bytes]]]]


def name_of(decoder: Any) -> str:
    """Returns the decoder's part of a test id."""
    return decoder.__name__.rpartition(".")[2].strip("_")


def row_of(record: Any) -> Row:
    return (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, record.headers)


def rows(decoder: Any, data: bytes, start: int = 0, aborted: Iterable[tuple[int, int]] = ()) -> list[Row]:
    """Decodes the records from `start` on. Raises decode errors."""
    found = decoder.scan(data, topic="t", partition=3, start=start, aborted=aborted)
    out: list[Row] = []
    for number, segment in enumerate(found.segments):
        columns = found.columns(number, number + 1)
        assert segment.count in (-1, len(columns))
        out += map(row_of, columns.records())
    if found.error is not None:
        raise found.error
    return [row for row in out if row[0] >= start]


def make(decoder: Any, data: bytes, start: int = 0, **kwargs: Any) -> Batch:
    """Returns a batch of valid record sets."""
    found = decoder.scan(data, topic="t", partition=3, start=start)
    assert found.error is None
    return Batch("t", 3, found, start=start, **kwargs)
