"""KafkaClient and list_offsets on real brokers, old and new."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

import pytest

from allocator.core.client.client import KafkaClient
from allocator.core.client.log_offsets import list_offsets
from allocator.core.types import EARLIEST, LATEST
from allocator.errors import AllocatorError, BrokerError, TopicNotFound
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.types import TopicPartition
from tests.kafka_versions import detected, on_versions


@pytest.mark.deadline(180)
@pytest.mark.parametrize("kafka", on_versions("0.8.2.2", "3.9.1"))
async def test_version_topics_and_offsets(kafka: str, cluster_factory: Any, unique_name: Any) -> None:
    """For each version: detection, a topic that is created later, its leaders, start and end."""
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka=kafka)
    name = unique_name()
    async with KafkaClient(cluster.bootstrap) as client:
        assert client.broker_version == detected(kafka)
        await client.refresh([name])
        assert client.partitions(name) is None
        assert name not in client.topics()
        client.follow([name])
        changed = asyncio.Event()
        client.on_metadata(changed.set)
        await asyncio.to_thread(cluster.create_topic, name, 3)
        await wait_until_async(lambda: client.partitions(name) == (0, 1, 2), 30)
        assert changed.is_set()
        await asyncio.to_thread(produce, cluster.bootstrap, name, [(None, b"x%d" % n, 0) for n in range(10)])
        parts = [TopicPartition(name, p) for p in range(3)]
        ends = await list_offsets(client, dict.fromkeys(parts, LATEST))
        starts = await list_offsets(client, dict.fromkeys(parts, EARLIEST))
        assert [ends[tp].offset for tp in parts] == [10, 0, 0]  # type: ignore[union-attr]
        assert [starts[tp].offset for tp in parts] == [0, 0, 0]  # type: ignore[union-attr]
        if detected(kafka) >= (0, 10, 1):
            hour_ago = int(time.time() * 1000) - 3_600_000
            at = await list_offsets(client, {parts[0]: hour_ago, parts[1]: hour_ago})
            found = at[parts[0]]
            assert found is not None
            assert (found.offset, found.timestamp >= hour_ago) == (0, True)
            assert at[parts[1]] is None
        else:  # these brokers know only the times of segments
            at = await list_offsets(client, {parts[0]: 1, parts[1]: 1})
            assert [at[tp].offset for tp in parts[:2]] == [0, 0]  # type: ignore[union-attr]


@pytest.mark.servers
async def test_an_0_8_broker_is_called_unreachable_only_when_it_is(unique_name: Any, caplog: Any) -> None:
    """The bootstrap address is another name of the one that metadata has, so the client connects twice."""
    name, cluster = unique_name(), LocalCluster(kafka="0.8.2.2")
    await asyncio.to_thread(cluster.start)
    try:
        await asyncio.to_thread(cluster.create_topic, name, 1)
        async with KafkaClient(cluster.bootstrap.replace("127.0.0.1", "localhost")) as client:
            client.follow([name])
            await client.refresh()
            at = TopicPartition(name, 0)
            await wait_until_async(lambda: client.leader(at) is not None, 30, "the leader")
            assert await list_offsets(client, {at: LATEST})
            assert "unreachable" not in caplog.text
            await asyncio.to_thread(cluster.brokers[0].stop)

            async def warned() -> bool:
                with contextlib.suppress(AllocatorError):
                    await client.refresh()
                return "is unreachable" in caplog.text

            await wait_until_async(warned, 30, "the warning")
    finally:
        await asyncio.to_thread(cluster.stop)


@pytest.mark.servers
async def test_a_client_connects_to_an_empty_0_8_cluster(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers of 0.8 appear in metadata with the first topic, and close the connection on version requests."""
    cluster = LocalCluster(kafka="0.8.2.2")
    await asyncio.to_thread(cluster.start)
    try:
        async with KafkaClient(cluster.bootstrap) as client:
            assert client.broker_version == (0, 8, 2)
            (warning,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
            assert f"{cluster.bootstrap} is Kafka 0.8.2: " in warning
            client.follow(["first"])
            await client.refresh()
            assert client.partitions("first") is None
            await asyncio.to_thread(cluster.create_topic, "first", 2)
            await wait_until_async(lambda: client.partitions("first") == (0, 1) and client.brokers, 30)
            tp = TopicPartition("first", 0)
            assert (await list_offsets(client, {tp: LATEST}))[tp].offset == 0  # type: ignore[union-attr]
    finally:
        await asyncio.to_thread(cluster.stop)


async def test_a_missing_topic_or_partition_is_named_until_it_is_created(
    kafka_cluster: LocalCluster, topic_factory: Any
) -> None:
    topic = await asyncio.to_thread(topic_factory)
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        with pytest.raises(TopicNotFound, match="'missing'"):
            await list_offsets(client, {TopicPartition("missing", 0): LATEST}, timeout_s=3)
        with pytest.raises(BrokerError, match=f"'{topic}' has no partition 5; it has 1, from 0 on"):
            await list_offsets(client, {TopicPartition(topic, 5): LATEST}, timeout_s=3)
        later = asyncio.create_task(list_offsets(client, {TopicPartition(topic, 1): LATEST}))
        await asyncio.to_thread(kafka_cluster.add_partitions, topic, 2)
        assert (await later)[TopicPartition(topic, 1)].offset == 0  # type: ignore[union-attr]


async def test_a_recent_response_about_no_topic_does_not_serve_for_all_topics(
    kafka_cluster: LocalCluster, topic_factory: Any
) -> None:
    topic = topic_factory()
    async with KafkaClient(kafka_cluster.bootstrap) as client:
        client.follow_all()
        await client.refresh(max_age_s=3600)
        assert topic in client.topics()
