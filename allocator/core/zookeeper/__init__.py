"""ZooKeeper on the running asyncio loop, through kazoo.

In: addresses, a session timeout, znode paths. Out: awaitables, session states, and errors of `allocator.errors`.
May touch: kazoo and its threads. It does not know groups.
"""

from __future__ import annotations

from allocator.core.zookeeper.client import (
    BadVersion,
    ConnectionLost,
    NoChroot,
    NoZnode,
    Op,
    SessionState,
    Watched,
    ZnodeExists,
    ZooKeeperClient,
    ZooKeeperError,
    retrying,
)
from allocator.core.zookeeper.ephemeral import EphemeralZnodes
from allocator.core.zookeeper.security import check_options

__all__ = [
    "BadVersion",
    "ConnectionLost",
    "EphemeralZnodes",
    "NoChroot",
    "NoZnode",
    "Op",
    "SessionState",
    "Watched",
    "ZnodeExists",
    "ZooKeeperClient",
    "ZooKeeperError",
    "check_options",
    "retrying",
]
