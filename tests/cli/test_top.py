"""`allocator top`: one frame, JSON, and a terminal."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable

import pytest
from rich.console import Console
from terminal import in_a_terminal, run_command

from allocator import Consumer, ZooKeeper
from allocator.cli.access import Access
from allocator.cli.top import frame
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


def watched(*groups: str) -> Watcher:
    watcher = Watcher(Access("127.0.0.1:1"))
    watcher.groups.update((name, WatchedGroup(name)) for name in groups)
    return watcher


def drawn(watcher: Watcher, chosen: str | None = None, height: int = 1000, width: int = 120) -> list[str]:
    console = Console(width=width, height=height)
    with console.capture() as capture:
        console.print(frame(watcher, chosen, height, width))
    return [line.rstrip() for line in capture.get().splitlines()]


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

        code, out, err = await run_command("top", group, "--once", "--interval", "0.3", *where)
        assert code == 0, err
        assert group in out
        assert re.search(r"the-only-one@\S+:[0-9]+#0 \(leads\)", out)
        assert f"{topic}:2" in out

        code, out, err = await run_command("top", group, "--json", "--interval", "0.3", *where)
        assert code == 0, err
        shown_json = json.loads(out)
        assert [(each["group"], each["lag"], each["partitions"]) for each in shown_json["groups"]] == [(group, 50, 3)]
        assert [member["client_id"] for member in shown_json["group"]["members"]] == ["the-only-one"]
        assert shown_json["group"]["series"][-1]["consumed"] == 0

        code, out, _ = await run_command("top", group, "--once", *where[:-1], "127.0.0.1:1", "--timeout", "4")
        assert code == 1
        assert "kafka does not respond: no Kafka broker responded" in out

        code, _, err = await run_command("top", "another", "--once", *where)
        assert code == 1
        assert f"there is no group 'another'; groups: {group}" in err

        command = [sys.executable, "-m", "allocator.cli", "top", "--interval", "0.3", *where]
        code, shown, _ = await asyncio.to_thread(in_a_terminal, command, b"the-only-one", b"q", columns=120)
        assert code == 0, shown[-500:]
        assert "\x1b[?1049h" in shown, "a screen of its own"
        assert "\x1b[?1049l" in shown, "and back"


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
            code, out, err = await run_command("top", *given, "--once")
            assert code == 0, err
            assert "worker@" in out
            assert re.search(rf"> {group} +stable +- +1 +3", out), out
    code, _, err = await run_command(
        "top", "missing", "--brokers", kafka_cluster.bootstrap, "--interval", "0.2", "--once"
    )
    assert code == 1
    assert "there is no group 'missing'; groups: none" in err


@pytest.mark.parametrize("command", ["top --once", "top --json", "web --port 0"])
async def test_an_invalid_address_is_named_at_once(command: str) -> None:
    """The connecting task fails while another task waits for it."""
    where = ("--zookeeper", "127.0.0.1:1", "--brokers", "foo:bar")
    code, out, err = await asyncio.wait_for(run_command(*command.split(), *where), PATIENCE_S)
    assert code == 2, err
    assert "foo:bar" in out + err


@pytest.mark.parametrize(("width", "heads"), [(130, 10), (80, 7), (44, 3)])
async def test_a_narrow_terminal_has_fewer_columns_and_the_lag_among_them(width: int, heads: int) -> None:
    watcher = watched(*(f"invoices-of-{number:02}" for number in range(50)))
    watcher.ready = True
    for name, group in watcher.groups.items():
        members = {f"m-{n:016x}-{n:010}": MemberInfo(f"worker-{n}", "a-host", frozenset({"t"})) for n in range(20)}
        group.learn(GroupState(name, members, {}, None), 0.0)
        ends = {TopicPartition("t", n): 1000 + n for n in range(30)}
        group.measure(
            Logs(dict.fromkeys(ends, OffsetAndMetadata(0, "", -1)), dict.fromkeys(ends, 0), ends), frozenset(ends), 0.0
        )
    lines = drawn(watcher, "invoices-of-25", 24, width)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if line.startswith("  group ")).split()
    assert (len(head), "lag" in head) == (heads, True)
    (own,) = (line for line in lines if line.startswith("> "))  # the mark is visible without colours, too
    assert own.startswith("> invoices-of-25")
    assert "30 435" in own
    assert "and 42 more" in lines


def test_without_zookeeper_the_state_of_a_group_is_uncertain() -> None:
    watcher = watched("billing")
    watcher.groups["billing"].learn(GroupState("billing", {}, {}, None), 0.0)
    for watcher.ready, state in ((True, "empty"), (False, "empty?")):
        (own,) = (line for line in drawn(watcher) if line.startswith("> billing"))
        assert own.split()[2] == state


def test_the_lag_has_an_age_and_is_a_lower_bound_where_some_is_unknown() -> None:
    watcher, p, q = watched("billing", "new"), TopicPartition("t", 0), TopicPartition("new", 0)
    for name, group in watcher.groups.items():
        group.learn(GroupState(name, {}, {}, None), 0.0)
    for at, end in ((0.0, 10), (300.0, 20)):
        watcher.groups["billing"].measure(
            Logs({p: OffsetAndMetadata(10, "", -1)}, {p: 0}, {p: end}), frozenset({p}), at
        )
    logs = Logs({p: OffsetAndMetadata(10, "", -1)}, {p: 0, q: 0}, {p: 1244, q: 7})
    watcher.groups["new"].measure(logs, frozenset({p, q}), 0.0)
    text = "\n".join(drawn(watcher))
    assert "5 min" in text
    assert " >1 234 " in text


def test_a_plan_counts_moves_between_members_and_orders_that_are_over() -> None:
    watcher = watched("billing")
    names = [f"m-{number:016x}-{number:010}" for number in range(4)]
    members = {
        name: MemberInfo(f"worker-{at}", "host", frozenset({"t"}), orders=("cordon", "freeze"))
        for at, name in enumerate(names)
    }
    p = [TopicPartition("t", number) for number in range(20)]
    document = AssignmentDocument(
        generation=3,
        strategy="naive",
        owners={names[0]: frozenset(p[10:])},
        waiting={names[0]: Waiting(2, frozenset(p[:7]))},
        promised={names[1]: frozenset(p[:5]), names[2]: frozenset(p[5:7]), names[3]: frozenset(p[7:10])},
    )
    old = [Order.make("freeze", {}, who="bob", now_ms=1, expires=2) for _ in range(2)]
    new = [Order.make("cordon", {"member": f"web{n}"}, who="alice", now_ms=wall_ms()) for n in range(5)]
    state = GroupState("billing", members, {}, document, orders=Orders((*old, *new)))
    watcher.groups["billing"].learn(state, 0.0)
    lines = drawn(watcher, width=60)
    assert max(map(len, lines)) <= 60
    at = lines.index("plan: 10 partitions move")
    assert lines[at + 1] == "  worker-0@host#0 -> worker-1@host#1: 5 partitions"
    assert set(lines[at + 2 : at + 4]) == {
        "  worker-0@host#0 -> worker-2@host#2: 2 partitions",
        "  no owner -> worker-3@host#3: 3 partitions",
    }
    kept = [line for line in lines if line.startswith("command ")]
    assert [line.partition(" by ")[0] for line in kept] == [f"command cordon web{n}" for n in (4, 3, 2)]
    assert "and 2 more commands and 2 done or expired commands" in lines
    assert len(drawn(watcher, height=24, width=60)) <= 24
