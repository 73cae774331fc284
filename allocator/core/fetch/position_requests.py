"""The requests beside Fetch: positions for resets, positions to validate, and leaders that are unknown."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from allocator.core.aio.backoff import Backoff
from allocator.core.client.log_offsets import Found, ends_of_epochs, is_supported, list_offsets
from allocator.core.errors import AllocatorError, BrokerError, Closed
from allocator.core.fetch.repeats import RepeatedFailures
from allocator.core.subscription import LATEST, LogTruncation, SubscriptionState
from allocator.core.subscription.loss import PositionTruncated, listed
from allocator.core.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient

log = logging.getLogger(__name__)

# pause before retrying after an error that an operator has to fix
HOPELESS_S = 2.0
# the longest pause between metadata requests. longer: a topic or leader that comes back is found later; shorter: more
# requests meanwhile
LOOKUP_BACKOFF_MAX_S: Final = 1.0

Asked = dict[TopicPartition, tuple[OffsetAndMetadata, int]]
"""The position to validate, and the state's epoch of the partition at that time."""


class ResetRequests:
    """Sends the ListOffsets requests of the resets that the state awaits.

    Guarantee: an offset is adopted only if no seek, other reset or reassignment happened since the request; a failing
    partition does not delay those of other leaders or topics. An error that a retry does not fix goes to `fail`,
    for one partition of each topic. `found` gets each partition, its offset, and the epoch of the request.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        *,
        isolation_level: str,
        backoff_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        fail: Callable[[TopicPartition, AllocatorError], None],
        found: Callable[[TopicPartition, int, int], None],
    ) -> None:
        self._client = client
        self._failures = RepeatedFailures(log)
        self._state = state
        self._isolation_level = isolation_level
        self._backoff_s = backoff_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._fail = fail
        self._found = found

    def next_time(self) -> float | None:
        return self._state.next_offset_reset_retry_time()

    def due(self) -> set[TopicPartition]:
        """Partitions to reset now. They are not due again until the attempt has ended or timed out."""
        due = self._state.partitions_needing_reset()
        self._state.set_reset_pending(due, self._clock() + 2 * self._timeout_s)
        return due

    async def run(self, due: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Reset these partitions. Returns those whose leader is unknown and should be looked up."""
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        lost = set()
        for tp in due:
            leader = self._client.leader(tp)
            if leader is None:
                lost.add(tp)
            else:
                by_leader[leader].append(tp)
        self._failed(lost)
        await asyncio.gather(*(self._ask(tps) for tps in by_leader.values()))
        return lost

    async def _ask(self, tps: Iterable[TopicPartition]) -> None:
        state = self._state
        wanted = {tp: (state.epoch(tp), state.reset_strategy(tp)) for tp in tps if state.is_offset_reset_needed(tp)}
        at = {tp: strategy for tp, (_, strategy) in wanted.items() if strategy is not None}
        if not at:
            return
        # taken before the requests, which fail at a leader of another epoch
        leaders = {tp: self._client.leader_epoch(tp) for tp in at}
        try:
            found = await self._list(at)
            late = {tp: LATEST for tp, there in found.items() if there is None}
            if late:  # all records are older than the requested time
                found.update(await self._list(late))
        except Closed:
            raise
        except AllocatorError as error:
            topics = {tp.topic for tp in at}
            if not error.retriable and len(topics) > 1:
                # the request succeeds for all topics or none, so one unauthorized topic would stop the others
                await asyncio.gather(*(self._ask([tp for tp in at if tp.topic == topic]) for topic in topics))
                return
            names = ", ".join(sorted(topics))
            self._failures.note(
                (names, type(error)), "no position for %d partitions of %s yet: %s", len(at), names, error
            )
            self._failed(at, self._backoff_s if error.retriable else HOPELESS_S)
            if not error.retriable:
                for tp in {tp.topic: tp for tp in sorted(at, reverse=True)}.values():
                    self._fail(tp, error)  # once for all partitions of a topic
            return
        for tp, there in found.items():
            epoch = wanted[tp][0]
            if there is None or epoch is None:
                continue
            # with the epoch, so that a truncation is noticed before the first record is read (KIP-320)
            if state.complete_reset(tp, listed(there), epoch, leaders[tp]):
                log.info("%s:%d starts at offset %d", tp.topic, tp.partition, there.offset)
                self._found(tp, there.offset, epoch)

    async def _list(self, at: dict[TopicPartition, int]) -> Found:
        return await list_offsets(self._client, at, isolation_level=self._isolation_level, timeout_s=self._timeout_s)

    def _failed(self, tps: Iterable[TopicPartition], delay_s: float | None = None) -> None:
        self._state.reset_failed(tps, self._clock() + (self._backoff_s if delay_s is None else delay_s))


class ValidationRequests:
    """Sends the OffsetForLeaderEpoch requests of the validations that the state awaits (KIP-320).

    Guarantee: a response counts only for the position in the request. Where the log was truncated, reading continues
    at the truncation and `cut` is called, or `fail` gets a `LogTruncated` if there is no reset strategy. Another
    error that a retry does not fix goes to `fail` too, until the partition is `healed`.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        *,
        backoff_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        fail: Callable[..., None],
        healed: Callable[[TopicPartition], None],
        cut: Callable[[LogTruncation], None],
    ) -> None:
        self._client = client
        self._failures = RepeatedFailures(log)
        self._state = state
        self._backoff_s = backoff_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._fail = fail
        self._healed = healed
        self._cut = cut

    def look(self, partitions: Iterable[TopicPartition]) -> None:
        """After a metadata update: validate positions whose leader is newer than they are.

        Or older, because the epochs of a topic that is created again start at 0.
        """
        if is_supported(self._client):
            for tp in partitions:
                epoch = self._client.leader_epoch(tp)
                if not self._state.maybe_validate_position_for_current_leader(tp, epoch):
                    self._state.doubt_position(tp, epoch)

    def next_time(self) -> float | None:
        return self._state.next_offset_validation_retry_time()

    def due(self) -> set[TopicPartition]:
        """Partitions to validate now. They are not due again until the attempt has ended or timed out."""
        due = self._state.partitions_needing_validation()
        self._state.set_validation_pending(due, self._clock() + 2 * self._timeout_s)
        return due

    async def run(self, due: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Validate these partitions. Returns those whose leader should be looked up."""
        state, client = self._state, self._client
        by_leader: dict[int, Asked] = defaultdict(dict)
        lost = set()
        for tp in due:
            epoch, position = state.epoch(tp), None
            if state.is_offset_validation_needed(tp):
                position = state.position(tp)
            if epoch is None or position is None:
                continue
            leader = client.leader(tp)
            if position.leader_epoch < 0 or not is_supported(client):
                state.complete_validation(tp)  # nothing to compare, or the brokers are too old
            elif leader is None:
                lost.add(tp)
            else:
                by_leader[leader][tp] = (position, epoch)
        self._failed(lost)
        for found in await asyncio.gather(*(self._ask(leader, asked) for leader, asked in by_leader.items())):
            lost |= found
        return lost

    async def _ask(self, leader: int, asked: Asked) -> set[TopicPartition]:
        """Ask one leader. Returns the partitions that it may not lead."""
        state = self._state
        try:
            ends = await ends_of_epochs(
                self._client,
                leader,
                {tp: position.leader_epoch for tp, (position, _) in asked.items()},
                timeout_s=self._timeout_s,
            )
        except Closed:
            raise
        except BrokerError as error:
            ends = dict.fromkeys(asked, error)
        doubted = set()
        for tp, end in ends.items():
            position, epoch = asked[tp]
            if isinstance(end, BrokerError):
                self._failures.note(
                    (tp, end.code), "%s:%d at offset %d is not validated yet: %s", *tp, position.offset, end
                )
                self._failed([tp], self._backoff_s if end.retriable else HOPELESS_S)
                doubted.add(tp)
                if not end.retriable:
                    self._fail(tp, end, lasting=True)
                continue
            self._healed(tp)
            cut = state.maybe_complete_validation(tp, position, end.offset, end.epoch, epoch=epoch)
            if cut is None:
                if state.epoch(tp) == epoch and state.is_offset_validation_needed(tp):
                    self._failed([tp], 0.0)  # the position has changed since the request: send it again
                continue
            there = None if cut.divergent is None else cut.divergent.offset
            if cut.resolved:
                self._cut(cut)
            else:
                self._fail(tp, PositionTruncated(tp.topic, tp.partition, position.offset, there))
        return doubted

    def _failed(self, tps: Iterable[TopicPartition], delay_s: float | None = None) -> None:
        self._state.validation_failed(tps, self._clock() + (self._backoff_s if delay_s is None else delay_s))


class Lookups:
    """Metadata requests for topics whose leaders are unknown or have refused a fetch.

    Guarantee: one request at a time, and a pause after it that doubles while a leader or topic stays unknown.
    """

    def __init__(self, client: KafkaClient, backoff_s: float, changed: Callable[[], None]) -> None:
        self._client = client
        self._failed_lines = RepeatedFailures(log)
        self._backoff = Backoff(backoff_s, LOOKUP_BACKOFF_MAX_S)
        self._changed = changed
        self._leaderless: set[str] = set()
        # topics with a partition that the asked broker does not lead
        self.doubted: set[str] = set()
        self._under_way = False
        self._not_before = 0.0

    def due(self, leaderless: set[str], now: float, times: list[float]) -> set[str]:
        """The topics to `run` now, with those that are `leaderless`; adds to `times` when to call this again."""
        self._leaderless = leaderless
        topics = leaderless | self.doubted
        if not topics or self._under_way:
            return set()
        if now < self._not_before:
            times.append(self._not_before)
            return set()
        self._under_way = True
        self.doubted = set()
        return topics

    async def run(self, topics: set[str]) -> None:
        """Request the metadata of these topics, then call `changed`."""
        try:
            await self._client.refresh(topics)
        except Closed:
            return
        except AllocatorError as error:
            names = ", ".join(sorted(topics))
            self._failed_lines.note((names, type(error)), "metadata of %s: %s", names, error)
        finally:
            if not self._leaderless and all(self._client.partitions(topic) for topic in topics):
                self._backoff.reset()
            self._not_before = time.monotonic() + self._backoff.next()
            self._under_way = False
            self._changed()
