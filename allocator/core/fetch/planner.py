"""Decides which partition is requested from which broker, when, and for how many bytes. Does no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from allocator.core.client.fetch_messages import BOUNDED, BY_ID, FetchRequest, FetchSession, Wanted
from allocator.core.fetch.buffer import ByteBudget, PartitionBuffer
from allocator.core.fetch.pace import Pace
from allocator.core.subscription import Phase, SubscriptionState
from allocator.core.types import TopicPartition

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient
    from allocator.core.subscription.partition import TopicPartitionState

# How long a broker may hold back an urgent request, which fetches partitions that became fetchable while the main
# request waits at the broker. Higher: fewer requests; lower: the next such partition waits less
URGENT_WAIT_S: Final = 0.05
# How long urgent requests wait for the main request after a full response, so that the partitions in that response are
# not served twice in a row. Higher: other partitions wait longer if the main request is slow; lower: slow brokers serve
# some partitions more often
FULL_WAIT_S: Final = 0.1
# interval in which to check the leases of preferred replicas, which end without an event
LEASE_CHECK_S: Final = 5.0
# How late a response may be before its partitions count as unreachable. Higher: reported later; lower: a busy broker
# counts as unreachable
LATE_S: Final = 5.0
# How long a partition may be without a response before a topic that was created again could go unnoticed. Higher: a
# shorter deletion goes unnoticed; lower: more metadata requests for partitions that are read in bursts
UNSEEN_S: Final = 5.0


class BrokerPartitions:
    """The fetchable partitions of one broker, in the order of the next request, and the fetch session.

    The broker is their leader or their preferred replica. The main request uses the session. The urgent request has its
    own connection, because the broker responds to it while it holds the main request back.
    """

    def __init__(self, node_id: int, pace: Pace) -> None:
        self.node_id = node_id
        self.pace = pace
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        self.main: PlannedFetch | None = None
        self.urgent: PlannedFetch | None = None
        # when the main request was planned, and until when the broker may hold it back
        self.main_since = self.main_until = 0.0
        # whether the last response was full; if so, partitions without records in it may still have records
        self.full = False
        # the earliest time at which a paused partition may be fetched again
        self.again_at = math.inf
        self.session = FetchSession()

    def to_the_end(self, tps: Iterable[TopicPartition]) -> None:
        """Moves these partitions to the end, after all others."""
        for tp in tps:
            buffer = self.buffers.pop(tp, None)
            if buffer is not None:
                self.buffers[tp] = buffer


@dataclass(eq=False)
class PlannedFetch:
    """A request to one broker, until the records of its response are in the buffers."""

    broker: BrokerPartitions
    urgent: bool
    session: FetchSession
    buffers: dict[TopicPartition, PartitionBuffer]
    wanted: dict[TopicPartition, Wanted]
    max_bytes: int
    reserved: int
    awaited: int
    """The bytes that the request waits for to save requests, within the latency budget; 0 if it does not."""
    wait_s: float
    leader_only: bool
    """Whether to send no rack: the preferred replica of a partition has failed."""
    with_records: list[TopicPartition] = field(default_factory=list)
    """The partitions that have records in the response."""
    repeated: bool = False
    """True once the session was refused and the request sent again."""

    @property
    def node(self) -> Any:
        """Key of the connection; ("urgent", node) is a second connection to the node."""
        return ("urgent", self.broker.node_id) if self.urgent else self.broker.node_id


class Planner:
    """Plans a request to each broker that has a partition to fetch, while the budget allows the response.

    Guarantee: a partition is in at most one request since its last seek, reset or reassignment. A broker has at most
    one main and one urgent request. The requests keep the `budget`. The caller passes the time of a monotonic clock.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        budget: ByteBudget,
        *,
        max_wait_s: float,
        latency_budget_s: float,
    ) -> None:
        self._client = client
        self._state = state
        self._max_wait_s = max_wait_s
        self._latency_budget_s = min(latency_budget_s, max_wait_s)
        self.budget = budget
        self.leaderless: set[str] = set()
        """Topics with a partition to fetch whose leader is unknown."""
        self.short_of_bytes = False
        """Whether the budget refused the last request that `next` planned."""
        self._buffers: dict[TopicPartition, PartitionBuffer] = {}
        self._brokers: dict[int, BrokerPartitions] = {}
        self._broker_of: dict[TopicPartition, int] = {}
        self._seen_version = -1
        self._new_metadata = True
        self._lease_check_at = math.inf

    # -- the state and the metadata

    def is_outdated(self, now: float) -> bool:
        """Returns whether `sync` must be called, because the subscription state or the metadata has changed."""
        return self._state.version != self._seen_version or now >= self._lease_check_at

    def metadata_changed(self) -> None:
        """Called when metadata has changed."""
        self._new_metadata = True
        self._seen_version = -1
        for buffer in self._buffers.values():
            buffer.wanted = None  # the leader epoch in it may be old

    def unchecked(self) -> list[TopicPartition]:
        """Returns the partitions whose position was not compared with the metadata. Call it once before each `sync`."""
        if self._new_metadata:
            self._new_metadata = False
            return list(self._state.assignment)
        # includes partitions that the user sought: the new offset may come from a commit under an older leader
        return [
            tp for tp in self._state.assignment if tp not in self._buffers or not self.is_current(self._buffers[tp])
        ]

    def sync(self, now: float) -> None:
        """Adopts the changes of the subscription state and the metadata."""
        state = self._state
        self._seen_version = state.version
        for tp, buffer in list(self._buffers.items()):
            if state.epoch(tp) != buffer.epoch:
                del self._buffers[tp]
                buffer.clear()
        fetchable = self._fetchable_by_broker(now)
        for node_id in fetchable.keys() - self._brokers.keys():
            self._brokers[node_id] = BrokerPartitions(node_id, Pace(self._latency_budget_s))
        for node_id, broker in list(self._brokers.items()):
            mine = fetchable.get(node_id, set())
            # keeps the order, in which partitions that were served last are at the end
            kept = {tp: self._buffers[tp] for tp in broker.buffers if tp in mine}
            broker.buffers = {**kept, **{tp: self._buffers[tp] for tp in mine}}
            if not mine and broker.main is None and broker.urgent is None:
                del self._brokers[node_id]

    def _fetchable_by_broker(self, now: float) -> dict[int, set[TopicPartition]]:
        """Returns the partitions to fetch from each broker. Creates their buffers and divides the budget."""
        self._lease_check_at = math.inf
        self.leaderless = set()
        broker_of: dict[TopicPartition, int] = {}
        fetchable: dict[int, set[TopicPartition]] = {}
        count = 0
        for tp, partition in self._state.assignment.items():
            if partition.position is None or partition.phase is not Phase.ACTIVE:
                continue
            if tp not in self._buffers:
                self._buffers[tp] = PartitionBuffer(tp, partition.epoch, partition.position, self.budget, now)
            if not partition.is_fetchable():
                continue
            count += 1
            broker = partition.preferred_read_replica()
            if broker is None:
                broker = self._client.leader(tp)
            else:
                self._lease_check_at = now + LEASE_CHECK_S
            if broker is None:
                self.leaderless.add(tp.topic)
                if tp in self._broker_of:
                    broker_of[tp] = self._broker_of[tp]  # remembered to detect a change of the broker
                continue
            broker_of[tp] = broker
            fetchable.setdefault(broker, set()).add(tp)
            if self._broker_of.get(tp, broker) != broker:
                self._buffers[tp].next_try = 0.0  # another broker may succeed
        self._broker_of = broker_of
        self.budget.divide(count)
        return fetchable

    # -- planning

    def next(self, now: float) -> tuple[list[PlannedFetch], float]:
        """Returns the requests to send now, and when to call this again without an event (`math.inf`: never)."""
        self.short_of_bytes = False
        plans = []
        again_at = self._lease_check_at
        for broker in list(self._brokers.values()):
            plan = self._plan(broker, now)
            again_at = min(again_at, broker.again_at)
            if plan is not None:
                plans.append(plan)
                # if the budget does not allow all requests, the next call starts with the other brokers
                self._brokers[broker.node_id] = self._brokers.pop(broker.node_id)
        return plans, again_at

    def next_of(self, broker: BrokerPartitions, now: float) -> PlannedFetch | None:
        """Returns the next request to a broker that has just responded.

        Returns None if `sync` must come first, or if the budget is short, because another broker may be next in turn.
        """
        if self.short_of_bytes or self._state.version != self._seen_version:
            return None
        return self._plan(broker, now)

    def ended(self, plan: PlannedFetch, answered_at: float | None = None) -> None:
        """Called after the response to a request, or its failure (no time). Moves partitions with records to the
        end."""
        plan.broker.to_the_end(plan.with_records)
        self.budget.reserve(-plan.reserved)
        for buffer in plan.buffers.values():
            buffer.in_flight = False
            if answered_at is not None:
                buffer.seen_at = answered_at
        if plan.urgent:
            plan.broker.urgent = None
        else:
            plan.broker.main = None

    def note_size(self, plan: PlannedFetch, size: int, now: float) -> None:
        """Notes that the response to a request has `size` bytes of records."""
        if not plan.urgent:
            plan.broker.full = size + self.budget.max_partition_bytes > plan.max_bytes
            plan.broker.pace.note(size, now, plan.awaited)

    def _plan(self, broker: BrokerPartitions, now: float) -> PlannedFetch | None:
        """Returns the next request to a broker, or None if none may be sent."""
        broker.again_at = math.inf
        # an urgent request that outlasts the main request would keep its partitions out of the next main request
        if broker.main is not None and (broker.urgent is not None or broker.main_until - now < URGENT_WAIT_S):
            return None
        wanting = self._wanting(broker, now)
        if not wanting:
            return None
        urgent = broker.main is not None
        if urgent and broker.full and now < broker.main_since + FULL_WAIT_S:
            broker.again_at = min(broker.again_at, broker.main_since + FULL_WAIT_S)
            return None
        # One share stays free. If idle long polls reserved the whole budget, a new partition would wait for their end.
        others = self._brokers.values()
        takers = 1 + (len(others) if urgent else sum(other.main is None for other in others))
        max_bytes = self.budget.affordable(len(others), takers, self._reclaim)
        if max_bytes is None:
            self.short_of_bytes = True
            return None
        version = self._client.api_version(FetchRequest)
        bounded = version is not None and version >= BOUNDED
        requested = self.budget.sizes(wanting, max_bytes, bounded=bounded)
        buffers: dict[TopicPartition, PartitionBuffer] = {}
        wanted: dict[TopicPartition, Wanted] = {}
        reserved, leader_only = 0, False
        for buffer, size in requested:
            tp = buffer.tp
            buffers[tp] = buffer
            same = buffer.wanted
            if same is None or same.offset != buffer.fetch_offset or same.size != size:
                same = buffer.wanted = self._wanted(buffer, size)
            wanted[tp] = same  # the same object as before if nothing has changed
            buffer.in_flight = True
            reserved += size
            leader_only = leader_only or now < buffer.leader_until
        if bounded:
            reserved = min(max_bytes, reserved)
        else:
            # moves them even if the response has no records, because not all partitions fit into one request
            broker.to_the_end(buffers)
        self.budget.reserve(reserved)
        awaited = 0 if urgent else broker.pace.enough
        wait_s = self._latency_budget_s if awaited else self._max_wait_s
        if urgent:
            wait_s = URGENT_WAIT_S
        session = FetchSession() if urgent else broker.session
        plan = PlannedFetch(broker, urgent, session, buffers, wanted, max_bytes, reserved, awaited, wait_s, leader_only)
        if urgent:
            broker.urgent = plan
        else:
            broker.main, broker.main_since, broker.main_until = plan, now, now + wait_s
        return plan

    def _wanting(self, broker: BrokerPartitions, now: float) -> list[PartitionBuffer]:
        """Returns the partitions of a broker that may be requested now."""
        wanting, share = [], self.budget.share
        for buffer in broker.buffers.values():
            if buffer.in_flight or buffer.halted:
                continue
            if buffer.next_try > now:
                broker.again_at = min(broker.again_at, buffer.next_try)
            elif buffer.held >= share:
                self.short_of_bytes = True
            elif now - buffer.seen_at < UNSEEN_S or not (self._state.is_in_doubt(buffer.tp) or self.doubt(buffer, now)):
                wanting.append(buffer)
        return wanting

    def doubt(self, buffer: PartitionBuffer, now: float) -> bool:
        """Notes that the topic may have been created again, unless each request names its id. Returns whether it may
        have been. So its other partitions that are not read come into doubt too: only together can it be decided."""
        version = self._client.api_version(FetchRequest)
        named = version is not None and version >= BY_ID and self._client.topic_id(buffer.tp.topic) is not None
        buffer.seen_at = now
        if named or self._state.on_doubt is None:
            return False
        doubted = self._state.assignment[buffer.tp]
        if not doubted.in_doubt:
            for tp, partition in self._state.assignment.items():
                if tp.topic == buffer.tp.topic and tp != buffer.tp and not self._is_read(tp, partition, now):
                    partition.doubt_log()
        doubted.doubt_log()
        self._state.on_doubt()
        return True

    def _is_read(self, tp: TopicPartition, partition: TopicPartitionState, now: float) -> bool:
        """Returns whether the next responses about this partition will tell that its topic is gone."""
        buffer = self._buffers.get(tp)
        return partition.is_fetchable() and buffer is not None and now - buffer.seen_at < UNSEEN_S

    def _wanted(self, buffer: PartitionBuffer, size: int) -> Wanted:
        epoch = self._client.leader_epoch(buffer.tp)
        topic_id = self._client.topic_id(buffer.tp.topic)
        return Wanted(buffer.fetch_offset, size, -1 if epoch is None else epoch, topic_id)

    def _reclaim(self, wanted: int) -> int:
        """Drops records of partitions that are not fetchable, the largest first, to be fetched again later.

        Stops when `wanted` bytes are free. Returns the freed bytes.
        """
        freed = 0
        idle = [buffer for buffer in self._buffers.values() if buffer.held and not self._state.is_fetchable(buffer.tp)]
        for buffer in sorted(idle, key=lambda buffer: buffer.held, reverse=True):
            if freed >= wanted:
                break
            freed += buffer.rewind()
        return freed

    # -- buffers

    def is_current(self, buffer: PartitionBuffer) -> bool:
        """Returns whether no seek, reset or reassignment has replaced `buffer`."""
        if self._buffers.get(buffer.tp) is not buffer:
            return False
        tenure = self._state.assignment.get(buffer.tp)
        return tenure is not None and tenure.epoch == buffer.epoch

    def halt(self, tp: TopicPartition) -> None:
        """Stops fetching a partition until it is sought, and drops its buffered records."""
        buffer = self._buffers.get(tp)
        if buffer is not None:
            buffer.clear()
            buffer.halted = True

    def halted(self) -> list[TopicPartition]:
        """Returns the partitions that are halted and have nothing left to deliver."""
        return [tp for tp, each in self._buffers.items() if each.halted and not each.queue and self.is_current(each)]

    def clear(self) -> None:
        """Drops all buffers and brokers."""
        self._buffers.clear()
        self._brokers.clear()
        self.budget.held = self.budget.reserved = 0

    def leader_epoch(self, tp: TopicPartition, offset: int) -> int:
        """Returns the epoch of the last record before `offset`; -1 if unknown."""
        buffer, tenure = self._buffers.get(tp), self._state.assignment.get(tp)
        if tenure is None:
            return -1
        epoch = -1 if buffer is None or buffer.epoch != tenure.epoch else buffer.leader_epoch(offset)
        # a partition that is being released has no buffer
        return epoch if epoch >= 0 else tenure.leader_epoch(offset)

    def unreachable(self, now: float) -> set[TopicPartition]:
        """Returns the partitions to fetch whose leader is unknown, failed, or has not responded for a while."""
        served = {
            tp
            for broker in self._brokers.values()
            if broker.main is None or broker.main_until > now - LATE_S
            for tp, buffer in broker.buffers.items()
            if not buffer.failures
        }
        return {tp for tp, partition in self._state.assignment.items() if partition.is_fetchable() and tp not in served}
