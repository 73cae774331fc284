"""Lists the live members of a group in all protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from allocator.core.client import KafkaClient
from allocator.core.zookeeper import ZooKeeperClient
from allocator.errors import BrokerError
from allocator.operate.group_reader import describe
from allocator.operate.kafka_describe import kafka_group
from allocator.operate.layouts import old_layouts

IDLE: Final = ("Empty", "Dead", "")


async def live_members(
    client: KafkaClient, ensembles: Iterable[ZooKeeperClient], group: str, root: str, patience_s: float = 30.0
) -> list[str]:
    """Returns the names of all members, in Kafka and in these ensembles, that may commit for the group.

    Retries for at most `patience_s` seconds while the coordinator loads its offsets. Raises BrokerError.
    """
    found: list[str] = []
    for ensemble in ensembles:
        state = await describe(ensemble, group, root)
        if state is not None:
            found += map(state.name_of, state.members)
        older = await old_layouts(ensemble, group)
        found += [f"{name} (kiel)" for name in older.kiel]
        found += [f"{name} (high-level consumer)" for name in older.consumers]
    deadline = time.monotonic() + patience_s
    while True:
        try:
            described = await kafka_group(client, group)
            break
        except BrokerError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
        await asyncio.sleep(client.retry_backoff_s)
    if described is not None:
        found += [f"{described.name_of(member)} (Kafka)" for member in described.members]
        phase = "" if described.coordinated is None else described.coordinated.state
        if not described.members and phase not in IDLE:
            found.append(f"members that are not consumers, in state {phase} (Kafka)")
    return list(dict.fromkeys(found))
