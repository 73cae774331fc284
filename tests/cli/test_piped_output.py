"""What every command writes into a pipe: no line is filled up with spaces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from click.testing import CliRunner
from parsed import leaves

from allocator import Consumer
from allocator.cli.commands import main
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.testing.batches import ProducedRecord

LETTERS: Final = ["{dead}", "{brokers}"]
SPARK: Final = ["{brokers}", "--topic", "{topic}", "--dry-run"]
GROUP: Final = ["{group}", "{servers}"]
# name of a command -> arguments with which it prints something, in an order in which each finds what it needs:
# while the group has a member, and afterwards
MEMBER: Final = {
    "group list": ["{servers}"],
    "group cordon": [*GROUP, "worker", "--why", "its disk fails"],
    "group pin": [*GROUP, "{topic}:0", "worker"],
    "group pause": [*GROUP, "{topic}:0-1"],
    "group skip": [*GROUP, "{topic}:0", "3"],
    "group orders": GROUP,
    "group describe": GROUP,
    "group plan": [*GROUP, "--add", "another"],
    "group uncordon": [*GROUP, "worker"],
    "group unpin": [*GROUP, "{topic}:0"],
    "group resume": [*GROUP, "{topic}:0-1"],
    "group evacuate": [*GROUP, "worker", "--dry-run"],
    "group freeze": GROUP,
    "group thaw": GROUP,
    "group budget": [*GROUP, "--at-once", "2"],
    "group canary": [*GROUP, "1"],
    "group promote": GROUP,
    "group quarantine": [*GROUP, "{topic}:1"],
    "group seek": [*GROUP, "{topic}:0", "--to", "latest"],
    "group swap": [*GROUP, "worker", "web2", "--dry-run"],
    "group adopt": GROUP,
    "group release": [*GROUP, "i-1"],
    "group offsets show": GROUP,
    "group offsets reset": [*GROUP, "--to", "earliest"],
    "group delete": GROUP,
    "doctor": [*GROUP, "--interval", "0"],
    "top": [*GROUP, "--once", "--interval", "0.2"],
}
NO_MEMBER: Final = {
    "records": ["{topic}", "{brokers}", "--from", "earliest"],
    "offsets copy": ["{group}", "b", "{servers}", "--execute", "--restore-file", "{tmp}/restore.json"],
    "offsets restore": ["{tmp}/restore.json"],
    "deadletters list": LETTERS,
    "deadletters show": [*LETTERS, "--letter", "0:0"],
    "deadletters redrive": LETTERS,
    "deadletters discard": LETTERS,
    "archive": ["{tmp}/archive", *SPARK],
    "audit": ["kafka://{address}/{topic}", "kafka://{address}/{dead}", "--dry-run"],
    "skew": ["{topic}", "{brokers}", "--dry-run"],
    "traffic record": ["{tmp}/recording.json", "{brokers}", "--topic", "{topic}"],
    "run": ["{tmp}/orders.toml", "--check", "--connect"],
    "cutover": ["{tmp}/plan.toml", "--status"],
    "cluster fetch": ["3.9.1"],
    "completion": ["bash"],
}
# they print an address or a status line, with `click.echo` and `print`, until they are stopped
LONG: Final = {"cluster up", "mirror", "web"}
# no group of kiel's, no reservation, an order that is not kept
CODES: Final = {"group adopt": 1, "group release": 1, "doctor": 3}

CONFIG: Final = """
[kafka]
brokers = ["{address}"]
[zookeeper]
hosts = "{zookeeper}"
[group]
name = "{group}"
topics = ["{topic}"]
[handler]
target = "examples.handlers:show"
"""
PLAN: Final = """
[cutover]
groups = ["{group}"]
topics = ["{topic}"]
zookeeper = "{zookeeper}"
[old]
brokers = "{address}"
[new]
brokers = "127.0.0.1:2"
"""


def test_this_file_has_every_command() -> None:
    assert {" ".join(path) for path, _ in leaves(main)} == {*MEMBER, *NO_MEMBER, *LONG}


class Shell:
    def __init__(self, **values: str) -> None:
        self.values = values

    def run(self, name: str, arguments: list[str]) -> None:
        """Runs a command, and checks what it prints."""
        where = {"{brokers}": ("--brokers", self.values["address"])}
        where["{servers}"] = (*where["{brokers}"], "--zookeeper", self.values["zookeeper"])
        words = [word for each in arguments for word in where.get(each) or [each.format(**self.values)]]
        done = CliRunner().invoke(main, [*name.split(), *words])
        assert done.exit_code == CODES.get(name, 0), (name, done.output)
        assert done.output, name
        assert not re.findall("^.*[ \\t]$", done.output, re.MULTILINE), name
        assert len(done.output) < 10_000, name


def test_no_command_fills_its_lines_up_in_a_pipe(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic, dead = topic_factory(2), topic_factory(1)
    records = [ProducedRecord(b"k%d" % n, b"two\n  lines", n % 2, None, [("source", b"web")]) for n in range(20)]
    produce(kafka_cluster.bootstrap, topic, records)
    first = [("allocator.topic", topic.encode()), ("allocator.partition", b"0"), ("allocator.error", b"ValueError: no")]
    produce(kafka_cluster.bootstrap, dead, [ProducedRecord(b"k", b"v", 0, None, first)] * 3)
    places = {"zookeeper": f"{kafka_cluster.zookeeper}/{group}", "group": group, "topic": topic}
    shell = Shell(**places, dead=dead, tmp=str(tmp_path), address=kafka_cluster.bootstrap)
    for name, text in (("orders.toml", CONFIG), ("plan.toml", PLAN)):
        (tmp_path / name).write_text(text.format(**shell.values))

    async def with_a_member() -> None:
        consumer = Consumer(
            topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=places["zookeeper"], client_id="worker"
        )
        async with consumer:
            await wait_until_async(lambda: len(consumer.assignment()) == 2, 60)
            await consumer.commit(dict.fromkeys(consumer.assignment(), 5))
            for name, arguments in MEMBER.items():
                await asyncio.to_thread(shell.run, name, arguments)

    asyncio.run(with_a_member())
    for name, arguments in NO_MEMBER.items():
        shell.run(name, arguments)
