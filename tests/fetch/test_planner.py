"""For all changes of the assignment and the cluster, the planned requests are valid and every partition gets one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

from fetch_encode import R, batch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.core.aio.backoff import Backoff
from allocator.core.fetch.buffer import ByteBudget, Chunk, PartitionBuffer
from allocator.core.fetch.decode import scan
from allocator.core.fetch.planner import FULL_WAIT_S, PlannedFetch, Planner
from allocator.core.subscription import SubscriptionState
from allocator.types import TopicPartition

PARTITIONS = [TopicPartition("t", n) for n in range(5)]
NODES = [0, 1, 2]
PREFETCH, MAX_WAIT_S = 20_000, 0.5
BACKOFF = Backoff(0.1, 1.0)

some = st.sampled_from(PARTITIONS)


class Metadata:
    """The leaders of a cluster; `version` is that of its Fetch requests."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.leaders: dict[TopicPartition, Optional[int]] = {tp: tp.partition % len(NODES) for tp in PARTITIONS}

    def leader(self, tp: TopicPartition) -> int | None:
        return self.leaders[tp]

    def leader_epoch(self, tp: TopicPartition) -> int | None:
        return None

    def topic_id(self, topic: str) -> Any:
        return None

    def api_version(self, request_class: Any) -> int | None:
        return self.version


class Sent(NamedTuple):
    plan: PlannedFetch
    epochs: dict[TopicPartition, Optional[int]]
    until: float


class Plans(RuleBasedStateMachine):
    @initialize(version=st.sampled_from([0, 2, 3, 12]))
    def begin(self, version: int) -> None:
        self.now = 1000.0
        self.metadata = Metadata(version)
        self.state = SubscriptionState("earliest", clock=lambda: self.now)
        self.budget = ByteBudget(prefetch_bytes=PREFETCH, max_partition_bytes=4000)
        self.planner = Planner(self.metadata, self.state, self.budget, max_wait_s=MAX_WAIT_S)
        self.sent: list[Sent] = []
        self.held: list[PartitionBuffer] = []

    # -- events

    @rule(partitions=st.sets(some))
    def assign(self, partitions: set[TopicPartition]) -> None:
        new = partitions - self.state.owned
        self.state.assign_from_user(partitions)
        for tp in new:
            self.state.seek(tp, 0)

    @rule(tp=some, method=st.sampled_from(["pause", "resume", "fetch_again", "request_offset_reset"]))
    def change(self, tp: TopicPartition, method: str) -> None:
        if self.state.is_assigned(tp):
            getattr(self.state, method)(tp)

    @rule(tp=some, offset=st.integers(0, 50))
    def seek(self, tp: TopicPartition, offset: int) -> None:
        if self.state.is_assigned(tp):
            self.state.seek(tp, offset)

    @rule(tp=some)
    def drain(self, tp: TopicPartition) -> None:
        if self.state.is_assigned(tp):
            self.state.drain([tp])

    @rule(tp=some, node=st.one_of(st.none(), st.sampled_from(NODES)))
    def elect(self, tp: TopicPartition, node: int | None) -> None:
        self.metadata.leaders[tp] = node
        self.planner.metadata_changed()

    @rule(tp=some, node=st.sampled_from(NODES))
    def prefer(self, tp: TopicPartition, node: int) -> None:
        if self.state.is_assigned(tp):
            self.state.assignment[tp].update_preferred_read_replica(node, self.now + 1.0)

    @rule(seconds=st.sampled_from([0.01, FULL_WAIT_S, MAX_WAIT_S, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    # -- responses

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), more=st.booleans())
    def respond(self, data: st.DataObject, more: bool) -> None:
        """Some partitions get records, as many bytes as fit. If `more`, the next request is sent at once."""
        sent = data.draw(st.sampled_from(self.sent))
        self.sent.remove(sent)
        plan = sent.plan
        with_records = data.draw(st.lists(st.sampled_from(list(plan.wanted)), unique=True))
        received = 0
        for tp in with_records:
            buffer, wanted = plan.buffers[tp], plan.wanted[tp]
            raw = batch([R(0, bytes(data.draw(st.integers(0, 3000))))], wanted.offset)
            if received + len(raw) > plan.max_bytes or len(raw) > wanted.size:
                continue
            received += len(raw)
            if self.planner.is_current(buffer) and buffer.fetch_offset == wanted.offset and not buffer.halted:
                found = scan(raw, topic=tp.topic, partition=tp.partition, start=wanted.offset)
                buffer.push(Chunk(found, wanted.offset, 100))
                self.held.append(buffer)
        self.planner.note_size(plan, received)
        plan.with_records = with_records
        self.planner.ended(plan)
        following = self.planner.next_of(plan.broker, self.now) if more else None
        if following is not None:
            self.send(following)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.sent))
        self.sent.remove(sent)
        for buffer in sent.plan.buffers.values():
            buffer.back_off(self.now, BACKOFF)
        self.planner.ended(sent.plan)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        buffer = data.draw(st.sampled_from(self.held))
        self.held.remove(buffer)
        if self.planner.is_current(buffer) and buffer.queue and self.state.is_fetchable(buffer.tp):
            buffer.pop()

    # -- the requests

    @rule()
    def plan(self) -> None:
        if self.planner.is_outdated(self.now):
            self.planner.unchecked()
            self.planner.sync(self.now)
        plans, again_at = self.planner.next(self.now)
        for plan in plans:
            self.send(plan)
        for tp in self.fetchable():
            self.will_be_requested(tp, again_at)
        assert self.planner.leaderless == ({"t"} if any(self.node(tp) is None for tp in self.fetchable()) else set())

    def send(self, plan: PlannedFetch) -> None:
        fetchable = self.fetchable()
        for tp, buffer in plan.buffers.items():
            assert tp in fetchable, "paused, not assigned, draining or without a position"
            assert plan.broker.node_id == self.node(tp), "neither its leader nor its replica"
            assert self.planner.is_current(buffer)
            assert buffer.next_try <= self.now, "before the end of its pause"
            assert plan.wanted[tp].offset == buffer.fetch_offset
        assert plan.wait_s >= 0
        until = self.now + plan.wait_s
        self.sent.append(Sent(plan, {tp: self.state.epoch(tp) for tp in plan.wanted}, until))

    def node(self, tp: TopicPartition) -> int | None:
        replica = self.state.assignment[tp].preferred_read_replica()
        return self.metadata.leaders[tp] if replica is None else replica

    def fetchable(self) -> set[TopicPartition]:
        return {tp for tp, partition in self.state.assignment.items() if partition.is_fetchable()}

    def will_be_requested(self, tp: TopicPartition, again_at: float) -> None:
        """Asserts that the partition is requested, or that an event or a time leads to another plan."""
        if any(each.epochs.get(tp) == self.state.epoch(tp) for each in self.sent):
            return
        node = self.node(tp)
        to_node = [each for each in self.sent if each.plan.broker.node_id == node]
        mains = [each for each in to_node if not each.plan.urgent]
        urgents = [each for each in to_node if each.plan.urgent]
        awaited = bool(mains and (urgents or mains[0].until <= self.now))
        timed = self.now < again_at < math.inf
        assert node is None or awaited or timed or self.planner.short_of_bytes or self.metadata.version < 3

    @invariant()
    def a_partition_is_in_one_request(self) -> None:
        if not hasattr(self, "sent"):
            return
        requested = [(tp, epoch) for each in self.sent for tp, epoch in each.epochs.items()]
        assert len(requested) == len(set(requested))
        kinds = [(each.plan.broker.node_id, each.plan.urgent) for each in self.sent]
        assert len(kinds) == len(set(kinds)), "one main and one urgent request to a broker"

    @invariant()
    def the_budget_is_kept(self) -> None:
        if hasattr(self, "sent"):
            assert 0 <= self.budget.held + self.budget.reserved <= PREFETCH
            assert self.sent or not self.budget.reserved

    def teardown(self) -> None:
        """Asserts that, after all faults, each partition is requested, and that nothing is buffered without any."""
        if not hasattr(self, "sent"):
            return
        self.now += 10
        for tp in PARTITIONS:
            self.metadata.leaders[tp] = 0
        self.planner.metadata_changed()
        for tp in self.state.owned:
            self.state.seek(tp, 0)
            self.state.resume(tp)
        waiting = self.fetchable()
        for _ in range(3 * len(PARTITIONS)):
            for each in self.sent:
                self.planner.ended(each.plan)
            self.sent.clear()
            self.plan()
            waiting -= {tp for each in self.sent for tp in each.plan.wanted}
        assert not waiting
        self.state.lose()
        self.planner.sync(self.now)
        for each in self.sent:
            self.planner.ended(each.plan)
        assert (self.budget.held, self.budget.reserved) == (0, 0)


Plans.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPlans = Plans.TestCase


def planner_of(count: int) -> tuple[Planner, SubscriptionState, Metadata]:
    """A planner of `count` partitions at offset 0, partition n led by broker n."""
    metadata, state = Metadata(12), SubscriptionState("earliest")
    budget = ByteBudget(prefetch_bytes=PREFETCH, max_partition_bytes=4000)
    state.assign_from_user(PARTITIONS[:count])
    for tp in PARTITIONS[:count]:
        state.seek(tp, 0)
    return Planner(metadata, state, budget, max_wait_s=MAX_WAIT_S), state, metadata


def test_partitions_of_a_late_response_are_unreachable_until_it_comes() -> None:
    planner, _, _ = planner_of(1)
    assert planner.unreachable(0.0) == {PARTITIONS[0]}, "before the first plan"
    planner.sync(0.0)
    (plan,), _ = planner.next(0.0)
    assert planner.unreachable(MAX_WAIT_S + 1) == set()
    assert planner.unreachable(MAX_WAIT_S + 6) == {PARTITIONS[0]}
    planner.ended(plan)
    assert planner.unreachable(MAX_WAIT_S + 6) == set()
    plan.buffers[PARTITIONS[0]].back_off(6.0, BACKOFF)
    assert planner.unreachable(MAX_WAIT_S + 6) == {PARTITIONS[0]}


def test_a_new_leader_gets_a_request_without_the_pause_after_a_failure() -> None:
    planner, _, metadata = planner_of(1)
    planner.sync(0.0)
    (plan,), _ = planner.next(0.0)
    plan.buffers[PARTITIONS[0]].back_off(0.0, BACKOFF)
    planner.ended(plan)
    assert planner.next(0.0) == ([], 0.1), "the end of the pause"
    metadata.leaders[PARTITIONS[0]] = 1
    planner.metadata_changed()
    planner.sync(0.0)
    ((plan,), _) = planner.next(0.0)
    assert plan.broker.node_id == 1


def test_brokers_take_turns_while_the_budget_is_short() -> None:
    planner, _, _ = planner_of(3)
    planner.sync(0.0)
    planner.budget.reserve(PREFETCH // 2 - 1000)
    rounds = []
    for n in range(6):
        plans, _ = planner.next(float(n))
        rounds.append({plan.broker.node_id for plan in plans})
        assert planner.short_of_bytes
        for plan in plans:
            planner.ended(plan)
    assert all(len(nodes) < 3 for nodes in rounds)
    assert set().union(*rounds[:3]) == {0, 1, 2}
