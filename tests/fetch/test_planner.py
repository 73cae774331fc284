"""When a partition counts as unreachable, and when it is requested again after a failure."""

from __future__ import annotations

from typing import Any

from allocator.core.aio.backoff import Backoff
from allocator.core.fetch.buffer import ByteBudget
from allocator.core.fetch.planner import URGENT_WAIT_S, Planner
from allocator.core.subscription import SubscriptionState
from allocator.types import TopicPartition

PARTITION = TopicPartition("t", 0)
MAX_WAIT_S = 0.5
BACKOFF = Backoff(0.1, 1.0)


class Metadata:
    """The leader of the partition."""

    node = 0

    def leader(self, tp: TopicPartition) -> int:
        return self.node

    def leader_epoch(self, tp: TopicPartition) -> None: ...

    def topic_id(self, topic: str) -> None: ...

    def api_version(self, request_class: Any) -> int:
        return 12


def planner_at_0(metadata: Metadata, state: SubscriptionState | None = None) -> Planner:
    state, budget = state or SubscriptionState("earliest"), ByteBudget(prefetch_bytes=20_000, max_partition_bytes=4000)
    state.assign_from_user([PARTITION])
    state.seek(PARTITION, 0)
    return Planner(metadata, state, budget, max_wait_s=MAX_WAIT_S, latency_budget_s=0.0)


def test_partitions_of_a_late_response_are_unreachable_until_it_comes() -> None:
    planner = planner_at_0(Metadata())
    assert planner.unreachable(0.0) == {PARTITION}, "before the first plan"
    planner.sync(0.0)
    (plan,), _ = planner.next(0.0)
    assert planner.unreachable(MAX_WAIT_S + 1) == set()
    assert planner.unreachable(MAX_WAIT_S + 6) == {PARTITION}
    planner.ended(plan)
    assert planner.unreachable(MAX_WAIT_S + 6) == set()
    plan.buffers[PARTITION].back_off(6.0, BACKOFF)
    assert planner.unreachable(MAX_WAIT_S + 6) == {PARTITION}


def test_a_new_leader_gets_a_request_without_the_pause_after_a_failure() -> None:
    metadata = Metadata()
    planner = planner_at_0(metadata)
    planner.sync(0.0)
    (plan,), _ = planner.next(0.0)
    plan.buffers[PARTITION].back_off(0.0, BACKOFF)
    planner.ended(plan)
    assert planner.next(0.0) == ([], 0.1), "the end of the pause"
    metadata.node = 1
    planner.metadata_changed()
    planner.sync(0.0)
    ((plan,), _) = planner.next(0.0)
    assert plan.broker.node_id == 1


def test_no_urgent_request_outlasts_the_main_one() -> None:
    """It would keep its partition out of the next main request, and so cause the next urgent one."""
    state = SubscriptionState("earliest")
    planner = planner_at_0(Metadata(), state)
    planner.sync(0.0)
    planner.next(0.0)
    state.seek(PARTITION, 1)
    planner.sync(0.4)
    (plan,), _ = planner.next(0.4)
    assert plan.urgent
    assert plan.wait_s == URGENT_WAIT_S
    planner.ended(plan)
    assert planner.next(MAX_WAIT_S - URGENT_WAIT_S / 2)[0] == []
