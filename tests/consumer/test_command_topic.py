"""Operators steer a running group of Kafka's own protocol, with orders in a topic.

The effect of each command is the subject of test_operator_commands.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import KafkaGroupCommands
from allocator.cli.commands import main
from allocator.core.consumer import client_of
from allocator.core.errors import CommandRefused
from allocator.testing import LocalCluster, wait_until_async
from tests.consumer.real_service import Handler, Service
from tests.inside import member_of


async def test_members_over_kafka_obey_commands_and_their_undoing(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic, dead = topic_factory(2), topic_factory(1)
    service = Service(kafka_cluster, topic, group, "kafka", 2)
    handle = Handler(service)
    produce, until, handled = handle.produce, handle.until, handle.handled

    async def command(*words: str, code: int = 0) -> str:
        given = ["group", *words, "--brokers", kafka_cluster.bootstrap, "--timeout", "30"]
        done = await asyncio.to_thread(CliRunner().invoke, main, given)
        assert done.exit_code == code, done.output
        return done.output

    async def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(await command("commands", group, "--json"))["commands"]
        return found

    async with service.consumer() as consumer:
        work = asyncio.ensure_future(
            consumer.process(handle, retries=1_000_000, retry_backoff_s=30.0, dead_letter_topic=dead)
        )
        try:
            await produce(0, 0, 0, 0)
            await until((0, 1))
            assert "create it with --create" in await command("skip", group, f"{topic}:0", "2", code=1)
            assert "such commands have no effect" in await command("freeze", group, code=1)
            await command("skip", group, f"{topic}:0", "2", "--create", "--why", "it never works")
            await until((0, 3))
            (skip,) = await listed()
            assert (skip["kind"], skip["state"], skip["why"]) == ("skip", "given", "it never works")
            assert "@" in skip["who"]
            assert skip["when"] > 0
            assert skip["topics"] == {topic: str(client_of(consumer).topic_id(topic))}
            await command("skip", group, f"{topic}:0", "2", "--undo")
            assert await listed() == []

            await produce(0, 0)
            await until((0, 5))
            handled.clear()
            # an offset that the log does not have is a mistake, and would be replaced by the end
            outside = await command("seek", group, f"{topic}:0", "--to", "99999", code=2)
            assert f"offset 99999 is outside the log: {topic}:0 has 0 to 6" in outside
            preview = ("seek", group, f"{topic}:0", "--to", "3", "--dry-run")
            (seen,) = json.loads(await command(*preview, "--json"))["partitions"]
            assert (seen["log_end"], seen["to"]) == (6, 3)
            assert "seek" not in {each["kind"] for each in await listed()}
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

    # the next owner obeys from its first record on, and ignores foreign records in the topic
    foreign = [(b"o-00000001", b"{", 0), (b"\xff", b"\xff", 0)]
    await asyncio.to_thread(kafka_cluster.produce, f"{group}.orders", foreign)
    async with KafkaGroupCommands(kafka_cluster.bootstrap, group, who="bob", timeout_s=30) as commands:
        await commands.pause([(topic, 1)], expires_s=3600)  # a plain tuple counts as a TopicPartition
        await produce(0, 1)
        async with service.consumer() as second:
            batch = await second.getbatch(30)
            while batch is not None:
                assert batch.partition == 0
                batch = await second.getbatch(0)
            pause = next(each.command for each in await commands.list() if each.command.kind == "pause")
            assert pause.who == "bob"
            described = json.loads(await command("describe", group, "--json"))
            assert pause.id in [each["id"] for each in described["commands"]]
            given = ["doctor", group, "--brokers", kafka_cluster.bootstrap, "--zookeeper", "none", "--interval", "0"]
            examined = await asyncio.to_thread(CliRunner().invoke, main, [*given, "--json", "--timeout", "30"])
            (finding,) = [each for each in json.loads(examined.output)["findings"] if each["id"] == "command-pauses"]
            assert finding["where"] == [f"{topic}:1"]
            await commands.resume([(topic, 1)])
            with pytest.raises(CommandRefused, match=f"no skip of {topic}:1 at 9"):
                await commands.unskip((topic, 1), 9)
            batch = await second.getbatch(30)
            while batch is not None and batch.partition == 0:
                batch = await second.getbatch(30)
            assert batch is not None
            await commands.remove(*(each.command.id for each in await commands.list()))
            assert await commands.list() == []


async def test_members_follow_a_command_topic_that_was_created_again_without_an_id(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str], group: str
) -> None:
    cluster = cluster_factory(kafka="1.1.1")
    topic = topic_factory(3, cluster=cluster)
    service = Service(cluster, topic, group, "kafka", 3)
    operator = KafkaGroupCommands(cluster.bootstrap, group, create=True, timeout_s=60)
    async with operator as commands, service.consumer() as consumer:
        for each in ("one", "two", "three"):  # more records than in the next topic
            await commands.pause([(topic, 2)], why=each)
        await commands.pause([(topic, 0)])
        state = member_of(consumer).state
        await wait_until_async(lambda: {p.partition for p in state.held_back} == {0, 2}, 60, "the pauses")
        await asyncio.to_thread(cluster.delete_topic, f"{group}.orders")
        await commands.pause([(topic, 1)])
        await wait_until_async(lambda: {p.partition for p in state.held_back} == {1}, 60, "the new pause")
