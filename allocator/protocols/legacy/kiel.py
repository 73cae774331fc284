"""Membership in a group of kiel 0.9.3, together with unchanged members of kiel.

Every member computes the assignment itself: it sorts member names and partitions as text, and assigns in turn. Members
of kiel start their partitions at once and write no claims. Guarantee: of the members of this library, at most one owns
a partition (see `owners`). When a partition moves between a member of kiel and a member of this library, both may read
it for a moment. That repeats records and skips none. A member of this library waits `settle_s` seconds before it starts
a partition that may come from a member of kiel, so that the former owner can commit.

`allocator group adopt` moves the group to the new layout (see `Seal`). Each member drains, releases its partitions and
leaves. When all have left, one of them copies the offsets to Kafka. Then they join the new group. Between the two
groups no partition has an owner, so no partition ever has a second owner, and no record is skipped. A rolling restart
could not do that: the first member in the new layout would not know which partitions the other members still own.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import logging
import math
import os
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from allocator.assignors import naive_allocator
from allocator.core.aio import TaskGroup
from allocator.core.membership import AssignmentListener, Membership
from allocator.core.settings import DEFAULT, PartitionCountSource
from allocator.core.telemetry import Measures
from allocator.core.text import parse_json, shown, whole_number
from allocator.documents import InvalidZnode
from allocator.errors import AllocatorError, BrokerError
from allocator.protocols.legacy.owners import OwnersMembership, OwnersSettings
from allocator.protocols.zookeeper import (
    BadVersion,
    ConnectionLost,
    EphemeralZnodes,
    MembershipLost,
    NoZnode,
    Paths,
    SessionState,
    Watched,
    ZnodeExists,
    ZooKeeperClient,
    ZooKeeperError,
)
from allocator.types import NO_PARTITIONS, OffsetStorage, Partitions, TopicPartition

log = logging.getLogger(__name__)

KielFunction = Callable[[list[str], list[str]], Mapping[str, Mapping[str, Iterable[int]]]]
"""(members, ["topic:id", ...]) -> {member: {topic: [id, ...]}}"""

RETRY_S = 1.0  # pause after a failed step of the move to the new layout


class Carrier(Protocol):
    """Copies the offsets of the group to Kafka. `StoredOffsets` implements it."""

    storage: OffsetStorage

    async def carry_over(
        self,
        partitions: Iterable[TopicPartition],
        refusals: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, BrokerError]],
    ) -> int: ...


@dataclass(frozen=True)
class KielSettings(OwnersSettings):
    """Settings of a member. Times in seconds."""

    # delay before the start of a partition that may come from a member of kiel. Higher: a longer standstill; lower:
    # records that the member of kiel commits later are read twice
    settle_s: float = DEFAULT["settle_s"]
    function: KielFunction = naive_allocator  # the `partition_allocator` of kiel's members


class KielMembership:
    """One member of a kiel group and, after the move, of the group in the new layout.

    A `Membership`: what is not here goes to the current one. `next_member` creates the membership under the root to
    which the group moves. The constructor does no I/O.
    """

    def __init__(
        self,
        zk: ZooKeeperClient,
        group: str,
        listener: AssignmentListener,
        topics: PartitionCountSource,
        settings: KielSettings,
        offsets: Carrier,
        next_member: Callable[[str], Membership],
        *,
        measures: Measures | None = None,
    ) -> None:
        self._next_member = next_member
        self._offsets = offsets
        self._subscription: tuple[frozenset[str], str | None] | None = None
        self._admitted: Callable[[ZooKeeperClient], Awaitable[bool]] | None = None
        self._old = _KielMember(zk, group, listener, topics, settings, offsets, self._continue, measures)
        self._current: Membership = self._old
        self._newest: Membership = self._old
        """The membership that gets the user's settings: the old one, and from the start of the join the one in the new
        layout."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current, name)

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        chosen = frozenset(topics)
        self._newest.subscribe(chosen, pattern)
        self._subscription = chosen, pattern

    def join_again_if(self, admitted: Callable[[ZooKeeperClient], Awaitable[bool]]) -> None:
        self._newest.join_again_if(admitted)
        self._admitted = admitted

    def leave_for_good(self) -> None:
        self._newest.leave_for_good()

    async def leave(self) -> None:
        if self._current is not self._old:
            await self._current.leave()
        await self._old.leave()

    async def _continue(self, root: str) -> None:
        member = self._next_member(root)
        if self._subscription is not None:
            member.subscribe(*self._subscription)
        if self._admitted is not None:
            member.join_again_if(self._admitted)
        self._newest = member
        self._offsets.storage = "kafka"
        await member.join()
        self._current = member


class _KielMember(OwnersMembership):
    def __init__(
        self,
        zk: ZooKeeperClient,
        group: str,
        listener: AssignmentListener,
        topics: PartitionCountSource,
        settings: KielSettings,
        offsets: Carrier,
        continue_under: Callable[[str], Awaitable[None]],
        measures: Measures | None,
    ) -> None:
        self._paths = KielPaths(group)
        super().__init__(zk, group, listener, topics, settings, measures=measures)
        self._offsets = offsets
        self._continue = continue_under
        self._lock, self._opening = EphemeralZnodes(zk), EphemeralZnodes(zk)
        self._missing: Partitions = NO_PARTITIONS  # the partitions that the shared list lacks
        self._moved = False
        self._view: tuple[list[str], list[str]] = ([], [])
        self._since: dict[TopicPartition, float] = {}
        # the time when the last member of kiel left; infinite while the group has members of kiel
        self._foreign_until = -math.inf

    # -- the layout ----------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self._begin_session()
        for path in (self._paths.members, self._paths.partitions, self._paths.ours, self._paths.owners):
            await self._zk.ensure_path(path)
        # each session has a new name, because the znode of the last session may still exist
        self.member_id = f"{re.sub('[^!-.0-~]', '-', self._settings.name)}-{uuid.uuid4().hex[:8]}"
        # marks the member as a member of this library; created first
        mark = f"{self._paths.ours}/{self.member_id}"
        await self._registration.create({mark: b"", self._paths.member(self.member_id): b""})
        zk, paths, changed = self._zk, self._paths, self._changed.set
        self._members = Watched(lambda watch: zk.get_children(paths.members, watch), changed)
        self._ours = Watched(lambda watch: zk.get_children(paths.ours, watch), changed)
        self._shared = Watched(lambda watch: zk.get(paths.partitions, watch), changed)
        self._since = {}
        log.info("%s: joined the kiel group as %s (pid %d)", self._group, self.member_id, os.getpid())

    async def _begin_session(self) -> None:
        await super()._begin_session()
        await self._lock.delete()

    def _proof(self) -> tuple[str, bytes]:
        return self._paths.member(self.member_id), b""

    def _claim_paths(self, partition: TopicPartition) -> tuple[str, ...]:
        return (f"{self._paths.owners}/{partition.topic}:{partition.partition}",)

    def _claim_of(self, directory: str, name: str) -> TopicPartition | None:
        topic, _, text = name.rpartition(":")
        number = whole_number(text)
        return None if number is None else TopicPartition(topic, number)

    def _claim_data(self) -> bytes:
        return self.member_id.encode()

    async def _mine(self) -> Partitions:
        members, ours = await self._members.get(), set(await self._ours.get())
        self._check_registered(members)
        try:
            shared, seal = read_shared(self._paths.partitions, (await self._shared.get())[0])
        except InvalidZnode as error:
            self._listener.failed(error)
            return self.held
        if seal is not None and seal.phase is not HandoverPhase.SEALING:
            log.info("%s: the group moves to %s; %s releases its partitions", self._group, seal.root, self.member_id)
            self._renewing = True
            self._changed.set()
            return NO_PARTITIONS
        self._missing = self._existing() - shared if seal is None else NO_PARTITIONS
        if self._missing:
            self._must_add.set()
        if any(name not in ours for name in members):
            self._foreign_until = math.inf
        elif self._foreign_until == math.inf:
            self._foreign_until = self._clock()
        view = sorted(members), sorted(f"{p.topic}:{p.partition}" for p in shared)
        if view != self._view:
            self._view = view
            self.generation += 1
        try:
            mine = self._assigned_here(*view)
        except Exception as error:  # noqa: BLE001  the user's function may raise anything
            log.error("%s: the allocator function failed: %r", self._group, error)
            self._listener.failed(error)
            return self.held
        now = self._clock()
        self._since = {p: self._since.get(p, now) for p in mine}
        return mine

    async def _take_part(self, scope: TaskGroup) -> None:
        self._must_add = asyncio.Event()
        # runs in its own task, so that this member can leave even while another client holds the lock
        scope.start(self._add_missing(), "shared list")
        await super()._take_part(scope)

    async def _add_missing(self) -> None:
        """Adds partitions that the shared list lacks. A watch reports the change."""
        while True:
            await self._must_add.wait()
            self._must_add.clear()
            log.info("%s: adding %d partitions to the group", self._group, len(self._missing))
            try:
                await add_partitions(self._zk, self._paths, self._missing, self._lock)
            except (ConnectionLost, NoZnode) as error:
                log.debug("%s: adding the partitions again: %s", self._group, error)
                await asyncio.sleep(RETRY_S)
                self._must_add.set()
            except InvalidZnode as error:
                self._listener.failed(error)

    def _assigned_here(self, members: list[str], partitions: list[str]) -> Partitions:
        of_topics = dict(self._settings.function(members, partitions)).get(self.member_id, {})
        found: set[TopicPartition] = set()
        for topic in filter(self._selection.__contains__, of_topics):
            mine, existing = {TopicPartition(topic, n) for n in of_topics[topic]}, self._topics.partitions(topic)
            # a starting broker may report existing topics as missing, and members of kiel also assign deleted
            # partitions
            found |= mine & (self.held if existing is None else {TopicPartition(topic, n) for n in existing})
        return frozenset(found)

    def _wait_s(self, partition: TopicPartition) -> float:
        since = self._since[partition] if self._foreign_until == math.inf else self._foreign_until
        return float(since + self._settings.settle_s - self._clock())

    # -- the move to the new layout -------------------------------------------------------------------------------

    async def _session(self, joined: asyncio.Future[None]) -> None:
        try:
            seal = await self._read_seal()
        except InvalidZnode:
            if not joined.done():
                raise
            seal = None  # a member of the group takes part, and owns nothing until the list is valid
        if seal is None or seal[0].phase is HandoverPhase.SEALING:
            await super()._session(joined)
            return
        self._moved = True
        if not joined.done():
            log.info("%s: the group has moved to %s; joining there", self._group, seal[0].root)
        await self._move()
        if not joined.done():
            joined.set_result(None)
        await self._until_leaving()

    async def _read_seal(self, watch: Callable[[], None] | None = None) -> tuple[Seal, int] | None:
        try:
            data, stat = await self._zk.get(self._paths.partitions, watch)
        except NoZnode:
            return None
        seal = read_shared(self._paths.partitions, data)[1]
        return None if seal is None else (seal, stat.version)

    async def _move(self) -> None:
        """Waits until the group is open in the new layout, and joins it."""
        await self._begin_session()  # deletes this member's own znodes first: the waits below are for all znodes
        await until_empty(self._zk, self._paths.members)
        await until_empty(self._zk, self._paths.owners)
        while True:
            changed = asyncio.Event()
            seal = await self._read_seal(changed.set)
            if seal is None:
                raise AllocatorError(f"{self._paths.partitions} was deleted, so the new root of the group is unknown")
            if seal[0].phase is HandoverPhase.OPEN:
                break
            await self._open(*seal, changed)
        await self._opening.delete()
        # this member owns nothing, so its pause ends here; the next membership reports its own pauses
        self._listener.resumed()
        while True:
            try:
                await self._continue(seal[0].root)
                return
            except AllocatorError as error:
                if not error.retriable:
                    raise
                log.warning("%s: joining under %s failed, retrying: %s", self._group, seal[0].root, error)
                await asyncio.sleep(RETRY_S)

    async def _open(self, seal: Seal, version: int, changed: asyncio.Event) -> None:
        """Copies the offsets, or waits for the member that copies them. Returns when the seal may have changed.

        `changed`: set by a watch on the seal. After ConnectionLost, `_move` runs again.
        """
        if self._opening.paths and await self._zk.exists(self._paths.opening) is None:
            # an operator deleted it: forget it, or this member would never create it again, and try without a pause
            self._opening = EphemeralZnodes(self._zk)
        try:
            await self._opening.create({self._paths.opening: b""})
        except ZnodeExists:
            if await self._zk.exists(self._paths.opening, changed.set) is not None:
                await changed.wait()
            return
        if await self._read_seal() != (seal, version):
            return  # another member has opened the group before: the offsets in Kafka may be newer than the old ones
        self._keeper.begin()
        try:
            # only under a valid lease: if this session expires, another member copies and opens the group meanwhile
            await TaskGroup().run(self._copy(seal, version), lease=self._keeper.keep(self._paths.opening, b""))
        except BadVersion:
            pass  # another member has opened the group
        except (ConnectionLost, MembershipLost):
            raise
        except AllocatorError as error:
            log.warning("%s: copying the offsets failed, retrying: %s", self._group, error)
            await self._opening.delete()
            await asyncio.sleep(RETRY_S)  # meanwhile another member may copy them, if it can reach Kafka
        finally:
            self._keeper.end()

    async def _copy(self, seal: Seal, version: int) -> None:
        def refusals(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerError]:
            refused = BrokerError("another member may have copied it since")
            return {} if self._keeper.may_act else dict.fromkeys(partitions, refused)

        await self._keeper.granted()
        # the topics of all members; a metadata request with topic names may create a deleted topic
        self._topics.follow_all()
        await self._topics.refresh()
        existing = {topic: set(self._topics.partitions(topic) or ()) for topic in self._topics.topics()}
        carried = (p for p in seal.partitions if p.partition in existing.get(p.topic, ()))
        count = await self._offsets.carry_over(carried, refusals)
        await self._zk.set(self._paths.partitions, replace(seal, phase=HandoverPhase.OPEN).encode(), version)
        log.info("%s: copied %d offsets to Kafka; the group continues under %s", self._group, count, seal.root)

    def _state_changed(self, state: SessionState) -> None:
        if not self._moved:
            super()._state_changed(state)
        elif state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()


# -- the znodes of a kiel group, and its handover to the new layout ---------------------------------------------------
#
#     /kiel/groups/<group>/members/<name>       ephemeral   one for each member, of kiel or of this library
#     /kiel/groups/<group>/partitions           persistent  JSON ["topic:0", ...]: all assigned partitions; under a lock
#     /kiel/groups/<group>/allocator/members    persistent  ephemeral children name the members of this library
#     /kiel/groups/<group>/allocator/owners     persistent  ephemeral children "topic:0": their claims, see `owners`
#
# A `Seal` replaces the list of partitions when the group moves. It is not JSON: so a member of kiel that is started by
# mistake fails before it joins, and its error shows an operator the reason.


SEALED = "This group was given to another layout by `allocator group adopt`; members of kiel's cannot join. "
LOCK = "__lock__"  # kazoo's Lock names its znodes <hex>__lock__<sequence>


class AdoptionRefused(AllocatorError):
    """The group cannot move to the new layout now. Nothing was changed."""


class KielPaths(Paths):
    """The znodes of one kiel group."""

    def __init__(self, group: str) -> None:
        super().__init__("/kiel/groups", group)

    @property
    def partitions(self) -> str:
        return f"{self.base}/partitions"

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
    """The phases of a move to the new layout.

    SEALING: members of kiel can no longer join; the caller checks whether one has joined just before. SEALED: members
    release all partitions. OPEN: the offsets are in Kafka, and the group continues under `root`.
    """

    SEALING = "sealing"
    SEALED = "sealed"
    OPEN = "open"


@dataclass(frozen=True)
class Seal:
    phase: HandoverPhase
    root: str
    partitions: Partitions
    """The assigned partitions at the time of the seal."""

    def encode(self) -> bytes:
        content = {"phase": self.phase.value, "root": self.root, "partitions": _names(self.partitions)}
        return (SEALED + json.dumps(content)).encode()


def read_shared(path: str, data: bytes) -> tuple[Partitions, Seal | None]:
    """Returns the assigned partitions, and the seal if there is one. Raises InvalidZnode."""
    try:
        text = data.decode()
        if not text.startswith(SEALED):
            return _parsed(parse_json(text or "[]")), None
        content = parse_json(text[len(SEALED) :])
        found = Seal(HandoverPhase(content["phase"]), str(content["root"]), _parsed(content["partitions"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidZnode(path, f"neither a list of 'topic:partition' nor a seal ({shown(error)})") from None
    return found.partitions, found


async def add_partitions(
    zk: ZooKeeperClient, paths: KielPaths, partitions: Partitions, lock: EphemeralZnodes | None = None
) -> None:
    """Adds partitions to the shared list. Changes nothing if the list has them, or if the group is sealed.

    After ConnectionLost, call this again with the same `lock`.
    """
    async with _locked(zk, f"{paths.partitions}/lock", lock or EphemeralZnodes(zk)):
        data, stat = await zk.get(paths.partitions)
        shared, sealed = read_shared(paths.partitions, data)
        if sealed is None and not partitions <= shared:
            # compares the version, because `seal` does not take the lock
            with contextlib.suppress(BadVersion):
                await zk.set(paths.partitions, json.dumps(_names(shared | partitions)).encode(), stat.version)


async def read_group(
    zk: ZooKeeperClient, paths: KielPaths
) -> tuple[tuple[str, ...], tuple[str, ...], Partitions, Seal | None]:
    """Returns (members of this library, members of kiel, assigned partitions, seal). Raises AdoptionRefused if the
    group does not exist."""
    try:
        data, _ = await zk.get(paths.partitions)
        names = sorted(await zk.get_children(paths.members))
    except NoZnode:
        raise AdoptionRefused(f"ZooKeeper has no kiel group {paths.group!r}: {paths.base} does not exist") from None
    try:
        ours = set(await zk.get_children(paths.ours))
    except NoZnode:
        ours = set()
    shared, sealed = read_shared(paths.partitions, data)
    return tuple(n for n in names if n in ours), tuple(n for n in names if n not in ours), shared, sealed


async def seal(zk: ZooKeeperClient, paths: KielPaths, root: str) -> None:
    """Starts the move of a group to `root`, which its members complete.

    May be called again after an interruption. Raises AdoptionRefused after it has undone its changes.
    """
    while True:
        data, stat = await zk.get(paths.partitions)
        shared, sealed = read_shared(paths.partitions, data)
        if sealed is not None and sealed.phase is not HandoverPhase.SEALING:
            if sealed.root != root:
                raise AdoptionRefused(f"group {paths.group!r} has moved to {sealed.root} already, not to {root}")
            return
        try:
            if sealed is None:
                sealing = Seal(HandoverPhase.SEALING, root, shared)
                stat = await zk.set(paths.partitions, sealing.encode(), stat.version)
            # a member of kiel may have joined just before the seal
            _, foreign, _, _ = await read_group(zk, paths)
            if foreign:
                await zk.set(paths.partitions, json.dumps(_names(shared)).encode(), stat.version)
                raise AdoptionRefused(
                    f"members of kiel joined group {paths.group!r} meanwhile: {', '.join(foreign)}; nothing was changed"
                )
            await zk.set(paths.partitions, Seal(HandoverPhase.SEALED, root, shared).encode(), stat.version)
            return
        except BadVersion:
            continue


async def until_empty(zk: ZooKeeperClient, path: str) -> None:
    """Waits until the znode has no children, or does not exist."""
    while True:
        changed = asyncio.Event()
        try:
            if not await zk.get_children(path, changed.set):
                return
        except NoZnode:
            return
        await changed.wait()


@contextlib.asynccontextmanager
async def _locked(zk: ZooKeeperClient, path: str, lock: EphemeralZnodes) -> AsyncIterator[None]:
    """Holds kiel's lock on the shared list, by kazoo's recipe. Raises ConnectionLost and NoZnode."""
    await zk.ensure_path(path)
    await lock.delete()  # an earlier call may have left its znode
    mine = (await lock.create_sequential(f"{path}/{uuid.uuid4().hex}{LOCK}")).rpartition("/")[2]
    try:
        while True:
            waiting = sorted((name for name in await zk.get_children(path) if LOCK in name), key=_sequence)
            if mine not in waiting:
                raise NoZnode(f"{path}/{mine} was deleted")
            index = waiting.index(mine)
            if index == 0:
                break
            gone = asyncio.Event()
            if await zk.exists(f"{path}/{waiting[index - 1]}", gone.set) is not None:
                await gone.wait()
        yield
    except BaseException:
        with contextlib.suppress(ZooKeeperError):  # `lock` deletes the znode later
            await lock.delete()
        raise
    await lock.delete()


def _sequence(name: str) -> str:
    return name.rpartition(LOCK)[2]


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted(f"{p.topic}:{p.partition}" for p in partitions)


def _parsed(names: list[str]) -> Partitions:
    if not isinstance(names, list):
        raise TypeError("it is not a list")
    found = set()
    for name in names:
        topic, _, number = name.rpartition(":")
        found.add(TopicPartition(topic, int(number)))
    return frozenset(found)
