"""The doctor on each version of Kafka: all checks work, and a healthy group has no finding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import KAFKA, NEWEST
from tests.doctor.doctor_patient import Patient

QUICK = {"0.9.0.1", "3.9.1"}
VERSIONS = [v if v in QUICK else pytest.param(v, marks=pytest.mark.long) for v in KAFKA]


@pytest.mark.deadline(120)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_healthy_group_has_no_finding(
    version: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka=version)
    topic = await asyncio.to_thread(topic_factory, 4, cluster=cluster)
    patient = Patient(cluster, topic, group, 4)
    await patient.fill()
    async with patient.consumer() as consumer:
        await patient.consume(consumer, 40)
        assert set(await patient.examined()) == ({"old-version"} if cluster.release.number < (0, 10) else set())


@pytest.mark.deadline(150)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_by_kafkas_own_protocol_needs_no_zookeeper(
    protocol: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    cluster = await asyncio.to_thread(cluster_factory, kafka=NEWEST)
    patient = Patient(cluster, await asyncio.to_thread(topic_factory, 4, cluster=cluster), group, 4)
    await patient.fill()
    settings = {"membership": "kafka", "group_protocol": protocol, "auto_commit_interval_s": None}
    async with patient.consumer(**settings) as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == 4, 40)
        found = await patient.examined()
        assert found["offsets-missing"][0].where == tuple(f"{patient.topic}:{n}" for n in range(4))
        await patient.consume(consumer, 40)
        code, report = await patient.shell_json(group, "--brokers", cluster.bootstrap, "--interval", "0.5")
        assert (code, report["findings"]) == (0, [])
    await patient.fill(3)
    assert "(Kafka says Empty); lag 12" in (await patient.examined())["no-members"][0].what
