"""A cluster of three brokers in racks, which tests of a session use together because it starts slowly."""

from __future__ import annotations

from collections.abc import Callable

from allocator.testing import LocalCluster

__all__ = ["racked_brokers"]

RACKS = {
    "broker.rack": "rack-{id}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # followers get the high watermark soon
    "replica.fetch.wait.max.ms": 100,
}


def racked_brokers(cluster_factory: Callable[..., LocalCluster], kafka: str = "3.9.1") -> LocalCluster:
    """Returns the cluster. Each broker is in a rack of its own, and clients may read from followers."""
    return cluster_factory(kafka=kafka, brokers=3, broker_config=RACKS)
