"""Racks and loads for assignors: requested only if used, and with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from allocator import Consumer
from allocator.assignors import GroupView, GroupViewBuilder, Member
from allocator.errors import BrokerError
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import TopicPartition
from tests.groups.members import History, StaticTopics, TestMember
from tests.joining import joined
from tests.lag_assignor import by_lag
from tests.racked import racked_brokers

by_either = pytest.mark.parametrize("membership", ["zookeeper", "kafka"])


@pytest.fixture
def three_racks(cluster_factory: Callable[..., LocalCluster]) -> LocalCluster:
    return racked_brokers(cluster_factory)


@contextlib.asynccontextmanager
async def consumers(
    cluster: LocalCluster, topic: str, group: str, assignor: Any, membership: str, *options: dict[str, Any]
) -> AsyncIterator[list[Consumer]]:
    """Consumers of one topic that read nothing, so the lag stays."""
    common = {
        "brokers": cluster.bootstrap,
        "zookeeper": f"{cluster.zookeeper}/{group}",
        "group": group,
        "membership": membership,
        "heartbeat_interval_s": 0.5,
        "assignor": assignor,
        "session_timeout_s": 6.0,
        "auto_commit_interval_s": None,
    }
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Consumer(topic, **joined(**common, **each))) for each in options]


def leader_racks(bootstrap: str, topic: str) -> dict[int, str]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        (found,) = admin.describe_topics([topic])
        return {each["partition_index"]: f"rack-{each['leader_id']}" for each in found["partitions"]}
    finally:
        admin.close()


def numbers(consumer: Consumer) -> set[int]:
    return {partition.partition for partition in consumer.assignment()}


@pytest.mark.deadline(120)
@by_either
async def test_members_get_partitions_whose_leader_is_in_their_rack(
    three_racks: LocalCluster, topic_factory: Callable[..., str], group: str, membership: str
) -> None:
    topic = topic_factory(9, 3, cluster=three_racks)
    racks = [f"rack-{number}" for number in range(3)]
    options = [{"rack": rack} for rack in racks]
    async with consumers(three_racks, topic, group, "rack-aware", membership, *options) as members:

        def at_home() -> bool:
            of = leader_racks(three_racks.bootstrap, topic)
            return all(
                len(numbers(consumer)) == 3 and {of[number] for number in numbers(consumer)} == {rack}
                for consumer, rack in zip(members, racks)
            )

        await wait_until_async(
            partial(asyncio.to_thread, at_home), 30, lambda: f"partitions at home: {[c.assignment() for c in members]}"
        )


@pytest.mark.deadline(120)
@by_either
async def test_the_owner_of_a_lagging_partition_gets_few_others(
    three_racks: LocalCluster, topic_factory: Callable[..., str], group: str, membership: str
) -> None:
    topic = topic_factory(8, cluster=three_racks)
    records = [(None, b"x", number) for number in range(8) for _ in range(5000 if number == 1 else 10)]
    await asyncio.get_running_loop().run_in_executor(None, three_racks.produce, topic, records)
    async with consumers(three_racks, topic, group, by_lag, membership, {}, {}) as (a, b):
        # by count it would be four each
        await wait_until_async(
            lambda: (
                (1 in numbers(a) and len(numbers(a)) < 4 < len(numbers(b)))
                or (1 in numbers(b) and len(numbers(b)) < 4 < len(numbers(a)))
            ),
            30,
            lambda: f"the busy partition to have few beside it: {numbers(a)}, {numbers(b)}",
        )


class RecordedLoad:
    """A `Load` that records its requests and returns preset values."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.partitions: list[TopicPartition] = []

    async def __call__(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, float]:
        self.partitions += partitions
        if self.response is None:
            await asyncio.Event().wait()
        if isinstance(self.response, Exception):
            raise self.response
        return dict.fromkeys(partitions, self.response)


class RecordingAssignor:
    """An assignor that keeps the views that it gets."""

    def __init__(self, *wants: str) -> None:
        self.wants = wants
        self.seen: list[GroupView] = []

    def __call__(self, view: GroupView) -> dict[str, list[TopicPartition]]:
        self.seen.append(view)
        return {view.members[0].id: [TopicPartition("t", number) for number in range(view.partitions["t"])]}


async def view_of_owner(zk_chroot: str, group: str, load: RecordedLoad, function: RecordingAssignor) -> GroupView:
    topics = StaticTopics({"t": 3000})
    topics.of_racks = {TopicPartition("t", 7): ("here",)}
    async with TestMember(zk_chroot, group, "a", topics, History(), assignors=[function], load=load) as a:
        await wait_until_async(lambda: len(a.owned) == 3000, 30, "all partitions")
    return function.seen[0]


@pytest.mark.parametrize("response", [2.0, BrokerError("no response"), None], ids=["known", "refused", "silent"])
async def test_a_rebalance_waits_for_loads_only_for_a_limited_time(zk_chroot: str, group: str, response: Any) -> None:
    load = RecordedLoad(response)
    view = await view_of_owner(zk_chroot, group, load, RecordingAssignor("load", "racks"))
    assert set(view.load.values()) <= {2.0}
    assert len(view.load) == (3000 if response == 2.0 else 0)
    # after the first failure the rest is not requested
    assert len(load.partitions) == (3000 if response == 2.0 else 1000)
    assert view.racks[TopicPartition("t", 7)] == ("here",)
    assert view.racks[TopicPartition("t", 8)] == ()


async def test_a_function_that_uses_no_load_costs_no_request(zk_chroot: str, group: str) -> None:
    load = RecordedLoad(2.0)
    view = await view_of_owner(zk_chroot, group, load, RecordingAssignor())
    assert load.partitions == []
    assert view.load == view.racks == {}


async def test_a_fresh_load_is_not_requested_again() -> None:
    load = RecordedLoad(2.0)
    around = GroupViewBuilder("g", StaticTopics({"t": 3, "u": 2}), load, fresh_s=60.0)
    function: Any = RecordingAssignor("load")
    members = (Member("a", "", topics=frozenset({"t", "u"})),)
    for _ in range(2):
        view = await around.view(function, members, {"t": 3}, {})
        assert len(view.load) == 3
    assert len(load.partitions) == 3
    view = await around.view(function, members, {"t": 3, "u": 2}, {})  # new partitions have no known load
    assert len(view.load) == 5
    assert len(load.partitions) == 8
