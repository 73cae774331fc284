"""Responses of ZooKeeper that are lost with the connection leave no ghosts: znodes of members and locks in no use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from allocator.errors import BrokersUnavailable
from allocator.operate.adoption import adopt
from allocator.protocols.zookeeper.client.client import SessionState, ZooKeeperClient
from allocator.testing import wait_until_async
from tests.groups.layout_bench import LAYOUTS, Bench
from tests.groups.lost_responses import LossyZooKeeper, lossy
from tests.groups.members import everything

TIMEOUT_S = 10.0  # of sessions, which go on over an outage


async def registered(bench: Bench, zk: ZooKeeperClient, count: int) -> None:
    async def done() -> bool:
        return len(await zk.get_children(bench.members_path)) == count

    await wait_until_async(done, 30, f"{count} registrations")


@pytest.fixture
def bench(zk_chroot: str, group: str, request: pytest.FixtureRequest) -> Bench:
    return Bench(getattr(request, "param", "kiel"), zk_chroot, group, TIMEOUT_S, t=6)


@contextlib.asynccontextmanager
async def client(bench: Bench) -> AsyncIterator[LossyZooKeeper]:
    async with lossy(bench.hosts, session_timeout_s=TIMEOUT_S) as zk:
        yield zk


in_each_layout = pytest.mark.parametrize("bench", list(LAYOUTS), indirect=True)
with_each_server = pytest.mark.parametrize("behind", [False, True], ids=["same-server", "server-behind"])


@in_each_layout
@with_each_server
async def test_a_registration_whose_response_is_lost_leaves_no_ghost(bench: Bench, behind: bool) -> None:
    async with client(bench) as zk:
        lost = zk.lose("create", bench.members_path, behind=behind)
        async with bench.members("a", zk=zk) as (a,), bench.members("b") as (b,):
            assert lost.is_set()
            await bench.settled(a, b)
            await registered(bench, zk, 2)


@in_each_layout
async def test_a_registration_that_could_not_be_deleted_leaves_no_ghost(bench: Bench) -> None:
    """A member whose user does not poll leaves during an outage, and joins again in the same session."""
    async with client(bench) as zk, bench.members("a", zk=zk, max_poll_interval_s=3.0) as (a,):
        polls = asyncio.Event()
        polls.set()

        async def poll() -> None:
            while True:
                await polls.wait()
                a.membership.polled()
                await asyncio.sleep(0.1)

        polling = asyncio.ensure_future(poll())
        await bench.settled(a)
        losses = [zk.lose("delete", bench.members_path, executed=False) for _ in range(2)]
        polls.clear()
        await wait_until_async(lambda: any(loss.is_set() for loss in losses), 30, "a to leave")
        polls.set()
        async with bench.members("b") as (b,):
            await bench.settled(a, b)
            await registered(bench, zk, 2)
        polling.cancel()


@pytest.mark.parametrize("bench", ["kiel", "consumers", "pykafka"], indirect=True)
@with_each_server
async def test_a_claim_whose_response_is_lost_is_found_again(bench: Bench, behind: bool) -> None:
    async with client(bench) as zk:
        lost = zk.lose("create", "/owners/", behind=behind)
        async with bench.members("a", zk=zk) as (a,):
            await bench.settled(a)
            assert lost.is_set()
            async with bench.members("b") as (b,):
                await bench.settled(a, b)


@pytest.mark.parametrize(
    ("kind", "executed", "behind"),
    [("create", True, False), ("create", True, True), ("delete", True, False), ("delete", False, False)],
)
async def test_kiels_lock_does_not_wait_for_its_own_ghost(
    bench: Bench, kind: str, executed: bool, behind: bool
) -> None:
    async with client(bench) as zk:
        lost = zk.lose(kind, f"{bench.kiel.partitions}/lock/", executed=executed, behind=behind)
        async with bench.members("a", zk=zk) as (a,):
            await bench.settled(a)
            await asyncio.wait_for(lost.wait(), 30)
            bench.topics.change(t=8)
            await bench.settled(a)

            async def free() -> bool:
                return not await zk.get_children(f"{bench.kiel.partitions}/lock")

            await wait_until_async(free, 30, "the lock to be free for members of kiel")


def cut_off(zk: LossyZooKeeper, happened: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """Returns a function that cuts off the client for a second, unless `happened` is set."""

    async def cut() -> None:
        if not happened.is_set():
            happened.set()
            zk.proxy.drop()
            zk.proxy.reset()
            await wait_until_async(lambda: zk.state is not SessionState.CONNECTED, 30, "the outage")
            asyncio.get_running_loop().call_later(1.0, zk.proxy.heal)

    return cut


@pytest.mark.parametrize("outage", ["at the release", "during the copy", "of the operator"])
async def test_a_group_moves_on_after_an_outage(bench: Bench, outage: str) -> None:
    async with (
        client(bench) as one,
        client(bench) as two,
        client(bench) as operator,
        bench.members("a", zk=one) as (a,),
        bench.members("b", zk=two) as (b,),
    ):
        await bench.settled(a, b)
        if outage == "during the copy":
            happened = asyncio.Event()
            a.while_copying, b.while_copying = cut_off(one, happened), cut_off(two, happened)
        elif outage == "of the operator":
            happened = asyncio.Event()
            a.while_copying = b.while_copying = cut_off(operator, happened)
        else:
            happened = one.lose("delete", bench.members_path, executed=False)
            one.lose("delete", bench.members_path, executed=False)
        await operator.connect()
        await adopt(operator, bench.group, "/allocator", lambda line: None, wait_s=40.0)
        await operator.close()
        await bench.settled(a, b)
        assert happened.is_set()


async def test_a_member_whose_response_to_the_start_of_the_copy_is_lost_continues_the_copy(bench: Bench) -> None:
    async with client(bench) as zk, bench.members("a", zk=zk) as (a,):
        await bench.settled(a)
        lost = zk.lose("create", bench.kiel.opening)
        await adopt(zk.observer, bench.group, "/allocator", lambda line: None, wait_s=40.0)
        await bench.settled(a)
        assert lost.is_set()
        async with bench.members("b") as (b,):
            await bench.settled(a, b)


async def test_another_member_copies_the_offsets_if_the_first_one_does_not_reach_kafka(bench: Bench) -> None:
    async with client(bench) as zk, bench.members("a") as (a,), bench.members("b") as (b,):
        await bench.settled(a, b)
        a.while_copying = _refused
        await adopt(zk.observer, bench.group, "/allocator", lambda line: None, wait_s=40.0)
        await bench.settled(a, b)


async def test_a_member_whose_session_has_expired_copies_nothing(bench: Bench) -> None:
    """The other member has opened the group meanwhile, which may have committed since."""
    async with client(bench) as zk, bench.members("a", zk=zk) as (a,), bench.members("b") as (b,):
        await bench.settled(a, b)
        copying = asyncio.Event()

        async def cut() -> None:
            a.while_copying = None
            zk.proxy.drop()
            zk.proxy.reset()
            copying.set()
            await wait_until_async(lambda: len(b.owner.owned) == 6, 60, "b to own everything in the new layout")

        async def after_a() -> None:
            if not copying.is_set():
                await _refused()

        a.while_copying, b.while_copying = cut, after_a
        moving = asyncio.create_task(adopt(zk.observer, bench.group, "/allocator", lambda line: None, wait_s=60.0))
        await copying.wait()
        await wait_until_async(lambda: bool(a.carried), 60, "a to try to copy")
        zk.proxy.heal()
        await moving
        await bench.settled(a, b)
        assert (a.carried, b.carried) == ([frozenset()], [everything(bench.topics)])


async def _refused() -> None:
    raise BrokersUnavailable("this member does not reach Kafka")
