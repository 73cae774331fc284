"""Finds positions for resets (ListOffsets), and validates positions (OffsetForLeaderEpoch)."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Optional, Protocol

from allocator.core.client.log_offsets import ends_of_epochs, is_supported, list_offsets
from allocator.core.errors import AllocatorError, BrokerError, Closed
from allocator.core.fetch.repeats import RepeatedFailures
from allocator.core.subscription import LogTruncation, RecordsLost, SubscriptionState, TopicPartitionState
from allocator.core.subscription.loss import listed
from allocator.core.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
# pause before a fetch or position request is repeated after an error that an operator must fix
UNRETRIABLE_PAUSE_S = 2.0

Doubted = set[TopicPartition]
"""Partitions whose leader may have moved."""


class PositionFaults(Protocol):
    """Receives the errors of the requests. `Fetcher` implements it."""

    def fail(self, tp: TopicPartition, error: AllocatorError, *, lasting: bool = False) -> None: ...

    def healed(self, tp: TopicPartition) -> None: ...


class _Resetting(NamedTuple):
    """A position that is being reset."""

    position: int
    why: str
    recreated: bool
    epoch: Optional[int]  # the partition's epoch after the reset was requested


class _Validating(NamedTuple):
    """A position that is being validated, and the epoch of its partition."""

    position: OffsetAndMetadata
    epoch: int


class PositionRequests:
    """Resets and validates the positions of the assigned partitions.

    After an unclean election, the log may end before a position, or have other records there. A consumer that continued
    would skip records without an error. So a partition with a new leader is not read until OffsetForLeaderEpoch has
    returned the end of the last record's epoch in the leader's log (KIP-320).

    Guarantee: a response counts only if no seek, other reset or reassignment came after the request. A failing
    partition does not delay partitions of other leaders or topics. `faults` receives errors that are not retriable; the
    error of a reset only for one partition of each topic. `lost` is called when a reset or a truncation replaced a
    position, before a record at the new position is delivered.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        faults: PositionFaults,
        lost: Callable[[RecordsLost], None] | None,
        *,
        isolation_level: str,
    ) -> None:
        self._client = client
        self._state = state
        self._faults = faults
        self._lost = lost
        self._isolation_level = isolation_level
        self._failures = RepeatedFailures(log)
        self._resetting: dict[TopicPartition, _Resetting] = {}
        # topic -> its earlier ids, which a broker with old metadata may still return
        self._former: dict[str, set[Any]] = {}
        self.leaderless: set[str] = set()
        """Topics with a partition that awaits a position and has no leader."""
        self._due_at = math.inf
        self._cluster_id: str | None = None
        """The id of the cluster that the positions belong to; None while unknown, and before Kafka 0.10.1."""

    # -- positions that are given up

    def check(self, partitions: Iterable[TopicPartition]) -> None:
        """Compares positions with the metadata, to detect topics that were created again, and new leaders.

        Call it after each change of the state, with the partitions whose position or metadata is new.
        """
        self._due_at = 0.0
        if self._is_another_cluster():
            self._state.forget_logs()
            for tp in self._state.assignment:
                self._lost_log(tp, "another cluster answers at the address of the brokers")
        comparable = is_supported(self._client)
        for tp in partitions:
            partition, topic_id = self._state.assignment[tp], self._client.topic_id(tp.topic)
            if topic_id is not None and topic_id not in self._former.get(tp.topic, ()):
                if partition.topic_id not in (None, topic_id):
                    self._former.setdefault(tp.topic, set()).add(partition.topic_id)
                    self.recreated(tp)
                    continue
                if partition.position is not None:
                    partition.topic_id = topic_id
            if comparable:
                epoch = self._client.leader_epoch(tp)
                # accepts an older epoch too, because the epochs of a recreated topic start at 0
                if not partition.maybe_validate_position(epoch):
                    partition.doubt_position(epoch)

    def out_of_range(self, tp: TopicPartition, offset: int) -> AllocatorError | None:
        """Resets a position at `offset`, which the log does not have. With reset strategy "none", returns the error."""
        if self._state.has_default_offset_reset_policy():
            self._state.request_offset_reset(tp)
            self._note_reset(tp, offset, "the log does not have it")
            return None
        from allocator.core.kafka_errors import PositionOutOfRange

        why = "the log does not reach there and auto_offset_reset is 'none'; seek to an offset that it has"
        return PositionOutOfRange(tp.topic, tp.partition, offset, why)

    def recreated(self, tp: TopicPartition) -> None:
        """Resets a position in a topic that was created again, or reports `TopicRecreated`."""
        self._lost_log(tp, "the topic was deleted and created again")

    def _lost_log(self, tp: TopicPartition, why: str) -> None:
        partition = self._state.assignment[tp]
        offset = partition.reset_from if partition.position is None else partition.position.offset
        if offset is None:
            return
        if self._state.has_default_offset_reset_policy():
            self._state.request_offset_reset(tp)
            partition.lose_log()
            self._note_reset(tp, offset, why, recreated=True)
        else:
            from allocator.core.kafka_errors import PositionOfOldTopic

            partition.recreated()
            partition.lose_log()
            self._faults.fail(tp, PositionOfOldTopic(tp.topic, tp.partition, offset))

    def _is_another_cluster(self) -> bool:
        """Returns whether the id of the cluster has changed since the last call: other servers have the address."""
        before, now = self._cluster_id, self._client.metadata.cluster_id
        self._cluster_id = now or before
        return None not in (before, now) and before != now

    def _note_reset(self, tp: TopicPartition, offset: int, why: str, *, recreated: bool = False) -> None:
        strategy = self._state.reset_strategy
        log.warning("%s:%d at offset %d: %s; resetting to %s", *tp, offset, why, strategy)
        self._resetting[tp] = _Resetting(offset, why, recreated, self._state.epoch(tp))

    # -- requests

    def due(self, now: float) -> tuple[list[Coroutine[Any, Any, Doubted]], float]:
        """Returns the requests to run as tasks, and when to call this again (`math.inf`: no position is awaited).

        There is one request for each leader and kind. Its partitions are due again when it has failed or timed out.
        """
        if now < self._due_at:
            return [], self._due_at
        resets: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        validations: dict[int, dict[TopicPartition, _Validating]] = defaultdict(dict)
        comparable = is_supported(self._client)
        self._due_at = math.inf
        self.leaderless = set()
        for tp, partition in self._state.assignment.items():
            position, leader = partition.position, self._client.leader(tp)
            if partition.awaiting_validation and position is not None and (position.leader_epoch < 0 or not comparable):
                partition.complete_validation()  # without an epoch, or with old brokers, there is nothing to compare
            elif not (partition.awaiting_reset or partition.awaiting_validation):
                pass
            elif leader is None:
                self.leaderless.add(tp.topic)  # due when new metadata arrives
            else:
                if partition.retry_at < now:
                    partition.retry_at = now + 2 * TIMEOUT_S
                    if position is None:
                        resets[leader][tp] = partition.epoch
                    else:
                        validations[leader][tp] = _Validating(position, partition.epoch)
                self._due_again(partition)
        requests = [self._reset(requested) for requested in resets.values()]
        return [*requests, *(self._validate(*requested) for requested in validations.items())], self._due_at

    def _due_again(self, partition: TopicPartitionState) -> None:
        self._due_at = min(self._due_at, partition.retry_at + 0.001)  # a retry must be later than `retry_at`

    def _current(self, tp: TopicPartition, epoch: int) -> TopicPartitionState | None:
        """Returns the partition, or None if a seek, other reset or reassignment came after `epoch`."""
        partition = self._state.assignment.get(tp)
        return None if partition is None or partition.epoch != epoch else partition

    def _retry(self, tp: TopicPartition, epoch: int, pause_s: float) -> None:
        partition = self._current(tp, epoch)
        if partition is not None and (partition.awaiting_reset or partition.awaiting_validation):
            partition.retry_at = time.monotonic() + pause_s
            self._due_again(partition)

    async def _reset(self, requested: dict[TopicPartition, int]) -> Doubted:
        at = {}
        for tp, epoch in requested.items():
            partition = self._current(tp, epoch)
            if partition is not None and partition.reset_strategy is not None:
                at[tp] = partition.reset_strategy
        try:
            if lost := [tp for tp in at if tp in self._resetting and self._state.topic_id(tp) is not None]:
                # the topic may have been created again since the metadata; then its reset begins anew
                await self._client.refresh({tp.topic for tp in lost})
                self.check([tp for tp in lost if tp in self._state.assignment])
                at = {tp: strategy for tp, strategy in at.items() if self._current(tp, requested[tp]) is not None}
            # read before the requests, which fail at a leader of another epoch
            leaders = {tp: self._client.leader_epoch(tp) for tp in at}
            level = self._isolation_level
            found = await list_offsets(self._client, at, isolation_level=level, timeout_s=TIMEOUT_S, or_end=True)
        except Closed:
            raise
        except AllocatorError as error:
            topics = {tp.topic for tp in at}
            if not error.retriable and len(topics) > 1:
                # the request succeeds for all topics or none, so an unauthorized topic would stop the others
                by_topic = [{tp: requested[tp] for tp in at if tp.topic == topic} for topic in topics]
                await asyncio.gather(*map(self._reset, by_topic))
                return set()
            names = ", ".join(sorted(topics))
            message = "no position for %d partitions of %s yet: %s"
            self._failures.note((names, type(error)), message, len(at), names, error)
            for tp in at:
                self._retry(tp, requested[tp], self._client.retry_backoff_s if error.retriable else UNRETRIABLE_PAUSE_S)
            if not error.retriable:
                for tp in {tp.topic: tp for tp in sorted(at, reverse=True)}.values():
                    self._faults.fail(tp, error)  # reports the error once for each topic
            return set()
        for tp, there in found.items():
            # the epoch allows detecting a truncation before the first record is read (KIP-320)
            if there is not None and self._state.complete_reset(tp, listed(there), requested[tp], leaders[tp]):
                log.info("%s:%d starts at offset %d", *tp, there.offset)
                self._report_reset(tp, there.offset, requested[tp])
        return set()

    def _report_reset(self, tp: TopicPartition, offset: int, epoch: int) -> None:
        before = self._resetting.pop(tp, None)
        if before is None or before.epoch != epoch:
            return  # nothing was lost: there was no position before, or a later reset replaced this one
        first = 0 if before.recreated else before.position
        last = offset - 1 if offset > first else None
        start = None if last is None else first
        self._report_loss(RecordsLost(tp, before.position, offset, start, last, before.why, before.recreated))

    def _report_loss(self, loss: RecordsLost) -> None:
        log.warning("%s", loss)
        if self._lost is not None:
            self._lost(loss)

    async def _validate(self, leader: int, requested: dict[TopicPartition, _Validating]) -> Doubted:
        epochs = {tp: each.position.leader_epoch for tp, each in requested.items()}
        try:
            ends = await ends_of_epochs(self._client, leader, epochs, timeout_s=TIMEOUT_S)
        except BrokerError as error:
            ends = dict.fromkeys(requested, error)
        doubted = set()
        for tp, end in ends.items():
            position, epoch = requested[tp]
            if isinstance(end, BrokerError):
                message = "%s:%d at offset %d is not validated yet: %s"
                self._failures.note((tp, end.code), message, *tp, position.offset, end)
                self._retry(tp, epoch, self._client.retry_backoff_s if end.retriable else UNRETRIABLE_PAUSE_S)
                doubted.add(tp)
                if not end.retriable:
                    self._faults.fail(tp, end, lasting=True)
                continue
            self._faults.healed(tp)
            cut = self._state.maybe_complete_validation(tp, position, end.offset, end.epoch, epoch=epoch)
            if cut is not None:
                self._truncated(cut)
            else:
                self._retry(tp, epoch, 0.0)  # validates again if the position has changed since the request
        return doubted

    def _truncated(self, what: LogTruncation) -> None:
        """Reacts to a log that was truncated before the position."""
        tp, position, why = what.partition, what.position.offset, "the log of its new leader was truncated before it"
        if not what.resolved:
            from allocator.core.kafka_errors import PositionTruncated

            there = None if what.divergent is None else what.divergent.offset
            self._faults.fail(tp, PositionTruncated(tp.topic, tp.partition, position, there))
        elif what.divergent is not None:
            self._report_loss(RecordsLost(tp, position, what.divergent.offset, None, None, why))
        else:
            self._note_reset(tp, position, why)
