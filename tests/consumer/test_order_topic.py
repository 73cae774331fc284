"""Operators steer a running group of Kafka's own protocol, with orders in a topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import Consumer, Kafka, KafkaGroupOrders
from allocator.cli.commands import main
from allocator.core.errors import OrderRefused
from allocator.operate.dead_letters import DeadLetterQueue
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import Record


async def test_members_over_kafka_obey_every_order_and_its_undoing(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, dead = topic_factory(2), topic_factory(1)
    handled: list[tuple[int, int]] = []

    async def handle(record: Record) -> None:
        if (record.partition, record.offset) == (0, 2):
            raise ValueError("it never works")
        handled.append((record.partition, record.offset))

    async def produce(count: int, partition: int) -> None:
        await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"x", partition)] * count)

    async def until(*wanted: tuple[int, int]) -> None:
        await wait_until_async(lambda: set(wanted) <= set(handled), 30, lambda: f"{wanted}; handled: {handled}")

    async def command(*words: str, code: int = 0) -> str:
        given = ["group", *words, "--brokers", kafka_cluster.bootstrap, "--timeout", "30"]
        done = await asyncio.to_thread(CliRunner().invoke, main, given)
        assert done.exit_code == code, done.output
        return done.output

    async def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(await command("orders", group, "--json"))["orders"]
        return found

    def member() -> Consumer:
        return Consumer(
            topic,
            brokers=kafka_cluster.bootstrap,
            group=group,
            membership=Kafka(session_timeout_s=20.0),
            max_wait_s=0.05,
        )

    async with member() as consumer:
        work = asyncio.ensure_future(
            consumer.process(handle, retries=1_000_000, retry_backoff_s=600.0, dead_letter_topic=dead)
        )
        try:
            await produce(4, 0)
            await until((0, 1))
            refused = await command("skip", group, f"{topic}:0", "2", code=1)
            assert "create it with --create" in refused
            assert "such orders have no effect" in await command("freeze", group, code=1)
            # a record that always fails holds its partition up; an order leaves it out
            await command("skip", group, f"{topic}:0", "2", "--create", "--why", "it never works")
            await until((0, 3))
            (skip,) = await listed()
            assert (skip["kind"], skip["state"], skip["why"]) == ("skip", "given", "it never works")
            assert "@" in skip["who"]
            assert skip["when"] > 0
            await command("skip", group, f"{topic}:0", "2", "--undo")
            assert await listed() == []

            await command("pause", group, f"{topic}:0-1")
            await wait_until_async(lambda: "takes effect: pause" in caplog.text, 30, "the pause")
            await produce(2, 0)
            await produce(2, 1)
            await command("resume", group, f"{topic}:1")
            await until((1, 1))
            assert (0, 4) not in handled
            await command("resume", group, f"{topic}:0")
            await until((0, 5))

            await command("quarantine", group, f"{topic}:1", "--why", "its producer is broken")
            await wait_until_async(lambda: "takes effect: quarantine" in caplog.text, 30, "the quarantine")
            await produce(1, 1)
            async with DeadLetterQueue(dead, kafka_cluster.bootstrap) as letters:

                async def errors() -> list[str]:
                    return [letter.error async for letter in letters.read()]

                found = await wait_until_async(errors, 30, "a letter")
            assert "its producer is broken" in found[0]
            await command("quarantine", group, f"{topic}:1", "--lift")
            await wait_until_async(lambda: "in effect here: quarantine" in caplog.text, 30, "the lift")
            await produce(1, 1)
            await until((1, 3))
            assert (1, 2) not in handled

            handled.clear()
            await command("seek", group, f"{topic}:0", "--to", "3")
            await until((0, 3), (0, 5))
            assert (0, 1) not in handled

            async def done() -> str | None:
                return next((each["state_why"] for each in await listed() if each["state"] == "done"), None)

            assert await wait_until_async(done, 30, "the result") == "sought to 3 from 6"
            assert not work.done()
        finally:
            work.cancel()
            await asyncio.wait({work})

    # the next owner obeys from its first record on; foreign records in the topic do not matter
    orders_topic = f"{group}.orders"
    await asyncio.to_thread(kafka_cluster.produce, orders_topic, [(b"o-00000001", b"{", 0), (b"\xff", b"\xff", 0)])
    async with KafkaGroupOrders(kafka_cluster.bootstrap, group, who="bob", timeout_s=30) as orders:
        await orders.pause([(topic, 1)], expires_s=3600)  # a plain tuple counts as a TopicPartition
        await produce(1, 0)
        await produce(1, 1)
        async with member() as second:
            batch = await second.getbatch(30)
            while batch is not None:
                assert batch.partition == 0
                batch = await second.getbatch(0)
            assert {each.order.kind: each.order.who for each in await orders.list()}["pause"] == "bob"
            await orders.resume([(topic, 1)])
            with pytest.raises(OrderRefused, match=f"no skip of {topic}:1 at 9"):
                await orders.unskip((topic, 1), 9)
            batch = await second.getbatch(30)
            while batch is not None and batch.partition == 0:
                batch = await second.getbatch(30)
            assert batch is not None
            await orders.remove(*(each.order.id for each in await orders.list()))
            assert await orders.list() == []
