"""What every command writes into a pipe: no line ends with spaces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from allocator import Consumer
from allocator.cli.commands import main
from allocator.testing import LocalCluster, produce, wait_until_async
from allocator.testing.batches import ProducedRecord
from tests.cli.every_command import MEMBER, NO_MEMBER, WITHOUT, leaves, words, write_settings

# need no group
OTHERS: Final = {
    "run": ["{tmp}/orders.toml", "--check", "--connect"],
    "cutover": ["{tmp}/plan.toml", "--status"],
    "cluster fetch": ["3.9.1"],
}
# no group of kiel's, no reservation, a command that is not kept, both clusters are the same
CODES: Final = {"group adopt": 1, "group release": 1, "topics copy": 2}


def test_every_command_is_tried() -> None:
    assert {" ".join(path) for path, _ in leaves(main)} == {*MEMBER, *NO_MEMBER, *WITHOUT}


def check(name: str, arguments: list[str], values: dict[str, str]) -> None:
    """Runs a command, and checks what it prints."""
    done = CliRunner().invoke(main, words(name, arguments, values))
    assert done.exit_code == CODES.get(name, 0), (name, done.output)
    assert done.output, name
    assert not re.findall("^.*[ \\t]$", done.output, re.MULTILINE), name
    assert len(done.output) < 10_000, name


def test_no_command_pads_its_lines_in_a_pipe(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic, dead = topic_factory(2), topic_factory(1)
    records = [ProducedRecord(b"k%d" % n, b"two\n  lines", n % 2, None, [("source", b"web")]) for n in range(20)]
    produce(kafka_cluster.bootstrap, topic, records)
    first = [("allocator.topic", topic.encode()), ("allocator.partition", b"0"), ("allocator.error", b"ValueError: no")]
    produce(kafka_cluster.bootstrap, dead, [ProducedRecord(b"k", b"v", 0, None, first)] * 3)
    places = {"zookeeper": f"{kafka_cluster.zookeeper}/{group}", "group": group, "topic": topic}
    values = {**places, "dead": dead, "tmp": str(tmp_path), "address": kafka_cluster.bootstrap}
    write_settings(tmp_path, kafka_cluster.bootstrap, **places)

    async def with_a_member() -> None:
        consumer = Consumer(
            topic, brokers=kafka_cluster.bootstrap, group=group, zookeeper=places["zookeeper"], client_id="worker"
        )
        async with consumer:
            await wait_until_async(lambda: len(consumer.assignment()) == 2, 60)
            await consumer.commit(dict.fromkeys(consumer.assignment(), 5))
            for name, arguments in MEMBER.items():
                await asyncio.to_thread(check, name, arguments, values)

    asyncio.run(with_a_member())
    for name, arguments in (NO_MEMBER | OTHERS).items():
        check(name, arguments, values)
