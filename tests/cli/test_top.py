"""`allocator top`: one frame, JSON, and a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import sys
from collections.abc import Callable

import pytest
from rich.console import Console

from allocator import Consumer, ZooKeeper
from allocator.cli.access import Access
from allocator.cli.top import frame, moves_of
from allocator.core.aio.clock import wall_ms
from allocator.core.commands.orders import Order, Orders
from allocator.core.znodes.documents import AssignmentDocument, MemberInfo, Waiting
from allocator.operate.group_report import GroupState, Logs
from allocator.testing import LocalCluster
from allocator.testing.waiting import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.watch import WatchedGroup, Watcher

pytestmark = pytest.mark.deadline(150)
PATIENCE_S = 60.0


async def run(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "allocator.cli", "top", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_frame_json_and_a_terminal_show_a_group(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    loop = asyncio.get_running_loop()
    topic = await loop.run_in_executor(None, topic_factory, 3)
    await loop.run_in_executor(None, kafka_cluster.produce, topic, [(None, b"x", 2)] * 50)
    where = ("--zookeeper", kafka_cluster.zookeeper, "--root", f"/{group}", "--brokers", kafka_cluster.bootstrap)
    async with Consumer(
        topic,
        brokers=kafka_cluster.bootstrap,
        group=group,
        membership=ZooKeeper(kafka_cluster.zookeeper, root=f"/{group}"),
        client_id="the-only-one",
    ) as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == 3, PATIENCE_S)
        await consumer.commit(dict.fromkeys(consumer.assignment(), 0))

        code, out, err = await run(group, "--once", "--interval", "0.3", *where)
        assert code == 0, err
        assert group in out
        assert re.search(r"the-only-one@\S+:[0-9]+#0 \(leads\)", out)
        assert f"{topic}:2" in out

        code, out, err = await run(group, "--json", "--interval", "0.3", *where)
        assert code == 0, err
        told = json.loads(out)
        assert [(each["group"], each["lag"], each["partitions"]) for each in told["groups"]] == [(group, 50, 3)]
        assert [member["client_id"] for member in told["group"]["members"]] == ["the-only-one"]
        assert told["group"]["series"][-1]["consumed"] == 0

        code, out, _ = await run(group, "--once", *where[:-1], "127.0.0.1:1", "--timeout", "4")
        assert code == 1
        assert "kafka does not answer: no Kafka broker answered" in out

        code, _, err = await run("another", "--once", *where)
        assert code == 1
        assert f"there is no group 'another'; there are {group}" in err

        await in_a_terminal(where)


async def test_a_group_of_kafkas_own_protocol_needs_no_zookeeper(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str
) -> None:
    topic = await asyncio.to_thread(topic_factory, 3)
    consumer = Consumer(
        topic, brokers=kafka_cluster.bootstrap, group=group, membership="kafka", client_id="worker", max_wait_s=0.05
    )
    async with consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == 3, PATIENCE_S)
        for where in ((), ("--zookeeper", kafka_cluster.zookeeper, "--root", f"/{group}")):
            given = (group, "--brokers", kafka_cluster.bootstrap, "--interval", "0.2", "--timeout", "30", *where)
            code, out, err = await run(*given, "--once")
            assert code == 0, err
            assert "worker@" in out
            assert re.search(rf"> {group} +stable +- +1 +3", out), out
    code, _, err = await run("nobody", "--brokers", kafka_cluster.bootstrap, "--interval", "0.2", "--once")
    assert code == 1
    assert "there is no group 'nobody'; there are none" in err


@pytest.mark.parametrize("command", ["top --once", "top --json", "web --port 0"])
async def test_an_address_that_is_none_is_named_at_once(command: str) -> None:
    """The connecting task fails while another task waits for it."""
    name, *options = command.split()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "allocator.cli", name, *options, "--zookeeper", "127.0.0.1:1", "--brokers", "foo:bar",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 2, err
    assert "foo:bar" in (out + err).decode()


@pytest.mark.parametrize(("width", "heads"), [(130, 10), (80, 7), (44, 3)])
async def test_a_narrow_terminal_has_fewer_columns_and_the_lag_among_them(width: int, heads: int) -> None:
    watcher = Watcher(Access("127.0.0.1:1"))
    watcher.ready = True
    for number in range(50):
        group = watcher.groups.setdefault(f"invoices-of-{number:02}", WatchedGroup(f"invoices-of-{number:02}"))
        members = {f"m-{n:016x}-{n:010}": MemberInfo(f"worker-{n}", "a-host", frozenset({"t"})) for n in range(20)}
        group.learn(GroupState(group.name, members, {}, None), 0.0)
        ends = {TopicPartition("t", n): 1000 + n for n in range(30)}
        group.measure(
            Logs(dict.fromkeys(ends, OffsetAndMetadata(0, "", -1)), dict.fromkeys(ends, 0), ends), frozenset(ends), 0.0
        )
    console = Console(width=width, height=24)
    with console.capture() as capture:
        console.print(frame(watcher, "invoices-of-25", 24, width))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if line.startswith("  group ")).split()
    assert len(head) == heads
    assert "lag" in head
    (own,) = (line for line in lines if line.startswith("> "))  # the mark is visible without colours, too
    assert own.startswith("> invoices-of-25")
    assert "30 435" in own
    assert "and 42 more" in lines


def test_without_zookeeper_nobody_knows_whether_a_group_is_stable() -> None:
    watcher = Watcher(Access("127.0.0.1:1"))
    watcher.groups["billing"] = WatchedGroup("billing")
    watcher.groups["billing"].learn(GroupState("billing", {}, {}, None), 0.0)
    console = Console(width=100)
    shown = []
    for ready in (True, False):
        watcher.ready = ready
        with console.capture() as capture:
            console.print(frame(watcher))
        shown += [line.split()[2] for line in capture.get().splitlines() if line.startswith("> billing")]
    assert shown == ["empty", "empty?"]


def test_orders_and_the_age_of_the_lag_are_shown() -> None:
    watcher = Watcher(Access("127.0.0.1:1"))
    group = watcher.groups["billing"] = WatchedGroup("billing")
    group.learn(GroupState("billing", {}, {}, None), 0.0)
    p = TopicPartition("t", 0)
    for at, end in ((0.0, 10), (300.0, 20)):
        group.measure(Logs({p: OffsetAndMetadata(10, "", -1)}, {p: 0}, {p: end}), frozenset({p}), at)
    orders = Orders((Order.make("cordon", {"member": "web1"}, who="alice", now_ms=1),))
    group.learn(GroupState("billing", {}, {}, None, orders=orders), 300.0)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(frame(watcher))
    assert "5 min" in capture.get()
    assert "order cordon web1 by alice: waiting, the group has no member" in capture.get()


def test_a_lag_that_is_known_in_part_is_a_lower_bound() -> None:
    watcher = Watcher(Access("127.0.0.1:1"))
    group = watcher.groups["billing"] = WatchedGroup("billing")
    group.learn(GroupState("billing", {}, {}, None), 0.0)
    p, q = TopicPartition("t", 0), TopicPartition("new", 0)
    group.measure(Logs({p: OffsetAndMetadata(10, "", -1)}, {p: 0, q: 0}, {p: 1244, q: 7}), frozenset({p, q}), 0.0)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(frame(watcher))
    assert " >1 234 " in capture.get()


def test_a_plan_says_how_many_partitions_go_from_whom_to_whom_and_orders_that_are_over_are_counted() -> None:
    watcher = Watcher(Access("127.0.0.1:1"))
    group = watcher.groups["billing"] = WatchedGroup("billing")
    names = [f"m-{number:016x}-{number:010}" for number in range(4)]
    knows = {"orders": ("cordon", "freeze")}
    members = {name: MemberInfo(f"worker-{at}", "host", frozenset({"t"}), **knows) for at, name in enumerate(names)}
    p = [TopicPartition("t", number) for number in range(20)]
    document = AssignmentDocument(
        generation=3,
        strategy="naive",
        owners={names[0]: frozenset(p[10:])},
        waiting={names[0]: Waiting(2, frozenset(p[:7]))},
        promised={names[1]: frozenset(p[:5]), names[2]: frozenset(p[5:7]), names[3]: frozenset(p[7:10])},
    )
    now = wall_ms()
    old = [Order.make("freeze", {}, who="bob", now_ms=1, expires=2) for _ in range(2)]
    new = [Order.make("cordon", {"member": f"web{n}"}, who="alice", now_ms=now) for n in range(5)]
    group.learn(GroupState("billing", members, {}, document, orders=Orders((*old, *new))), 0.0)
    console = Console(width=60)
    with console.capture() as capture:
        console.print(frame(watcher, width=60))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 60
    at = lines.index("plan: 10 partitions move")
    assert lines[at + 1] == "  worker-0@host#0 -> worker-1@host#1: 5 partitions"
    assert set(lines[at + 2 : at + 4]) == {
        "  worker-0@host#0 -> worker-2@host#2: 2 partitions",
        "  no owner -> worker-3@host#3: 3 partitions",
    }
    assert [line.partition(" by ")[0] for line in lines if line.startswith("order ")] == [
        "order cordon web4", "order cordon web3", "order cordon web2",
    ]  # fmt: skip
    assert "and 2 more orders and 2 orders that are over" in lines
    assert moves_of(GroupState("g", {}, {}, None)) == {}
    console = Console(width=60, height=24)
    with console.capture() as capture:
        console.print(frame(watcher, height=24, width=60))
    assert len(capture.get().splitlines()) <= 24


async def in_a_terminal(where: tuple[str, ...]) -> None:
    """It draws; `q` ends it and restores the terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "allocator.cli", "top", "--interval", "0.3", *where,
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
    )  # fmt: skip
    os.close(theirs)
    shown = b""

    def read() -> None:
        nonlocal shown
        try:
            shown += os.read(ours, 65536)
        except OSError:  # Linux raises this when the other side of the terminal is closed
            loop.remove_reader(ours)

    loop = asyncio.get_running_loop()
    loop.add_reader(ours, read)
    try:
        await wait_until_async(lambda: b"the-only-one" in shown, PATIENCE_S, lambda: repr(shown[-500:]))
        os.write(ours, b"q")
        await wait_until_async(lambda: process.returncode is not None, PATIENCE_S)
        assert process.returncode == 0, shown[-500:]
        assert b"\x1b[?1049h" in shown, "a screen of its own"
        assert b"\x1b[?1049l" in shown, "and back"
    finally:
        loop.remove_reader(ours)
        os.close(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()
