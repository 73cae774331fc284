"""The compared clients. A member reads the record of each assigned partition, and commits when it is revoked.

Each partition has one record. A member commits offset 0, so that the next owner reads the record again. Thus every peer
does the work of a service in a rebalance: it commits, requests committed offsets, and fetches.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ... import former
from ..settings import Settings
from .base import Members

__all__ = ["FORMER", "KIP848", "OVER_ZOOKEEPER", "PEERS", "Members", "members_of"]

FORMER = "former-sticky"
"""The version of this library that the gate's stored ratios are of."""
# peer -> module and class; a worker imports only its own peer
PEERS = {
    "ours": "ours:Ours",
    "ours-sticky": "ours:Sticky",
    FORMER: "ours:Sticky",
    "ours-kafka": "ours:OverKafka",
    "ours-kafka-coop": "ours:KafkaCooperative",
    "ours-kip848": "ours:Kip848",
    "kazoo": "set_partitioner:Partitioners",
    "kafka-python": "kafka_python:Eager",
    "kafka-python-coop": "kafka_python:Cooperative",
    "aiokafka": "aio_kafka:AioKafka",
    "confluent": "confluent:Eager",
    "confluent-coop": "confluent:Cooperative",
    "confluent-kip848": "confluent:Kip848",
}
OVER_ZOOKEEPER = ("ours", "ours-sticky", FORMER, "kazoo")
KIP848 = ("ours-kip848", "confluent-kip848")
"""Peers that need brokers of 4.0 or newer."""


def members_of(peer: str, settings: Settings) -> Members:
    if peer == FORMER:
        former.use()
    module, _, name = PEERS[peer].partition(":")
    make: Callable[[Settings], Members] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return make(settings)
