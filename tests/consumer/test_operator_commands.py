"""Operators pause, skip, quarantine and seek partitions of a running group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import Consumer, GroupCommands, TopicPartition
from allocator.cli.commands import main
from allocator.core.consumer import client_of
from allocator.errors import BrokerError, NoOffsetsError
from allocator.operate.dead_letters import DeadLetterQueue, Letter
from allocator.sinks import SqliteSink
from allocator.testing import FaultProxy, LocalCluster, WaitTimeout, wait_until_async
from allocator.testing.topics import zookeeper_client
from allocator.types import Record
from tests.consumer.real_service import Handler, Service, owns, read

Handle = Callable[[Record], Awaitable[None]]
OFFSET_COMMIT = 8
FOR_EVER: dict[str, Any] = {"retries": 1_000_000, "retry_backoff_s": 600.0, "retry_backoff_max_s": 600.0}
read_or_process = pytest.mark.parametrize("called", [False, True], ids=["read", "process"])


@pytest.fixture
def service(kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str) -> Service:
    with zookeeper_client(kafka_cluster.zookeeper) as client:
        client.ensure_path(f"/{group}")  # an operator does not create the chroot
    return Service(kafka_cluster, topic_factory(1), group, partitions=1)


def operator(service: Service) -> GroupCommands:
    return GroupCommands(f"{service.cluster.zookeeper}/{service.group}", service.group, who="alice")


async def until_state(commands: GroupCommands, state: str) -> str:
    """Waits until one order has this state; returns the reason."""

    async def reason() -> str | None:
        return next((each.why for each in await commands.list() if each.state == state), None)

    why: str = await wait_until_async(reason, 30, state)  # type: ignore[assignment]
    return why


async def seek(commands: GroupCommands, partition: TopicPartition, to: str, timeout_s: float = 30) -> None:
    """Commands a seek, and waits until it is done."""
    command = (await commands.seek([partition], to)).command

    async def is_done() -> bool:
        return any(each.command.id == command.id and each.state == "done" for each in await commands.list())

    await wait_until_async(is_done, timeout_s, f"the seek to {to}")


@contextlib.asynccontextmanager
async def handling(consumer: Consumer, handle: Handle, called: bool) -> AsyncIterator[asyncio.Future[None]]:
    """Handles records: `process` calls the function, or a loop of `getone`. Starts the consumer if necessary."""

    async def work() -> None:
        if called:
            await consumer.process(handle)
        while record := await consumer.getone():
            await handle(record)

    async with consumer, cancelled(work()) as task:
        yield task


@contextlib.asynccontextmanager
async def cancelled(work: Any) -> AsyncIterator[asyncio.Future[None]]:
    """Runs a task, and cancels it at the end."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


class StuckAtFive:
    """A handler that waits at offset 5 until `may_end` is set, and then calls `handle`."""

    def __init__(self, handle: Handle | None = None) -> None:
        self.handle = handle
        self.inside, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, record: Record) -> None:
        if record.offset == 5:
            self.inside.set()
            await self.may_end.wait()
        if self.handle is not None:
            await self.handle(record)


async def test_a_handler_obeys_every_command_and_its_undoing(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, dead = topic_factory(2), topic_factory(1)
    service = Service(kafka_cluster, topic, group, partitions=2)
    zero, one = service.partitions
    handle = Handler(service)
    produce, until, handled = handle.produce, handle.until, handle.handled

    async def logged(text: str) -> None:
        await wait_until_async(lambda: text in caplog.text, 30, text)

    consumer = service.consumer()
    work = cancelled(consumer.process(handle, dead_letter_topic=dead, **FOR_EVER))
    async with consumer, work as task, operator(service) as commands:
        # a record that always fails delays its partition until a command skips it
        await produce(0, 0, 0, 0)
        await until((0, 1))
        await commands.skip(zero, 2, why="it never works")
        await until((0, 3))
        assert (0, 2) not in handled

        await commands.pause([zero, one])
        await logged("takes effect: pause")
        await produce(0, 0, 1, 1)
        assert [each.command.kind for each in await commands.list()] == ["skip", "pause"]
        await commands.resume([one])
        await until((1, 1))
        assert (0, 4) not in handled
        await commands.resume([zero])
        await until((0, 5))

        failures = consumer.measures.handler_failures
        await commands.quarantine([one], why="its producer is broken")
        await logged("takes effect: quarantine")
        await produce(1, 1)
        async with DeadLetterQueue(dead, kafka_cluster.bootstrap) as letters:

            async def both() -> list[Letter]:
                found = [letter async for letter in letters.read()]
                return found if len(found) == 2 else []

            found = await wait_until_async(both, 30, "two letters")
        assert "Quarantined: quarantine" in found[0].error
        assert "by alice: its producer is broken" in found[0].error
        assert found[0].attempts == 0, "the handler was not called"
        assert consumer.measures.handler_failures == failures
        await commands.lift([one])
        await logged("in effect here: quarantine")
        await produce(1)
        await until((1, 4))
        assert not {(1, 2), (1, 3)} & set(handled)

        handled.clear()
        await commands.seek([zero], "1")
        await until((0, 1), (0, 3), (0, 5))
        assert (0, 0) not in handled
        assert await until_state(commands, "done") == "sought to 1 from 6"
        assert not task.done()


@read_or_process
async def test_of_two_seeks_the_later_one_counts(service: Service, called: bool) -> None:
    """The first one also names a partition that no other seek names, and takes longer, because a broker responds."""
    (zero,) = service.partitions
    handled: list[int] = []

    async def handle(record: Record) -> None:
        handled.append(record.offset)

    await service.produce(0, 6)
    async with handling(service.consumer(), handle, called):
        await wait_until_async(lambda: len(handled) == 6, 30, "the records")
    handled.clear()
    async with operator(service) as commands:
        await commands.seek([zero, TopicPartition(zero.topic, 7)], "earliest")
        await commands.seek([zero], "3")
        async with handling(service.consumer(), handle, called):
            assert await until_state(commands, "done") == "sought to 3 from 6"
            await wait_until_async(lambda: handled[-1:] == [5], 30, "the records again")
            first = (await commands.list())[0]
    assert handled == [3, 4, 5]
    assert "later seek replaces it" in first.command.results[0].what


async def test_the_commit_of_a_seek_is_not_retried_after_a_later_seek(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator refuses commits until the later seek has set the position. No record follows."""
    (zero,) = service.partitions
    handled: list[int] = []

    async def handle(record: Record) -> None:
        handled.append(record.offset)

    await service.produce(0, 6)
    consumer = service.consumer()
    async with handling(consumer, handle, True), operator(service) as commands:
        await wait_until_async(lambda: len(handled) == 6, 30, "the records")
        await commands.pause([zero])
        await wait_until_async(lambda: "takes effect: pause" in caplog.text, 30, "the pause")
        client = client_of(consumer)
        send = client.send

        async def refuse(node: Any, request: Any, timeout_s: float | None = None) -> Any:
            if request.API_KEY == OFFSET_COMMIT and await consumer.position(zero) != 1:
                raise BrokerError("refused by the test")
            return await send(node, request, timeout_s)

        client.send = refuse  # type: ignore[method-assign]
        await commands.seek([zero, TopicPartition(zero.topic, 7)], "3")

        async def first_seek() -> bool:
            return await consumer.position(zero) == 3

        await wait_until_async(first_seek, 30, "the first seek")
        assert (await commands.seek([zero], "1")).state == "given"
        assert await until_state(commands, "done") == "sought to 1 from 3"

        async def result() -> bool:
            return bool((await commands.list())[1].command.results)

        await wait_until_async(result, 30, "the result of the first seek")
        found = await consumer.committed(zero)
        assert found.offset == 1


@pytest.mark.parametrize("by", ["operator", "user"])
async def test_a_commit_whose_response_comes_after_a_seek_does_not_hide_the_sought_offset(
    service: Service, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    """No record follows, because the partition is paused. The next owner starts at the committed offset."""
    (zero,) = service.partitions
    await service.produce(0, 6)
    sent, may_arrive = asyncio.Event(), asyncio.Event()
    consumer = service.consumer(auto_commit_interval_s=0.1)
    async with consumer, operator(service) as commands:
        client = client_of(consumer)
        send = client.send

        async def slow(node: Any, request: Any, timeout_s: float | None = None) -> Any:
            response = await send(node, request, timeout_s)
            if request.API_KEY == OFFSET_COMMIT:
                sent.set()
                await may_arrive.wait()
            return response

        client.send = slow  # type: ignore[method-assign]
        assert await read(consumer, 6) == list(range(6))
        await commands.pause([zero])
        await wait_until_async(lambda: "takes effect: pause" in caplog.text, 30, "the pause")
        assert await consumer.getbatch(0) is None
        await asyncio.wait_for(sent.wait(), 30)
        if by == "operator":
            await commands.seek([zero], "2")

            async def sought() -> bool:
                return await consumer.position(zero) == 2

            await wait_until_async(sought, 30, "the seek")
            may_arrive.set()
            assert await until_state(commands, "done") == "sought to 2 from 6"
        else:
            consumer.seek(zero, 2)
            may_arrive.set()
    async with service.consumer() as reader:
        found = await reader.committed(zero)
        assert found is not None
        assert found.offset == 2


async def test_the_results_of_many_partitions_share_writes(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """Otherwise each write would conflict with all others, and wake up every member."""
    with zookeeper_client(kafka_cluster.zookeeper) as client:
        client.ensure_path(f"/{group}")
    service = Service(kafka_cluster, topic_factory(40), group, partitions=40)
    async with (
        FaultProxy(int(kafka_cluster.zookeeper.rpartition(":")[2])) as proxy,
        service.consumer(zookeeper=f"{proxy.address}/{group}") as consumer,
        operator(service) as commands,
        cancelled(read(consumer, 1)),
    ):
        await owns(consumer, 40)
        proxy.latency(0.2)  # so that results are added faster than they are written
        await commands.seek(service.partitions, "earliest")
        await until_state(commands, "done")
        with zookeeper_client(kafka_cluster.zookeeper) as client:
            _, stat = client.get(f"/{group}/allocator/{group}/orders")
        assert stat.version < 20


async def test_a_seek_waits_for_no_retry_and_is_done_when_it_is_committed(service: Service) -> None:
    (zero,) = service.partitions
    handled: list[int] = []

    async def handle(record: Record) -> None:
        if record.offset == 2:
            raise ValueError("it never works")
        handled.append(record.offset)

    await service.produce(0, 4)
    consumer = service.consumer()
    work = cancelled(consumer.process(handle, commit_interval_s=600.0, **FOR_EVER))
    async with consumer, work as task, operator(service) as commands:
        await wait_until_async(lambda: handled == [0, 1], 30, "the record that never works")
        for to, after in (("1", [0, 1, 1]), ("3", [0, 1, 1, 3])):
            await seek(commands, zero, to)
            found = await consumer.committed(zero)
            assert found.offset >= int(to)
            await wait_until_async(lambda after=after: handled == after, 30, f"the records from {to} on")  # type: ignore[misc]
        assert not task.done()


async def test_a_consumer_that_reads_by_itself_obeys_a_pause_and_a_seek_but_no_quarantine(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    (zero,) = service.partitions

    async def command(*words: str) -> None:
        where = ["--zookeeper", f"{service.cluster.zookeeper}/{service.group}"]
        done = await asyncio.to_thread(CliRunner().invoke, main, ["group", *words, *where])
        assert done.exit_code == 0, done.output

    name = f"{service.topic}:0"
    await service.produce(0, 5)
    async with operator(service) as commands:
        async with service.consumer() as first:
            assert (await first.getbatch(30)) is not None
            await first.getbatch(0)
            await command("pause", service.group, name, "--why", "a test")
            await commands.quarantine([zero])
            await wait_until_async(lambda: "takes effect: pause" in caplog.text, 30, "the pause")
            await until_state(commands, "not kept")
        # the next owner obeys from its first record on
        async with service.consumer() as second:
            await command("seek", service.group, name, "--to", "earliest")
            await until_state(commands, "done")
            assert await second.getbatch(0) is None
            found = await second.committed(zero)
            assert found.offset == 0, "the next owner would continue at the earlier offset"
            await command("resume", service.group, name)
            batch = await second.getbatch(30)
            assert batch.base_offset == 0


@pytest.mark.parametrize("with_sink", [False, True], ids=["committed", "sink"])
async def test_a_seek_gives_a_position_to_a_partition_without_one(
    service: Service, tmp_path: Path, with_sink: bool
) -> None:
    (zero,) = service.partitions
    await service.produce(0, 6)
    sink = SqliteSink(tmp_path / "effects.db") if with_sink else None
    consumer = service.consumer(auto_offset_reset="none", sink=sink)
    async with consumer, operator(service) as commands:
        with pytest.raises(NoOffsetsError, match=service.topic):
            await consumer.getone()
        await commands.seek([zero], "4")
        assert await until_state(commands, "done") == "sought to 4"
        record = await consumer.getone()
        assert record is not None
        assert record.offset == 4
    if sink is not None:
        sink.close()


@read_or_process
async def test_a_seek_holds_when_the_partition_returns_to_an_earlier_owner(service: Service, called: bool) -> None:
    (zero,) = service.partitions
    handled: list[int] = []
    await service.produce(0, 100)

    async def handle(record: Record) -> None:
        handled.append(record.offset)

    async with handling(service.consumer(client_id="a"), handle, called), operator(service) as commands:
        await wait_until_async(lambda: len(handled) == 100, 30, "a's records")
        async with service.consumer(client_id="b") as b:
            await commands.evacuate("a")
            await wait_until_async(lambda: b.assignment() == {zero}, 30, "the move")
            await seek(commands, zero, "0")
            await commands.uncordon("a")
        await wait_until_async(lambda: len(handled) == 200, 30, lambda: f"the replay: {len(handled)} records")
        assert sorted(handled[100:]) == list(range(100))


@read_or_process
async def test_a_partition_moves_only_after_the_records_in_hand_before_a_seek(service: Service, called: bool) -> None:
    (zero,) = service.partitions
    handle = StuckAtFive()
    await service.produce(0, 6)
    a = service.consumer(client_id="a")
    async with handling(a, handle, called), operator(service) as commands, service.consumer(client_id="b") as b:
        await wait_until_async(handle.inside.is_set, 30, "the handler at the last record")
        await seek(commands, zero, "3")
        await commands.evacuate("a")
        await wait_until_async(lambda: not a.assignment(), 30, "the release")
        with pytest.raises(WaitTimeout):
            await wait_until_async(b.assignment, 2, "it does not move while the handler works")
        handle.may_end.set()
        await wait_until_async(lambda: b.assignment() == {zero}, 30, "the move")
        found = await b.committed(zero)
        assert found.offset == 3


@read_or_process
async def test_a_sink_follows_a_seek_although_a_handler_still_writes(
    service: Service, tmp_path: Path, called: bool
) -> None:
    """A write after the sink was rewound would advance it again, and the sink would reject the replay."""
    (zero,) = service.partitions
    stored: list[int] = []
    sink = SqliteSink(tmp_path / "effects.db")

    async def write(record: Record) -> None:
        await sink.write_async(record, lambda connection, record: stored.append(record.offset))

    await service.produce(0, 6)
    handle = StuckAtFive(write)
    async with handling(service.consumer(sink=sink), handle, called) as work, operator(service) as commands:
        await wait_until_async(handle.inside.is_set, 30, "the handler at the last record")
        with contextlib.suppress(WaitTimeout):
            await seek(commands, zero, "3", timeout_s=1)
        handle.may_end.set()
        await wait_until_async(lambda: len(stored) >= 9 or work.done(), 30, lambda: f"the replay: {stored}")
        assert not work.done(), work.exception()
        assert stored == [0, 1, 2, 3, 4, 5, 3, 4, 5]
        await until_state(commands, "done")
    sink.close()


@read_or_process
async def test_of_two_seeks_with_a_sink_the_later_one_counts(
    service: Service, tmp_path: Path, called: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Both wait for a handler. The sink would refuse a record that is delivered before the later seek has set it."""
    (zero,) = service.partitions
    stored: list[int] = []
    may_rewind = asyncio.Event()

    class Sink(SqliteSink):
        async def rewind(self, partition: TopicPartition, offset: int, topic_id: Any = None) -> None:
            if offset == 0:
                await may_rewind.wait()
            await super().rewind(partition, offset, topic_id)

    sink = Sink(tmp_path / "effects.db")

    async def write(record: Record) -> None:
        await sink.write_async(record, lambda connection, record: stored.append(record.offset))

    await service.produce(0, 6)
    handle = StuckAtFive(write)
    consumer = service.consumer(sink=sink)
    async with handling(consumer, handle, called) as work, operator(service) as commands:
        await wait_until_async(handle.inside.is_set, 30, "the handler at the last record")
        await commands.seek([zero], "2")

        async def first_seek() -> bool:
            return await consumer.position(zero) == 2

        await wait_until_async(first_seek, 30, "the first seek")
        await commands.seek([zero], "earliest")
        # the member has read the second seek as well when it has obeyed the next commands
        await commands.pause([zero])
        await wait_until_async(lambda: "takes effect: pause" in caplog.text, 30, "the pause")
        await commands.resume([zero])
        await wait_until_async(lambda: "in effect here: pause" in caplog.text, 30, "the end of the pause")
        handle.may_end.set()
        with pytest.raises(WaitTimeout):
            await wait_until_async(lambda: len(stored) > 6 or work.done(), 1)
        may_rewind.set()
        await wait_until_async(lambda: len(stored) >= 12 or work.done(), 30, lambda: f"the replay: {stored}")
        assert not work.done(), work.exception()
        assert stored == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
        assert await until_state(commands, "done") == "sought to 0 from 2"
    sink.close()


async def test_skip_and_quarantine_stay_in_effect_while_a_member_restarts_its_handler(
    service: Service, topic_factory: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    (zero,) = service.partitions

    async def handle(record: Record) -> None: ...

    async def states() -> set[tuple[str, str]]:
        return {(each.command.kind, each.state) for each in await commands.list()}

    options: dict[str, Any] = {"dead_letter_topic": topic_factory(1)}
    await service.produce(0, 2)
    async with operator(service) as commands:
        for times in range(2):
            async with service.consumer() as consumer:
                await owns(consumer, 1)
                if not times:
                    await commands.skip(zero, 7)
                    await commands.quarantine([zero])
                for _ in range(2):
                    caplog.clear()
                    async with cancelled(consumer.process(handle, **options)):
                        await wait_until_async(lambda: "takes effect: quarantine" in caplog.text, 30, "the quarantine")
                    assert "cannot be carried out" not in caplog.text
                    assert await states() == {("skip", "given"), ("quarantine", "given")}


async def test_a_command_is_kept_again_once_an_owner_can_follow_it(
    service: Service, topic_factory: Callable[..., str]
) -> None:
    (zero,) = service.partitions
    await service.produce(0, 3)

    async def handle(record: Record) -> None:
        raise ValueError("it never works")

    async def is_given() -> bool:
        return [each.state for each in await commands.list()] == ["given"]

    async with operator(service) as commands, service.consumer() as consumer:
        await commands.quarantine([zero])
        for _ in range(2):
            # a reader, and a handler without dead letters, cannot follow it
            assert await consumer.getone(30) is not None
            assert "no dead-letter topic" in await until_state(commands, "not kept")
            dead = topic_factory(1)
            async with cancelled(consumer.process(handle, dead_letter_topic=dead, **FOR_EVER)):
                await wait_until_async(is_given, 30, "an owner to follow it")
            async with cancelled(consumer.process(handle, **FOR_EVER)):
                await until_state(commands, "not kept")
            async with cancelled(consumer.process(handle, dead_letter_topic=dead, **FOR_EVER)):
                await wait_until_async(is_given, 30, "an owner to follow it")
            await service.produce(0, 1)
        (report,) = await commands.list()
        assert len(report.command.results) == 1, "only the last report counts"


async def test_a_skip_ends_when_its_topic_is_created_again(service: Service) -> None:
    handled: list[int] = []

    async def handle(record: Record) -> None:
        handled.append(int(record.value))

    await service.produce(0, 10)
    async with operator(service) as commands, handling(service.consumer(), handle, True):
        await wait_until_async(lambda: len(handled) == 10, 30, "the records")
        given = (await commands.skip(service.partitions[0], 5)).command

        async def is_named() -> bool:
            return any(each.command.topics for each in await commands.list())

        await wait_until_async(is_named, 30, "the id of the topic")
        await asyncio.to_thread(service.cluster.delete_topic, service.topic)
        await asyncio.to_thread(service.cluster.create_topic, service.topic, 1)
        await service.produce(100, 110)
        await wait_until_async(lambda: 109 in handled, 60, "the records of the next topic")
        assert sorted(handled) == [*range(10), *range(100, 110)]
        assert "not for this topic" in await until_state(commands, "not kept")
        assert [each.command.id for each in await commands.list()] == [given.id]
