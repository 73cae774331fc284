"""The leader (the oldest member) computes assignments and moves partitions safely from owner to owner."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from allocator.assignors import Assignor, GroupViewBuilder, Load
from allocator.core.aio import TaskGroup, boot_clock, wait_for_event
from allocator.core.settings import PartitionCountSource
from allocator.core.text import plain, shown
from allocator.errors import AllocatorError
from allocator.protocols.zookeeper.client.client import BadVersion, ConnectionLost, NoZnode, ZnodeExists
from allocator.protocols.zookeeper.decider import Decider
from allocator.protocols.zookeeper.group_znodes import GroupZnodes, Snapshot
from allocator.protocols.zookeeper.seats import GraceTimer, absent, away, successors, take_seats, unaware
from allocator.protocols.zookeeper.subscribed_topics import SubscribedTopics
from allocator.protocols.zookeeper.znodes.documents import MINUTE_MS, AssignmentDocument, Claim
from allocator.protocols.zookeeper.znodes.following import LASTING_S, LOOK_S, ImbalanceTimer
from allocator.protocols.zookeeper.znodes.load_reader import LoadReader
from allocator.protocols.zookeeper.znodes.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaderSettings:
    """The waiting times of the leader, in seconds."""

    # delay between a change in the group and the new assignment document. Higher: fewer rebalances when many members
    # join at once; lower: a rebalance starts sooner
    debounce_s: float = 0.005
    debounce_max_s: float = 0.5  # longest delay of a rebalance while changes keep coming
    # delay between the first release and the next document, while other members are still releasing. Higher: fewer
    # documents; lower: a late release delays the partitions of other members less
    releases_s: float = 0.01
    topic_poll_s: float = 10.0  # between two metadata requests, which find new topics and partitions
    load_look_s: float = LOOK_S
    load_lasting_s: float = LASTING_S


class Leader:
    """Leads the group while this member is the oldest.

    Guarantee: the leader keeps no state that its successor needs. It replaces the document by compare-and-set on the
    version from which it decided, so a leader that was paused and replaced cannot undo the work of its successor.
    """

    def __init__(
        self,
        store: Store,
        me: str,
        topics: PartitionCountSource,
        assignors: Mapping[str, Assignor],
        settings: LeaderSettings,
        load: Load | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._store = store
        self._group = group = store.paths.group
        self._me = me
        self._settings = settings
        self._clock = clock
        self._topics = SubscribedTopics(group, topics, lambda: self._znodes.poke())
        self._znodes = GroupZnodes(store, self._topics.of_topic)
        surroundings = GroupViewBuilder(group, topics, load)
        self._decider = Decider(group, me, assignors, self._topics, surroundings, LoadReader(store))
        self._imbalance = ImbalanceTimer(settings.load_lasting_s)
        self._look_at = clock() + settings.load_look_s
        self._graces = GraceTimer(clock)
        self._unaware: list[str] = []

    async def run(self) -> None:
        """Leads until it is cancelled."""
        log.info("%s: %s leads", self._group, self._me)
        topics = self._topics.poll(self._settings.topic_poll_s)
        await TaskGroup().run(self._lead(), topics=topics, count=self._znodes.watch_count())

    def start_over(self) -> None:
        """Reads and decides everything again, because ZooKeeper does not hold the document that this leader wrote
        last."""
        self._decider.forget()
        self._znodes.start_over()

    def saw(self, zxid: int) -> None:
        """Called with the last transaction of each assignment that this member reads."""
        if self._znodes.is_foreign(zxid):
            log.warning("%s: another client wrote the assignment; reading it again", self._group)
            self.start_over()

    async def _lead(self) -> None:
        znodes, loop = self._znodes, asyncio.get_running_loop()
        znodes.poke()
        write_at: float | None = None
        while True:
            znodes.changed.clear()
            try:
                settled, pause_s = await self._step(write_at)
            except (BadVersion, ZnodeExists):
                log.info("%s: another client wrote the assignment; reading it again", self._group)
                self.start_over()
                continue
            except (ConnectionLost, NoZnode) as error:
                # a write may have succeeded although its response was lost, so the znode is read
                self.start_over()
                if isinstance(error, NoZnode):
                    # the group's own znodes were deleted, and only the leader creates them again. A member whose znodes
                    # were deleted as well notices at its next write
                    log.warning("%s: %s; creating the group's znodes again", self._group, error)
                    with contextlib.suppress(ConnectionLost, NoZnode):
                        await self._store.prepare()
                await asyncio.sleep(0.05)
                continue
            write_at = None
            if not settled:
                await self._debounce()
            elif await wait_for_event(znodes.changed, pause_s):
                if znodes.released:
                    await self._wait_for_releases()
                znodes.released = False
                if znodes.regrouped.is_set():
                    # the leader reads and decides while it waits for further changes
                    write_at = loop.time() + self._settings.debounce_s

    async def _debounce(self) -> None:
        loop, regrouped = asyncio.get_running_loop(), self._znodes.regrouped
        end = loop.time() + self._settings.debounce_max_s
        regrouped.clear()
        while loop.time() < end:
            await asyncio.sleep(min(self._settings.debounce_s, max(0.0, end - loop.time())))
            if not regrouped.is_set():
                break
            regrouped.clear()
        regrouped.set()

    async def _wait_for_releases(self) -> None:
        """Waits a moment for the other members that release partitions, because each document costs every member a
        read."""
        loop, znodes = asyncio.get_running_loop(), self._znodes
        end = loop.time() + self._settings.releases_s
        while znodes.awaits_releases and not znodes.regrouped.is_set():
            znodes.changed.clear()
            if not await wait_for_event(znodes.changed, end - loop.time()):
                break

    # -- one step ------------------------------------------------------------------------------------------------

    async def _step(self, write_at: float | None = None) -> tuple[bool, float | None]:
        """Reads what has changed, decides, and writes the next document.

        Writes a new decision no sooner than `write_at`, in the time of the event loop. Returns (False, None), and has
        written nothing, if the group has changed again by then. Otherwise returns True, and the seconds until the next
        step is due if nothing changes (None: no limit).
        """
        # reset before anything is read, so that a later change starts another step
        regrouped = self._znodes.regrouped.is_set()
        self._znodes.regrouped.clear()
        stored = await self._znodes.read()
        group = self._seated(stored)
        document = group.document
        if stored.rebuilt:
            self._decider.forget()
        if regrouped or stored.rebuilt or document.seats.keys() != stored.document.seats.keys():
            await self._topics.update({**group.members, **away(document, group.members)}, document)
        try:
            fresh = await self._decider.decide(group, await self._is_uneven(group))
        except AllocatorError as error:
            log.error("%s: the assignment stays as it is: %s", self._group, error)
            fresh, document = False, document.but(problem=str(error))
            group = replace(group, document=document)
        successor = self._decider.next(group, fresh)
        if successor is None and (document != stored.document or stored.rebuilt):
            successor = document.but(leader=self._me, revision=document.revision + 1)
        now = asyncio.get_running_loop().time
        if fresh and write_at is not None and await wait_for_event(self._znodes.regrouped, write_at - now()):
            self._decider.forget()
            return False, None
        if successor is not None:
            group.commands.log_changes(self._group, document.commands, successor.commands)
            await self._znodes.write(successor, stored.version)
        for member in stored.left - document.seats.keys():
            await self._store.discard(self._store.paths.left_mark(member))
        return True, self._pause_s(group, successor or document)

    async def _is_uneven(self, group: Snapshot) -> bool:
        """Returns whether it is time to check the load, and an imbalance has lasted long enough."""
        now = self._clock()
        if not self._decider.follows_load or now < self._look_at:
            return False
        self._look_at = now + self._settings.load_look_s
        return self._imbalance.lasting(await self._decider.is_uneven(group), now)

    def _pause_s(self, group: Snapshot, document: AssignmentDocument) -> float | None:
        """Returns the seconds until a command expires, a budget allows more moves, a reservation ends, or the load is
        checked; None if none of these will happen."""
        moments = [group.commands.known.next_expiry(group.now_ms)]
        if self._decider.later and group.commands.budget.per_minute is not None:
            moments += [when + MINUTE_MS for when, _ in document.recent_moves(group.now_ms)[:1]]
        # limits the delay, so that a clock that is set back does not delay the leader for hours
        delays_s = [min(max(at - group.now_ms, 0), MINUTE_MS) / 1000 for at in moments if at is not None]
        grace_s = self._graces.remaining_s()
        if grace_s is not None:
            delays_s.append(grace_s)
        if self._decider.follows_load:
            delays_s.append(max(self._look_at - self._clock(), 0.0))
        # a timer may fire slightly early, and the leader would then set it again and again
        return min(delays_s) + 0.001 if delays_s else None

    def _seated(self, group: Snapshot) -> Snapshot:
        """Returns the group with a seat for each present member, and for each absent member that may come back."""
        document, members, now_ms = group.document, group.members, group.now_ms
        if not document.seats and all(info.instance_id is None for info in members.values()):
            return group
        older = unaware(members)
        if older and older != self._unaware:
            log.warning(
                "%s: no partitions are reserved for restarts while members of older versions are in the group: %s",
                self._group,
                plain(", ".join(older)),
            )
        self._unaware = older
        self._graces.see(document.seats, now_ms)
        seated = take_seats(document, members, group.alive, group.left | self._graces.over(), now_ms)
        gone = absent(seated)
        begun = gone - absent(document)
        self._graces.see(seated.seats, now_ms, begun)
        for member in begun:
            info = seated.seats[member].info
            log.info(
                "%s: %d partitions wait up to %g s for the next process of instance %s",
                self._group,
                len(seated.owners.get(member, ())),
                info.restart_grace_s,
                shown(info.instance_id),
            )
        self._decider.rename(successors(document, seated))
        # no member without a session holds anything
        claims = {**group.claims, **{member: Claim(document.revision) for member in gone}}
        return replace(group, document=seated, alive=group.alive | gone, claims=claims)
