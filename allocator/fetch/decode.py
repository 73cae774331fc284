"""The decoder of record sets that is used: the compiled one where it was built, else the plain one.

Both have `scan`, which walks the batch headers of a record set, checks the checksums and drops what is not to be seen;
what it returns, a `RecordSet`, decodes some of the batches that it found into columns. Both are safe to be called from
several threads, and the compiled one lets go of the interpreter's lock while it walks, checks and decompresses.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from allocator.record import accelerated

if TYPE_CHECKING or not accelerated:
    from allocator.fetch.decode_plain import Columns, RecordSet
    from allocator.fetch.decode_plain import scan as _plain_scan
else:
    from allocator._records import Columns, RecordSet, scan

__all__ = ["Columns", "RecordSet", "accelerated", "scan"]

log = logging.getLogger(__name__)


@functools.cache
def _say_once() -> None:
    log.warning(
        "records are decoded in plain Python, 15 to 70 times slower than by the compiled decoder: "
        "install a wheel that has it, or a C compiler and allocator again, or unset ALLOCATOR_PURE_PYTHON"
    )


if TYPE_CHECKING or not accelerated:

    def scan(
        data: bytes,
        *,
        topic: str,
        partition: int,
        start: int,
        aborted: Iterable[tuple[int, int]] = (),
        check_crcs: bool = True,
    ) -> RecordSet:
        """`plain.scan`, after it was said once that it is the slow one."""
        _say_once()
        return _plain_scan(data, topic=topic, partition=partition, start=start, aborted=aborted, check_crcs=check_crcs)
