"""`allocator offsets` with a password for brokers and a certificate for ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from secrets_and_doors import PASSWORDS, Secured

from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.types import OffsetAndMetadata, TopicPartition


def settings_file(secured: Secured, group: str, topic: str, directory: Path) -> Path:
    sections: dict[str, dict[str, Any]] = {
        "kafka": {"brokers": [secured.brokers("SASL_SSL")], **secured.kafka("SASL_SSL")},
        "zookeeper": {"hosts": secured.zookeeper, "tls": True, **secured.zookeeper_options()},
        "group": {"name": group, "topics": [topic]},
        "handler": {"target": "examples.handlers:show"},
    }
    del sections["zookeeper"]["use_ssl"]
    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path = directory / "service.toml"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.deadline(120)
async def test_offsets_are_found_copied_and_put_back(
    secured: Secured, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, secured.cluster)
    await asyncio.to_thread(secured.cluster.produce, topic, [b"%d" % number for number in range(60)])
    async with KafkaClient(secured.cluster.bootstrap) as client:
        offsets = GroupOffsets(client, group)
        await offsets.commit({TopicPartition(topic, 0): OffsetAndMetadata(30, "", -1)})
        await offsets.close()
    config = await asyncio.to_thread(settings_file, secured, group, topic, tmp_path)

    async def run(*words: str) -> Any:
        result: Result = await asyncio.to_thread(CliRunner().invoke, main, ["offsets", *words, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    for by in ("content", "timestamp", "offset"):
        file = tmp_path / f"{by}.json"
        options = ["-c", str(config), "--by", by, "--execute", "--restore-file", str(file)]
        told = await run("copy", group, f"{group}-{by}", *options)
        # by time, the records of one millisecond come again
        assert told["partitions"][0]["after"] == 30 or by == "timestamp"
        text = await asyncio.to_thread(file.read_text)
        assert PASSWORDS["PLAIN"] not in text
        assert await run("restore", str(file), "-c", str(config)) == {
            "restored": [],
            "forgotten": [f"{topic}:0"],
            "left": [],
        }
