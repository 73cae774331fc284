"""A ZooKeeper client that loses the responses of chosen requests, with its connection. ZooKeeper executes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from allocator.protocols.zookeeper.client.client import ConnectionLost, Op, Stat, Watch, ZooKeeperClient
from allocator.testing import FaultProxy

T = TypeVar("T")


@dataclass
class _Loss:
    kind: str
    part: str
    executed: bool
    behind: bool
    happened: asyncio.Event = field(default_factory=asyncio.Event)


class LossyZooKeeper(ZooKeeperClient):
    """Connects through `proxy`; `observer` is connected directly."""

    def __init__(self, hosts: str, proxy: FaultProxy, observer: ZooKeeperClient, **options: Any) -> None:
        super().__init__(hosts, **options)
        self.proxy = proxy
        self.observer = observer
        self._losses: list[_Loss] = []
        self._unknown: set[str] = set()  # znodes that the server does not know yet

    def lose(self, kind: str, part: str, *, executed: bool = True, behind: bool = False) -> asyncio.Event:
        """Loses the response of the next request that creates or deletes (`kind`) a znode with `part` in its path.

        `executed` False: the request is lost itself. `behind`: the server after the reconnect does not know the created
        znodes before it has executed a write or `sync`. The event is set when the loss has happened.
        """
        self._losses.append(_Loss(kind, part, executed, behind))
        return self._losses[-1].happened

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        call = super().create
        op = Op("create", path, ephemeral=ephemeral)
        return await self._send([op], lambda: call(path, data, ephemeral=ephemeral, sequence=sequence))

    async def delete(self, path: str, version: int = -1) -> None:
        call = super().delete
        return await self._send([Op("delete", path)], lambda: call(path, version))

    async def multi(self, ops: Sequence[Op]) -> int:
        call = super().multi
        return await self._send(ops, lambda: call(ops))

    async def sync(self) -> None:
        await super().sync()
        self._unknown.clear()

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        return None if path in self._unknown else await super().exists(path, watch)

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str]:
        names = await super().get_children(path, watch)
        return [name for name in names if f"{path}/{name}" not in self._unknown]

    async def _send(self, ops: Sequence[Op], call: Callable[[], Awaitable[T]]) -> T:
        for loss in self._losses:
            op = next((op for op in ops if op.kind == loss.kind and loss.part in op.path), None)
            if op is not None:
                self._losses.remove(loss)
                return await self._lose(op, call, loss)
        try:
            return await call()
        finally:
            self._unknown.clear()  # also an error has its place among the writes

    async def _lose(self, op: Op, call: Callable[[], Awaitable[T]], loss: _Loss) -> T:
        if not loss.executed:
            loss.happened.set()
            raise ConnectionLost("the request is lost")
        executed, directory = asyncio.Event(), op.path.rpartition("/")[0]
        await self.observer.ensure_path(directory)
        before = await self.observer.get_children(directory, executed.set)
        self.proxy.drop(direction="to_client")
        request = asyncio.ensure_future(call())
        await asyncio.wait_for(executed.wait(), 30)
        if loss.behind:
            after = await self.observer.get_children(directory)
            self._unknown = {f"{directory}/{name}" for name in after if name not in before}
        loss.happened.set()
        self.proxy.reset()
        self.proxy.heal()
        return await request


@contextlib.asynccontextmanager
async def lossy(hosts: str, **options: Any) -> AsyncIterator[LossyZooKeeper]:
    """A client that is not connected yet; `hosts` has a port and perhaps a chroot."""
    address, slash, chroot = hosts.partition("/")
    observer = ZooKeeperClient(hosts)
    await observer.connect()
    proxy = FaultProxy(int(address.rpartition(":")[2]))
    try:
        with proxy:
            yield LossyZooKeeper(f"{proxy.address}{slash}{chroot}", proxy, observer, **options)
    finally:
        await observer.close()
