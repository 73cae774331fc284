"""Reads the group from ZooKeeper as the leader needs it, and writes the assignment.

Watches keep what was read, so a snapshot costs one request for each znode that has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from allocator.commands import Commands
from allocator.core.aio import wall_ms
from allocator.documents import Counts, InflateBudget, InvalidZnode
from allocator.protocols.zookeeper.client.client import BadVersion, ConnectionLost, Watched
from allocator.protocols.zookeeper.command_store import CommandStore
from allocator.protocols.zookeeper.plan import adopt
from allocator.protocols.zookeeper.steering import CommandsInForce
from allocator.protocols.zookeeper.znodes.changes import MAX_STEPS, Changes, Step, difference
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo, in_join_order
from allocator.protocols.zookeeper.znodes.store import Store

log = logging.getLogger(__name__)

# pause before the group's own znode is read again. The leader's writes change it too. Higher: partitions have no owner
# for longer after another client wrote it; lower: one more request while members wait for the leader
COUNT_S = 0.5


@dataclass(frozen=True)
class Snapshot:
    """A group in ZooKeeper, as the leader decides from it."""

    document: AssignmentDocument
    version: int
    """The version of the document's znode; -1 if there is none."""
    rebuilt: bool
    """Whether the znode is missing or unreadable, or is not what a leader wrote last, so that `document` was made from
    the claims. No claim can succeed before the next write."""
    members: Mapping[str, MemberInfo]
    """The members with a readable member znode, in join order."""
    alive: frozenset[str]
    """The members with a member znode or a claim, of which a session is the owner."""
    claims: Mapping[str, Claim]
    """The readable claims of the members that the document waits for."""
    left: frozenset[str]
    """The members that left for good and are still marked so; read only if a member has an instance id."""
    commands: CommandsInForce
    now_ms: int
    """When this was read, in milliseconds since the epoch."""


class GroupZnodes:
    """Turns watches into snapshots, and sets events when a snapshot is outdated."""

    def __init__(self, store: Store, counts: Counts) -> None:
        self.changed = asyncio.Event()
        """Set by every change."""
        self.regrouped = asyncio.Event()
        """Set by the changes that may need another assignment."""
        self.released = False
        """Whether the claim of a member that the document waits for has changed."""
        self._store = store
        self._counts = counts
        self._names = Watched(store.member_names, self.poke)
        self._claim_names = Watched(store.claim_names, self.changed.set)
        self._left_names = Watched(store.left_names, self.poke)
        self._commands = Watched(CommandStore(store.zk, store.paths).read, self.poke)
        self._readable_commands = Commands()
        self._infos: dict[str, MemberInfo] = {}
        self._claims: dict[str, Watched[Claim | None]] = {}
        self._budget = InflateBudget.of_claims()
        # (document, version of its znode); the document is None if it must be rebuilt
        self._document: tuple[AssignmentDocument | None, int] | None = None
        self._last: AssignmentDocument | None = None  # the newest document that this member has written or refused
        # the transactions that wrote `_document` (None: not known, or under way), and what this member has read last.
        # Versions begin again at 0 if the znode is created again
        self._written: int | None = None
        self._seen = -1
        self._steps: tuple[Step, ...] = ()  # to `_document`, each written by this leader

    def poke(self) -> None:
        """Sets both events: the group has changed in a way that may need another assignment."""
        self.regrouped.set()
        self.changed.set()

    @property
    def awaits_releases(self) -> bool:
        """Whether the leader still waits for a release: some claim in `document.waiting` is unchanged since the last
        snapshot."""
        return any(claim.fresh for claim in self._claims.values())

    def start_over(self) -> None:
        """Reads everything again, because ZooKeeper does not hold the document that this leader wrote last."""
        self._document, self._written, self._steps = None, None, ()
        # does not rely on the order of responses and events: the leader may read a document before the event about a
        # new member that it contains. Without a fresh list of names that member would count as dead, and the leader
        # would use an old version of a claim
        for watched in (self._names, self._claim_names, self._left_names):
            watched.forget()
        self._claims.clear()
        self.poke()

    def is_foreign(self, zxid: int) -> bool:
        """Returns whether another client wrote the assignment that this member has read in this transaction."""
        self._seen = zxid
        return self._written is not None and self._written < zxid

    async def watch_count(self) -> None:
        """Starts over each time another client writes the group's own znode: its version no longer matches the
        document, so each claim would fail until the leader writes the next document."""
        while True:
            touched = asyncio.Event()
            try:
                writes = await self._store.writes(touched.set)
            except ConnectionLost:
                await asyncio.sleep(0.05)
                continue
            if self._document is None:  # the leader reads it, and may have read an earlier count already
                await asyncio.sleep(0.05)
                continue
            document = self._document[0]
            if document is not None and writes > document.writes:
                self.start_over()
            await touched.wait()
            await asyncio.sleep(COUNT_S)

    async def read(self) -> Snapshot:
        """Reads what has changed. Raises ConnectionLost, and NoZnode if the group's own znodes were deleted."""
        document, version, rebuilt = await self._read_document()
        found, claimed = await asyncio.gather(self._names.get(), self._claim_names.get())
        names, paths = in_join_order(found), self._store.paths
        members = await self._members(names)
        # a member whose member znode was deleted by hand works until it notices. Its claim still exists, so it counts
        # as alive
        claiming = [name for name in in_join_order(claimed) if name not in members]
        kept = {name for name in claiming if not await self._store.is_copy(paths.claim(name))}
        alive = frozenset({*kept, *(name for name in names if paths.member(name) not in self._store.copies)})
        left: Iterable[str] = ()
        if document.seats or any(info.instance_id is not None for info in members.values()):
            left = await self._left_names.get()
        try:
            self._readable_commands = await self._commands.get()
        except InvalidZnode as error:
            log.error("%s: the operator commands stay as they were: %s", self._store.paths.group, error)
        claims = await self._claims_of([member for member in document.waiting if member in alive])
        now_ms = wall_ms()
        commands = CommandsInForce.of(self._readable_commands, members, document.commands, now_ms)
        return Snapshot(document, version, rebuilt, members, alive, claims, frozenset(left), commands, now_ms)

    async def write(self, document: AssignmentDocument, version: int) -> None:
        """Replaces the document if its znode still has `version`. Raises BadVersion or ZnodeExists otherwise; after any
        error, call `start_over`."""
        document = document.but(writes=document.writes + 1)
        self._steps = steps = self._steps_to(document, version)
        written = self._document = document, version
        changes = Changes(document.writes, version + 1, steps) if steps else None
        self._written = None
        zxid = await self._store.write_document(document, version, changes)
        if self._document is written:  # otherwise another leader replaced the document before this response came
            self._document, self._written = (document, version + 1), zxid
        self._last = document
        # the other members have released, so the leader must not wait until they write their claims
        self._claims = {member: watched for member, watched in self._claims.items() if member in document.waiting}
        if document.waiting:
            self.changed.set()  # the next snapshot sets the watches on the claims that the document waits for
        log.info("%s: %s", self._store.paths.group, document)
        if self._seen > zxid:  # read before this response came
            raise BadVersion(self._store.paths.assignment)

    def _steps_to(self, document: AssignmentDocument, version: int) -> tuple[Step, ...]:
        """Returns the last steps to the document that is written next; none if the document before it is unknown."""
        if self._document is None:
            return ()
        before, read = self._document
        if before is None or read != version or not 0 < before.writes == document.writes - 1:
            return ()
        step = difference(before, document)
        return () if step is None else (*self._steps, step)[-MAX_STEPS:]

    async def _read_document(self) -> tuple[AssignmentDocument, int, bool]:
        if self._document is None:
            try:
                # reads the count before the document: if another leader writes in between, the old count makes the next
                # write fail
                writes = await self._store.writes()
                document, stat, _ = await self._store.sized_document(counts=self._counts)
                version, self._written = (-1, None) if stat is None else (stat.version, stat.zxid)
                if document is not None and 0 < document.writes != writes:
                    if writes != await self._store.writes():  # another leader wrote in between
                        raise BadVersion(self._store.paths.assignment)
                    log.warning(
                        "%s: the assignment is not what a leader wrote last; continuing from the members' claims",
                        self._store.paths.group,
                    )
                    # partitions may have moved since an earlier document that an operator restored
                    self._last = max(self._last or document, document, key=lambda each: each.revision)
                    document = None
                self._document = None if document is None else document.but(writes=writes), version
            except InvalidZnode as error:
                log.error("%s: %s; continuing from the members' claims", self._store.paths.group, error)
                self._document = None, error.version
        document, version = self._document
        if document is not None:
            return document, version, False
        # reads the count before the claims, so that no later claim can be based on the lost document
        writes = await self._store.writes()
        claims = await self._claims_of(in_join_order(await self._claim_names.get()))
        return adopt(claims, self._last, writes or version + 1).but(writes=writes), version, True

    async def _claims_of(self, wanted: list[str]) -> dict[str, Claim]:
        self._budget.keep(map(self._store.paths.claim, wanted))
        self._claims = {
            member: self._claims.get(member) or Watched(partial(self._read_claim, member), self._poke_released)
            for member in wanted
        }
        found = await asyncio.gather(*(watched.get() for watched in self._claims.values()))
        return {member: claim for member, claim in zip(wanted, found) if claim is not None}

    async def _read_claim(self, member: str, watch: Callable[[], None]) -> Claim | None:
        effect = "its partitions wait until the member writes it again or leaves"
        return await self._store.readable(effect, self._store.claim, member, watch, budget=self._budget)

    def _poke_released(self) -> None:
        self.released = True
        self.changed.set()

    async def _members(self, names: list[str]) -> dict[str, MemberInfo]:
        path = self._store.paths.member
        fresh = [name for name in names if name not in self._infos and path(name) not in self._store.copies]
        read = partial(self._store.readable, "this member gets no partitions", self._store.member)
        found = dict(zip(fresh, await asyncio.gather(*map(read, fresh))))
        for name in fresh:
            if found[name] is None:
                await self._store.is_copy(path(name))
        infos = {name: found.get(name) or self._infos.get(name) for name in names}
        self._infos = {name: info for name, info in infos.items() if info is not None}
        return self._infos
