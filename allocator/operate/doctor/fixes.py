"""The remedies that `allocator doctor --fix` executes.

Guarantee: a fix changes neither an owner nor an offset. It checks its condition again just before it writes, so it is
safe to repeat, and safe beside live members.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from allocator.commands import Command
from allocator.errors import NoSuchCommand
from allocator.operate.doctor.finding import Fix
from allocator.protocols.zookeeper import (
    CommandStore,
    NotAuthorized,
    NoZnode,
    Op,
    Paths,
    ZooKeeperClient,
    ZooKeeperError,
)

CLOCK_MS = 600_000  # commands expire by the leader's clock. Higher: tolerates a larger difference of clocks
YOUNG_MS = 3_600_000  # a member that joins creates the znodes of its group just before its own znode


async def apply(
    fix: Fix, zookeeper: ZooKeeperClient, group: str | None, root: str, clock: Callable[[], float] = time.time
) -> str:
    """Executes a fix from `diagnose`, and returns what it did. Raises ZooKeeperError, InvalidZnode."""
    if fix.kind == "chroot":
        return f"created the chroot {zookeeper.chroot}"  # `connect` has created it
    now_ms = int(clock() * 1000)
    if fix.kind == "commands":
        assert group is not None
        return await _withdraw(zookeeper, Paths(root, group), fix.names, now_ms)
    return await _delete(zookeeper, root, fix.names, now_ms)


def is_long_expired(command: Command, now_ms: int) -> bool:
    """Returns whether the command has expired even if clocks differ by `CLOCK_MS`."""
    return command.expired(now_ms - CLOCK_MS)


async def _withdraw(zk: ZooKeeperClient, paths: Paths, ids: Collection[str], now_ms: int) -> str:
    store = CommandStore(zk, paths)
    while True:
        entries = (await store.read()).entries
        chosen = [command.id for command in entries if command.id in ids and is_long_expired(command, now_ms)]
        if not chosen:
            return "the commands are withdrawn already"
        try:
            return f"withdrew {len(await store.remove(chosen, now_ms))} expired commands"
        except NoSuchCommand:
            pass  # an operator withdrew one at the same time


async def leftover_groups(zk: ZooKeeperClient, root: str, names: Collection[str], now_ms: int) -> tuple[str, ...]:
    """Returns the groups of `names` that consist of empty znodes: they never had an assignment, and have no
    commands."""
    found = await asyncio.gather(*(_skeleton(zk, Paths(root, name), now_ms) for name in names))
    return tuple(name for name, znodes in zip(names, found) if znodes)


async def _skeleton(zk: ZooKeeperClient, paths: Paths, now_ms: int) -> list[str]:
    """Returns the znodes of a leftover group, children first; [] for any other group."""
    below = {paths.members, paths.claims, paths.shards, paths.left}
    try:
        children = {f"{paths.base}/{name}" for name in await zk.get_children(paths.base)}
        if children - below:  # the assignment holds the generation, from which fencing tokens continue
            return []
        for path in (*children, paths.base):
            data, stat = await zk.get(path)
            if data or stat.created_ms > now_ms - YOUNG_MS or (path != paths.base and await zk.get_children(path)):
                return []
    except (NoZnode, NotAuthorized):  # a group whose znodes this user may not read hides no other one
        return []
    return [*sorted(children), paths.base]


async def _delete(zk: ZooKeeperClient, root: str, names: Collection[str], now_ms: int) -> str:
    deleted = []
    for name in names:
        znodes = await _skeleton(zk, Paths(root, name), now_ms)
        if not znodes:
            continue
        try:
            # the transaction fails as a whole if a member has joined, because then a znode has a child
            await zk.multi([Op("delete", path) for path in znodes])
        except ZooKeeperError as error:
            if error.retriable:
                raise
            continue
        deleted.append(name)
    return (
        f"deleted the empty znodes of {len(deleted)} groups" if deleted else "the groups are in use, or already deleted"
    )
