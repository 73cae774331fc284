"""`allocator top`: one frame, JSON, and a terminal."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from allocator import Consumer, ZooKeeper
from allocator.cli.access import Access
from allocator.cli.commands import main
from allocator.cli.top import frame
from allocator.operate.group_report import GroupState
from allocator.testing import LocalCluster
from allocator.testing.waiting import wait_until_async
from allocator.web.watch import WatchedGroup, Watcher
from tests.cli.terminal import in_a_terminal, run_command

pytestmark = pytest.mark.deadline(150)
PATIENCE_S = 60.0


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

        async def json_of(*words: str) -> Any:
            _, out, err = await run_command(*words, group, "--json", "--interval", "0.3", *where)
            assert not err
            return json.loads(out)

        shown_json = await json_of("top")
        assert [(each["group"], each["lag"], each["partitions"]) for each in shown_json["groups"]] == [(group, 50, 3)]
        assert [member["client_id"] for member in shown_json["group"]["members"]] == ["the-only-one"]
        assert shown_json["group"]["series"][-1]["consumed"] == 0

        await consumer.commit(dict.fromkeys(consumer.assignment(), 60))  # beyond the end of the log
        severities = Counter(each["severity"] for each in (await json_of("doctor"))["findings"])
        assert severities["critical"] == 1
        counted = (await json_of("top"))["groups"][0]["findings"]
        assert {severity: count for severity, count in counted.items() if count} == severities

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
def test_an_invalid_address_is_named_at_once(command: str) -> None:
    """The connecting task fails while another task waits for it."""
    done = CliRunner().invoke(main, [*command.split(), "--zookeeper", "127.0.0.1:1", "--brokers", "foo:bar"])
    assert done.exit_code == 2, done.output
    assert "foo:bar" in done.output


def test_without_zookeeper_the_state_of_a_group_is_uncertain() -> None:
    watcher = Watcher(Access("127.0.0.1:1"))
    watcher.groups["billing"] = WatchedGroup("billing")
    watcher.groups["billing"].learn(GroupState("billing", {}, {}, None), 0.0)
    console = Console(width=120)
    for watcher.ready, state in ((True, "unknown"), (True, "empty"), (False, "empty?")):
        if state == "empty":
            watcher.groups["billing"].look(())
        with console.capture() as capture:
            console.print(frame(watcher, None, 1000, 120))
        (own,) = (line for line in capture.get().splitlines() if line.startswith("> billing"))
        assert own.split()[2] == state
