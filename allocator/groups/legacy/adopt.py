"""Giving a group of kiel's, of which only our members are left, to the new layout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from allocator.errors import AllocatorError
from allocator.groups.describe import describe
from allocator.groups.legacy.kiel import AdoptionRefused, HandoverPhase, KielPaths, look, seal
from allocator.zookeeper.client import ZooKeeper

__all__ = ["AdoptionUnfinished", "Candidate", "adopt", "candidate"]

POLL_S = 0.2


class AdoptionUnfinished(AllocatorError):
    """The group is on its way; its members finish it without anybody's help, once they can."""

    retriable = True


@dataclass(frozen=True)
class Candidate:
    """A group of kiel's as it stands."""

    group: str
    members: tuple[str, ...]
    """Of ours."""
    foreign: tuple[str, ...]
    """Of kiel's."""
    partitions: int
    phase: HandoverPhase | None

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be given away now."""
        if self.phase not in (None, HandoverPhase.SEALING):
            return None
        if self.foreign:
            return (
                f"it still has members of kiel's: {', '.join(self.foreign)}; they would go on with partitions that "
                "others get. Stop them, or upgrade them, first"
            )
        if not self.members:
            return "it has no members; start one with membership 'kiel' first, which carries the offsets over"
        return None


async def candidate(zk: ZooKeeper, group: str) -> Candidate:
    """Changes nothing. Raises AdoptionRefused when there is no such group."""
    members, foreign, dealt, sealed = await look(zk, KielPaths(group))
    return Candidate(group, members, foreign, len(dealt), None if sealed is None else sealed.phase)


async def adopt(zk: ZooKeeper, group: str, root: str, wait_s: float, say: Callable[[str], None]) -> None:
    """Seals the group and waits until its members own everything under `root`.

    Raises AdoptionRefused, having changed nothing; AdoptionUnfinished when it takes longer than `wait_s` seconds. May
    be called again at any time, and finds out how far it is.
    """
    found = await candidate(zk, group)
    if found.obstacle is not None:
        raise AdoptionRefused(f"group {group!r} cannot be given to {root}: {found.obstacle}")
    await seal(zk, KielPaths(group), root)
    say(f"{group} is given to {root}; {len(found.members)} members let go of {found.partitions} partitions")
    ends = asyncio.get_running_loop().time() + wait_s
    while True:
        now = await candidate(zk, group)
        state = await describe(zk, group, root) if now.phase is HandoverPhase.OPEN else None
        done = state is not None and state.assigned and state.owners.keys() >= state.assigned
        if state is not None and done and len(state.members) >= len(found.members):
            say(f"{len(state.members)} members own {len(state.owners)} partitions under {root}")
            return
        if asyncio.get_running_loop().time() >= ends:
            where = f"{len(now.members)} members have not let go yet" if now.members else f"the seal is {now.phase}"
            if state is not None:
                where = f"{len(state.members)} members own {len(state.owners)} partitions under {root}"
            raise AdoptionUnfinished(
                f"group {group!r} was given to {root}, and after {wait_s:g} s {where}; its members go on by "
                "themselves. Look at their logs, or call this again to wait"
            )
        await asyncio.sleep(POLL_S)
