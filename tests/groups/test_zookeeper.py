"""Ownership on a real ZooKeeper; each test checks the history."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator

import pytest
from members import History, OneGroup, StaticTopics, TestMember, cut_off, everything

from allocator.core.znodes.documents import AssignmentDocument
from allocator.core.znodes.store import Store
from allocator.core.zookeeper.client import ZooKeeperClient
from allocator.errors import Closed, InconsistentAssignor, ZooKeeperUnavailable
from allocator.operate.group_reader import describe, list_groups
from allocator.testing import wait_until_async
from allocator.types import TopicPartition


class Bench(OneGroup):
    """One group under test."""

    settles_within_s = 15.0

    def __init__(self, hosts: str, group: str, **counts: int) -> None:
        super().__init__(hosts, group, counts or {"t": 24})

    def member(self, name: str, **options: object) -> TestMember:
        return TestMember(self.hosts, self.group, name, self.topics, self.history, **options)

    @contextlib.asynccontextmanager
    async def members(self, *names: str, **options: object) -> AsyncIterator[list[TestMember]]:
        async with contextlib.AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.member(name, **options)) for name in names]

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        zk = ZooKeeperClient(self.hosts)
        await zk.connect()
        try:
            yield Store(zk, self.paths)
        finally:
            await zk.close()


@pytest.fixture
def bench(zk_chroot: str, group: str) -> Bench:
    return Bench(zk_chroot, group)


async def test_members_share_join_and_leave(bench: Bench) -> None:
    async with bench.members("a", "b") as (a, b):
        await bench.settle(a, b)
        async with bench.member("c") as c:
            await bench.settle(a, b, c)
            assert a.membership.generation == b.membership.generation == c.membership.generation
        await bench.settle(a, b)
        assert [m.membership.leading for m in (a, b)] == [True, False]
    assert bench.history.overlaps() == []


async def test_the_new_owner_waits_for_the_old_one(bench: Bench) -> None:
    async with bench.member("a") as a:
        await bench.settle(a)
        a.owner.may_drain.clear()
        async with bench.member("b") as b:
            await asyncio.wait_for(a.owner.draining.wait(), 30)
            async with bench.store() as store:
                document, _ = await store.document()
            assert document is not None
            moving = document.waiting[a.membership.member_id].partitions
            assert document.promised == {b.membership.member_id: moving}
            assert b.owned == frozenset()
            assert a.membership.held == a.owned - moving  # partitions that stay were not stopped
            a.owner.may_drain.set()
            await bench.settle(a, b)
            assert b.owned == moving


async def test_a_leader_that_dies_mid_assignment_strands_nobody(bench: Bench) -> None:
    """The leader has taken partitions away and dies before it gives them on."""
    async with bench.member("a", proxied=True) as a, bench.member("b") as b:
        await bench.settle(a, b)
        b.owner.may_drain.clear()
        async with bench.member("c") as c:
            await asyncio.wait_for(b.owner.draining.wait(), 30)
            with cut_off(a):  # the leader, while b still drains
                b.owner.may_drain.set()
                await bench.settle(b, c)
                assert b.membership.leading
                assert not a.membership.may_act()
            await bench.settle(a, b, c)
    assert bench.history.overlaps() == []


async def test_a_lost_session_is_told_and_the_member_comes_back(bench: Bench) -> None:
    async with bench.members("a", "b", proxied=True) as (a, b):
        await bench.settle(a, b)
        before, had = b.membership.member_id, b.owned
        with cut_off(b):
            await bench.settle(a)
            assert b.owned == had  # it does not know of the loss yet, and must not act
            assert not b.membership.may_act()
        await wait_until_async(lambda: b.owner.lost_partitions == had, 30, "the loss to be told")
        await bench.settle(a, b)
        assert b.membership.member_id != before
        assert not b.owner.errors


async def test_a_reconnect_within_the_session_moves_nothing(bench: Bench) -> None:
    async with bench.members("a", "b", session_timeout_s=15.0, proxied=True) as (a, b):
        await bench.settle(a, b)
        generation, moves = a.membership.generation, bench.history.moves()
        for member in (a, b):
            member.lose_connection()
        await wait_until_async(lambda: a.owner.suspensions and b.owner.suspensions, 30, "the pause")
        await wait_until_async(lambda: a.membership.may_act() and b.membership.may_act(), 30, "the end of the pause")
        async with bench.member("c", session_timeout_s=15.0) as c:
            # this only moves if their watches survived the reconnect
            await bench.settle(a, b, c)
            assert a.membership.generation == generation + 1
        assert bench.history.moves() > moves
        assert not a.owner.lost_partitions
        assert not b.owner.lost_partitions


@pytest.mark.deadline(90)
async def test_zookeeper_killed_and_restarted(cluster_factory, group: str) -> None:
    """All members pause in time, keep their partitions, and continue; nothing moves."""
    cluster = cluster_factory(kafka=None, zookeepers=1, directory=None, heap="129m")
    bench = Bench(cluster.zookeeper, group)
    async with bench.members("a", "b", session_timeout_s=8.0) as (a, b):
        await bench.settle(a, b)
        moves = bench.history.moves()
        node = cluster.zookeepers[0]
        await asyncio.get_running_loop().run_in_executor(None, node.kill)
        await wait_until_async(lambda: not a.membership.may_act() and not b.membership.may_act(), 30, "the pause")
        await asyncio.sleep(8.5)  # longer than the session: it lives on, for the ensemble was down as well
        assert not a.membership.may_act()
        await asyncio.get_running_loop().run_in_executor(None, node.start)
        await wait_until_async(lambda: a.membership.may_act() and b.membership.may_act(), 30, "the end of the pause")
        await bench.settle(a, b)
        assert bench.history.moves() == moves


async def test_a_frozen_member_stops_before_its_successor_begins(bench: Bench) -> None:
    """A paused member continues with an expired lease."""
    script = textwrap.dedent(
        """
        import asyncio, signal, sys
        sys.path.insert(0, sys.argv[3])
        from members import *
        async def main():
            topics, history = StaticTopics({"t": 24}), History()
            async with TestMember(sys.argv[1], sys.argv[2], "frozen", topics, history, session_timeout_s=4.0) as m:
                while not m.owned:
                    await asyncio.sleep(0.01)
                # the first instant after the freeze, before anything can have been heard of ZooKeeper
                check = lambda *_: print("acts" if m.membership.may_act() else "stopped", flush=True)
                signal.signal(signal.SIGCONT, check)
                print("owns", len(m.owned), flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
        """
    )
    here = os.path.dirname(__file__)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, bench.hosts, bench.group, here, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 30) == b"owns 24\n"
        async with bench.member("heir") as heir:
            await wait_until_async(lambda: len(heir.owned) >= 12, 30, "half of the partitions")
            child.send_signal(signal.SIGSTOP)
            await bench.settle(heir, timeout_s=30)
            child.send_signal(signal.SIGCONT)
            assert await asyncio.wait_for(child.stdout.readline(), 30) == b"stopped\n"
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_a_member_whose_znode_is_deleted_gives_up_and_joins_again(bench: Bench) -> None:
    async with bench.members("a", "b") as (a, b):
        await bench.settle(a, b)
        before = b.membership.member_id
        async with bench.store() as store:
            await store.zk.delete(bench.paths.member(before))
        await wait_until_async(lambda: b.membership.member_id != before, 30, "a new member id")
        await bench.settle(a, b)


@pytest.mark.parametrize("damage", ["rubbish", "deleted", "counted by another"])
async def test_a_broken_assignment_is_written_anew_and_nothing_moves(bench: Bench, damage: str) -> None:
    async with bench.members("a", "b") as (a, b):
        await bench.settle(a, b)
        moves, generation = bench.history.moves(), a.membership.generation
        async with bench.store() as store:
            if damage == "rubbish":
                await store.zk.set(bench.paths.assignment, b"\x00 not ours")
            elif damage == "counted by another":  # its version counts the writes of the assignment
                await store.zk.set(bench.paths.base, b"")
            else:
                await store.zk.delete(bench.paths.assignment)

            async def readable() -> AssignmentDocument | None:
                with contextlib.suppress(Exception):
                    return (await store.document())[0]
                return None

            document = await wait_until_async(readable, 30, "a readable assignment")
            assert document.generation >= generation
        async with bench.member("c") as c:
            await bench.settle(a, b, c)
        assert bench.history.overlaps() == []
        assert bench.history.moves() > moves


async def test_strange_znodes_among_the_members_are_ignored(bench: Bench) -> None:
    async with bench.store() as store:
        await store.prepare()
        await store.zk.create(f"{bench.paths.members}/backup", b"what is this")
        await store.zk.create(f"{bench.paths.members}/m-0123456789abcdef-0000000000", b"\xff\xfe")
        async with bench.members("a", "b") as (a, b):
            # the unreadable member is the oldest; it must neither lead for ever nor be given anything
            await store.zk.delete(f"{bench.paths.members}/m-0123456789abcdef-0000000000")
            await bench.settle(a, b)


async def test_new_partitions_and_new_topics_are_shared_out(bench: Bench) -> None:
    bench.topics.counts = {"t": 4}
    async with bench.members("a", "b", subscribe=(), pattern="t", topic_poll_s=0.2) as (a, b):
        await bench.settle(a, b)
        bench.topics.change(t=10)
        await bench.settle(a, b)
        bench.topics.change(t2=6)
        await bench.settle(a, b)
        del bench.topics.counts["t"]
        await bench.settle(a, b)


async def test_subscriptions_may_differ(bench: Bench) -> None:
    bench.topics.counts = {"t": 6, "u": 6, "v": 6}
    async with bench.member("a", subscribe=("t", "u")) as a, bench.member("b", subscribe=("u",), pattern="v") as b:
        # all is owned at times before both have joined: `a` alone has all of "u" until it gives half away
        await wait_until_async(
            lambda: (
                a.owned | b.owned == everything(bench.topics)
                and {p.topic for p in a.owned} == {"t", "u"}
                and {p.topic for p in b.owned} == {"u", "v"}
            ),
            30,
            lambda: f"each to own of what it subscribed to: {sorted(a.owned)} {sorted(b.owned)}",
        )
        assert bench.history.overlaps() == []


def two_arguments(members, partitions):
    """An allocator function with kiel's signature."""
    mapping: dict = {}
    for number, partition in enumerate(reversed(partitions)):
        topic, _, identifier = partition.partition(":")
        mapping.setdefault(members[number % len(members)], {}).setdefault(topic, []).append(int(identifier))
    return mapping


def gives_half(view):
    whole = [TopicPartition(t, n) for t, count in view.partitions.items() for n in range(count)]
    return {view.members[0].id: whole[::2]}


async def test_a_function_with_kiels_signature(bench: Bench) -> None:
    async with bench.members("a", "b", assignors=[two_arguments]) as (a, b):
        await bench.settle(a, b)
        assert TopicPartition("t", 9) in a.owned | b.owned


async def test_a_bad_assignment_keeps_the_old_one_and_says_why(bench: Bench) -> None:
    calls = 0

    def first_good_then_bad(view):
        nonlocal calls
        calls += 1
        if len(view.members) > 1:
            return gives_half(view)
        return {view.members[0].id: [TopicPartition("t", n) for n in range(view.partitions["t"])]}

    async with bench.member("a", assignors=[first_good_then_bad]) as a:
        await bench.settle(a)
        async with bench.member("b", assignors=[first_good_then_bad]) as b, bench.store() as store:

            async def problem() -> str | None:
                return (await store.document())[0].problem

            text = await wait_until_async(problem, 30, "the problem to be published")
            assert "first_good_then_bad" in text
            assert a.membership.generation == 1
            assert len(a.owned) == 24
            assert not b.owned


async def test_members_without_a_common_function_are_refused(bench: Bench) -> None:
    async with bench.member("a", assignors=["naive"]) as a:
        await bench.settle(a)
        async with bench.member("b", assignors=[two_arguments]) as b:
            await wait_until_async(lambda: b.owner.errors, 30, "the refusal")
            assert isinstance(b.owner.errors[0], InconsistentAssignor)
            assert "naive" in str(b.owner.errors[0])
            assert len(a.owned) == 24
        async with bench.member("c", assignors=[two_arguments, "naive"]) as c:
            await bench.settle(a, c)


async def test_a_wrong_address_times_out_with_a_message(group: str) -> None:
    history, topics = History(), StaticTopics({"t": 1})
    member = TestMember("127.0.0.1:1", group, "a", topics, history, connect_timeout_s=1.0)
    began = asyncio.get_running_loop().time()
    with pytest.raises(ZooKeeperUnavailable, match=r"127\.0\.0\.1:1.*no node responded within 1"):
        await member.membership.join()
    assert asyncio.get_running_loop().time() - began < 20


async def test_a_member_that_leaves_while_it_joins_does_not_join(bench: Bench) -> None:
    member = bench.member("a").membership
    await member.connect()
    leaving = asyncio.ensure_future(member.leave())
    await asyncio.sleep(0)  # it waits for kazoo's threads
    with pytest.raises(Closed, match="left while it joined"):
        await member.join()
    await leaving


async def test_wall_clocks_do_not_matter(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(time, "time", lambda: 1.0)
    async with bench.members("a", "b") as (a, b):
        await bench.settle(a, b)
        assert a.membership.may_act()


async def test_credentials_close_the_znodes_to_others(bench: Bench) -> None:
    options = {"auth_data": [("digest", "us:secret")]}
    async with bench.member("a", options=options) as a:
        await bench.settle(a)
        async with bench.store() as stranger:
            with pytest.raises(Exception, match="credentials") as refused:
                await stranger.document()
            assert "secret" not in str(refused.value)
    us = ZooKeeperClient(bench.hosts, options=options)
    await us.connect()
    try:
        await asyncio.get_running_loop().run_in_executor(None, us._client.delete, f"{us.chroot}/allocator", -1, True)
    finally:
        await us.close()


@pytest.mark.deadline(120)
async def test_a_storm_of_fifty_that_start_at_once_ends_in_three_generations(bench: Bench) -> None:
    bench.topics.counts = {"t": 1000}
    members = [bench.member(f"m{number}", session_timeout_s=10.0) for number in range(50)]
    await asyncio.gather(*(member.membership.join() for member in members))
    try:
        await bench.settle(*members, timeout_s=60)
        assert max(member.membership.generation for member in members) <= 3
    finally:
        await asyncio.gather(*(member.membership.leave() for member in members))
    assert bench.history.overlaps() == []


async def test_a_large_assignment_is_spread_over_shards(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allocator.core.znodes.documents.SHARD_BYTES", 200)
    bench.topics.counts = {"t": 3000}
    async with bench.members("a", "b") as (a, b):
        await bench.settle(a, b)
        async with bench.member("c") as c:
            await bench.settle(a, b, c)
        async with bench.store() as store:
            data, _ = await store.zk.get(bench.paths.assignment)
            assert data.startswith(b'{"format"')
            assert len(await store.zk.get_children(bench.paths.shards)) > 1


async def test_a_group_is_described_from_outside(bench: Bench) -> None:
    async with bench.members("a", "b") as (a, b):
        await bench.settle(a, b)
        async with bench.store() as store:
            assert await list_groups(store.zk) == [bench.group]
            state = await describe(store.zk, bench.group)
            assert await describe(store.zk, "no-such-group") is None
        assert state is not None
        assert state.leader == a.membership.member_id
        assert [info.name for info in state.members.values()] == ["a", "b"]
        assert set(state.owners) == state.assigned == everything(bench.topics)
        assert state.problems == ()


@pytest.mark.deadline(120)
async def test_no_change_is_missed_however_it_meets_the_leaders_reading(bench: Bench) -> None:
    """Members come and go while the leader reads; it must not take one change for another, and wait for ever."""
    async with bench.members("a", "b") as (a, b):
        for turn in range(15):
            async with bench.member(f"c{turn}") as c:
                await asyncio.sleep(turn * 0.007)
                async with bench.member(f"d{turn}") as d:
                    await asyncio.sleep(turn * 0.003)
                    await asyncio.gather(c.membership.leave(), d.membership.leave())
            await bench.settle(a, b, timeout_s=5)
    assert bench.history.overlaps() == []
