"""A ZooKeeper client that loses the responses of chosen requests, with its connection. ZooKeeper executes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from allocator.testing import FaultProxy
from allocator.zookeeper.client import Op, ZooKeeper

__all__ = ["LossyZooKeeper", "lossy"]

T = TypeVar("T")


@dataclass
class _Loss:
    kind: str
    part: str
    happened: asyncio.Event = field(default_factory=asyncio.Event)


class LossyZooKeeper(ZooKeeper):
    """Connects through a proxy. `observer` is connected directly."""

    def __init__(self, hosts: str, proxy: FaultProxy, observer: ZooKeeper, **options: Any) -> None:
        super().__init__(hosts, **options)
        self._proxy, self._observer = proxy, observer
        self._losses: list[_Loss] = []

    def lose(self, kind: str, part: str) -> asyncio.Event:
        """Loses the response of the next request that creates or deletes (`kind`) a znode with `part` in its path.

        The event is set when that has happened.
        """
        self._losses.append(_Loss(kind, part))
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

    async def _send(self, ops: Sequence[Op], call: Callable[[], Awaitable[T]]) -> T:
        for loss in self._losses:
            op = next((op for op in ops if op.kind == loss.kind and loss.part in op.path), None)
            if op is not None:
                self._losses.remove(loss)
                return await self._lose(op, call, loss)
        return await call()

    async def _lose(self, op: Op, call: Callable[[], Awaitable[T]], loss: _Loss) -> T:
        executed = asyncio.Event()
        await self._observer.get_children(op.path.rpartition("/")[0], executed.set)
        self._proxy.drop(direction="to_client")
        request = asyncio.ensure_future(call())
        await asyncio.wait_for(executed.wait(), 30)
        loss.happened.set()
        self._proxy.reset()
        self._proxy.heal()
        return await request


@contextlib.asynccontextmanager
async def lossy(hosts: str, **options: Any) -> AsyncIterator[LossyZooKeeper]:
    """A client that is not connected yet; `hosts` has a port and perhaps a chroot."""
    address, slash, chroot = hosts.partition("/")
    observer = ZooKeeper(hosts)
    await observer.connect()
    proxy = FaultProxy(int(address.rpartition(":")[2]))
    try:
        with proxy:
            yield LossyZooKeeper(f"{proxy.address}{slash}{chroot}", proxy, observer, **options)
    finally:
        await observer.close()
