"""A start at a time while records are written: the first record that is not older is read."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from allocator import Consumer, SingleConsumer
from allocator.core.client import KafkaClient
from allocator.testing import LocalCluster
from allocator.testing.batches import ProducedRecord

Topics = Callable[..., str]


async def first_of_consumer(cluster: LocalCluster, topic: str, start_ms: int) -> Any:
    async with Consumer(
        topic, brokers=cluster.bootstrap, group=None, membership="fixed", auto_offset_reset=start_ms
    ) as consumer:
        record = await consumer.getone(timeout_s=20)
        return None if record is None else json.loads(record.value)


async def first_of_single_consumer(cluster: LocalCluster, topic: str, start_ms: int) -> Any:
    consumer = SingleConsumer([cluster.bootstrap], max_wait_time=200)
    await consumer.connect()
    try:
        start = datetime.datetime.fromtimestamp(start_ms / 1000, datetime.timezone.utc)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            values = await consumer.consume(topic, start)
            if values:
                return values[0]
        return None
    finally:
        await consumer.close()


@pytest.mark.parametrize("first", [first_of_consumer, first_of_single_consumer])
async def test_a_record_that_is_written_while_its_time_is_looked_up_is_not_skipped(
    kafka_cluster: LocalCluster, topic_factory: Topics, monkeypatch: pytest.MonkeyPatch, first: Any
) -> None:
    topic = topic_factory(1)
    start_ms = round(time.time()) * 1000
    written = ["old"]

    def write(value: str, age_ms: int) -> None:
        record = ProducedRecord(None, json.dumps(value).encode(), 0, start_ms - age_ms)
        kafka_cluster.produce(topic, [record])

    await asyncio.to_thread(write, "old", 1000)
    send = KafkaClient.send

    async def send_then_write(self: KafkaClient, to: Any, request: Any, *args: Any, **options: Any) -> Any:
        response = await send(self, to, request, *args, **options)
        if type(request).__name__.startswith("ListOffsets"):
            written.append(f"new {len(written)}")
            await asyncio.to_thread(write, written[-1], -1000)
        return response

    monkeypatch.setattr(KafkaClient, "send", send_then_write)
    found = await first(kafka_cluster, topic, start_ms)
    assert len(written) > 1
    assert found == written[1]
