"""A streaming query as a weighted member of a ZooKeeper group, beside plain consumers.

A session must be proved alive every few seconds, and Spark calls the source now and then and may be busy with a batch
for minutes: so the membership has a loop, and a thread, of its own (docs/architecture.md). What Spark's thread and
this one share goes through `_ask` alone.

Guarantee: a partition is planned for a batch only while it is ours, and released only at a border between two
batches, after what they read was committed. Where a partition begins that comes to the query, the group's commit says,
not the checkpoint: another member may have gone on with it since.

What runs when a session is lost cannot be taken back: the tasks of that batch end, as a handler's call does, and
nothing of the lost partitions is committed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Optional, TypeVar

from allocator.client.client import KafkaClient
from allocator.consumer.measures import lag
from allocator.consumer.membership_config import MembershipConfig
from allocator.errors import BrokersUnavailable, CommitFailed, ZooKeeperUnavailable
from allocator.groups.membership import Membership
from allocator.offsets.coordinator import Coordinator
from allocator.offsets.group_offsets import GroupOffsets
from allocator.spark.options import Options, member_keywords
from allocator.spark.source.plan import begin_again
from allocator.subscription.loss import stamped
from allocator.tasks import wait_for_event
from allocator.types import OffsetAndMetadata, Partitions, TopicPartition

__all__ = ["StreamMember"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Begin = dict[TopicPartition, Optional[int]]

# how often the lease is looked at while it is not valid; `resumed` and `lost` are heard at once
LOOK_S = 1.0


class StreamMember:
    """The query's place in its group. Call it from Spark's thread; `close` it there."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._inside = _Inside(options)

    def border(self, done: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> Begin:
        """Between two batches: every record before `done` was worked on. `ids`: of the topics of these offsets.

        Commits that, releases what is to go, and returns what is ours for the next batch: where it begins, None where
        the group committed nothing. Raises what ended the membership, BrokersUnavailable, ZooKeeperUnavailable.
        """
        return self._ask(self._inside.border(done, ids))

    def claim(self, wanted: Partitions) -> Begin:
        """Of `wanted`, those that are ours, with what is committed: for a batch that is repeated after a crash.

        Waits for the session of the process that crashed to end. What is not ours by then is another member's, who
        begins at the commit, which no batch that did not finish has moved.
        """
        return self._ask(self._inside.claim(wanted))

    def close(self) -> None:
        """Leaves the group. What was not committed is read again by whoever comes next. Safe to call twice."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._inside.leave(), loop).result(self._options.timeout_s)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(self._options.timeout_s)

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # it must not keep a process alive whose query is gone: then the session ends, and with it the ownership
            self._thread = threading.Thread(target=_turn, args=(self._loop,), name="allocator-member", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(question, self._loop).result()


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class _Inside:
    """What lives in the member's loop; also the `AssignmentListener` of its membership."""

    def __init__(self, options: Options) -> None:
        assert options.group is not None
        self._options = options
        self._group = options.group
        self._client: KafkaClient | None = None
        self._membership: Membership | None = None
        self._news: asyncio.Event
        self._held: set[TopicPartition] = set()
        # to be released at the next border
        self._leaving: set[TopicPartition] = set()
        # ours without a break since a batch of ours read it: what that batch did, we know better than the group
        self._running: set[TopicPartition] = set()
        self._committed: dict[TopicPartition, int] = {}
        self._closing = False
        self._error: BaseException | None = None

    # -- called by Member -----------------------------------------------------------------------------------------

    async def border(self, done: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> Begin:
        membership = await self._joined()
        await self._may_act(membership)
        await self._commit({tp: at for tp, at in done.items() if tp in self._running}, ids)
        self._held -= self._leaving
        self._running -= self._leaving
        self._leaving.clear()
        self._news.set()
        new = frozenset(self._held - self._running)
        begin: Begin = {tp: done[tp] for tp in self._held & self._running if tp in done}
        begin.update(await self._found(new))
        if new:
            log.info("%s: the next batch reads %d partitions more", self._group, len(new))
        # what left while we asked for its offset must not come back
        begin = {tp: at for tp, at in begin.items() if tp in self._held}
        self._running |= begin.keys()
        return begin

    async def claim(self, wanted: Partitions) -> Begin:
        membership = await self._joined()
        if not wanted <= self._running:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + 2 * self._options.session_timeout_s
            while not wanted <= self._held and loop.time() < deadline:
                self._news.clear()
                await wait_for_event(self._news, deadline - loop.time())
                self._raise_if_ended(membership)
        await self._may_act(membership)
        ours = wanted & self._held
        repeated = ours - self._running
        self._running |= repeated
        return {**dict.fromkeys(ours - repeated), **await self._found(repeated)}

    async def leave(self) -> None:
        self._closing = True
        membership, self._membership = self._membership, None
        client, self._client = self._client, None
        try:
            if membership is not None:
                self._news.set()
                await membership.leave()
        finally:
            if client is not None:
                await client.close()

    # -- called by the membership ---------------------------------------------------------------------------------

    async def assigned(self, partitions: Partitions) -> None:
        self._held |= partitions
        self._news.set()

    async def revoked(self, partitions: Partitions) -> None:
        self._leaving |= partitions & self._held
        while not self._closing and not self._held.isdisjoint(partitions & self._leaving):
            self._news.clear()
            await self._news.wait()
        self._forget(partitions)

    async def lost(self, partitions: Partitions) -> None:
        log.warning(
            "%s: %d partitions are lost; a batch that reads them is not committed", self._group, len(partitions)
        )
        self._forget(partitions)
        self._news.set()

    def suspended(self, why: str) -> None:
        log.warning("%s: no batch begins: %s", self._group, why)

    def resumed(self) -> None:
        self._news.set()

    def failed(self, error: BaseException) -> None:
        self._error = error
        self._news.set()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _forget(self, partitions: Partitions) -> None:
        for each in (self._held, self._leaving, self._running):
            each -= partitions
        for tp in partitions:
            self._committed.pop(tp, None)

    async def _joined(self) -> Membership:
        if self._membership is None:
            options = self._options
            self._news = asyncio.Event()
            client = KafkaClient(options.brokers, client_id="allocator-spark-member", security=options.security)
            await client.connect(options.timeout_s)
            self._client = client
            joining = MembershipConfig.of(**member_keywords(options))
            if options.topics_pattern is not None:
                client.follow_all()
            else:
                client.follow(options.topics or ())
            offsets = self._offsets()
            coordinator = Coordinator(client, self._group, client.retry_backoff_s)
            load = partial(lag, client, offsets.fetch, "earliest")
            membership = joining.make(client, self, coordinator, load, None)
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
        """Until the lease is valid; what was lost meanwhile is gone from `held`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.timeout_s
        while not membership.may_act():
            if loop.time() >= deadline:
                raise ZooKeeperUnavailable(
                    f"group {self._group!r}: for {self._options.timeout_s:g} s it was not certain which partitions are "
                    "this query's; look at ZooKeeper, and start the query again"
                )
            self._news.clear()
            await wait_for_event(self._news, LOOK_S)
            self._raise_if_ended(membership)

    def _offsets(self) -> GroupOffsets:
        if self._client is None:
            raise BrokersUnavailable("the member of the group has no connection")
        return GroupOffsets(self._client, self._group, timeout_s=self._options.timeout_s)

    async def _found(self, tps: Partitions) -> Begin:
        if not tps:
            return {}
        found = await self._offsets().fetch(tps)
        assert self._client is not None
        await self._client.refresh({tp.topic for tp in found})
        again = begin_again(self._client, self._options, found)
        return {tp: found[tp].offset if tp in found and tp not in again else None for tp in tps}

    async def _commit(self, done: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> None:
        news = {tp: at for tp, at in done.items() if self._committed.get(tp) != at}
        if not news:
            return
        assert self._membership is not None
        stamp = f"generation {self._membership.generation} member {self._membership.member_id}"
        offsets = self._offsets()
        try:
            await offsets.commit(
                {tp: OffsetAndMetadata(at, stamped(stamp, ids.get(tp.topic)), -1) for tp, at in news.items()}
            )
        except CommitFailed as error:
            # records are read again by whoever comes next, none is skipped
            log.warning("%s", error)
        else:
            self._committed.update((tp, at) for tp, at in news.items() if tp in self._held)
        finally:
            await offsets.close()
