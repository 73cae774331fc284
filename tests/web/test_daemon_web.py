"""The web server of a daemon: health during a rebalance, metrics, the page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPResponse

from allocator import Consumer, ZooKeeper
from allocator.cli.access import Access
from allocator.core.subscription import RecordsLost
from allocator.testing import LocalCluster
from allocator.testing.waiting import wait_until_async
from allocator.types import TopicPartition
from allocator.web.daemon import READ_WITHIN_S, DaemonHealth, losses
from allocator.web.snapshot import findings
from allocator.web.watch import WatchedGroup, Watcher

P = [TopicPartition("t", number) for number in range(3)]
PATIENCE_S = 60.0


class FakeConsumer:
    """A consumer for the health checks."""

    def __init__(self) -> None:
        self.generation, self.lease = 0, False
        self.owned, self.read = set[TopicPartition](), set[TopicPartition]()

    def may_act(self) -> bool:
        return self.lease

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.owned)

    def unreachable(self) -> frozenset[TopicPartition]:
        return frozenset(self.owned - self.read)


def test_a_member_is_ready_while_it_reads_what_it_owns() -> None:
    consumers: list[Any] = []
    now = [100.0]
    health = DaemonHealth(consumers, frozenset, lambda: now[0])
    assert health.ready() == ["it has not started yet, or its group is paused"]
    it = FakeConsumer()
    consumers.append(it)
    lapsed = "lease is not valid: it is joining, its group is paused, or ZooKeeper"
    assert lapsed in health.ready()[0]
    it.lease = True
    assert "has no assignment yet" in health.ready()[0]
    it.generation = 1
    assert health.ready() == [], "with more members than partitions, one owns nothing"
    it.owned = {P[0], P[1]}
    assert health.ready() == ["none of its partitions has been read yet"]
    it.read = {P[0], P[1]}
    assert health.ready() == []

    def stays_ready_for_a_moment(unread: int) -> None:
        assert health.ready() == []
        now[0] += READ_WITHIN_S + 1
        assert f"{unread} of its partitions have not been read" in health.ready()[0]

    it.owned.add(P[2])  # a rebalance assigns one more partition
    stays_ready_for_a_moment(1)
    it.read = {P[0], P[1], P[2]}
    assert health.ready() == []
    it.owned, it.read = {P[2]}, set()  # a rebalance replaces all its partitions
    stays_ready_for_a_moment(1)
    it.lease = False  # ZooKeeper is silent
    assert lapsed in health.ready()[0]
    assert health.live() == [], "a restart does not help"
    it.lease, it.owned = True, {P[0]}
    assert health.ready() == ["none of its partitions has been read yet"], "it has joined again"


def test_an_abandoned_handler_needs_a_restart() -> None:
    health = DaemonHealth([], lambda: frozenset({P[0]}))
    assert health.live() == ["t:0: its handler was abandoned and still runs"]


def test_lost_records_are_on_the_page() -> None:
    class Consumer:
        losses = (
            RecordsLost(P[0], 10, 60, 10, 59, "the log does not have it"),
            RecordsLost(P[1], 7, 0, None, None, "the topic was deleted and created again", recreated=True),
        )

    watcher = Watcher(Access("127.0.0.1:1", "/allocator", None, None, None))
    found = losses(Consumer())  # type: ignore[arg-type]
    assert [(finding.id, finding.where) for finding in found] == [
        ("records-lost", ("t:1",)),
        ("records-lost", ("t:0",)),
    ]
    watcher.note("g", found)  # a group that is not seen yet
    group = watcher.groups["g"] = WatchedGroup("g")
    changed = watcher.subscribe()
    changed.clear()
    watcher.note("g", found)
    assert changed.is_set()
    assert group.wrong == 2
    assert "offsets 10 to 59 are skipped, reading continues at 60" in findings(group)[1]["what"]
    changed.clear()
    watcher.note("g", losses(Consumer()))  # type: ignore[arg-type]
    assert not changed.is_set()


def config(
    path: Path, cluster: LocalCluster, group: str, topic: str, web: str = "port = 0", membership: str = "zookeeper"
) -> Path:
    path.write_text(
        f'[kafka]\nbrokers = "{cluster.bootstrap}"\n[zookeeper]\nhosts = "{cluster.zookeeper}"\nroot = "/{group}"\n'
        f'[group]\nname = "{group}"\ntopics = ["{topic}"]\nmembership = "{membership}"\n'
        f'[handler]\ntarget = "mine:handle"\n[web]\n{web}\n'
    )
    (path.parent / "mine.py").write_text("async def handle(record):\n    pass\n")
    return path


@contextlib.asynccontextmanager
async def daemon(path: Path) -> AsyncIterator[str]:
    """The address of a daemon, which must end with exit code 0."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "allocator.cli", "run", str(path), cwd=path.parent, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    lines: list[str] = []

    async def listen(stream: asyncio.StreamReader) -> None:
        async for line in stream:
            lines.append(line.decode())

    listening = asyncio.ensure_future(listen(process.stderr))

    def address() -> str | None:
        assert process.returncode is None, lines
        return next((found[1] for line in lines if (found := re.search(r"(http://[\d.:]+)/ has metrics", line))), None)

    try:
        yield str(await wait_until_async(address, PATIENCE_S, lambda: f"the address in {lines}"))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0, lines
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await listening


async def get(url: str) -> HTTPResponse:
    return await AsyncHTTPClient(force_instance=True).fetch(url, raise_error=False)


@pytest.mark.deadline(200)
@pytest.mark.parametrize("membership", ["zookeeper", "kafka"])
async def test_a_daemon_is_ready_throughout_a_rebalance_and_shows_its_group(
    membership: str, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(topic_factory, 4)
    async with daemon(config(tmp_path / "it.toml", kafka_cluster, group, topic, membership=membership)) as url:

        async def shown() -> Any:
            response = await get(f"{url}/api/groups/{group}")
            return json.loads(response.body) if response.code == 200 else {"members": [], "rebalances": []}

        async def ready() -> bool:
            owned = [member["partitions"] for member in (await shown())["members"]]
            return owned == [4] and (await get(f"{url}/health/ready")).code == 200

        await wait_until_async(ready, PATIENCE_S)
        assert (await get(f"{url}/health/live")).code == 200
        metrics = (await get(f"{url}/metrics")).body.decode()
        assert "process_cpu_seconds_total" in metrics
        assert re.search(rf'allocator_assigned_partitions{{.*group="{group}"}} 4.0', metrics)
        assert b"<title>allocator</title>" in (await get(f"{url}/")).body
        overview = json.loads((await get(f"{url}/api/groups")).body)
        assert [(each["group"], each["protocol"]) for each in overview["groups"]] == [(group, membership)]
        if membership == "kafka":
            assert [each["cluster"] for each in overview["clusters"]] == ["kafka"], "it needs no ZooKeeper"
            return

        async with Consumer(
            topic,
            brokers=kafka_cluster.bootstrap,
            group=group,
            zookeeper=kafka_cluster.zookeeper,
            membership=ZooKeeper(root=f"/{group}"),
        ) as other:
            verdicts = []

            async def both_own() -> bool:
                verdicts.append((await get(f"{url}/health/ready")).body)
                return len(other.assignment()) == 2

            await wait_until_async(both_own, PATIENCE_S)
            verdicts.append((await get(f"{url}/health/ready")).body)
            assert {json.loads(verdict)["ok"] for verdict in verdicts} == {True}, verdicts

            async def ended() -> bool:
                rebalances = (await shown())["rebalances"]
                return bool(rebalances and rebalances[0]["ended"])

            await wait_until_async(ended, PATIENCE_S)


async def test_an_address_that_is_taken_stops_the_daemon_before_it_joins(
    kafka_cluster: LocalCluster, group: str, tmp_path: Path
) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = config(tmp_path / "it.toml", kafka_cluster, group, "t", f"port = {port}")
    run = partial(asyncio.create_subprocess_exec, sys.executable, "-m", "allocator.cli", "run", str(path))
    process = await run(cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    server.close()
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}".encode() in errors


@pytest.mark.deadline(200)
async def test_a_daemon_whose_kafka_falls_silent_is_not_ready_until_it_responds(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 2)
    now = [0.0]
    async with Consumer(
        topic,
        brokers=kafka_cluster.bootstrap,
        group=group,
        zookeeper=kafka_cluster.zookeeper,
        membership=ZooKeeper(root=f"/{group}"),
    ) as consumer:
        health = DaemonHealth([consumer], frozenset, lambda: now[0])

        async def reads_all() -> bool:
            await consumer.getmany(timeout_s=0.1)
            return len(consumer.assignment()) == 2 and not consumer.unreachable()

        await wait_until_async(reads_all, PATIENCE_S)
        assert health.ready() == []
        broker = kafka_cluster.brokers[0]
        broker.pause()
        try:
            await wait_until_async(lambda: len(consumer.unreachable()) == 2, PATIENCE_S)
            assert health.ready() == []
            now[0] += READ_WITHIN_S + 1
            assert "2 of its partitions have not been read" in health.ready()[0]
        finally:
            broker.resume()
        await wait_until_async(reads_all, PATIENCE_S)
        assert health.ready() == []
