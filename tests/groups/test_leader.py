"""When a leader writes the releases of its members, and which shards of a large assignment it deletes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from allocator.documents.packed import InflateBudget
from allocator.protocols.zookeeper.client.client import Watch, ZooKeeperClient
from allocator.protocols.zookeeper.leader import Leader, LeaderSettings
from allocator.protocols.zookeeper.znodes.changes import Changes
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, Paths, Waiting
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.testing import wait_until_async
from allocator.types import TopicPartition
from tests.groups.members import StaticTopics

MEMBER, FIRST, SECOND = (f"m-0123456789abcdef-{number:010}" for number in range(3))
HELD = {member: frozenset({TopicPartition("t", number)}) for number, member in enumerate((FIRST, SECOND))}
LARGE = {MEMBER: frozenset(TopicPartition(f"t{number * 7919 % 10007}", number) for number in range(99))}


@asynccontextmanager
async def stored(
    hosts: str, group: str, kind: type[Store] = Store, client: type[ZooKeeperClient] = ZooKeeperClient
) -> AsyncIterator[Store]:
    zk = client(hosts)
    await zk.connect()
    try:
        store = kind(zk, Paths("/allocator", group))
        await store.prepare()
        yield store
    finally:
        await zk.close()


class Releasing(Store):
    """Two members that a document waits for."""

    def __init__(self, zk: ZooKeeperClient, paths: Paths) -> None:
        super().__init__(zk, paths)
        self.watched: set[str] = set()
        """The members whose claims the leader watches."""
        self.while_writing: Callable[[AssignmentDocument], Awaitable[None]] | None = None

    async def claim(
        self, member: str, watch: Watch | None = None, *, budget: InflateBudget | None = None
    ) -> Claim | None:
        def fired() -> None:
            self.watched.discard(member)
            assert watch is not None
            watch()

        found = await super().claim(member, fired, budget=budget)
        self.watched.add(member)
        return found

    async def write_document(self, document: AssignmentDocument, version: int, changes: Changes | None = None) -> int:
        written = await super().write_document(document, version, changes)
        if self.while_writing is not None:
            await self.while_writing(document)
        return written

    async def release(self, member: str) -> None:
        await self.zk.set(self.paths.claim(member), Claim(2).encode())


@asynccontextmanager
async def releasing(hosts: str, group: str) -> AsyncIterator[Releasing]:
    """Runs a leader that waits for two members, and that would wait for hours to write their releases together."""
    async with stored(hosts, group, Releasing) as store:
        for member, parts in HELD.items():
            await store.zk.create(store.paths.claim(member), Claim(1, parts).encode(), ephemeral=True)
        waiting = {member: Waiting(2, parts) for member, parts in HELD.items()}
        await store.write_document(AssignmentDocument(generation=1, revision=2, waiting=waiting), -1)
        settings = LeaderSettings(releases_s=3600.0, topic_poll_s=3600.0)
        leader = Leader(store, MEMBER, StaticTopics({"t": 2}), {}, settings)
        leading = asyncio.ensure_future(leader.run())
        try:
            await wait_until_async(lambda: store.watched == HELD.keys(), 10, "the leader to watch both claims")
            yield store
        finally:
            leading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leading


async def revision_after_all_released(store: Store) -> int:
    async def found() -> int:
        document, _ = await store.document()
        assert document is not None
        return 0 if document.waiting else document.revision

    return await wait_until_async(found, 10, "the leader to see both releases")


async def test_a_leader_does_not_wait_for_members_that_have_released(zk_chroot: str, group: str) -> None:
    """The second member releases while the leader writes that the first one has released."""

    async def release_too(document: AssignmentDocument) -> None:
        if list(document.waiting) == [SECOND]:
            await store.release(SECOND)
            await wait_until_async(lambda: SECOND not in store.watched, 10, "the event of the claim")

    async with releasing(zk_chroot, group) as store:
        store.while_writing = release_too
        await store.release(FIRST)
        await store.zk.create(store.paths.member(MEMBER), ephemeral=True)  # ends the wait for further releases
        assert await revision_after_all_released(store) == 4


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
