"""One service over each membership."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, OffsetAndMetadata, TopicPartition
from allocator.core.aio import within
from allocator.core.consumer import client_of
from allocator.errors import Closed, CommitFailed, ConfigError, IllegalState, NotOwned
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from tests.consumer.real_service import Recording, Service, owns, read

MEMBERSHIPS = ["zookeeper", "kafka", "fixed"]
GROUPS = ["zookeeper", "kafka"]


@pytest.fixture
def service(
    request: pytest.FixtureRequest, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> Service:
    return Service(kafka_cluster, topic_factory(4), group, getattr(request, "param", "zookeeper"))


def each(*memberships: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("service", memberships, indirect=True)


async def test_a_service_changes_its_membership_by_one_setting_and_continues(service: Service) -> None:
    seen: list[int] = []
    for turn, membership in enumerate(["zookeeper", "kafka", "fixed", "kafka", "zookeeper"]):
        await service.produce(100 * turn, 100 * turn + 100)
        async with service.consumer(membership=membership) as consumer:
            values = await read(consumer, 100)
            assert sorted(values) == list(range(100 * turn, 100 * turn + 100)), membership
            await consumer.commit()
            seen += values
    assert sorted(seen) == list(range(500))


async def test_commits_from_outside_are_rejected_while_a_kafka_group_lives(service: Service) -> None:
    """Two memberships of one group at the same time would overwrite each other's offsets."""
    await service.produce(0, 8)
    inside = service.consumer(membership="kafka")
    outside = service.consumer(membership="fixed", auto_commit_interval_s=None)
    async with inside, outside:
        await owns(inside, 4)
        await owns(outside, 4)
        with pytest.raises(CommitFailed, match="member"):
            await outside.commit({service.partitions[0]: 1})


async def test_the_next_generation_protocol_is_one_more_setting(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    cluster = await asyncio.to_thread(lambda: cluster_factory(kafka=NEWEST))
    topic = await asyncio.to_thread(lambda: topic_factory(4, cluster=cluster))
    service = Service(cluster, topic, group, "kafka")
    await service.produce(0, 100)
    async with service.consumer() as classic:
        assert len(await read(classic, 100)) == 100
        await classic.commit()
    await service.produce(100, 200)
    async with service.consumer(group_protocol="consumer", isolation_level="read_committed") as first:
        assert sorted(await read(first, 100)) == list(range(100, 200))
        async with service.consumer(group_protocol="consumer", assignor="range") as second:

            async def shared() -> bool:
                await first.getbatch(0)
                return len(first.assignment()) == 2 and len(second.assignment()) == 2

            await wait_until_async(shared, 30, "the second member's assignment")
            second.unsubscribe()
            assert await second.getbatch(0) is None
            await owns(first, 4)
            assert second.assignment() == frozenset()
            second.subscribe([topic])
            await wait_until_async(shared, 30, "the assignment of the member that is back")
    with pytest.raises(ConfigError, match="the broker assigns"):
        service.consumer(group_protocol="consumer", assignor=["range"])
    for name, options in (("instance_id", {"instance_id": ""}), ("assignor", {"assignor": ""})):
        with pytest.raises(ConfigError, match=f"{name} is empty"):
            service.consumer(group_protocol="consumer", **options)


# -- fixed ----------------------------------------------------------------------------------------------------------


@each("fixed")
async def test_two_consumers_without_a_group_both_read_the_partitions_that_they_name(service: Service) -> None:
    await service.produce(0, 40)
    some = service.partitions[1:3]
    async with (
        service.consumer(partitions=some, group=None) as one,
        service.consumer(partitions=some, group=None) as two,
    ):
        for consumer in (one, two):
            values = await read(consumer, 20)
            assert sorted(values) == [n for n in range(40) if n % 4 in (1, 2)]
            assert consumer.assignment() == set(some)
    with pytest.raises(ConfigError, match=rf"{service.topic}:9 does not exist; the topic has 4"):
        await service.consumer(partitions=[TopicPartition(service.topic, 9)], group=None).start()


@each("fixed")
async def test_without_a_group_commits_are_rejected_and_the_reset_policy_sets_the_position(service: Service) -> None:
    await service.produce(0, 40)
    async with service.consumer(group=None) as consumer:
        assert len(await read(consumer, 40)) == 40
        for attempt in (consumer.commit(), consumer.commit({service.partitions[0]: 1})):
            with pytest.raises(IllegalState, match="has no group"):
                await attempt
        with pytest.raises(IllegalState, match="has no group"):
            await consumer.committed(service.partitions[0])
    async with service.consumer(group=None) as again:
        assert len(await read(again, 40)) == 40
    async with service.consumer(group=None, auto_offset_reset="latest") as latest:
        assert await latest.position(service.partitions[0]) == 10


@each("fixed")
async def test_topics_by_pattern_without_a_group(service: Service, topic_factory: Callable[..., str]) -> None:
    async with service.consumer(group=None, pattern=service.topic[:-2]) as consumer:
        await owns(consumer, 4)
        later = service.topic + "-later"
        await asyncio.to_thread(lambda: service.cluster.create_topic(later, partitions=2))
        await wait_until_async(lambda: _refreshed(consumer, 6), 30, "the partitions of the new topic")


async def _refreshed(consumer: Consumer, count: int) -> bool:
    await client_of(consumer).refresh()
    return len(consumer.assignment()) == count


# -- subscription changes -------------------------------------------------------------------------------------------


@each(*MEMBERSHIPS)
async def test_a_second_subscription_replaces_the_first(service: Service, topic_factory: Callable[..., str]) -> None:
    other = topic_factory(4)
    await service.produce(0, 40)
    await service.produce(100, 140, other)
    async with service.consumer() as consumer:
        assert len(await read(consumer, 40)) == 40
        with pytest.raises(ConfigError, match="not a topic name"):
            consumer.subscribe("no/topic")
        consumer.subscribe(other)
        assert sorted(await read(consumer, 40)) == list(range(100, 140))
        assert {p.topic for p in consumer.assignment()} == {other}
        assert await consumer.getbatch(0) is None  # the delivered records are done
        consumer.subscribe(pattern=f"{service.topic}$|{other}$")
        await owns(consumer, 8)
        # the consumer committed the delivered records of the first topic when it gave the topic up
        await service.produce(40, 80)
        assert sorted(await read(consumer, 40)) == list(range(40, 80))


# -- a user that does not poll --------------------------------------------------------------------------------------


@each(*GROUPS)
async def test_a_member_that_does_not_poll_leaves_and_joins_again_when_it_polls(service: Service) -> None:
    await service.produce(0, 40)
    listener = Recording()
    async with service.consumer(max_poll_interval_s=1.5, listener=listener) as consumer:
        batch = await consumer.getbatch(30)
        assert batch is not None
        mine = TopicPartition(batch.topic, batch.partition)
        async with service.consumer() as successor:
            # the first one is not polled: all its partitions go to the other, also the batch in use
            await owns(successor, 4)
            assert not consumer.may_act()
            assert ("lost", frozenset({mine})) in [(what, parts & {mine}) for what, parts in listener.calls]
            for call in (consumer.fence, consumer.pause, consumer.topic_id):
                with pytest.raises(NotOwned):
                    call(mine)
            assert mine not in consumer.lag()
            with pytest.raises((NotOwned, CommitFailed)):
                await consumer.commit({mine: batch.next_offset})
            values = await read(successor, 40)
            assert sorted(values) == list(range(40)), "the delivered batch was never committed"
            await successor.commit()
            waiting = asyncio.ensure_future(consumer.getbatch())
            await owns(consumer, 2)
            await owns(successor, 2)
            # a member that waits for records counts as polling
            await asyncio.wait({waiting}, timeout=3.0)
            assert len(consumer.assignment()) == 2
            waiting.cancel()
            await asyncio.wait({waiting})


async def test_commits_have_the_epoch_of_the_last_record(service: Service) -> None:
    """A client that takes over detects by it that the log was truncated (KIP-320)."""
    partitions = set(service.partitions)

    async def epochs(consumer: Consumer, offset: int) -> set[int]:
        found = {partition: await consumer.committed(partition) for partition in partitions}
        assert {None if each is None else each.offset for each in found.values()} == {offset}
        return {each.leader_epoch for each in found.values() if each is not None}

    await service.produce(0, 40)
    async with service.consumer(auto_commit_interval_s=1000.0) as consumer:
        assert len(await read(consumer, 40)) == 40
        assert await consumer.getbatch(0) is None
    # the release has committed
    await service.produce(40, 80)
    async with service.consumer(auto_commit_interval_s=1000.0) as consumer:
        assert await epochs(consumer, 10) == {0}
        assert len(await read(consumer, 40)) == 40
        for offset in (20, OffsetAndMetadata(20, "mine", -1)):
            await consumer.commit(dict.fromkeys(partitions, offset))
            assert await epochs(consumer, 20) == {0}
        await service.produce(80, 120)
        handled: list[int] = []

        async def handle(record: Any) -> None:
            handled.append(record.offset)

        work = asyncio.ensure_future(consumer.process(handle, commit_interval_s=1000.0))
        await wait_until_async(lambda: len(handled) == 40 or work.done(), 30, "the handler")
        await consumer.close()
        await work
    async with service.consumer() as consumer:
        assert await epochs(consumer, 30) == {0}


@each(*GROUPS)
async def test_closing_commits_done_records_unless_commit_is_false(service: Service) -> None:
    await service.produce(0, 40)
    for commit in (False, True):
        consumer = service.consumer(auto_commit_interval_s=600.0)
        await consumer.start()
        assert len(await read(consumer, 40)) == 40, "records that were not committed did not come again"
        assert await consumer.getbatch(0) is None
        await consumer.close(commit=commit)
    async with service.consumer() as after:
        await owns(after, 4)
        assert [await after.position(partition) for partition in service.partitions] == [10] * 4


@each("kafka", "fixed")
async def test_a_topic_that_does_not_exist_yet_is_waited_for(service: Service) -> None:
    later = service.topic + "-later"
    async with service.consumer(later, **({"group": None} if service.membership == "fixed" else {})) as consumer:
        assert await consumer.getbatch(0.2) is None
        await asyncio.to_thread(lambda: service.cluster.create_topic(later, partitions=4))
        await service.produce(0, 40, later)
        await client_of(consumer).refresh()  # the default interval is long
        assert sorted(await read(consumer, 40)) == list(range(40))


@each("zookeeper", "kafka", "fixed", "kiel")
async def test_a_close_during_the_start_ends_both(service: Service) -> None:
    before = asyncio.all_tasks()
    for turns in (1, 3, 10, 30, 60, 100):
        consumer = service.consumer()
        starting = asyncio.ensure_future(consumer.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        if starting.done():
            await consumer.close()
            break
        await consumer.close()  # not in a task of its own: `start` may end before it begins
        await asyncio.wait({starting}, timeout=1)
        assert starting.done(), "the start continues"
        with pytest.raises(Closed, match="closed while it started"):
            await starting
        assert asyncio.all_tasks() == before
        with pytest.raises(Closed):
            await consumer.getbatch(0)
    async with service.consumer() as successor:
        await owns(successor, 4)


@each("zookeeper", "kafka", "fixed")
@pytest.mark.parametrize("reads", ["getone", "getbatch", "getmany", "async for", "process"])
async def test_reading_raises_after_other_code_has_cancelled_the_tasks_of_the_consumer(
    service: Service, reads: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As test frameworks and shutdown code do. Without its tasks, the consumer would never get another record."""

    async def read_on(consumer: Consumer) -> None:
        if reads == "async for":
            async for _ in consumer:
                pass
        elif reads == "process":
            await consumer.process(lambda _: None)
        else:
            while True:
                await getattr(consumer, reads)()

    others, consumer = asyncio.all_tasks(), service.consumer()
    await consumer.start()
    reader = asyncio.ensure_future(read_on(consumer))
    await owns(consumer, 4)
    for task in asyncio.all_tasks() - {reader, *others}:
        task.cancel()
    await asyncio.wait({reader}, timeout=20)
    assert reader.done(), "the reader waits for ever"
    with pytest.raises(Closed, match="was cancelled by code that had not started it"):
        await reader
    await service.produce(0, 4)
    assert caplog.text.count("was cancelled by code that had not started it") == 1
    with pytest.raises(Closed, match="create another one"):
        await consumer.getone(0)
    with pytest.raises(Closed, match="cancelled by other code"):
        await within(consumer.partitions_for_topic(service.topic), 20)
    await consumer.close()
    with pytest.raises(Closed, match="closed"):
        await consumer.getone(0)
    async with service.consumer() as successor:
        assert len(await read(successor, 4)) == 4
