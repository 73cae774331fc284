"""Groups whose members, neighbours and operators have different credentials for ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

from allocator import Allocation, GroupCommands
from allocator.errors import ZooKeeperUnavailable
from allocator.operate import Clusters, read_groups
from allocator.operate.doctor import observe
from allocator.protocols.zookeeper.client.client import NotAuthorized
from allocator.resources.allocation import ROOT
from allocator.testing import wait_until_async
from allocator.web.watch import Watcher
from tests.groups.zookeeper_sessions import session

NAMES = [f"n{number:02}" for number in range(12)]
Credentials = dict[str, Any]


def credentials(user: str) -> Credentials:
    return {"zookeeper_options": {"auth_data": [("digest", f"{user}:of {user}")]}}


@pytest.fixture
def zk_chroot(zk_chroot: str) -> Iterator[str]:
    """Deletes what the others may not delete."""
    yield zk_chroot
    users = [("digest", f"{user}:of {user}") for user in ("billing", "shipping", "operator", "stranger")]
    client = KazooClient(zk_chroot, auth_data=users)
    client.start(30)
    for child in client.get_children("/"):
        client.delete(f"/{child}", recursive=True)
    client.stop()
    client.close()


class Members:
    """Members of one group, by name."""

    def __init__(self, hosts: str, group: str) -> None:
        self.hosts, self.group = hosts, group
        self.lost: list[str] = []
        self.present: dict[str, Allocation] = {}

    async def start(self, name: str, **options: Any) -> None:
        allocation = Allocation(
            NAMES,
            group=self.group,
            zookeeper=self.hosts,
            client_id=name,
            session_timeout_s=6,
            on_lost=lambda names: self.lost.append(name),
            **options,
        )
        await allocation.start()
        self.present[name] = allocation

    async def stop(self, name: str) -> None:
        await self.present.pop(name).close()

    async def until_shared(self, *among: str) -> None:
        """Each of these members owns as much as the others, and nothing is unowned."""
        share = [len(NAMES) // len(among)] * len(among)
        sizes = lambda: [len(self.present[name].held) for name in among]  # noqa: E731
        await wait_until_async(lambda: sizes() == share, 30, lambda: f"{share}, not {sizes()}")


@contextlib.asynccontextmanager
async def members(hosts: str, group: str, *names: str, **options: Any) -> AsyncIterator[Members]:
    found = Members(hosts, group)
    try:
        for name in names:
            await found.start(name, **options)
        await found.until_shared(*names)
        yield found
    finally:
        for name in list(found.present):
            await found.stop(name)


async def test_members_get_credentials_one_by_one(zk_chroot: str, group: str) -> None:
    async with members(zk_chroot, group, *"abc") as group_of:
        for name in "abc":
            await group_of.stop(name)
            await group_of.start(name, **credentials("billing"))
            await group_of.until_shared(*"abc")
        assert group_of.lost == []


@pytest.mark.parametrize("user", ["", "billing"])
async def test_an_operator_may_have_credentials_that_the_group_lacks(zk_chroot: str, group: str, user: str) -> None:
    """A group with other credentials than the operator's refuses the command."""
    options = credentials(user) if user else {}
    async with members(zk_chroot, group, *"abc", **options) as group_of:
        async with GroupCommands(zk_chroot, group, root=ROOT, **credentials("operator")) as commands:
            if user:
                with pytest.raises(NotAuthorized):
                    await commands.evacuate("c")
                return
            await commands.evacuate("c")
            await group_of.until_shared("a", "b")
            await group_of.stop("a")
            await group_of.start("a")
            await group_of.until_shared("a", "b")
            assert [each.state for each in await commands.list()] == ["done"]
        assert group_of.lost == []


async def test_groups_with_different_credentials_share_a_root(zk_chroot: str, group: str) -> None:
    async with session(zk_chroot) as operator:
        await operator.ensure_path(ROOT)
    async with contextlib.AsyncExitStack() as stack:
        for user in ("billing", "shipping", ""):
            options = credentials(user) if user else {}
            await stack.enter_async_context(members(zk_chroot, f"{group}-{user}", "a", **options))
        async with session(zk_chroot, options=credentials("shipping")["zookeeper_options"]) as zk:
            assert len(await zk.get_children(f"{ROOT}/{group}-shipping/members")) == 1
            for path in ("", "/members", "/assignment"):
                with pytest.raises(NotAuthorized):
                    await zk.get(f"{ROOT}/{group}-billing{path}")


async def test_a_group_with_other_credentials_hides_no_other_group(zk_chroot: str, group: str) -> None:
    """The list, the doctor and the status page, whose user may read one of two groups."""
    hidden, clusters = f"{group}-billing", Clusters(zk_chroot, ROOT)
    async with session(zk_chroot) as operator, contextlib.AsyncExitStack() as stack:
        await operator.ensure_path(ROOT)
        await stack.enter_async_context(members(zk_chroot, hidden, "a", **credentials("billing")))
        await stack.enter_async_context(members(zk_chroot, group, "a"))
        found = {each.state.group: each for each in await read_groups(clusters)}
        assert (len(found[group].state.members), found[group].unseen) == (1, ())
        assert "its ACL does not allow it" in found[hidden].unseen[0]
        assert (await observe(None, client=None, zookeepers=[operator], root=ROOT)).failed_checks == ()

        watcher = Watcher(clusters)
        watching = asyncio.ensure_future(watcher.run())
        stack.callback(watching.cancel)
        await watcher.until_ready(30)
        await wait_until_async(lambda: watcher.groups[group].report.state.members, 30, "the members of the open group")
        await wait_until_async(lambda: watcher.groups[hidden].report.state.hidden, 30, "the reason of the other one")
        assert (watcher.ready, watcher.problems, watcher.groups[hidden].report.phase) == (True, {}, "unknown")


@pytest.mark.parametrize("unreadable", ["orders", "members", "claims"])
async def test_a_znode_that_may_not_be_read_stops_no_member(zk_chroot: str, group: str, unreadable: str) -> None:
    """Members of older versions, and other tools, create such znodes in a group that is open to all."""
    name = "" if unreadable == "orders" else f"/m-{1:016x}-{2**31 - 9:010d}"
    stranger = {**credentials("stranger")["zookeeper_options"], "default_acl": CREATOR_ALL_ACL}
    async with members(zk_chroot, group, *"abc") as group_of:
        async with session(zk_chroot, options=stranger) as zk:
            await zk.create(f"{ROOT}/{group}/{unreadable}{name}", b"{}", ephemeral=bool(name))
            await group_of.stop("a")  # the leader
            await group_of.until_shared("b", "c")
            await group_of.start("a")
            await group_of.until_shared(*"abc")
        assert group_of.lost == []


async def test_without_its_credentials_no_member_joins(zk_chroot: str, group: str) -> None:
    async with members(zk_chroot, group, "a", **credentials("billing")):
        for options in ({}, credentials("shipping")):
            with pytest.raises((NotAuthorized, ZooKeeperUnavailable), match="ACL"):
                await Allocation(NAMES, group=group, zookeeper=zk_chroot, connect_timeout_s=10, **options).start()
