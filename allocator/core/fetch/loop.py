"""The fetch loop: sends the requests of the planner, and applies the effects of their responses."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.tasks import BackgroundTasks
from allocator.core.client.errors import ErrorCode, RequestFailed, reaction_to_fetch
from allocator.core.client.fetch_messages import BOUNDED, FetchedPartition, FetchRequest, FetchResponse
from allocator.core.errors import AllocatorError, BrokerError, Closed
from allocator.core.fetch.buffer import OutOfRange, PartitionBuffer
from allocator.core.fetch.lookups import Lookups
from allocator.core.fetch.planner import PlannedFetch, Planner
from allocator.core.fetch.position_requests import UNRETRIABLE_PAUSE_S, Doubted, PositionFaults, PositionRequests
from allocator.core.fetch.reactor import SERVED, Effects, effects_of, effects_of_failure
from allocator.core.fetch.repeats import RepeatedFailures
from allocator.core.subscription import SubscriptionState
from allocator.core.types import TopicPartition

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient

log = logging.getLogger(__name__)

SESSIONLESS: Final = 0
# longest pause before a partition is fetched again after a retriable error
BACKOFF_MAX_S: Final = 1.0
# scan this many bytes of a response before other tasks run
MAX_SCAN_BYTES: Final = 1 << 20
# how long to fetch from a preferred replica before the next fetch from the leader (KIP-392)
REPLICA_LEASE_S = 300.0
# How long to fetch from the leader without a rack after its replica failed. The leader names a dead replica until that
# broker's session expires, and sends no records to a client that it redirects
REPLICA_AVOIDED_S = 20.0


Parts = Iterator[tuple[TopicPartition, FetchedPartition]]
"""What a response has of each partition."""


class LoopReports(PositionFaults, Protocol):
    """Receives the reports of the loop. `Fetcher` implements it."""

    def arrived(self, buffer: PartitionBuffer) -> None: ...

    def broke(self, error: BaseException) -> None: ...


class FetchLoop:
    """Sends the requests of `planner` and `positions`, and applies their responses.

    One task plans and sends. `close` cancels it and the tasks of the requests, and waits for them.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        planner: Planner,
        positions: PositionRequests,
        reports: LoopReports,
        *,
        min_bytes: int,
        isolation_level: str,
        rack: str,
    ) -> None:
        self._client = client
        self._state = state
        self._planner = planner
        self._positions = positions
        self._reports = reports
        self._min_bytes = min_bytes
        self._committed_only = isolation_level == "read_committed"
        self._rack = rack
        self._backoff = Backoff(client.retry_backoff_s, BACKOFF_MAX_S)
        self._lookups = Lookups(client, self.metadata_changed)
        self._failures = RepeatedFailures(log)
        # brokers to which a fetch connection was opened before the first fetch
        self._prepared: set[int] = set()
        self._tasks = BackgroundTasks(reports.broke)
        self._closed = False
        self._event: asyncio.Event | None = None
        self._forget_listener: Any = None

    def start(self) -> None:
        if self._event is None:
            self._event = asyncio.Event()
            self._forget_listener = self._client.on_metadata(self.metadata_changed)
            self._tasks.start(self._run())

    async def close(self) -> None:
        """Cancels all tasks and waits for them."""
        if self._forget_listener is not None:
            self._forget_listener()
            self._forget_listener = None
        self._closed = True
        await self._tasks.close()
        self._planner.clear()

    def wake(self) -> None:
        """Makes the task plan again soon."""
        if self._event is not None:
            self._event.set()

    def metadata_changed(self) -> None:
        """Called by the client when metadata has changed: leaders may have moved."""
        self._planner.metadata_changed()
        self.wake()

    def prepare(self, tp: TopicPartition) -> None:
        """Connects to the leader of a partition that will be assigned soon, or that awaits its position."""
        leader = self._client.leader(tp)
        if leader is not None and leader not in self._prepared and not self._closed:
            self._prepared.add(leader)
            self._tasks.start(self._client.prepare(leader, FetchRequest))

    # -- sending

    async def _run(self) -> None:
        assert self._event is not None
        loop = asyncio.get_running_loop()
        while True:
            self._event.clear()
            again_at = self._send_planned()
            timer = None
            if again_at < math.inf:
                timer = loop.call_later(max(0.001, again_at - time.monotonic()), self._event.set)
            try:
                await self._event.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _send_planned(self) -> float:
        """Sends all requests that are due. Returns when to plan again even without an event."""
        now = time.monotonic()
        if self._planner.is_outdated(now):
            new = self._planner.unchecked()
            self._positions.check(new)
            for tp in new:
                if self._state.position(tp) is None:
                    self.prepare(tp)
            self._planner.sync(now)
        requests, positions_at = self._positions.due(now)
        if self._planner.is_outdated(now):
            self.wake()  # a validation ended at once, because there was nothing to compare
        for request in requests:
            self._tasks.start(self._find(request))
        leaderless = self._planner.leaderless | self._positions.leaderless
        topics, lookup_at = self._lookups.due(leaderless, now)
        if topics:
            self._tasks.start(self._lookups.run(topics))
        plans, plan_at = self._planner.next(now)
        for plan in plans:
            self._send(plan)
        return min(positions_at, lookup_at, plan_at)

    def _send(self, plan: PlannedFetch) -> None:
        """Sends one request: at once if its connection is ready, else in a task."""
        client = self._client
        version = client.api_version(FetchRequest)
        turn = plan.session.turn(plan.wanted, SESSIONLESS if plan.urgent or version is None else version)
        request = FetchRequest(
            turn.wanted,
            turn.forgotten,
            session=turn.session,
            max_version=turn.max_version,
            max_wait_s=plan.wait_s,
            min_bytes=max(self._min_bytes, plan.awaited),
            max_bytes=plan.max_bytes,
            committed_only=self._committed_only,
            rack="" if plan.leader_only else self._rack,
        )
        timeout_s = client.request_timeout_s + plan.wait_s
        # `send_now` needs no task, but tracing does: a span belongs to the task that opened it
        if client.measures.spans is None and client.send_now(
            plan.node, request, timeout_s, partial(self._responded, plan)
        ):
            return
        self._tasks.start(self._exchange(plan, request, timeout_s))

    async def _exchange(self, plan: PlannedFetch, request: FetchRequest, timeout_s: float) -> None:
        response, error = None, None
        try:
            with self._client.measures.span("fetch", broker=plan.broker.node_id, partitions=len(plan.wanted)):
                response = await self._client.send(plan.node, request, timeout_s)
        except (BrokerError, Closed) as failure:
            error = failure
        self._responded(plan, response, error)

    async def _find(self, request: Coroutine[Any, Any, Doubted]) -> None:
        try:
            # awaited before `doubted` is looked up, because `due` may replace that set while the request runs
            doubted = await request
            self._lookups.doubted.update(tp.topic for tp in doubted)
        except Closed:
            return
        finally:
            self.wake()

    # -- responses

    def _responded(
        self, plan: PlannedFetch, response: FetchResponse | None, error: AllocatorError | RequestFailed | None
    ) -> None:
        """Called with the response to a request, or with an error.

        If the broker refuses the fetch session, sends the request once more in a new session.
        """
        if self._closed:
            return
        try:
            if response is None or error is not None:
                self._failed(plan, error)
            elif plan.session.received(response) or plan.repeated:
                self._read(plan, self._parts(plan, response), response.API_VERSION)
            else:
                plan.repeated = True
                self._send(plan)
        except Exception as failure:  # noqa: BLE001 - a bug here must not end the connection, which is the caller
            self._reports.broke(failure)

    def _failed(self, plan: PlannedFetch, error: AllocatorError | RequestFailed | None) -> None:
        plan.session.lost()
        node_id = plan.broker.node_id
        if isinstance(error, RequestFailed):
            error = self._client.error_of(error, plan.node)
        if isinstance(error, BrokerError):
            key = (node_id, type(error), error.code)
            self._failures.note(key, "fetching from broker %s: %s", node_id, error)
            for buffer in plan.buffers.values():
                if self._planner.is_current(buffer):
                    from_replica = self._state.assignment[buffer.tp].preferred_read_replica() == node_id
                    self._apply(buffer, effects_of_failure(error, from_replica=from_replica))
        elif error is not None and not isinstance(error, Closed):
            raise error
        self._planner.ended(plan)
        self.wake()

    def _parts(self, plan: PlannedFetch, response: FetchResponse) -> Parts:
        """Returns what the response has of each partition."""
        if response.error_code:
            refused = FetchedPartition("", -1, response.error_code, -1, -1, -1, [], b"")
            return ((tp, refused) for tp in plan.wanted)
        size = 0
        for part in response.parts:
            size += len(part.records)
        self._planner.note_size(plan, size, time.monotonic())
        return plan.session.parts(response.parts)

    def _read(self, plan: PlannedFetch, parts: Parts, version: int) -> None:
        """Handles the partitions of a response, and sends the next request."""
        failure: BrokerError | None = None
        try:
            done = self._handle_parts(plan, parts, version)
        except BrokerError as error:
            failure = error
        except AllocatorError:
            raise
        except Exception as error:  # noqa: BLE001 - an internal error costs one connection
            failure = self._client.unusable(plan.node, FetchRequest, error)
        if failure is not None:
            self._failed(plan, failure)
            self._report_records(plan)
        elif done:
            self._fetch_next(plan)
        else:
            self._tasks.start(self._read_rest(plan, parts, version))

    def _handle_parts(self, plan: PlannedFetch, parts: Parts, version: int) -> bool:
        """Puts the records of each partition into its buffer.

        Returns False after `MAX_SCAN_BYTES`, so that other tasks run before the rest.
        """
        scanned = 0
        for tp, part in parts:
            if tp not in plan.wanted:
                continue
            if part.records:
                plan.with_records.append(tp)
                scanned += len(part.records)
            self._handle_partition(plan, tp, part, version)
            if scanned > MAX_SCAN_BYTES:
                return False
        return True

    async def _read_rest(self, *rest: Any) -> None:
        self._read(*rest)

    def _handle_partition(self, plan: PlannedFetch, tp: TopicPartition, part: FetchedPartition, version: int) -> None:
        """Applies the response about one partition, but leaves reporting its records to `_fetch_next`."""
        buffer, wanted = plan.buffers[tp], plan.wanted[tp]
        if not self._planner.is_current(buffer) or buffer.fetch_offset != wanted.offset or buffer.halted:
            # outdated: since the request, the partition was sought, reset, reassigned or halted, or its records dropped
            return
        partition = self._state.assignment[tp]
        effects = effects_of(
            part,
            buffer,
            wanted,
            version,
            from_replica=part.code != 0 and partition.preferred_read_replica() == plan.broker.node_id,
            record_bytes=self._planner.budget.record_bytes,
        )
        if effects.served:
            buffer.failures = 0
            self._reports.healed(tp)
            partition.high_watermark = part.high_watermark
            if self._committed_only and part.last_stable_offset >= 0:  # brokers before 0.11 have no transactions
                partition.last_stable_offset = part.last_stable_offset
            if part.preferred_replica >= 0:
                expiry = time.monotonic() + REPLICA_LEASE_S
                if partition.update_preferred_read_replica(part.preferred_replica, expiry):
                    log.info("%s:%d: fetching from broker %d, the preferred replica", *tp, part.preferred_replica)
        elif part.code and not isinstance(effects.stop, OutOfRange):
            reaction = reaction_to_fetch(part.code)
            message = "%s:%d at offset %d: error %d, %s"
            self._failures.note((tp, part.code), message, *tp, wanted.offset, part.code, reaction.value)
            if part.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._planner.doubt(buffer, time.monotonic())
        if effects.chunk is not None:
            buffer.push(effects.chunk)
            fetched = self._client.measures.fetched
            if fetched is not None:
                fetched.add(tp, buffer.fetch_offset - wanted.offset, len(part.records))
            if effects.stop is None:
                return
        if effects is not SERVED:
            self._apply(buffer, effects)

    def _apply(self, buffer: PartitionBuffer, effects: Effects) -> None:
        """Applies all effects on a partition except its records."""
        tp, partition = buffer.tp, self._state.assignment[buffer.tp]
        if effects.need:
            buffer.need = effects.need
        if effects.leave_replica:
            buffer.leader_until = time.monotonic() + REPLICA_AVOIDED_S
            node_id = partition.clear_preferred_read_replica()
            log.info("%s:%d: fetching from the leader again, not from broker %s", *tp, node_id)
        if effects.back_off:
            buffer.back_off(time.monotonic(), self._backoff)
        if effects.refresh:
            self._lookups.doubted.add(tp.topic)
            self.wake()
        if effects.validate:
            partition.request_position_validation()
        if effects.refusal is not None:
            buffer.next_try = time.monotonic() + UNRETRIABLE_PAUSE_S
            self._reports.fail(tp, effects.refusal, lasting=True)
        if effects.stop is not None:
            buffer.halt(effects.stop)
            self._reports.arrived(buffer)
        if effects.recreated:
            self._positions.recreated(tp)

    def _fetch_next(self, plan: PlannedFetch) -> None:
        """Sends the next request before it reports the records, so that the broker works while the consumer handles
        them."""
        now = time.monotonic()
        self._planner.ended(plan, now)
        following = self._planner.next_of(plan.broker, now)
        if following is not None:
            self._send(following)
        version = self._client.api_version(FetchRequest)
        if following is None or plan.broker.again_at < math.inf or version is None or version < BOUNDED:
            self.wake()
        self._report_records(plan)

    def _report_records(self, plan: PlannedFetch) -> None:
        for tp in plan.with_records:
            if self._planner.is_current(plan.buffers[tp]):
                self._reports.arrived(plan.buffers[tp])
