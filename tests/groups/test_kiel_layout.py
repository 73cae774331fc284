"""Groups in kiel's layout on a real ZooKeeper, with members of allocator, and their move to allocator's layout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from allocator.assignors import naive_allocator
from allocator.cli.commands import main
from allocator.documents.checked import InvalidZnode
from allocator.operate.adoption import AdoptionUnfinished, adopt, candidate
from allocator.protocols.legacy.kiel import AdoptionRefused, HandoverPhase, Seal, read_shared, seal
from allocator.protocols.zookeeper.client.client import Op, ZooKeeperClient
from allocator.testing import wait_until_async
from tests.groups.layout_bench import Bench
from tests.groups.members import everything


@pytest.fixture
def bench(zk_chroot: str, group: str) -> Bench:
    return Bench("kiel", zk_chroot, group, t=24)


async def test_members_own_what_kiel_would_assign_them(bench: Bench) -> None:
    async with bench.members("a", "b", "c") as (a, b, c), bench.zookeeper() as zk:
        await bench.settled(a, b, c)
        names = sorted(await zk.get_children(bench.kiel.members))
        assigned = json.loads((await zk.get(bench.kiel.partitions))[0])
        expected = naive_allocator(names, sorted(assigned))
        for member in (a, b, c):
            numbers = expected[member.membership.member_id]["t"]
            assert sorted(p.partition for p in member.owner.owned) == sorted(numbers)
        async with bench.members("d") as (d,):
            await bench.settled(a, b, c, d)
        bench.topics.change(t=30)
        await bench.settled(a, b, c)
    assert bench.history.overlaps() == []


async def test_a_member_waits_before_it_takes_partitions_of_a_kiel_member(bench: Bench) -> None:
    """A kiel member has a znode, and claims nothing."""
    async with bench.zookeeper() as zk, bench.members("a", settle_s=1.0) as (a,):
        await bench.settled(a)
        await zk.create(bench.kiel.member("0-kiel"), ephemeral=True)
        await bench.settled(a, without=12)
        gone = asyncio.get_running_loop().time()
        await zk.delete(bench.kiel.member("0-kiel"))
        await bench.settled(a)
        begun = [when for when, _, what, _ in bench.history.events if what == "begin"]
        assert begun[-1] - gone >= 0.9


async def test_a_member_that_returns_in_its_session_takes_nothing_from_its_successor(bench: Bench) -> None:
    async with bench.zookeeper() as zk, bench.members("a", "b") as (a, b):
        await bench.settled(a, b)
        taken_over = asyncio.Event()

        async def admitted(zk: ZooKeeperClient) -> bool:
            if len(b.owner.owned) == 24:
                taken_over.set()
            return taken_over.is_set()

        a.membership.join_again_if(admitted)
        await zk.delete(bench.kiel.member(a.membership.member_id))
        await asyncio.wait_for(taken_over.wait(), 30)
        await wait_until_async(lambda: len(a.owner.owned) == 12, 30, "a to come back")
        await bench.settled(a, b)


class Unacknowledged(ZooKeeperClient):
    """ZooKeeper executes deletions, and their responses do not come until `heals`."""

    heals = False

    async def multi(self, ops: Sequence[Op]) -> int:
        done = await super().multi(ops)
        if ops[0].kind == "delete" and not self.heals:
            await asyncio.Event().wait()
        return done


async def test_a_claim_whose_deletion_was_not_acknowledged_is_not_deleted_twice(bench: Bench) -> None:
    """Member a deletes a claim, and loses its membership before ZooKeeper has acknowledged the deletion. Member b
    claims the partition with a znode of the same name. If a sent the deletion again, it would delete the claim of b."""
    client = Unacknowledged(bench.hosts, session_timeout_s=6.0)
    async with bench.zookeeper() as zk, bench.members("a", zk=client) as (a,):
        await bench.settled(a)

        async def admitted(zk: ZooKeeperClient) -> bool:
            client.heals = len(await zk.get_children(bench.kiel.owners)) == 24
            return client.heals

        a.membership.join_again_if(admitted)
        async with bench.members("b") as (b,):
            await wait_until_async(lambda: len(b.owner.owned) == 12, 30, "b to claim what a deleted")
            await zk.delete(bench.kiel.member(a.membership.member_id))
            await wait_until_async(lambda: client.heals, 30, "b to claim everything, before a starts again")
            await bench.settled(a, b)


async def test_all_members_move_to_the_new_layout(bench: Bench) -> None:
    progress: list[str] = []
    async with bench.zookeeper() as zk, bench.members("a", "b", "c") as (a, b, c):
        await bench.settled(a, b, c)
        a.failures = b.failures = c.failures = 1
        await adopt(zk, bench.group, "/allocator", progress.append, wait_s=30.0)
        await bench.settled(a, b, c)
        carried = [parts for member in (a, b, c) for parts in member.carried]
        assert carried == [everything(bench.topics)]  # exactly one member copies
        assert {m.storage for m in (a, b, c)} == {"kafka"}
        assert progress[-1] == "3 members own 24 partitions under /allocator"
        await adopt(zk, bench.group, "/allocator", progress.append, wait_s=5.0)  # again: nothing to do
        with pytest.raises(AdoptionRefused, match="moved to /allocator already, not to /elsewhere"):
            await adopt(zk, bench.group, "/elsewhere", progress.append, wait_s=5.0)
        async with bench.members("d") as (d,):
            await bench.settled(a, b, c, d)
    assert bench.history.overlaps() == []


class LateOpening(ZooKeeperClient):
    """Creates the znode of the member that copies the offsets only when `until` is set."""

    until: asyncio.Event
    waiting: asyncio.Event

    async def multi(self, ops: Sequence[Op]) -> int:
        if ops[0].path.endswith("/opening"):
            self.waiting.set()
            await self.until.wait()
        return await super().multi(ops)


async def test_a_group_has_moved_if_one_of_its_members_stops_meanwhile(bench: Bench) -> None:
    async with bench.zookeeper() as zk, bench.members("a", "b") as (a, b):
        await bench.settled(a, b)
        b.may_join.clear()
        lines: list[str] = []
        try:
            await adopt(zk, bench.group, "/allocator", lines.append, wait_s=10.0)
        finally:
            b.may_join.set()
        assert lines[-1].startswith("1 members own 24 partitions under /allocator; of 2 members")
        await bench.settled(a, b)


async def test_a_member_copies_again_if_somebody_deletes_the_mark_of_its_copy(bench: Bench) -> None:
    async with bench.zookeeper() as zk, bench.members("a") as (a,):
        await bench.settled(a)
        copies = 0

        async def disturb() -> None:
            nonlocal copies
            copies += 1
            if copies == 1:
                await zk.delete(bench.kiel.opening)
                await asyncio.Event().wait()  # until the member notices, and cancels this copy

        a.while_copying = disturb
        await adopt(zk, bench.group, "/allocator", lambda line: None, wait_s=60.0)
        assert copies == 2
        await bench.settled(a)


async def test_a_member_that_is_late_does_not_copy_again(bench: Bench) -> None:
    """Its copy would replace the offsets that the group has committed in the new layout."""
    late = LateOpening(bench.hosts, session_timeout_s=6.0)
    late.until, late.waiting = asyncio.Event(), asyncio.Event()
    async with bench.zookeeper() as zk, bench.members("a") as (a,), bench.members("b", zk=late) as (b,):
        await bench.settled(a, b)
        a.while_copying = late.waiting.wait  # or b may first look when the group has been opened
        moving = asyncio.create_task(adopt(zk, bench.group, "/allocator", lambda line: None, wait_s=30.0))
        await wait_until_async(lambda: len(a.owner.owned) == 24, 30, "a to own everything in the new layout")
        late.until.set()
        await moving
        await bench.settled(a, b)
        assert (len(a.carried), len(b.carried)) == (1, 0)


async def test_no_member_starts_in_the_new_layout_while_another_drains(bench: Bench) -> None:
    async with bench.zookeeper() as zk, bench.members("a", "b") as (a, b):
        await bench.settled(a, b)
        a.owner.may_drain.clear()
        with pytest.raises(AdoptionUnfinished, match="1 members have not released their partitions yet"):
            await adopt(zk, bench.group, "/allocator", lambda line: None, wait_s=1.0)
        assert not b.owner.owned
        assert await zk.exists("/allocator") is None
        a.owner.may_drain.set()
        await adopt(zk, bench.group, "/allocator", lambda line: None, wait_s=30.0)
        await bench.settled(a, b)


async def test_a_group_with_kiel_members_does_not_move(bench: Bench) -> None:
    async with bench.zookeeper() as zk, bench.members("a") as (a,):
        await bench.settled(a)
        await zk.create(bench.kiel.member("host:1"), ephemeral=True)
        before = (await zk.get(bench.kiel.partitions))[0]
        arguments = ["group", "adopt", bench.group, "--zookeeper", bench.hosts]
        dry_run = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        assert dry_run.exit_code == 0
        assert "1 members with this library, 1 with kiel, 24 partitions" in dry_run.output
        assert "the group cannot move now: it still has members that run kiel: host:1" in dry_run.output
        assert (await candidate(zk, bench.group)).foreign == ("host:1",)
        with pytest.raises(AdoptionRefused, match="still has members that run kiel: host:1"):
            await adopt(zk, bench.group, "/allocator", print, wait_s=1.0)
        # as if it had joined during the move of the group to another layout
        with pytest.raises(AdoptionRefused, match=r"joined group .* meanwhile: host:1"):
            await seal(zk, bench.kiel, "/allocator")
        assert json.loads((await zk.get(bench.kiel.partitions))[0]) == json.loads(before)
        await bench.settled(a, without=12)
        with pytest.raises(AdoptionRefused, match="no kiel group 'nobody'"):
            await candidate(zk, "nobody")
        await zk.delete(bench.kiel.member("host:1"))
        done = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--execute", "--json"])
        assert (done.exit_code, json.loads(done.output[done.output.index("{") :])["obstacle"]) == (0, None)
        await bench.settled(a)


async def test_a_member_waits_for_kiels_lock_and_may_leave_meanwhile(bench: Bench) -> None:
    lock = f"{bench.kiel.partitions}/lock"
    async with bench.zookeeper() as zk, bench.members("a") as (a,):
        await bench.settled(a)

        async def waiting() -> bool:
            return len(await zk.get_children(lock)) == 2

        for count in (30, 36):
            held = await zk.create(f"{lock}/0123__lock__", ephemeral=True, sequence=True)
            bench.topics.change(t=count)
            await wait_until_async(waiting, 30, "the member to wait for the lock")
            await bench.settled(a, without=6)
            if count == 30:
                await zk.delete(held)
                await bench.settled(a)
                assert await zk.get_children(lock) == []
        await asyncio.wait_for(a.membership.leave(), 30)


async def test_a_member_that_joins_again_waits_for_a_list_that_can_be_read(bench: Bench) -> None:
    async with bench.zookeeper() as zk, bench.members("a") as (a,):
        await bench.settled(a)
        good, _ = await zk.get(bench.kiel.partitions)
        await zk.set(bench.kiel.partitions, b"{")
        first = a.membership.member_id
        await zk.delete(bench.kiel.member(first))
        await wait_until_async(lambda: a.membership.member_id != first, 30, "the member to join again")
        await zk.set(bench.kiel.partitions, good)
        await bench.settled(a)
        assert a.membership.ended is None


@pytest.mark.parametrize(
    "data", [b"{}", b"[1]", b'["t"]', b'["t:x"]', b"\xff", Seal(HandoverPhase.OPEN, "/a", frozenset()).encode()[:-1]]
)
def test_invalid_partitions_are_refused_with_their_path(data: bytes) -> None:
    with pytest.raises(InvalidZnode, match="/kiel/p is not readable"):
        read_shared("/kiel/p", data)
