"""Sums up the orders of customers. The service has no code for tests or versions.

It runs as `python -m examples.migration_suite.service localhost:9092 localhost:2181 orders`, until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any, Optional

from allocator import Consumer, Record


class Totals:
    """Customer -> cents; the last record of each order counts."""

    def __init__(self) -> None:
        self.cents: Counter[str] = Counter()
        self.orders: dict[str, int] = {}

    def handle(self, record: Record) -> None:
        order = json.loads(record.value)
        before = self.orders.get(order["id"], 0)
        self.orders[order["id"]] = order["cents"]
        self.cents[order["customer"]] += order["cents"] - before


async def serve(
    brokers: str, zookeeper: str, topic: str, group: str, totals: Totals, idle_s: Optional[float] = None
) -> None:
    """Runs until it is cancelled; with `idle_s`, also until no record has come for that many seconds."""
    settings: dict[str, Any] = {"brokers": brokers, "zookeeper": zookeeper, "group": group}
    async with Consumer(topic, **settings) as consumer:
        while True:
            batch = await consumer.getbatch(idle_s)
            if batch is None:
                break
            for record in batch:
                totals.handle(record)
        await consumer.commit()


if __name__ == "__main__":
    found = Totals()
    try:
        asyncio.run(serve(*sys.argv[1:4], group="totals", totals=found))
    except KeyboardInterrupt:
        print(dict(found.cents))
