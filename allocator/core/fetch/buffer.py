"""Fetched records that were not delivered yet, partition by partition, within one budget of bytes."""

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

# the start of a record batch of any format: offset, length, leader epoch (v2; a checksum before) and format
_FRONT: Final = struct.Struct(">qiib")
_BEFORE_LENGTH: Final = 12
# the least worth requesting from a broker before 0.10.1, which bounds each partition and not the whole response
LEAST_OLD: Final = 1 << 16
# the most that one request asks for. More: fewer requests; less: other partitions wait less for a large response
RESPONSE_BYTES: Final = 50 << 20
# while a response is read it is in memory twice: as received, and in the buffers
COPIES: Final = 2


class Chunk(NamedTuple):
    """The records of one response. `start` is the requested offset."""

    found: RecordSet
    start: int
    high_watermark: int

    @property
    def size(self) -> int:
        """The bytes that it holds in memory."""
        return len(self.found.data)


class OutOfRange(NamedTuple):
    """The broker has no record at this offset. Takes effect once all records before it were consumed."""

    offset: int


class Failure(NamedTuple):
    """An error to raise when the consumer reaches it."""

    error: AllocatorError


class PartitionBuffer:
    """One assigned partition in one epoch: the next offset to fetch, and the fetched, undelivered records.

    Guarantee: records come out in the order of offsets, errors in their place, and `budget` counts the bytes. A seek,
    reset or reassignment creates a new buffer, so the response to a request of the old one is dropped.
    """

    def __init__(self, tp: TopicPartition, epoch: int, position: OffsetAndMetadata, budget: ByteBudget) -> None:
        self.tp = tp
        self.epoch = epoch
        self.fetch_offset = position.offset
        self._budget = budget
        # (offset, leader epoch) where the epoch changes; the first is that of the record before the position
        before = -1 if isinstance(position, Listed) else position.leader_epoch
        self._epochs: list[tuple[int, int]] = [(position.offset - 1, before)]
        self.queue: deque[Union[Chunk, OutOfRange, Failure]] = deque()
        self.held = 0
        self.in_flight = False
        # fetch no more: the consumer has to react to an error first
        self.halted = False
        self.failures = 0
        self.next_try = 0.0
        # until then the leader is used, because the replica that it named has failed
        self.leader_until = 0.0
        # bytes of the next record, where known: brokers before 0.10.1 do not send it to a smaller request
        self.need = 0
        # the partition as the last request described it: a broker with a fetch session gets only what changed
        self.wanted: Wanted | None = None

    def push(self, chunk: Chunk) -> None:
        """Keep the records of a response; the next fetch begins after them."""
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
        """Stop fetching. `what` takes effect after delivery of the buffered records."""
        self.halted = True
        self.queue.append(what)

    def clear(self) -> None:
        """Drop the buffered records."""
        self.queue.clear()
        self._hold(-self.held)

    def rewind(self) -> int:
        """Drop the buffered records; the fetcher gets them again when there is room. Returns the freed bytes."""
        freed = self.held
        for item in self.queue:
            if isinstance(item, Chunk):
                self.fetch_offset = item.start
                break
        # the records to come are older than the dropped ones, and must not seem to be of another topic
        del self._epochs[max(1, bisect_left(self._epochs, (self.fetch_offset, -2))) :]
        self.clear()
        self.halted = False
        return freed

    def _hold(self, size: int) -> None:
        self.held += size
        self._budget.held += size

    # -- leader epochs (KIP-320)

    def leader_epoch(self, offset: int) -> int:
        """The epoch of the last record before `offset`; -1 if that was not read or its format has no epoch."""
        if offset > self.fetch_offset:
            return -1
        at = bisect_left(self._epochs, (offset, -2)) - 1
        return self._epochs[at][1] if at >= 0 else -1

    def precedes(self, found: RecordSet) -> bool:
        """Whether `found` has an older epoch than the records before it. That happens in no log of one topic."""
        epoch = found.segments[0].leader_epoch if found.segments else None
        return epoch is not None and 0 <= epoch < self._epochs[-1][1]

    def _note_epochs(self, chunk: Chunk) -> None:
        segments, end = chunk.found.segments, chunk.found.next_offset
        if segments:
            last = self._epochs[-1][1]
            if last == segments[0].leader_epoch == segments[-1].leader_epoch and segments[-1].next_offset == end:
                return  # epochs only grow, so all segments between the two have the same one
            for segment in segments:
                self._note_epoch(segment.base_offset, segment.leader_epoch)
        if not segments or segments[-1].next_offset < end:
            # markers and aborted records are not among the segments, but the position passes over them
            self._note_epoch(end - 1, _last_epoch(chunk.found.data))

    def _note_epoch(self, offset: int, epoch: int | None) -> None:
        epoch = -1 if epoch is None else epoch
        if self._epochs[-1][1] != epoch:
            self._epochs.append((max(offset, self._epochs[-1][0] + 1), epoch))

    # -- failures

    def back_off(self, now: float, backoff: Backoff) -> None:
        """Do not fetch for a while; the pause grows with each failure in a row."""
        self.failures += 1
        self.next_try = now + backoff.nth(self.failures)


def _last_epoch(data: bytes) -> int:
    """The leader epoch of the last whole record batch in `data`; -1 if there is none."""
    pos, epoch = 0, -1
    while pos + _FRONT.size <= len(data):
        _, length, found, magic = _FRONT.unpack_from(data, pos)
        pos += _BEFORE_LENGTH + max(0, length)
        if pos <= len(data):
            epoch = found if magic == 2 else -1
    return epoch


class ByteBudget:
    """How much of `prefetch_bytes` is in the buffers (`held`) and how much may still arrive (`reserved`).

    Guarantee: the sum stays within `prefetch_bytes`, a response counted as often as it is in memory. The exception is
    a single record batch that is larger than the request: brokers send it whole, so that consumers can go on (KIP-74).
    """

    def __init__(self, *, prefetch_bytes: int, max_partition_bytes: int) -> None:
        self.prefetch_bytes = prefetch_bytes
        self.record_bytes = max(RESPONSE_BYTES, prefetch_bytes)
        """The largest record to request from a broker before 0.10.1, which sends none that exceeds the request."""
        self.max_partition_bytes = min(max_partition_bytes, prefetch_bytes)
        self.held = 0
        self.reserved = 0
        # a partition that holds this much is not fetched
        self.share = prefetch_bytes

    def divide(self, partitions: int) -> None:
        """Give each of so many partitions an equal share."""
        self.share = max(1, self.prefetch_bytes // max(1, partitions))

    def reserve(self, size: int) -> None:
        """A response of `size` bytes may arrive; call it with `-size` when the request has ended."""
        self.reserved += COPIES * size

    def room(self, brokers: int, takers: int, reclaim: Callable[[int], int]) -> int | None:
        """The largest response that may be requested now; None if that is too small to be worth a request.

        `brokers` is their number; the free bytes are divided by `takers`. `reclaim` is asked to free the bytes that
        are missing, and returns how many it freed.
        """
        worth = min(self.max_partition_bytes, max(1, self.prefetch_bytes // (4 * COPIES * max(1, brokers))))
        free = self.prefetch_bytes - self.held - self.reserved
        if free < COPIES * worth:
            free += reclaim(COPIES * worth - free)
        if free < COPIES * worth:
            return None
        return min(RESPONSE_BYTES, max(worth, free // (COPIES * max(1, takers))))

    def sizes(self, wanting: list[PartitionBuffer], room: int, *, bounded: bool) -> list[tuple[PartitionBuffer, int]]:
        """How many bytes to request of each partition; of all of them if the broker bounds the whole response."""
        if bounded:
            # always the same size, so that a fetch session (KIP-227) has no change to send
            return [(buffer, self.max_partition_bytes) for buffer in wanting]
        each = min(self.max_partition_bytes, room, max(room // len(wanting), LEAST_OLD))
        asked: list[tuple[PartitionBuffer, int]] = []
        for buffer in wanting:
            size = max(each, buffer.need)
            # a record larger than all the room has to come alone
            if size <= room or not asked:
                asked.append((buffer, size))
                room -= size
        return asked
