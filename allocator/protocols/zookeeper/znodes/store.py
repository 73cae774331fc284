"""Reads and writes the znodes of a group. Members, the leader and observers use it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from allocator.assignors import LoadReport
from allocator.documents import SMALL_PARTITIONS, Counts, InflateBudget, InvalidZnode, RangesOfMembers, quick
from allocator.protocols.zookeeper.client.client import (
    ConnectionLost,
    NotAuthorized,
    NoZnode,
    Op,
    Stat,
    Watch,
    ZnodeExists,
    ZooKeeperClient,
    ZooKeeperError,
    get_if_exists,
)
from allocator.protocols.zookeeper.znodes.changes import Changes
from allocator.protocols.zookeeper.znodes.documents import (
    AssignmentDocument,
    Claim,
    MemberInfo,
    Paths,
    shard_names,
    shard_revision,
    split,
)
from allocator.types import NO_PARTITIONS, Partitions

T = TypeVar("T")

log = logging.getLogger(__name__)

# one thread, so that only one znode at a time needs the memory for decoding
_LARGE = ThreadPoolExecutor(1, thread_name_prefix="allocator-decode")
LARGE_REQUEST_BYTES = 64 << 10  # no ensemble refuses a smaller request


class CopiedZnode(InvalidZnode):
    """A member's znode, or its claim, that is not ephemeral. A tool has copied or restored it, so no process is behind
    it, and it counts for nothing. No session will end it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "it is not ephemeral, so no process is behind it")


class Store:
    """Reads and writes the znodes of one group as values.

    A `watch` is called once, when the znode may have changed.
    """

    # members read a smaller assignment whole, and larger ones by their changes. Higher: each member reads more; lower:
    # members of more groups send two requests for one assignment
    WHOLE_BYTES: ClassVar = 10_000

    def __init__(self, zk: ZooKeeperClient, paths: Paths) -> None:
        self.zk = zk
        self.paths = paths
        self.copies: set[str] = set()
        """Paths of the copied znodes that `is_copy` has found. No member ever uses the name of one."""
        self._left_alone: set[str] = set()  # paths of the znodes that `discard` could not delete
        self._ranges = RangesOfMembers()  # of the documents that this process has written
        self._lost = 0  # losses of the connection since the assignment was last written
        self._swept = False  # whether this process has deleted all old shards, and has created none since

    async def prepare(self) -> None:
        """Creates the persistent znodes."""
        await self.zk.use_acl_of(self.paths.base)
        paths = (self.paths.members, self.paths.claims, self.paths.shards, self.paths.left)
        await asyncio.gather(*map(self.zk.ensure_path, paths))

    async def member_names(self, watch: Watch | None = None) -> list[str]:
        """Returns the names of all znodes under members/, unsorted and unchecked."""
        return await self.zk.get_children(self.paths.members, watch)

    async def claim_names(self, watch: Watch | None = None) -> list[str]:
        """Returns the names of all znodes under claims/, unsorted and unchecked."""
        return await self.zk.get_children(self.paths.claims, watch)

    async def left_names(self, watch: Watch | None = None) -> list[str]:
        """Returns the names of the members that left for good and whose mark the leader has not deleted yet."""
        return await self.zk.get_children(self.paths.left, watch)

    async def end_reservation(self, instance_id: str) -> Partitions:
        """Ends the reservation of an absent member; returns its partitions.

        The leader then assigns them to other members. Returns nothing if no partitions are reserved for the instance.
        Raises InvalidZnode.
        """
        document, _ = await self.document()
        document = document or AssignmentDocument()
        for member, seat in document.seats.items():
            if seat.info.instance_id == instance_id and seat.reserved_until_ms is not None:
                await self.zk.use_acl_of(self.paths.base)
                await self.zk.ensure_path(self.paths.left_mark(member))
                return document.owners.get(member, NO_PARTITIONS)
        return NO_PARTITIONS

    async def member(self, member: str) -> MemberInfo | None:
        """Returns a member's info; None when it has left. Raises InvalidZnode."""
        found = await self.joined_member(member)
        return None if found is None else found[0]

    async def joined_member(self, member: str) -> tuple[MemberInfo, Stat] | None:
        """Like `member`, with the stat of its znode."""
        path = self.paths.member(member)
        found = await read_of_member(self.zk, path)
        return None if found is None else (MemberInfo.decode(path, found[0]), found[1])

    async def is_copy(self, path: str) -> bool:
        """Returns whether a member's znode, or its claim, is a `CopiedZnode`. Tries once to delete it then."""
        if path in self.copies:
            return True
        try:
            stat = await self.zk.exists(path)
        except NotAuthorized:  # since ZooKeeper 3.8.4. A process with other credentials may be behind it
            return False
        if stat is None or stat.owner:
            return False
        log.warning("%s: deleting znode %s: it is not ephemeral, so no process is behind it", self.paths.group, path)
        await self.discard(path)
        self.copies.add(path)
        return True

    async def discard(self, path: str) -> None:
        """Deletes a znode that counts for nothing. If ZooKeeper refuses that, because the znode has children or because
        of an ACL, logs that once and leaves the znode. Raises ConnectionLost."""
        if path in self._left_alone:
            return
        try:
            await self.zk.delete(path)
        except NoZnode:
            pass
        except ConnectionLost:
            raise
        except ZooKeeperError as error:
            self._left_alone.add(path)
            log.error("%s: znode %s stays, and counts for nothing: %s", self.paths.group, path, error)

    async def claim(
        self,
        member: str,
        watch: Watch | None = None,
        *,
        budget: InflateBudget | None = None,
        deleted: Watch | None = None,
    ) -> Claim | None:
        """Returns a member's claim; None when there is none. Raises InvalidZnode.

        `budget` covers all claims that the caller keeps. `deleted` is called before `watch` if the claim was deleted
        without a change since this read.
        """
        path = self.paths.claim(member)
        found = await self._whole(read_of_member, path, self.paths.claims, watch, deleted)
        if found is None:
            return None
        data, stat = found
        claim = await computed(partial(Claim.decode, path, data, budget), not quick(data))
        return replace(claim, version=stat.version, transaction=stat.zxid)

    async def readable(self, effect: str, read: Callable[..., Awaitable[T | None]], *of: Any, **more: Any) -> T | None:
        """Calls `read` with the remaining arguments. If the znode is unreadable, logs the `effect` on the group and
        returns None."""
        try:
            return await read(*of, **more)
        except InvalidZnode as error:
            log.error("%s: %s: %s", self.paths.group, effect, error)
            return None

    async def load_report(self, member: str, watch: Watch | None = None) -> LoadReport | None:
        """Returns the load report of a member; None if it reports nothing. Raises InvalidZnode."""
        path = self.paths.load(member)
        found = await read_of_others(self.zk, path, watch)
        return None if found is None else LoadReport.decode(path, found[0])

    async def write_load_report(self, member: str, report: LoadReport) -> None:
        """Creates or replaces the load report of a member."""
        path, data = self.paths.load(member), report.encode()
        try:
            await self.zk.set(path, data)
        except NoZnode:
            await self.zk.ensure_path(self.paths.loads)
            with contextlib.suppress(ZnodeExists):
                await self.zk.create(path, data, ephemeral=True)

    async def document(
        self, watch: Watch | None = None, *, only: str | None = None, counts: Counts | None = None
    ) -> tuple[AssignmentDocument | None, int]:
        """Returns (the assignment, the version of its znode); (None, -1) when there is none. Raises InvalidZnode.

        `only`: reads only the entries of that member. `counts`: returns the partition count of a topic if it is known.
        """
        document, stat, _ = await self.sized_document(watch, only=only, counts=counts)
        return document, -1 if stat is None else stat.version

    async def sized_document(
        self, watch: Watch | None = None, *, only: str | None = None, counts: Counts | None = None
    ) -> tuple[AssignmentDocument | None, Stat | None, int]:
        """Like `document`, with the whole stat of the znode, and the encoded bytes; (None, None, 0) when there is
        none."""
        path = self.paths.assignment
        found = await self._whole(get_if_exists, path, self.paths.shards, watch)
        if found is None:
            return None, None, 0
        data, stat = found
        try:
            decode = partial(AssignmentDocument.decode, path, data, only, counts)
            return await computed(decode, not quick(data)), stat, len(data)
        except InvalidZnode as error:
            error.version = stat.version
            raise

    async def _whole(
        self,
        read: Callable[..., Awaitable[tuple[bytes, Stat] | None]],
        path: str,
        shards: str,
        watch: Watch | None,
        deleted: Watch | None = None,
    ) -> tuple[bytes, Stat] | None:
        """Returns the data of a znode, put together from its shards if it has some, and the stat of the znode. Raises
        InvalidZnode."""
        while True:
            found = await read(self.zk, path, watch, deleted=deleted)
            if found is None:
                return None
            data, stat = found
            try:
                names = shard_names(path, data)
                if names is None:
                    return data, stat
                pieces = await asyncio.gather(*(self.zk.get(f"{shards}/{name}") for name in names))
                return b"".join(piece for piece, _ in pieces), stat
            except NoZnode:
                # the writer has replaced the znode since this read started, and has deleted these shards
                now = await self.zk.exists(path)
                if now is not None and now.version == stat.version:
                    missing = InvalidZnode(path, "shards that it names are missing")
                    missing.version = stat.version
                    raise missing from None
            except InvalidZnode as error:
                # the version lets the leader replace exactly this content, and no valid document that follows it
                error.version = stat.version
                raise

    async def writes(self, watch: Watch | None = None) -> int:
        """Returns the number of times that leaders wrote the assignment: the version of the group's own znode."""
        stat = await self.zk.exists(self.paths.base, watch)
        return 0 if stat is None else stat.version

    async def write_document(self, document: AssignmentDocument, version: int, changes: Changes | None = None) -> int:
        """Replaces the assignment if its znode still has `version` (-1: does not exist); returns the id of the
        transaction.

        `document.writes` is the number of this write (0: any). `changes` lead to this document; None makes each member
        read it whole. Raises BadVersion or ZnodeExists when another leader wrote first.
        """
        large = sum(map(len, document.owners.values())) >= SMALL_PARTITIONS
        data = await computed(partial(document.encode, self._ranges), large)
        head, shards = split(data, document.leader, document.revision)
        kind = "create" if version < 0 else "set"
        # claims check both versions, because the version of the assignment starts again if its znode is deleted
        # each member reads the changes, so they are of use only if they are smaller than the document
        noted = b"" if changes is None or len(data) < self.WHOLE_BYTES else changes.encode(len(data))
        counted = Op("set", self.paths.base, noted, version=document.writes - 1)
        with self._losses_explained(max(map(len, (head, noted, *shards.values())))):
            for name, piece in shards.items():
                with contextlib.suppress(ZnodeExists):
                    await self.zk.create(f"{self.paths.shards}/{name}", piece)
            zxid = await self.zk.multi([Op(kind, self.paths.assignment, head, version), counted])
        # most documents have no shards; then a request for the list of shards would only delay the leader
        if shards or not self._swept:
            await self._sweep(set(shards), document.revision)
            self._swept = not shards
        return zxid

    @contextlib.contextmanager
    def _losses_explained(self, size: int) -> Iterator[None]:
        """Names `jute.maxbuffer` when the connection is lost twice in a row at a large write: the servers close it."""
        try:
            yield
        except ConnectionLost:
            self._lost += 1
            if self._lost == 2 and size >= LARGE_REQUEST_BYTES:
                log.error(
                    "%s: the connection to ZooKeeper was lost twice at a write of %d bytes. A server closes it if a "
                    "request exceeds its jute.maxbuffer, and logs 'Len error'; set that to 1 MiB, the default, or more",
                    self.paths.group,
                    size,
                )
            raise
        self._lost = 0

    async def _sweep(self, keep: set[str], revision: int) -> None:
        """Deletes the shards of earlier documents. Keeps the shards of later revisions: while this leader was paused
        after its write, its successor may have written them."""
        try:
            names = await self.zk.get_children(self.paths.shards)
        except NotAuthorized as error:
            log.error("%s: the shards of earlier assignments stay: %s", self.paths.group, error)
            return
        for name in names:
            if name not in keep and shard_revision(name) <= revision:
                await self.discard(f"{self.paths.shards}/{name}")


async def read_of_others(
    zk: ZooKeeperClient, path: str, watch: Watch | None = None, *, deleted: Watch | None = None
) -> tuple[bytes, Stat] | None:
    """Like `get_if_exists`, for a znode that any client may have written: if its ACL does not let this client read it,
    raises InvalidZnode, so that the rest of the group goes on without it. Then `watch` may not be called."""
    try:
        return await get_if_exists(zk, path, watch, deleted=deleted)
    except NotAuthorized as error:
        if watch is not None:
            # the failed request has left no watch; since 3.8.4 this one is refused as well
            with contextlib.suppress(NotAuthorized):
                await zk.exists(path, watch)
        raise InvalidZnode(path, str(error)) from error


async def read_of_member(
    zk: ZooKeeperClient, path: str, watch: Watch | None = None, *, deleted: Watch | None = None
) -> tuple[bytes, Stat] | None:
    """Like `read_of_others`, for a member's znode or its claim. Raises CopiedZnode if it is not ephemeral."""
    try:
        found = await read_of_others(zk, path, watch, deleted=deleted)
    except InvalidZnode as error:
        with contextlib.suppress(NotAuthorized):  # before ZooKeeper 3.8.4, any client may read the stat
            stat = await zk.exists(path)
            if stat is not None and not stat.owner:
                raise CopiedZnode(path) from error
        raise
    if found is not None and not found[1].owner:
        raise CopiedZnode(path)
    return found


async def computed(compute: Callable[[], T], large: bool) -> T:
    """Returns `compute()`. If it is `large`, it runs in a thread, so that the event loop can renew the lease."""
    return await asyncio.get_running_loop().run_in_executor(_LARGE, compute) if large else compute()
