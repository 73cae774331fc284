"""What each partition's part of an answer leads to."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from allocator.errors import AllocatorError, BrokerError, CorruptRecordError, RecordTooLarge
from allocator.fetch.decode import RecordSet, scan
from allocator.fetch.feed import Chunk, Failure, Feed, OutOfRange
from allocator.fetch.reactions import Reaction, error_of, reaction_to
from allocator.subscription import SubscriptionState
from allocator.wire.fetch_request import BOUNDED, Part

if TYPE_CHECKING:
    from allocator.fetch.leaders import Leaders, Sink

__all__ = ["Answers"]

log = logging.getLogger(__name__)

# seconds until something that someone has to mend is tried again
HOPELESS_S = 2.0


class Answers:
    """Turns answers into what the feeds hold, by the table of `reactions`. Waits for nothing."""

    def __init__(
        self,
        leaders: Leaders,
        state: SubscriptionState,
        sink: Sink,
        *,
        check_crcs: bool,
        max_bytes: int,
        backoff: tuple[float, float],
    ) -> None:
        self._leaders = leaders
        self._state = state
        self._sink = sink
        self._check_crcs = check_crcs
        self._max_bytes = max_bytes
        self._backoff = backoff

    def take(self, feed: Feed, offset: int, size: int, part: Part, version: int) -> None:
        """`part` answers a request of `size` bytes at `offset`, made for `feed`."""
        if not self._leaders.is_current(feed) or feed.fetch_offset != offset:
            return  # void: sought, reset, reassigned, or given back meanwhile
        reaction = reaction_to(part.code)
        if reaction is Reaction.TAKE:
            feed.succeeded()
            self._state.update_high_watermark(feed.tp, part.high_watermark)
            if part.records:
                self._records(feed, offset, size, part, version)
            return
        if part.code and reaction is not Reaction.RESET:
            log.info("%s:%d at offset %d: error %d, %s", *feed.tp, offset, part.code, reaction.value)
        if reaction in (Reaction.RETRY, Reaction.REFRESH):
            feed.back_off(time.monotonic(), *self._backoff)
            if reaction is Reaction.REFRESH:
                self._leaders.want_metadata(feed.tp.topic)
        elif reaction is Reaction.RESET:
            feed.halt(OutOfRange(offset))
            self._sink.arrived(feed)
        elif reaction is Reaction.RAISE:
            self._tell_once(feed, error_of(part.code, feed.tp, offset))
        else:
            self._halt(feed, error_of(part.code, feed.tp, offset))

    def lost(self, feeds: Iterable[Feed], error: BrokerError) -> None:
        """No answer came for `feeds`."""
        now = time.monotonic()
        for feed in feeds:
            feed.back_off(now, *self._backoff)
            if not self._leaders.is_current(feed):
                continue
            self._leaders.want_metadata(feed.tp.topic)
            if not error.retriable:
                self._tell_once(feed, error)

    def _records(self, feed: Feed, offset: int, size: int, part: Part, version: int) -> None:
        found = scan(
            part.records,
            topic=feed.tp.topic,
            partition=feed.tp.partition,
            start=offset,
            aborted=part.aborted,
            check_crcs=self._check_crcs,
        )
        if found.wanted is not None and found.error is None:
            self._cut_off(feed, offset, size, found, version)
            return
        feed.need = 0
        if found.next_offset > offset:
            self._leaders.push(feed, Chunk(found, offset, part.high_watermark))
        if found.error is not None:
            feed.halt(Failure(found.error))
        elif found.next_offset <= offset:
            why = "the broker sent only records from before this offset"
            feed.halt(Failure(CorruptRecordError(feed.tp.topic, feed.tp.partition, offset, why)))
        self._sink.arrived(feed)

    def _cut_off(self, feed: Feed, offset: int, size: int, found: RecordSet, version: int) -> None:
        """Not even one record batch came whole."""
        wanted = found.wanted or 0
        if version >= BOUNDED:
            # these brokers send the first one whole whatever the limits, so its length is wrong
            why = f"a record batch of {wanted} bytes of which {len(found.data)} came"
            self._halt(feed, CorruptRecordError(feed.tp.topic, feed.tp.partition, offset, why))
        elif max(wanted, size + 1) > self._max_bytes:
            length = f"{wanted} bytes" if wanted else f"more than {size} bytes"
            why = f"a message of {length}, above max_bytes of {self._max_bytes}; raise that, or seek past it"
            self._halt(feed, RecordTooLarge(feed.tp.topic, feed.tp.partition, offset, why))
        else:
            feed.need = min(max(wanted, 2 * size), self._max_bytes)

    def _halt(self, feed: Feed, error: AllocatorError) -> None:
        feed.halt(Failure(error))
        self._sink.arrived(feed)

    def _tell_once(self, feed: Feed, error: AllocatorError) -> None:
        feed.next_try = time.monotonic() + HOPELESS_S
        if feed.told is not type(error):
            feed.told = type(error)
            self._sink.tell(error)
