"""kazoo on the loop, and the private parts of kazoo that the code uses."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, KeeperState

from allocator.core.aio.clock import boot_clock
from allocator.core.zookeeper.client import (
    BadVersion,
    ConnectionLost,
    NoChroot,
    NoZnode,
    Op,
    SessionState,
    Watched,
    ZnodeExists,
    ZooKeeperClient,
)
from allocator.errors import ConfigError, ZooKeeperUnavailable
from allocator.testing import LocalCluster, wait_until_async


@contextlib.asynccontextmanager
async def session(hosts: str, **options: object) -> AsyncIterator[ZooKeeperClient]:
    zk = ZooKeeperClient(hosts, **options)
    await zk.connect()
    try:
        yield zk
    finally:
        await zk.close()


async def test_znodes_are_made_read_replaced_and_deleted(zk_chroot: str) -> None:
    async with session(zk_chroot + "/deep/er") as zk:
        await zk.ensure_path("/a/b")
        assert await zk.create("/a/b/c", b"1") == "/a/b/c"
        assert await zk.create("/a/b/s-", sequence=True) == "/a/b/s-0000000001"
        data, stat = await zk.get("/a/b/c")
        assert (data, stat.version, stat.owner) == (b"1", 0, 0)
        assert (await zk.set("/a/b/c", b"2", 0)).version == 1
        assert sorted(await zk.get_children("/a/b")) == ["c", "s-0000000001"]
        await zk.delete("/a/b/c", 1)
        assert await zk.exists("/a/b/c") is None


async def test_a_chroot_is_made_by_those_alone_who_want_it(zk_chroot: str) -> None:
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


@pytest.mark.parametrize("chroot", ["/a//b", "/../a", "/a/.", "/a/../b"])
def test_a_chroot_that_cannot_be_is_refused(chroot: str) -> None:
    with pytest.raises(ConfigError, match="must be an absolute path"):
        ZooKeeperClient(f"h:1{chroot}")


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


async def test_watches_and_states_arrive_on_the_loop(zk_chroot: str) -> None:
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
        assert len(fired) == 2, "a watch fires once"


async def test_a_lost_connection_fires_watches_and_is_told(zk_chroot: str) -> None:
    async with session(zk_chroot, session_timeout_s=6.0) as zk:
        await zk.create("/x")
        states: list[SessionState] = []
        fired = asyncio.Event()
        remove = zk.on_state(states.append)
        await zk.get("/x", fired.set)
        zk._client._connection._socket.shutdown(2)
        await asyncio.wait_for(fired.wait(), 30)
        await wait_until_async(lambda: states[-1:] == [SessionState.CONNECTED], 30, lambda: str(states))
        assert states[0] is SessionState.SUSPENDED
        assert (await zk.get("/x"))[0] == b""
        remove()


async def test_when_the_connection_was_asked_for_is_known(zk_chroot: str) -> None:
    before = boot_clock()
    async with session(zk_chroot) as zk:
        first = zk.connected_at
        assert before < first < boot_clock()
        await zk.create("/x")
        assert zk.connected_at == first
        between = boot_clock()
        zk._client._connection._socket.shutdown(2)
        await wait_until_async(lambda: zk.connected_at > first, 30, "another connection")
        assert between < zk.connected_at < boot_clock()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_of_kazoo_that_dies_is_replaced(zk_chroot: str) -> None:
    """An unexpected error ends kazoo's thread; without a remedy the client would stay disconnected."""
    async with session(zk_chroot) as zk:
        await zk.create("/x", ephemeral=True)
        states: list[SessionState] = []
        zk.on_state(states.append)
        first = zk._client

        def unforeseen(*args: object) -> None:
            raise ValueError("a reply that nobody can read")

        first._connection._read_socket = unforeseen
        with pytest.raises(ConnectionLost):
            await zk.get("/x")
        await wait_until_async(lambda: states[-1:] == [SessionState.CONNECTED], 30, lambda: str(states))
        assert SessionState.LOST in states
        assert zk._client is not first
        await zk.create("/y")


async def test_a_client_that_is_aborted_without_a_session_opens_another(zk_chroot: str) -> None:
    """kazoo tells of the lost session only, not of the end of its thread: there is no further change of state."""
    async with session(zk_chroot) as zk:
        states: list[SessionState] = []
        zk.on_state(states.append)
        first = zk._client
        assert first is not None

        def refused(*args: object, **options: object) -> None:
            raise OSError("cut off")

        def cut_off(state: str) -> None:
            if state == KazooState.LOST:  # in kazoo's thread, before it connects again
                first.handler.create_connection = refused

        first.add_listener(cut_off)
        other = KazooClient(hosts=zk_chroot.partition("/")[0], client_id=first.client_id)
        await asyncio.to_thread(other.start)
        await asyncio.to_thread(other.stop)  # ends the session of both
        await asyncio.to_thread(other.close)
        await wait_until_async(lambda: states[-1:] == [SessionState.LOST], 30, lambda: str(states))
        await asyncio.to_thread(zk.abort, "the test says so")
        await wait_until_async(lambda: states[-1:] == [SessionState.CONNECTED], 30, lambda: str(states))
        await zk.create("/y")


async def test_an_aborted_client_is_replaced_by_one_other(zk_chroot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would keep its session and its thread after the close."""
    opened: list[KazooClient] = []

    class CountedKazooClient(KazooClient):
        def __init__(self, **options: object) -> None:
            super().__init__(**options)
            opened.append(self)

    monkeypatch.setattr("allocator.core.zookeeper.client.KazooClient", CountedKazooClient)
    async with session(zk_chroot) as zk:
        states: list[SessionState] = []
        zk.on_state(states.append)
        for number in (1, 2):
            await asyncio.to_thread(zk.abort, "the test says so")
            await wait_until_async(
                lambda number=number: states.count(SessionState.CONNECTED) >= number, 30, lambda: str(states)
            )
            await zk.create(f"/{number}")
        assert len(opened) == 3
    assert not any(client.connected for client in opened)


async def test_two_that_want_a_watched_value_at_once_share_one_read() -> None:
    reads: list[object] = []

    async def read(watch: object) -> str:
        reads.append(watch)
        await asyncio.sleep(0)
        return "value"

    value = Watched(read, lambda: None)
    assert await asyncio.gather(value.get(), value.get()) == ["value", "value"]
    assert len(reads) == 1


async def test_the_granted_timeout_is_known(zookeeper: LocalCluster) -> None:
    """The ensemble grants at least two ticks and at most what it is configured to."""
    async with session(zookeeper.zookeeper, session_timeout_s=0.01) as zk:
        assert zk.session_timeout_s == pytest.approx(1.0)
    async with session(zookeeper.zookeeper, session_timeout_s=7.0) as zk:
        assert zk.session_timeout_s == pytest.approx(7.0)


async def test_a_server_that_accepts_and_says_nothing_does_not_cost_the_session(zookeeper: LocalCluster) -> None:
    """Like a starting or hanging server: the client tries the others before the session ends."""
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    zk = ZooKeeperClient(f"127.0.0.1:{port},{zookeeper.zookeeper}", session_timeout_s=9.0)
    try:
        await zk.connect(15.0)
        for _ in range(3):
            session_id = zk.session_id
            states: list[SessionState] = []
            remove = zk.on_state(states.append)
            zk._client._connection._socket.shutdown(2)
            await wait_until_async(lambda: states[-1:] == [SessionState.CONNECTED], 30, lambda: str(states))  # noqa: B023
            remove()
            assert zk.session_id == session_id
            assert SessionState.LOST not in states
    finally:
        silent.close()
        await zk.close()


async def test_ephemeral_znodes_belong_to_the_session_and_go_with_it(zk_chroot: str) -> None:
    async with session(zk_chroot) as zk:
        async with session(zk_chroot) as other:
            await other.create("/e", ephemeral=True)
            stat = await zk.exists("/e")
            assert stat is not None
            assert stat.owner == other.session_id != zk.session_id
        assert await zk.exists("/e") is None


async def test_what_cannot_work_is_refused_before_anything_is_touched() -> None:
    with pytest.raises(ConfigError, match=r"unknown ZooKeeper option 'auth_dat'; did you mean 'auth_data'\?"):
        ZooKeeperClient("h:1", options={"auth_dat": []})
    with pytest.raises(ConfigError, match="host:port"):
        ZooKeeperClient("")
    with pytest.raises(ConfigError, match="session_timeout_s"):
        ZooKeeperClient("h:1", session_timeout_s=0)
    with pytest.raises(ConnectionLost, match=r"connect\(\) first"):
        await ZooKeeperClient("h:1").get("/x")


async def test_nobody_there_is_said_in_time() -> None:
    zk = ZooKeeperClient("127.0.0.1:1/chroot")
    with pytest.raises(ZooKeeperUnavailable, match=r"127\.0\.0\.1:1/chroot: no node responded within 0\.5 s"):
        await zk.connect(0.5)
    await zk.close()


def test_no_secret_is_shown() -> None:
    files = {"certfile": "c", "keyfile": "k", "keyfile_password": "hunter2"}
    zk = ZooKeeperClient("h:1", options={"auth_data": [("digest", "user:hunter2")], "use_ssl": True, **files})
    assert "hunter2" not in repr(zk)


def test_the_insides_of_kazoo_that_we_use() -> None:
    """An upgrade of kazoo that changes one of these fails here, by name."""
    client = KazooClient(hosts="127.0.0.1:1")
    assert client._session_id is None
    assert isinstance(client._connection, ConnectionHandler)
    assert client.client_state == KeeperState.CLOSED
    assert client.state == KazooState.LOST
    # the granted timeout is read from the answer to the request that opens a session
    assert list(inspect.signature(ConnectionHandler._invoke).parameters) == ["self", "timeout", "request", "xid"]
    assert "time_out" in Connect._fields
    assert "timeout=client._session_timeout / 1000.0" in inspect.getsource(ConnectionHandler._connect)
    source = inspect.getsource(ConnectionHandler._connect)
    assert source.index("zxid = self._invoke(") < source.index("_session_callback(KeeperState.CONNECTED)")
    for name in ("get_async", "exists_async", "get_children_async", "create_async", "set_async", "delete_async"):
        assert callable(getattr(client, name))
    assert {"check", "set_data", "create", "delete", "commit_async"} <= set(dir(client.transaction()))
    result = client.handler.async_result()
    seen: list[object] = []
    result.rawlink(seen.append)
    result.set("value")
    assert seen == [result]
    assert (result.value, result.exception) == ("value", None)
