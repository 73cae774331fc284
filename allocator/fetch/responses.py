"""What each partition's part of an answer leads to."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from allocator.client.errors import FetchReaction, error_of, reaction_to
from allocator.client.fetch_messages import BOUNDED, FetchedPartition
from allocator.errors import AllocatorError, BrokerError, CorruptRecordError, RecordTooLarge
from allocator.fetch.buffer import Chunk, Failure, OutOfRange, PartitionBuffer
from allocator.fetch.decode import RecordSet, scan
from allocator.subscription import SubscriptionState

if TYPE_CHECKING:
    from allocator.fetch.brokers import BrokerFetchers, Sink

__all__ = ["Answers"]

log = logging.getLogger(__name__)

# seconds until something that someone has to mend is tried again
HOPELESS_S = 2.0
# how long another replica is read before the leader is asked again which one it should be (KIP-392)
REPLICA_LEASE_S = 300.0
# how long the leader is read itself after that replica failed: it goes on naming a dead one until its session is over,
# and sends no records to whoever it sends elsewhere
REPLICA_SHUNNED_S = 20.0


class Answers:
    """Turns answers into what the feeds hold, by the table of `reactions`. Waits for nothing."""

    def __init__(
        self,
        leaders: BrokerFetchers,
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

    def take(
        self, feed: PartitionBuffer, offset: int, size: int, part: FetchedPartition, version: int, node_id: int
    ) -> None:
        """`part` answers a request of `size` bytes at `offset`, made for `feed` to broker `node_id`.

        That it brought records, the caller tells the sink, once the next request is on its way.
        """
        if not self._leaders.is_current(feed) or feed.fetch_offset != offset or feed.halted:
            return  # void: sought, reset, reassigned, given back, or halted meanwhile
        state, tp = self._state, feed.tp
        reaction = reaction_to(part.code)
        if reaction is FetchReaction.TAKE:
            feed.succeeded()
            state.update_high_watermark(tp, part.high_watermark)
            state.update_last_stable_offset(tp, part.last_stable_offset)
            if part.preferred_replica >= 0:
                expiry = time.monotonic() + REPLICA_LEASE_S
                if state.update_preferred_read_replica(tp, part.preferred_replica, expiry):
                    log.info("%s:%d is read from broker %d, which is nearer", *tp, part.preferred_replica)
            if part.records:
                self._records(feed, offset, size, part, version)
            return
        if part.code and reaction is not FetchReaction.RESET:
            log.info("%s:%d at offset %d: error %d, %s", *tp, offset, part.code, reaction.value)
        if self._leave_replica(feed, node_id):
            # what another replica lacks or refuses, the leader may have; it says what is really wrong
            self._leaders.want_metadata(tp.topic)
        elif reaction in (FetchReaction.RETRY, FetchReaction.REFRESH, FetchReaction.VALIDATE):
            feed.back_off(time.monotonic(), *self._backoff)
            if reaction is not FetchReaction.RETRY:
                self._leaders.want_metadata(tp.topic)
            if reaction is FetchReaction.VALIDATE:
                state.request_position_validation(tp)
        elif reaction is FetchReaction.RESET:
            feed.halt(OutOfRange(offset))
            self._sink.arrived(feed)
        elif reaction is FetchReaction.RAISE:
            self._tell_once(feed, error_of(part.code, feed.tp, offset))
        else:
            self._halt(feed, error_of(part.code, feed.tp, offset))

    def lost(self, feeds: Iterable[PartitionBuffer], error: BrokerError, node_id: int) -> None:
        """No answer came for `feeds` from broker `node_id`."""
        now = time.monotonic()
        for feed in feeds:
            if not self._leaders.is_current(feed):
                feed.back_off(now, *self._backoff)
                continue
            self._leaders.want_metadata(feed.tp.topic)
            if self._leave_replica(feed, node_id):
                continue
            feed.back_off(now, *self._backoff)
            if not error.retriable:
                self._tell_once(feed, error)

    def _leave_replica(self, feed: PartitionBuffer, node_id: int) -> bool:
        """Back to the leader, if broker `node_id` is another replica. Returns whether it was."""
        if self._state.preferred_read_replica(feed.tp) != node_id:
            return False
        self._state.clear_preferred_read_replica(feed.tp)
        feed.near_after = time.monotonic() + REPLICA_SHUNNED_S
        log.info("%s:%d is read from its leader again, not from broker %d", *feed.tp, node_id)
        return True

    def _records(self, feed: PartitionBuffer, offset: int, size: int, part: FetchedPartition, version: int) -> None:
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
        if feed.precedes(found):
            self._sink.recreated(feed.tp)
            return
        if found.next_offset > offset:
            self._leaders.push(feed, Chunk(found, offset, part.high_watermark))
        if found.error is not None:
            feed.halt(Failure(found.error))
        elif found.next_offset <= offset:
            why = "the broker sent only records from before this offset"
            feed.halt(Failure(CorruptRecordError(feed.tp.topic, feed.tp.partition, offset, why)))

    def _cut_off(self, feed: PartitionBuffer, offset: int, size: int, found: RecordSet, version: int) -> None:
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

    def _halt(self, feed: PartitionBuffer, error: AllocatorError) -> None:
        feed.halt(Failure(error))
        self._sink.arrived(feed)

    def _tell_once(self, feed: PartitionBuffer, error: AllocatorError) -> None:
        feed.next_try = time.monotonic() + HOPELESS_S
        if feed.told is not type(error):
            feed.told = type(error)
            self._sink.tell(error)
