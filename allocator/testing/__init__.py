"""Real ZooKeeper and Kafka for tests, also of other projects.

In: versions and numbers of nodes. Out: a cluster whose nodes a test can stop, kill, pause and resume; proxies that make
connections fail; a pytest plugin with fixtures; helpers that fill topics and wait for conditions. May touch: its cache
directory, temporary directories and ports of 127.0.0.1. It needs Python and access to Maven Central, but no Docker,
root or system packages. No other room imports this one.

Names are loaded on first use, because every pytest run with this package installed imports the plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batches import ProducedRecord
    from .cluster import LocalCluster
    from .errors import (
        ClusterError,
        JarsUnavailable,
        JavaNotFound,
        NoContainerEngine,
        ServerStartFailed,
        TestingError,
        UnknownVersion,
        WaitTimeout,
    )
    from .node import Node
    from .probe import Metadata, PartitionState
    from .producing import Produced, produce
    from .proxy import Direction, FaultProxy
    from .waiting import wait_until, wait_until_async

_HOME = {
    "LocalCluster": "cluster",
    "Metadata": "probe",
    "PartitionState": "probe",
    "Node": "node",
    "Produced": "producing",
    "Direction": "proxy",
    "ProducedRecord": "batches",
    "FaultProxy": "proxy",
    "produce": "producing",
    "wait_until": "waiting",
    "wait_until_async": "waiting",
    "ClusterError": "errors",
    "JarsUnavailable": "errors",
    "JavaNotFound": "errors",
    "NoContainerEngine": "errors",
    "ServerStartFailed": "errors",
    "TestingError": "errors",
    "UnknownVersion": "errors",
    "WaitTimeout": "errors",
}

__all__ = [
    "ClusterError",
    "Direction",
    "FaultProxy",
    "JarsUnavailable",
    "JavaNotFound",
    "LocalCluster",
    "Metadata",
    "NoContainerEngine",
    "Node",
    "PartitionState",
    "Produced",
    "ProducedRecord",
    "ServerStartFailed",
    "TestingError",
    "UnknownVersion",
    "WaitTimeout",
    "produce",
    "wait_until",
    "wait_until_async",
]

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
