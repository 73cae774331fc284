"""Reads and writes the operator commands of a group in ZooKeeper, for the leader, the members, the CLI and the page.

All commands of a group are in one znode, so one watch reports every change. A write replaces all of them by
compare-and-set: two operators who write at the same time both succeed, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Optional

from allocator.commands import Order, OrderResult, Orders
from allocator.protocols.zookeeper.client.client import BadVersion, Watch, ZnodeExists, ZooKeeperClient, retrying
from allocator.protocols.zookeeper.znodes.documents import Paths
from allocator.protocols.zookeeper.znodes.store import read_of_others

# limit of one write. Higher: a write survives a longer loss of the connection; lower: its caller learns of it sooner
WRITE_S = 10.0


class OrderStore:
    """Reads and writes the commands of one group.

    A `watch` is called once, when the commands may have changed; `Watched(store.read, changed)` renews it.
    """

    def __init__(self, zk: ZooKeeperClient, paths: Paths) -> None:
        self._zk = zk
        self.paths = paths

    async def read(self, watch: Optional[Watch] = None) -> Orders:
        """Returns the current commands, or no commands if the znode does not exist. Raises InvalidZnode."""
        return (await self._read(watch))[0]

    async def put(self, order: Order, now_ms: int) -> Orders:
        """Writes one command, which replaces an earlier one with the same subject. Returns all commands.

        Raises ConfigError for too many commands or results, InvalidZnode if the znode is not readable, and NoZnode if
        the group does not exist.
        """
        return await self._change(lambda orders: orders.put(order, now_ms), with_room=True)

    async def remove(self, ids: Collection[str], now_ms: int) -> tuple[Order, ...]:
        """Removes commands and returns the removed ones. If one id does not exist, raises NoSuchOrder and
        removes none."""
        removed: list[Order] = []

        def change(orders: Orders) -> Orders:
            found = {order_id: orders.find(order_id) for order_id in ids}
            missing = [order_id for order_id, order in found.items() if order is None]
            if missing and not removed:  # otherwise an earlier attempt, whose response was lost, removed them
                raise orders.lacking(self.paths.group, missing)
            removed[:] = [order for order in found.values() if order is not None] or removed
            return orders.without(ids, now_ms)

        await self._change(change)
        return tuple(removed)

    async def add_results(self, order_id: str, results: Collection[OrderResult]) -> Orders:
        """Adds a member's results to a command that is carried out once. Does nothing if the command was removed."""

        def change(orders: Orders) -> Orders:
            return orders.with_results(order_id, results)

        return await self._change(change)

    async def _read(self, watch: Optional[Watch]) -> tuple[Orders, int]:
        found = await read_of_others(self._zk, self.paths.orders, watch)
        if found is None:
            return Orders(), -1
        data, stat = found
        return Orders.decode(self.paths.orders, data), stat.version

    async def _change(self, change: Callable[[Orders], Orders], *, with_room: bool = False) -> Orders:
        """Applies `change` by compare-and-set. `change` is called again if another process wrote in the meantime."""

        async def write() -> Orders:
            while True:
                before, version = await self._read(None)
                after = change(before)
                if after == before:
                    return after
                data = after.encode(with_room=with_room)
                try:
                    if version < 0:
                        # the members may have other credentials than the operator
                        await self._zk.use_acl_of(self.paths.base)
                        await self._zk.create(self.paths.orders, data)
                    else:
                        await self._zk.set(self.paths.orders, data, version)
                except (BadVersion, ZnodeExists):
                    continue
                return after

        return await retrying(write, asyncio.get_running_loop().time() + WRITE_S)
