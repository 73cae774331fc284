"""Retry topics on real servers: created, read with the topics of the group, shown, and unsubscribed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import Consumer, Record
from allocator.cli.commands import main
from allocator.core.aio.clock import wall_ms
from allocator.core.client.client import KafkaClient
from allocator.core.client.configs import describe_configs
from allocator.errors import ConfigError
from allocator.testing import LocalCluster, wait_until_async

Topics = Callable[..., str]
RETRIES: dict[str, Any] = {"retry_topics": ["1s", "1h"], "retries": 0, "commit_interval_s": 0.05}


@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_records_wait_in_retry_topics_and_return_unchanged(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str, membership: Any
) -> None:
    topic = topic_factory(2, config={"max.message.bytes": "2000000"})
    seen: list[tuple[str, int, int]] = []
    letters = topic_factory(1)

    async def handle(record: Record) -> None:
        assert consumer.may_act(record)
        seen.append((record.topic, record.partition, record.offset))
        again = "allocator.retries" in dict(record.headers)
        if record.value == b"18" or (record.value == b"17" and not again):
            raise ValueError("bad")

    settings = {"brokers": kafka_cluster.bootstrap, "zookeeper": kafka_cluster.zookeeper, "group": group}
    async with Consumer(topic, **settings, membership=membership, auto_offset_reset="latest") as consumer:
        with pytest.raises(ConfigError, match=rf"no retry topics {group}.retry-1s, {group}.retry-1h; create them with"):
            await consumer.process(handle, dead_letter_topic=letters, **RETRIES)
        assert seen == []
        work = asyncio.ensure_future(
            consumer.process(handle, dead_letter_topic=letters, create_retry_topics=True, **RETRIES)
        )
        due = consumer.measures.due_ms
        every = {*((f"{group}.retry-{delay}", n) for delay in ("1s", "1h") for n in (0, 1)), (topic, 0), (topic, 1)}
        await wait_until_async(lambda: consumer.assignment() == every or work.done(), 60, "the retry topics")
        for partition in [each for each in consumer.assignment() if each.topic == topic]:
            await consumer.position(partition)
        kafka_cluster.produce(topic, [(b"%d" % (n % 10), b"%d" % n) for n in range(100)])
        measures = consumer.measures
        await wait_until_async(
            lambda: (len(seen) >= 102 and due and measures.records_delayed >= 3) or work.done(), 60, "17 and 18"
        )
        assert not work.done(), work
        assert len(set(seen)) == 100, "the topic, partition and offset of a record stay"
        (bad,) = due
        assert bad.topic == f"{group}.retry-1h"
        assert due[bad] > wall_ms() + 3_000_000
        assert measures.dead_letters == 0
        async with KafkaClient(kafka_cluster.bootstrap) as client:
            found = await describe_configs(client, "topic", [bad.topic], ["max.message.bytes"])
        assert int(found[bad.topic]["max.message.bytes"]) > 2_000_000, "records have more headers there"

        waits: dict[str, Any] = {}
        # until the processed records of the retry topic are committed
        while waits.get(f"{group}.retry-1s", {}).get("records") != 0:
            assert not work.done(), work
            shown = await asyncio.to_thread(describe, group, kafka_cluster)
            waits = {each["topic"]: each for each in shown["retries"]}
        assert waits[f"{group}.retry-1s"]["due_ms"] is None
        assert waits[bad.topic]["records"] == 1
        assert abs(waits[bad.topic]["due_ms"] - due[bad]) < 1000

        work.cancel()
        await asyncio.wait({work})
        assert consumer.subscription() == {topic}
        # records of the topic alone follow
        await wait_until_async(lambda: {each.topic for each in consumer.assignment()} == {topic}, 60, "a release")
        kafka_cluster.produce(topic, [b"more"])
        record = await consumer.getone(60)
        assert record.value == b"more"


async def test_retry_topics_are_created_for_a_pattern(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    topic, letters = topic_factory(3), topic_factory(1)
    settings = {"brokers": kafka_cluster.bootstrap, "zookeeper": kafka_cluster.zookeeper, "group": group}
    calls: list[bytes] = []

    async def handle(record: Record) -> None:
        calls.append(record.value)
        if len(calls) == 1:
            raise ValueError("bad")

    kafka_cluster.produce(topic, [b"1"])
    async with Consumer(pattern=topic, **settings) as consumer:
        options = {**RETRIES, "retry_topics": ["1s"], "create_retry_topics": True, "dead_letter_topic": letters}
        work = asyncio.ensure_future(consumer.process(handle, **options))
        await wait_until_async(lambda: len(calls) == 2 or work.done(), 60, "the retry")
        assert calls == [b"1", b"1"], work
        assert {each for each in consumer.assignment() if each.topic != topic} == {
            (f"{group}.retry-1s", n) for n in range(3)
        }
        work.cancel()
        await asyncio.wait({work})


async def test_retry_topics_are_read_again_by_the_next_process(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    """The pattern matches the retry topic too, so its partitions stay with the member in between."""
    topic, retry = topic_factory(2), f"{group}.retry-1s"
    settings = {"brokers": kafka_cluster.bootstrap, "group": group, "membership": "kafka"}
    options = {**RETRIES, "retry_topics": ["1s"], "create_retry_topics": True, "dead_letter_topic": topic_factory(1)}
    tried: Counter[bytes] = Counter()

    async def handle(record: Record) -> None:
        tried[record.value] += 1
        if tried[record.value] == 1:
            raise ValueError("bad")

    async def until_retried(records: int) -> None:
        await wait_until_async(lambda: list(tried.values()).count(2) >= records or work.done(), 60, "the retries")
        assert not work.done(), work

    async with Consumer(pattern=rf"{re.escape(topic)}$|{re.escape(group)}[.].*", **settings) as consumer:
        work = asyncio.ensure_future(consumer.process(handle, **options))
        kafka_cluster.produce(topic, [b"first"])
        await until_retried(1)
        work.cancel()
        await asyncio.wait({work})
        tenures = {partition: consumer.fence(partition) for partition in [(retry, 0), (retry, 1)]}
        assert consumer.paused() == tenures.keys()
        consumer.pause((retry, 1))  # this pause is the user's
        work = asyncio.ensure_future(consumer.process(handle, **options))
        kafka_cluster.produce(topic, [(b"%d" % n, b"%d" % n) for n in range(40)])
        await until_retried(2)
        assert {partition: consumer.fence(partition) for partition in tenures} == tenures
        assert consumer.paused() == {(retry, 1)}
        consumer.resume((retry, 1))
        await until_retried(41)
        work.cancel()
        await asyncio.wait({work})


async def test_retry_topics_of_the_pattern_are_read_by_a_process_without_retry_topics(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str
) -> None:
    topic = topic_factory(1)
    settings = {"brokers": kafka_cluster.bootstrap, "group": group, "membership": "kafka"}
    options = {**RETRIES, "retry_topics": ["1s"], "create_retry_topics": True, "dead_letter_topic": topic_factory(1)}
    read: list[str] = []

    async def handle(record: Record) -> None:
        read.append(record.topic)
        if options:
            raise ValueError("bad")

    async with Consumer(pattern=rf"{re.escape(topic)}$|{re.escape(group)}[.].*", **settings) as consumer:
        kafka_cluster.produce(topic, [b"first"])
        work = asyncio.ensure_future(consumer.process(handle, **options))
        await wait_until_async(lambda: len(read) == 2 or work.done(), 60, "the retry")
        work.cancel()
        await asyncio.wait({work})
        assert consumer.paused()
        options.clear()
        work = asyncio.ensure_future(consumer.process(handle))
        kafka_cluster.produce(f"{group}.retry-1s", [b"second"])
        await wait_until_async(lambda: len(read) == 3 or work.done(), 60, "the record in the retry topic")
        assert read[2] == f"{group}.retry-1s"
        assert not consumer.paused()
        work.cancel()
        await asyncio.wait({work})


def describe(group: str, cluster: LocalCluster) -> Any:
    where = ["--brokers", cluster.bootstrap, "--zookeeper", cluster.zookeeper or ""]
    result = CliRunner().invoke(main, ["group", "describe", group, *where, "--json"])
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"cleanup.policy": "compact"}, "has cleanup.policy = compact, which removes waiting records of a key"),
        ({"retention.ms": "7000000"}, "has retention.ms = 7000000, less than twice its delay of 3600 s"),
    ],
)
async def test_a_retry_topic_that_would_lose_waiting_records_is_rejected(
    kafka_cluster: LocalCluster, topic_factory: Topics, group: str, config: dict[str, str], why: str
) -> None:
    topic = topic_factory(1)
    kafka_cluster.create_topic(f"{group}.retry-1h", 1, config=config)
    settings = {"brokers": kafka_cluster.bootstrap, "zookeeper": kafka_cluster.zookeeper, "group": group}

    async def handle(record: Record) -> None: ...

    async with Consumer(topic, **settings) as consumer:
        with pytest.raises(ConfigError, match=why):
            await consumer.process(handle, dead_letter_topic=f"{topic}.dead", retry_topics=["1h"])
