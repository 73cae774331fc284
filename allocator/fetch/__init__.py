"""Records of the assigned partitions, fetched ahead and decoded when looked at.

In: the fetchable partitions and their positions (`subscription`), leaders and connections (`wire`). Out: `Batch`es,
the high watermarks, and the positions that resets found. May touch the brokers by Fetch and ListOffsets; never
commits, never decides who owns what.

`accelerated` says whether the compiled decoder is there; the plain one gives the same records, 15 to 70 times slower.
"""

from __future__ import annotations

from allocator.fetch.batch import Batch
from allocator.fetch.decode import accelerated
from allocator.fetch.fetcher import Fetcher

__all__ = ["Batch", "Fetcher", "accelerated"]
