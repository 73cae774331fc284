"""Problems that users of other clients report, each on a real ZooKeeper: none happens here.

More of them: a storm of members that start at once (`test_zookeeper.py`), schedules of all of these
(`test_simulation.py`), and the same under load, with Kafka (`tests/faults`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from members import OneGroup, TestMember, cut_off, everything

from allocator.core.znodes.documents import AssignmentDocument, Claim
from allocator.core.zookeeper.client import NoZnode, SessionState, ZooKeeperClient
from allocator.testing import wait_until_async
from allocator.types import TopicPartition


class Pain(OneGroup):
    """One group on one ZooKeeper."""

    def __init__(self, hosts: str, group: str) -> None:
        super().__init__(hosts, group, {"t": 12})

    def member(self, name: str, session_timeout_s: float = 2.0) -> TestMember:
        return TestMember(
            self.hosts,
            self.group,
            name,
            self.topics,
            self.history,
            session_timeout_s=session_timeout_s,
            assignors=["sticky"],
            proxied=True,
        )

    @contextlib.asynccontextmanager
    async def client(self, session_timeout_s: float = 10.0) -> AsyncIterator[ZooKeeperClient]:
        zk = ZooKeeperClient(self.hosts, session_timeout_s=session_timeout_s)
        await zk.connect()
        try:
            yield zk
        finally:
            await zk.close()


@pytest.fixture
def pain(zk_chroot: str, group: str) -> Pain:
    return Pain(zk_chroot, group)


@pytest.mark.deadline(90)
async def test_no_partition_is_left_unowned_after_a_network_failure(pain: Pain) -> None:
    """All members lose the network for longer than their sessions last; when it is back, all is owned again."""
    async with pain.member("a") as a, pain.member("b") as b, pain.member("c") as c:
        await pain.settle(a, b, c)
        had = [member.owned for member in (a, b, c)]
        with cut_off(a, b, c):
            async with pain.client() as stranger:
                await wait_until_async(lambda: gone(stranger, pain), 30, "the sessions to end")
            assert not any(member.membership.may_act() for member in (a, b, c))
        await wait_until_async(
            lambda: [member.owner.lost_partitions for member in (a, b, c)] == had, 30, "the losses to be told"
        )
        await pain.settle(a, b, c)
        await wait_until_async(lambda: all(m.membership.may_act() for m in (a, b, c)), 30, "all to act again")


async def gone(zk: ZooKeeperClient, pain: Pain) -> bool:
    return not await zk.get_children(pain.paths.members) and not await zk.get_children(pain.paths.claims)


async def test_an_old_owners_lingering_znode_stalls_its_own_partitions_and_no_longer_than_its_session(
    pain: Pain,
) -> None:
    """A crashed process whose session has not ended: the others continue, and later get its partitions."""
    async with pain.member("a", session_timeout_s=6.0) as a, pain.member("b", session_timeout_s=6.0) as b:
        await pain.settle(a, b)
        with cut_off(a):  # this member is also the leader; its znodes exist until its session ends
            began = asyncio.get_running_loop().time()
            async with pain.member("c", session_timeout_s=6.0) as c:
                assert c.membership.may_act()  # joining does not wait for other members
                await pain.settle(b, c)
                assert asyncio.get_running_loop().time() - began < 25
            assert pain.history.overlaps() == []


async def test_a_user_who_is_slow_to_hear_of_gains_or_losses_delays_no_other_member(
    pain: Pain, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = asyncio.Event()
    async with pain.member("a") as a, pain.member("b") as b:
        await pain.settle(a, b)
        assigned, lost = b.owner.assigned, b.owner.lost

        async def slow_assigned(partitions: frozenset[TopicPartition]) -> None:
            await assigned(partitions)
            await heard.wait()

        async def slow_lost(partitions: frozenset[TopicPartition]) -> None:
            await lost(partitions)
            await heard.wait()

        monkeypatch.setattr(b.owner, "assigned", slow_assigned)
        monkeypatch.setattr(b.owner, "lost", slow_lost)
        try:
            pain.topics.change(t=14)
            await pain.settle(a, b)
            async with pain.member("c") as c:
                # two from a, and of the two from b at least the one that its user knows
                await wait_until_async(lambda: len(c.owned) >= 3, 30, "partitions of b to move")
                async with pain.client() as zk:
                    await zk.delete(pain.paths.member(b.membership.member_id))
                await pain.settle(a, c)
        finally:
            heard.set()
        await pain.settle(a, b)


async def test_a_restart_in_the_middle_of_a_rebalance_gives_nothing_to_two(pain: Pain) -> None:
    """A member is cancelled while it drains for another one, and restarted at once under the same name."""
    async with pain.member("a") as a:
        await pain.settle(a)
        b = pain.member("b")
        await b.membership.join()
        await pain.settle(a, b)
        b.owner.may_drain.clear()
        async with pain.member("c") as c:
            await asyncio.wait_for(b.owner.draining.wait(), 30)
            leaving = asyncio.ensure_future(b.membership.leave())
            await asyncio.sleep(0)
            leaving.cancel()  # as when the service manager loses patience
            await asyncio.wait({leaving})
            pain.history.note("b", "lost", everything(pain.topics))
            async with pain.member("b") as again:
                await pain.settle(a, c, again)
    assert pain.history.overlaps() == []


async def test_nothing_begins_while_the_state_in_zookeeper_is_pending(pain: Pain) -> None:
    """A new member with promised partitions waits until the old owner's claim has shrunk and its own has grown."""
    async with pain.member("a") as a:
        await pain.settle(a)
        a.owner.may_drain.clear()
        async with pain.member("b") as b, pain.client() as zk:
            await asyncio.wait_for(a.owner.draining.wait(), 30)
            await wait_until_async(lambda: b.membership.generation == 2, 30, "the newcomer to have read it")
            assert b.membership.held == b.owned == frozenset()
            assert (await claim(zk, pain, b)).held == frozenset()
            assert len((await claim(zk, pain, a)).held) == 12  # draining still counts
            a.owner.may_drain.set()
            await pain.settle(a, b)
            assert (await claim(zk, pain, b)).held == b.owned  # written before it began


async def claim(zk: ZooKeeperClient, pain: Pain, member: TestMember) -> Claim:
    path = pain.paths.claim(member.membership.member_id)
    return Claim.decode(path, (await zk.get(path))[0])


@pytest.mark.parametrize("which", ["members", "claims"])
async def test_ephemeral_znodes_that_are_lost_are_made_again(pain: Pain, which: str) -> None:
    """A member whose znode was deleted, or lost with a session, stops and joins again."""
    async with pain.member("a") as a, pain.member("b") as b, pain.client() as zk:
        await pain.settle(a, b)
        before = b.membership.member_id
        await zk.delete(f"{pain.paths.base}/{which}/{before}")
        if which == "claims":
            async with pain.member("c"):  # a claim is looked at when it is written next
                await wait_until_async(lambda: b.membership.member_id != before, 30, "another member id")
        await wait_until_async(lambda: b.membership.member_id != before, 30, "another member id")
        await pain.settle(a, b)
        for path in (pain.paths.member(b.membership.member_id), pain.paths.claim(b.membership.member_id)):
            assert (await zk.get(path))[1].owner == b.zk.session_id
        with pytest.raises(NoZnode):
            await zk.get(pain.paths.member(before))


async def test_watches_stand_again_after_each_reconnect(pain: Pain) -> None:
    """Three connections are lost within their sessions; after each, news of a newcomer and of its end still arrive."""
    async with pain.member("a", 6.0) as a, pain.member("b", 6.0) as b:
        await pain.settle(a, b)
        for turn in range(3):
            for member in (a, b):
                member.lose_connection()
            await wait_until_async(
                lambda turn=turn: all(len(m.owner.suspensions) > turn for m in (a, b)), 30, "the pause"
            )
            await wait_until_async(
                lambda: all(m.zk.state is SessionState.CONNECTED and m.membership.may_act() for m in (a, b)),
                30,
                "its end",
            )
            async with pain.member(f"c{turn}", 6.0) as c:
                await pain.settle(a, b, c)
            await pain.settle(a, b)
        assert not a.owner.lost_partitions
        assert not b.owner.lost_partitions


async def test_no_herd_wakes_when_a_member_comes_or_goes(pain: Pain) -> None:
    """Each follower hears of the documents and of its predecessor, however many members there are."""
    fired: dict[str, int] = {}

    def counted(member: TestMember, name: str) -> TestMember:
        watch = member.zk._watch

        def wrapped(callback: Callable[[], None] | None, *deleted: Callable[[], None] | None) -> object:
            def tell() -> None:
                fired[name] = fired.get(name, 0) + 1
                callback()

            return watch(None if callback is None else tell, *deleted)

        member.zk._watch = wrapped
        return member

    async with contextlib.AsyncExitStack() as stack:
        pain.topics.counts = {"t": 48}
        names = [f"m{number}" for number in range(12)]
        members = [await stack.enter_async_context(counted(pain.member(name, 6.0), name)) for name in names]
        await pain.settle(*members)
        async with pain.client() as zk:
            before = await revision(zk, pain)
            stat = await zk.exists(pain.paths.assignment)
            assert stat is not None

            def heard() -> bool:
                known = (member.membership._document._value for member in members)
                return all(value is not None and value[1] == stat.version for value in known)

            # otherwise a late watch on an earlier document would count
            await wait_until_async(heard, 30, "all to have read the present document")
            fired.clear()
            async with pain.member("late", 6.0) as late:
                await pain.settle(*members, late)
            await pain.settle(*members)
            documents = await revision(zk, pain) - before
        followers = [count for name, count in fired.items() if name != "m0"]
        assert documents <= 6
        assert len(followers) == 11
        assert max(followers) <= documents  # the predecessor of none of them went


async def revision(zk: ZooKeeperClient, pain: Pain) -> int:
    return AssignmentDocument.decode("assignment", (await zk.get(pain.paths.assignment))[0]).revision
