"""The client of ZooKeeper on the event loop: requests, watches, sessions, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from allocator.core.aio.clock import boot_clock
from allocator.errors import ConfigError, ZooKeeperUnavailable
from allocator.protocols.zookeeper.client.client import (
    BadVersion,
    ConnectionLost,
    NoChroot,
    NoZnode,
    Op,
    SessionState,
    ZnodeExists,
    ZooKeeperClient,
)
from allocator.testing import FaultProxy, LocalCluster, wait_until_async
from tests.groups.zookeeper_sessions import session
from tests.zookeeper.zookeeper_proxy import proxied


@contextlib.contextmanager
def states_of(zk: ZooKeeperClient) -> Iterator[list[SessionState]]:
    states: list[SessionState] = []
    remove = zk.on_state(states.append)
    yield states
    remove()


async def until(states: list[SessionState], last: SessionState) -> None:
    await wait_until_async(lambda: states[-1:] == [last], 30, lambda: str(states))


async def test_a_missing_chroot_is_created_only_on_request(zk_chroot: str) -> None:
    hosts, deeper = f"{zk_chroot}/typo", "/typo/deeper"
    zk = ZooKeeperClient(hosts)
    with pytest.raises(NoChroot, match=r"has no znode .*/typo\. Check the chroot"):
        await zk.connect(make_chroot=False)
    async with session(zk_chroot) as above:
        assert await above.exists("/typo") is None
        async with session(hosts + "/deeper"):
            assert await above.exists(deeper) is not None
    await zk.connect(make_chroot=False)
    await zk.close()


async def test_a_watch_fires_before_a_read_shows_the_change(zk_chroot: str) -> None:
    async with session(zk_chroot) as zk, session(zk_chroot) as writer:
        await zk.create("/x")
        for number in range(100):
            fired = asyncio.Event()
            await zk.get("/x", fired.set)
            writing = asyncio.ensure_future(writer.set("/x", b"%d" % number))
            while (await zk.get("/x"))[0] != b"%d" % number:
                pass
            assert fired.is_set()
            await writing


async def test_a_session_takes_one_thread(zk_chroot: str) -> None:
    before = set(threading.enumerate())
    async with session(zk_chroot) as zk:
        await zk.create("/x")
        new = [each.name for each in set(threading.enumerate()) - before if "asyncio" not in each.name]
        assert len(new) == 1


async def test_the_end_of_a_session_does_not_wait_for_jobs_in_the_executor_of_the_loop(zk_chroot: str) -> None:
    loop, release = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    zk = ZooKeeperClient(zk_chroot)
    await zk.connect()
    job = loop.run_in_executor(None, release.wait)
    try:
        await asyncio.wait_for(zk.close(), 60)
    finally:
        release.set()
        await job


async def test_a_second_close_waits_for_the_end_of_the_session_too(zk_chroot: str) -> None:
    address, slash, chroot = zk_chroot.partition("/")
    async with FaultProxy(int(address.rpartition(":")[2])) as proxy, session(zk_chroot) as observer:
        zk = ZooKeeperClient(f"{proxy.address}{slash}{chroot}")
        await zk.connect()
        await zk.create("/ours", ephemeral=True)
        proxy.latency(0.3)
        first = asyncio.ensure_future(zk.close())
        await asyncio.sleep(0)
        first.cancel()
        await zk.close()
        assert await observer.exists("/ours") is None


async def test_errors_name_the_znode(zk_chroot: str) -> None:
    async with session(zk_chroot) as zk:
        await zk.create("/x")
        with pytest.raises(NoZnode, match="get /missing: no such znode"):
            await zk.get("/missing")
        with pytest.raises(ZnodeExists, match="/x"):
            await zk.create("/x")
        with pytest.raises(BadVersion, match="another client wrote it first"):
            await zk.set("/x", b"", 7)


async def test_a_transaction_is_all_or_nothing_and_names_the_step_that_failed(zk_chroot: str) -> None:
    async with session(zk_chroot) as zk:
        await zk.create("/x")
        await zk.create("/y")
        await zk.multi([Op("check", "/x", version=0), Op("set", "/y", b"1")])
        with pytest.raises(BadVersion, match="/x"):
            await zk.multi([Op("set", "/y", b"2"), Op("check", "/x", version=3)])
        with pytest.raises(NoZnode, match="/gone"):
            await zk.multi([Op("set", "/y", b"2"), Op("delete", "/gone")])
        assert (await zk.get("/y"))[0] == b"1"


async def test_a_watch_fires_once_and_on_the_loop(zk_chroot: str) -> None:
    async with session(zk_chroot) as zk, session(zk_chroot) as other:
        await zk.create("/x")
        fired: list[threading.Thread] = []
        here = threading.current_thread()
        await zk.get("/x", lambda: fired.append(threading.current_thread()))
        await zk.exists("/later", lambda: fired.append(threading.current_thread()))
        await other.set("/x", b"1")
        await other.create("/later")
        await wait_until_async(lambda: len(fired) == 2, 30, "both watches")
        assert fired == [here, here]
        await other.set("/x", b"2")
        await other.get("/x")
        assert len(fired) == 2


async def test_a_lost_connection_fires_watches_and_is_opened_again(zk_chroot: str) -> None:
    before = boot_clock()
    async with proxied(zk_chroot) as proxy, session(proxy.hosts, session_timeout_s=6.0) as zk:
        first, fired = zk.connected_at, asyncio.Event()
        assert before < first < boot_clock()
        await zk.create("/x")
        assert zk.connected_at == first
        with states_of(zk) as states:
            await zk.get("/x", fired.set)
            between = boot_clock()
            proxy.cut()
            await asyncio.wait_for(fired.wait(), 30)
            await until(states, SessionState.CONNECTED)
        assert states[0] is SessionState.SUSPENDED
        assert between < zk.connected_at < boot_clock()
        assert (await zk.get("/x"))[0] == b""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_whose_thread_dies_opens_another_session(zk_chroot: str) -> None:
    """A reply that kazoo cannot match ends its thread; without a remedy the client would stay disconnected."""
    async with proxied(zk_chroot) as proxy, session(proxy.hosts) as zk:
        await zk.create("/x", ephemeral=True)
        first = zk.session_id
        with states_of(zk) as states:
            proxy.reply = lambda data: data[:4] + b"\x7f\xff\xff\xff" + data[8:]  # the number of the request
            with pytest.raises(ConnectionLost):
                await zk.get("/x")
            proxy.reply = bytes
            await until(states, SessionState.CONNECTED)
        assert SessionState.LOST in states
        assert zk.session_id != first
        await zk.create("/y")


async def test_a_client_that_is_aborted_without_a_session_opens_another(zk_chroot: str) -> None:
    """kazoo reports only the lost session and not the end of its thread, so there is no further change of state."""
    async with proxied(zk_chroot) as proxy, session(proxy.hosts, session_timeout_s=1.0) as zk:
        await zk.create("/mine", ephemeral=True)

        def expired(reply: bytes) -> bytes:
            if len(reply) >= 12 and reply[8:12] == bytes(4):  # the timeout of a session that has ended
                proxy.instead = proxy.refuse
            return reply

        with states_of(zk) as states:
            proxy.instead = proxy.refuse
            proxy.cut()
            async with session(zk_chroot) as observer:

                async def ended() -> bool:
                    return await observer.exists("/mine") is None

                await wait_until_async(ended, 30, "the end of the session")
            proxy.reply, proxy.instead = expired, None
            await until(states, SessionState.LOST)
            await asyncio.to_thread(zk.abort, "a test")
            proxy.reply, proxy.instead = bytes, None
            await until(states, SessionState.CONNECTED)
        await zk.create("/y")


async def test_an_aborted_client_is_replaced_by_one_other(zk_chroot: str) -> None:
    """A second one would keep its session and its threads after the close."""
    before = set(threading.enumerate())
    async with session(zk_chroot) as zk:
        with states_of(zk) as states:
            for number in (1, 2):
                await asyncio.to_thread(zk.abort, "a test")
                await wait_until_async(
                    lambda number=number: states.count(SessionState.CONNECTED) >= number, 30, lambda: str(states)
                )
                await zk.create(f"/{number}")

    def left() -> list[threading.Thread]:
        return [each for each in set(threading.enumerate()) - before if "asyncio" not in each.name]

    await wait_until_async(lambda: not left(), 30, lambda: f"the end of {left()}")


async def test_the_granted_timeout_is_known(zookeeper: LocalCluster) -> None:
    """The ensemble grants at least two ticks and at most its configured limit."""
    async with session(zookeeper.zookeeper, session_timeout_s=0.3) as zk:
        assert zk.session_timeout_s == pytest.approx(1.0)
    async with session(zookeeper.zookeeper, session_timeout_s=7.0) as zk:
        assert zk.session_timeout_s == pytest.approx(7.0)


async def test_a_server_that_accepts_and_does_not_respond_does_not_cost_the_session(zookeeper: LocalCluster) -> None:
    """A starting or hanging server does so. The client tries the others before the session ends."""
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with proxied(zookeeper.zookeeper) as proxy:
        async with session(f"127.0.0.1:{port},{proxy.hosts}", session_timeout_s=9.0) as zk:
            for _ in range(3):
                session_id = zk.session_id
                with states_of(zk) as states:
                    proxy.cut()
                    await until(states, SessionState.CONNECTED)
                assert zk.session_id == session_id
                assert SessionState.LOST not in states
        silent.close()


@pytest.mark.parametrize(
    ("hosts", "options", "message"),
    [
        ("h:1", {"options": {"auth_dat": []}}, r"unknown ZooKeeper option 'auth_dat'; did you mean 'auth_data'\?"),
        ("", {}, "host:port"),
        ("h:1", {"session_timeout_s": 0}, "session_timeout_s"),
        *((f"h:1{chroot}", {}, "must be an absolute path") for chroot in ("/a//b", "/../a", "/a/.", "/a/../b")),
    ],
)
def test_wrong_settings_are_refused_before_any_connection(hosts: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ZooKeeperClient(hosts, **options)


async def test_a_client_without_a_connection_raises_the_reason() -> None:
    with pytest.raises(ConnectionLost, match=r"connect\(\) first"):
        await ZooKeeperClient("h:1").get("/x")
    zk = ZooKeeperClient("127.0.0.1:1/chroot")
    with pytest.raises(ZooKeeperUnavailable, match=r"127\.0\.0\.1:1/chroot: no node responded within 0\.5 s"):
        await zk.connect(0.5)
    await zk.close()
