"""Ownership by one ephemeral znode a partition: how the layouts before ours are shared, with others and among ours.

Guarantee: among members that claim (ours, and those of Kafka 0.8's high-level consumer) a partition has at most one
owner at any instant: who begins with it has created its znode, which only one can, and deletes it when nothing of the
partition is in the user's hands and what was done is committed. Nothing is said of members that do not claim.

A claim costs a create and a delete for each partition that moves, a few hundred in one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from allocator.clock import boot_clock
from allocator.errors import AllocatorError
from allocator.groups.lease import MembershipLost
from allocator.groups.membership import AssignmentListener, PartitionCountSource
from allocator.groups.patterns import TopicSelection
from allocator.groups.session import SessionMembership
from allocator.measures import Measures
from allocator.settings import DEFAULT
from allocator.tasks import TaskGroup, wait_for_event
from allocator.types import Partitions, TopicPartition
from allocator.zookeeper.client import ConnectionLost, NoZnode, Op, Watched, ZnodeExists, ZooKeeper

__all__ = ["OwnersMembership", "OwnersSettings"]

log = logging.getLogger(__name__)

AT_ONCE = 200  # creates in one transaction; more: others of the ensemble wait longer; less: more round trips
RETRY_S = 0.1
GATHER_S = 0.05  # how long changes are waited for together, when a claim is waited for


@dataclass(frozen=True)
class OwnersSettings:
    """How a member takes part. Times in seconds."""

    name: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    connect_timeout_s: float | None = DEFAULT["connect_timeout_s"]  # of `join`; None: waits for ever
    max_poll_interval_s: float | None = None  # a user silent for longer costs the membership; None: silence is fine
    topic_poll_s: float = 10.0  # how soon new partitions and topics are noticed, at one metadata request each


class OwnersMembership(SessionMembership):
    """A member that claims what its layout says is its own.

    The layout answers `_mine` from what it watches, and says where a partition's znode stands.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        group: str,
        base: str,
        listener: AssignmentListener,
        topics: PartitionCountSource,
        settings: OwnersSettings,
        *,
        measures: Measures | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        super().__init__(zk, group, base, listener, settings, measures, clock)
        self._topics = topics
        self._selection = TopicSelection(settings.topics, settings.pattern)
        self._topic_poll_s = settings.topic_poll_s
        self._clock = clock
        self._claimed: dict[TopicPartition, tuple[str, ...]] = {}
        self._claim_session: int | None = None
        self._doubtful: dict[TopicPartition, tuple[str, ...]] = {}  # the reply was lost: it may be ours
        self._made: set[str] = set()
        self._listings: dict[str, Watched[list[str]]] = {}

    # -- what a layout says --------------------------------------------------------------------------------------

    async def _mine(self) -> Partitions:
        """What is to be ours by the newest view of the group; sets `_changed` when that may be another."""
        raise NotImplementedError

    def _claim_paths(self, partition: TopicPartition) -> tuple[str, ...]:
        """The znodes that the owner of a partition makes, all or none."""
        raise NotImplementedError

    def _claim_of(self, directory: str, name: str) -> TopicPartition | None:
        """What a znode in a directory of claims is a claim of; None if it is none."""
        raise NotImplementedError

    def _claim_data(self) -> bytes:
        raise NotImplementedError

    def _wait_s(self, partition: TopicPartition) -> float:
        """How long a partition that is to be ours is left alone yet."""
        return 0.0

    # -- the subscription ----------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription; what of it others have is begun with once they let go."""
        self._selection = TopicSelection(topics, pattern)
        if self._task is not None:
            self._selection.follow(self._topics)
            self._changed.set()

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _begin_session(self) -> None:
        """To be called by `_register` before anything else."""
        self._listings = {}
        self._made = set()
        if self._claim_session != self._zk.session_id:
            self._claimed, self._doubtful = {}, {}  # they went with their session, and may be another's by now
        self._claim_session = self._zk.session_id
        # the membership before may have ended while its session lives on: what was deleted then may be another's by now
        self._doubtful.update(self._claimed)
        self._claimed = {}
        await self._recover()
        await self._unclaim(frozenset(self._claimed))

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
                self._release(self._held, scope)
                if not self._draining:
                    return
                continue
            try:
                mine = await self._mine()
                self._release(self._held - mine, scope)
                wait_s = await self._gain(mine - self._held - self._draining)
            except ConnectionLost:
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _gain(self, wanted: Partitions) -> float | None:
        """Claims what may be claimed, and begins with it; returns when to look again, None if a watch tells."""
        if self._doubtful:
            await self._recover()
            await self._unclaim(self._claimed.keys() - wanted - self._held - self._draining)
        waits = {p: self._wait_s(p) for p in wanted}
        ready = frozenset(p for p, wait_s in waits.items() if wait_s <= 0)
        later = [wait_s for wait_s in waits.values() if wait_s > 0]
        if ready:
            gained = await self._claim(ready)
            if gained:
                self._held |= gained
                log.info(
                    "%s: %s gains %d partitions, holds %d", self._group, self.member_id, len(gained), len(self._held)
                )
                await self._listener.assigned(gained)
            again_s = await self._await_claims(ready - gained) if gained != ready else None
            if again_s is not None:
                later.append(again_s)
        return min(later, default=None)

    # -- claims --------------------------------------------------------------------------------------------------

    async def _claim(self, partitions: Partitions) -> Partitions:
        """Those whose znode is ours now."""
        gained = partitions & self._claimed.keys()
        free = iter(sorted(partitions - gained - await self._taken(partitions)))
        while some := list(islice(free, AT_ONCE)):
            paths = {p: self._claim_paths(p) for p in some}
            creates = [Op("create", path, self._claim_data(), ephemeral=True) for path in chain(*paths.values())]
            try:
                await self._zk.multi(creates)
            except ZnodeExists:
                for listing in self._listings.values():
                    listing.forget()
                break
            except ConnectionLost:
                self._doubtful.update(paths)
                if gained:
                    break  # they are ours; the rest when the connection is back
                raise
            self._claimed.update(paths)
            gained |= paths.keys()
        return gained

    async def _taken(self, partitions: Partitions) -> Partitions:
        """Those that have a claim."""
        directories: defaultdict[str, set[TopicPartition]] = defaultdict(set)
        for partition in partitions:
            for directory in self._directories(partition):
                directories[directory].add(partition)
        found: set[TopicPartition] = set()
        for directory, wanted in directories.items():
            if directory not in self._made:
                await self._zk.ensure_path(directory)
                self._made.add(directory)
            claims = {self._claim_of(directory, name) for name in await self._zk.get_children(directory)}
            found |= wanted & claims
        return frozenset(found)

    async def _recover(self) -> None:
        """Finds out which of the doubtful claims are ours."""
        doubtful = iter(sorted(self._doubtful.items()))
        while some := list(islice(doubtful, AT_ONCE)):
            stats = await asyncio.gather(*(self._zk.exists(paths[0]) for _, paths in some))
            for (partition, paths), stat in zip(some, stats):
                if stat is not None and stat.owner == self._zk.session_id:
                    self._claimed[partition] = paths
                del self._doubtful[partition]

    async def _await_claims(self, partitions: Partitions) -> float | None:
        """Has the others' claims watched; returns when to look again, None if the watch tells."""
        claims: set[TopicPartition | None] = set()
        for directory in set().union(*map(self._directories, partitions)):
            listing = self._listings.get(directory)
            if listing is None:
                listing = self._listings[directory] = Watched(partial(self._zk.get_children, directory), self._soon)
            claims |= {self._claim_of(directory, name) for name in await listing.get()}
        return None if partitions <= claims else GATHER_S  # some are gone already, unseen by the watch

    def _soon(self) -> None:
        asyncio.get_running_loop().call_later(GATHER_S, self._changed.set)

    async def _drained(self, partitions: Partitions) -> None:
        if self._leaving:
            return  # our session is about to end, which deletes them all; ZooKeeper may be silent
        await self._unclaim(partitions)

    async def _unclaim(self, partitions: Iterable[TopicPartition]) -> None:
        """Until their znodes are gone, or our session is."""
        left = [p for p in sorted(partitions) if p in self._claimed]
        while left and self._claim_session == self._zk.session_id:
            some = left[:AT_ONCE]
            try:
                await self._delete_all(list(chain(*(self._claimed[p] for p in some))))
            except ConnectionLost:
                await asyncio.sleep(RETRY_S)
                continue
            for partition in some:
                self._claimed.pop(partition, None)
            del left[:AT_ONCE]

    async def _delete_all(self, paths: Sequence[str]) -> None:
        try:
            await self._zk.multi([Op("delete", path) for path in paths])
        except NoZnode:
            for path in paths:
                with contextlib.suppress(NoZnode):
                    await self._zk.delete(path)

    def _claim_znodes(self) -> Iterable[str]:
        """For `_znodes`: of another session's claims nothing is ours any more."""
        return chain(*self._claimed.values()) if self._claim_session == self._zk.session_id else ()

    def _directories(self, partition: TopicPartition) -> set[str]:
        return {path.rpartition("/")[0] for path in self._claim_paths(partition)}

    def _must_stand(self, names: Iterable[str]) -> None:
        """Raises MembershipLost unless we are among the members."""
        if self.member_id not in names:
            raise MembershipLost("its znode was deleted")

    # -- topics --------------------------------------------------------------------------------------------------

    def _existing(self) -> Partitions:
        """All partitions of the selected topics, as far as Kafka says."""
        topics = self._selection.among(self._topics.topics())
        return frozenset(TopicPartition(t, number) for t in topics for number in self._topics.partitions(t) or ())

    async def _poll_topics(self) -> None:
        """Looks for new topics and partitions: no message announces them."""
        while True:
            await asyncio.sleep(self._topic_poll_s)
            with contextlib.suppress(AllocatorError):  # the next turn tries again
                await self._topics.refresh()
