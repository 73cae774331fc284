"""Records that no handler finishes, in groups whose offsets are in a sink: letters, skipped ones, and commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, GroupCommands, Record, TopicPartition
from allocator.errors import SinkBehind
from allocator.testing import LocalCluster, wait_until_async
from tests.sinks.sink_member import Store

pytestmark = pytest.mark.servers


async def test_a_record_behind_effects_that_the_database_has_lost_is_no_letter(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, new_store: Callable[[], Store]
) -> None:
    topic, letters = topic_factory(1), topic_factory(1)
    settings: dict[str, Any] = {"brokers": kafka_cluster.bootstrap, "zookeeper": f"{kafka_cluster.zookeeper}/{group}"}
    store, successor = new_store(), new_store()

    def process(consumer: Consumer, store: Store) -> asyncio.Future[None]:
        def handle(record: Record) -> None:
            store.sink.write(record, store.store)

        return asyncio.ensure_future(
            consumer.process(handle, retries=1, retry_backoff_s=0.01, dead_letter_topic=letters)
        )

    kafka_cluster.produce(topic, [(None, b"%d" % n, 0) for n in range(9)])
    async with Consumer(topic, group=group, **settings, sink=store.sink) as consumer:
        work = process(consumer, store)
        await wait_until_async(lambda: store.written() == 9, 30, "the effects")
        store.lose(0, 5)
        kafka_cluster.produce(topic, [(None, b"9", 0)])
        with pytest.raises(SinkBehind):
            await asyncio.wait_for(work, 30)
    async with Consumer(topic, group=group, **settings, sink=successor.sink) as consumer:
        work = process(consumer, successor)
        await wait_until_async(lambda: store.written() == 10, 30, "the effects")
        ends = await consumer.end_offsets([TopicPartition(letters, 0)])
        work.cancel()
        await asyncio.wait({work})
    assert store.counts() == {(0, n): 1 for n in range(10)}
    assert list(ends.values()) == [0]


async def test_a_letter_or_a_skipped_record_is_not_handled_again_by_the_next_owner(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, new_store: Callable[[], Store]
) -> None:
    topic, letters = topic_factory(1), topic_factory(1)
    kafka_cluster.produce(topic, [(None, b"%d" % n, 0) for n in range(4)])
    zookeeper = f"{kafka_cluster.zookeeper}/{group}"
    handled: list[int] = []

    async def run(until: int) -> None:
        store = new_store()

        def handle(record: Record) -> None:
            handled.append(record.offset)
            if record.offset == 1:
                raise ValueError("it becomes a letter")
            if record.offset == 3:
                raise LookupError("it is skipped")
            store.sink.write(record, store.store)

        settings: dict[str, Any] = {"brokers": kafka_cluster.bootstrap, "zookeeper": zookeeper, "group": group}
        async with (
            Consumer(topic, **settings, sink=store.sink) as consumer,
            GroupCommands(zookeeper, group) as commands,
        ):
            if until == 4:
                await commands.skip(TopicPartition(topic, 0), 2)
            options: dict[str, Any] = {"retries": 0, "dead_letter_topic": letters, "skip_on": [LookupError]}
            work = asyncio.ensure_future(consumer.process(handle, commit_interval_s=0.05, **options))

            async def is_committed() -> bool:
                found = await consumer.committed(TopicPartition(topic, 0))
                return found is not None and found.offset == until

            await wait_until_async(is_committed, 30, "the commit")
            work.cancel()
            await asyncio.wait({work})

    await run(4)
    assert handled == [0, 1, 3]
    handled.clear()
    kafka_cluster.produce(topic, [(None, b"4", 0)])
    await run(5)
    assert handled == [4]
