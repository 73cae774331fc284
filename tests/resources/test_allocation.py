"""Named resources on a real ZooKeeper, and their pure parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator import Allocation, ChildrenOf, GroupCommands
from allocator.assignors import GroupView, Member, compute
from allocator.errors import Closed, ConfigError, ResourceLost
from allocator.operate.group_reader import describe
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.resources.allocation import ROOT, assignor_of
from allocator.testing import wait_until_async
from allocator.types import TopicPartition

names = st.frozensets(st.text(min_size=1, max_size=6), max_size=30)


@given(names, st.integers(1, 5), st.sampled_from(["naive", "range", "roundrobin", "sticky"]))
def test_every_built_in_function_assigns_names_evenly(found: frozenset[str], members: int, function: str) -> None:
    view = GroupView(
        tuple(Member(f"m{number}", f"n{number}", found) for number in range(members)), dict.fromkeys(found, 1)
    )
    assignment = compute(assignor_of(function), view)
    owned = [partition.topic for parts in assignment.values() for partition in parts]
    assert sorted(owned) == sorted(found)
    sizes = [len(assignment.get(member.id, ())) for member in view.members]
    assert max(sizes) - min(sizes) <= 1


def all_to_the_first(view: GroupView) -> dict[str, list[TopicPartition]]:
    return {view.members[0].id: [TopicPartition(name, 0) for name in view.partitions]}


@pytest.mark.parametrize(
    ("resources", "more", "message"),
    [
        (["eu", ""], {}, "''"),
        ([1], {}, "resource 1"),
        ([f"{number:01000}" for number in range(30_000)], {}, "30000000"),
        (["eu"], {"restart_grace_s": 5}, "instance_id"),
        (["eu"], {"session_timeout_s": 10_000}, "10 seconds"),
        (["eu"], {"group": "a/b"}, "a/b"),
    ],
)
def test_wrong_arguments_are_refused_before_any_connection(resources: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Allocation(resources, **{"group": "g", "zookeeper": "nowhere:1", **more})


class Recorder:
    """An allocation that records its events, and reports when another one owns the same resource."""

    owners: dict[str, str]

    def __init__(self, owners: dict[str, str], name: str, resources: Any, hosts: str, group: str, **more: Any) -> None:
        self.owners, self.name = owners, name
        self.overlaps: list[str] = []
        self.events: list[str] = []
        """Each change of what it owns."""
        self.allocation = Allocation(
            resources,
            group=group,
            zookeeper=hosts,
            on_assigned=self.assigned,
            on_revoked=self.revoked,
            session_timeout_s=6,
            client_id=name,
            **more,
        )

    async def assigned(self, found: frozenset[str]) -> None:
        self.events += [f"+{name}" for name in sorted(found)]
        for name in found:
            if name in self.owners:
                self.overlaps.append(f"{name}: {self.owners[name]} and {self.name}")
            self.owners[name] = self.name

    def revoked(self, found: frozenset[str]) -> None:
        """Also when the session is lost."""
        self.events += [f"-{name}" for name in sorted(found)]
        for name in found:
            assert self.owners.pop(name, self.name) == self.name


async def test_names_come_and_go_and_each_has_one_owner(zk_chroot: str, group: str) -> None:
    """A znode's children as names; a member that joins, holds, dies by its session, and leaves."""
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    await zk.ensure_path("/queues")
    for number in range(20):
        await zk.create(f"/queues/q{number}")
    owners: dict[str, str] = {}
    children = ChildrenOf("/queues")
    a, b = (Recorder(owners, name, children, zk_chroot, group) for name in "ab")
    await a.allocation.start()
    await wait_until_async(lambda: len(a.allocation.held) == 20, 30, "all of them")
    hold = a.allocation.hold("q7")
    async with hold:
        assert hold.may_act()
        assert not hold.wanted
        await zk.delete("/queues/q7")
        await asyncio.wait_for(hold.until_wanted(), 30)
        assert hold.may_act()  # a resource is not taken from a task that holds it
        assert "q7" in a.allocation.held
    await wait_until_async(lambda: "q7" not in a.allocation.held, 30, "the deleted one to go")
    await zk.create("/queues/q20")
    await b.allocation.start()
    await wait_until_async(
        lambda: sorted(map(len, (a.allocation.held, b.allocation.held))) == [10, 10], 30, "even counts"
    )
    # the listeners are called after that
    await wait_until_async(lambda: owners.keys() == a.allocation.held | b.allocation.held, 30, lambda: f"not {owners}")
    name = min(b.allocation.held)
    waits = asyncio.ensure_future(_held(a.allocation, name))
    held = b.allocation.hold(name)
    await held.__aenter__()
    leaving = asyncio.ensure_future(b.allocation.close())
    await asyncio.wait_for(held.until_wanted(), 30)
    assert not waits.done()
    await held.__aexit__(None, None, None)
    await asyncio.wait_for(leaving, 30)
    assert await asyncio.wait_for(waits, 30) == name
    assert a.overlaps == b.overlaps == []
    # the session ends while a resource is held
    lost = a.allocation.hold(name)
    await lost.__aenter__()
    await zk.delete(f"{ROOT}/{group}/members/{a.allocation.member_id}")
    await wait_until_async(lambda: lost.lost, 30, "the loss to be noticed")
    assert not lost.may_act()
    with pytest.raises(ResourceLost, match=name):
        await lost.__aexit__(None, None, None)
    await wait_until_async(lambda: len(a.allocation.held) == 20, 30, "it to own them again")
    waits = asyncio.ensure_future(_held(a.allocation, "q7"))
    await a.allocation.close()
    with pytest.raises(Closed):
        await waits
    assert owners == {}
    await zk.close()


async def test_a_child_whose_name_is_too_long_is_no_resource_and_keeps_no_other_name_away(
    zk_chroot: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    await zk.ensure_path("/queues")
    await zk.create("/queues/one")
    async with Allocation(ChildrenOf("/queues"), group=group, zookeeper=zk_chroot) as allocation:
        await wait_until_async(lambda: allocation.held == {"one"}, 30, "the first name")
        await zk.create("/queues/" + 3_000 * "x")
        await zk.create("/queues/two")
        await wait_until_async(lambda: allocation.held == {"one", "two"}, 30, "the new name")
    assert caplog.text.count("are no resources") == 1
    await zk.close()


async def _held(allocation: Allocation, name: str) -> str:
    async with allocation.hold(name) as hold:
        return hold.name


async def test_a_claim_may_be_larger_than_a_znode(zk_chroot: str, group: str) -> None:
    """ZooKeeper refuses more than 1 MiB, and ends the session."""
    random = Random(1)
    names = [f"{random.getrandbits(3_600):0900x}" for _ in range(3_000)]
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()

    async def claims() -> list[str]:
        return await zk.get_children(f"{ROOT}/{group}/claims")

    async with Allocation(names, group=group, zookeeper=zk_chroot) as first:
        await wait_until_async(lambda: len(first.held) == len(names), 60, "all names")
        assert len(await claims()) > 1
        state = await describe(zk, group, ROOT)
        assert state is not None
        assert {name for name, _ in state.claims[first.member_id].held} == set(names)
        async with Allocation(names, group=group, zookeeper=zk_chroot) as second:
            each = len(names) // 2
            await wait_until_async(lambda: len(first.held) == len(second.held) == each, 60, "halves")
            # a claim that fits again leaves nothing behind
            await wait_until_async(lambda: _is(claims, {first.member_id, second.member_id}), 30, "two claims")
        await wait_until_async(lambda: len(first.held) == len(names), 60, "all names")
    await wait_until_async(lambda: _is(claims, set()), 30, "no claims")
    await zk.close()


async def _is(read: Callable[[], Awaitable[list[str]]], wanted: set[str]) -> bool:
    return set(await read()) == wanted


async def test_a_resource_function_is_called_again_and_its_failure_changes_nothing(zk_chroot: str, group: str) -> None:
    found: list[Any] = ["eu", "us"]
    called = asyncio.Event()

    async def names() -> list[str]:
        called.set()
        if found == ["broken"]:
            raise OSError("the database is away")
        return list(found)

    member = Recorder({}, "a", names, zk_chroot, group, refresh_s=0.05, assignor=all_to_the_first)
    async with member.allocation as allocation:
        await wait_until_async(lambda: allocation.held == {"eu", "us"}, 30, "both")
        found[:] = ["broken"]
        for _ in range(3):
            called.clear()
            await asyncio.wait_for(called.wait(), 30)
        assert allocation.held == {"eu", "us"}
        found[:] = ["us", "asia"]
        await wait_until_async(lambda: allocation.held == {"us", "asia"}, 30, "the new list")
        assert allocation.may_act("asia")
        assert not allocation.may_act("eu")


@pytest.mark.parametrize("deleted", ["left", "claims/{}"])
async def test_a_member_that_leaves_for_good_frees_its_resources_though_a_znode_was_deleted(
    zk_chroot: str, group: str, deleted: str
) -> None:
    a, b = (
        Allocation(list("rstuvw"), group=group, zookeeper=zk_chroot, instance_id=name, restart_grace_s=600)
        for name in ("a", "b")
    )
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    async with a, b:
        await wait_until_async(lambda: len(a.held) == len(b.held) == 3, 30, "each half")
        await zk.delete(f"{ROOT}/{group}/{deleted.format(b.member_id)}")
        await b.close(restart=False)
        await wait_until_async(lambda: len(a.held) == 6, 30, lambda: str(a.held))
    await zk.close()


async def test_commands_and_restarts_are_as_in_any_group(zk_chroot: str, group: str) -> None:
    """A resource is the partition 0 of a topic of its name, whatever its characters are."""
    names = [f"queue {number}/\u00e4" for number in range(12)]
    listed = list(names)
    owners: dict[str, str] = {}

    def member(name: str) -> Recorder:
        return Recorder(
            owners, name, lambda: listed, zk_chroot, group, instance_id=name, restart_grace_s=600, refresh_s=0.1
        )

    def counts(*members: Recorder) -> list[int]:
        return [len(each.allocation.held) for each in members]

    a, b, c = members = [member(name) for name in "abc"]
    for each in members:
        await each.allocation.start()
    await wait_until_async(lambda: counts(*members) == [4, 4, 4] and len(owners) == 12, 30, lambda: str(owners))
    async with GroupCommands(zk_chroot, group, root=ROOT) as commands:
        # a cordon: new resources go to the others
        await commands.cordon("c")
        listed += ["new 1", "new 2"]
        await wait_until_async(lambda: counts(*members) == [5, 5, 4] and len(owners) == 14, 30, lambda: str(owners))
        pinned = min(a.allocation.held)
        await commands.pin([TopicPartition(pinned, 0)], "b")
        await wait_until_async(lambda: owners.get(pinned) == "b", 30, lambda: str(owners))
        await commands.evacuate("a")
        await wait_until_async(lambda: counts(*members) == [0, 10, 4] and len(owners) == 14, 30, lambda: str(owners))
        # while b restarts, its resources wait for it, and the other members get no events
        quiet, had = [list(a.events), list(c.events)], b.allocation.held
        await b.allocation.close()
        assert sorted(owners.values()) == ["c"] * 4
        b = member("b")
        await b.allocation.start()
        await wait_until_async(lambda: b.allocation.held == had and len(owners) == 14, 30, lambda: str(owners))
        assert [a.events, c.events] == quiet
        # the group does not wait for a member that leaves for good
        await commands.uncordon("c")
        await b.allocation.close(restart=False)
        await wait_until_async(lambda: counts(a, c) == [0, 14] and len(owners) == 14, 30, lambda: str(owners))
    await a.allocation.close()
    await c.allocation.close()
    assert [each.overlaps for each in (*members, b)] == [[]] * 4
    assert owners == {}


async def test_a_task_that_enters_a_hold_after_a_short_sleep_of_the_machine_waits_only_for_the_next_proofs(
    zk_chroot: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends by the clock that counts the sleep. The event loop's timers do not notice."""
    clock, timeout_s, slept_s = time.clock_gettime, 4.0, 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + slept_s)
    async with Allocation(["eu"], group=group, zookeeper=zk_chroot, session_timeout_s=timeout_s) as allocation:
        await wait_until_async(lambda: allocation.may_act("eu"), 30, "the resource")
        for _ in range(2):
            slept_s += 0.8 * timeout_s
            assert not allocation.may_act("eu")

            async def work() -> bool:
                async with allocation.hold("eu") as hold:
                    return hold.may_act()

            assert await asyncio.wait_for(work(), 10)
