"""Base class of the legacy layouts: a member owns a partition by an ephemeral znode, its claim.

Guarantee: among members that create these znodes (of this library, and of Kafka 0.8's high-level consumer), a partition
has at most one owner at any instant. Only one member can create the znode, and it starts the partition after that. It
deletes the znode after it has drained the partition and committed. The guarantee does not cover members that create no
such znodes.

Each partition that moves costs one create and one delete. A transaction has a few hundred of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from allocator.core.aio import TaskGroup, wait_for_event
from allocator.core.membership import AssignmentListener, MemberSettings
from allocator.core.settings import PartitionCountSource, TopicSelection
from allocator.core.telemetry import Measures
from allocator.errors import AllocatorError
from allocator.protocols.zookeeper import (
    ConnectionLost,
    EphemeralZnodes,
    SessionMembership,
    Watched,
    ZnodeExists,
    ZooKeeperClient,
)
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

log = logging.getLogger(__name__)

AT_ONCE = 200  # claims in one transaction. Higher: other clients of ZooKeeper wait longer; lower: more round trips
RETRY_S = 0.1
GATHER_S = 0.05  # seconds within which several changes of claims cause one reaction


@dataclass(frozen=True)
class OwnersSettings(MemberSettings):
    """The settings of a member. Times in seconds."""

    max_poll_interval_s: float | None = None  # longest time between two polls of the user; None: no limit
    topic_poll_s: float = 10.0  # between two metadata requests that detect new topics and partitions


class OwnersMembership(SessionMembership):
    """A member that claims the partitions that its layout assigns to it.

    A subclass is a layout. It computes the assignment (`_mine`) and the paths of the claims.
    """

    def __init__(
        self,
        zk: ZooKeeperClient,
        group: str,
        listener: AssignmentListener,
        topics: PartitionCountSource,
        settings: OwnersSettings,
        *,
        measures: Measures | None = None,
    ) -> None:
        super().__init__(zk, group, listener, settings, measures)
        self._topics = topics
        self._selection = TopicSelection(settings.topics, settings.pattern)
        self._topic_poll_s = settings.topic_poll_s
        self._clock = self._keeper.clock
        self._registration = EphemeralZnodes(zk)  # the znodes that register the member
        self._claims = EphemeralZnodes(zk)
        self._claim_session: int | None = None
        self._unclaiming: Partitions = NO_PARTITIONS  # released partitions whose claims are being deleted
        self._paths_of: dict[TopicPartition, tuple[str, ...]] = {}  # the claims that this member tried to create
        self._ensured: set[str] = set()
        self._listings: dict[str, Watched[list[str]]] = {}

    # -- methods of a layout --------------------------------------------------------------------------------------

    async def _mine(self) -> Partitions:
        """Returns the partitions of this member in the current state of the group. Sets `_changed` when the result may
        have changed."""
        raise NotImplementedError

    def _claim_paths(self, partition: TopicPartition) -> tuple[str, ...]:
        """Returns the znodes that the owner of a partition creates in one transaction."""
        raise NotImplementedError

    def _claim_of(self, directory: str, name: str) -> TopicPartition | None:
        """Returns the partition that a znode in a directory of claims belongs to; None if it is not a claim."""
        raise NotImplementedError

    def _claim_data(self) -> bytes:
        raise NotImplementedError

    def _wait_s(self, partition: TopicPartition) -> float:
        """Returns the seconds until this member may claim a partition that is assigned to it."""
        return 0.0

    # -- the subscription ----------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription. A partition with another owner starts when that owner releases it."""
        self._selection = TopicSelection(topics, pattern)
        if self._task is not None:
            self._selection.follow(self._topics)
            self._changed.set()

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _begin_session(self) -> None:
        """Deletes the znodes of an earlier membership in this session. Call it first in `_register`."""
        self._listings = {}
        self._ensured = set()
        if self._claim_session != self._zk.session_id:
            self._claims = EphemeralZnodes(self._zk)  # the earlier claims ended with their session
        self._claim_session = self._zk.session_id
        await self._claims.delete()  # the session may outlive a membership
        self._paths_of = {}
        await self._registration.delete()

    async def _take_part(self, scope: TaskGroup) -> None:
        self._selection.follow(self._topics)
        scope.start(self._poll_topics(), "topics")
        remove = self._topics.on_metadata(self._changed.set)
        try:
            await self._follow(scope)
        finally:
            remove()

    async def _follow(self, scope: TaskGroup) -> None:
        wait_s: float | None = None
        while True:
            await wait_for_event(self._changed, wait_s)
            self._changed.clear()
            wait_s = None
            if self._leaving or self._renewing:
                self._release(self.held, scope)
                if not (self.tenures.assignment or self._unclaiming):
                    return
                continue
            try:
                mine = await self._mine()
                self._release(self.held - mine, scope)
                if not self._starting:
                    wait_s = await self._gain(mine - self.tenures.owned - self._unclaiming, scope)
            except ConnectionLost:
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _gain(self, wanted: Partitions, scope: TaskGroup) -> float | None:
        """Claims free partitions and starts them. Returns the seconds until the next attempt; None if a watch triggers
        it."""
        await self._claims.recover()
        await self._unclaim(self._claimed() - wanted - self.tenures.owned - self._unclaiming)
        waits = {p: self._wait_s(p) for p in wanted}
        ready = frozenset(p for p, wait_s in waits.items() if wait_s <= 0)
        later = [wait_s for wait_s in waits.values() if wait_s > 0]
        if ready:
            fences = await self._claim(ready)
            gained = frozenset(fences)
            if gained:
                self.tenures.claim(fences)
                log.info(
                    "%s: %s gains %d partitions, holds %d", self._group, self.member_id, len(gained), len(self.held)
                )
                self._start(gained, scope)
            retry_s = await self._await_claims(ready - gained) if gained != ready else None
            if retry_s is not None:
                later.append(retry_s)
        return min(later, default=None)

    # -- claims --------------------------------------------------------------------------------------------------

    async def _claim(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Creates claims. Returns the claimed partitions with their fencing tokens."""
        gained = partitions & self._claimed()
        free = iter(sorted(partitions - gained - await self._taken(partitions)))
        while some := list(islice(free, AT_ONCE)):
            paths = {p: self._claim_paths(p) for p in some}
            self._paths_of.update(paths)
            try:
                await self._claims.create(dict.fromkeys(chain(*paths.values()), self._claim_data()))
            except ZnodeExists:
                for listing in self._listings.values():
                    listing.forget()
                break
            except ConnectionLost:
                if gained:
                    # the caller starts the claimed partitions now, and claims the rest when the connection is back
                    break
                raise
            gained |= paths.keys()
        return await self._fences(gained)

    async def _taken(self, partitions: Partitions) -> Partitions:
        """Returns the partitions of `partitions` that have a claim by any member."""
        directories: defaultdict[str, set[TopicPartition]] = defaultdict(set)
        for partition in partitions:
            for directory in self._directories(partition):
                directories[directory].add(partition)
        found: set[TopicPartition] = set()
        for directory, wanted in directories.items():
            if directory not in self._ensured:
                await self._zk.ensure_path(directory)
                self._ensured.add(directory)
            claims = {self._claim_of(directory, name) for name in await self._zk.get_children(directory)}
            found |= wanted & claims
        return frozenset(found)

    async def _fences(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Returns the fencing tokens of claimed partitions: the ids of the transactions that created the znodes."""
        fences: dict[TopicPartition, int] = {}
        claimed = iter(partitions)
        while some := list(islice(claimed, AT_ONCE)):
            stats = await asyncio.gather(*(self._zk.exists(self._paths_of[p][0]) for p in some))
            # an operator deleted the missing znode: the lowest token lets any other owner take over
            fences.update((p, -1 if stat is None else stat.created_zxid) for p, stat in zip(some, stats))
        return fences

    def _claimed(self) -> Partitions:
        """Returns the partitions that this member has claimed."""
        return frozenset(partition for partition, paths in self._paths_of.items() if paths[0] in self._claims.paths)

    async def _await_claims(self, partitions: Partitions) -> float | None:
        """Watches the claims of other members. Returns the seconds until the next attempt; None if the watch triggers
        it."""
        claims: set[TopicPartition | None] = set()
        for directory in set().union(*map(self._directories, partitions)):
            listing = self._listings.get(directory)
            if listing is None:
                listing = self._listings[directory] = Watched(partial(self._zk.get_children, directory), self._soon)
            claims |= {self._claim_of(directory, name) for name in await listing.get()}
        # retries soon if a claim was deleted before the watch was set
        return None if partitions <= claims else GATHER_S

    def _soon(self) -> None:
        asyncio.get_running_loop().call_later(GATHER_S, self._changed.set)

    async def _released(self, partitions: Partitions) -> None:
        if not self._leaving:  # otherwise the end of the session deletes all claims; ZooKeeper may not respond now
            self._unclaiming |= partitions
            try:
                await self._unclaim(partitions)
            finally:
                self._unclaiming -= partitions
        await super()._released(partitions)

    async def _unclaim(self, partitions: Partitions) -> None:
        """Deletes claims. Retries until they are deleted or the session has ended."""
        paths = set(chain(*(self._paths_of[partition] for partition in partitions if partition in self._paths_of)))
        while paths and self._claim_session == self._zk.session_id:
            try:
                await self._claims.delete(paths)
                return
            except ConnectionLost:
                await asyncio.sleep(RETRY_S)

    async def _delete_ours(self, released: bool) -> None:
        if self._claim_session == self._zk.session_id:
            await self._claims.delete()
        await self._registration.delete()

    def _directories(self, partition: TopicPartition) -> set[str]:
        return {path.rpartition("/")[0] for path in self._claim_paths(partition)}

    # -- topics --------------------------------------------------------------------------------------------------

    def _existing(self) -> Partitions:
        """Returns all known partitions of the subscribed topics."""
        topics = self._selection.among(self._topics.topics())
        return frozenset(TopicPartition(t, number) for t in topics for number in self._topics.partitions(t) or ())

    async def _poll_topics(self) -> None:
        """Polls Kafka for new topics and partitions."""
        while True:
            await asyncio.sleep(self._topic_poll_s)
            with contextlib.suppress(AllocatorError):  # the next poll retries
                await self._topics.refresh()
