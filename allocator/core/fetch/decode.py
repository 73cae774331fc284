"""Selects the decoder of record sets: compiled if the extension was built, else plain Python.

Both have `scan`. It reads the batch headers of a record set, verifies the checksums and omits invisible batches. It
returns a `RecordSet`, which decodes selected batches into columns. Both decoders are thread-safe. The compiled decoder
releases the interpreter's lock during `scan` and decompression.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from allocator.core.record import accelerated

if TYPE_CHECKING or not accelerated:
    from allocator.core.fetch.decode_plain import Columns, RecordSet
    from allocator.core.fetch.decode_plain import scan as _plain_scan
else:
    from allocator.core._records import Columns, RecordSet, scan

__all__ = ["Columns", "RecordSet", "accelerated", "scan"]

log = logging.getLogger(__name__)


@functools.cache
def _warn_once() -> None:
    log.warning(
        "records are decoded in plain Python, 15 to 70 times slower than by the compiled decoder: "
        "install a wheel that has it, or Python.h (Debian: python3-dev) and then allocator again, or unset "
        "ALLOCATOR_PURE_PYTHON"
    )


if TYPE_CHECKING or not accelerated:

    def scan(
        data: bytes, *, topic: str, partition: int, start: int, aborted: Iterable[tuple[int, int]] = ()
    ) -> RecordSet:
        """Calls the plain `scan`. The first call logs a warning that it is slow."""
        _warn_once()
        return _plain_scan(data, topic=topic, partition=partition, start=start, aborted=aborted)
