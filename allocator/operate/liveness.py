"""The live members of a group, whatever their protocol."""

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
    """The names of all members that may commit for this group: in Kafka, and in these ensembles.

    Waits `patience_s` at most for a coordinator that is still loading. Raises BrokerError.
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
            found.append(f"a group of another kind in state {phase} (Kafka)")
    return list(dict.fromkeys(found))
