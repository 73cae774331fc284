"""A streaming query as a weighted member of a ZooKeeper group, beside plain consumers.

A session needs heartbeats every few seconds, but Spark calls the source rarely and may process a batch for minutes. So
the membership has its own thread and event loop (docs/architecture.md). Both threads communicate only through `_call`.

Guarantee: a batch has a partition only while this query owns it, and releases it only between two batches, after it has
committed the offsets. A new partition starts at the group's committed offset, not at the checkpoint: another member may
have read on since.

When the session is lost, the tasks of the current batch cannot be stopped. They end, and nothing of the lost partitions
is committed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Optional, TypeVar

from allocator.core.aio import wait_for_event
from allocator.core.client import KafkaClient
from allocator.core.consumer import Connections, lag
from allocator.core.membership import AssignmentListener, Membership
from allocator.core.offsets import Coordinator, GroupOffsets
from allocator.core.subscription import stamped
from allocator.errors import BrokersUnavailable, CommitFailed, ZooKeeperUnavailable
from allocator.spark.options import Options, joining
from allocator.spark.source.plan import begin_again
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

    def border(self, done: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> Begin:
        """Call it between two batches: all records before `done` are processed. `ids`: topic -> id, for these offsets.

        Commits, releases revoked partitions, and returns the partitions of the next batch -> start; None without a
        committed offset. Raises the error that ended the membership, BrokersUnavailable, ZooKeeperUnavailable.
        """
        return self._call(self._runner.border(done, ids))

    def claim(self, wanted: Partitions) -> Begin:
        """The partitions of `wanted` that this query owns -> committed offset, to repeat a batch after a crash.

        Waits until the session of the crashed process has ended. Another member owns the other partitions then, and
        starts at the commit, which an unfinished batch has not moved.
        """
        return self._call(self._runner.claim(wanted))

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
            # daemon: it must not keep the process alive after the query; the session and the ownership end with it
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


class _MemberRunner(AssignmentListener):
    """The part of the member on its own loop, and the `AssignmentListener` of its membership."""

    def __init__(self, options: Options) -> None:
        assert options.group is not None
        self._options = options
        self._group = options.group
        self._client: KafkaClient | None = None
        self._membership: Membership | None = None
        self._changed: asyncio.Event
        self._held: set[TopicPartition] = set()
        # which ownership of a partition this is: it may leave and come back while a response is awaited
        self._turns: Counter[TopicPartition] = Counter()
        # revoked; released at the next border
        self._leaving: set[TopicPartition] = set()
        # owned without interruption since a batch read it, so the checkpoint knows its position better than the group
        self._running: set[TopicPartition] = set()
        self._committed: dict[TopicPartition, int] = {}
        self._closing = False
        self._error: BaseException | None = None

    # -- called by StreamMember
    # -----------------------------------------------------------------------------------------

    async def border(self, done: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> Begin:
        membership = await self._joined()
        await self._may_act(membership)
        await self._commit({tp: at for tp, at in done.items() if tp in self._running}, ids)
        self._held -= self._leaving
        self._running -= self._leaving
        self._leaving.clear()
        self._changed.set()
        turns = self._turns_of(self._held)
        new = frozenset(self._held - self._running)
        begin: Begin = {tp: done[tp] for tp in self._held & self._running if tp in done}
        begin.update(await self._found(new))
        if new:
            log.info("%s: the next batch reads %d additional partitions", self._group, len(new))
        # without partitions that were lost during the request: another member may have committed since
        begin = {tp: at for tp, at in begin.items() if self._is_turn(tp, turns)}
        self._running |= begin.keys()
        return begin

    async def claim(self, wanted: Partitions) -> Begin:
        membership = await self._joined()
        if not wanted <= self._running:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + 2 * self._options.session_timeout_s
            while not wanted <= self._held and loop.time() < deadline:
                self._changed.clear()
                await wait_for_event(self._changed, deadline - loop.time())
                self._raise_if_ended(membership)
        await self._may_act(membership)
        owned = wanted & self._held
        repeated = owned - self._running
        self._running |= repeated
        turns = self._turns_of(repeated)
        found = await self._found(repeated)
        return {**dict.fromkeys(owned - repeated), **{tp: at for tp, at in found.items() if self._is_turn(tp, turns)}}

    async def leave(self) -> None:
        self._closing = True
        membership, self._membership = self._membership, None
        client, self._client = self._client, None
        try:
            if membership is not None:
                self._changed.set()
                await membership.leave()
        finally:
            if client is not None:
                await client.close()

    # -- called by the membership ---------------------------------------------------------------------------------

    async def assigned(self, partitions: Partitions) -> None:
        self._held |= partitions
        self._turns.update(partitions)
        self._changed.set()

    async def revoked(self, partitions: Partitions) -> None:
        self._leaving |= partitions & self._held
        while not self._closing and not self._held.isdisjoint(partitions & self._leaving):
            self._changed.clear()
            await self._changed.wait()
        self._forget(partitions)

    async def lost(self, partitions: Partitions) -> None:
        log.warning("%s: lost %d partitions; a batch that reads them is not committed", self._group, len(partitions))
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
        for each in (self._held, self._leaving, self._running):
            each -= partitions
        for tp in partitions:
            self._committed.pop(tp, None)

    async def _joined(self) -> Membership:
        if self._membership is None:
            options = self._options
            self._changed = asyncio.Event()
            client = KafkaClient(options.brokers, client_id="allocator-spark-member", security=options.security)
            await client.connect(options.timeout_s)
            self._client = client
            if options.topics_pattern is not None:
                client.follow_all()
            else:
                client.follow(options.topics or ())
            offsets = self._offsets()
            coordinator = Coordinator(client, self._group, client.retry_backoff_s)
            load = partial(lag, client, offsets.fetch, "earliest")
            config = joining(options)
            membership = config.options.make(config, Connections(client, self, coordinator, load, None))
            try:
                await membership.join()
            except BaseException:
                await membership.leave()
                await client.close()
                self._client = None
                raise
            self._membership = membership
        self._raise_if_ended(self._membership)
        return self._membership

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

    def _offsets(self) -> GroupOffsets:
        if self._client is None:
            raise BrokersUnavailable("the member of the group has no connection")
        return GroupOffsets(self._client, self._group, timeout_s=self._options.timeout_s)

    async def _found(self, tps: Partitions) -> Begin:
        if not tps:
            return {}
        offsets = self._offsets()
        found = await offsets.fetch(tps)
        assert self._client is not None
        await self._client.refresh({tp.topic for tp in found})
        again = begin_again(offsets, self._options, found)
        return {tp: found[tp].offset if tp in found and tp not in again else None for tp in tps}

    def _turns_of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._turns[tp] for tp in tps}

    def _is_turn(self, tp: TopicPartition, turns: Mapping[TopicPartition, int]) -> bool:
        """Whether the partition has not left since `turns`."""
        return tp in self._held and self._turns[tp] == turns[tp]

    async def _commit(self, done: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> None:
        changed = {tp: at for tp, at in done.items() if self._committed.get(tp) != at}
        if not changed:
            return
        assert self._membership is not None
        turns = self._turns_of(changed)
        stamp = f"generation {self._membership.generation} member {self._membership.member_id}"
        offsets = self._offsets()
        try:
            await offsets.commit(
                {tp: OffsetAndMetadata(at, stamped(stamp, ids.get(tp.topic)), -1) for tp, at in changed.items()}
            )
        except CommitFailed as error:
            # the next owner reads the records again; none is skipped
            log.warning("%s", error)
        else:
            self._committed.update((tp, at) for tp, at in changed.items() if self._is_turn(tp, turns))
        finally:
            await offsets.close()
