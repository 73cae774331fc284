"""Fencing tokens: a number that grows with each new owner of a partition."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, TopicPartition
from allocator.errors import NotOwned
from allocator.testing import wait_until_async
from allocator.testing.versions import NEWEST
from tests.joining import joined

P = tuple[TopicPartition, ...]


@pytest.mark.parametrize(
    ("kafka", "options"),
    [
        ("3.9.1", {"membership": "zookeeper"}),
        ("3.9.1", {"membership": "consumers"}),
        ("3.9.1", {"membership": "kafka", "heartbeat_interval_s": 0.3}),
        (NEWEST, {"membership": "kafka", "group_protocol": "consumer"}),
    ],
    ids=["zookeeper", "consumers", "classic", "kip848"],
)
async def test_a_moved_partition_has_a_higher_fence_and_so_do_its_records(
    cluster_factory: Callable[..., Any], unique_name: Callable[[], str], kafka: str, options: dict[str, Any]
) -> None:
    cluster, topic, group = cluster_factory(kafka=kafka), unique_name(), unique_name()
    cluster.create_topic(topic, 4)
    cluster.produce(topic, [(None, b"x", n % 4) for n in range(8)])
    options = {**options, "brokers": cluster.bootstrap, "group": group, "max_wait_s": 0.1}
    if options["membership"] != "kafka":
        options["zookeeper"] = f"{cluster.zookeeper}/{group}"

    def fences(consumer: Consumer) -> dict[TopicPartition, int]:
        return {partition: consumer.fence(partition) for partition in consumer.assignment()}

    async with Consumer(topic, **joined(**options)) as first:
        # at each turn of the loop, because none may show a partition that has no fence yet
        before = await wait_until_async(lambda: len(found := fences(first)) == 4 and found, 60, "all", interval_s=0)
        async with Consumer(topic, **joined(**options)) as second:
            await wait_until_async(lambda: len(second.assignment()) == 2 == len(first.assignment()), 60, "two each")
            moved, kept = fences(second), fences(first)
            assert all(fence > before[partition] for partition, fence in moved.items())
            assert all(fence >= before[partition] for partition, fence in kept.items())
            batch = await second.getbatch(30)
            assert batch is not None
            record = next(iter(batch))
            assert batch.fence == record.fence == batch[:1].fence == moved[batch.topic, batch.partition]
            assert copy.copy(record).fence == record.fence
            with pytest.raises(NotOwned):
                second.fence(next(iter(kept)))
            await second.getbatch(0)
        await wait_until_async(lambda: len(first.assignment()) == 4, 60, "all partitions again")
        assert all(first.fence(partition) > fence for partition, fence in moved.items())
