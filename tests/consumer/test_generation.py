"""One generation: its functions, its end, its commits."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from group_bench import forever

from allocator import Generation, GenerationEnded, OffsetAndMetadata, TopicPartition
from allocator.compat.generation import PartitionStart
from allocator.errors import AllocatorError, CommitFailed, ConfigError, Fenced, NotOwned
from allocator.testing import wait_until_async

pytestmark = pytest.mark.deadline(60)


class Offsets:
    """A fake GroupOffsets that records commits; raises `error` if set, waits for `gate` if set."""

    def __init__(self) -> None:
        self.calls: list[Mapping[TopicPartition, OffsetAndMetadata]] = []
        self.error: CommitFailed | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = 0

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.calls.append(offsets)

    async def close(self) -> None:
        self.closed += 1


class Bench:
    def __init__(self) -> None:
        self.offsets: Any = Offsets()
        self.ours = True
        starts = {"t": (PartitionStart(0, 7), PartitionStart(1, -2)), "idle": ()}
        self.generation = Generation(5, "g", "m-1", starts, self.offsets, lambda: self.ours)


async def test_the_first_function_to_return_ends_it_and_the_others_are_told_why_and_waited_for() -> None:
    generation = Bench().generation
    told: list[Any] = []
    may_go = asyncio.Event()

    async def slow(mine: Generation) -> None:
        try:
            await forever()
        except asyncio.CancelledError as error:
            told.append((mine, mine.ended, error.args))
            await may_go.wait()
            raise

    async def short() -> str:
        await asyncio.sleep(0)
        return "result"

    generation.start(slow)
    first = generation.start(short())
    why = await generation.wait()
    assert await first == "result"
    assert isinstance(why, GenerationEnded)
    assert generation.returned
    assert generation.failure is None
    assert "short returned" in str(why)
    over = asyncio.ensure_future(generation.over())
    await wait_until_async(lambda: told, 30, "the cancellation of the other one")
    assert told[0][:2] == (generation, why)
    if sys.version_info >= (3, 11):
        assert told[0][2] == (why,)
    await asyncio.sleep(0.01)
    assert not over.done()
    may_go.set()
    await over


async def test_what_a_function_raises_ends_it_and_only_the_first_counts(caplog: pytest.LogCaptureFixture) -> None:
    generation = Bench().generation

    async def fails(text: str) -> None:
        try:
            if text == "second":
                await forever()
        finally:
            raise ZeroDivisionError(text)

    generation.start(fails("second"))
    generation.start(fails("first"))
    await generation.over()
    assert repr(generation.failure) == "ZeroDivisionError('first')"
    assert "ZeroDivisionError('first')" in str(generation.ended)
    assert [r.exc_info[1].args for r in caplog.records if r.exc_info and r.exc_info[1]] == [("second",)]


async def test_a_function_that_passes_on_the_end_it_heard_of_has_not_failed() -> None:
    bench = Bench()

    async def commits() -> None:
        bench.ours = False
        await bench.generation.commit({"t": {0: 8}})

    bench.generation.start(commits())
    await bench.generation.over()
    assert bench.generation.returned
    assert bench.generation.failure is None


async def test_a_commit_carries_topic_partition_and_offset_and_may_go_back(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.DEBUG, "allocator.compat.generation"):
        await bench.generation.commit({"t": {0: 9, 1: 0}})
    await bench.generation.commit({"t": {0: 3}})
    assert [{p.partition: o.offset for p, o in call.items()} for call in bench.offsets.calls] == [{0: 9, 1: 0}, {0: 3}]
    assert bench.offsets.calls[0][TopicPartition("t", 0)].metadata == "generation 5 member m-1"
    assert [r.message for r in caplog.records] == ["g: committed t:0 at 9", "g: committed t:1 at 0"]
    await bench.generation.commit({})
    await bench.generation.commit({"t": {}})
    assert len(bench.offsets.calls) == 2


async def test_a_commit_of_what_it_does_not_have_sends_nothing() -> None:
    bench = Bench()
    with pytest.raises(NotOwned, match=r"generation 5 of group 'g' does not have t:2, u:0"):
        await bench.generation.commit({"t": {0: 1, 2: 1}, "u": {0: 1}})
    for offset in (-1, True, "4", None):
        with pytest.raises(ConfigError, match=f"t:0: {offset!r} cannot be committed"):
            await bench.generation.commit({"t": {0: offset}})  # type: ignore[dict-item]
    assert bench.offsets.calls == []
    assert not bench.generation.done


async def test_functions_may_commit_on_their_way_out_and_nobody_after_that() -> None:
    bench = Bench()

    async def works(generation: Generation) -> None:
        try:
            await forever()
        finally:
            await generation.commit({"t": {0: 8}})

    bench.generation.start(works)
    bench.generation.end("a rebalance")
    await bench.generation.over()
    assert len(bench.offsets.calls) == 1
    with pytest.raises(GenerationEnded, match=r"1 partitions are not committed: generation 5 .* a rebalance") as caught:
        await bench.generation.commit({"t": {0: 9}})
    assert caught.value.__cause__ is bench.generation.ended
    assert isinstance(caught.value, AllocatorError)
    assert not isinstance(caught.value, CommitFailed)
    await bench.generation.commit({})
    assert len(bench.offsets.calls) == 1


async def test_it_is_not_over_while_a_commit_is_under_way() -> None:
    bench = Bench()
    bench.offsets.gate.clear()
    commit = asyncio.ensure_future(bench.generation.commit({"t": {0: 8}}))
    await asyncio.sleep(0)
    bench.generation.end("a rebalance")
    over = asyncio.ensure_future(bench.generation.over())
    await asyncio.sleep(0.01)
    assert not over.done()
    assert bench.offsets.closed == 0
    bench.offsets.gate.set()
    await over
    await commit
    assert bench.offsets.closed == 1  # waits for the request of a commit that was cancelled


async def test_a_refused_commit_ends_nothing_and_what_ended_the_membership_is_told_as_an_end() -> None:
    bench = Bench()
    bench.offsets.error = CommitFailed("too large")
    with pytest.raises(CommitFailed, match="too large"):
        await bench.generation.commit({"t": {0: 8}})
    assert not bench.generation.done
    bench.offsets.error = Fenced("the group went on")
    with pytest.raises(GenerationEnded, match="may be over") as caught:
        await bench.generation.commit({"t": {0: 8}})
    assert caught.value.__cause__ is bench.offsets.error
    bench.ours = False
    bench.offsets.error = None
    with pytest.raises(GenerationEnded):
        await bench.generation.commit({"t": {0: 8}})
    assert bench.offsets.calls == []


async def test_a_function_started_after_the_end_begins_and_is_told() -> None:
    generation = Bench().generation
    generation.end("a rebalance")
    await generation.over()
    seen: list[Any] = []

    async def late(mine: Generation) -> None:
        seen.append(mine.done)
        await forever()

    task = generation.start(late)
    await asyncio.wait({task})
    assert task.cancelled()
    assert seen == [True]
    await generation.over()  # the generation is still over
