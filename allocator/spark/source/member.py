"""A streaming query as a weighted member of a ZooKeeper group, beside plain consumers.

A session needs heartbeats every few seconds, but Spark calls the source rarely and may process a batch for minutes. So
the membership has its own thread and event loop (docs/architecture.md). Both threads communicate only through `_call`.

Guarantee: a batch has a partition only while this query owns it. The query releases partitions only between two
batches, after it has committed the offsets. A new partition starts at the group's committed offset, not at the
checkpoint, because another member may have read further.

If the session is lost, the tasks of the current batch cannot be stopped. They run to their end, but the query commits
no offset of a lost partition.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional, TypeVar

from allocator.core.aio import wait_for_event
from allocator.core.client import Coordinator, KafkaClient, lag
from allocator.core.consumer import MemberParts
from allocator.core.membership import AssignmentListener, Membership
from allocator.core.offsets import GroupOffsets
from allocator.core.subscription import stamped
from allocator.errors import CommitFailed, ZooKeeperUnavailable
from allocator.spark.errors import NothingAssigned
from allocator.spark.options import Options, joining
from allocator.spark.source.plan import begin_again, still_there
from allocator.types import OffsetAndMetadata, Partitions, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")
Begin = dict[TopicPartition, Optional[int]]

LEASE_POLL_S = 1.0  # interval of checks while the lease is not valid


class StreamMember:
    """The membership of a query in its group. Call all methods from Spark's thread."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._runner = _MemberRunner(options)

    def border(self, done: Mapping[TopicPartition, int], ids: Mapping[str, str], bounded: bool = False) -> Begin:
        """Commits, releases revoked partitions, and returns the partitions of the next batch -> start.

        Call it between two batches, when all records before `done` are processed. `ids` has the id of each topic. The
        start is None if there is no committed offset. The first call waits until the group has assigned partitions to
        this query. With `bounded`, it also waits until other members release them, and raises NothingAssigned if there
        are none in time. Raises the error that ended the membership, BrokersUnavailable, ZooKeeperUnavailable.
        """
        return self._call(self._runner.border(done, ids, bounded))

    def claim(self, planned: Mapping[TopicPartition, int]) -> Begin:
        """Returns the owned partitions of `planned` -> committed offset, to repeat a batch after a crash.

        `planned` has the end of each partition of the batch. If another member has committed that end meanwhile, the
        next `border` treats the partition like a new one, and does not commit the end again. Waits until the session of
        the crashed process has ended. Other members own the remaining partitions then. They start at the committed
        offset, which the unfinished batch has not changed.
        """
        return self._call(self._runner.claim(planned))

    def close(self) -> None:
        """Leaves the group. The next owner reads uncommitted records again. May be called twice."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._runner.leave(), loop).result(self._options.timeout_s)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(self._options.timeout_s)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # a daemon thread does not keep the process alive; the session and the ownership end with the process
            self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="allocator-member", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@dataclass(eq=False)
class _Tenure:
    """One ownership of a partition. The partition may leave and come back while a response is awaited."""

    leaving: bool = False
    """True once the partition is revoked. The next `border` releases it."""
    running: bool = False
    """True once a batch has read the partition: the checkpoint's position is then newer than the committed offset."""
    committed: Optional[tuple[int, Optional[str]]] = None
    """The committed offset, and the id of its topic."""


class _MemberRunner(AssignmentListener):
    """Runs the membership on its own loop, and is its `AssignmentListener`."""

    def __init__(self, options: Options) -> None:
        assert options.group is not None
        self._options = options
        self._group = options.group
        self._client: KafkaClient
        self._offsets: GroupOffsets
        self._membership: Membership | None = None
        self._changed: asyncio.Event
        self._held: dict[TopicPartition, _Tenure] = {}
        # True once the group had the time for a first assignment
        self._awaited = False
        # True once the group has promised partitions that other members still own
        self._promised = False
        self._closing = False
        self._error: BaseException | None = None

    # -- called by StreamMember -------------------------------------------------------------------------------------

    async def border(self, done: Mapping[TopicPartition, int], ids: Mapping[str, str], bounded: bool) -> Begin:
        membership = await self._joined()
        if not self._awaited:
            await self._first_assignment(membership, bounded)
            self._awaited = True
        await self._may_act(membership)
        await self._commit(membership, done, ids)
        self._held = {tp: tenure for tp, tenure in self._held.items() if not tenure.leaving}
        self._changed.set()
        held = dict(self._held)
        new = frozenset(tp for tp, tenure in held.items() if not tenure.running)
        begin: Begin = {tp: done[tp] for tp in held.keys() - new if tp in done}
        begin.update(await self._found(new))
        if new:
            log.info("%s: the next batch reads %d additional partitions", self._group, len(new))
        # drops partitions that were lost meanwhile: another member may have committed since
        begin = {tp: at for tp, at in begin.items() if self._held.get(tp) is held[tp]}
        for tp in begin:
            held[tp].running = True
        return begin

    async def claim(self, planned: Mapping[TopicPartition, int]) -> Begin:
        membership = await self._joined()
        wanted = frozenset(planned)
        await self._until(membership, lambda: wanted <= self._held.keys(), 2 * self._options.session_timeout_s)
        await self._may_act(membership)
        held = {tp: self._held[tp] for tp in wanted & self._held.keys()}
        found = await self._found(frozenset(tp for tp, tenure in held.items() if not tenure.running))
        for tp, at in found.items():
            held[tp].running = at is None or at < planned[tp]
        return {tp: found.get(tp) for tp, tenure in held.items() if self._held.get(tp) is tenure}

    async def leave(self) -> None:
        self._closing = True
        membership, self._membership = self._membership, None
        if membership is not None:
            self._changed.set()
            try:
                await membership.leave()
            finally:
                await self._offsets.close()
                await self._client.close()

    # -- called by the membership ---------------------------------------------------------------------------------

    def expect(self, partitions: Partitions, free: bool) -> None:
        self._promised = self._promised or not free
        self._changed.set()

    async def assigned(self, partitions: Partitions) -> None:
        self._held.update((tp, _Tenure()) for tp in partitions)
        self._changed.set()

    async def revoked(self, partitions: Partitions) -> None:
        leaving = [(tp, self._held[tp]) for tp in partitions & self._held.keys()]
        for _, tenure in leaving:
            tenure.leaving = True
        while not self._closing and any(self._held.get(tp) is tenure for tp, tenure in leaving):
            self._changed.clear()
            await self._changed.wait()
        self._forget(partitions)

    async def lost(self, partitions: Partitions) -> None:
        log.warning(
            "%s: lost %d partitions; the query does not commit a batch that reads them", self._group, len(partitions)
        )
        self._forget(partitions)
        self._changed.set()

    def suspended(self, why: str) -> None:
        log.warning("%s: no new batch: %s", self._group, why)

    def resumed(self) -> None:
        self._changed.set()

    def failed(self, error: BaseException) -> None:
        self._error = error
        self._changed.set()

    # -- internal ---------------------------------------------------------------------------------------------------

    def _forget(self, partitions: Partitions) -> None:
        for tp in partitions:
            self._held.pop(tp, None)

    async def _joined(self) -> Membership:
        if self._membership is None:
            options = self._options
            self._changed = asyncio.Event()
            client = KafkaClient(options.brokers, client_id="allocator-spark-member", security=options.security)
            await client.connect(options.timeout_s)
            if options.topics_pattern is not None:
                client.follow_all()
            else:
                client.follow(options.topics or ())
            offsets = GroupOffsets(client, self._group, timeout_s=options.timeout_s)
            coordinator = Coordinator(client, self._group, client.retry_backoff_s)
            load = partial(lag, client, offsets.fetch, "earliest")
            config = joining(options)
            membership = config.options.make(config, MemberParts(client, self, coordinator, load, None))
            try:
                await membership.join()
            except BaseException:
                await membership.leave()
                await client.close()
                raise
            self._client, self._offsets, self._membership = client, offsets, membership
        self._raise_if_ended(self._membership)
        return self._membership

    async def _first_assignment(self, membership: Membership, bounded: bool) -> None:
        """Waits for the first partitions, because a bounded run ends with the first plan that has no new records.

        Spark does not tell of `Trigger.Once`. So other queries wait too, but not for members that must release the
        partitions first: such a member may be another source of the same query, which Spark calls afterwards.
        """
        options = self._options
        if not bounded:
            await self._until(membership, lambda: self._held or self._promised, options.session_timeout_s)
            return
        # the session of a process that was killed may still own the partitions
        limit_s = max(options.timeout_s, 2 * options.session_timeout_s)
        await self._until(membership, lambda: self._held, limit_s)
        if not self._held:
            raise NothingAssigned(
                f"group {self._group!r} assigned no partition to this query within {limit_s:g} s, because other "
                "members own them; start the query again later, or set timeout_s higher"
            )

    async def _until(self, membership: Membership, condition: Callable[[], object], timeout_s: float) -> None:
        """Waits until the condition is true, at most `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not condition() and loop.time() < deadline:
            self._changed.clear()
            await wait_for_event(self._changed, deadline - loop.time())
            self._raise_if_ended(membership)

    def _raise_if_ended(self, membership: Membership) -> None:
        error, self._error = self._error, None
        for found in (membership.ended, error):
            if found is not None:
                raise found

    async def _may_act(self, membership: Membership) -> None:
        """Waits until the lease is valid."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.timeout_s
        while not membership.may_act():
            if loop.time() >= deadline:
                raise ZooKeeperUnavailable(
                    f"group {self._group!r}: no valid lease for {self._options.timeout_s:g} s; check ZooKeeper, and "
                    "start the query again"
                )
            self._changed.clear()
            await wait_for_event(self._changed, LEASE_POLL_S)
            self._raise_if_ended(membership)

    async def _found(self, tps: Partitions) -> Begin:
        if not tps:
            return {}
        found = await self._offsets.fetch(tps)
        await self._client.refresh({tp.topic for tp in found})
        again = begin_again(self._offsets, self._options, found)
        return {tp: found[tp].offset if tp in found and tp not in again else None for tp in tps}

    async def _commit(self, membership: Membership, done: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> None:
        tenures = {tp: tenure for tp, tenure in self._held.items() if tenure.running and tp in done}
        new = {tp: (done[tp], ids.get(tp.topic)) for tp in tenures}
        changed = {tp: new[tp][0] for tp, tenure in tenures.items() if tenure.committed != new[tp]}
        if not changed:
            return
        # a topic that was created again, or a truncated log, has other records at these offsets
        there = await still_there(self._client, self._options, changed, ids)
        await self._may_act(membership)
        changed = {tp: at for tp, at in there.items() if self._held.get(tp) is tenures[tp]}
        stamp = f"generation {membership.generation} member {membership.member_id}"
        try:
            await self._offsets.commit(
                {tp: OffsetAndMetadata(at, stamped(stamp, ids.get(tp.topic)), -1) for tp, at in changed.items()}
            )
        except CommitFailed as error:
            # safe to continue: the next owner reads the records again and skips none
            log.warning("%s", error)
        else:
            for tp in changed:
                tenures[tp].committed = new[tp]
