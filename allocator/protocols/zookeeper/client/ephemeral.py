"""Creates ephemeral znodes, and finds them again after a lost response.

If the connection is lost before the response, ZooKeeper may have executed the request, and the session may continue.
Then the client has created a znode without knowing it. Other clients respect that znode, and no client deletes it
before the session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from allocator.protocols.zookeeper.client.client import ConnectionLost, NoZnode, Op, ZooKeeperClient, ZooKeeperError

AT_ONCE = 200  # concurrent requests. Higher: other clients wait longer; lower: more round trips


class EphemeralZnodes:
    """The ephemeral znodes that a client creates for one purpose, for example those of one member.

    Guarantee: no znode is forgotten, whether it was created in this session or in an earlier one. After ConnectionLost,
    call any method again once the connection is back: it first finds out which znodes exist.
    """

    def __init__(self, zk: ZooKeeperClient) -> None:
        self.paths: dict[str, None] = {}
        """Paths of the znodes that certainly exist, in the order of their creation."""
        self._zk = zk
        self._unknown: dict[str, object] = {}  # path -> the request without a response
        self._prefixes: set[str] = set()  # prefixes of sequential znodes whose creation got no response
        self._sessions: set[int | None] = set()

    async def create(self, znodes: Mapping[str, bytes]) -> None:
        """Creates the missing znodes of `znodes` (path -> data) in one transaction.

        Raises ZnodeExists if another client has one of them.
        """
        await self.recover()
        missing = [path for path in znodes if path not in self.paths]
        if not missing:
            return
        self._sessions.add(self._zk.session_id)
        self._doubt(missing)
        try:
            await self._zk.multi([Op("create", path, znodes[path], ephemeral=True) for path in missing])
        except ZooKeeperError as error:
            if not isinstance(error, ConnectionLost):
                self._settle(missing)
            raise
        self._settle(missing)
        self.paths.update(dict.fromkeys(missing))

    async def create_sequential(self, prefix: str, data: bytes = b"") -> str:
        """Creates a znode and returns its path: `prefix`, which no other client uses, and a number."""
        await self.recover()
        self._sessions.add(self._zk.session_id)
        self._prefixes.add(prefix)
        path = await self._zk.create(prefix, data, ephemeral=True, sequence=True)
        self._prefixes.discard(prefix)
        self.paths[path] = None
        return path

    async def delete(self, paths: Collection[str] | None = None) -> None:
        """Deletes these znodes, by default all. Ignores paths that this client did not create."""
        await self.recover()
        left = iter([path for path in self.paths if paths is None or path in paths])
        while some := list(islice(left, AT_ONCE)):
            await self._delete(some)

    async def recover(self) -> None:
        """Finds out which znodes exist after lost responses, or after the session was replaced."""
        if self._zk.session_id not in self._sessions:
            self._doubt(tuple(self.paths))
        if not self._unknown and not self._prefixes:
            return
        await self._zk.sync()
        for prefix in tuple(self._prefixes):
            directory, _, start = prefix.rpartition("/")
            with contextlib.suppress(NoZnode):
                names = await self._zk.get_children(directory)
                self._doubt(f"{directory}/{name}" for name in names if name.startswith(start))
            self._prefixes.discard(prefix)
        unknown = iter(tuple(self._unknown.items()))
        while some := list(islice(unknown, AT_ONCE)):
            stats = await asyncio.gather(*(self._zk.exists(path) for path, _ in some))
            for (path, request), stat in zip(some, stats):
                if self._unknown.get(path) is request:  # no other call has created or deleted it since
                    self._settle([path])
                    if stat is not None and stat.owner in self._sessions:
                        self.paths[path] = None

    async def _delete(self, paths: list[str]) -> None:
        self._doubt(paths)
        try:
            await self._zk.multi([Op("delete", path) for path in paths])
        except NoZnode:  # another client deleted one of them, so the transaction deleted none
            await self.recover()
            for path in [path for path in paths if path in self.paths]:
                await self._delete([path])
        else:
            self._settle(paths)

    def _doubt(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.paths.pop(path, None)
            self._unknown[path] = object()

    def _settle(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._unknown.pop(path, None)
