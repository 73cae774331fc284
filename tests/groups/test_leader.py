"""Which shards of a large assignment a leader deletes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from allocator.core.znodes.documents import AssignmentDocument, Paths
from allocator.core.znodes.store import Store
from allocator.core.zookeeper.client import Watch, ZooKeeperClient
from allocator.types import TopicPartition

MEMBER = f"m-0123456789abcdef-{0:010}"
LARGE = {MEMBER: frozenset(TopicPartition(f"t{number * 7919 % 10007}", number) for number in range(99))}


@asynccontextmanager
async def stored(hosts: str, group: str, client: type[ZooKeeperClient] = ZooKeeperClient) -> AsyncIterator[Store]:
    zk = client(hosts)
    await zk.connect()
    try:
        store = Store(zk, Paths("/allocator", group))
        await store.prepare()
        yield store
    finally:
        await zk.close()


class Late(ZooKeeperClient):
    """Calls `first` after the leader wrote the document, before it lists the shards."""

    first: Callable[[], Awaitable[object]]

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str]:
        await self.first()
        return await super().get_children(path, watch)


@pytest.mark.usefixtures("small_shards")
async def test_a_leader_that_was_paused_deletes_no_shard_of_its_successor(zk_chroot: str, group: str) -> None:
    document = AssignmentDocument(generation=1, revision=1, leader="old", owners=LARGE)
    async with stored(zk_chroot, group, client=Late) as old, stored(zk_chroot, group) as new:
        old.zk.first = lambda: new.write_document(document.but(revision=2, leader="new"), 0)
        await old.write_document(document, -1)
        found, _ = await new.document()
        assert found is not None
        assert found.leader == "new"
        assert {name.split("-")[1] for name in await new.zk.get_children(new.paths.shards)} == {"new"}


@pytest.mark.usefixtures("small_shards")
async def test_the_next_leader_deletes_the_shards_of_the_former_one(zk_chroot: str, group: str) -> None:
    document = AssignmentDocument(generation=1, revision=1, leader="old", owners=LARGE)
    async with stored(zk_chroot, group) as old, stored(zk_chroot, group) as new:
        await old.write_document(document, -1)
        await old.zk.create(f"{old.paths.shards}/garbage")
        assert len(await new.zk.get_children(new.paths.shards)) > 1
        await new.write_document(AssignmentDocument(revision=2, leader="new"), 0)  # small enough for one znode
        assert await new.zk.get_children(new.paths.shards) == []
