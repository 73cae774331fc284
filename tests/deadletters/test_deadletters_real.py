"""Dead letters on a real broker, by the library and by the command."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka.admin import ACLOperation, ResourceType
from kafka.protocol.producer import EndTxnRequest, ProduceRequest

from allocator import Consumer, Fixed, KafkaGroupCommands, Producer, TopicPartition
from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.errors import AllocatorError, BrokerError, TopicNotFound
from allocator.handlers import late_producer
from allocator.handlers.dead_letter import DeadLetterTopic
from allocator.migrate.offset_map import map_topic
from allocator.operate.dead_letters import DeadLetterQueue, LetterFilter
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import Record
from tests.racked import racked_brokers
from tests.secured import USER, by_sasl, denied, with_an_authorizer


class Killed(BaseException):
    """Simulates the end of the process."""


def before_each(kind: type, action: Callable[[], Awaitable[None]], patch: pytest.MonkeyPatch) -> None:
    """Runs `action` before each request of this kind is sent."""
    send = KafkaClient.send

    async def sent(self: KafkaClient, node_id: int, request: object, *args: Any) -> Any:
        if isinstance(request, kind):
            await action()
        return await send(self, node_id, request, *args)

    patch.setattr(KafkaClient, "send", sent)


class Topics:
    """A topic of orders with two partitions, and its dead-letter topic."""

    def __init__(self, cluster: LocalCluster, orders: str, dead: str) -> None:
        self.cluster, self.orders, self.dead = cluster, orders, dead

    async def fill(self, count: int) -> None:
        letters = DeadLetterTopic(self.dead, self.cluster.bootstrap, "billing")
        for n in range(count):
            record = Record(self.orders, n % 2, n, 1000 + n, 0, b"k%d" % n, b"v%d" % n, [])
            await letters.send([record], TimeoutError("slow") if n % 2 else ValueError("bad"), 3)
        await letters.close()

    def queue(self, **options: Any) -> DeadLetterQueue:
        return DeadLetterQueue(self.dead, self.cluster.bootstrap, **options)

    async def values(self, isolation: Any) -> list[tuple[int, bytes]]:
        """Returns (partition, value) of the orders."""
        found: list[tuple[int, bytes]] = []
        fixed = Fixed([TopicPartition(self.orders, n) for n in range(2)])
        where = {"brokers": self.cluster.bootstrap, "group": None, "membership": fixed}
        async with Consumer(**where, isolation_level=isolation, max_wait_s=0.05) as consumer:  # type: ignore[arg-type]
            ends = await consumer.end_offsets(fixed.partitions)
            while any([await consumer.position(each) < end for each, end in ends.items()]):
                batch = await consumer.getbatch(0.1)
                found += [(record.partition, record.value) for record in batch or ()]
        return sorted(found)


@pytest.fixture
def topics(kafka_cluster: LocalCluster, topic_factory: Callable[..., str]) -> Topics:
    return Topics(kafka_cluster, topic_factory(2), topic_factory(1))


async def collected(letters: AsyncIterator[object]) -> int:
    return len([letter async for letter in letters])


async def test_a_redrive_that_is_killed_before_its_commit_is_repeated_and_each_record_comes_once(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics.fill(20)

    async def killed() -> None:
        raise Killed

    async with topics.queue() as letters:
        planned = await letters.redrive()
        assert len(planned.done) == 20
        assert await topics.values("read_uncommitted") == []
        with monkeypatch.context() as patch:
            before_each(EndTxnRequest, killed, patch)
            with pytest.raises(Killed):
                await letters.redrive(execute=True)
    # the records are in the log, and no transaction has them yet
    assert len(await topics.values("read_uncommitted")) == 20
    async with topics.queue() as letters:
        timeouts = LetterFilter(error="timeouterror")
        assert len((await letters.redrive(timeouts, execute=True, rate=200)).done) == 10
        assert len((await letters.redrive(execute=True)).done) == 10
        assert (await letters.redrive(execute=True)).done == []
        assert await collected(letters.read()) == 0
        assert await collected(letters.read(settled=True)) == 20
    assert await topics.values("read_committed") == sorted((n % 2, b"v%d" % n) for n in range(20))


async def test_notes_of_strangers_are_ignored(topics: Topics) -> None:
    await topics.fill(2)
    async with topics.queue() as letters:
        assert len((await letters.discard(LetterFilter(error="timeouterror"), execute=True)).done) == 1
        note: dict[str, Any] = {"action": "discarded", "at_ms": 1, "by": "x", "reason": ""}
        value = json.dumps({**note, "topic_id": None, "written_ms": None}).encode()
        keys = ("\N{SUPERSCRIPT TWO}:0", "0:\N{SUPERSCRIPT TWO}", f"0:{'9' * 5000}", ":", "x")
        notes = [(key.encode(), value, 0) for key in keys]
        await asyncio.to_thread(topics.cluster.produce, f"{topics.dead}.settled", notes)
        assert await collected(letters.read()) == 1
        assert len((await letters.redrive(execute=True)).done) == 1


async def test_a_redrive_that_was_replaced_writes_nothing_more(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    await topics.fill(4)
    replaced = False

    async def replace() -> None:
        nonlocal replaced
        if not replaced:
            replaced = True
            async with topics.queue() as other:
                assert len((await other.redrive(execute=True)).done) == 4

    async with topics.queue() as letters:
        before_each(ProduceRequest, replace, monkeypatch)
        with pytest.raises(BrokerError, match="another process has begun to write"):
            await letters.redrive(execute=True)
    assert len(await topics.values("read_committed")) == 4


async def newest(cluster: LocalCluster, topic: str) -> list[Record]:
    """The committed records in partition 0 of the topic."""
    at = TopicPartition(topic, 0)
    async with KafkaClient(cluster.bootstrap) as client:
        reader = RangeReader(client, isolation_level="read_committed", patience_s=30.0)
        return [record async for batch in reader.read(await reader.bounds([at])) for record in batch]


async def test_a_redrive_fits_the_limits_of_the_topic_and_rejects_only_larger_records(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str]
) -> None:
    orders = topic_factory(1, config={"max.message.bytes": "2000", "retention.ms": "60000"})
    dead = topic_factory(1)
    letters = DeadLetterTopic(dead, kafka_cluster.bootstrap, "billing")
    headers = [("null", None), ("empty", b"")]
    values = [b"%d" % n * (3000 if n == 4 else 500) for n in range(10)]
    records = [Record(orders, 0, n, 1000 + n, 0, None, value, list(headers)) for n, value in enumerate(values)]
    await letters.send(records, ValueError("bad"), 1)
    await letters.close()
    began = time.time() * 1000
    async with DeadLetterQueue(dead, kafka_cluster.bootstrap) as queue:
        outcome = await queue.redrive(execute=True)
        assert [letter.name for letter in outcome.done] == [f"0:{n}" for n in range(10) if n != 4]
        ((refused, why),) = outcome.refused
        assert refused.name == "0:4"
        assert "max.message.bytes" in why
        assert [letter.name async for letter in queue.read()] == ["0:4"]
        found = await newest(kafka_cluster, orders)
        assert [record.value for record in found] == [value for n, value in enumerate(values) if n != 4]
        assert all(record.timestamp >= began - 1 for record in found), "retention does not delete them at once"
        first = [("allocator.first_timestamp", b"1000"), ("allocator.redrives", b"1")]
        assert list(found[0].headers) == [*headers, *first]


async def test_letters_of_a_topic_that_was_created_again_are_not_settled(topics: Topics) -> None:
    await topics.fill(4)
    async with topics.queue() as letters:
        assert len((await letters.redrive(execute=True)).done) == 4
        assert await collected(letters.read()) == 0
        topics.cluster.delete_topic(topics.dead)
        topics.cluster.create_topic(topics.dead)
        await topics.fill(4)
        assert await collected(letters.read()) == 4
        assert len((await letters.discard(LetterFilter(places=frozenset({(0, 1)})), execute=True)).done) == 1
        assert [letter.name async for letter in letters.read()] == ["0:0", "0:2", "0:3"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["deadletters", *arguments])


async def test_reading_letters_without_a_leader_times_out(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    cluster = racked_brokers(cluster_factory)
    dead = topic_factory(2, cluster=cluster)
    topics = Topics(cluster, topic_factory(2, cluster=cluster), dead)
    await topics.fill(20)
    async with KafkaClient(cluster.bootstrap) as client:
        await client.refresh([dead])
        leaders = {client.leader(TopicPartition(dead, number)) for number in range(2)}
    async with topics.queue(timeout_s=3) as letters:
        assert await collected(letters.read()) == 20
        for broker in cluster.brokers:
            if broker.id in leaders:
                broker.kill()
        began = time.monotonic()
        with pytest.raises(BrokerError) as caught:
            await collected(letters.read())
        assert caught.value.retriable
        assert time.monotonic() - began < 25


def test_the_command_lists_shows_redrives_and_discards(topics: Topics) -> None:
    asyncio.run(topics.fill(4))
    orders, where = topics.orders, [topics.dead, "--brokers", topics.cluster.bootstrap]
    listed = run("list", *where, "--error", "slow")
    assert "2 letters" in listed.output
    assert f"{orders}:1" in listed.output
    shown = json.loads(run("show", *where, "--letter", "0:1", "--json").output)
    assert (shown["topic"], shown["offset"], shown["value"]) == (orders, 1, "v1")
    assert shown["stack"].endswith("TimeoutError: slow\n")
    assert "value         v1" in run("show", *where, "--letter", "0:1").output
    dry = run("discard", *where, "--letter", "0:0")
    assert "1 letters would be discarded; nothing was changed" in dry.output
    done = json.loads(run("discard", *where, "--letter", "0:0", "--reason", "a test", "--execute", "--json").output)
    assert [each["letter"] for each in done["discarded"]] == ["0:0"]
    assert "3 letters redriven" in run("redrive", *where, "--execute").output
    assert "0 letters would be redriven" in run("redrive", *where).output
    settled = json.loads(run("list", *where, "--settled", "--json").output)["letters"]
    assert {each["letter"]: each["settled"]["action"] for each in settled} == {
        "0:0": "discarded",
        **dict.fromkeys(("0:1", "0:2", "0:3"), "redriven"),
    }
    assert settled[0]["settled"]["reason"] == "a test"
    for action, place in (("redrive", "0:0"), ("discard", "9:99")):
        none = run(action, *where, "--letter", place, "--execute")
        assert (none.exit_code, f"{place}: it is settled already" in none.output) == (1, True), none.output
    for wrong in (["show", *where, "--letter", "0-1"], ["list", *where, "--since", "yesterday"], ["list"]):
        assert run(*wrong).exit_code == 2


def test_commands_show_timestamps_of_any_unit(topics: Topics) -> None:
    second = 1_767_225_600  # 2026-01-01T00:00:00Z
    times = {second * 1000: "2026-01-01T00:00:00"}
    times |= {ms: f"{ms} ms since 1970" for ms in (second * 10**6, second * 10**9, (1 << 63) - 1)}

    async def write() -> None:
        async with Producer(brokers=topics.cluster.bootstrap) as producer:
            for ms in times:
                headers = [("allocator.topic", topics.orders.encode()), ("allocator.partition", b"0")]
                await producer.send_and_wait(topics.dead, b"v", timestamp=ms, headers=headers)

    asyncio.run(write())
    where = [topics.dead, "--brokers", topics.cluster.bootstrap]
    outputs = [run(command, *where) for command in ("list", "redrive", "discard")]
    outputs.append(CliRunner().invoke(main, ["records", *where, "--from", "earliest"]))
    for done in outputs:
        assert done.exit_code == 0, done.output
        for text in times.values():
            assert text in done.output


async def has_notes(topics: Topics) -> bool:
    async with KafkaClient(topics.cluster.bootstrap) as client:
        return f"{topics.dead}.settled" in await client.list_topics()


async def test_letters_that_failed_too_often_or_have_no_origin_are_rejected(topics: Topics) -> None:
    orders = topics.orders
    letters = DeadLetterTopic(topics.dead, topics.cluster.bootstrap, "billing")
    often = Record(orders, 0, 7, 1000, 0, None, b"v", [("allocator.redrives", b"3")])
    gone = Record(orders, 9, 7, 1000, 0, None, b"v", [])
    await letters.send([often, gone], ValueError("bad"), 1)
    await letters.close()
    topics.cluster.produce(topics.dead, [b"no headers"])
    async with topics.queue() as found:
        outcome = await found.redrive(execute=True)
        assert outcome.done == []
        reasons = [why for _, why in outcome.refused]
        assert "redriven 3 times before" in reasons[0]
        assert f"partition {orders}:9 does not exist" in reasons[1]
        assert "lack the original topic" in reasons[2]
        assert (await found.discard(LetterFilter(error="no such error"), execute=True)).done == []
        assert not await has_notes(topics), "no letter was settled"
        assert len((await found.discard(LetterFilter(places=frozenset({(0, 2)})), execute=True)).done) == 1
        assert await has_notes(topics)
        assert len((await found.redrive(max_redrives=4)).done) == 1
        assert await found.get(0, 99) is None
    with pytest.raises(TopicNotFound):
        async with DeadLetterQueue("missing", topics.cluster.bootstrap):
            pass


async def write_letters(cluster: LocalCluster, dead: str, letters: list[tuple[str, bytes | None]]) -> None:
    """Writes letters as anyone can who may write to the topic. `letters`: original topic and key of each."""
    async with Producer(brokers=cluster.bootstrap) as producer:
        for topic, key in letters:
            place = [("allocator.topic", topic.encode()), ("allocator.partition", b"0"), ("allocator.offset", b"0")]
            headers = [*place, ("allocator.error", b"TimeoutError: slow")]
            await producer.send_and_wait(dead, b"{}", key=key, headers=headers)


async def test_no_letter_becomes_a_command_or_a_note(topics: Topics, group: str) -> None:
    cluster, dead = topics.cluster, topics.dead
    async with KafkaGroupCommands(cluster.bootstrap, group, create=True) as commands:
        await commands.pause([TopicPartition(topics.orders, 0)], why="a test")
        (given,) = await commands.list()
    key = given.command.id.encode()
    others = f"{group}.settled"
    for name in (f"{dead}.settled", others, map_topic(group)):
        await asyncio.to_thread(cluster.create_topic, name, config={"cleanup.policy": "compact"})
    no_topics = ("a b", "..", "x" * 250, "\u00e9", "y" * 40_000)
    refused = [
        (f"{group}.orders", key),
        (f"{group}.orders", b"result/" + key + b"/0123456789abcdef"),
        (f"{dead}.settled", b"0:0"),
        (others, b"0:0"),
        (dead, b"k"),
        (map_topic(group), b"{}"),
        ("__consumer_offsets", b"k"),
        *((name, b"k") for name in no_topics),
    ]
    await write_letters(cluster, dead, [*refused, (f"{group}.orders", b"k"), (others, b"k")])
    for execute in (False, True):
        async with topics.queue() as letters:
            outcome = await letters.redrive(execute=execute)
        assert [letter.offset for letter, _ in outcome.refused] == list(range(len(refused))), outcome.refused
        assert len(outcome.done) == 2, "a topic of the user may have such a name"
    where = [dead, "--brokers", cluster.bootstrap]
    output = (await asyncio.to_thread(run, "redrive", *where, "--execute")).output
    assert "it would be an operator command of a group" in output
    async with KafkaGroupCommands(cluster.bootstrap, group) as commands:
        assert [each.command.id for each in await commands.list()] == [given.command.id]
    async with topics.queue() as letters:
        assert await collected(letters.read()) == len(refused)


async def test_a_letter_that_may_not_be_written_leaves_the_others(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    cluster = await with_an_authorizer(cluster_factory, "3.9.1")
    orders, secret, dead = [await asyncio.to_thread(topic_factory, 1, 1, None, cluster) for _ in range(3)]
    table = await asyncio.to_thread(topic_factory, 1, 1, {"cleanup.policy": "compact"}, cluster)
    await write_letters(
        cluster, dead, [(orders, b"0"), (secret, b"1"), (table, None), (secret, None), (orders, None), (table, b"5")]
    )
    async with denied(cluster, ResourceType.TOPIC, secret, ACLOperation.WRITE):

        async def is_denied() -> bool:
            async with Producer(brokers=by_sasl(cluster), security=USER) as producer:
                try:
                    await producer.send_and_wait(secret, b"v")
                except AllocatorError:
                    return True
            return False

        await wait_until_async(is_denied, 30, "the rule")
        async with DeadLetterQueue(dead, by_sasl(cluster), security=USER) as letters:
            outcome = await letters.redrive(execute=True)
    assert sorted(letter.offset for letter in outcome.done) == [0, 4, 5]
    reasons = {letter.offset: why for letter, why in outcome.refused}
    assert sorted(reasons) == [1, 2, 3]
    assert f"not authorised to write topic {secret!r}" in reasons[1]
    assert "one without a key" in reasons[2]
    assert [record.key for record in await newest(cluster, orders)] == [b"0", None]
    async with DeadLetterQueue(dead, cluster.bootstrap) as letters:
        assert [letter.offset async for letter in letters.read()] == [1, 2, 3]
        assert len((await letters.redrive(LetterFilter(topic=secret), execute=True)).done) == 2


async def test_a_letter_that_brokers_cannot_take_now_names_them_and_not_the_rights_of_the_client(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage passes, and then the same record is accepted: topic, sizes and rights are as they should be."""

    async def lost() -> None:
        raise BrokerError("the connection was reset", retriable=True)

    monkeypatch.setattr(late_producer, "TIMEOUT_S", 2.0)
    before_each(ProduceRequest, lost, monkeypatch)
    letters = DeadLetterTopic(topics.dead, topics.cluster.bootstrap, "billing")
    try:
        with pytest.raises(BrokerError, match="; check that its brokers run") as error:
            await letters.send([Record("orders", 3, 17, 1234, 0, None, b"v", [])], ValueError("bad"), 1)
    finally:
        await letters.close()
    assert error.value.retriable
    assert "permissions" not in str(error.value)


async def test_a_letter_whose_topic_is_missing_names_the_topic(kafka_cluster: LocalCluster) -> None:
    letters = DeadLetterTopic("no.such.letters", kafka_cluster.bootstrap, "billing")
    try:
        with pytest.raises(BrokerError, match="check that the topic exists"):
            await letters.send([Record("orders", 3, 17, 1234, 0, None, b"v", [])], ValueError("bad"), 1)
    finally:
        await letters.close()
