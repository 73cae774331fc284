"""Moves a group from the layout of kiel to the layout of this library, while its members run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from allocator.errors import AllocatorError
from allocator.operate.group_reader import describe
from allocator.protocols.legacy import AdoptionRefused, HandoverPhase, KielPaths, read_group, seal
from allocator.protocols.zookeeper import ZooKeeperClient, retrying

POLL_S = 0.2
WAIT_S = 60.0  # for all members; some may have stopped


class AdoptionUnfinished(AllocatorError):
    """The move has started, and was not complete in time. The members complete it without further commands."""

    retriable = True


@dataclass(frozen=True)
class Candidate:
    """The current state of a kiel group."""

    members: tuple[str, ...]
    """Members that use this library."""
    foreign: tuple[str, ...]
    """Members that use kiel."""
    partitions: int
    phase: HandoverPhase | None
    root: str | None = None
    """The root to which the group moves or has moved; None before the move."""

    @property
    def moved_to(self) -> str | None:
        """The root to which the group has moved; None if members may still use the layout of kiel."""
        return self.root if self.phase is HandoverPhase.OPEN else None

    @property
    def obstacle(self) -> str | None:
        """Why the group cannot move now; None if it can."""
        if self.phase not in (None, HandoverPhase.SEALING):
            return None
        if self.foreign:
            return (
                f"it still has members that run kiel: {', '.join(self.foreign)}. They would read partitions that other "
                "members own. Stop or upgrade them first"
            )
        if not self.members:
            return "it has no members. Start one with membership 'kiel' first: it copies the offsets"
        return None


async def candidate(zk: ZooKeeperClient, group: str) -> Candidate:
    """Returns the state of a kiel group. Raises AdoptionRefused if the group does not exist."""
    members, foreign, assigned, sealed = await read_group(zk, KielPaths(group))
    if sealed is None:
        return Candidate(members, foreign, len(assigned), None)
    return Candidate(members, foreign, len(assigned), sealed.phase, sealed.root)


async def adopt(
    zk: ZooKeeperClient, group: str, root: str, say: Callable[[str], None], *, wait_s: float = WAIT_S
) -> None:
    """Seals the group, and returns when its members own all partitions under `root`.

    Calls `say` with a line for each step. Raises AdoptionRefused before it changes anything, and AdoptionUnfinished if
    partitions have no owner after `wait_s`; call it again to continue. Retries a lost connection to ZooKeeper until
    then.
    """
    ends = asyncio.get_running_loop().time() + wait_s
    found = await candidate(zk, group)
    if found.obstacle is not None:
        raise AdoptionRefused(f"group {group!r} cannot move to {root}: {found.obstacle}")
    await retrying(lambda: seal(zk, KielPaths(group), root), ends)
    if found.moved_to is not None:
        say(f"{group} has moved to {found.moved_to} already")
        state = await retrying(lambda: describe(zk, group, root), ends)
        if state is None or not state.members:
            return  # they have stopped since, so there is nothing to wait for
    else:
        say(f"{group} moves to {root}: {len(found.members)} members release {found.partitions} partitions")
    while True:
        now = await retrying(lambda: candidate(zk, group), ends)
        opened = now.phase is HandoverPhase.OPEN
        state = await retrying(lambda: describe(zk, group, root), ends) if opened else None
        done = state is not None and state.assigned and state.owners.keys() >= state.assigned
        if state is not None and done and len(state.members) >= len(found.members):
            say(f"{len(state.members)} members own {len(state.owners)} partitions under {root}")
            return
        if asyncio.get_running_loop().time() >= ends:
            if state is not None and done:
                say(
                    f"{len(state.members)} members own {len(state.owners)} partitions under {root}; of "
                    f"{len(found.members)} members that moved, the others have stopped or not joined yet"
                )
                return
            where = (
                f"{len(now.members)} members have not released their partitions yet"
                if now.members
                else f"the seal is {now.phase}"
            )
            if state is not None:
                where = f"{len(state.members)} members own {len(state.owners)} partitions under {root}"
            raise AdoptionUnfinished(
                f"group {group!r} is moving to {root}; after {wait_s:g} s {where}. The members complete the move "
                "without further commands. Read their logs, or run this again to wait longer"
            )
        await asyncio.sleep(POLL_S)
