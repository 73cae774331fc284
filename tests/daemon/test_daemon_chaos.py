"""Partitions move between processors at random: no record is skipped, and only handled ones are committed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from allocator.core.subscription.commit_text import done_of
from allocator.handlers.handlers import Handler
from allocator.handlers.handling import Handling
from allocator.handlers.policy import Retries
from allocator.handlers.processor import Processor
from allocator.types import OffsetAndMetadata, Record, TopicPartition
from tests.consumer.fake_source import Cluster, FakeSource, Offsets, positions

PARTITIONS, RECORDS, KEYS = 6, 120, 7


class Checked(Cluster):
    """Records each handled record, and checks every commit against them."""

    def __init__(self, ordering: str) -> None:
        super().__init__(PARTITIONS, RECORDS, keys=KEYS)
        self.ordering = ordering
        self.busy: Counter[Any] = Counter()
        self.handled: dict[TopicPartition, list[int]] = {partition: [] for partition in self.partitions}
        self.done: dict[TopicPartition, set[int]] = {partition: set() for partition in self.partitions}
        self.inside: dict[TopicPartition, int] = dict.fromkeys(self.partitions, 0)
        self.faults: list[str] = []

    def begin(self, record: Record) -> TopicPartition:
        partition = TopicPartition(record.topic, record.partition)
        self.inside[partition] += 1
        lane = partition if self.ordering == "partition" else (partition, record.key)
        self.busy[lane] += 1
        if self.busy[lane] > 1 and self.ordering != "none":
            self.faults.append(f"two calls at a time for {lane}")
        return partition

    def over(self, record: Record) -> None:
        partition = TopicPartition(record.topic, record.partition)
        self.inside[partition] -= 1
        self.busy[partition if self.ordering == "partition" else (partition, record.key)] -= 1

    def end(self, partition: TopicPartition) -> int:
        return len(self.logs[partition])


class CheckedOffsets(Offsets):
    async def send(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        cluster: Any = self._source.cluster
        for partition, offset in offsets.items():
            claimed, done = set(range(offset.offset)), done_of(offset.metadata, offset.offset)
            if done is not None:
                claimed |= {each for first, end in done.runs for each in range(first, end)}
            missing = claimed - cluster.done[partition]
            if missing:
                cluster.faults.append(f"{partition}: {offset} committed without {sorted(missing)}")
        await super().send(offsets)


class CheckedSource(FakeSource):
    def stored_offsets(self) -> Offsets:
        return CheckedOffsets(self)


def handler(cluster: Checked, rng: random.Random, plain: bool) -> Callable[[Record], Any]:
    def done(partition: TopicPartition, record: Record) -> None:
        if rng.random() < 0.02:
            raise ValueError("bad luck")
        cluster.handled[partition].append(record.offset)
        cluster.done[partition].add(record.offset)

    def in_thread(record: Record) -> None:
        partition = cluster.begin(record)
        try:
            if rng.random() < 0.1:
                time.sleep(0.002)
            done(partition, record)
        finally:
            cluster.over(record)

    async def on_loop(record: Record) -> None:
        partition = cluster.begin(record)
        try:
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.003)
            done(partition, record)
        finally:
            cluster.over(record)

    return in_thread if plain else on_loop


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("ordering", "seed"),
    [
        *(("partition", 0), ("partition", 1), ("key", 0), ("key", 1), ("none", 0)),
        *(pytest.param(each, seed, marks=pytest.mark.long) for each in ("partition", "key") for seed in range(2, 6)),
    ],
)
async def test_moves_losses_and_cancellations_skip_nothing(ordering: str, seed: int, plain: bool) -> None:
    rng = random.Random(seed)
    cluster = Checked(ordering)
    settings = Handling(
        ordering=ordering,
        concurrency=3 if ordering == "partition" else 8,
        retries=Retries(1000, 0.001, 0.002),
        commit_interval_s=0.004,
        drain_timeout_s=5.0,
    )
    sources, daemons, tasks = [], [], []
    for number in range(2):
        source = CheckedSource(cluster, batch_size=5)
        source.assign_at_start = frozenset(cluster.partitions if number == 0 else [])
        daemon = Processor(Handler("chaos", handler(cluster, rng, plain)), settings)
        sources.append(source)
        daemons.append(daemon)
        tasks.append(asyncio.ensure_future(daemon.run(source)))
    owner = dict.fromkeys(cluster.partitions, 0)
    deadline = time.monotonic() + 40
    while cluster.committed != cluster.ends():
        assert time.monotonic() < deadline, (cluster.committed, [positions(source) for source in sources])
        assert not any(task.done() for task in tasks)
        await asyncio.sleep(rng.random() * 0.02)
        some = rng.sample(cluster.partitions, rng.randint(1, 3))
        for old in (0, 1):
            moving = [partition for partition in some if owner[partition] == old]
            if not moving:
                continue
            action = rng.random()
            if action < 0.6:
                await sources[old].revoke(moving)
            elif action < 0.8:
                moving = [partition for partition in cluster.partitions if owner[partition] == old]
                await sources[old].lose()
            else:  # the session is lost in the middle of the revocation
                revoking = asyncio.ensure_future(sources[old].revoke(moving))
                await asyncio.sleep(rng.random() * 0.002)
                if not revoking.done():
                    revoking.cancel()
                    await asyncio.wait({revoking})
                    moving = [partition for partition in cluster.partitions if owner[partition] == old]
                    await sources[old].lose()
            new = rng.randint(0, 1)
            for partition in moving:
                # lost ones may still be in a thread of the old owner, which does not know the other process
                assert plain or cluster.inside[partition] == 0
                owner[partition] = new if cluster.inside[partition] == 0 else old
            for to in (0, 1):
                await sources[to].assign([partition for partition in moving if owner[partition] == to])
    for daemon in daemons:
        daemon.stop()
    await asyncio.wait(tasks, timeout=20)
    for task in tasks:
        task.result()
    assert cluster.faults == []
    for partition in cluster.partitions:
        assert cluster.done[partition] == set(range(RECORDS))
        first_seen = list(dict.fromkeys(cluster.handled[partition]))
        for key in range(KEYS if ordering == "key" else 0):
            of_key = [offset for offset in first_seen if offset % KEYS == key]
            assert of_key == sorted(of_key)
        if ordering == "partition":
            assert first_seen == sorted(first_seen)
