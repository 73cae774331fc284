"""What the functions and the holds of one member of an `Allocation` may do to the others: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import Allocation, ChildrenOf, GroupCommands
from allocator.assignors import GroupView
from allocator.cli.commands import main
from allocator.errors import Closed, CommandRefused, IllegalState, ResourceLost
from allocator.protocols.zookeeper import decision
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.resources import Hold
from allocator.resources.allocation import ROOT
from allocator.testing import FaultProxy, LocalCluster, wait_until_async
from allocator.types import TopicPartition
from tests.constants import SetConstant

NAMES = [f"n{number:02}" for number in range(12)]


async def cancel_itself(*_: Any) -> None:
    """Awaits a task that it has cancelled, so it ends with CancelledError although nobody has cancelled it."""
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


def by_load(view: GroupView) -> dict[str, list[TopicPartition]]:
    names, members = sorted(view.partitions), len(view.members)
    return {
        member.id: [TopicPartition(name, 0) for name in names[place::members]]
        for place, member in enumerate(view.members)
    }


by_load.wants = ("load",)  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def started(*allocations: Allocation) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for each in allocations:
            await stack.enter_async_context(each)
        yield


def sizes(*allocations: Allocation) -> list[int]:
    return sorted(len(each.held) for each in allocations)


async def until_shared(*allocations: Allocation, total: int = len(NAMES)) -> None:
    share = [total // len(allocations)] * len(allocations)
    await wait_until_async(lambda: sizes(*allocations) == share, 30, lambda: f"{share}, not {sizes(*allocations)}")


@pytest.mark.parametrize("callback", ["on_assigned", "on_revoked", "on_lost"])
async def test_a_callback_that_cancels_itself_counts_as_returned(zk_chroot: str, group: str, callback: str) -> None:
    first = Allocation(NAMES, group=group, zookeeper=zk_chroot, **{callback: cancel_itself})
    second = Allocation(NAMES, group=group, zookeeper=zk_chroot)
    async with started(first):
        await until_shared(first)
        await asyncio.wait_for(_entered(first, NAMES[0]), 30)
        if callback == "on_lost":
            zk = ZooKeeperClient(zk_chroot)
            await zk.connect()
            member = first.member_id
            await zk.delete(f"{ROOT}/{group}/members/{member}")
            await wait_until_async(lambda: first.member_id != member, 30, "the member to join again")
            await zk.close()
            await until_shared(first)
        async with started(second):
            await until_shared(first, second)
        await until_shared(first)


async def test_a_hold_begins_only_while_its_member_may_act(zk_chroot: str, group: str) -> None:
    """Or a loop of holds, each of which ends at once, would never let the member renew its lease."""
    host, _, chroot = zk_chroot.partition("/")
    async with FaultProxy(int(host.rpartition(":")[2])) as proxy:
        allocation = Allocation(NAMES, group=group, zookeeper=f"{proxy.address}/{chroot}", session_timeout_s=6)
        async with started(allocation):
            await until_shared(allocation)
            proxy.stop()
            await wait_until_async(lambda: not allocation.may_act(NAMES[0]), 30, "the end of the lease")
            hold = allocation.hold(NAMES[0])
            entering = asyncio.ensure_future(hold.__aenter__())
            await asyncio.wait({entering}, timeout=0.2)
            assert not entering.done()
            assert not hold.may_act()
            proxy.start()
            await asyncio.wait_for(entering, 30)
            assert hold.may_act()
            await hold.__aexit__(None)


@pytest.mark.parametrize("in_task", [False, True], ids=["in the callback", "in a task that it starts"])
async def test_a_hold_in_a_callback_fails_at_once_or_begins(
    zk_chroot: str, group: str, in_task: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The hold waits until the callback has returned, so the callback must not wait for it."""
    entered: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def hold(names: Collection[str]) -> None:
        for name in names:
            await _entered(first, name)
            entered.append(name)

    async def assigned(names: Collection[str]) -> None:
        if in_task:
            tasks.append(asyncio.create_task(hold(names)))
            await asyncio.sleep(0)  # the task waits before this callback returns
        else:
            await hold(names)

    first = Allocation(NAMES, group=group, zookeeper=zk_chroot, on_assigned=assigned)
    second = Allocation(NAMES, group=group, zookeeper=zk_chroot)
    async with started(first, second):
        await until_shared(first, second)
        for task in tasks:
            await asyncio.wait_for(task, 30)
    assert bool(entered) is in_task
    assert ("start a task" in caplog.text) is not in_task


async def _entered(allocation: Allocation, name: str) -> None:
    async with allocation.hold(name):
        pass


@pytest.mark.parametrize(
    "load",
    [
        lambda names: None,
        lambda names: [(name, 1.0) for name in names],
        lambda names: dict.fromkeys(names, "7"),
        lambda names: dict.fromkeys(names, float("nan")),
        lambda names: 1 / 0,
        cancel_itself,
    ],
    ids=["nothing", "pairs", "texts", "nan", "raises", "cancels itself"],
)
async def test_a_wrong_load_leaves_the_loads_unknown(zk_chroot: str, group: str, load: Callable[[Any], Any]) -> None:
    is_wrong = False

    def loads(names: Collection[str]) -> Any:
        return load(names) if is_wrong else dict.fromkeys(names, 1.0)

    first, second, third = (
        Allocation(NAMES, group=group, zookeeper=zk_chroot, assignor=by_load, load=loads) for _ in range(3)
    )
    async with started(first, second):
        async with started(third):
            await until_shared(first, second, third)
            is_wrong = True
        await until_shared(first, second)


@pytest.mark.parametrize("wrong", ["cancels itself", "hangs"])
async def test_a_resource_function_without_an_answer_stops_no_move(zk_chroot: str, group: str, wrong: str) -> None:
    is_wrong, called, answers = False, asyncio.Event(), asyncio.Event()
    names = list(NAMES)

    async def resources() -> list[str]:
        if is_wrong:
            called.set()
            await (answers.wait() if wrong == "hangs" else cancel_itself())
        return names

    first, second, third = (Allocation(resources, group=group, zookeeper=zk_chroot, refresh_s=3600) for _ in range(3))
    async with started(first, second):
        async with started(third):
            await until_shared(first, second, third)
            is_wrong = True
        await asyncio.wait_for(called.wait(), 30)
        await until_shared(first, second)
        if wrong == "hangs":
            # the late answer counts, although the next call is due in an hour
            names += ["x1", "x2"]
            answers.set()
            await until_shared(first, second, total=14)


async def test_a_function_that_hangs_in_a_thread_is_named(
    zk_chroot: str, group: str, set_constant: SetConstant
) -> None:
    """The group keeps its assignment, as it does if a function raises."""
    set_constant(decision, SMALL_PARTITIONS=1, LIMIT_S=1.0)
    answers, hangs = threading.Event(), False

    def function(view: GroupView) -> dict[str, list[TopicPartition]]:
        if hangs:
            answers.wait()
        return by_load(view)

    first, second, third = (Allocation(NAMES, group=group, zookeeper=zk_chroot, assignor=function) for _ in range(3))
    async with started(first):
        await until_shared(first)
        hangs = True
        async with started(second):
            await until_problem(zk_chroot, group, "allocator function .* has not returned within 1 s; correct it")
            async with started(third):
                await until_problem(zk_chroot, group, "has not returned from an earlier call; correct it")
                assert sizes(first, second, third) == [0, 0, 12]
                answers.set()
            # the next change calls it again
            await until_shared(first, second)


async def until_problem(zookeeper: str, group: str, text: str) -> None:
    where = ["--zookeeper", zookeeper, "--root", ROOT]

    async def is_shown() -> bool:
        result = await asyncio.to_thread(CliRunner().invoke, main, ["group", "describe", group, *where])
        return re.search(text, " ".join(result.output.split())) is not None

    await wait_until_async(is_shown, 30, text)


HANGING = """
import asyncio, sys, threading
from allocator import Allocation
from allocator.protocols.zookeeper import decision

decision.SMALL_PARTITIONS = 1
called = threading.Event()

def function(view):
    called.set()
    threading.Event().wait()

async def main():
    async with Allocation(["a", "b"], group=sys.argv[2], zookeeper=sys.argv[1], assignor=function):
        await asyncio.to_thread(called.wait)

asyncio.run(main())
print("over")
"""


async def test_a_process_ends_while_its_function_hangs(zk_chroot: str, group: str) -> None:
    command = [sys.executable, "-c", HANGING, zk_chroot, group]
    result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (0, "over\n", "")


@pytest.mark.servers
async def test_a_write_that_the_servers_refuse_for_its_size_is_named(caplog: pytest.LogCaptureFixture) -> None:
    names = [random.Random(number).randbytes(16).hex() for number in range(10_000)]  # does not compress
    with LocalCluster(None, zookeepers=1, tick_ms=500, jvm_options=["-Djute.maxbuffer=100000"]) as cluster:
        assert cluster.zookeeper is not None
        async with started(Allocation(names, group="g", zookeeper=cluster.zookeeper, session_timeout_s=4)):
            text = r"g: the connection to ZooKeeper was lost twice at a write of \d{6} bytes.* jute.maxbuffer"
            await wait_until_async(lambda: re.search(text, caplog.text), 60, "the hint")


async def test_a_held_resource_delays_no_other_one(zk_chroot: str, group: str) -> None:
    stopped: list[str] = []
    first = Allocation(NAMES, group=group, zookeeper=zk_chroot, on_revoked=lambda names: stopped.extend(names))
    second = Allocation(NAMES, group=group, zookeeper=zk_chroot)
    ends, holds = {name: asyncio.Event() for name in NAMES}, {name: first.hold(name) for name in NAMES}

    async def work(name: str) -> None:
        async with holds[name]:
            await ends[name].wait()

    async with started(first):
        await until_shared(first)
        work_of_all = asyncio.gather(*map(work, NAMES))
        async with started(second):
            # the callback may end the work of the holders, so it does not wait for them
            await wait_until_async(lambda: len(stopped) == len(_wanted(holds)) == 6, 30, "six to be wanted")
            moving = _wanted(holds)
            assert sorted(stopped) == moving
            kept = moving[0]
            assert first.may_act(kept)
            for name in moving[1:]:
                ends[name].set()
            await wait_until_async(lambda: second.held == set(moving[1:]), 30, lambda: str(second.held))
            assert kept in first.held
            assert not holds[kept].lost
            ends[kept].set()
            await until_shared(first, second)
            assert sorted(stopped) == moving
        for end in ends.values():
            end.set()
        await work_of_all


def _wanted(holds: dict[str, Hold]) -> list[str]:
    return sorted(name for name, hold in holds.items() if hold.wanted)


async def test_a_hold_is_entered_once_at_a_time(zk_chroot: str, group: str) -> None:
    async with Allocation(["eu"], group=group, zookeeper=zk_chroot) as allocation:
        hold = allocation.hold("eu")
        async with hold:
            with pytest.raises(IllegalState, match="for each task"):
                await hold.__aenter__()
            closing = asyncio.ensure_future(allocation.close())
            await asyncio.wait_for(hold.until_wanted(), 30)
            assert "eu" in allocation.held
            assert not closing.done()
        await asyncio.wait_for(closing, 30)


async def test_a_cancelled_close_gives_a_held_resource_up_and_the_hold_says_so(zk_chroot: str, group: str) -> None:
    allocation = Allocation(["eu"], group=group, zookeeper=zk_chroot, session_timeout_s=6)
    await allocation.start()
    hold = allocation.hold("eu")
    await hold.__aenter__()
    closing = asyncio.ensure_future(allocation.close())
    await asyncio.wait_for(hold.until_wanted(), 30)
    assert hold.may_act()
    closing.cancel()
    await asyncio.wait({closing})
    assert not hold.may_act()
    with pytest.raises(ResourceLost, match="close"):
        await hold.__aexit__(None, None, None)
    await allocation.close()


async def test_an_allocation_starts_once(zk_chroot: str, group: str) -> None:
    allocation = Allocation(["eu"], group=group, zookeeper=zk_chroot, session_timeout_s=6)
    await allocation.start()
    with pytest.raises(RuntimeError, match="create another"):
        await allocation.start()
    await allocation.close()
    with pytest.raises(Closed, match="closed; create another"):
        await allocation.start()


async def test_a_hold_that_two_tasks_wait_for_is_entered_by_one(zk_chroot: str, group: str) -> None:
    async with Allocation(["eu"], group=group, zookeeper=zk_chroot) as allocation:
        hold, leave = allocation.hold("eu"), asyncio.Event()

        async def use() -> None:
            async with hold:
                await leave.wait()

        tasks = {asyncio.ensure_future(use()) for _ in range(2)}  # before anything is assigned
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        leave.set()
        await asyncio.wait_for(asyncio.wait(waiting), 30)
        assert [type(task.exception()) for task in (*done, *waiting)] == [IllegalState, type(None)]


async def test_children_of_a_znode_are_watched(zk_chroot: str, group: str) -> None:
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    names: set[str] = set()
    async with Allocation(ChildrenOf("/queues"), group=group, zookeeper=zk_chroot, refresh_s=3600) as allocation:
        await zk.ensure_path("/queues")
        for change, name in ((zk.create, "a"), (zk.create, "b"), (zk.delete, "a"), (zk.create, "c")):
            await change(f"/queues/{name}")  # type: ignore[operator]
            names.symmetric_difference_update({name})
            await wait_until_async(lambda: allocation.held == names, 30, lambda: f"{names}, not {allocation.held}")
    await zk.close()


async def test_commands_about_records_are_refused(zk_chroot: str, group: str) -> None:
    async with Allocation(["eu", "us"], group=group, zookeeper=zk_chroot) as allocation:
        await until_shared(allocation, total=2)
        partitions = [TopicPartition("eu", 0)]
        async with GroupCommands(zk_chroot, group, root=ROOT) as commands:
            for give in (
                lambda: commands.pause(partitions),
                lambda: commands.quarantine(partitions),
                lambda: commands.seek(partitions, "earliest"),
                lambda: commands.skip(partitions[0], 7),
            ):
                with pytest.raises(CommandRefused, match="no member of the group"):
                    await give()
            assert await commands.list() == []
            assert (await commands.pin(partitions, allocation.client_id)).state == "given"
