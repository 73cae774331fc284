"""Fetches the records of the assigned partitions ahead, and decodes them on first use.

In: the fetchable partitions and their positions (`subscription`), leaders and connections (`client`). Out: `Batch`es,
high watermarks, and the positions of new partitions and after resets. Sends Fetch, ListOffsets and
OffsetForLeaderEpoch requests. It never commits and never assigns partitions.

`starting_positions` finds where a new tenure begins, and `doubts` whether a topic was created again under its name.
`RangeReader` reads ranges of offsets without a group. `accelerated` is True if the compiled decoder is used. The
decoder in Python returns the same records, 15 to 70 times slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names
from allocator.core.varint import signed_varint as signed_varint

if TYPE_CHECKING:
    from allocator.core.fetch.arrow import pyarrow
    from allocator.core.fetch.batch import Batch
    from allocator.core.fetch.codecs import lz4_of_old
    from allocator.core.fetch.columns import varint
    from allocator.core.fetch.decode import accelerated, scan
    from allocator.core.fetch.fetcher import Fetcher
    from allocator.core.fetch.range_reader import RangeReader, RangeUnread


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "arrow": "pyarrow",
            "batch": "Batch",
            "codecs": "lz4_of_old",
            "columns": "varint",
            "decode": "accelerated scan",
            "fetcher": "Fetcher",
            "range_reader": "RangeReader RangeUnread",
        },
    )
