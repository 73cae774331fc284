"""Seeks of operators, over a consumer in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from allocator.commands.command import Command, CommandResult, Commands
from allocator.commands.operator_commands import OperatorCommands
from allocator.core.client.log_offsets import EARLIEST
from allocator.core.consumer.group_member import GroupMember
from allocator.core.subscription.progress import ReaderHolds
from allocator.errors import CommitFailed
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.consumer.fake_source import Cluster, FakeSource


class Core(FakeSource):
    sink = None
    sought, commit_sought = GroupMember.sought, GroupMember.commit_sought

    @property
    def fetcher(self) -> Core:
        return self

    def fault(self, partition: TopicPartition) -> None: ...

    async def log_offset(self, partition: TopicPartition, at: int | str) -> int:
        return 10 if at == "latest" else 0


class Store:
    """Keeps results, and notifies nobody."""

    def __init__(self) -> None:
        self.results: list[CommandResult] = []

    async def add_results(self, command_id: str, results: Collection[CommandResult]) -> None:
        self.results += results


SEEK = Command.make("seek", {"partitions": {"t": "0"}, "to": "3"}, who="alice", now_ms=0, expires=None)


async def owner(kind: type[Core] = Core) -> tuple[Core, Store, TopicPartition]:
    """A member that owns the only partition."""
    core = kind(Cluster())
    (partition,) = core.cluster.partitions
    core.ownership.start(core.tasks)
    await core.assign([partition])
    return core, Store(), partition


async def test_a_seek_is_carried_out_once_although_its_result_is_read_late() -> None:
    """The commands are applied again meanwhile, for example because partitions come or a processor begins."""
    core, store, partition = await owner()
    commands = OperatorCommands(core)  # type: ignore[arg-type]
    commands.take(Commands().put(SEEK, 0), store)  # type: ignore[arg-type]
    await wait_until_async(lambda: store.results, 30, "the result")
    assert core.positions == {partition: 3}
    core.state.assignment[partition].deliver(8, 0)
    commands.apply()
    for _ in range(20):
        await asyncio.sleep(0)
    assert core.positions == {partition: 8}
    assert len(store.results) == 1
    await core.tasks.close()


class Resetting(Core):
    """The log has no longer the offset of the first seek, so the position is unknown before it can be committed."""

    was_reset = False

    def sought(self, partition: TopicPartition, offset: int, topic_id: object = None) -> bool:
        done = super().sought(partition, offset, topic_id)
        if not self.was_reset:
            self.was_reset = True
            self.state.assignment[partition].reset(EARLIEST)
        return done


async def test_a_seek_to_an_offset_that_is_deleted_meanwhile_is_committed_before_its_result_is_written() -> None:
    """After a crash, the next owner would continue at the former offset, and not seek again."""
    core, store, partition = await owner(Resetting)
    core.cluster.committed[partition] = 8
    commands = OperatorCommands(core)  # type: ignore[arg-type]
    commands.take(Commands().put(SEEK, 0), store)  # type: ignore[arg-type]
    await wait_until_async(lambda: core.was_reset, 30, "the seek")
    for _ in range(100):
        await asyncio.sleep(0)
    assert store.results == []
    core.state.assignment[partition].complete_reset(OffsetAndMetadata(5, "", -1), None)
    core.wake()
    await wait_until_async(lambda: store.results, 30, "the result")
    assert core.cluster.committed == {partition: 5}
    await core.tasks.close()


async def test_a_seek_that_another_owner_has_carried_out_meanwhile_is_not_repeated() -> None:
    """The commit of the seek fails, and the partition is away until it is retried."""
    core, store, partition = await owner()
    commands = OperatorCommands(core)  # type: ignore[arg-type]
    known = Commands().put(SEEK, 0)
    core.commit_error = CommitFailed("suspended")
    commands.take(known, store)  # type: ignore[arg-type]
    await wait_until_async(lambda: core.positions == {partition: 3}, 30, "the seek")
    await core.lose()
    core.cluster.committed[partition], core.commit_error = 6, None
    commands.take(known.with_results(SEEK.id, [CommandResult(0, "b", frozenset({partition}), "sought to 3")]), store)  # type: ignore[arg-type]
    await core.assign([partition])
    await wait_until_async(lambda: "command" not in {each.get_name() for each in asyncio.all_tasks()}, 30, "the end")
    assert core.positions == {partition: 6}
    assert store.results == []
    await core.tasks.close()


async def test_the_result_of_a_seek_names_the_first_record_that_is_not_done() -> None:
    """Who undoes the seek gets the records again that the handler had not finished, or that waited for it."""
    core, store, partition = await owner()
    core.cluster.committed[partition] = 2
    await core.lose()
    await core.assign([partition])
    core.state.assignment[partition].deliver(8, 0, ReaderHolds(lambda: None))
    commands = OperatorCommands(core)  # type: ignore[arg-type]
    core.commit_error = CommitFailed("suspended")
    commands.take(Commands().put(SEEK, 0), store)  # type: ignore[arg-type]
    await wait_until_async(lambda: core.positions == {partition: 3}, 30, "the seek")
    # a new tenure begins at the offset of the seek, if its commit has succeeded without a response
    await core.lose()
    core.cluster.committed[partition], core.commit_error = 3, None
    await core.assign([partition])
    commands.apply()
    await wait_until_async(lambda: store.results, 30, "the result")
    assert [each.what for each in store.results] == ["sought to 3 from 2"]
    await core.tasks.close()


class InAnotherTopic(Core):
    def topic_id(self, topic: object) -> str:
        return "present"


@pytest.mark.parametrize("to", ["3", "latest"])
async def test_a_seek_in_a_former_topic_moves_no_position_in_the_next(to: str) -> None:
    core, store, partition = await owner(InAnotherTopic)
    arguments = {"partitions": {"t": "0"}, "to": to}
    given = Command.make("seek", arguments, who="alice", now_ms=0, expires=None)
    commands = OperatorCommands(core)  # type: ignore[arg-type]
    commands.take(Commands().put(replace(given, topics={"t": "former"}), 0), store)  # type: ignore[arg-type]
    await wait_until_async(lambda: store.results, 30, "the result")
    assert store.results[0].what.startswith("not carried out: not for this topic")
    assert core.positions == {partition: 0}
    assert core.state.is_fetchable(partition)
    await core.tasks.close()


class Slow(Core):
    """The brokers respond late to the request for the offset."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.responds = asyncio.Event()

    async def log_offset(self, partition: TopicPartition, at: int | str) -> int:
        await self.responds.wait()
        return await super().log_offset(partition, at)


async def test_a_new_owner_delivers_nothing_before_it_has_sought() -> None:
    core, store = Slow(Cluster()), Store()
    (partition,) = core.cluster.partitions
    core.ownership.start(core.tasks)
    core.state.claim({partition: 1})
    commands = OperatorCommands(core)  # type: ignore[arg-type]
    commands.take(Commands().put(SEEK, 0), store)  # type: ignore[arg-type]
    await core.ownership.assigned(frozenset({partition}))
    await wait_until_async(lambda: core.state.assignment[partition].awaiting_reset, 30, "the reset")
    core.state.assignment[partition].complete_reset(OffsetAndMetadata(0, "", -1), None)
    core.wake()
    for _ in range(100):
        await asyncio.sleep(0)
        assert not core.state.is_fetchable(partition)
    core.responds.set()
    await wait_until_async(lambda: store.results, 30, "the result")
    assert core.positions == {partition: 3}
    assert core.state.is_fetchable(partition)
    await core.tasks.close()
