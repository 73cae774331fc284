"""Turns calls of a membership into generations: the end of one, and the start of the next."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import pytest

from allocator import ConsumerGroup, ConsumerGroupConfig, Generation, OffsetAndMetadata, TopicPartition
from allocator.compat import generation as generation_module
from allocator.compat.generation import PartitionStart
from allocator.compat.generation_source import GenerationTracker, PendingGeneration, ZooKeeperGenerations
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.subscription.commit_text import stamped, topic_of
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument
from tests.constants import SetConstant
from tests.groups.virtual_time import in_virtual_time

pytestmark = pytest.mark.deadline(60)

Parts = frozenset[TopicPartition]


def parts(*numbers: int) -> Parts:
    return frozenset(TopicPartition("t", n) for n in numbers)


class NoOffsets:
    async def close(self) -> None: ...


def begin(tracker: GenerationTracker, *numbers: int) -> Generation:
    """As the group does it."""
    offsets: Any = NoOffsets()
    starts = {"t": tuple(PartitionStart(n, -2) for n in numbers)}
    tracker.current = Generation(1, "g", "m", starts, offsets, lambda: True)
    return tracker.current


def test_an_offset_of_a_topic_that_was_created_again_counts_as_none(caplog: pytest.LogCaptureFixture) -> None:
    old, new = uuid.UUID(int=1), uuid.UUID(int=2)

    class Client:
        retry_backoff_s = 0.1

        def topic_id(self, topic: str) -> uuid.UUID:
            return new

    config = ConsumerGroupConfig(group="g", brokers="b:9092", topics=["t"], zookeeper="z:2181")
    committed = {
        TopicPartition("t", 0): OffsetAndMetadata(50, stamped("member m", old), -1),
        TopicPartition("t", 1): OffsetAndMetadata(60, stamped("member m", new), -1),
        TopicPartition("t", 2): OffsetAndMetadata(70, "of a client that does not store ids", -1),
    }
    client: Any = Client()
    former = GroupOffsets(client, "g").of_former_topics(committed)
    starts = ConsumerGroup(config)._starts(parts(0, 1, 2, 3), committed, former)
    assert starts["t"] == ((0, -2), (1, 60), (2, 70), (3, -2))
    assert "t:0 is committed at offset 50 of a topic that was deleted and created again" in caplog.text
    assert len(caplog.records) == 1


async def test_a_generation_commits_with_the_topics_id() -> None:
    sent: list[Any] = []

    class Offsets(NoOffsets):
        async def commit(self, offsets: Any, refusal: Any) -> None:
            sent.append(offsets)

    topic_id, offsets = uuid.UUID(int=7), Offsets()
    starts = {"t": (PartitionStart(0, -2),)}
    generation: Any = Generation(1, "g", "m", starts, offsets, lambda: True, lambda topic: topic_id)  # type: ignore[arg-type]
    await generation.commit({"t": {0: 5}})
    assert topic_of(sent[0][TopicPartition("t", 0)].metadata) == topic_id


def test_each_function_that_hangs_when_asyncio_run_ends_is_cancelled_again(set_constant: SetConstant) -> None:
    set_constant(generation_module, CLEAN_UP_S=0.1)
    again: list[int] = []

    async def hang(number: int) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            again.append(number)
            raise

    async def main() -> None:
        generation = begin(GenerationTracker(), 0)
        for number in range(3):
            generation.start(hang(number))
        await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted(again) == [0, 1, 2]


async def test_an_assignment_with_the_same_partitions_does_not_end_the_generation() -> None:
    tracker = GenerationTracker()
    generation = begin(tracker, 0, 1)
    tracker.settle(PendingGeneration(2, "m", parts(1, 0)))
    assert (generation.done, tracker.pending) == (False, None)
    tracker.settle(PendingGeneration(2, "m", parts(0)))
    assert generation.done
    assert tracker.pending == PendingGeneration(2, "m", parts(0))


@in_virtual_time
async def test_no_generation_starts_while_the_ownership_is_uncertain() -> None:
    tracker = GenerationTracker()
    tracker.settle(PendingGeneration(1, "m", parts(0)))
    found = await tracker.settled()
    generation = begin(tracker, 0)
    tracker.suspended("the connection is lost")
    assert "the connection is lost" in str(generation.ended)
    tracker.current = None
    assert not tracker.may_begin(found)
    waiting = asyncio.ensure_future(tracker.settled())
    await asyncio.sleep(3600)
    assert not waiting.done()
    tracker.resumed()
    assert await waiting is found


class Follower(ZooKeeperGenerations):
    """A member with scripted partitions."""

    def __init__(self, tracker: GenerationTracker) -> None:
        config = ConsumerGroupConfig(group="g", brokers="b", topics=["t"], zookeeper="z", rebalance_timeout_s=0.2)
        super().__init__(config, KafkaClient("b"), tracker)
        self.member_id, self.generation = "me", 7

    def reads(self, held: Parts, assigned: Parts, promised: Parts = frozenset()) -> None:
        self.tenures.lose()
        self.tenures.claim(dict.fromkeys(held, 7))
        self._read(
            AssignmentDocument(generation=7, owners={"me": assigned, "other": parts(9)}, promised={"me": promised})
        )


@in_virtual_time
async def test_a_generation_waits_for_promised_partitions() -> None:
    tracker = GenerationTracker()
    member = Follower(tracker)
    member.reads(parts(), parts(0, 1))  # the member is about to take the partitions
    assert tracker.pending is None
    member.reads(parts(0, 1), parts(0, 1), parts(2))
    assert tracker.pending is None
    await asyncio.sleep(0.1)
    member.reads(parts(0, 1, 2), parts(0, 1, 2))
    assert tracker.pending == PendingGeneration(7, "me", parts(0, 1, 2))
    await tracker.assigned(parts(3))
    member.reads(parts(0, 1, 2), parts(0, 1, 2), parts(3))
    await asyncio.sleep(0.15)  # the timeout of the first promise has passed, and was reset
    assert tracker.pending is None
    await asyncio.sleep(0.1)
    assert tracker.pending == PendingGeneration(7, "me", parts(0, 1, 2))


@in_virtual_time
async def test_the_wait_for_a_promised_partition_ends_after_the_rebalance_timeout() -> None:
    tracker = GenerationTracker()
    member = Follower(tracker)
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = asyncio.ensure_future(tracker.settled())
    while not waiting.done() and loop.time() < began + 60:
        member.reads(parts(0), parts(0), parts(2))  # reading it again does not restart the timeout
        await asyncio.wait({waiting}, timeout=0.05)
    assert waiting.result() == PendingGeneration(7, "me", parts(0))
    assert loop.time() - began == pytest.approx(0.2)
