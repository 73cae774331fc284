"""Deleting a group removes it completely, or changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from allocator.operate.deletion import NothingToDelete, delete_group, remains
from allocator.operate.liveness import MembersAlive
from allocator.protocols.zookeeper.client.client import Op, ZooKeeperClient
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo, Paths
from allocator.protocols.zookeeper.znodes.store import Store

PATHS = Paths("/allocator", "g")
MEMBER = f"m-{1:016x}-{1:010d}"


class Joining(ZooKeeperClient):
    """A member joins between the listing of the znodes and the transaction that deletes them."""

    joins = False

    async def multi(self, ops: Sequence[Op]) -> int:
        if self.joins:
            self.joins = False
            await join(self)
        return await super().multi(ops)


@contextlib.asynccontextmanager
async def group(hosts: str) -> AsyncIterator[Joining]:
    zk = Joining(hosts)
    await zk.connect(10)
    try:
        store = Store(zk, PATHS)
        await store.prepare()
        _, version = await store.document()
        await store.write_document(AssignmentDocument(generation=1, revision=1), version)
        await zk.ensure_path(PATHS.left_mark(MEMBER))
        yield zk
    finally:
        await zk.close()


async def join(zk: ZooKeeperClient) -> None:
    info = MemberInfo("worker", "node", frozenset({"t"}))
    await zk.create(PATHS.member(MEMBER), info.encode(), ephemeral=True)
    await zk.create(PATHS.claim(MEMBER), Claim(1).encode(), ephemeral=True)


async def test_a_group_without_members_is_deleted_with_all_its_znodes(zk_chroot: str) -> None:
    async with group(zk_chroot) as zk:
        found = await delete_group(zk, None, "g", "/allocator")
        assert found.znodes[-1] == PATHS.base
        assert PATHS.left_mark(MEMBER) in found.znodes
        assert await zk.exists(PATHS.base) is None
        with pytest.raises(NothingToDelete, match="neither znodes of group 'g' under /allocator nor offsets"):
            await remains(zk, None, "g", "/allocator")


async def test_a_member_that_joins_meanwhile_keeps_every_znode(zk_chroot: str) -> None:
    async with group(zk_chroot) as zk:
        before = await remains(zk, None, "g", "/allocator")
        zk.joins = True
        with pytest.raises(MembersAlive, match="worker@node#1"):
            await delete_group(zk, None, "g", "/allocator")
        assert set((await remains(zk, None, "g", "/allocator")).znodes) == set(before.znodes)
        assert await zk.exists(PATHS.member(MEMBER)) is not None


async def test_a_claim_without_its_member_counts_as_a_member(zk_chroot: str) -> None:
    async with group(zk_chroot) as zk:
        await join(zk)
        await zk.delete(PATHS.member(MEMBER))
        with pytest.raises(MembersAlive):
            await delete_group(zk, None, "g", "/allocator")
