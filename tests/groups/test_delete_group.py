"""Deleting a group removes it completely, or changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka.admin import ACLOperation, ResourceType

from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.operate.deletion import NothingToDelete, delete_group, remains
from allocator.operate.liveness import MembersAlive
from allocator.protocols.zookeeper.client.client import Op, ZooKeeperClient
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo, Paths
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.testing.versions import NEWEST
from allocator.testing.waiting import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.secured import USER, by_sasl, denied, with_an_authorizer

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
async def members_left(hosts: str, paths: Paths = PATHS) -> AsyncIterator[Joining]:
    """Writes the znodes of a group whose members have left."""
    zk = Joining(hosts)
    await zk.connect(10)
    try:
        store = Store(zk, paths)
        await store.prepare()
        _, version = await store.document()
        await store.write_document(AssignmentDocument(generation=1, revision=1), version)
        await zk.ensure_path(paths.left_mark(MEMBER))
        yield zk
    finally:
        await zk.close()


async def join(zk: ZooKeeperClient) -> None:
    info = MemberInfo("worker", "node", frozenset({"t"}))
    await zk.create(PATHS.member(MEMBER), info.encode(), ephemeral=True)
    await zk.create(PATHS.claim(MEMBER), Claim(1).encode(), ephemeral=True)


async def test_a_group_without_members_is_deleted_with_all_its_znodes(zk_chroot: str) -> None:
    async with members_left(zk_chroot) as zk:
        found = await delete_group(zk, None, "g", "/allocator")
        assert found.znodes[-1] == PATHS.base
        assert PATHS.left_mark(MEMBER) in found.znodes
        assert await zk.exists(PATHS.base) is None
        with pytest.raises(NothingToDelete, match="neither znodes of group 'g' under /allocator nor offsets"):
            await remains(zk, None, "g", "/allocator")


async def test_a_member_that_joins_meanwhile_keeps_every_znode(zk_chroot: str) -> None:
    async with members_left(zk_chroot) as zk:
        before = await remains(zk, None, "g", "/allocator")
        zk.joins = True
        with pytest.raises(MembersAlive, match="worker@node#1"):
            await delete_group(zk, None, "g", "/allocator")
        assert set((await remains(zk, None, "g", "/allocator")).znodes) == set(before.znodes)
        assert await zk.exists(PATHS.member(MEMBER)) is not None


@pytest.mark.parametrize("kafka", [NEWEST, pytest.param("1.1.1", id="brokers that do not tell rights")])
async def test_a_deletion_that_kafka_refuses_says_what_remains_and_a_repeat_finishes_it(
    kafka: str, cluster_factory: Any, zk_chroot: str, group: str, unique_name: Callable[[], str], tmp_path: Path
) -> None:
    cluster, topic = await with_an_authorizer(cluster_factory, kafka), unique_name()
    await asyncio.to_thread(cluster.create_topic, topic, 2)
    async with KafkaClient(cluster.bootstrap) as client:
        await client.refresh([topic])
        await GroupOffsets(client, group).commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "", -1)})
    settings = tmp_path / "config.toml"
    login = "".join(f'{name} = "{value}"\n' for name, value in USER.items())
    settings.write_text(
        f'[kafka]\nbrokers = ["{by_sasl(cluster)}"]\n{login}[zookeeper]\nhosts = "{zk_chroot}"\n'
        f'[group]\nname = "{group}"\ntopics = ["{topic}"]\n[handler]\ntarget = "a:b"\n'
    )

    async def delete(*options: str) -> Result:
        command = ["group", "delete", group, "-c", str(settings), *options]
        return await asyncio.to_thread(CliRunner().invoke, main, command)

    async def preview(refused: bool) -> bool:
        found = await delete()
        assert found.exit_code == 0, found.output
        said = "--execute would be refused: this user may not delete the committed offsets" in found.output
        return said == refused or kafka != NEWEST  # a broker of 1.1 knows a rule as soon as it is made

    paths = Paths("/allocator", group)
    async with members_left(zk_chroot, paths) as zk:
        async with denied(cluster, ResourceType.GROUP, group, ACLOperation.DELETE):
            await wait_until_async(lambda: preview(True), 60, "the brokers to know the rule")
            refused = await delete("--execute")
            assert refused.exit_code == 1
            if kafka == NEWEST:
                assert "grant it the right DELETE on the group" in refused.stderr
                assert refused.stderr.endswith("Nothing was changed\n")
                assert await zk.exists(paths.assignment) is not None
            else:
                assert "GROUP_AUTHORIZATION_FAILED" in refused.stderr
                assert "znodes of the group were deleted, except the topmost one" in refused.stderr
                assert "the committed offsets of 1 partitions stay" in refused.stderr
                assert f"`allocator group delete {group} --execute` with the same options" in refused.stderr
        await wait_until_async(lambda: preview(False), 60, "the brokers to forget the rule")
        finished = await delete("--execute")
        assert (finished.exit_code, finished.stdout.splitlines()[-1]) == (0, "deleted"), finished.stderr
        assert await zk.exists(paths.base) is None
        assert (await delete("--execute", "--zookeeper", "none")).exit_code == 1, "nothing is left"


async def test_a_claim_without_its_member_counts_as_a_member(zk_chroot: str) -> None:
    async with members_left(zk_chroot) as zk:
        await join(zk)
        await zk.delete(PATHS.member(MEMBER))
        with pytest.raises(MembersAlive):
            await delete_group(zk, None, "g", "/allocator")
