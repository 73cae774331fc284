"""ZooKeeper on the running asyncio loop, through kazoo.

It turns addresses, a session timeout and znode paths into awaitables, session states, and errors of `allocator.errors`.
It runs kazoo and its threads, and does not know groups.
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
