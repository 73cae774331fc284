"""Real ZooKeeper and Kafka for anyone's tests.

In comes a version and some numbers; out goes a running cluster whose nodes can be stopped, killed, paused and
resumed, proxies that make their connections fail, a pytest plugin with fixtures of all that, and helpers to fill
topics and to wait for conditions. It needs Python
and a way to Maven Central; Docker, root and system packages are not needed. It may touch nothing but its cache
directory, temporary directories and ports of 127.0.0.1. No other room imports this one.

Names are loaded when they are used first: the plugin is imported by every pytest run where the package is
installed, and must cost it nothing.
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
