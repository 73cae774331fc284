"""Real ZooKeeper and Kafka servers for the tests of this and other projects.

A test can stop, kill, pause and resume the nodes of a cluster, and make connections fail with proxies. A pytest plugin
offers fixtures; helpers fill topics and wait for conditions. The package needs Python and access to Maven Central, but
no Docker, root or system packages. It writes only to its cache directory and to temporary directories.

Modules are imported when a name is first used, because every pytest run with this package installed imports the plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

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
    from .jars import fetch_jars
    from .node import Node
    from .probe import Metadata, PartitionState
    from .producing import Produced, produce
    from .proxy import Direction, FaultProxy
    from .traffic import Recording
    from .versions import USUAL_ZOOKEEPER
    from .waiting import wait_until, wait_until_async

__all__ = [
    "USUAL_ZOOKEEPER",
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
    "Recording",
    "ServerStartFailed",
    "TestingError",
    "UnknownVersion",
    "WaitTimeout",
    "fetch_jars",
    "produce",
    "wait_until",
    "wait_until_async",
]

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "batches": "ProducedRecord",
            "cluster": "LocalCluster",
            "errors": "ClusterError JarsUnavailable JavaNotFound NoContainerEngine ServerStartFailed TestingError "
            "UnknownVersion WaitTimeout",
            "jars": "fetch_jars",
            "node": "Node",
            "probe": "Metadata PartitionState",
            "producing": "Produced produce",
            "proxy": "Direction FaultProxy",
            "traffic": "Recording",
            "versions": "USUAL_ZOOKEEPER",
            "waiting": "wait_until wait_until_async",
        },
    )
