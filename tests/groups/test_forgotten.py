"""An ensemble that lost its data, or got old data back: clients must give up sessions that it does not know."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from joining import joined
from members import OneGroup, TestMember
from zookeeper_proxy import proxied

from allocator import Consumer
from allocator.core.zookeeper.client import SessionState, ZooKeeperClient
from allocator.testing import LocalCluster, wait_until_async

pytestmark = pytest.mark.servers  # each test starts an ensemble

TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[LocalCluster]:
    """One server that these tests may wipe."""
    with LocalCluster(None) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def session(hosts: str) -> AsyncIterator[ZooKeeperClient]:
    zk = ZooKeeperClient(hosts, session_timeout_s=TIMEOUT_S)
    await zk.connect()
    try:
        yield zk
    finally:
        await zk.close()


def wipe(cluster: LocalCluster) -> None:
    """Stops the server and deletes its data; `restart` brings it back on the same port."""
    node = cluster.zookeepers[0]
    node.kill()
    shutil.rmtree(node.directory / "data")


async def restart(cluster: LocalCluster) -> None:
    await asyncio.to_thread(cluster.zookeepers[0].start)


def group_on(cluster: LocalCluster, group: str) -> OneGroup:
    return OneGroup(cluster.zookeeper, group, {"t": 12}, session_timeout_s=TIMEOUT_S)


async def all_lost(members: list[TestMember]) -> None:
    await wait_until_async(
        lambda: all(each.owner.lost_partitions for each in members), 40, "each member to give its session up"
    )


async def test_members_of_an_ensemble_that_comes_back_empty_join_again(ensemble: LocalCluster, group: str) -> None:
    one = group_on(ensemble, group)
    async with one.members("a", "b", "c") as members:
        sessions = [each.zk.session_id for each in members]
        await asyncio.to_thread(wipe, ensemble)
        await restart(ensemble)
        await all_lost(members)
        await one.settle(*members, timeout_s=40)
        assert not set(sessions) & {each.zk.session_id for each in members}


async def test_members_of_an_ensemble_with_an_old_copy_of_its_data_join_again(
    ensemble: LocalCluster, group: str, tmp_path: Path
) -> None:
    """The old copy knows the sessions but has lost their lease renewals, which each member notices."""
    data = ensemble.zookeepers[0].directory / "data"
    one = group_on(ensemble, group)
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

    async with proxied(ensemble.zookeeper) as proxy:
        zk = ZooKeeperClient(proxy.hosts, session_timeout_s=30.0)
        await zk.connect()
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
        await zk.close()


async def test_a_server_that_does_not_serve_costs_no_session(ensemble: LocalCluster) -> None:
    """Like a server without a quorum, it accepts and closes connections. A refusal counts only if it serves others."""
    port = ensemble.zookeepers[0].port
    async with session(ensemble.zookeeper) as zk:
        session_id = zk.session_id
        states: list[SessionState] = []
        zk.on_state(states.append)
        turned_away = 0

        async def turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal turned_away
            turned_away += 1
            await reader.read(1)
            writer.close()

        await asyncio.to_thread(ensemble.zookeepers[0].stop)
        server = await asyncio.start_server(turn_away, "127.0.0.1", port)
        begun = asyncio.get_running_loop().time()
        await wait_until_async(
            lambda: asyncio.get_running_loop().time() > begun + 2 * TIMEOUT_S and turned_away > 3,
            30,
            "to be turned away for longer than the session lasts",
        )
        server.close()
        await server.wait_closed()
        await restart(ensemble)
        await wait_until_async(lambda: states[-1:] == [SessionState.CONNECTED], 30, lambda: str(states))
        assert SessionState.LOST not in states
        assert zk.session_id == session_id


@pytest.mark.long
@pytest.mark.deadline(200)
@pytest.mark.parametrize("membership", ["zookeeper", "kiel", "consumers", "pykafka"])
async def test_members_of_every_layout_own_everything_again(
    membership: str, ensemble: LocalCluster, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    """The ensemble serves only the members; the brokers have another one."""
    topic = await asyncio.to_thread(topic_factory, 4)

    def member(name: str) -> Consumer:
        return Consumer(
            topic,
            **joined(
                brokers=kafka_cluster.bootstrap,
                zookeeper=ensemble.zookeeper,
                group=group,
                client_id=name,
                membership=membership,
                session_timeout_s=TIMEOUT_S,
                settle_s=0.5,
            ),
        )

    async with member("one") as one, member("two") as two:

        def shared() -> bool:
            return (
                len(one.assignment()) == len(two.assignment()) == 2
                and not one.assignment() & two.assignment()
                and one.may_act()
                and two.may_act()
            )

        await wait_until_async(shared, 40, lambda: f"both to share: {one.assignment()} {two.assignment()}")
        await asyncio.to_thread(wipe, ensemble)
        await wait_until_async(lambda: not one.may_act() and not two.may_act(), 30, "both to pause")
        await restart(ensemble)
        await wait_until_async(shared, 60, lambda: f"both to share again: {one.assignment()} {two.assignment()}")
        await asyncio.to_thread(kafka_cluster.produce, topic, [(None, b"x", number) for number in range(4)])
        got: set[int] = set()

        async def read(consumer: Consumer) -> None:
            while len(got) < 4:
                record = await consumer.getone(0.2)
                if record is not None:
                    got.add(record.partition)

        await asyncio.wait_for(asyncio.gather(read(one), read(two)), 40)
