"""Tests the service with the same traffic on its current and its next cluster.

    pytest examples/migration_suite
    pytest examples/migration_suite --kafka-versions 0.8.2.2,3.9.1

traffic.jsonl was recorded with `allocator traffic record traffic.jsonl --brokers b1:9092 --topic orders`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from examples.migration_suite.service import Totals, serve

IDLE_S = 5.0  # a new member waits for its partitions first


@pytest.mark.kafka_versions("0.9.0.1", "3.9.1")
def test_the_totals_are_the_same(versioned_cluster: Any, replay: Any, outcome: Any, group: str) -> None:
    topics = replay("traffic.jsonl")
    totals = Totals()
    where = versioned_cluster.bootstrap, versioned_cluster.zookeeper, topics["orders"]
    asyncio.run(serve(*where, group, totals, IDLE_S))
    assert sum(totals.cents.values()) == sum(totals.orders.values())
    outcome.same({"cents": sorted(totals.cents.items()), "orders": sorted(totals.orders.items())})
