"""Decides which partition is requested from which broker, when, and for how many bytes. Sends nothing, never waits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from allocator.core.client.fetch_messages import BOUNDED, FetchRequest, FetchSession, Wanted
from allocator.core.fetch.buffer import ByteBudget, PartitionBuffer
from allocator.core.subscription import Phase, SubscriptionState
from allocator.core.types import TopicPartition

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient

# A second ("urgent") request fetches partitions that become fetchable while the main request waits at the broker.
# longer: fewer requests; shorter: the next such partition waits less
URGENT_WAIT_S: Final = 0.05
# After a full response the next main request returns at once. Partitions that were served meanwhile must not be served
# again before it. longer: a partition waits longer if that was wrong; shorter: slow brokers are unfair
FULL_WAIT_S: Final = 0.1
# the lease of a replica ends without an event, so it is checked this often
LEASE_LOOK_S: Final = 5.0
# how late a response may be before its partitions count as unreachable. Longer: noticed later; shorter: a busy broker
# counts as unreachable
LATE_S: Final = 5.0


class BrokerPartitions:
    """The fetchable partitions of one broker, the next one to request first, and its fetch session.

    The broker leads them, or is the replica that their leader named. The main request uses the session. The urgent
    request has a connection of its own, because it starts and ends while the broker holds the main request back.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        self.main: PlannedFetch | None = None
        self.urgent: PlannedFetch | None = None
        # when the main request was planned, and until when the broker may hold it back
        self.main_since = self.main_until = 0.0
        # the last response was full, so partitions without records in it may have some
        self.full = False
        # when a pause of its partitions ends
        self.again_at = math.inf
        self.session = FetchSession()

    def to_the_end(self, tps: Iterable[TopicPartition]) -> None:
        """Request these after all others."""
        for tp in tps:
            buffer = self.buffers.pop(tp, None)
            if buffer is not None:
                self.buffers[tp] = buffer


@dataclass(eq=False)
class PlannedFetch:
    """One request to one broker, until the records of its response are in the buffers."""

    broker: BrokerPartitions
    urgent: bool
    session: FetchSession
    buffers: dict[TopicPartition, PartitionBuffer]
    wanted: dict[TopicPartition, Wanted]
    max_bytes: int
    reserved: int
    wait_s: float
    leader_only: bool
    """A replica of one of the partitions failed, so the leader must name none."""
    with_records: list[TopicPartition] = field(default_factory=list)
    """The partitions of which records came."""
    repeated: bool = False
    """The broker has refused the session once, and the request was sent again."""

    @property
    def node(self) -> Any:
        """("urgent", node) is a second connection to that node."""
        return ("urgent", self.broker.node_id) if self.urgent else self.broker.node_id


class Planner:
    """Plans a request to each broker while there is a partition to fetch and room for the response.

    Guarantee: a partition is in at most one request since its last seek, reset or reassignment; a broker has at most
    one main and one urgent request; the `budget` is kept. Times are on one monotonic clock, which the caller reads.
    """

    def __init__(self, client: KafkaClient, state: SubscriptionState, budget: ByteBudget, *, max_wait_s: float) -> None:
        self._client = client
        self._state = state
        self._max_wait_s = max_wait_s
        self.budget = budget
        self.leaderless: set[str] = set()
        """Topics with a partition to fetch whose leader is unknown."""
        self.pressed = False
        """A request was put off for lack of room."""
        self._buffers: dict[TopicPartition, PartitionBuffer] = {}
        self._brokers: dict[int, BrokerPartitions] = {}
        self._broker_of: dict[TopicPartition, int] = {}
        self._seen_version = -1
        self._new_metadata = True
        self._lease_look_at = math.inf

    # -- the state and the metadata

    def is_outdated(self, now: float) -> bool:
        """Whether `sync` has something to adopt."""
        return self._state.version != self._seen_version or now >= self._lease_look_at

    def metadata_changed(self) -> None:
        """Leaders may have moved."""
        self._new_metadata = True
        self._seen_version = -1
        for buffer in self._buffers.values():
            buffer.wanted = None  # the metadata has the leader's epoch

    def unchecked(self) -> list[TopicPartition]:
        """The partitions whose position was not compared with the metadata yet. Call it once before each `sync`."""
        if self._new_metadata:
            self._new_metadata = False
            return list(self._state.assignment)
        # sought partitions too: the offset may have been committed under an older leader
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
            self._brokers[node_id] = BrokerPartitions(node_id)
        for node_id, broker in list(self._brokers.items()):
            mine = fetchable.get(node_id, set())
            # keep the order: partitions that were served last are at the end
            kept = {tp: self._buffers[tp] for tp in broker.buffers if tp in mine}
            broker.buffers = {**kept, **{tp: self._buffers[tp] for tp in mine}}
            if not mine and broker.main is None and broker.urgent is None:
                del self._brokers[node_id]

    def _fetchable_by_broker(self, now: float) -> dict[int, set[TopicPartition]]:
        """Which partitions are fetched from which broker; creates their buffers and divides the budget."""
        self._lease_look_at = math.inf
        self.leaderless = set()
        broker_of: dict[TopicPartition, int] = {}
        fetchable: dict[int, set[TopicPartition]] = {}
        count = 0
        for tp, partition in self._state.assignment.items():
            if partition.position is None or partition.phase is not Phase.ACTIVE:
                continue
            if tp not in self._buffers:
                self._buffers[tp] = PartitionBuffer(tp, partition.epoch, partition.position, self.budget)
            if not partition.is_fetchable():
                continue
            count += 1
            broker = partition.preferred_read_replica()
            if broker is None:
                broker = self._client.leader(tp)
            else:
                self._lease_look_at = now + LEASE_LOOK_S
            if broker is None:
                self.leaderless.add(tp.topic)
                if tp in self._broker_of:
                    broker_of[tp] = self._broker_of[tp]  # shows later that the next broker is another one
                continue
            broker_of[tp] = broker
            fetchable.setdefault(broker, set()).add(tp)
            if self._broker_of.get(tp, broker) != broker:
                self._buffers[tp].next_try = 0.0  # a fetch that failed at one broker may succeed at another
        self._broker_of = broker_of
        self.budget.divide(count)
        return fetchable

    # -- planning

    def next(self, now: float) -> tuple[list[PlannedFetch], float]:
        """Returns the requests to send now, and when to call this again even without an event (`math.inf`: never)."""
        self.pressed = False
        plans = []
        again_at = self._lease_look_at
        for broker in list(self._brokers.values()):
            plan = self._plan(broker, now)
            again_at = min(again_at, broker.again_at)
            if plan is not None:
                plans.append(plan)
                # if there is not room for all, the other partitions come first
                self._brokers[broker.node_id] = self._brokers.pop(broker.node_id)
        return plans, again_at

    def next_of(self, broker: BrokerPartitions, now: float) -> PlannedFetch | None:
        """Returns the next request to a broker that has just responded.

        None if there is something to `sync` first, or if room is short, for then it may be the turn of another broker.
        """
        if self.pressed or self._state.version != self._seen_version:
            return None
        return self._plan(broker, now)

    def ended(self, plan: PlannedFetch) -> None:
        """The response to a request came, or none will: another one may go out. Partitions with records come last."""
        plan.broker.to_the_end(plan.with_records)
        self.budget.reserve(-plan.reserved)
        for buffer in plan.buffers.values():
            buffer.in_flight = False
        if plan.urgent:
            plan.broker.urgent = None
        else:
            plan.broker.main = None

    def note_size(self, plan: PlannedFetch, size: int) -> None:
        """The response to a request has `size` bytes of records."""
        if not plan.urgent:
            plan.broker.full = size + self.budget.max_partition_bytes > plan.max_bytes

    def _plan(self, broker: BrokerPartitions, now: float) -> PlannedFetch | None:
        """Returns the next request to a broker, if one may go out."""
        broker.again_at = math.inf
        if broker.main is not None and (broker.urgent is not None or broker.main_until <= now):
            return None
        wanting = self._wanting(broker, now)
        if not wanting:
            return None
        urgent = broker.main is not None
        if urgent and broker.full and now < broker.main_since + FULL_WAIT_S:
            broker.again_at = min(broker.again_at, broker.main_since + FULL_WAIT_S)
            return None
        # One share stays free: idle long polls must not reserve the whole budget, or a new partition would wait for
        # their end.
        others = self._brokers.values()
        takers = 1 + (len(others) if urgent else sum(other.main is None for other in others))
        room = self.budget.room(len(others), takers, self._reclaim)
        if room is None:
            self.pressed = True
            return None
        version = self._client.api_version(FetchRequest)
        bounded = version is not None and version >= BOUNDED
        asked = self.budget.sizes(wanting, room, bounded=bounded)
        reserved = sum(size for _, size in asked)
        if bounded:
            reserved = min(room, reserved)
        else:
            # with or without records in the response: not all partitions fit into one request
            broker.to_the_end([buffer.tp for buffer, _ in asked])
        self.budget.reserve(reserved)
        leader_only = False
        for buffer, _ in asked:
            buffer.in_flight = True
            leader_only = leader_only or now < buffer.leader_until
        wait_s = min(URGENT_WAIT_S, broker.main_until - now) if urgent else self._max_wait_s
        buffers = {buffer.tp: buffer for buffer, _ in asked}
        wanted = {buffer.tp: self._wanted(buffer, size) for buffer, size in asked}
        session = FetchSession() if urgent else broker.session
        plan = PlannedFetch(broker, urgent, session, buffers, wanted, room, reserved, wait_s, leader_only)
        if urgent:
            broker.urgent = plan
        else:
            broker.main, broker.main_since, broker.main_until = plan, now, now + wait_s
        return plan

    def _wanting(self, broker: BrokerPartitions, now: float) -> list[PartitionBuffer]:
        """The partitions of a broker that may be requested now."""
        wanting = []
        for buffer in broker.buffers.values():
            if buffer.in_flight or buffer.halted:
                continue
            if buffer.next_try > now:
                broker.again_at = min(broker.again_at, buffer.next_try)
            elif buffer.held >= self.budget.share:
                self.pressed = True
            else:
                wanting.append(buffer)
        return wanting

    def _wanted(self, buffer: PartitionBuffer, size: int) -> Wanted:
        """The request for one partition; the same object as long as nothing of it has changed."""
        wanted = buffer.wanted
        if wanted is None or wanted.offset != buffer.fetch_offset or wanted.size != size:
            epoch = self._client.leader_epoch(buffer.tp)
            topic_id = self._client.topic_id(buffer.tp.topic)
            wanted = buffer.wanted = Wanted(buffer.fetch_offset, size, -1 if epoch is None else epoch, topic_id)
        return wanted

    def _reclaim(self, wanted: int) -> int:
        """Frees the bytes of partitions that may not be delivered, the largest first; they are fetched again."""
        freed = 0
        idle = [buffer for buffer in self._buffers.values() if buffer.held and not self._state.is_fetchable(buffer.tp)]
        for buffer in sorted(idle, key=lambda buffer: buffer.held, reverse=True):
            if freed >= wanted:
                break
            freed += buffer.rewind()
        return freed

    # -- buffers

    def is_current(self, buffer: PartitionBuffer) -> bool:
        """Whether no seek, reset or reassignment has replaced `buffer`."""
        return self._buffers.get(buffer.tp) is buffer and self._state.epoch(buffer.tp) == buffer.epoch

    def halt(self, tp: TopicPartition) -> None:
        """Stops fetching a partition until the next seek, and drops its buffered records."""
        buffer = self._buffers.get(tp)
        if buffer is not None:
            buffer.clear()
            buffer.halted = True

    def halted(self) -> list[TopicPartition]:
        """Partitions that are not fetched any more and have nothing left to deliver."""
        return [tp for tp, each in self._buffers.items() if each.halted and not each.queue and self.is_current(each)]

    def clear(self) -> None:
        """Drops everything."""
        self._buffers.clear()
        self._brokers.clear()
        self.budget.held = self.budget.reserved = 0

    def leader_epoch(self, tp: TopicPartition, offset: int) -> int:
        """The epoch of the last record before `offset`; -1 if unknown."""
        buffer = self._buffers.get(tp)
        return buffer.leader_epoch(offset) if buffer is not None and self.is_current(buffer) else -1

    def unreachable(self, now: float) -> set[TopicPartition]:
        """The partitions to fetch whose leader is unknown or failed, or has not responded for a while."""
        served = {
            tp
            for broker in self._brokers.values()
            if broker.main is None or broker.main_until > now - LATE_S
            for tp, buffer in broker.buffers.items()
            if not buffer.failures
        }
        return {tp for tp, partition in self._state.assignment.items() if partition.is_fetchable() and tp not in served}
