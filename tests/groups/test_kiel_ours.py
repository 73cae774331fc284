"""Members of this library in a group of kiel's layout on a real ZooKeeper, with a checked history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from click.testing import CliRunner
from layout_bench import Bench
from members import everything

from allocator.assignors import naive_allocator
from allocator.cli.commands import main
from allocator.core.znodes.documents import InvalidZnode, Paths
from allocator.core.zookeeper.client import Op, ZooKeeperClient
from allocator.operate.adoption import AdoptionUnfinished, adopt, candidate
from allocator.protocols.legacy.kiel import (
    AdoptionRefused,
    HandoverPhase,
    KielPaths,
    Seal,
    add_partitions,
    read_shared,
    seal,
)
from allocator.testing import wait_until_async
from allocator.types import TopicPartition


@pytest.fixture
def bench(zk_chroot: str, group: str) -> Bench:
    return Bench("kiel", zk_chroot, group, t=24)


async def test_ours_own_what_kiel_would_deal_them(bench: Bench) -> None:
    async with bench.members("a", "b", "c") as (a, b, c), bench.zookeeper() as zk:
        await bench.settled(a, b, c)
        names = sorted(await zk.get_children(bench.kiel.members))
        dealt = json.loads((await zk.get(bench.kiel.partitions))[0])
        expected = naive_allocator(names, sorted(dealt))
        for member in (a, b, c):
            mine = expected[member.membership.member_id]["t"]
            assert sorted(p.partition for p in member.owner.owned) == sorted(mine)
        async with bench.members("d") as (d,):
            await bench.settled(a, b, c, d)
        bench.topics.change(t=30)
        await bench.settled(a, b, c)
    assert bench.history.overlaps() == []


async def test_what_comes_from_one_of_kiels_is_left_alone_for_a_while(bench: Bench) -> None:
    """The same name as kiel would use, and its znode alone: it claims nothing."""
    async with bench.zookeeper() as zk, bench.members("a", settle_s=1.0) as (a,):
        await bench.settled(a)
        await zk.create(bench.kiel.member("0-kiel"), ephemeral=True)
        await bench.settled(a, without=12)
        gone = asyncio.get_running_loop().time()
        await zk.delete(bench.kiel.member("0-kiel"))
        await bench.settled(a)
        begun = [when for when, _, what, _ in bench.history.events if what == "begin"]
        assert begun[-1] - gone >= 0.9


async def test_who_comes_back_in_its_session_takes_nothing_from_whoever_took_over(bench: Bench) -> None:
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
    ours = Unacknowledged(bench.hosts, session_timeout_s=6.0)
    async with bench.zookeeper() as zk, bench.members("a", zk=ours) as (a,):
        await bench.settled(a)

        async def admitted(zk: ZooKeeperClient) -> bool:
            ours.heals = len(await zk.get_children(bench.kiel.owners)) == 24
            return ours.heals

        a.membership.join_again_if(admitted)
        async with bench.members("b") as (b,):
            await wait_until_async(lambda: len(b.owner.owned) == 12, 30, "b to claim what a deleted")
            await zk.delete(bench.kiel.member(a.membership.member_id))
            await wait_until_async(lambda: ours.heals, 30, "b to claim everything, before a begins again")
            await bench.settled(a, b)


async def test_a_group_goes_over_whole(bench: Bench) -> None:
    said: list[str] = []
    async with bench.zookeeper() as zk, bench.members("a", "b", "c") as (a, b, c):
        await bench.settled(a, b, c)
        a.failures = b.failures = c.failures = 1
        await adopt(zk, bench.group, "/allocator", 30.0, said.append)
        await bench.settled(a, b, c)
        carried = [parts for member in (a, b, c) for parts in member.carried]
        assert carried == [everything(bench.topics)]  # exactly one of them does it
        assert {m.storage for m in (a, b, c)} == {"kafka"}
        assert said[-1] == "3 members own 24 partitions under /allocator"
        await adopt(zk, bench.group, "/allocator", 5.0, said.append)  # again: nothing to do
        with pytest.raises(AdoptionRefused, match="moved to /allocator already, not to /elsewhere"):
            await adopt(zk, bench.group, "/elsewhere", 5.0, said.append)
        async with bench.members("d") as (d,):
            await bench.settled(a, b, c, d)
    assert bench.history.overlaps() == []


async def test_nobody_begins_in_the_new_layout_while_one_still_drains(bench: Bench) -> None:
    async with bench.zookeeper() as zk, bench.members("a", "b") as (a, b):
        await bench.settled(a, b)
        a.owner.may_drain.clear()
        with pytest.raises(AdoptionUnfinished, match="1 members have not released their partitions yet"):
            await adopt(zk, bench.group, "/allocator", 1.0, lambda line: None)
        assert not b.owner.owned
        assert await zk.exists("/allocator") is None
        a.owner.may_drain.set()
        await adopt(zk, bench.group, "/allocator", 30.0, lambda line: None)
        await bench.settled(a, b)


async def test_what_a_member_is_told_while_it_joins_the_new_layout_holds_there(bench: Bench) -> None:
    """Its subscription, and that it leaves for good: no reservation keeps its partitions."""
    bench.topics.change(u=6)
    topic_u = {TopicPartition("u", number) for number in range(6)}
    async with bench.zookeeper() as zk, bench.members("a", "b") as (a, b):
        await wait_until_async(lambda: len(a.owner.owned | b.owner.owned) == 24, 30, "a and b to own t")
        a.may_join.clear()
        moving = asyncio.ensure_future(adopt(zk, bench.group, "/allocator", 30.0, lambda line: None))
        await asyncio.wait_for(a.joining.wait(), 30)
        a.membership.subscribe({"u"})
        a.may_join.set()
        await wait_until_async(lambda: a.owner.owned == topic_u, 30, lambda: f"a to own u: {a.owner.owned}")
        await moving
        b.membership.subscribe({"t", "u"})
        a.membership.leave_for_good()
        await a.membership.leave()
        await wait_until_async(lambda: len(b.owner.owned) == 30, 30, lambda: f"b to own all of u: {b.owner.owned}")
    assert bench.history.overlaps() == []


async def test_a_member_that_lost_its_session_asks_in_either_layout_before_it_joins_again(bench: Bench) -> None:
    asked: list[bool] = []

    async def admitted(zk: ZooKeeperClient) -> bool:
        asked.append(True)
        return True

    async with bench.zookeeper() as zk, bench.members("a") as (a,):
        a.membership.join_again_if(admitted)
        await bench.settled(a)
        await zk.delete(bench.kiel.member(a.membership.member_id))
        await wait_until_async(lambda: len(asked) == 1, 30, "the question in kiel's layout")
        await bench.settled(a)
        await adopt(zk, bench.group, "/allocator", 30.0, lambda line: None)
        await bench.settled(a)
        await zk.delete(Paths("/allocator", bench.group).member(a.membership.member_id))
        await wait_until_async(lambda: len(asked) == 2, 30, "the question in the new layout")
        await bench.settled(a)


async def test_a_group_with_members_of_kiels_is_not_given_away(bench: Bench) -> None:
    async with bench.zookeeper() as zk, bench.members("a") as (a,):
        await bench.settled(a)
        await zk.create(bench.kiel.member("host:1"), ephemeral=True)
        before = (await zk.get(bench.kiel.partitions))[0]
        assert (await candidate(zk, bench.group)).foreign == ("host:1",)
        with pytest.raises(AdoptionRefused, match="still has members that run kiel: host:1"):
            await adopt(zk, bench.group, "/allocator", 1.0, print)
        # as if it had joined during the move of the group to another layout
        with pytest.raises(AdoptionRefused, match=r"joined group .* meanwhile: host:1"):
            await seal(zk, bench.kiel, "/allocator")
        assert json.loads((await zk.get(bench.kiel.partitions))[0]) == json.loads(before)
        await bench.settled(a, without=12)
        with pytest.raises(AdoptionRefused, match="no kiel group 'nobody'"):
            await candidate(zk, "nobody")


async def test_ours_wait_for_the_lock_of_whoever_changes_what_is_dealt(bench: Bench) -> None:
    async with bench.zookeeper() as theirs, bench.zookeeper() as zk:
        await zk.ensure_path(f"{bench.kiel.partitions}/lock")
        held = await theirs.create(f"{bench.kiel.partitions}/lock/0123__lock__", ephemeral=True, sequence=True)
        adding = asyncio.ensure_future(add_partitions(zk, bench.kiel, frozenset({TopicPartition("t", 0)})))
        await wait_until_async(lambda: _waiting(zk, bench.kiel), 30, "the lock to be waited for")
        assert not adding.done()
        await theirs.delete(held)
        await adding
        assert (await zk.get(bench.kiel.partitions))[0] == b'["t:0"]'
        assert await zk.get_children(f"{bench.kiel.partitions}/lock") == []


async def _waiting(zk: ZooKeeperClient, paths: KielPaths) -> bool:
    return len(await zk.get_children(f"{paths.partitions}/lock")) == 2


def test_a_seal_is_read_back_and_is_no_json() -> None:
    sealed = Seal(HandoverPhase.SEALED, "/allocator", frozenset({TopicPartition("a:b", 3), TopicPartition("t", 10)}))
    assert read_shared("/p", sealed.encode()) == (sealed.partitions, sealed)
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(sealed.encode())
    assert read_shared("/p", b"") == (frozenset(), None)


@pytest.mark.parametrize(
    "data", [b"{}", b"[1]", b'["t"]', b'["t:x"]', b"\xff", Seal(HandoverPhase.OPEN, "/a", frozenset()).encode()[:-1]]
)
def test_rubbish_is_named(data: bytes) -> None:
    with pytest.raises(InvalidZnode, match="/kiel/p is not readable"):
        read_shared("/kiel/p", data)


async def test_the_command_shows_first_and_tells_what_stands_in_the_way(bench: Bench) -> None:
    def command(*options: str) -> tuple[int, str]:
        arguments = ["group", "adopt", bench.group, "--zookeeper", bench.hosts, *options]
        result = CliRunner().invoke(main, arguments)
        return result.exit_code, result.output

    async def run(*options: str) -> tuple[int, str]:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: command(*options))

    async with bench.zookeeper() as zk, bench.members("a") as (a,):
        await bench.settled(a)
        await zk.create(bench.kiel.member("host:1"), ephemeral=True)
        code, output = await run()
        assert code == 0
        assert "1 members with this library, 1 with kiel, 24 partitions" in output
        assert "the move is not possible now: it still has members that run kiel: host:1" in output
        code, output = await run("--execute", "--json")
        assert (code, json.loads(output)["error"]["type"]) == (1, "AdoptionRefused")
        await zk.delete(bench.kiel.member("host:1"))
        code, output = await run("--execute", "--json")
        assert code == 0
        assert json.loads(output[output.index("{") :]) == {
            "group": bench.group,
            "members": [],
            "foreign": [],
            "phase": "open",
            "partitions": 24,
            "obstacle": None,
        }
        await bench.settled(a)
