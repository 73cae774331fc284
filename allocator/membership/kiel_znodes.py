"""What stands in ZooKeeper of a group of kiel's, and how such a group is given to the new layout.

    /kiel/groups/<group>/members/<name>       ephemeral   one for each member, kiel's and ours
    /kiel/groups/<group>/partitions           persistent  JSON ["topic:0", ...]: all that is dealt; changed under a lock
    /kiel/groups/<group>/allocator/members    persistent  ephemeral children name those of the members that are ours
    /kiel/groups/<group>/allocator/owners     persistent  ephemeral children "topic:0": what ours own, see `owners`

A group is given away by a `Seal` in the place of the list of partitions. It is no JSON, so that a member of kiel's
which is started by mistake fails before it joins, and whoever looks at the znode reads why.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from allocator.errors import AllocatorError
from allocator.foreign import shown
from allocator.membership.znodes import Parts, Paths, Rubbish
from allocator.types import TopicPartition
from allocator.wire.zookeeper import BadVersion, NoZnode, ZooKeeper

__all__ = [
    "AdoptionRefused",
    "KielPaths",
    "Phase",
    "Seal",
    "add_partitions",
    "look",
    "read_shared",
    "seal",
    "until_empty",
]

SEALED = "This group was given to another layout by `allocator group adopt`; members of kiel's cannot join. "
LOCK = "__lock__"  # as kazoo's Lock names its znodes: <hex>__lock__<sequence>


class AdoptionRefused(AllocatorError):
    """The group cannot be given to the new layout as it stands; nothing was changed."""


class KielPaths(Paths):
    """The znodes of one group of kiel's."""

    def __init__(self, group: str) -> None:
        super().__init__("/kiel/groups", group)

    @property
    def partitions(self) -> str:
        return f"{self.base}/partitions"

    @property
    def lock(self) -> str:
        return f"{self.partitions}/lock"

    @property
    def ours(self) -> str:
        return f"{self.base}/allocator/members"

    @property
    def owners(self) -> str:
        return f"{self.base}/allocator/owners"

    @property
    def opening(self) -> str:
        return f"{self.base}/allocator/opening"


class Phase(enum.Enum):
    """SEALING: no member of kiel's may join any more, and whether one has is being looked at; ours go on as they were.
    SEALED: ours let go of everything. OPEN: all have, their offsets are in Kafka, and the group goes on under `root`.
    """

    SEALING = "sealing"
    SEALED = "sealed"
    OPEN = "open"


@dataclass(frozen=True)
class Seal:
    phase: Phase
    root: str
    partitions: Parts
    """What the group dealt when it was sealed."""

    def encode(self) -> bytes:
        content = {"phase": self.phase.value, "root": self.root, "partitions": _names(self.partitions)}
        return (SEALED + json.dumps(content)).encode()


def read_shared(path: str, data: bytes) -> tuple[Parts, Seal | None]:
    """What is dealt, and the seal if there is one. Raises Rubbish."""
    try:
        text = data.decode()
        if not text.startswith(SEALED):
            return _parts(json.loads(text or "[]")), None
        content = json.loads(text[len(SEALED) :])
        found = Seal(Phase(content["phase"]), str(content["root"]), _parts(content["partitions"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Rubbish(path, f"neither a list of 'topic:partition' nor a seal ({shown(error)})") from None
    return found.partitions, found


async def add_partitions(zk: ZooKeeper, paths: KielPaths, partitions: Parts) -> None:
    """Has them dealt too; changes nothing when they are, or when the group is sealed."""
    async with _locked(zk, paths.lock):
        data, stat = await zk.get(paths.partitions)
        dealt, sealed = read_shared(paths.partitions, data)
        if sealed is None and not partitions <= dealt:
            # the version too: whoever seals a group does not take the lock
            with contextlib.suppress(BadVersion):
                await zk.set(paths.partitions, json.dumps(_names(dealt | partitions)).encode(), stat.version)


async def look(zk: ZooKeeper, paths: KielPaths) -> tuple[tuple[str, ...], tuple[str, ...], Parts, Seal | None]:
    """Members of ours, members of kiel's, what is dealt, and the seal. Raises AdoptionRefused without such a group."""
    try:
        data, _ = await zk.get(paths.partitions)
        names = sorted(await zk.get_children(paths.members))
    except NoZnode:
        raise AdoptionRefused(f"ZooKeeper has no group {paths.group!r} of kiel's: {paths.base} is not there") from None
    try:
        ours = set(await zk.get_children(paths.ours))
    except NoZnode:
        ours = set()
    dealt, sealed = read_shared(paths.partitions, data)
    return tuple(n for n in names if n in ours), tuple(n for n in names if n not in ours), dealt, sealed


async def seal(zk: ZooKeeper, paths: KielPaths, root: str) -> None:
    """Gives a group of which only our members are left to the layout under `root`: they go over by themselves.

    May be called again when it was interrupted. Raises AdoptionRefused, having undone what it did.
    """
    while True:
        data, stat = await zk.get(paths.partitions)
        dealt, sealed = read_shared(paths.partitions, data)
        if sealed is not None and sealed.phase is not Phase.SEALING:
            if sealed.root != root:
                raise AdoptionRefused(f"group {paths.group!r} was given to {sealed.root} already, not to {root}")
            return
        try:
            if sealed is None:
                sealing = Seal(Phase.SEALING, root, dealt)
                stat = await zk.set(paths.partitions, sealing.encode(), stat.version)
            # whoever joined before the seal stood is seen now; after it nobody of kiel's can
            _, foreign, _, _ = await look(zk, paths)
            if foreign:
                await zk.set(paths.partitions, json.dumps(_names(dealt)).encode(), stat.version)
                raise AdoptionRefused(
                    f"members of kiel's joined group {paths.group!r} meanwhile: {', '.join(foreign)}; "
                    "it stays as it was"
                )
            await zk.set(paths.partitions, Seal(Phase.SEALED, root, dealt).encode(), stat.version)
            return
        except BadVersion:
            continue


async def until_empty(zk: ZooKeeper, path: str) -> None:
    """Returns once the znode has no children."""
    while True:
        changed = asyncio.Event()
        try:
            if not await zk.get_children(path, changed.set):
                return
        except NoZnode:
            return
        await changed.wait()


@contextlib.asynccontextmanager
async def _locked(zk: ZooKeeper, path: str) -> AsyncIterator[None]:
    """The lock under which kiel changes what is dealt: kazoo's recipe. Raises ConnectionLost."""
    await zk.ensure_path(path)
    mine = await zk.create(f"{path}/{uuid.uuid4().hex}{LOCK}", b"", ephemeral=True, sequence=True)
    try:
        while True:
            waiting = sorted((name for name in await zk.get_children(path) if LOCK in name), key=_sequence)
            place = waiting.index(mine.rpartition("/")[2])
            if place == 0:
                break
            gone = asyncio.Event()
            if await zk.exists(f"{path}/{waiting[place - 1]}", gone.set) is not None:
                await gone.wait()
        yield
    finally:
        with contextlib.suppress(NoZnode):
            await zk.delete(mine)


def _sequence(name: str) -> str:
    return name.rpartition(LOCK)[2]


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted(f"{p.topic}:{p.partition}" for p in partitions)


def _parts(names: list[str]) -> Parts:
    if not isinstance(names, list):
        raise TypeError("it is no list")
    found = set()
    for name in names:
        topic, _, number = name.rpartition(":")
        found.add(TopicPartition(topic, int(number)))
    return frozenset(found)
