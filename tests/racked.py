"""A shared cluster of three brokers in racks, because their start is slow."""

from __future__ import annotations

from collections.abc import Callable

from allocator.testing import LocalCluster

__all__ = ["racked_brokers"]

RACKS = {
    "broker.rack": "rack-{id}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # so that followers learn of the high watermark soon
    "replica.fetch.wait.max.ms": 100,
}


def racked_brokers(cluster_factory: Callable[..., LocalCluster], kafka: str = "3.9.1") -> LocalCluster:
    """Each in a rack of its own, from which followers may be read."""
    return cluster_factory(kafka=kafka, brokers=3, broker_config=RACKS)
