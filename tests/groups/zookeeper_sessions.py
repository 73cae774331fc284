"""A session with ZooKeeper for the time of a block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from allocator.protocols.zookeeper.client.client import ZooKeeperClient

__all__ = ["session"]


@contextlib.asynccontextmanager
async def session(hosts: str, **options: Any) -> AsyncIterator[ZooKeeperClient]:
    """Yields a connected client, and closes it."""
    zk = ZooKeeperClient(hosts, **options)
    await zk.connect()
    try:
        yield zk
    finally:
        await zk.close()
