"""Commands and the page show a group of named resources alike, whether the brokers are known or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import Allocation
from allocator.cli.commands import main
from allocator.resources.allocation import ROOT
from allocator.testing import LocalCluster, wait_until_async
from tests.web.served import PATIENCE_S, served

pytestmark = pytest.mark.deadline(150)


async def test_topics_are_not_taken_for_resources(
    kafka_cluster: LocalCluster, unique_name: Callable[[], str], group: str
) -> None:
    topic = unique_name()
    await asyncio.to_thread(kafka_cluster.create_topic, topic, 4)
    names = [*(f"shard-{number}" for number in range(5)), topic]  # a resource may have the name of a topic
    where = ["--zookeeper", kafka_cluster.zookeeper, "--root", ROOT]

    async def shown(*words: str) -> tuple[int, dict[str, Any]]:
        done = await asyncio.to_thread(CliRunner().invoke, main, ["group", *words, *where, "--json"])
        return done.exit_code, json.loads(done.stdout)

    async with Allocation(names, group=group, zookeeper=kafka_cluster.zookeeper, client_id="a") as allocation:
        await wait_until_async(lambda: len(allocation.held) == len(names), PATIENCE_S, "all resources")
        alone = await shown("describe", group)
        plan = await shown("plan", group)
        where += ["--brokers", kafka_cluster.bootstrap]
        assert await shown("describe", group) == alone
        assert (alone[0], alone[1]["problems"], alone[1]["unowned"]) == (0, [], [])
        code, beside = await shown("plan", group)
        assert (code, beside["moves"]) == (plan[0], plan[1]["moves"])
        assert beside["moves"] == []
        done = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", group, "--interval", "1", *where])
        assert group in done.output
        assert "unowned-partitions" not in done.output
        assert topic not in done.output
        async with served(kafka_cluster.zookeeper, kafka_cluster.bootstrap, root=ROOT) as it:
            await wait_until_async(lambda: it.watcher.polls >= 2, PATIENCE_S, "two polls of Kafka")
            found = await it.json(f"/api/groups/{group}")
            assert (found["phase"], found["unowned"], found["lag"]) == ("stable", 0, None)
