"""`allocator run` follows the cluster choice of its group without a restart."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from allocator import GroupCommands
from allocator.operate import describe
from allocator.protocols.zookeeper.client.client import NoZnode, ZooKeeperClient
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice, choice_path, choose_cluster
from allocator.testing import wait_until_async
from tests.daemon.daemon_processes import Setup, stopped

pytestmark = pytest.mark.deadline(200)


@asynccontextmanager
async def cluster_choice(it: Setup) -> AsyncIterator[tuple[ZooKeeperClient, str]]:
    """A session, and the znode with the cluster choice."""
    zk = ZooKeeperClient(it.zookeeper)
    await zk.connect()
    try:
        yield zk, choice_path("/allocator", it.group)
    finally:
        await zk.close()


async def members(zk: ZooKeeperClient, path: str) -> list[str]:
    try:
        return await zk.get_children(path.replace("/cluster", "/members"))
    except NoZnode:
        return []


async def handled(it: Setup, count: int) -> None:
    await asyncio.to_thread(it.wait_done, count)


async def test_a_daemon_drains_pauses_and_continues_with_other_brokers(
    make: Callable[..., Setup], tmp_path: Path
) -> None:
    it = await asyncio.to_thread(make, 2)
    await asyncio.to_thread(it.fill, 200)
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.setblocking(False)
        process = it.run(it.config(), NOTIFY_SOCKET=address)
        async with cluster_choice(it) as (zk, path):
            await handled(it, 200)
            await choose_cluster(zk, path, ClusterChoice(None, frozen=True))
            await wait_until_async(lambda: _has_no_members(zk, path), 60, "the member to leave")
            assert await it.committed() == {0: 100, 1: 100}, "it committed before it left"
            await asyncio.to_thread(it.fill, 100)
            assert len(it.done()) == 200

            # another name of the same cluster: it has the committed offsets
            other = it.cluster.bootstrap.replace("127.0.0.1", "localhost")
            await choose_cluster(zk, path, ClusterChoice(other))
            await handled(it, 100)
            await wait_until_async(lambda: len(it.done()) == 300, 60, "the rest")
            assert len(await members(zk, path)) == 1
            states = {systemd.recv(1000) async for _ in _pending(systemd)}
            assert b"READY=1" in states
            assert b"STOPPING=1" not in states, "systemd would kill the daemon"
        assert await asyncio.to_thread(stopped, process) == 0
        assert b"STOPPING=1" in {systemd.recv(1000) async for _ in _pending(systemd)}
    for partition in (0, 1):
        assert [each["offset"] for each in it.done() if each["partition"] == partition] == list(range(150))
    assert await it.committed() == {0: 150, 1: 150}


async def test_a_daemon_that_starts_while_its_group_is_paused_waits_and_can_be_stopped(
    make: Callable[..., Setup],
) -> None:
    it = await asyncio.to_thread(make)
    await asyncio.to_thread(it.fill, 10)
    async with cluster_choice(it) as (zk, path):
        await choose_cluster(zk, path, ClusterChoice(None, frozen=True))
        waiting, idle = it.run(it.config()), it.run(it.config())
        for number in (0, 1):
            await wait_until_async(lambda number=number: _logged(it, number, "paused"), 60, "the daemon to pause")
        assert await members(zk, path) == []
        assert await asyncio.to_thread(stopped, idle) == 0
        await choose_cluster(zk, path, ClusterChoice())
        await handled(it, 10)
    assert await asyncio.to_thread(stopped, waiting) == 0


async def test_a_command_about_a_daemon_holds_after_a_pause(make: Callable[..., Setup]) -> None:
    """The daemon has no `client_id`, so the command names the one that `group describe` shows."""
    it = await asyncio.to_thread(make)
    await asyncio.to_thread(it.fill, 10)
    process = it.run(it.config())
    async with cluster_choice(it) as (zk, path), GroupCommands(it.zookeeper, it.group) as commands:

        async def names() -> list[str]:
            state = await describe(zk, it.group)
            return [] if state is None else [each.name for each in state.members.values()]

        async def kept() -> bool:
            return [each.state for each in await commands.list()] == ["kept"]

        await handled(it, 10)
        before = await names()
        await commands.cordon(before[0])
        await wait_until_async(kept, 30, "the cordon")
        await choose_cluster(zk, path, ClusterChoice(None, frozen=True))
        await wait_until_async(lambda: _has_no_members(zk, path), 60, "the member to leave")
        await choose_cluster(zk, path, ClusterChoice())
        await wait_until_async(names, 60, "the member to join again")
        assert await names() == before
        await wait_until_async(kept, 30, "the cordon after the pause")
    assert await asyncio.to_thread(stopped, process) == 0


async def test_an_invalid_cluster_choice_is_rejected_with_its_path(make: Callable[..., Setup]) -> None:
    it = await asyncio.to_thread(make)
    async with cluster_choice(it) as (zk, path):
        await zk.ensure_path(path)
        await zk.set(path, json.dumps({"brokers": 3}).encode())
    process = it.run(it.config())
    assert await asyncio.to_thread(process.wait, 60) == 2
    assert any(path in line["message"] for line in it.logs() if line["level"] == "error")


async def _has_no_members(zk: ZooKeeperClient, path: str) -> bool:
    return await members(zk, path) == []


def _logged(it: Setup, number: int, text: str) -> bool:
    lines = (it.directory / f"log-{number}").read_text().splitlines()
    return any(text in json.loads(line)["message"] for line in lines)


async def _pending(sock: socket.socket) -> AsyncIterator[None]:
    """Yields once for each datagram that is queued."""
    while True:
        try:
            sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        yield
