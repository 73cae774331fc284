"""Buffers fetched records of each partition until delivery, within one budget of bytes."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Union

from allocator.core.aio.backoff import Backoff
from allocator.core.client.fetch_messages import Wanted
from allocator.core.errors import AllocatorError
from allocator.core.fetch.decode import RecordSet
from allocator.core.subscription.loss import Listed
from allocator.core.types import OffsetAndMetadata, TopicPartition

# the start of a record batch of any format: offset, length, leader epoch (in v2; before it, a checksum), format version
_FRONT: Final = struct.Struct(">qiib")
_BEFORE_LENGTH: Final = 12
# the smallest request for a partition to a broker before 0.10.1, which limits each partition and not the response
LEAST_OLD: Final = 1 << 16
# the largest response to request. Higher: fewer requests; lower: other partitions wait less for a large response
RESPONSE_BYTES: Final = 50 << 20
# while a response is read, it is in memory twice: as received, and in the buffers
COPIES: Final = 2


class Chunk(NamedTuple):
    """The records of one response. `start` is the requested offset."""

    found: RecordSet
    start: int
    high_watermark: int

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self.found.data)


class OutOfRange(NamedTuple):
    """The broker's log does not have this offset. Takes effect after the consumer has all records before it."""

    offset: int


class Failure(NamedTuple):
    """An error to raise after the records before it."""

    error: AllocatorError


class PartitionBuffer:
    """The next offset to fetch of one partition, and its fetched records before delivery.

    Guarantee: records leave the buffer in the order of offsets, each error after the records before it, and `budget`
    counts their bytes.
    A seek, reset or reassignment creates a new buffer, so the response to a request for the old buffer is dropped.
    """

    def __init__(
        self, tp: TopicPartition, epoch: int, position: OffsetAndMetadata, budget: ByteBudget, now: float = 0.0
    ) -> None:
        self.tp = tp
        self.epoch = epoch
        self.fetch_offset = position.offset
        self._budget = budget
        # (offset, leader epoch) of each record whose epoch differs from the previous record's. The first entry is the
        # record before the position
        before = -1 if isinstance(position, Listed) else position.leader_epoch
        self._epochs: list[tuple[int, int]] = [(position.offset - 1, before)]
        self.queue: deque[Union[Chunk, OutOfRange, Failure]] = deque()
        self.held = 0
        self.in_flight = False
        # when a broker last responded about the partition, or its log came into doubt
        self.seen_at = now
        # True: fetch nothing until the consumer has reacted to an error
        self.halted = False
        self.failures = 0
        self.next_try = 0.0
        # until this time, fetch from the leader, because the preferred replica has failed
        self.leader_until = 0.0
        # size of the next record if known, else 0: brokers before 0.10.1 do not send it to a smaller request
        self.need = 0
        # the last request for the partition: a request in a fetch session lists only partitions that changed
        self.wanted: Wanted | None = None

    def push(self, chunk: Chunk) -> None:
        """Appends the records of a response. The next fetch starts after them."""
        self.queue.append(chunk)
        self._hold(chunk.size)
        self.fetch_offset = chunk.found.next_offset
        self.need = 0
        self._note_epochs(chunk)

    def pop(self) -> None:
        first = self.queue.popleft()
        if isinstance(first, Chunk):
            self._hold(-first.size)

    def halt(self, what: OutOfRange | Failure) -> None:
        """Stops fetching. `what` takes effect after delivery of the buffered records."""
        self.halted = True
        self.queue.append(what)

    def clear(self) -> None:
        """Drops the buffered records."""
        self.queue.clear()
        self._hold(-self.held)

    def rewind(self) -> int:
        """Drops the buffered records, to be fetched again when the budget allows. Returns the freed bytes."""
        freed = self.held
        for item in self.queue:
            if isinstance(item, Chunk):
                self.fetch_offset = item.start
                break
        # forgets the epochs of the dropped records: otherwise the next records, which are older, would look like a
        # recreated topic
        del self._epochs[max(1, bisect_left(self._epochs, (self.fetch_offset, -2))) :]
        self.clear()
        self.halted = False
        return freed

    def _hold(self, size: int) -> None:
        self.held += size
        self._budget.held += size

    # -- leader epochs (KIP-320)

    def leader_epoch(self, offset: int) -> int:
        """Returns the epoch of the last record before `offset`; -1 if it was not fetched or its format has no epoch."""
        if offset > self.fetch_offset:
            return -1
        at = bisect_left(self._epochs, (offset, -2)) - 1
        return self._epochs[at][1] if at >= 0 else -1

    def precedes(self, found: RecordSet) -> bool:
        """Returns whether `found` has an older epoch than earlier records. Then the topic was deleted and recreated."""
        epoch = found.segments[0].leader_epoch if found.segments else None
        return epoch is not None and 0 <= epoch < self._epochs[-1][1]

    def _note_epochs(self, chunk: Chunk) -> None:
        segments, end = chunk.found.segments, chunk.found.next_offset
        if segments:
            last = self._epochs[-1][1]
            if last == segments[0].leader_epoch == segments[-1].leader_epoch and segments[-1].next_offset == end:
                return  # epochs never decrease, so all segments have this epoch
            for segment in segments:
                self._note_epoch(segment.base_offset, segment.leader_epoch)
        if not segments or segments[-1].next_offset < end:
            # markers and aborted records are in no segment, but the position moves past them
            self._note_epoch(end - 1, _last_epoch(chunk.found.data))

    def _note_epoch(self, offset: int, epoch: int | None) -> None:
        epoch = -1 if epoch is None else epoch
        if self._epochs[-1][1] != epoch:
            self._epochs.append((max(offset, self._epochs[-1][0] + 1), epoch))

    # -- failures

    def back_off(self, now: float, backoff: Backoff) -> None:
        """Pauses fetching, longer after each failure in a row."""
        self.failures += 1
        self.next_try = now + backoff.nth(self.failures)


def _last_epoch(data: bytes) -> int:
    """Returns the leader epoch of the last complete record batch in `data`; -1 if there is none."""
    pos, epoch = 0, -1
    while pos + _FRONT.size <= len(data):
        _, length, found, magic = _FRONT.unpack_from(data, pos)
        pos += _BEFORE_LENGTH + max(0, length)
        if pos <= len(data):
            epoch = found if magic == 2 else -1
    return epoch


class ByteBudget:
    """Counts the bytes of `prefetch_bytes` that are in the buffers (`held`) and that may still arrive (`reserved`).

    Guarantee: the sum stays within `prefetch_bytes`; a response counts twice while it is in memory twice. The exception
    is a record batch that is larger than the request: brokers send it whole, so that consumers can proceed (KIP-74).
    """

    def __init__(self, *, prefetch_bytes: int, max_partition_bytes: int) -> None:
        self.prefetch_bytes = prefetch_bytes
        self.record_bytes = max(RESPONSE_BYTES, prefetch_bytes)
        """The largest request for a record to a broker before 0.10.1, which sends only what fits into the request."""
        self.max_partition_bytes = min(max_partition_bytes, prefetch_bytes)
        self.held = 0
        self.reserved = 0
        # a partition with this many buffered bytes is not fetched
        self.share = prefetch_bytes

    def divide(self, partitions: int) -> None:
        """Divides the budget into equal shares for this many partitions."""
        self.share = max(1, self.prefetch_bytes // max(1, partitions))

    def reserve(self, size: int) -> None:
        """Reserves a response of `size` bytes. Call it with `-size` when the request has ended."""
        self.reserved += COPIES * size

    def affordable(self, brokers: int, takers: int, reclaim: Callable[[int], int]) -> int | None:
        """Returns the largest response that may be requested now; None if that is too small to be worth a request.

        `brokers`: number of brokers. `takers`: number of requests that share the free bytes. `reclaim` frees missing
        bytes and returns their number.
        """
        worth = min(self.max_partition_bytes, max(1, self.prefetch_bytes // (4 * COPIES * max(1, brokers))))
        needed = min(COPIES * worth, self.prefetch_bytes)  # the whole budget always suffices for a request
        free = self.prefetch_bytes - self.held - self.reserved
        if free < needed:
            free += reclaim(needed - free)
        if free < needed:
            return None
        return min(RESPONSE_BYTES, max(worth, free // (COPIES * max(1, takers))))

    def sizes(
        self, wanting: list[PartitionBuffer], response_bytes: int, *, bounded: bool
    ) -> list[tuple[PartitionBuffer, int]]:
        """Returns the bytes to request for each partition. `bounded`: the broker limits the whole response."""
        if bounded:
            # always the same size, so that requests in a fetch session (KIP-227) need not list the partition
            return [(buffer, self.max_partition_bytes) for buffer in wanting]
        each = min(self.max_partition_bytes, response_bytes, max(response_bytes // len(wanting), LEAST_OLD))
        requested: list[tuple[PartitionBuffer, int]] = []
        for buffer in wanting:
            size = max(each, buffer.need)
            # always requests the first partition: its next record may be larger than the response limit
            if size <= response_bytes or not requested:
                requested.append((buffer, size))
                response_bytes -= size
        return requested
