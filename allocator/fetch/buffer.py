"""What is read ahead of one partition."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Final, Union

from allocator.errors import AllocatorError
from allocator.fetch.decode import RecordSet
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = ["ByteBudget", "Chunk", "Failure", "OutOfRange", "PartitionBuffer"]

# the front of a record batch, of any format: offset, length, epoch (in v2; a checksum before) and format
_FRONT: Final = struct.Struct(">qiib")


_BEFORE_LENGTH: Final = 12


class Chunk:
    """The records of one answer. `start` is the offset that was asked for; `size` what it holds in memory."""

    __slots__ = ("found", "high_watermark", "size", "start")

    def __init__(self, found: RecordSet, start: int, high_watermark: int) -> None:
        self.found = found
        self.start = start
        self.high_watermark = high_watermark
        self.size = len(found.data)


class OutOfRange:
    """The broker has no record at this offset; comes up once all before it was consumed."""

    __slots__ = ("offset",)

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Failure:
    """To be raised when the consumer comes to it."""

    __slots__ = ("error",)

    def __init__(self, error: AllocatorError) -> None:
        self.error = error


class PartitionBuffer:
    """One assigned partition under one epoch: the offset to fetch next, and what was fetched but not handed out.

    Guarantee: things come out in the order of offsets, errors in their place. A seek, reset or reassignment makes a
    new feed, so an answer that was asked for by an old one finds it replaced and is dropped.
    """

    __slots__ = (
        "_epochs",
        "epoch",
        "failures",
        "fetch_offset",
        "halted",
        "held",
        "in_flight",
        "near_after",
        "need",
        "next_try",
        "queue",
        "told",
        "tp",
    )

    def __init__(self, tp: TopicPartition, epoch: int, position: OffsetAndMetadata) -> None:
        self.tp = tp
        self.epoch = epoch
        self.fetch_offset = position.offset
        # (offset, leader epoch) where another epoch than before begins; the first is of what precedes the position
        self._epochs: list[tuple[int, int]] = [(position.offset - 1, position.leader_epoch)]
        self.queue: deque[Union[Chunk, OutOfRange, Failure]] = deque()
        self.held = 0
        self.in_flight = False
        # something in the queue, or told to the consumer, must be dealt with first
        self.halted = False
        self.failures = 0
        self.next_try = 0.0
        # until then the leader itself is asked, as the replica that it named has failed
        self.near_after = 0.0
        # bytes that the next record needs, where known: before 0.10.1 it cannot be had by asking for fewer
        self.need = 0
        # the kind of error the consumer knows of already
        self.told: type[AllocatorError] | None = None

    def push(self, chunk: Chunk) -> None:
        """Keep an answer and go on after it."""
        self.queue.append(chunk)
        self.held += chunk.size
        self.fetch_offset = chunk.found.next_offset
        self._note_epochs(chunk)

    def leader_epoch(self, offset: int) -> int:
        """The epoch of the last offset before `offset`, -1 if that was not read or its format has none (KIP-320)."""
        if offset > self.fetch_offset:
            return -1
        at = bisect_left(self._epochs, (offset, -2)) - 1
        return self._epochs[at][1] if at >= 0 else -1

    def precedes(self, found: RecordSet) -> bool:
        """Whether `found` is of an older leader than what was read before it, as in no log of one topic."""
        epoch = found.segments[0].leader_epoch if found.segments else None
        return epoch is not None and 0 <= epoch < self._epochs[-1][1]

    def _note_epochs(self, chunk: Chunk) -> None:
        segments, end = chunk.found.segments, chunk.found.next_offset
        if segments:
            last = self._epochs[-1][1]
            if last == segments[0].leader_epoch == segments[-1].leader_epoch and segments[-1].next_offset == end:
                return  # epochs only grow: all between the two have it as well
            for segment in segments:
                self._note_epoch(segment.base_offset, segment.leader_epoch)
        if not segments or segments[-1].next_offset < end:
            # markers and aborted records are not among the segments; the position passes over them all the same
            self._note_epoch(end - 1, _last_epoch(chunk.found.data))

    def _note_epoch(self, offset: int, epoch: int | None) -> None:
        epoch = -1 if epoch is None else epoch
        if self._epochs[-1][1] != epoch:
            self._epochs.append((max(offset, self._epochs[-1][0] + 1), epoch))

    def pop(self) -> None:
        first = self.queue.popleft()
        if isinstance(first, Chunk):
            self.held -= first.size

    def halt(self, what: OutOfRange | Failure) -> None:
        """Fetch nothing more; `what` comes up after what is queued."""
        self.halted = True
        self.queue.append(what)

    def rewind(self) -> int:
        """Forget what is queued and fetch it again when there is room. Returns the bytes that this gives back."""
        freed, self.held = self.held, 0
        for item in self.queue:
            if isinstance(item, Chunk):
                self.fetch_offset = item.start
                break
        self.queue.clear()
        self.halted = False
        return freed

    def back_off(self, now: float, base_s: float, max_s: float) -> None:
        """Do not fetch for a while, for longer with each failure in a row."""
        self.next_try = now + min(max_s, base_s * (1 << min(self.failures, 10)))
        self.failures += 1

    def shuns_replicas(self, now: float) -> bool:
        return now < self.near_after

    def succeeded(self) -> None:
        self.failures = 0
        self.told = None


def _last_epoch(data: bytes) -> int:
    """Of the last whole record batch in `data`, -1 if it has none."""
    pos, epoch = 0, -1
    while pos + _FRONT.size <= len(data):
        _, length, found, magic = _FRONT.unpack_from(data, pos)
        pos += _BEFORE_LENGTH + max(0, length)
        if pos <= len(data):
            epoch = found if magic == 2 else -1
    return epoch


# -- budget ----------
# How many bytes may be asked for.


# the least worth asking an old broker for, which cannot fill an answer from whichever partition has records
LEAST_OLD: Final = 1 << 16


# while an answer is taken apart it is there twice: as it came, and in the feeds
COPIES: Final = 2


class ByteBudget:
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

    def sizes(self, wanting: list[PartitionBuffer], room: int, *, bounded: bool) -> list[tuple[PartitionBuffer, int]]:
        """How much to ask of each partition; all of them if the broker bounds the answer by itself."""
        if bounded:
            # always the same: a broker that remembers what it was asked for hears only of what changed
            return [(feed, self.max_partition_bytes) for feed in wanting]
        # an old broker sends as much as it is asked for of each, so the parts together must fit
        each = min(self.max_partition_bytes, room, max(room // len(wanting), LEAST_OLD))
        asked: list[tuple[PartitionBuffer, int]] = []
        for feed in wanting:
            size = max(each, feed.need)
            # a record larger than all the room has to come alone
            if size <= room or not asked:
                asked.append((feed, size))
                room -= size
        return asked
