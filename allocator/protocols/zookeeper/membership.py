"""Exclusive ownership of partitions through ZooKeeper.

Guarantee: a partition has at most one owner at any instant. The condition is that each member's clock runs at about
the same speed as the ensemble's clocks; wall clocks do not matter. A member starts a partition only after it has
written its claim. The same transaction checks that the assignment which gives it the partition is still current. The
leader assigns a partition to another member only after its owner has written a claim without it, or after the owner's
session has ended. A member that is cut off or paused stops by its own clock before its session can end.

In steady state a member watches two znodes, the assignment and its predecessor, and writes its own znode every
quarter of the session timeout. A rebalance costs one write by the leader for each wave of releases. Each member then
reads the stat of the assignment and its last changes, or the whole assignment where they do not suffice. A member
that gains or loses partitions also writes its claim once or twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from allocator import __version__
from allocator.assignors import REPORT_S, Assignor, Load, LoadReport
from allocator.commands import KINDS, LEADERS_KINDS, CommandKeeper, Commands
from allocator.core.aio import TaskGroup, boot_clock, wait_for_event, wall_ms
from allocator.core.membership import AssignmentListener, MemberSettings
from allocator.core.settings import DEFAULT, PartitionCountSource
from allocator.core.telemetry import Measures
from allocator.documents import InvalidZnode
from allocator.errors import InconsistentAssignor, InstanceIdInUse
from allocator.protocols.zookeeper.claim_znode import ClaimZnode
from allocator.protocols.zookeeper.client.client import (
    BadVersion,
    ConnectionLost,
    NotAuthorized,
    NoZnode,
    Op,
    Stat,
    Watched,
    ZooKeeperError,
)
from allocator.protocols.zookeeper.client.ephemeral import EphemeralZnodes
from allocator.protocols.zookeeper.cluster_choice import check_choice, choice_path
from allocator.protocols.zookeeper.command_store import CommandStore
from allocator.protocols.zookeeper.leader import Leader, LeaderSettings
from allocator.protocols.zookeeper.seats import FEATURE, IN_USE
from allocator.protocols.zookeeper.session import SessionMembership
from allocator.protocols.zookeeper.session_lease import MembershipLost
from allocator.protocols.zookeeper.znodes.assignment_reader import AssignmentReader
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo, in_join_order
from allocator.protocols.zookeeper.znodes.member_names import member_name
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

log = logging.getLogger(__name__)

COMMANDS_AGAIN_S = 60.0  # how long a member waits before it reads unreadable commands again


@dataclass(frozen=True)
class ZooKeeperSettings(LeaderSettings, MemberSettings):
    """The settings of one member. Times in seconds."""

    weight: float = DEFAULT["weight"]
    rack: str | None = None
    # a member that does not poll for longer loses its partitions; None: no limit
    max_poll_interval_s: float | None = None
    instance_id: str | None = DEFAULT["instance_id"]
    restart_grace_s: float = DEFAULT["restart_grace_s"]  # 0: as without an instance id
    load_tolerance: float | None = None  # None: the member does not follow load
    brokers: Callable[[], str] | None = None  # the addresses of the cluster that it reads; None: it reads no cluster
    report_s: float = REPORT_S


class ZooKeeperMembership(SessionMembership):
    """One member of one group; the module's docstring has the guarantee. The constructor does no I/O.

    - `store`: the znodes of the group.
    - `topics`: the partition counts in Kafka.
    - `assignors`: this member's allocator functions by name, the preferred function first.
    - `load`: returns the load of partitions, for the functions that use it.
    - `measured`: returns the load of the partitions that this member owns. The member reports it to the group.
    - `followed`: called with each assignment once this member owns as much of it as it can for now.
    - `on_commands`: called with the operator commands at first, when they change, and when a command expires. None:
      this member carries out no commands about records.
    - `measures`: gets the times of the lease renewals.
    - `features`: optional parts of the protocol that this member supports besides those of every member.
    """

    def __init__(
        self,
        store: Store,
        listener: AssignmentListener,
        topics: PartitionCountSource,
        assignors: Mapping[str, Assignor],
        settings: ZooKeeperSettings,
        *,
        load: Load | None = None,
        measured: Callable[[], LoadReport] | None = None,
        followed: Callable[[AssignmentDocument], None] | None = None,
        on_commands: Callable[[Commands, CommandKeeper], None] | None = None,
        measures: Measures | None = None,
        features: Collection[str] = (),
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        super().__init__(store.zk, store.paths.group, listener, settings, measures, clock)
        self._store = store
        self._new_leader: Callable[[], Leader] = lambda: Leader(
            store, self.member_id, topics, assignors, settings, load, clock
        )
        self._measured = measured
        self._followed = followed
        self._on_commands = on_commands
        self._info = MemberInfo(
            name=settings.name,
            host=socket.gethostname(),
            topics=settings.topics,
            pattern=settings.pattern,
            weight=settings.weight,
            rack=settings.rack,
            strategies=tuple(assignors),
            pid=os.getpid(),
            commands=tuple(sorted(LEADERS_KINDS) if on_commands is None else KINDS),
            instance_id=settings.instance_id if settings.restart_grace_s else None,
            restart_grace_s=settings.restart_grace_s,
            features=(FEATURE, *features),
            load_tolerance=settings.load_tolerance,
            version=__version__,
        )
        self._znodes = EphemeralZnodes(store.zk)
        self._leader: Leader | None = None
        self._claim: ClaimZnode
        self._refused: str | None = None
        self._in_use: asyncio.TimerHandle | None = None
        self._for_good = False

    # -- the surface ---------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether this member is currently the leader."""
        return self._leader is not None

    @property
    def shown(self) -> str:
        return member_name(self.member_id, self._info)

    async def next_owners(self, partitions: Partitions) -> Mapping[TopicPartition, str]:
        document, _ = await self._store.document()
        promised = {} if document is None else document.promised
        return {p: member for member, parts in promised.items() for p in parts & partitions}

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription: the member drains, commits, releases everything, and joins again as a new one."""
        info = replace(self._info, topics=frozenset(topics), pattern=pattern)
        info.encode()  # raises ConfigError before anything changes
        self._info = info
        if self._task is not None:
            self._renewing = True
            self._changed.set()

    def leave_for_good(self) -> None:
        """Makes the next `leave` move the partitions at once, without the reservation of `restart_grace_s`."""
        self._for_good = True

    # -- sessions ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._info.encode()

    def _proof(self) -> tuple[str, bytes]:
        return self._store.paths.member(self.member_id), self._info.encode()

    async def _delete_ours(self, released: bool) -> None:
        claim, member = self._store.paths.claim(self.member_id), self._store.paths.member(self.member_id)
        # the leader is notified of the end of the member before the end of its claim
        ops = [Op("delete", member)]
        written = self._claim.written
        if released and written.held:
            # this write lets observers distinguish a member that left from a member that crashed
            empty = Claim(written.revision, NO_PARTITIONS, written.generation)
            ops.append(Op("set", claim, empty.encode(self.member_id)))
        ops.append(Op("delete", claim))
        # a member whose user does not poll must not keep partitions reserved either
        ends = self._info.instance_id is not None and ((self._for_good and self._leaving) or self._polls.silent)
        mark = self._store.paths.left_mark(self.member_id)
        if ends:
            ops.insert(0, Op("create", mark))
        try:
            await self._zk.multi(ops)
        except ZooKeeperError:  # an operator deleted one of the znodes
            with contextlib.suppress(ZooKeeperError):
                if ends and await self._zk.exists(self._store.paths.base) is not None:  # or a deleted group came back
                    await self._zk.ensure_path(mark)
            await self._znodes.delete()
        if self._measured is not None:
            with contextlib.suppress(ZooKeeperError):
                await self._zk.delete(self._store.paths.load(self.member_id))

    async def _take_part(self, scope: TaskGroup) -> None:
        scope.start(self._elect(), "election")
        scope.start(self._guard_claim(), "claim")
        if self._on_commands is not None:
            scope.start(self._obey(self._on_commands), "commands")
        if self._measured is not None:
            scope.start(self._report_load(self._measured), "load")
        await self._follow(scope)

    async def _register(self) -> None:
        # no process acts for the member of an earlier attempt, and its claim would keep partitions from all others
        await self._znodes.delete()
        await self._check_choice()
        # while members get credentials one by one, all must be able to read the znodes of all
        await self._zk.use_acl_of(self._store.paths.base)
        self._info = replace(self._info, session_timeout_s=self._zk.session_timeout_s)
        try:
            await self._create_znodes()
        except NoZnode:  # it is the first member of the group, or an operator has deleted the group
            await self._store.prepare()
            await self._znodes.delete()
            await self._create_znodes()
        # the group may have moved before this member was in it. From now on, a cutover waits for this member
        await self._check_choice()
        self._refused = None
        self._document = Watched(AssignmentReader(self._store, self.member_id).read, self._changed.set)
        log.info("%s: joined as %s", self._group, self.shown)

    async def _check_choice(self) -> None:
        brokers, paths = self._settings.brokers, self._store.paths
        if brokers is not None and self.admitted is None:  # otherwise its user follows the choice
            await check_choice(self._zk, choice_path(paths.root, paths.group), brokers())

    async def _create_znodes(self) -> None:
        paths = self._store.paths
        prefix = f"{paths.members}/m-{uuid.uuid4().hex[:16]}-"
        self.member_id = (await self._znodes.create_sequential(prefix, self._info.encode())).rpartition("/")[2]
        self._claim = ClaimZnode(self._zk, self._znodes, paths, self.member_id)
        await self._claim.create()

    # -- commands --------------------------------------------------------------------------------------------------

    async def _obey(self, on_commands: Callable[[Commands, CommandKeeper], None]) -> None:
        """Passes the commands to the listener whenever their znode changes. One watch covers all commands."""
        store, changed = CommandStore(self._zk, self._store.paths), asyncio.Event()
        commands = Watched(store.read, changed.set)
        wait_s: float | None = 0.0
        while True:
            await wait_for_event(changed, wait_s)
            changed.clear()
            wait_s = None
            try:
                found = await commands.get()
            except ConnectionLost:
                wait_s = 0.05
            except (InvalidZnode, ZooKeeperError) as error:
                log.error("%s: the operator commands stay as they were: %s", self._group, error)
                wait_s = COMMANDS_AGAIN_S
            else:
                on_commands(found, store)
                now_ms = wall_ms()
                expiry = found.next_expiry(now_ms)
                # limits the delay, so that a clock that is set back does not delay the next check for hours
                wait_s = None if expiry is None else min((expiry - now_ms) / 1000 + 0.001, COMMANDS_AGAIN_S)

    # -- load ----------------------------------------------------------------------------------------------------

    async def _report_load(self, measured: Callable[[], LoadReport]) -> None:
        """Writes the load of this member's partitions each time it has changed notably."""
        last: LoadReport | None = None
        while True:
            await asyncio.sleep(self._settings.report_s)
            report = measured()
            if report.loads and report.differs_notably(last):
                try:
                    await self._store.write_load_report(self.member_id, report)
                except ZooKeeperError as error:
                    log.debug("%s: the load is reported later: %s", self._group, error)
                else:
                    last = report

    # -- leading -------------------------------------------------------------------------------------------------

    async def _elect(self) -> None:
        """Leads while this member is the oldest. Otherwise watches only the next older member, so that a member that
        ends wakes only one other member."""
        while True:
            gone = asyncio.Event()
            try:
                names: list[str] = []
                with contextlib.suppress(NoZnode):  # the group's znodes were deleted
                    names = in_join_order(await self._store.member_names())
                self._check_registered(names)
                older = names[: names.index(self.member_id)]
                while older and await self._store.is_copy(self._store.paths.member(older[-1])):
                    older.pop()
                if not older:
                    await self._lead()
                await self._watch_end_of(older[-1], gone.set)
            except NoZnode:
                continue
            except ConnectionLost:
                await asyncio.sleep(0.05)
                continue
            await gone.wait()

    async def _watch_end_of(self, member: str, ended: Callable[[], None]) -> None:
        """Raises NoZnode if the member has left."""
        path = self._store.paths.member(member)
        try:
            # this watch fires when the znode is deleted; the writes that renew the lease do not fire it
            await self._zk.get_children(path, ended)
        except NotAuthorized as error:
            if member not in await self._store.member_names(ended):
                raise NoZnode(path) from None
            log.warning(
                "%s: %s. This member waits for its end, because it is older. Delete it if no process is behind it",
                self._group,
                error,
            )

    async def _lead(self) -> None:
        self._leader = self._new_leader()
        try:
            await self._leader.run()
        finally:
            self._leader = None

    # -- following -----------------------------------------------------------------------------------------------

    async def _guard_claim(self) -> None:
        """Raises MembershipLost once another client has deleted or overwritten the claim: the leader reads it."""
        while True:
            await asyncio.sleep(self._zk.session_timeout_s)
            with contextlib.suppress(ConnectionLost):
                if not await self._claim.is_intact():
                    raise MembershipLost("its claim was deleted or overwritten")

    async def _follow(self, scope: TaskGroup) -> None:
        """Claims and releases partitions as the newest assignment says. Returns when the member has left and owns
        nothing."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._leaving or self._renewing:
                # ZooKeeper may not respond, so do not wait for it: the end of the session releases the partitions
                self._release(self.held, scope)
                if not self.tenures.assignment:
                    return
                continue
            try:
                document, stat = await self._read_document()
                await self._apply(document, -1 if stat is None else stat.version, scope)
                if document is not None and self._followed is not None:
                    self._followed(document)
            except ConnectionLost:
                # the result of a pending write is unknown, so the claim is written again
                self._claim.written = Claim(-1)
                await asyncio.sleep(0.05)
                self._changed.set()

    async def _read_document(self) -> tuple[AssignmentDocument | None, Stat | None]:
        try:
            document, stat = await self._document.get()
        except InvalidZnode as error:
            log.error("%s: %s", self._group, error)
            document, stat = None, None
        if self._leader is not None:
            if stat is None:
                self._leader.start_over()
            else:
                self._leader.saw(stat.zxid)
        return document, stat

    async def _apply(self, document: AssignmentDocument | None, version: int, scope: TaskGroup) -> None:
        if document is None:
            return  # the claim still protects the held partitions until the leader writes a readable assignment
        self.generation = max(self.generation, document.generation)
        self._report_refusal(document.refused.get(self.member_id))
        mine = document.owners.get(self.member_id, NO_PARTITIONS)
        self._release(self.held - mine, scope)
        promised = document.promised.get(self.member_id)
        if promised:
            self._listener.expect(promised, free=False)
        gained = mine - self.tenures.owned
        if gained and not self._starting:
            await self._gain(gained, document, version, scope)
        elif self._must_write(document):
            await self._claim.write(Claim(document.revision, self.tenures.owned, document.generation))

    async def _gain(self, gained: Partitions, document: AssignmentDocument, version: int, scope: TaskGroup) -> None:
        # the former owners have released these partitions, or their sessions have ended. No other member can claim them
        # before the check of the transaction
        self._listener.expect(gained, free=True)
        claim = Claim(document.revision, self.tenures.owned | gained, document.generation)
        checks = (
            # fails if a newer assignment, which this member has not read, assigns the partitions to another member
            Op("check", self._store.paths.assignment, version=version),
            # the version above does not suffice: if the assignment was deleted and recreated, it had the same version
            # before
            Op("check", self._store.paths.base, version=document.writes or -1),
        )
        try:
            transaction = await self._claim.write(claim, *checks)
        except (BadVersion, NoZnode):
            return  # the watch on the assignment has fired, or is about to
        # the id of this write is the fence. The id of the claim's creation would not do: an older member may get the
        # partition after a younger one
        self.tenures.claim(dict.fromkeys(gained, transaction))
        what = f"gains {len(gained)} partitions, holds {len(self.held)} (generation {document.generation})"
        log.info("%s: %s %s", self._group, self.shown, what)
        self._start(gained, scope)

    def _must_write(self, document: AssignmentDocument) -> bool:
        if self._claim.written.held != self.tenures.owned:
            return True
        waiting = document.waiting.get(self.member_id)
        if waiting is None or self._claim.written.revision >= waiting.since:
            return False
        # if all of them are still draining, the end of the drain writes the claim
        return not waiting.partitions <= self.tenures.owned - self.held

    def _report_refusal(self, reason: str | None) -> None:
        if reason == self._refused:
            return
        self._refused = reason
        self._stop_waiting()
        if reason is None:
            return
        text = f"group {self._group!r} gives this member no partitions: {reason}"
        if not reason.startswith(IN_USE):
            self._listener.failed(InconsistentAssignor(text))
            return
        # usually this member is the next process of a crashed one, whose session has not ended yet
        log.warning("%s; this member waits until the other one ends", text)
        self._in_use = asyncio.get_running_loop().call_later(
            2 * self._zk.session_timeout_s,
            lambda: self._listener.failed(InstanceIdInUse(f"{text}; give each process an instance_id of its own")),
        )

    def _stop_waiting(self) -> None:
        if self._in_use is not None:
            self._in_use.cancel()
            self._in_use = None

    async def _end_session(self) -> None:
        self._stop_waiting()
        await super()._end_session()
