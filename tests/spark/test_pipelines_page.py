"""The code of docs/pipelines.md, in the session of this room; its commands are run in test_audit_commands.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repository import ROOT, code_blocks

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.testing import LocalCluster
from allocator.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVING, AUDITING = code_blocks(ROOT / "docs" / "pipelines.md", "python")


def replaced(code: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        assert f'"{before}"' in code
        code = code.replace(f'"{before}"', f'"{after}"')
    return code


def test_what_a_group_committed_is_archived_and_audited(
    spark: SparkSession, kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    orders = topic_factory(12)
    kafka_cluster.produce(orders, [(None, b"%d" % n, n % 12) for n in range(48)])

    async def commit() -> None:
        async with KafkaClient(kafka_cluster.bootstrap) as client:
            offsets = {TopicPartition(orders, number): OffsetAndMetadata(3, "", -1) for number in range(12)}
            await GroupOffsets(client, group).commit(offsets)

    asyncio.run(commit())
    changes = {"localhost:9092": kafka_cluster.bootstrap, "orders": orders, "/data/archive": str(tmp_path)}
    names: dict[str, Any] = {"spark": spark}
    exec(replaced(ARCHIVING, {**changes, "billing": group}), names)
    assert sorted((row.partition, row.offset) for row in names["records"].collect()) == [
        (number, offset) for number in range(12) for offset in range(3)
    ]
    exec(replaced(AUDITING, changes), names)
    assert names["report"].right.records == 36
