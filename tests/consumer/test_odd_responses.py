"""A response that cannot be used costs one connection, and the consumer goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from allocator import Consumer, Kafka
from allocator.errors import AllocatorError
from allocator.testing import LocalCluster, produce, wait_until_async
from tests.consumer.mangling import (
    DAMAGED,
    Mangler,
    cut_short,
    error_codes,
    noise,
    null_lists,
    of_another_request,
    of_others,
    other_numbers,
)

KEYS = {request.__name__.removesuffix("Request"): key for key, request in DAMAGED.items()}
DAMAGES = [cut_short, noise, of_another_request, null_lists, of_others, other_numbers]
AT_THE_START = ["JoinGroup", "SyncGroup", "OffsetFetch", "ListOffsets", "FindCoordinator"]
CLIENT = "under-test"
LATER = ["Fetch", "Metadata", "Heartbeat", "OffsetCommit"]


@contextlib.asynccontextmanager
async def mangled(cluster: LocalCluster) -> AsyncIterator[Mangler]:
    """Leads clients of the cluster through a `Mangler`."""
    proxy = cluster.brokers[0].proxy
    port = proxy.server_port
    async with Mangler(port) as mangler:
        proxy.server_port = mangler.port
        proxy.reset()
        try:
            yield mangler
        finally:
            proxy.server_port = port
    proxy.reset()


@pytest.fixture
def cluster(cluster_factory: Any) -> LocalCluster:
    cluster: LocalCluster = cluster_factory(kafka="3.9.1", proxied=True)
    return cluster


def consumer(cluster: LocalCluster, topic: str, group: str) -> Consumer:
    membership = Kafka(session_timeout_s=6, rebalance_timeout_s=10, heartbeat_interval_s=0.2)
    return Consumer(
        topic,
        brokers=cluster.bootstrap,
        group=group,
        client_id=CLIENT,
        membership=membership,
        auto_commit_interval_s=0.2,
    )


async def reads(consumer: Consumer, *values: bytes) -> None:
    """Reads until these values have come, whatever errors a call raises before."""
    left = set(values)
    while left:
        with contextlib.suppress(AllocatorError):
            left -= {record.value for record in await consumer.getbatch(0.5) or ()}


@pytest.mark.deadline(120)
@pytest.mark.parametrize("request_", AT_THE_START)
async def test_a_consumer_starts_despite_damaged_responses(
    cluster: LocalCluster, topic_factory: Callable[..., str], group: str, request_: str
) -> None:
    topic = topic_factory(2, cluster=cluster)
    await asyncio.to_thread(produce, cluster.bootstrap, topic, [(None, b"0", 0), (None, b"1", 1)])
    async with mangled(cluster) as mangler:
        for number, damage in enumerate(DAMAGES):
            mangler.damage(KEYS[request_], damage, CLIENT)
            async with consumer(cluster, topic, f"{group}-{number}") as one:
                await reads(one, b"0", b"1")
            assert mangler.undamaged() < 2, damage


async def test_a_fetch_with_an_unknown_error_code_is_repeated(
    cluster: LocalCluster, topic_factory: Callable[..., str], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_factory(1, cluster=cluster)
    async with mangled(cluster) as mangler, consumer(cluster, topic, group) as one:
        mangler.damage(KEYS["Fetch"], error_codes(999), CLIENT, 3)
        await asyncio.to_thread(produce, cluster.bootstrap, topic, [(None, b"0", 0)])
        batch = await one.getbatch(30.0)  # raises nothing
        assert batch is not None
        assert [record.value for record in batch] == [b"0"]
        assert not mangler.undamaged()
    assert "error 999, retry after the back-off" in caplog.text


@pytest.mark.deadline(120)
@pytest.mark.parametrize("request_", LATER)
async def test_a_consumer_goes_on_despite_damaged_responses(
    cluster: LocalCluster, topic_factory: Callable[..., str], group: str, request_: str
) -> None:
    topic = topic_factory(2, cluster=cluster)
    async with mangled(cluster) as mangler, consumer(cluster, topic, group) as one:
        for number, damage in enumerate(DAMAGES):
            values = [b"%d-%d" % (number, n) for n in (0, 1)]
            mangler.damage(KEYS[request_], damage, CLIENT)
            await asyncio.to_thread(
                produce, cluster.bootstrap, topic, [(None, each, n) for n, each in enumerate(values)]
            )
            if request_ == "Metadata":
                with contextlib.suppress(AllocatorError):
                    await one.partitions_for_topic(topic)
            await reads(one, *values)
            await wait_until_async(lambda: not mangler.undamaged(), 30, f"{damage} to happen")
        await one.commit()
    async with consumer(cluster, topic, group) as again:
        assert await again.getbatch(1.0) is None, "everything was committed"
