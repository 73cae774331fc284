"""ConsumerGroup on real servers with both memberships; invariants over a recorded history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.topics import zookeeper_client
from allocator.testing.versions import NEWEST
from allocator.types import TopicPartition
from tests.consumer.group_bench import Ledger, Service
from tests.stored import stored_offsets

pytestmark = pytest.mark.deadline(180)

BOTH = [("zookeeper", "3.9.1"), ("kafka", "3.9.1")]
OLD = [("zookeeper", "0.8.2.2"), ("kafka", "0.10.2.2")]
OTHERS = [
    pytest.param(membership, kafka, marks=pytest.mark.long)
    for membership, kafka in (
        ("zookeeper", "0.10.2.2"),
        ("kafka", "0.9.0.1"),
        ("kafka", "1.1.1"),
        ("kafka", "2.8.2"),
        ("kafka", NEWEST),
    )
]


class Bench:
    """One topic, one group, and services in the group."""

    def __init__(self, cluster: LocalCluster, topic: str, count: int, group: str, membership: str) -> None:
        self.cluster, self.topic, self.count, self.group, self.membership = cluster, topic, count, group, membership
        self.ledger = Ledger()

    def service(self, name: str, **options: Any) -> Service:
        settings: dict[str, Any] = {
            "group": self.group,
            "brokers": self.cluster.bootstrap,
            "topics": [self.topic],
            "membership": self.membership,
            "zookeeper": f"{self.cluster.zookeeper}/{self.group}" if self.membership == "zookeeper" else None,
            "session_timeout_s": 15.0,
            "heartbeat_interval_s": 0.3,
            "join_backoff_s": 0.5,
        }
        return Service(name, self.ledger, **{**settings, **options})

    async def assigned(self, services: Iterable[Service], timeout_s: float = 40) -> None:
        """Waits until these services own all partitions, each of them some."""
        services = list(services)

        def held() -> list[frozenset[TopicPartition]]:
            return [service.holds for service in services]

        await wait_until_async(
            lambda: all(held()) and sum(map(len, held())) == self.count, timeout_s, lambda: f"{held()}"
        )
        assert self.ledger.wrong == []


@pytest.fixture
def make_bench(cluster_factory: Any, topic_factory: Callable[..., str], group: str) -> Any:
    async def make(membership: str, kafka: str, count: int = 6, **cluster: Any) -> Bench:
        started = await asyncio.to_thread(cluster_factory, kafka=kafka, **cluster)
        topic = await asyncio.to_thread(topic_factory, count, cluster.get("brokers", 1), None, started)
        return Bench(started, topic, count, group, membership)

    return make


@pytest.mark.parametrize(("membership", "kafka"), BOTH + OLD + OTHERS)
async def test_members_join_and_leave_and_no_partition_has_two_owners(
    membership: str, kafka: str, make_bench: Any
) -> None:
    bench = await make_bench(membership, kafka)
    async with bench.service("a").running() as a:
        await bench.assigned([a])
        async with bench.service("b").running() as b:
            await bench.assigned([a, b])
            async with bench.service("c").running() as c:
                await bench.assigned([a, b, c])
            await bench.assigned([a, b])
            generations = [g.id for g in a.generations]
            assert generations == sorted(set(generations))
            assert len({g.member_id for g in a.generations}) == 1
            assert all(g.done for g in a.generations[:-1])
    assert [service.errors for service in (a, b, c)] == [[], [], []]
    assert bench.ledger.wrong == []
    assert bench.ledger.running == {}
    assert bench.ledger.joins == 0 or membership == "kafka"
    stored = await stored_offsets(bench.cluster.bootstrap, bench.group, bench.topic, bench.count)
    assert {p: at.offset for p, at in stored.items()} == {p: at for (_, p), at in bench.ledger.committed.items()}


async def test_a_member_without_partitions_has_an_empty_generation(make_bench: Any) -> None:
    bench = await make_bench("zookeeper", "3.9.1", 1)
    async with bench.service("b").running() as b:
        await bench.assigned([b])
        async with bench.service("a").running() as a:
            await wait_until_async(lambda: a.generations and b.generations, 30, "a generation for both")
            await wait_until_async(lambda: len(bench.ledger.running) == 1, 30, "one of them to work")
            idle, busy = (a, b) if b.holds else (b, a)
            await wait_until_async(lambda: not idle.generations[-1].partitions, 30, "the other one to have nothing")
            assert not idle.generations[-1].done
            assert idle.generations[-1].assignments == {bench.topic: ()}
            await busy.group.close()
            await bench.assigned([idle])
    assert bench.ledger.wrong == []


async def test_added_partitions_cause_another_generation(make_bench: Any) -> None:
    bench = await make_bench("zookeeper", "3.9.1", 2)
    options = {"watch_partition_changes": True, "partition_watch_interval_s": 0.3}
    async with bench.service("a", **options).running() as a, bench.service("b", **options).running() as b:
        await bench.assigned([a, b])
        await asyncio.to_thread(bench.cluster.add_partitions, bench.topic, 6)
        bench.count = 6
        await bench.assigned([a, b])
    assert a.errors + b.errors == []
    assert bench.ledger.wrong == []


async def test_a_member_whose_znode_was_deleted_ends_its_generation_and_joins_again(make_bench: Any) -> None:
    bench = await make_bench("zookeeper", "3.9.1", 4)
    async with bench.service("a").running() as a, bench.service("b").running() as b:
        await bench.assigned([a, b])
        last = b.generations[-1]

        def delete() -> None:
            with zookeeper_client(bench.cluster.zookeeper) as client:
                client.delete(f"/{bench.group}/allocator/{bench.group}/members/{last.member_id}")

        await asyncio.to_thread(delete)
        await last.wait()  # lost, or revoked by a leader that was quicker
        await wait_until_async(lambda: b.generations[-1] is not last and b.holds, 30, "the member to come back")
        await bench.assigned([a, b])
        assert b.generations[-1].member_id != last.member_id
    assert a.errors + b.errors == []
    assert bench.ledger.wrong == []
