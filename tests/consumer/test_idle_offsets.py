"""Offsets of idle partitions are committed again before Kafka drops them, without changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from allocator import Consumer, ConsumerGroup, ConsumerGroupConfig, TopicPartition
from allocator.compat.kept_offsets import KeptOffsets
from allocator.core.client.client import KafkaClient
from allocator.core.client.coordinator import SHORTEST_RETENTION_S
from allocator.core.offsets.idle import CHECK_S, MAX_PERIOD_S, IdleOffsets
from allocator.core.offsets.pending_commit import Choice
from allocator.errors import CommitFailed
from allocator.testing import LocalCluster, wait_until_async
from allocator.types import OffsetAndMetadata
from tests.consumer.group_bench import COMMIT, GroupServer
from tests.hand_clock import Clock
from tests.stored import stored_offsets

A, B, C = (TopicPartition("t", number) for number in range(3))
DAY_S = 24 * 3600.0


@dataclass
class Kept:
    committed: tuple[int, None]
    committed_at: float | None = None


class Group:
    """A member with its owned partitions, and a record of each commit and its time."""

    def __init__(self, *owned: TopicPartition, retention_s: float | None = DAY_S) -> None:
        self.clock = Clock()
        self.owned = set(owned)
        self.kept_s = retention_s
        self.requests = 0
        self.commits: list[tuple[float, set[TopicPartition]]] = []
        self.error: CommitFailed | None = None
        self.stored = dict.fromkeys((A, B, C), OffsetAndMetadata(7, "note", 3))
        self.known = {p: Kept((at.offset, None)) for p, at in self.stored.items()}
        self.idle = IdleOffsets(self, self.may_commit, self.commit, self.clock)  # type: ignore[arg-type]

    def may_commit(self) -> dict[TopicPartition, Kept]:
        return {p: kept for p, kept in self.known.items() if p in self.owned}

    async def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {p: self.stored[p] for p in partitions if p in self.stored}

    async def commit(self, choice: Choice) -> None:
        if self.error is not None:
            raise self.error
        offsets = choice(())
        self.commits.append((self.clock.now, set(offsets)))
        self.stored.update(offsets)

    async def retention_s(self) -> float | None:
        self.requests += 1
        return self.kept_s

    async def live(self, seconds: float) -> None:
        """Advances the clock step by step."""
        ends = self.clock.now + seconds
        while self.clock.now < ends:
            self.clock.now += min(ends - self.clock.now, await self.idle.turn())


async def test_idle_offsets_are_committed_in_one_request_a_period_and_never_older_than_half_the_retention() -> None:
    group = Group(A, B, C)
    for partition in (A, B):
        group.known[partition].committed_at = group.clock.now
    await group.live(30 * DAY_S)
    assert group.commits[0] == (100.0, {C}), "not its own commit: it may be old"
    assert all(what == {A, B, C} for _, what in group.commits[1:])
    times = [at for at, _ in group.commits]
    assert max(later - before for before, later in zip(times[1:], times[2:])) <= DAY_S / 2
    assert len(times) <= 30 * DAY_S / MAX_PERIOD_S + 2
    assert group.requests <= 30 * DAY_S / MAX_PERIOD_S + 2


@pytest.mark.parametrize("retention_s", [60.0, 3600.0, 7 * DAY_S, None])
async def test_the_period_follows_the_retention_of_the_broker(retention_s: float | None) -> None:
    group = Group(A, retention_s=retention_s)
    kept_s = SHORTEST_RETENTION_S if retention_s is None else retention_s
    await group.live(4 * kept_s)
    times = [at for at, _ in group.commits]
    gaps = [later - before for before, later in zip(times, times[1:])]
    assert max(gaps) <= kept_s / 2
    assert min(gaps) >= min(kept_s / 4, MAX_PERIOD_S)


async def test_no_request_is_sent_without_partitions_and_new_ones_are_committed_soon() -> None:
    group = Group()
    await group.live(3600.0)
    assert (group.requests, group.commits) == (0, [])
    group.owned = {B}
    began = group.clock.now
    await group.live(60.0)
    ((at, what),) = group.commits
    assert what == {B}
    assert at - began <= CHECK_S


async def test_a_failed_commit_is_retried_at_the_next_turn() -> None:
    group = Group(A)
    group.error = CommitFailed("not now")
    await group.live(CHECK_S)
    group.error = None
    await group.live(CHECK_S + 1)
    assert [what for _, what in group.commits] == [{A}]


async def test_offsets_are_committed_unchanged_unless_another_client_moved_them() -> None:
    group = Group(A, B, C)
    group.known = {p: Kept((offset, None)) for p, offset in ((A, 7), (B, 9), (C, 5))}
    reset = group.stored[B] = OffsetAndMetadata(3, "reset by hand", -1)
    del group.stored[C]  # it had expired already
    await group.idle.commit_again({A, B, C})
    assert group.stored == {A: OffsetAndMetadata(7, "note", 3), B: reset, C: OffsetAndMetadata(5, "", -1)}
    assert [what for _, what in group.commits] == [{A, C}]
    group.known = {}
    await group.idle.commit_again({A, B})
    assert len(group.commits) == 1, "another commit of them is under way"


async def test_a_generation_keeps_its_first_offsets_and_its_commits() -> None:
    async with GroupServer() as broker, KafkaClient(broker.address) as client:
        broker.stored = {("t", 0): 1, ("t", 1): 2}
        offsets = KeptOffsets(client, "g", timeout_s=5, retention_s=1.0)
        began = {A: OffsetAndMetadata(1, "", -1), B: OffsetAndMetadata(2, "", -1)}
        keeping = asyncio.ensure_future(offsets.keep(began, lambda: True))
        await wait_until_async(lambda: broker.requests(COMMIT), 30, "the first commit")
        assert broker.stored == {("t", 0): 1, ("t", 1): 2}
        await offsets.commit({A: OffsetAndMetadata(9, "", -1)})
        await wait_until_async(lambda: len(broker.requests(COMMIT)) > 2, 30, "the next commit of idle offsets")
        assert broker.stored == {("t", 0): 9, ("t", 1): 2}, "nothing was set back"
        keeping.cancel()


async def committed(cluster: LocalCluster, group: str, topic: str) -> dict[int, int]:
    return {number: at.offset for number, at in (await stored_offsets(cluster.bootstrap, group, topic, 2)).items()}


@pytest.mark.long
@pytest.mark.deadline(400)
@pytest.mark.parametrize(
    ("version", "membership"), [("1.1.1", "zookeeper"), ("1.1.1", "kafka"), ("3.9.1", "zookeeper")]
)
async def test_the_offsets_of_a_live_group_do_not_expire(
    cluster_factory: Callable[..., LocalCluster],
    topic_factory: Callable[..., str],
    group: str,
    version: str,
    membership: str,
) -> None:
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "2000"}
    cluster = await asyncio.to_thread(lambda: cluster_factory(kafka=version, broker_config=settings))
    topic = await asyncio.to_thread(lambda: topic_factory(2, cluster=cluster))
    await asyncio.to_thread(cluster.produce, topic, [(None, b"x", 0), (None, b"x", 1)] * 5)

    place: dict[str, Any] = (
        {"zookeeper": cluster.zookeeper} if membership == "zookeeper" else {"membership": membership}
    )

    def consumer(name: str) -> Consumer:
        return Consumer(topic, brokers=cluster.bootstrap, group=name, **place)

    async def read_all(one: Consumer) -> None:
        seen = 0
        while seen < 10:
            seen += len(await one.getbatch(30) or ())

    stopped, generations = f"{group}-stopped", f"{group}-generations"
    config = ConsumerGroupConfig(group=generations, brokers=cluster.bootstrap, topics=[topic], **place)
    async with consumer(group) as one, ConsumerGroup(config) as other:
        await (await other.next()).commit({topic: {0: 5, 1: 5}})
        await read_all(one)
        await one.commit()
        assert await committed(cluster, group, topic) == {0: 5, 1: 5}
        async with consumer(stopped) as last:  # its offsets expire after those of the live groups would
            await read_all(last)

        async def forgotten() -> bool:
            return await committed(cluster, stopped, topic) == {}

        await wait_until_async(forgotten, 200, "the other group's offsets to expire")
        assert await committed(cluster, group, topic) == {0: 5, 1: 5}
        assert await committed(cluster, generations, topic) == {0: 5, 1: 5}
    async with consumer(group) as one:
        assert await one.getbatch(3) is None
        assert {await one.position(TopicPartition(topic, number)) for number in range(2)} == {5}
