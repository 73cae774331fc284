"""Problems that users of other clients report, each on a real ZooKeeper: none happens here.

More of them: a storm of members that start at once (`test_zookeeper.py`), schedules of all of these
(`test_simulation.py`), and the same under load, with Kafka (`tests/faults`).
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from allocator.protocols.zookeeper.client.client import Stat, Watch, ZooKeeperClient
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.testing import wait_until_async
from tests.groups.members import OneGroup, cut_off, everything


@pytest.fixture
def pain(zk_chroot: str, group: str) -> OneGroup:
    return OneGroup(zk_chroot, group, {"t": 12}, session_timeout_s=2.0, assignors=["sticky"], proxied=True)


@pytest.mark.deadline(90)
async def test_no_partition_is_left_unowned_after_a_network_failure(pain: OneGroup) -> None:
    """All members lose the network for longer than their sessions last; when it is back, all is owned again."""
    async with pain.members("a", "b", "c") as (a, b, c), pain.store() as store:
        had = [member.owned for member in (a, b, c)]
        with cut_off(a, b, c):
            await wait_until_async(lambda: gone(store), 30, "the sessions to end")
            assert not any(member.membership.may_act() for member in (a, b, c))
        await wait_until_async(
            lambda: [member.owner.lost_partitions for member in (a, b, c)] == had, 30, "the listeners to get the losses"
        )
        await pain.settle(a, b, c)


async def gone(store: Store) -> bool:
    return not await store.member_names() and not await store.claim_names()


async def test_a_dead_member_delays_only_its_own_partitions_and_only_for_its_session(pain: OneGroup) -> None:
    """A crashed process whose session has not ended: the others continue, and later get its partitions."""
    async with pain.members("a", "b", session_timeout_s=6.0) as (a, b):
        with cut_off(a):  # this member is also the leader; its znodes exist until its session ends
            began = asyncio.get_running_loop().time()
            async with pain.member("c", session_timeout_s=6.0) as c:
                assert c.membership.may_act()  # joining does not wait for other members
                await pain.settle(b, c)
                assert asyncio.get_running_loop().time() - began < 25
            assert pain.history.overlaps() == []


async def test_a_member_that_loses_zookeeper_while_it_drains_leaves_without_it(pain: OneGroup) -> None:
    async with pain.members("a") as (a,):
        a.owner.may_drain.clear()
        leaving = asyncio.ensure_future(a.membership.leave())
        await asyncio.wait_for(a.owner.draining.wait(), 30)
        with cut_off(a):
            await wait_until_async(lambda: bool(a.owner.suspensions), 30, "the loss of the connection to be noticed")
            a.owner.may_drain.set()
            await asyncio.wait_for(leaving, 30)


async def test_a_slow_listener_delays_no_other_member(pain: OneGroup) -> None:
    async with pain.members("a", "b") as (a, b), pain.store() as store:
        b.owner.may_return.clear()
        try:
            pain.topics.change(t=14)
            await pain.settle(a, b)
            async with pain.member("c") as c:
                # two of a, and of the two of b at least the one whose `assigned` has returned
                await wait_until_async(lambda: len(c.owned) >= 3, 30, "partitions of b to move")
                await store.zk.delete(pain.paths.member(b.membership.member_id))
                await pain.settle(a, c)
        finally:
            b.owner.may_return.set()
        await pain.settle(a, b)


async def test_a_restart_during_a_rebalance_creates_no_second_owner(pain: OneGroup) -> None:
    """A member is cancelled while it drains for another one, and restarted at once under the same name."""
    async with pain.members("a") as (a,):
        b = pain.member("b")
        await b.membership.join()
        await pain.settle(a, b)
        b.owner.may_drain.clear()
        async with pain.member("c") as c:
            await asyncio.wait_for(b.owner.draining.wait(), 30)
            leaving = asyncio.ensure_future(b.membership.leave())
            await asyncio.sleep(0)
            leaving.cancel()  # as a service manager does after its timeout
            await asyncio.wait({leaving})
            pain.history.note("b", "lost", everything(pain.topics))
            async with pain.member("b") as again:
                await pain.settle(a, c, again)
    assert pain.history.overlaps() == []


@pytest.mark.parametrize("which", ["members", "claims"])
async def test_deleted_ephemeral_znodes_are_created_again(pain: OneGroup, which: str) -> None:
    """A member whose znode was deleted, or lost with a session, stops and joins again."""
    async with pain.members("a", "b") as (a, b), pain.store() as store:
        before = b.membership.member_id
        await store.zk.delete(f"{pain.paths.base}/{which}/{before}")
        if which == "claims":
            async with pain.member("c"):  # a member notices a deleted claim when it writes it next
                await wait_until_async(lambda: b.membership.member_id != before, 30, "another member id")
        await wait_until_async(lambda: b.membership.member_id != before, 30, "another member id")
        await pain.settle(a, b)
        for path in (pain.paths.member(b.membership.member_id), pain.paths.claim(b.membership.member_id)):
            assert (await store.zk.get(path))[1].owner == b.zk.session_id
        assert await store.zk.exists(pain.paths.member(before)) is None


async def test_a_reconnect_within_the_session_moves_nothing_and_misses_no_change(pain: OneGroup) -> None:
    """Three connections are lost within their sessions. After each, members notice a newcomer and its end."""
    async with pain.members("a", "b", session_timeout_s=6.0) as (a, b):
        ids, moves = [m.membership.member_id for m in (a, b)], pain.history.moves()
        for turn in range(3):
            for member in (a, b):
                member.lose_connection()
            await wait_until_async(
                lambda turn=turn: all(len(m.owner.suspensions) > turn for m in (a, b)), 30, "the pause"
            )
            await pain.settle(a, b)
            assert turn or pain.history.moves() == moves
            async with pain.member(f"c{turn}", session_timeout_s=6.0) as c:
                await pain.settle(a, b, c)
            await pain.settle(a, b)
        assert ids == [m.membership.member_id for m in (a, b)]
        assert not a.owner.lost_partitions | b.owner.lost_partitions


class WatchedClient(ZooKeeperClient):
    """Counts the watches that fire."""

    fired = 0

    def counted(self, watch: Watch | None) -> Watch | None:
        def fire() -> None:
            self.fired += 1
            watch()

        return None if watch is None else fire

    async def get(self, path: str, watch: Watch | None = None, *, deleted: Watch | None = None) -> tuple[bytes, Stat]:
        return await super().get(path, self.counted(watch), deleted=deleted)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        return await super().exists(path, self.counted(watch))

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str]:
        return await super().get_children(path, self.counted(watch))


async def test_a_change_wakes_each_follower_once_per_document(pain: OneGroup) -> None:
    """Each follower watches the documents and its predecessor, however many members there are."""
    before: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        pain.topics.counts = {"t": 48}
        store = await stack.enter_async_context(pain.store())
        members = []
        for number in range(12):
            before.append(await revision(store))
            member = pain.member(f"m{number}", session_timeout_s=6.0, client=WatchedClient)
            members.append(await stack.enter_async_context(member))
            if not number:  # the creation of the first document may fire two watches, those of exists and of get
                await pain.settle(member)
        await pain.settle(*members)
        settled = await revision(store)
        async with pain.member("late", session_timeout_s=6.0) as late:
            await pain.settle(*members, late)
        await pain.settle(*members)
        after = await revision(store)
        assert after - settled <= 6
        # no predecessor of these members left
        for member, first in list(zip(members, before))[1:]:
            assert 0 < member.zk.fired <= after - first


async def revision(store: Store) -> int:
    document, _ = await store.document()
    return 0 if document is None else document.revision
