"""Taking part in a group of kiel 0.9.3, whose members stay as they are, until only ours are left.

Every member computes for itself who gets what: names and partitions sorted as text, dealt in turn. kiel's members take
what they compute at once and tell nobody. Guarantee: of ours one at most owns a partition (see `owners`); between one
of ours and one of kiel's there is an overlap when it moves, which repeats records; ours skip none. Ours leave a
partition that may come from one of kiel's alone for `settle_s` seconds, so that what is in its hands can be committed.

When the group is given to the new layout (by `allocator group adopt`, see `Seal`), ours go over by
themselves: each lets go of everything in good order and leaves; once all have left, one of them copies the offsets to
Kafka; then they join there. Nobody owns anything in between, so there is neither a double owner nor a record that is
skipped. A rolling restart cannot do that: the first member that comes back in the new layout would know nothing of
what the others still own.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import logging
import os
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from allocator.assignors.kiel import KielFunction, naive_allocator
from allocator.clock import boot_clock
from allocator.errors import AllocatorError
from allocator.foreign import shown
from allocator.groups.legacy.owners import OwnersMembership, OwnersSettings
from allocator.groups.membership import AssignmentListener, GroupMembership, Membership, PartitionCountSource
from allocator.groups.zookeeper.znodes import InvalidZnode, Paths
from allocator.measures import Measures
from allocator.settings import DEFAULT
from allocator.types import NO_PARTITIONS, OffsetStorage, Partitions, TopicPartition
from allocator.zookeeper.client import (
    BadVersion,
    ConnectionLost,
    NoZnode,
    Op,
    SessionState,
    Watched,
    ZnodeExists,
    ZooKeeper,
)

__all__ = [
    "AdoptionRefused",
    "Carrier",
    "HandoverPhase",
    "KielMembership",
    "KielPaths",
    "KielSettings",
    "Seal",
    "add_partitions",
    "look",
    "read_shared",
    "seal",
    "until_empty",
]

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after Kafka or ZooKeeper could not do what going over needs


class Carrier(Protocol):
    """Who knows the offsets of the group. `StoredOffsets` is one."""

    storage: OffsetStorage

    async def carry_over(self, partitions: Iterable[TopicPartition]) -> int: ...


@dataclass(frozen=True)
class KielSettings(OwnersSettings):
    """How a member takes part. Times in seconds."""

    # how long a partition that may come from a member of kiel's is left alone; more: it stands still for longer; less:
    # what such a member commits later is read twice
    settle_s: float = DEFAULT["settle_s"]


class KielMembership(GroupMembership):
    """One member of one group, of kiel's layout as long as that lasts, then of the new one.

    `function` is what kiel's members call (`partition_allocator`). `next_member` makes the membership under the root
    that the group is given to. The constructor touches nothing.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        group: str,
        listener: AssignmentListener,
        topics: PartitionCountSource,
        settings: KielSettings,
        offsets: Carrier,
        next_member: Callable[[str], Membership],
        *,
        function: KielFunction = naive_allocator,
        measures: Measures | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._next_member = next_member
        self._offsets = offsets
        self._subscription: tuple[frozenset[str], str | None] | None = None
        self._old = _KielMember(zk, group, listener, topics, settings, offsets, self._go_on, function, measures, clock)
        self._current: Membership = self._old

    @property
    def member_id(self) -> str:
        return self._current.member_id

    @property
    def generation(self) -> int:
        return self._current.generation

    @property
    def ended(self) -> BaseException | None:
        return self._current.ended

    @property
    def held(self) -> Partitions:
        return self._current.held

    def may_act(self) -> bool:
        return self._current.may_act()

    def polled(self) -> None:
        self._current.polled()

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        chosen = frozenset(topics)
        self._current.subscribe(chosen, pattern)
        self._subscription = chosen, pattern

    async def join(self) -> None:
        """Joins kiel's members; or, when the group was given to the new layout, the group there."""
        await self._old.join()

    async def leave(self) -> None:
        if self._current is not self._old:
            await self._current.leave()
        await self._old.leave()

    async def _go_on(self, root: str) -> None:
        member = self._next_member(root)
        if self._subscription is not None:
            member.subscribe(*self._subscription)
        self._offsets.storage = "kafka"
        await member.join()
        self._current = member


class _KielMember(OwnersMembership):
    def __init__(
        self,
        zk: ZooKeeper,
        group: str,
        listener: AssignmentListener,
        topics: PartitionCountSource,
        settings: KielSettings,
        offsets: Carrier,
        go_on: Callable[[str], Awaitable[None]],
        function: KielFunction,
        measures: Measures | None,
        clock: Callable[[], float],
    ) -> None:
        self._paths = KielPaths(group)
        super().__init__(zk, group, self._paths.base, listener, topics, settings, measures=measures, clock=clock)
        self._settle_s = settings.settle_s
        self._offsets = offsets
        self._go_on = go_on
        self._function = function
        self._gone_over = False
        self._view: tuple[list[str], list[str]] = ([], [])
        self._since: dict[TopicPartition, float] = {}
        self._foreign = False
        self._foreign_until = float("-inf")

    # -- the layout ----------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self._begin_session()
        for path in (self._paths.members, self._paths.partitions, self._paths.ours, self._paths.owners):
            await self._zk.ensure_path(path)
        # a name of its own for each session: the znode of the one before may still stand
        self.member_id = f"{re.sub('[^!-.0-~]', '-', self._settings.name)}-{uuid.uuid4().hex[:8]}"
        await self._zk.multi([Op("create", path, ephemeral=True) for path in self._member_znodes()])
        zk, paths, changed = self._zk, self._paths, self._changed.set
        self._members = Watched(lambda watch: zk.get_children(paths.members, watch), changed)
        self._ours = Watched(lambda watch: zk.get_children(paths.ours, watch), changed)
        self._shared = Watched(lambda watch: zk.get(paths.partitions, watch), changed)
        self._since = {}
        log.info("%s: joined kiel's members as %s (pid %d)", self._group, self.member_id, os.getpid())

    def _proof(self) -> tuple[str, bytes]:
        return self._paths.member(self.member_id), b""

    def _member_znodes(self) -> tuple[str, str]:
        # the one that says that it is ours first: without it, it would be taken for one of kiel's
        return f"{self._paths.ours}/{self.member_id}", self._paths.member(self.member_id)

    def _znodes(self) -> Iterable[str]:
        return (*self._claim_znodes(), *self._member_znodes())

    def _claim_paths(self, partition: TopicPartition) -> tuple[str, ...]:
        return (f"{self._paths.owners}/{partition.topic}:{partition.partition}",)

    def _claim_of(self, directory: str, name: str) -> TopicPartition | None:
        topic, _, number = name.rpartition(":")
        return TopicPartition(topic, int(number)) if number.isdigit() else None

    def _claim_data(self) -> bytes:
        return self.member_id.encode()

    async def _mine(self) -> Partitions:
        members, ours = await self._members.get(), set(await self._ours.get())
        self._must_stand(members)
        try:
            dealt, seal = read_shared(self._paths.partitions, (await self._shared.get())[0])
        except InvalidZnode as error:
            self._listener.failed(error)
            return self._held
        if seal is not None and seal.phase is not HandoverPhase.SEALING:
            log.info("%s: the group was given to %s; %s lets go", self._group, seal.root, self.member_id)
            self._renewing = True
            self._changed.set()
            return NO_PARTITIONS
        missing = self._existing() - dealt
        if missing and seal is None:
            log.info("%s: %d partitions more are dealt", self._group, len(missing))
            await add_partitions(self._zk, self._paths, missing)
        self._note_foreign(any(name not in ours for name in members))
        view = sorted(members), sorted(f"{p.topic}:{p.partition}" for p in dealt)
        if view != self._view:
            self._view = view
            self.generation += 1
        try:
            mine = self._dealt_to_us(*view)
        except Exception as error:  # noqa: BLE001  whatever the user's function raises
            log.error("%s: the allocator function failed: %r", self._group, error)
            self._listener.failed(error)
            return self._held
        now = self._clock()
        self._since = {p: self._since.get(p, now) for p in mine}
        return mine

    def _dealt_to_us(self, members: list[str], partitions: list[str]) -> Partitions:
        of_topics = dict(self._function(members, partitions)).get(self.member_id, {})
        found: set[TopicPartition] = set()
        for topic in filter(self._selection.__contains__, of_topics):
            mine, existing = {TopicPartition(topic, n) for n in of_topics[topic]}, self._topics.partitions(topic)
            # brokers that start say of topics that exist that they do not; and kiel goes on dealing what was deleted
            found |= mine & (self._held if existing is None else {TopicPartition(topic, n) for n in existing})
        return frozenset(found)

    def _wait_s(self, partition: TopicPartition) -> float:
        since = self._since[partition] if self._foreign else self._foreign_until
        return since + self._settle_s - self._clock()

    def _note_foreign(self, foreign: bool) -> None:
        """Whether anything may come from a member of kiel's."""
        if self._foreign and not foreign:
            self._foreign_until = self._clock()
        self._foreign = foreign

    # -- going over ----------------------------------------------------------------------------------------------

    async def _session(self, joined: asyncio.Future[None]) -> None:
        seal = await self._read_seal()
        if seal is None or seal[0].phase is HandoverPhase.SEALING:
            await super()._session(joined)
            return
        self._gone_over = True
        if not joined.done():
            log.info("%s: the group was given to %s; joining there", self._group, seal[0].root)
        await self._go_over()
        if not joined.done():
            joined.set_result(None)
        await self._until_leaving()

    async def _read_seal(self) -> tuple[Seal, int] | None:
        try:
            data, stat = await self._zk.get(self._paths.partitions)
        except NoZnode:
            return None
        seal = read_shared(self._paths.partitions, data)[1]
        return None if seal is None else (seal, stat.version)

    async def _go_over(self) -> None:
        """Returns once we are a member in the new layout."""
        await until_empty(self._zk, self._paths.members)
        await until_empty(self._zk, self._paths.owners)
        while True:
            seal = await self._read_seal()
            if seal is None:
                raise AllocatorError(f"{self._paths.partitions} is gone: nobody knows what the group was given to")
            if seal[0].phase is HandoverPhase.OPEN:
                break
            await self._open(*seal)
        # we hold nothing: whatever pause was told of is over, and the next membership tells of its own
        self._listener.resumed()
        while True:
            try:
                await self._go_on(seal[0].root)
                return
            except AllocatorError as error:
                if not error.retriable:
                    raise
                log.warning("%s: joining under %s is put off: %s", self._group, seal[0].root, error)
                await asyncio.sleep(RETRY_S)

    async def _open(self, seal: Seal, version: int) -> None:
        """Copies the offsets, as one of all members that wait; returns when the seal may have changed."""
        try:
            await self._zk.create(self._paths.opening, ephemeral=True)
        except ZnodeExists:
            changed = asyncio.Event()
            if await self._zk.exists(self._paths.opening, changed.set) is not None:
                await changed.wait()
            return
        try:
            # of topics that we do not read as well; never asked for by name, which may create what was deleted
            self._topics.follow_all()
            await self._topics.refresh()
            existing = {topic: set(self._topics.partitions(topic) or ()) for topic in self._topics.topics()}
            carried = (p for p in seal.partitions if p.partition in existing.get(p.topic, ()))
            count = await self._offsets.carry_over(carried)
            await self._zk.set(self._paths.partitions, replace(seal, phase=HandoverPhase.OPEN).encode(), version)
            log.info("%s: %d offsets carried over to Kafka; the group goes on under %s", self._group, count, seal.root)
        except BadVersion:
            pass  # another one was faster
        except ConnectionLost:
            raise
        except AllocatorError as error:
            log.warning("%s: carrying the offsets over is put off: %s", self._group, error)
            await asyncio.sleep(RETRY_S)
        finally:
            with contextlib.suppress(NoZnode, ConnectionLost):
                await self._zk.delete(self._paths.opening)

    def _state_changed(self, state: SessionState) -> None:
        if not self._gone_over:
            super()._state_changed(state)
        elif state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()


# -- the znodes of a kiel group, and its handover to the new layout ---------------------------------------------------
#
#     /kiel/groups/<group>/members/<name>       ephemeral   one for each member, kiel's and ours
#     /kiel/groups/<group>/partitions           persistent  JSON ["topic:0", ...]: all that is dealt; under a lock
#     /kiel/groups/<group>/allocator/members    persistent  ephemeral children name those of the members that are ours
#     /kiel/groups/<group>/allocator/owners     persistent  ephemeral children "topic:0": what ours own, see `owners`
#
# A group is given away by a `Seal` in the place of the list of partitions. It is no JSON, so that a member of kiel's
# which is started by mistake fails before it joins, and whoever looks at the znode reads why.


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


class HandoverPhase(enum.Enum):
    """SEALING: no member of kiel's may join any more, and whether one has is being looked at; ours go on as they were.
    SEALED: ours let go of everything. OPEN: all have, their offsets are in Kafka, and the group goes on under `root`.
    """

    SEALING = "sealing"
    SEALED = "sealed"
    OPEN = "open"


@dataclass(frozen=True)
class Seal:
    phase: HandoverPhase
    root: str
    partitions: Partitions
    """What the group dealt when it was sealed."""

    def encode(self) -> bytes:
        content = {"phase": self.phase.value, "root": self.root, "partitions": _names(self.partitions)}
        return (SEALED + json.dumps(content)).encode()


def read_shared(path: str, data: bytes) -> tuple[Partitions, Seal | None]:
    """What is dealt, and the seal if there is one. Raises InvalidZnode."""
    try:
        text = data.decode()
        if not text.startswith(SEALED):
            return _parts(json.loads(text or "[]")), None
        content = json.loads(text[len(SEALED) :])
        found = Seal(HandoverPhase(content["phase"]), str(content["root"]), _parts(content["partitions"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidZnode(path, f"neither a list of 'topic:partition' nor a seal ({shown(error)})") from None
    return found.partitions, found


async def add_partitions(zk: ZooKeeper, paths: KielPaths, partitions: Partitions) -> None:
    """Has them dealt too; changes nothing when they are, or when the group is sealed."""
    async with _locked(zk, paths.lock):
        data, stat = await zk.get(paths.partitions)
        dealt, sealed = read_shared(paths.partitions, data)
        if sealed is None and not partitions <= dealt:
            # the version too: whoever seals a group does not take the lock
            with contextlib.suppress(BadVersion):
                await zk.set(paths.partitions, json.dumps(_names(dealt | partitions)).encode(), stat.version)


async def look(zk: ZooKeeper, paths: KielPaths) -> tuple[tuple[str, ...], tuple[str, ...], Partitions, Seal | None]:
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
        if sealed is not None and sealed.phase is not HandoverPhase.SEALING:
            if sealed.root != root:
                raise AdoptionRefused(f"group {paths.group!r} was given to {sealed.root} already, not to {root}")
            return
        try:
            if sealed is None:
                sealing = Seal(HandoverPhase.SEALING, root, dealt)
                stat = await zk.set(paths.partitions, sealing.encode(), stat.version)
            # whoever joined before the seal stood is seen now; after it nobody of kiel's can
            _, foreign, _, _ = await look(zk, paths)
            if foreign:
                await zk.set(paths.partitions, json.dumps(_names(dealt)).encode(), stat.version)
                raise AdoptionRefused(
                    f"members of kiel's joined group {paths.group!r} meanwhile: {', '.join(foreign)}; "
                    "it stays as it was"
                )
            await zk.set(paths.partitions, Seal(HandoverPhase.SEALED, root, dealt).encode(), stat.version)
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


def _parts(names: list[str]) -> Partitions:
    if not isinstance(names, list):
        raise TypeError("it is no list")
    found = set()
    for name in names:
        topic, _, number = name.rpartition(":")
        found.add(TopicPartition(topic, int(number)))
    return frozenset(found)
