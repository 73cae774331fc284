"""Prometheus metrics of consumers on real servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from allocator import Consumer
from allocator.testing import LocalCluster
from allocator.web.metrics import ConsumerCollector
from tests.joining import joined


def scraped(registry: CollectorRegistry) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name -> label values (by label name) -> value, as read back from the text that is served."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_a_scrape_reports_the_work_of_a_consumer(
    membership: str, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 4)
    await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"%d" % n, n % 4) for n in range(400)])
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
        labels, samples = ("c1", group), scraped(registry)
        found = {name: values[labels] for name, values in samples.items() if labels in values}
        expected: dict[str, float] = {"assigned_partitions": 4, "may_act": 1, "generation": consumer.generation}
        expected.update(partitions_assigned_total=4, partitions_lost_total=0, resets_total=0, records_lost_total=0)
        assert expected.items() <= {name.removeprefix("allocator_"): value for name, value in found.items()}.items()
        assert found["allocator_commit_latency_seconds_count"] >= 1
        assert 0 < found["allocator_commit_latency_avg_seconds"] <= found["allocator_commit_latency_max_seconds"]
        assert found["allocator_commit_rate"] > 0
        assert found["allocator_heartbeat_response_time_seconds_count"] >= 3
        assert 0 <= found["allocator_last_heartbeat_seconds_ago"] < 10
        joins = found["allocator_join_time_seconds_count"]
        assert joins >= 1 if membership == "kafka" else joins == 0
        assert (found["allocator_sync_time_seconds_count"] > 0) == (membership == "kafka")
        lags = {names[2:]: value for names, value in samples["allocator_records_lag"].items()}
        assert set(lags) <= {(str(number), topic) for number in range(4)}
        left = sum([100 - await consumer.position(p) for p in consumer.lag()])
        assert sum(lags.values()) == left
        assert found["allocator_records_lag_max"] == max(lags.values())
        metrics = consumer.metrics()
        assert metrics["assigned-partitions"] == 4
        assert metrics["commit-latency-avg"] == pytest.approx(1000 * consumer.measures.commit.avg_s)
        rates = {"join-rate", "sync-rate", "heartbeat-rate", "commit-rate", "last-heartbeat-seconds-ago"}
        rates |= {"join-time-avg", "join-time-max", "sync-time-avg", "sync-time-max", "records-lag-max"}
        assert rates | {"heartbeat-response-time-max", "commit-latency-max"} <= set(metrics)
    assert scraped(registry)["allocator_partitions_revoked_total"] == {labels: 4}
