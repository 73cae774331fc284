"""What is read ahead of one partition."""

from __future__ import annotations

from collections import deque
from typing import Union

from allocator.errors import AllocatorError
from allocator.fetch.decode import RecordSet
from allocator.types import TopicPartition

__all__ = ["Chunk", "Failure", "Feed", "OutOfRange"]


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


class Feed:
    """One assigned partition under one epoch: the offset to fetch next, and what was fetched but not handed out.

    Guarantee: things come out in the order of offsets, errors in their place. A seek, reset or reassignment makes a
    new feed, so an answer that was asked for by an old one finds it replaced and is dropped.
    """

    __slots__ = (
        "epoch",
        "failures",
        "fetch_offset",
        "halted",
        "held",
        "in_flight",
        "need",
        "next_try",
        "queue",
        "told",
        "tp",
    )

    def __init__(self, tp: TopicPartition, epoch: int, offset: int) -> None:
        self.tp = tp
        self.epoch = epoch
        self.fetch_offset = offset
        self.queue: deque[Union[Chunk, OutOfRange, Failure]] = deque()
        self.held = 0
        self.in_flight = False
        # something in the queue, or told to the consumer, must be dealt with first
        self.halted = False
        self.failures = 0
        self.next_try = 0.0
        # bytes that the next record needs, where known: before 0.10.1 it cannot be had by asking for fewer
        self.need = 0
        # the kind of error the consumer knows of already
        self.told: type[AllocatorError] | None = None

    def push(self, chunk: Chunk) -> None:
        """Keep an answer and go on after it."""
        self.queue.append(chunk)
        self.held += chunk.size
        self.fetch_offset = chunk.found.next_offset

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

    def succeeded(self) -> None:
        self.failures = 0
        self.told = None
