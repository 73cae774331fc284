"""A group on real servers for the doctor."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from allocator import Consumer, OffsetAndMetadata, TopicPartition
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.operate.doctor import Finding
from allocator.operate.doctor.doctor import examine
from allocator.protocols.zookeeper.client.client import ZooKeeperClient
from allocator.testing import LocalCluster
from tests.cli.terminal import run_command
from tests.joining import joined


class Patient:
    """One topic with ten records in each partition, one group, a chroot of its own."""

    def __init__(self, cluster: LocalCluster, topic: str, group: str, partitions: int) -> None:
        self.cluster, self.topic, self.group = cluster, topic, group
        self.zookeeper = f"{cluster.zookeeper}/{group}"
        self.partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self.base = f"/allocator/{group}"

    async def fill(self, each: int = 10, only: int | None = None) -> None:
        numbers = [p.partition for p in self.partitions] if only is None else [only]
        records = [(None, b"%d" % n, number) for number in numbers for n in range(each)]
        await asyncio.to_thread(self.cluster.produce, self.topic, records)

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        settings = {"session_timeout_s": 10.0, "max_wait_s": 0.1, **settings}
        if settings.get("membership", "zookeeper") == "zookeeper":
            settings.setdefault("zookeeper", self.zookeeper)
        return Consumer(
            *(topics or (self.topic,)), **joined(brokers=self.cluster.bootstrap, group=self.group, **settings)
        )

    async def consume(self, consumer: Consumer, records: int) -> None:
        """Reads `count` records and commits them."""
        while records > 0:
            batch = await consumer.getbatch(30)
            assert batch is not None
            records -= len(batch)
        await consumer.commit()

    @contextlib.asynccontextmanager
    async def clients(self, session_timeout_s: float = 10.0) -> Any:
        zk = ZooKeeperClient(self.zookeeper, session_timeout_s=session_timeout_s)
        below = ZooKeeperClient(self.cluster.zookeeper)
        async with KafkaClient(self.cluster.bootstrap, request_timeout_s=20) as client:
            client.follow_all()
            await client.refresh()
            await asyncio.gather(zk.connect(), below.connect())
            try:
                yield client, zk, below
            finally:
                await asyncio.gather(zk.close(), below.close())

    async def examined(
        self, *, interval_s: float = 0.3, session_timeout_s: float = 10.0, **options: Any
    ) -> dict[str, list[Finding]]:
        """Id -> findings, except those that the settings of the test servers cause."""
        async with self.clients(session_timeout_s) as (client, zk, below):
            findings = await examine(
                options.pop("group", self.group),
                client=client,
                zookeeper=zk,
                kafka_zookeeper=below,
                interval_s=interval_s,
                **options,
            )
        found: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.id != "offsets-expire":  # the test servers keep records for a century
                found.setdefault(finding.id, []).append(finding)
        return found

    async def shell(self, *arguments: str) -> tuple[int, str, str]:
        return await run_command("doctor", *arguments)

    async def shell_json(self, *arguments: str) -> tuple[int, Any]:
        code, out, err = await self.shell(*arguments, "--json")
        assert out, err
        return code, json.loads(out)


async def commit_to_zookeeper(bootstrap: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    """Commits offsets to ZooKeeper, as kiel and consumers of 0.8 do."""
    async with KafkaClient(bootstrap) as client:
        old = GroupOffsets(client, group, in_zookeeper=True)
        await old.commit({p: OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()})
