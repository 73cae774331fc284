"""Groups that consist of written znodes, of any size and state, without members."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping

from allocator.core.types import Partitions
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo, Paths, Waiting
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.types import TopicPartition

Held = Mapping[str, Partitions]


def member_id(number: int) -> str:
    return f"m-{number:016x}-{number:010d}"


def parts(**topics: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]


def assigned(partitions: list[TopicPartition], members: list[str], seed: int = 0) -> dict[str, Partitions]:
    """Assigns runs of uneven length, as a sticky function does after members joined and left."""
    chance = random.Random(seed)
    owners: dict[str, list[TopicPartition]] = {member: [] for member in members}
    at = 0
    while at < len(partitions):
        run = chance.randint(1, max(1, 2 * len(partitions) // (len(members) * 3)))
        min(owners.values(), key=len).extend(partitions[at : at + run])
        at += run
    return {member: frozenset(held) for member, held in owners.items()}


class WrittenGroup:
    """A group whose members are znodes of the session of `zk`, which must stay connected."""

    def __init__(self, zk: ZooKeeperClient, root: str, group: str, topics: list[str], function: str = "sticky") -> None:
        self.store = Store(zk, Paths(root, group))
        self.function = function
        self.topics = frozenset(topics)
        self.document = AssignmentDocument()

    async def join(self, *numbers: int, racks: int = 3) -> list[str]:
        await self.store.prepare()
        await asyncio.gather(*(self._join(number, racks) for number in numbers))
        return [member_id(number) for number in numbers]

    async def _join(self, number: int, racks: int) -> None:
        name, host, rack = f"worker-{number:02d}", f"node-{number % 7}", f"r{number % racks}"
        info = MemberInfo(name, host, self.topics, rack=rack, strategies=(self.function,))
        await self.store.zk.create(self.store.paths.member(member_id(number)), info.encode(), ephemeral=True)
        await self.store.zk.create(self.store.paths.claim(member_id(number)), Claim(0).encode(), ephemeral=True)

    async def leave(self, *numbers: int) -> None:
        for number in numbers:
            await self.store.zk.delete(self.store.paths.claim(member_id(number)))
            await self.store.zk.delete(self.store.paths.member(member_id(number)))

    async def assign(
        self, owners: Held, promised: Held | None = None, waiting: Held | None = None, *, generation: int | None = None
    ) -> None:
        """Writes the next document; by default it has the next generation."""
        before, version = await self.store.document()
        revision = 1 if before is None else before.revision + 1
        self.document = AssignmentDocument(
            generation=(0 if before is None else before.generation) + 1 if generation is None else generation,
            revision=revision,
            leader=next(iter(owners), ""),
            strategy=self.function,
            owners=dict(owners),
            promised=dict(promised or {}),
            waiting={member: Waiting(revision, held) for member, held in (waiting or {}).items()},
        )
        await self.store.write_document(self.document, version)

    async def own(self, held: Held) -> None:
        """Assigns and claims partitions."""
        await self.assign(held)
        await self.claim(held)

    async def claim(self, held: Held) -> None:
        revision, generation = self.document.revision, self.document.generation
        await asyncio.gather(
            *(
                self.store.zk.set(self.store.paths.claim(member), Claim(revision, parts, generation).encode())
                for member, parts in held.items()
            )
        )


@contextlib.asynccontextmanager
async def written(zookeeper: str, group: str = "g", *topics: str) -> AsyncIterator[WrittenGroup]:
    zk = ZooKeeperClient(zookeeper)
    await zk.connect(10)
    try:
        yield WrittenGroup(zk, "/allocator", group, list(topics) or ["t"])
    finally:
        await zk.close()
