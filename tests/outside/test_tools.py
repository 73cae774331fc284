"""Kafka's own tools show the same as this library, and groups continue at offsets that the tools set."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from allocator import Consumer, TopicPartition
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.plugin import ClusterFactory
from allocator.testing.versions import NEWEST
from tests.joining import joined
from tests.outside.java_tools import number, run_tool

pytestmark = pytest.mark.deadline(240)
long = pytest.mark.long

PARTITIONS = 3
RECORDS = 10
"""In each partition."""
READ = 4
"""How many of them are committed, in each partition."""


class Tools:
    """The tools of one version beside a group of allocator, on a topic with records."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        self.cluster, self.topic, self.group, self.version = cluster, topic, group, cluster.version
        cluster.produce(topic, [(None, b"%d" % n, n % PARTITIONS) for n in range(PARTITIONS * RECORDS)])
        self.partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]

    @contextlib.asynccontextmanager
    async def member(self, wanted: Mapping[int, int], membership: str = "kafka", **more: Any) -> AsyncIterator[Any]:
        """A consumer that owns all partitions and has committed the offsets `wanted`."""
        async with self.consumer(membership, **more) as consumer:
            await wait_until_async(lambda: len(consumer.assignment()) == PARTITIONS, 60, "it to own all partitions")
            await consumer.commit({self.partitions[partition]: offset for partition, offset in wanted.items()})
            assert await self.committed(consumer) == wanted
            yield consumer

    def consumer(self, membership: str = "kafka", **more: Any) -> Consumer:
        arguments = {"brokers": self.cluster.bootstrap, "group": self.group, "auto_commit_interval_s": None, **more}
        if membership != "kafka":
            arguments["zookeeper"] = self.cluster.zookeeper
        return Consumer(self.topic, **joined(membership=membership, **arguments))

    async def tool(self, name: str, *arguments: str) -> str:
        return await asyncio.to_thread(run_tool, self.version, name, *arguments)

    async def groups(self, *arguments: str) -> str:
        """Runs kafka-consumer-groups. 0.10 needs an option for groups that are not in ZooKeeper."""
        old = ["--new-consumer"] if number(self.version) < (0, 11) else []
        where = ["--bootstrap-server", self.cluster.bootstrap, "--group", self.group]
        return await self.tool("ConsumerGroupCommand", *old, *where, *arguments)

    async def committed(self, consumer: Consumer) -> dict[int, int]:
        found = {tp.partition: await consumer.committed(tp) for tp in self.partitions}
        return {partition: offset.offset for partition, offset in found.items() if offset is not None}

    async def first_offsets(self, membership: str = "kafka") -> dict[int, int]:
        """Returns the offsets at which a member of allocator starts to read."""
        found: dict[int, int] = {}
        async with self.consumer(membership) as consumer:
            while len(found) < PARTITIONS:
                record = await consumer.getone(60)
                assert record is not None
                found.setdefault(record.partition, record.offset)
        return found


def by_partition(text: str, column: str) -> dict[int, dict[str, str]]:
    lines = [line.split() for line in text.splitlines()]
    heads = [place for place, words in enumerate(lines) if column in words]
    assert heads, text
    head = lines[heads[0]]
    rows = [dict(zip(head, words)) for words in lines[heads[0] + 1 :] if len(words) >= 5]
    return {int(row[column]): row for row in rows if row.get(column, "").isdigit()}


@pytest.fixture
def make_tools(
    cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str
) -> Callable[[str], Tools]:
    def make(version: str) -> Tools:
        cluster = cluster_factory(kafka=version)
        return Tools(cluster, topic_factory(PARTITIONS, cluster=cluster), group)

    return make


NEW = [pytest.param("3.9.1"), *(pytest.param(each, marks=long) for each in ("2.8.2", NEWEST))]
MakeTools = Callable[[str], Tools]


@long
@pytest.mark.parametrize("version", ["0.10.2.2", "1.1.1", "3.9.1", "2.8.2", NEWEST])
async def test_describe_shows_the_offsets_of_a_live_group(version: str, make_tools: MakeTools) -> None:
    tools = make_tools(version)
    offsets = dict.fromkeys(range(PARTITIONS), READ)
    async with tools.member(offsets, client_id="billing-1") as consumer:
        rows = by_partition(await tools.groups("--describe"), "PARTITION")
        assert {n: int(row["CURRENT-OFFSET"]) for n, row in rows.items()} == offsets
        assert {int(row["LAG"]) for row in rows.values()} == {RECORDS - READ}
        assert {row["CONSUMER-ID"] for row in rows.values()} == {consumer.member_id}
        assert {row["CLIENT-ID"] for row in rows.values()} == {"billing-1"}
        ends = {n: int(row["LOG-END-OFFSET"]) for n, row in rows.items()}
    where = "--bootstrap-server" if number(version) >= (3,) else "--broker-list"
    shown = await tools.tool("GetOffsetShell", where, tools.cluster.bootstrap, "--topic", tools.topic, "--time", "-1")
    shell = [line.split(":") for line in shown.splitlines() if line.startswith(tools.topic)]
    assert {int(words[1]): int(words[2]) for words in shell} == ends == dict.fromkeys(range(PARTITIONS), RECORDS)


@long
@pytest.mark.parametrize("version", ["3.9.1", "2.8.2"])
async def test_describe_shows_what_group_offsets_shows_of_a_group_over_zookeeper(
    version: str, make_tools: MakeTools
) -> None:
    tools = make_tools(version)
    async with tools.member({n: READ + n for n in range(PARTITIONS)}, "zookeeper"):
        rows = by_partition(await tools.groups("--describe"), "PARTITION")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "allocator.cli", "group", "offsets", tools.group, "--json"),
        *("--brokers", tools.cluster.bootstrap, "--zookeeper", tools.cluster.zookeeper),
        stdout=asyncio.subprocess.PIPE,
    )
    shown = json.loads((await process.communicate())[0])["partitions"]
    offsets = {each["partition"]: (each["committed"], each["log_end"], each["lag"]) for each in shown}
    columns = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    assert {n: tuple(int(row[name]) for name in columns) for n, row in rows.items()} == offsets


@pytest.mark.parametrize("version", [pytest.param("1.1.1", marks=long), *NEW])
@pytest.mark.parametrize("membership", [pytest.param("kafka", marks=long), "zookeeper"])
async def test_a_member_starts_where_a_reset_put_the_group(
    version: str, membership: str, make_tools: MakeTools
) -> None:
    tools = make_tools(version)
    async with tools.member(dict.fromkeys(range(PARTITIONS), READ), membership):
        pass
    await tools.groups("--reset-offsets", "--topic", f"{tools.topic}:0,1", "--shift-by", "3", "--execute")
    await tools.groups("--reset-offsets", "--topic", f"{tools.topic}:2", "--to-offset", "1", "--execute")
    assert await tools.first_offsets(membership) == {0: READ + 3, 1: READ + 3, 2: 1}


@long
@pytest.mark.parametrize("version", NEW)
async def test_a_member_starts_at_the_first_record_where_offsets_were_deleted(
    version: str, make_tools: MakeTools
) -> None:
    tools = make_tools(version)
    async with tools.member(dict.fromkeys(range(PARTITIONS), READ)):
        pass
    await tools.groups("--delete-offsets", "--topic", f"{tools.topic}:1")
    assert await tools.first_offsets() == {0: READ, 1: 0, 2: READ}
    await tools.groups("--delete")
    assert await tools.first_offsets() == dict.fromkeys(range(PARTITIONS), 0)


@long
@pytest.mark.parametrize("version", ["0.8.2.2"])
@pytest.mark.parametrize("offsets", ["kafka", "zookeeper"])
async def test_the_offset_checker_of_0_8_shows_a_group_of_consumers(
    version: str, offsets: str, make_tools: MakeTools
) -> None:
    tools = make_tools(version)
    committed = {n: READ + n for n in range(PARTITIONS)}
    async with tools.member(committed, "consumers", offsets=offsets, client_id="billing-1"):
        where = ["--zookeeper", tools.cluster.zookeeper, "--group", tools.group, "--topic", tools.topic]
        rows = by_partition(await tools.tool("ConsumerOffsetChecker", *where), "Pid")
    assert {n: int(row["Offset"]) for n, row in rows.items()} == committed
    assert {n: int(row["logSize"]) for n, row in rows.items()} == dict.fromkeys(range(PARTITIONS), RECORDS)
    assert all(row["Owner"] != "none" for row in rows.values())
