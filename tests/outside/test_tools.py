"""Kafka's own tools show the same as this library, and groups continue at offsets that the tools set."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from java_tools import number, run_tool
from joining import joined

from allocator import Consumer, TopicPartition
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.plugin import ClusterFactory
from allocator.testing.versions import NEWEST

pytestmark = pytest.mark.deadline(240)
long = pytest.mark.long

PARTITIONS = 3
RECORDS = 10
"""In each partition."""
READ = 4
"""Of them committed, in each partition."""


class Tools:
    """The tools of one version beside a group of allocator, on a topic with records."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str) -> None:
        self.cluster, self.topic, self.group, self.version = cluster, topic, group, cluster.version
        cluster.produce(topic, [(None, b"%d" % n, n % PARTITIONS) for n in range(PARTITIONS * RECORDS)])
        self.partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]

    def consumer(self, **settings: Any) -> Consumer:
        arguments: dict[str, Any] = {"membership": "kafka", "auto_commit_interval_s": None, **settings}
        if arguments["membership"] != "kafka":
            arguments["zookeeper"] = self.cluster.zookeeper
        return Consumer(self.topic, **joined(brokers=self.cluster.bootstrap, group=self.group, **arguments))

    async def tool(self, name: str, *arguments: str) -> str:
        return await asyncio.to_thread(run_tool, self.version, name, *arguments)

    async def groups(self, *arguments: str) -> str:
        """Runs kafka-consumer-groups. 0.10 needs an option for groups that are not in ZooKeeper."""
        old = ["--new-consumer"] if number(self.version) < (0, 11) else []
        where = ["--bootstrap-server", self.cluster.bootstrap, "--group", self.group]
        return await self.tool("ConsumerGroupCommand", *old, *where, *arguments)

    async def described(self) -> dict[int, dict[str, str]]:
        """By partition, a row of `--describe` under the names of its columns."""
        return by_partition(await self.groups("--describe"), "PARTITION")

    async def committed(self, consumer: Consumer) -> dict[int, int]:
        found = {tp.partition: await consumer.committed(tp) for tp in self.partitions}
        return {partition: offset.offset for partition, offset in found.items() if offset is not None}

    async def first_offsets(self) -> dict[int, int]:
        """The offsets at which a member of allocator begins to read."""
        found: dict[int, int] = {}
        async with self.consumer() as consumer:
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
def tools(cluster_factory: ClusterFactory, topic_factory: Callable[..., str], group: str) -> Callable[[str], Tools]:
    def make(version: str) -> Tools:
        cluster = cluster_factory(kafka=version)
        return Tools(cluster, topic_factory(PARTITIONS, cluster=cluster), group)

    return make


NEW = [pytest.param("3.9.1"), *(pytest.param(each, marks=long) for each in ("2.8.2", NEWEST))]
OLD = [pytest.param(each, marks=long) for each in ("0.10.2.2", "1.1.1")]


@pytest.mark.parametrize("version", [*OLD, *NEW])
async def test_describe_says_of_a_live_group_what_we_say(version: str, tools: Callable[[str], Tools]) -> None:
    about = tools(version)
    async with about.consumer(client_id="billing-1") as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == PARTITIONS, 30, "all partitions to be ours")
        await consumer.commit(dict.fromkeys(about.partitions, READ))
        rows = await about.described()
        ours = await about.committed(consumer)
        assert {n: int(row["CURRENT-OFFSET"]) for n, row in rows.items()} == ours == dict.fromkeys(range(3), READ)
        assert {int(row["LAG"]) for row in rows.values()} == {RECORDS - READ}
        assert {row["CONSUMER-ID"] for row in rows.values()} == {consumer.member_id}
        assert {row["CLIENT-ID"] for row in rows.values()} == {"billing-1"}
        ends = {n: int(row["LOG-END-OFFSET"]) for n, row in rows.items()}
    where = "--bootstrap-server" if number(version) >= (3,) else "--broker-list"
    told = await about.tool("GetOffsetShell", where, about.cluster.bootstrap, "--topic", about.topic, "--time", "-1")
    shell = [line.split(":") for line in told.splitlines() if line.startswith(about.topic)]
    assert {int(words[1]): int(words[2]) for words in shell} == ends == dict.fromkeys(range(3), RECORDS)


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("2.8.2", marks=long)])
async def test_describe_says_of_a_group_over_zookeeper_what_we_say(version: str, tools: Callable[[str], Tools]) -> None:
    about = tools(version)
    async with about.consumer(membership="zookeeper") as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == PARTITIONS, 30, "all partitions to be ours")
        await consumer.commit({tp: READ + tp.partition for tp in about.partitions})
        rows = await about.described()
        assert {n: int(row["CURRENT-OFFSET"]) for n, row in rows.items()} == await about.committed(consumer)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "allocator.cli", "group", "offsets", about.group, "--json"),
        *("--brokers", about.cluster.bootstrap, "--zookeeper", about.cluster.zookeeper),
        stdout=asyncio.subprocess.PIPE,
    )
    shown = json.loads((await process.communicate())[0])
    said = {each["partition"]: (each["committed"], each["log_end"], each["lag"]) for each in shown["partitions"]}
    columns = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    assert {n: tuple(int(row[name]) for name in columns) for n, row in rows.items()} == said


@pytest.mark.parametrize("version", [pytest.param("1.1.1", marks=long), *NEW])
@pytest.mark.parametrize("membership", [pytest.param("kafka", marks=long), "zookeeper"])
async def test_ours_begins_where_a_reset_put_the_group(
    version: str, membership: str, tools: Callable[[str], Tools]
) -> None:
    about = tools(version)
    about.consumer = lambda consumer=about.consumer, **more: consumer(membership=membership, **more)  # type: ignore
    async with about.consumer() as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == PARTITIONS, 30, "all partitions to be ours")
        await consumer.commit(dict.fromkeys(about.partitions, READ))
    await about.groups("--reset-offsets", "--topic", f"{about.topic}:0,1", "--shift-by", "3", "--execute")
    await about.groups("--reset-offsets", "--topic", f"{about.topic}:2", "--to-offset", "1", "--execute")
    assert await about.first_offsets() == {0: READ + 3, 1: READ + 3, 2: 1}


@pytest.mark.parametrize("version", NEW)
async def test_ours_begins_anew_where_offsets_were_deleted(version: str, tools: Callable[[str], Tools]) -> None:
    about = tools(version)
    async with about.consumer() as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == PARTITIONS, 30, "all partitions to be ours")
        await consumer.commit(dict.fromkeys(about.partitions, READ))
    await about.groups("--delete-offsets", "--topic", f"{about.topic}:1")
    assert await about.first_offsets() == {0: READ, 1: 0, 2: READ}
    await about.groups("--delete")
    assert await about.first_offsets() == dict.fromkeys(range(3), 0)


@long
@pytest.mark.parametrize("version", ["0.8.2.2"])
@pytest.mark.parametrize("offsets", ["kafka", "zookeeper"])
async def test_the_checker_of_0_8_says_what_we_say(version: str, offsets: str, tools: Callable[[str], Tools]) -> None:
    about = tools(version)
    async with about.consumer(membership="consumers", offsets=offsets, client_id="billing-1") as consumer:
        await wait_until_async(lambda: len(consumer.assignment()) == PARTITIONS, 60, "all partitions to be ours")
        await consumer.commit({tp: READ + tp.partition for tp in about.partitions})
        ours = await about.committed(consumer)
        where = ["--zookeeper", about.cluster.zookeeper, "--group", about.group, "--topic", about.topic]
        rows = by_partition(await about.tool("ConsumerOffsetChecker", *where), "Pid")
    assert {n: int(row["Offset"]) for n, row in rows.items()} == ours == {n: READ + n for n in range(PARTITIONS)}
    assert {n: int(row["logSize"]) for n, row in rows.items()} == dict.fromkeys(range(PARTITIONS), RECORDS)
    assert all(row["Owner"] != "none" for row in rows.values())
