"""Prometheus metrics of consumers on real servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from joining import joined
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from allocator import Consumer
from allocator.testing import LocalCluster
from allocator.web.metrics import ConsumerCollector


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def scraped(registry: CollectorRegistry) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name -> label values (by label name) -> value, as read back from the text that is served."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_a_scrape_tells_what_the_consumer_did(
    membership: str, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await in_thread(lambda: topic_factory(4))
    await in_thread(lambda: kafka_cluster.produce(topic, [(None, b"%d" % n, n % 4) for n in range(400)]))
    registry = CollectorRegistry()
    consumers: list[Consumer] = []
    registry.register(ConsumerCollector(consumers))
    assert "allocator_assigned_partitions" not in scraped(registry)
    consumer = Consumer(
        topic,
        **joined(
            brokers=kafka_cluster.bootstrap,
            group=group,
            zookeeper=kafka_cluster.zookeeper,
            membership=membership,
            client_id="c1",
            session_timeout_s=15.0,
            heartbeat_interval_s=0.1,
            max_wait_s=0.1,
            prefetch_bytes=4000,
        ),
    )
    async with consumer:
        consumers.append(consumer)
        seen = 0
        while seen < 200:
            seen += len(await consumer.getbatch(10) or ())
        await consumer.commit()
        end = time.monotonic() + 20
        while consumer.measures.heartbeat.count < 3 and time.monotonic() < end:
            await consumer.getbatch(0.1)
        await consumer.commit()
        us = ("c1", group)
        found = scraped(registry)
        assert found["allocator_assigned_partitions"] == {us: 4}
        assert found["allocator_may_act"] == {us: 1}
        assert found["allocator_generation"] == {us: consumer.generation}
        assert found["allocator_partitions_assigned_total"] == {us: 4}
        assert found["allocator_partitions_lost_total"] == {us: 0}
        assert found["allocator_resets_total"] == {us: 0}
        assert found["allocator_records_lost_total"] == {us: 0}
        assert found["allocator_commit_latency_seconds_count"][us] >= 1
        assert (
            0 < found["allocator_commit_latency_avg_seconds"][us] <= found["allocator_commit_latency_max_seconds"][us]
        )
        assert found["allocator_commit_rate"][us] > 0
        assert found["allocator_heartbeat_response_time_seconds_count"][us] >= 3
        assert 0 <= found["allocator_last_heartbeat_seconds_ago"][us] < 10
        joins = found["allocator_join_time_seconds_count"][us]
        assert joins >= 1 if membership == "kafka" else joins == 0
        assert (found["allocator_sync_time_seconds_count"][us] > 0) == (membership == "kafka")
        lags = {labels[2:]: value for labels, value in found["allocator_records_lag"].items()}
        assert set(lags) <= {(str(number), topic) for number in range(4)}
        left = sum([100 - await consumer.position(p) for p in consumer.lag()])
        assert sum(lags.values()) == left
        assert found["allocator_records_lag_max"] == {us: max(lags.values())}
        names = consumer.metrics()
        assert names["assigned-partitions"] == 4
        assert names["commit-latency-avg"] == pytest.approx(1000 * consumer.measures.commit.avg_s)
        expected = {"join-rate", "sync-rate", "heartbeat-rate", "commit-rate", "last-heartbeat-seconds-ago"}
        expected |= {"join-time-avg", "join-time-max", "sync-time-avg", "sync-time-max", "records-lag-max"}
        assert expected | {"heartbeat-response-time-max", "commit-latency-max"} <= set(names)
    assert scraped(registry)["allocator_partitions_revoked_total"] == {us: 4}
