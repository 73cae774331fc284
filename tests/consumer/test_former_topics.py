"""Topics that are deleted and created again where requests for records do not name them, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from real_service import Service, read

from allocator import Consumer, GroupedConsumer
from allocator.testing import LocalCluster, wait_until_async

Options = Callable[[LocalCluster], "dict[str, Any]"]


POLL_S = 0.1  # how long a request for records waits (`Service.consumer`)


def long(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.long)


def shares_zookeeper(cluster: LocalCluster) -> dict[str, Any]:
    """With the brokers: the znodes of topics tell."""
    return {"zookeeper": cluster.zookeeper}


def own_zookeeper(cluster: LocalCluster) -> dict[str, Any]:
    """The coordinator tells, from 0.10.2 on, and ids tell, from 2.8 on."""
    return {}


def kafka(cluster: LocalCluster) -> dict[str, Any]:
    return {"membership": "kafka"}


@pytest.fixture
def setting(
    request: pytest.FixtureRequest,
    cluster_factory: Callable[..., LocalCluster],
    topic_factory: Callable[..., str],
    group: str,
) -> Service:
    cluster: LocalCluster = cluster_factory(kafka=request.param)
    return Service(cluster, topic_factory(1, cluster=cluster), group, partitions=1)


async def recreate(setting: Service) -> None:
    await asyncio.to_thread(setting.cluster.delete_topic, setting.topic)
    await asyncio.sleep(3 * POLL_S)  # a request that waits at the broker meanwhile may notice nothing
    await asyncio.to_thread(setting.cluster.create_topic, setting.topic, 1)
    await setting.produce(1000, 1080)  # more than were read of the old one


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("0.9.0.1", shares_zookeeper),
        ("1.1.1", shares_zookeeper),
        ("1.1.1", own_zookeeper),
        ("1.1.1", kafka),
        long("0.8.2.2", shares_zookeeper),
        long("0.10.2.2", own_zookeeper),
        long("2.8.2", own_zookeeper),
    ],
    indirect=["setting"],
)
@pytest.mark.parametrize("paused", [False, True], ids=["reading", "paused"])
async def test_a_topic_created_again_under_a_member_is_read_from_its_beginning(
    setting: Service, options: Options, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allocator.core.fetch.planner.UNSEEN_S", POLL_S)
    await setting.produce(0, 50)
    async with setting.consumer(auto_commit_interval_s=0.2, **options(setting.cluster)) as consumer:
        assert await read(consumer, 50) == list(range(50))
        await consumer.commit()
        if paused:
            consumer.pause(*setting.partitions)
            await recreate(setting)
            consumer.resume(*consumer.assignment())
            values = await read(consumer, 80)
        else:
            reading = asyncio.ensure_future(read(consumer, 80))
            await recreate(setting)
            values = await reading
        assert values == list(range(1000, 1080))
        await consumer.commit()
        assert (await consumer.committed(setting.partitions[0])).offset == 80


@pytest.mark.parametrize(("setting", "storage"), [("0.9.0.1", "both"), ("1.1.1", "zookeeper")], indirect=["setting"])
async def test_an_offset_in_zookeeper_of_a_former_topic_does_not_count(setting: Service, storage: str) -> None:
    def consumer() -> Consumer:
        return setting.consumer(zookeeper=setting.cluster.zookeeper, offsets=storage)

    await setting.produce(0, 50)
    async with consumer() as one:
        assert await read(one, 50) == list(range(50))
        await one.commit()
    async with consumer() as one:
        await setting.produce(50, 60)
        assert await read(one, 10) == list(range(50, 60)), "the offset of the same topic counts"
        await one.commit()
    if setting.cluster.version == "0.9.0.1":  # whose coordinators keep the offsets of deleted topics, without an id
        async with setting.consumer(zookeeper=setting.cluster.zookeeper, auto_commit_interval_s=None) as one:
            await wait_until_async(one.assignment, 30, "an assignment")
            await one.commit({setting.partitions[0]: 0})
    await recreate(setting)
    async with consumer() as one:
        assert await read(one, 80) == list(range(1000, 1080))


@pytest.mark.parametrize("setting", ["1.1.1"], indirect=True)
async def test_an_offset_that_kiel_left_for_a_former_topic_does_not_count(setting: Service) -> None:
    await setting.produce(0, 50)
    async with setting.consumer(zookeeper=setting.cluster.zookeeper, offsets="zookeeper") as one:
        await wait_until_async(one.assignment, 30, "an assignment")
        await one.commit({setting.partitions[0]: 20})

    async def values(count: int) -> list[int]:
        consumer = GroupedConsumer(
            [setting.cluster.bootstrap], setting.group, [setting.cluster.zookeeper], max_wait_time=100
        )
        await consumer.connect()
        found: list[int] = []
        while len(found) < count:
            found += await consumer.consume(setting.topic) or ()
        await consumer.commit_offsets()
        await consumer.close()
        return found

    assert await values(30) == list(range(20, 50))
    await recreate(setting)
    assert await values(80) == list(range(1000, 1080))


@pytest.mark.parametrize(
    ("version", "options"), [("1.1.1", own_zookeeper), long("0.9.0.1", shares_zookeeper), long("2.8.2", kafka)]
)
async def test_a_restart_of_the_brokers_repeats_nothing(
    version: str, options: Options, topic_factory: Callable[..., str], group: str
) -> None:
    """Brokers that have just started lack topics for a moment."""
    with LocalCluster(version, brokers=1) as cluster:
        topic: str = topic_factory(1, cluster=cluster)
        setting = Service(cluster, topic, group, partitions=1)
        await setting.produce(0, 50)
        async with setting.consumer(auto_commit_interval_s=0.2, **options(cluster)) as consumer:
            assert await read(consumer, 50) == list(range(50))
            for turn in range(1, 4):
                await asyncio.to_thread(cluster.brokers[0].stop)
                await asyncio.to_thread(cluster.brokers[0].start)
                await setting.produce(50 * turn, 50 * turn + 50)
                assert await read(consumer, 50) == list(range(50 * turn, 50 * turn + 50))
            assert consumer.losses == ()
