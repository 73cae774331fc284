"""After an ensemble lost its data or came back with old data, clients give up the sessions that it does not know."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator.protocols.zookeeper.client.client import SessionState
from allocator.testing import LocalCluster, wait_until_async
from tests.groups.layout_bench import LAYOUTS, Bench
from tests.groups.members import OneGroup
from tests.groups.zookeeper_sessions import session
from tests.zookeeper.zookeeper_proxy import proxied

pytestmark = pytest.mark.servers  # each test starts an ensemble

TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[LocalCluster]:
    """One server that these tests may wipe."""
    with LocalCluster(None) as cluster:
        yield cluster


def wipe(cluster: LocalCluster) -> None:
    """Stops the server and deletes its data; `restart` brings it back on the same port."""
    node = cluster.zookeepers[0]
    node.kill()
    shutil.rmtree(node.directory / "data")


async def restart(cluster: LocalCluster) -> None:
    await asyncio.to_thread(cluster.zookeepers[0].start)


async def all_lost(members: list[Any]) -> None:
    await wait_until_async(
        lambda: all(each.owner.lost_partitions for each in members), 40, "each member to give its session up"
    )


@pytest.mark.parametrize("layout", list(LAYOUTS))
async def test_members_of_an_ensemble_that_comes_back_empty_join_again(
    layout: str, ensemble: LocalCluster, group: str
) -> None:
    bench = Bench(layout, ensemble.zookeeper, group, TIMEOUT_S, t=12)
    async with bench.members("a", "b", "c") as members:
        await bench.settled(*members)
        sessions = [each.zk.session_id for each in members]
        await asyncio.to_thread(wipe, ensemble)
        await restart(ensemble)
        await all_lost(members)
        await bench.settled(*members, timeout_s=40)
        assert not set(sessions) & {each.zk.session_id for each in members}


async def test_members_of_an_ensemble_with_an_old_copy_of_its_data_join_again(
    ensemble: LocalCluster, group: str, tmp_path: Path
) -> None:
    """The old copy knows the sessions but has lost their lease renewals, which each member notices."""
    data = ensemble.zookeepers[0].directory / "data"
    one = OneGroup(ensemble.zookeeper, group, {"t": 12}, session_timeout_s=TIMEOUT_S)
    async with one.members("a", "b") as members:
        await asyncio.to_thread(ensemble.zookeepers[0].kill)
        shutil.copytree(data, tmp_path / "copy")
        await restart(ensemble)
        await one.settle(*members, timeout_s=40)
        ids = {each.membership.member_id for each in members}
        async with session(ensemble.zookeeper) as zk:
            path = one.paths.member(members[0].membership.member_id)
            before = (await zk.get(path))[1].version

            async def proofs() -> bool:
                return (await zk.get(path))[1].version > before + 2

            await wait_until_async(proofs, 30, "proofs of life that the copy does not have")
        await asyncio.to_thread(wipe, ensemble)
        shutil.copytree(tmp_path / "copy", data)
        await restart(ensemble)
        await all_lost(members)
        await one.settle(*members, timeout_s=40)
        # a member that comes after another one has written may keep its session: the server refuses only a client that
        # has read more than the server has
        assert not ids & {each.membership.member_id for each in members}


async def test_a_server_that_lags_behind_costs_no_session_that_may_live(ensemble: LocalCluster) -> None:
    """It refuses clients with newer data and serves others; the session is valid on the other servers."""
    refused = 0

    async def lag(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refused
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            request = await reader.readexactly(4 + 4 + 8 + 4 + 8)
            if struct.unpack_from(">q", request, 20)[0] == 0:  # no session yet
                writer.write(struct.pack(">iiiqi16s?", 37, 0, 9000, 77, 16, b"p" * 16, False))
            else:
                refused += 1
        writer.close()

    async with proxied(ensemble.zookeeper) as proxy, session(proxy.hosts, session_timeout_s=30.0) as zk:
        session_id = zk.session_id
        states: list[SessionState] = []
        zk.on_state(states.append)
        proxy.instead = lag
        proxy.cut()
        await wait_until_async(lambda: refused > 3, 30, "to be refused several times")
        proxy.instead = None
        await wait_until_async(lambda: states[-1:] == [SessionState.CONNECTED], 30, lambda: str(states))
        assert SessionState.LOST not in states
        assert zk.session_id == session_id


async def test_a_server_that_does_not_serve_costs_no_session(ensemble: LocalCluster) -> None:
    """Like a server without a quorum, it accepts and closes connections. Only a server that serves others may refuse a
    session."""
    port = ensemble.zookeepers[0].port
    async with session(ensemble.zookeeper, session_timeout_s=TIMEOUT_S) as zk:
        session_id = zk.session_id
        states: list[SessionState] = []
        zk.on_state(states.append)
        refused = 0

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal refused
            refused += 1
            await reader.read(1)
            writer.close()

        await asyncio.to_thread(ensemble.zookeepers[0].stop)
        server = await asyncio.start_server(refuse, "127.0.0.1", port)
        begun = asyncio.get_running_loop().time()
        await wait_until_async(
            lambda: asyncio.get_running_loop().time() > begun + 2 * TIMEOUT_S and refused > 3,
            30,
            "to be refused for longer than the session lasts",
        )
        server.close()
        await server.wait_closed()
        await restart(ensemble)
        await wait_until_async(lambda: states[-1:] == [SessionState.CONNECTED], 30, lambda: str(states))
        assert SessionState.LOST not in states
        assert zk.session_id == session_id
