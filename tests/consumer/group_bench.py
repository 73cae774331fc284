"""Helpers for tests of `ConsumerGroup`: a scripted coordinator, and services that record their work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from kafka.protocol.consumer import JoinGroupRequest

from allocator import (
    ConsumerGroup,
    ConsumerGroupConfig,
    Generation,
    GenerationEnded,
    GroupClosed,
    OffsetAndMetadata,
    TopicPartition,
)
from allocator.core.client.client import KafkaClient
from tests.client.fake_broker import find
from tests.groups.fake_group import GroupBroker
from tests.offsets.offset_responses import commit_response, fetch_response, requested

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, API_VERSIONS = 8, 9, 10, 11, 12, 13, 14, 18

FAST = {
    "session_timeout_s": 30.0,
    "heartbeat_interval_s": 0.02,
    "join_backoff_s": 0.02,
    "timeout_s": 20.0,
    "connect_timeout_s": 30.0,
}


class GroupServer(GroupBroker):
    """A broker with topic "t" of three partitions that coordinates one member and keeps its offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers.update({COMMIT: self.commit, FETCH: self.fetch})
        self.codes.update({COMMIT: [], FETCH: []})
        self.topics = {"t": [1, 1, 1]}
        self.stored: dict[TopicPartition | tuple[str, int], int] = {}

    def config(self, **options: Any) -> ConsumerGroupConfig:
        settings = {"group": "g", "brokers": self.address, "topics": ["t"], "membership": "kafka", **FAST, **options}
        return ConsumerGroupConfig(**settings)

    def group(self, **options: Any) -> ConsumerGroup:
        return ConsumerGroup(self.config(**options))

    async def commit(self, request: Any) -> Any:
        code = await self._code(COMMIT)

        def store(partition: TopicPartition, at: OffsetAndMetadata) -> int:
            if code == 0:
                self.stored[partition] = at.offset
            return code

        return commit_response(request, store)

    async def fetch(self, request: Any) -> Any:
        code = await self._code(FETCH)
        stored = {
            TopicPartition(*partition): OffsetAndMetadata(offset, "", -1) for partition, offset in self.stored.items()
        }
        return fetch_response(request, requested(request), stored, lambda _: code)


async def served(broker: GroupServer) -> None:
    """Returns once a client that connects only now is served: what a member does at once, it has done before."""
    async with KafkaClient(broker.address) as client:
        await client.send(1, find())


async def forever(_: Any = None) -> None:
    await asyncio.Event().wait()


class Stubborn:
    """A function of a generation that returns only when `may_go` is set."""

    def __init__(self) -> None:
        self.may_go = asyncio.Event()

    async def __call__(self, _: Any = None) -> None:
        try:
            await forever()
        finally:
            await self.may_go.wait()


class Ledger:
    """Records the work of all members, and each violation of a promise."""

    def __init__(self) -> None:
        self.running: dict[tuple[str, str, int], Generation] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.wrong: list[str] = []
        self.joins = 0

    def begin(self, member: str, generation: Generation, topic: str, partition: int, offset: int) -> None:
        for (other, its_topic, its_partition), its_generation in self.running.items():
            if (its_topic, its_partition) == (topic, partition):
                self.wrong.append(f"{member} and {other} both work on {topic}:{partition}")
            if other == member and its_generation is not generation:
                self.wrong.append(f"{member} works in {generation} and in {its_generation}")
        if offset != self.committed.get((topic, partition), -2):
            self.wrong.append(f"{member} begins {topic}:{partition} at {offset}, but {self.committed} is committed")
        self.running[member, topic, partition] = generation

    def end(self, member: str, topic: str, partition: int) -> None:
        del self.running[member, topic, partition]

    def joined(self, member: str) -> None:
        self.joins += 1
        busy = [key for key in self.running if key[0] == member]
        if busy:
            self.wrong.append(f"{member} joins while it works on {busy}")


class Service:
    """A user's program: one function for each partition, which commits at its end."""

    def __init__(self, name: str, ledger: Ledger, **config: Any) -> None:
        self.name, self.ledger = name, ledger
        self.group = ConsumerGroup(ConsumerGroupConfig(client_id=name, client=self._client, **config))
        self.generations: list[Generation] = []
        self.errors: list[BaseException] = []

    def _client(self, config: ConsumerGroupConfig) -> KafkaClient:
        client = KafkaClient(config.brokers, client_id=self.name, request_timeout_s=config.timeout_s)
        send = client.send

        async def noted(node: Any, request: Any, *rest: Any, **more: Any) -> Any:
            if isinstance(request, JoinGroupRequest):
                self.ledger.joined(self.name)
            return await send(node, request, *rest, **more)

        client.send = noted  # type: ignore[method-assign]
        return client

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        task = asyncio.ensure_future(self._run())
        try:
            yield self
        finally:
            await self.group.close()
            await task

    @property
    def holds(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(t, p) for name, t, p in self.ledger.running if name == self.name)

    async def _run(self) -> None:
        while True:
            try:
                generation = await self.group.next()
            except GroupClosed:
                return
            except Exception as error:  # noqa: BLE001  the test checks them
                self.errors.append(error)
                continue
            for old in self.generations:
                await self._stale(old)
            self.generations.append(generation)
            for topic, starts in generation.assignments.items():
                for partition, offset in starts:
                    generation.start(self._work(generation, topic, partition, offset))

    async def _stale(self, old: Generation) -> None:
        for partition in old.partitions:
            try:
                await old.commit({partition.topic: {partition.partition: 10**9}})
            except GenerationEnded:
                continue
            self.ledger.wrong.append(f"{self.name} committed {partition} under {old}")

    async def _work(self, generation: Generation, topic: str, partition: int, offset: int) -> None:
        self.ledger.begin(self.name, generation, topic, partition, offset)
        done = max(offset, 0)
        try:
            while True:
                await asyncio.sleep(0.01)
                done += 1
        finally:
            await asyncio.sleep(0.05)  # so that members wait for the functions
            try:
                await generation.commit({topic: {partition: done}})
                self.ledger.committed[topic, partition] = done
            except GenerationEnded:
                pass  # lost: the partition may have another owner
            self.ledger.end(self.name, topic, partition)
