"""Ownership on a real ZooKeeper; each test checks the history."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from allocator import GroupCommands
from allocator.core.aio import TaskGroup
from allocator.core.aio.clock import wall_ms
from allocator.core.types import Partitions
from allocator.documents import InvalidZnode
from allocator.operate.group_reader import describe
from allocator.operate.liveness import live_members
from allocator.protocols.zookeeper import group_znodes
from allocator.protocols.zookeeper.client.client import Op
from allocator.protocols.zookeeper.leader import Leader
from allocator.protocols.zookeeper.session_lease import MembershipLost
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.testing import wait_until_async
from allocator.types import TopicPartition
from tests.groups.members import OneGroup, TestMember
from tests.repo.repository import ROOT
from tests.zookeeper.zookeeper_proxy import proxied


@pytest.fixture
def bench(zk_chroot: str, group: str) -> OneGroup:
    return OneGroup(zk_chroot, group, {"t": 24})


async def test_members_join_and_leave(bench: OneGroup) -> None:
    async with bench.members("a", "b") as (a, b):
        async with bench.member("c") as c:
            await bench.settle(a, b, c)
            assert a.membership.generation == b.membership.generation == c.membership.generation
        await bench.settle(a, b)
        assert [m.membership.leading for m in (a, b)] == [True, False]
    assert bench.history.overlaps() == []


async def test_the_new_owner_waits_for_the_old_one(bench: OneGroup) -> None:
    """It begins once the old owner's claim has shrunk and its own claim has grown; other partitions go on."""
    async with bench.members("a") as (a,), bench.store() as store:
        a.owner.may_drain.clear()

        async def claimed(member: TestMember) -> Partitions:
            claim = await store.claim(member.membership.member_id)
            assert claim is not None
            return claim.held

        async with bench.member("b") as b:
            await asyncio.wait_for(a.owner.draining.wait(), 30)
            await wait_until_async(lambda: b.membership.generation == 2, 30, "the newcomer to have read it")
            document, _ = await store.document()
            assert document is not None
            moving = document.waiting[a.membership.member_id].partitions
            assert document.promised == {b.membership.member_id: moving}
            assert b.membership.held == b.owned == await claimed(b) == frozenset()
            assert a.membership.held == a.owned - moving
            assert await claimed(a) == a.owned  # draining still counts
            a.owner.may_drain.set()
            await bench.settle(a, b)
            assert b.owned == moving == await claimed(b)


@pytest.mark.deadline(90)
async def test_members_keep_their_partitions_while_zookeeper_is_down(cluster_factory, group: str) -> None:
    """All members pause in time, keep their partitions, and continue; nothing moves."""
    cluster = cluster_factory(kafka=None, zookeepers=1, directory=None, heap="129m")
    bench = OneGroup(cluster.zookeeper, group, {"t": 24}, session_timeout_s=8.0)
    async with bench.members("a", "b") as (a, b):
        moves = bench.history.moves()
        node = cluster.zookeepers[0]
        await asyncio.get_running_loop().run_in_executor(None, node.kill)
        await wait_until_async(lambda: not a.membership.may_act() and not b.membership.may_act(), 30, "the pause")
        await asyncio.sleep(8.5)  # longer than the session, which continues because the ensemble was down as well
        assert not a.membership.may_act()
        await asyncio.get_running_loop().run_in_executor(None, node.start)
        await wait_until_async(lambda: a.membership.may_act() and b.membership.may_act(), 30, "the end of the pause")
        await bench.settle(a, b)
        assert bench.history.moves() == moves


async def test_a_frozen_member_stops_before_its_successor_begins(bench: OneGroup) -> None:
    """A paused member continues with an expired lease."""
    script = textwrap.dedent(
        """
        import asyncio, signal, sys
        sys.path.insert(0, sys.argv[3])
        from tests.groups.members import *
        async def main():
            topics, history = StaticTopics({"t": 24}), History()
            async with TestMember(sys.argv[1], sys.argv[2], "frozen", topics, history, session_timeout_s=4.0) as m:
                while not m.owned:
                    await asyncio.sleep(0.01)
                # the first instant after the freeze, before any response of ZooKeeper can have arrived
                check = lambda *_: print("acts" if m.membership.may_act() else "stopped", flush=True)
                signal.signal(signal.SIGCONT, check)
                print("owns", len(m.owned), flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
        """
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, bench.hosts, bench.group, str(ROOT), stdout=subprocess.PIPE
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


@pytest.mark.parametrize("damage", ["garbage", "deleted", "counted by another"])
async def test_a_broken_assignment_is_written_again_and_nothing_moves(bench: OneGroup, damage: str) -> None:
    async with bench.members("a", "b") as (a, b):
        moves, generation = bench.history.moves(), a.membership.generation
        async with bench.store() as store:
            if damage == "garbage":
                await store.zk.set(bench.paths.assignment, b"\x00 garbage")
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


@pytest.mark.parametrize("how", ["set", "created again", "restored with its version"])
@pytest.mark.parametrize("damage", ["older", "two owners", "no owners", "numbers"])
async def test_a_readable_assignment_of_another_client_is_corrected(bench: OneGroup, damage: str, how: str) -> None:
    async with bench.member("a") as a, bench.store() as store:
        await bench.settle(a)
        older = (await store.zk.get(bench.paths.assignment))[0]
        async with bench.member("b") as b:
            await bench.settle(a, b)
            document, version = await store.document()
            assert document is not None
            every = frozenset().union(*document.owners.values())
            forged = {
                "two owners": document.but(owners=dict.fromkeys(document.owners, every)),
                "no owners": document.but(owners={}),
                "numbers": document.but(generation=2**62 - 1, revision=2**62 - 1),
            }
            path, data = bench.paths.assignment, forged[damage].encode() if damage in forged else older
            if how == "set":
                await store.zk.set(path, data)
            else:  # versions begin at 0 again
                sets = [Op("set", path, data)] * (version if how == "restored with its version" else 0)
                await store.zk.multi([Op("delete", path), Op("create", path, data), *sets])

            async def is_corrected() -> bool:
                with contextlib.suppress(InvalidZnode):
                    found, _ = await store.document()
                    return (
                        found is not None
                        and found.writes > document.writes
                        and found.generation < 2**52
                        and not found.waiting
                        and {*found.owners.values()} == {a.owned, b.owned}
                        and len(a.owned) + len(b.owned) == len(a.owned | b.owned) == len(every)
                    )
                return False

            await wait_until_async(is_corrected, 30, "each partition to have one owner")


async def test_an_owner_keeps_its_partitions_when_an_earlier_assignment_is_restored(bench: OneGroup) -> None:
    """The member that owned them then waits until their present owner has released them."""
    swapped = False

    def halves(members: Iterable[str], partitions: Iterable[str]) -> dict[str, dict[str, list[int]]]:
        numbers, names = sorted(int(each.partition(":")[2]) for each in partitions), sorted(members, reverse=swapped)
        shares = [numbers] if len(names) == 1 else [numbers[:12], numbers[12:]]
        return {name: {"t": share} for name, share in zip(names, shares)}

    async with bench.members("a", "b", assignors=[halves]) as (a, b), bench.store() as store:
        earlier = (await store.zk.get(bench.paths.assignment))[0]
        swapped = True
        bench.topics.change(t=25)
        await bench.settle(a, b)
        swapped = False
        for member in (a, b):
            member.owner.may_drain.clear()
        writes = await store.writes()
        await store.zk.set(bench.paths.assignment, earlier)

        async def corrected() -> AssignmentDocument | None:
            document, _ = await store.document()
            return document if document is not None and document.writes > writes else None

        document = await wait_until_async(corrected, 30, "the leader to replace the restored assignment")
        for member, other in ((a, b), (b, a)):
            assert document.owners.get(member.membership.member_id, frozenset()).isdisjoint(other.owned)
        for member in (a, b):
            member.owner.may_drain.set()
        await bench.settle(a, b)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_response_out_of_order_costs_a_member_its_session_and_is_no_failure(group: str, zk_chroot: str) -> None:
    """kazoo's thread ends with it, as with any lost connection."""
    async with proxied(zk_chroot) as proxy, OneGroup(proxy.hosts, group, {"t": 24}).members("a") as (a,):

        def renumbered(data: bytes) -> bytes:
            if int.from_bytes(data[4:8], "big", signed=True) <= 0:  # it answers a ping, or is an event
                return data
            proxy.reply = bytes
            return data[:4] + b"\x7f\xff\xff\xff" + data[8:]

        first, proxy.reply = a.membership.member_id, renumbered
        a.membership.subscribe({"t"})  # leads to requests beside the proofs of life
        await wait_until_async(lambda: proxy.reply is bytes, 30, "a response out of order")
        await wait_until_async(
            lambda: a.membership.member_id != first and len(a.owned) == 24 and a.membership.may_act(),
            30,
            "the member to join again",
        )
        assert a.owner.errors == []


async def test_a_member_that_notices_its_loss_twice_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def notice(why: str) -> None:
        raise MembershipLost(why)

    with pytest.raises(MembershipLost):
        await TaskGroup().run(notice("it expired"), election=notice("its znode was deleted"))
    assert [record.exc_info for record in caplog.records if "besides" in record.message] == [None]


async def saved(bench: OneGroup, store: Store, member: TestMember, *kinds: str) -> list[tuple[str, bytes]]:
    """Returns path and data of the znodes of a member, as a tool saves them."""
    name, path = member.membership.member_id, {"member": bench.paths.member, "claim": bench.paths.claim}
    return [(path[kind](name), (await store.zk.get(path[kind](name)))[0]) for kind in kinds]


async def restore(
    store: Store, znodes: Iterable[tuple[str, bytes]], number: int, *, with_child: bool = False
) -> list[str]:
    """Creates the znodes of a member as a tool restores them: persistent. Returns their paths. `number`: by which
    members are ordered."""
    paths = []
    for path, data in znodes:
        paths.append(f"{path.rpartition('-')[0]}-{number:010d}")
        former, name = (each.rpartition("/")[2].encode() for each in (path, paths[-1]))
        await store.zk.create(paths[-1], data.replace(former, name))
        if with_child:
            await store.zk.create(f"{paths[-1]}/x")
    return paths


@pytest.mark.parametrize("stays", [False, True], ids=["deleted", "with a child"])
@pytest.mark.parametrize("number", [0, 10**9], ids=["oldest", "youngest"])
@pytest.mark.parametrize("kinds", [("member",), ("claim",), ("member", "claim")], ids="-".join)
async def test_a_copied_znode_of_a_member_is_no_member(
    bench: OneGroup, number: int, kinds: tuple[str, ...], stays: bool
) -> None:
    """Tools that copy or restore a tree of znodes make the ephemeral ones persistent, so no session ends them."""
    async with bench.store() as store:
        async with bench.member("former") as former:
            await bench.settle(former)
            znodes = await saved(bench, store, former, *kinds)
        copies = await restore(store, znodes, number, with_child=stays)
        assert await live_members(None, [store.zk], bench.group, "/allocator") == []
        async with bench.members("a", "b") as (a, b):
            await bench.settle(a, b)
            assert [m.membership.leading for m in (a, b)] == [True, False]
            state = await describe(store.zk, bench.group)
            assert state is not None
            assert {*state.members} == {*state.present} == {a.membership.member_id, b.membership.member_id}
            assert len([problem for problem in state.problems if "not ephemeral" in problem]) == len(copies) * stays
            assert [await store.zk.exists(path) is not None for path in copies] == [stays] * len(copies)
            await a.membership.leave()
            await bench.settle(b)


async def test_a_copied_znode_that_no_member_may_delete_is_no_member(bench: OneGroup) -> None:
    """Who may delete a znode is in the ACL of its parent."""
    async with bench.store() as store:
        async with bench.member("former") as former:
            await bench.settle(former)
            znodes = await saved(bench, store, former, "member", "claim")
        copies = await restore(store, znodes, 0)
        client = KazooClient(bench.hosts)
        client.start(30)
        for path in (bench.paths.members, bench.paths.claims):
            client.set_acls(path, [make_acl("world", "anyone", read=True, write=True, create=True, admin=True)])
        async with bench.members("a", "b"):
            assert all([await store.zk.exists(path) for path in copies])
        for path in (bench.paths.members, bench.paths.claims):
            client.set_acls(path, OPEN_ACL_UNSAFE)
        client.stop()
        client.close()


@pytest.mark.deadline(90)
async def test_a_copied_znode_that_no_member_may_read_is_no_member(cluster_factory: Any, group: str) -> None:
    """Before ZooKeeper 3.8.4. Since then, it may as well be the znode of a process with other credentials."""
    cluster = await asyncio.to_thread(cluster_factory, kafka=None, zookeepers=1, zookeeper_version="3.4.14")
    bench = OneGroup(cluster.zookeeper, group, {"t": 24})
    async with bench.store() as store:
        async with bench.member("former") as former:
            await bench.settle(former)
            znodes = await saved(bench, store, former, "member", "claim")
        copies = await restore(store, znodes, 0, with_child=True)
        client = KazooClient(bench.hosts)
        client.start(30)
        for path in copies:
            client.set_acls(path, [make_digest_acl("stranger", "of stranger", all=True)])
        client.stop()
        client.close()
        assert await live_members(None, [store.zk], bench.group, "/allocator") == []
        async with bench.members("a", "b"):
            assert all([await store.zk.exists(path) for path in copies])


@pytest.mark.parametrize("stays", [False, True], ids=["deleted", "with a child"])
async def test_a_copied_claim_moves_no_partition_when_the_assignment_is_lost(bench: OneGroup, stays: bool) -> None:
    """The leader then starts from the claims. The copied one is from a time when one member had all partitions."""
    async with bench.store() as store:
        async with bench.member("former") as former:
            await bench.settle(former)
            ((path, data),) = await saved(bench, store, former, "claim")
        async with bench.members("a", "b") as (a, b):
            moves, revision = bench.history.moves(), (await store.document())[0].revision
            for member in (a, b):
                member.owner.may_drain.clear()
            child = [Op("create", f"{path}/x")] * stays
            await store.zk.multi([Op("create", path, data), *child, Op("delete", bench.paths.assignment)])

            async def settled() -> bool:
                document, _ = await store.document()
                return document is not None and document.revision > revision and not document.waiting

            await wait_until_async(settled, 30, "the assignment")
            await bench.settle(a, b)
            assert bench.history.moves() == moves


@pytest.mark.parametrize("damage", ["garbage", "of another member", "deleted"])
async def test_a_member_whose_claim_another_client_changes_joins_again(bench: OneGroup, damage: str) -> None:
    """The leader assigns partitions by the claims, so the member may not act for long beside a wrong one."""
    async with bench.members("a", "b") as (a, b), bench.store() as store:
        former, claim = b.membership.member_id, bench.paths.claim(b.membership.member_id)
        if damage == "garbage":
            await store.zk.set(claim, b"\x00 garbage")
        elif damage == "deleted":
            await store.zk.delete(claim)
        else:
            await store.zk.set(claim, (await store.zk.get(bench.paths.claim(a.membership.member_id)))[0])
        await wait_until_async(lambda: b.membership.member_id != former, 30, "the member to join again")
        await bench.settle(a, b)
    assert bench.history.overlaps() == []


async def test_the_claim_of_another_member_is_no_release(bench: OneGroup) -> None:
    async with bench.members("a", "b") as (a, b), bench.store() as store:
        a.owner.may_drain.clear()
        async with bench.member("c") as c:
            await wait_until_async(lambda: a.owner.draining.is_set() and c.owned, 30, "b to release, and a to begin")
            of_b = (await store.zk.get(bench.paths.claim(b.membership.member_id)))[0]
            await store.zk.set(bench.paths.claim(a.membership.member_id), of_b)
            await wait_until_async(lambda: a.owner.lost_partitions, 30, "a to notice")
            a.owner.may_drain.set()
            await bench.settle(a, b, c)
    assert bench.history.overlaps() == []


async def until_a_claim_waits(bench: OneGroup, member: TestMember, store: Store) -> None:
    """Assigns further partitions to a member that does not claim them before `may_return` is set."""
    owned, count = member.owned, bench.topics.counts["t"]
    member.owner.may_return.clear()
    bench.topics.change(t=count + 4)
    await wait_until_async(lambda: member.owned > owned, 30, "it to get partitions, which it does not return from")
    bench.topics.change(t=count + 8)

    async def assigned() -> bool:
        document, _ = await store.document()
        return sum(map(len, document.owners.values())) == count + 8

    await wait_until_async(assigned, 30, "the leader to assign the further partitions")


async def test_a_count_that_another_client_changes_is_corrected_while_a_claim_waits(bench: OneGroup) -> None:
    async with bench.members("a", "b") as (a, b), bench.store() as store:
        await until_a_claim_waits(bench, b, store)
        await store.zk.set(bench.paths.base, b"")  # b's next claim checks the version of this znode
        b.owner.may_return.set()
        await bench.settle(a, b)


async def test_nor_while_the_leader_reads_the_assignment_again(
    bench: OneGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost connection, for example. Another client writes between the reads of the count and the assignment."""
    leaders: list[Leader] = []
    monkeypatch.setattr(Leader, "run", lambda leader, run=Leader.run: leaders.append(leader) or run(leader))
    async with bench.members("a", "b") as (a, b), bench.store() as store:
        await until_a_claim_waits(bench, b, store)
        read, counts, counted, is_touched = Store.sized_document, Store.writes, asyncio.Event(), False

        async def noted(of: Store, watch: Callable[[], None] | None = None) -> int:
            writes = await counts(of, watch)
            if is_touched and watch is not None:
                counted.set()
            return writes

        async def touched(of: Store, *args: Any, **options: Any) -> Any:
            nonlocal is_touched
            if of is not store and "counts" in options and not is_touched:  # a leader
                is_touched = True
                await store.zk.set(bench.paths.base, b"")
                await counted.wait()
            return await read(of, *args, **options)

        for name, by in {"sized_document": touched, "writes": noted}.items():
            monkeypatch.setattr(Store, name, by)
        leaders[0].start_over()
        await asyncio.wait_for(counted.wait(), 30)
        b.owner.may_return.set()
        await bench.settle(a, b)


async def test_new_partitions_and_topics_are_assigned(bench: OneGroup) -> None:
    bench.topics.counts = {"t": 4}
    async with bench.members("a", "b", subscribe=(), pattern="t", topic_poll_s=0.2) as (a, b):
        bench.topics.change(t=10)
        await bench.settle(a, b)
        bench.topics.change(t2=6)
        await bench.settle(a, b)
        del bench.topics.counts["t"]
        await bench.settle(a, b)


def assigns_half(view):
    whole = [TopicPartition(t, n) for t, count in view.partitions.items() for n in range(count)]
    return {view.members[0].id: whole[::2]}


async def test_a_wrong_assignment_changes_nothing_and_the_reason_is_published(bench: OneGroup) -> None:
    calls = 0

    def first_good_then_bad(view):
        nonlocal calls
        calls += 1
        if len(view.members) > 1:
            return assigns_half(view)
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


async def test_wall_clocks_do_not_matter(bench: OneGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(time, "time", lambda: 1.0)
    async with bench.members("a", "b"):
        pass  # both own their half and may act


async def test_moves_that_a_leader_whose_clock_is_ahead_noted_are_past_within_a_minute(
    bench: OneGroup, zk_chroot: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ms = [0]
    monkeypatch.setattr(group_znodes, "wall_ms", lambda: wall_ms() + ahead_ms[0])
    async with bench.members("a", "b"), bench.store() as store, GroupCommands(zk_chroot, group) as commands:
        await commands.budget(per_minute=2)
        ahead_ms[0] = 3_600_000

        async def moved() -> list[int]:
            document, _ = await store.document()
            assert document is not None
            return [when for when, _ in document.moved]

        async with bench.member("c") as c:
            await wait_until_async(lambda: len(c.owned) == 2, 30, "the first moves")
            assert max(await moved()) > wall_ms() + 3_000_000
            ahead_ms[0] = 0  # the clock is set right, or another member leads
            await commands.cordon("c")  # a reason to look again

            async def past() -> bool:
                return max(await moved()) <= wall_ms()

            await wait_until_async(past, 30, "moves that are in the past")


@pytest.mark.deadline(120)
async def test_a_storm_of_fifty_that_start_at_once_ends_in_three_generations(bench: OneGroup) -> None:
    bench.topics.counts = {"t": 1000}
    members = [bench.member(f"m{number}", session_timeout_s=10.0) for number in range(50)]
    await asyncio.gather(*(member.membership.join() for member in members))
    try:
        await bench.settle(*members, timeout_s=60)
        assert max(member.membership.generation for member in members) <= 3
    finally:
        await asyncio.gather(*(member.membership.leave() for member in members))
    assert bench.history.overlaps() == []


@pytest.mark.usefixtures("small_shards")
async def test_a_large_assignment_is_spread_over_shards(bench: OneGroup) -> None:
    bench.topics.counts = {"t": 3000}
    async with bench.members("a", "b") as (a, b):
        async with bench.member("c") as c:
            await bench.settle(a, b, c)
        async with bench.store() as store:
            data, _ = await store.zk.get(bench.paths.assignment)
            assert data.startswith(b'{"format"')
            assert len(await store.zk.get_children(bench.paths.shards)) > 1
