"""How many bytes may be asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from allocator.fetch.feed import Feed

__all__ = ["Budget"]

# the least worth asking an old broker for, which cannot fill an answer from whichever partition has records
LEAST_OLD: Final = 1 << 16
# while an answer is taken apart it is there twice: as it came, and in the feeds
COPIES: Final = 2


class Budget:
    """What is held (`held`) and what may still come (`reserved`) of `prefetch_bytes`.

    Guarantee: their sum stays within it, an answer counted as often as it is in memory, but for single record batches
    that are larger than what was asked for, which nothing else can bring.
    """

    def __init__(self, *, prefetch_bytes: int, max_bytes: int, max_partition_bytes: int) -> None:
        self.prefetch_bytes = prefetch_bytes
        self.max_bytes = max_bytes
        self.max_partition_bytes = min(max_partition_bytes, prefetch_bytes)
        self.held = 0
        self.reserved = 0
        # what a partition may hold before it is asked for again; set with the number of partitions
        self.share = prefetch_bytes

    def divide(self, partitions: int) -> None:
        self.share = max(1, self.prefetch_bytes // max(1, partitions))

    def reserve(self, size: int) -> None:
        """An answer of `size` bytes may come; the negative of it once it is done with."""
        self.reserved += COPIES * size

    def room(self, leaders: int, takers: int, reclaim: Callable[[int], int]) -> int | None:
        """Bytes that one answer may have now; None if it is not worth asking.

        `leaders` is how many there are, `takers` into how many parts what is free is to be divided. `reclaim` is asked
        to give back what is missing and returns what it gave.
        """
        worth = min(self.max_partition_bytes, max(1, self.prefetch_bytes // (4 * COPIES * max(1, leaders))))
        free = self.prefetch_bytes - self.held - self.reserved
        if free < COPIES * worth:
            free += reclaim(COPIES * worth - free)
        if free < COPIES * worth:
            return None
        return min(self.max_bytes, max(worth, free // (COPIES * max(1, takers))))

    def sizes(self, wanting: list[Feed], room: int, *, bounded: bool) -> list[tuple[Feed, int]]:
        """How much to ask of each partition; all of them if the broker bounds the answer by itself."""
        if bounded:
            # always the same: a broker that remembers what it was asked for hears only of what changed
            return [(feed, self.max_partition_bytes) for feed in wanting]
        # an old broker sends as much as it is asked for of each, so the parts together must fit
        each = min(self.max_partition_bytes, room, max(room // len(wanting), LEAST_OLD))
        asked: list[tuple[Feed, int]] = []
        for feed in wanting:
            size = max(each, feed.need)
            # a record larger than all the room has to come alone
            if size <= room or not asked:
                asked.append((feed, size))
                room -= size
        return asked
