"""Creates ephemeral znodes so that a lost response leaves none of them behind.

If the connection is lost before the response, ZooKeeper may have executed the request, and the session may go on. A
znode that a client has created without knowing it is a ghost: the other clients respect it, and nobody deletes it
before the session ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from allocator.core.zookeeper.client import NoZnode, Op, ZooKeeperClient


class EphemeralZnodes:
    """The ephemeral znodes that a client creates for one purpose, for example those of one member.

    Guarantee: ZooKeeper has at most those of the last successful call. After ConnectionLost, call the method again once
    the connection is back: it finds and deletes what an earlier call has created, in this session or in an earlier one.
    """

    def __init__(self, zk: ZooKeeperClient) -> None:
        self._zk = zk
        self._paths: tuple[str, ...] = ()
        self._prefix: str | None = None
        self._sessions: set[int | None] = set()

    async def create(self, znodes: Mapping[str, bytes]) -> None:
        """Creates znodes (path -> data) in one transaction. Raises ZnodeExists if another client has one of them."""
        await self.delete()
        self._paths = tuple(znodes)
        self._sessions.add(self._zk.session_id)
        await self._zk.multi([Op("create", path, data, ephemeral=True) for path, data in znodes.items()])

    async def create_sequential(self, prefix: str, data: bytes = b"") -> str:
        """Creates one znode and returns its path: `prefix`, which no other client uses, and a number."""
        await self.delete()
        self._prefix = prefix
        self._sessions.add(self._zk.session_id)
        return await self._zk.create(prefix, data, ephemeral=True, sequence=True)

    async def delete(self) -> None:
        """Deletes the znodes, the newest first; does nothing if there are none."""
        if not self._sessions:
            return
        await self._zk.sync()
        for path in [*await self._with_prefix(), *reversed(self._paths)]:
            stat = await self._zk.exists(path)
            if stat is not None and stat.owner in self._sessions:
                with contextlib.suppress(NoZnode):
                    await self._zk.delete(path)
        self._paths, self._prefix = (), None
        self._sessions.clear()

    async def _with_prefix(self) -> list[str]:
        if self._prefix is None:
            return []
        directory, _, start = self._prefix.rpartition("/")
        with contextlib.suppress(NoZnode):
            return [f"{directory}/{name}" for name in await self._zk.get_children(directory) if name.startswith(start)]
        return []
