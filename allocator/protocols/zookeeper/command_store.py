"""Reads and writes the operator commands of a group in ZooKeeper, for the leader, the members, the CLI and the page.

All commands of a group are in one znode, so one watch reports every change. A write replaces all of them by
compare-and-set: two operators who write at the same time both succeed, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Optional

from allocator.commands import Command, CommandResult, Commands
from allocator.protocols.zookeeper.client.client import BadVersion, Watch, ZnodeExists, ZooKeeperClient, retrying
from allocator.protocols.zookeeper.znodes.documents import Paths
from allocator.protocols.zookeeper.znodes.store import read_of_others

# limit of one write. Higher: a write survives a longer loss of the connection; lower: its caller learns of it sooner
WRITE_S = 10.0


class CommandStore:
    """Reads and writes the commands of one group.

    A `watch` is called once, when the commands may have changed; `Watched(store.read, changed)` renews it.
    """

    def __init__(self, zk: ZooKeeperClient, paths: Paths) -> None:
        self._zk = zk
        self.paths = paths

    async def read(self, watch: Optional[Watch] = None) -> Commands:
        """Returns the current commands, or no commands if the znode does not exist. Raises InvalidZnode."""
        return (await self._read(watch))[0]

    async def change(self, change: Callable[[Commands], Commands]) -> Commands:
        """Writes what `change` returns for the present commands, by compare-and-set. Returns all commands.

        Raises ConfigError for too many commands or results, InvalidZnode if the znode is not readable, and NoZnode if
        the group does not exist.
        """
        return await self._change(change, with_room=True)

    async def remove(self, ids: Collection[str], now_ms: int) -> tuple[Command, ...]:
        """Removes commands and returns the removed ones. If one id does not exist, raises NoSuchCommand and
        removes none."""
        removed: list[Command] = []

        def change(commands: Commands) -> Commands:
            found = {command_id: commands.find(command_id) for command_id in ids}
            missing = [command_id for command_id, command in found.items() if command is None]
            if missing and not removed:  # otherwise an earlier attempt, whose response was lost, removed them
                raise commands.lacking(self.paths.group, missing)
            removed[:] = [command for command in found.values() if command is not None] or removed
            return commands.without(ids, now_ms)

        await self._change(change)
        return tuple(removed)

    async def add_results(self, command_id: str, results: Collection[CommandResult]) -> Commands:
        """Adds a member's results to a command that is carried out once. Does nothing if the command was removed."""

        def change(commands: Commands) -> Commands:
            return commands.with_results(command_id, results)

        return await self._change(change)

    async def add_topics(self, command_id: str, topics: Mapping[str, str]) -> Commands:
        """Adds the ids of topics to a command that lacks them. Does nothing if the command was removed."""
        return await self._change(lambda commands: commands.with_topics(command_id, topics))

    async def _read(self, watch: Optional[Watch]) -> tuple[Commands, int]:
        found = await read_of_others(self._zk, self.paths.commands, watch)
        if found is None:
            return Commands(), -1
        data, stat = found
        return Commands.decode(self.paths.commands, data), stat.version

    async def _change(self, change: Callable[[Commands], Commands], *, with_room: bool = False) -> Commands:
        """Applies `change` by compare-and-set. `change` is called again if another process wrote in the meantime."""

        async def write() -> Commands:
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
                        await self._zk.create(self.paths.commands, data)
                    else:
                        await self._zk.set(self.paths.commands, data, version)
                except (BadVersion, ZnodeExists):
                    continue
                return after

        return await retrying(write, asyncio.get_running_loop().time() + WRITE_S)
