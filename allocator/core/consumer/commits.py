"""Commits the offsets of one member: which, when, and with what metadata."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.clock import boot_clock
from allocator.core.aio.reminder import Reminder
from allocator.core.aio.tasks import BackgroundTasks, wait_for_event, within
from allocator.core.client.client import KafkaClient
from allocator.core.consumer.commit_call import (
    IN_DOUBT,
    Chosen,
    CommitCall,
    Offsets,
    One,
    Transact,
    in_transactions,
    without,
)
from allocator.core.consumer.commit_metadata import CommitMetadata
from allocator.core.errors import AllocatorError, CommitFailed, Fenced, IllegalState
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.membership.membership import Membership
from allocator.core.offsets.idle import IdleOffsets
from allocator.core.offsets.pending_commit import MOST_PARTITIONS, Choice
from allocator.core.offsets.storage import StoredOffsets, fetch_old_offsets
from allocator.core.settings.arguments import check_offsets
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.state import SubscriptionState
from allocator.core.subscription.tenures import Phase
from allocator.core.text.quoting import partition_names
from allocator.core.types import OffsetAndMetadata, OnCommit, Partitions, TopicPartition

log = logging.getLogger(__name__)

# time limit for the commit of idle offsets at a close. Higher: a close waits longer for a slow coordinator; lower: the
# commit is given up sooner
FRESH_WITHIN_S = 2.0
BACKOFF_S = 0.1  # first pause after a failed automatic commit
# seconds without a response of the coordinator after which a release goes on without its commit. Higher: after a longer
# outage no record is read twice; lower: partitions move sooner, and a close takes less time
RELEASE_PATIENCE_S = 30.0
# seconds that a release or a close waits for a topic in doubt, which was probably deleted. Higher: after a restart of
# brokers, whose first metadata lack topics, fewer records are read twice; lower: other topics' partitions move sooner
DOUBT_PATIENCE_S = 3.0


class Commits:
    """Commits the offsets of one member.

    Guarantees: a commit names only partitions that this member owns, and is sent only while its lease is valid. All
    commits of the member form one queue, and an earlier commit never replaces a later one. A commit of what is done is
    chosen when its request is written, so it never replaces an offset that the user has committed meanwhile. When
    `settled` has returned, no commit of these partitions is in flight.

    `offsets` is None without a group; then nothing can be committed. `must_own` raises NotOwned. `interval_s` is the
    interval of automatic commits in seconds, None for none. With `old_offsets`, an offset that an older client left in
    ZooKeeper counts where Kafka has none. With `stable`, `committed` waits for open transactions that may still commit
    an offset (KIP-447).
    """

    def __init__(
        self,
        offsets: StoredOffsets | None,
        client: KafkaClient,
        state: SubscriptionState,
        fetcher: Fetcher,
        must_own: Callable[[Iterable[TopicPartition]], None],
        *,
        interval_s: float | None,
        old_offsets: bool = False,
        stable: bool = False,
    ) -> None:
        self._offsets = offsets
        self._client = client
        self._state = state
        self._fetcher = fetcher
        self._must_own = must_own
        self.configured_s = interval_s
        """The interval of the settings, which `every` may have replaced."""
        self._interval_s = interval_s
        self._woken: asyncio.Event | None = None
        self._at_once = False
        self._old_offsets = old_offsets
        self._stable = stable
        self._idle = None
        if offsets is not None:
            self._idle = IdleOffsets(offsets, self._kept, partial(self._commit_chosen, offsets, follows=False))
        self._refreshing: asyncio.Task[None] | None = None  # commits idle offsets while the member leaves
        self.transact: Transact | None = None
        """Commits all offsets from now on, because no other commit of a former owner can be fenced; None: they are sent
        to the coordinator."""
        self.metadata = CommitMetadata(offsets, client, state, fetcher)

    def start(self, tasks: BackgroundTasks) -> None:
        """Starts the automatic commits, and the commits of idle offsets before they expire."""
        if self._offsets is None or self._idle is None:
            return
        self._offsets.committer = self.membership.committer
        # find the coordinator during the join, because the first assigned partitions need their committed offsets
        tasks.start(self._find_coordinator(), "coordinator")
        self._woken = asyncio.Event()
        self._state.on_start = self._commit_at_once
        tasks.start(self._commit_regularly(self._woken), "auto-commit")
        if self._offsets.may_expire:
            tasks.start(self._idle.run(), "idle offsets")

    async def _find_coordinator(self) -> None:
        with contextlib.suppress(AllocatorError):  # the first request that needs the coordinator reports the error
            await self.offsets.find()

    async def close(self) -> None:
        """Waits until all commits of `commit_async` have ended. Idempotent."""
        if self._offsets is not None:
            await self._offsets.close()

    def leave_fresh(self, tasks: BackgroundTasks) -> None:
        """Starts to commit idle offsets again while the member leaves, so that they do not expire if every process of
        the group is short-lived. A release waits for it."""
        idle = self._idle
        if idle is None or not self.offsets.may_expire:
            return
        old = idle.not_ours()

        async def refresh() -> None:
            with contextlib.suppress(AllocatorError, asyncio.TimeoutError):
                await within(idle.commit_again(old), FRESH_WITHIN_S)

        if old:
            self._refreshing = tasks.start(refresh(), "idle offsets of the leaving member")

    @property
    def membership(self) -> Membership:
        return self.metadata.membership

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> StoredOffsets:
        """The offsets of the group. Raises IllegalState without a group."""
        if self._offsets is None:
            raise IllegalState(
                "this consumer has no group, so it cannot commit; give it a `group`, or keep "
                "the offsets yourself and `seek`"
            )
        return self._offsets

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the committed offsets of these partitions; none without a group."""
        offsets = self._offsets
        if offsets is None:
            return {}
        wanted = set(partitions)
        # not after the transaction of a dead owner: the first transaction here ends it, and finds what it has committed
        found = await self.fetch(wanted, stable=self._stable and self.transact is None)
        rest = wanted - set(found)
        if rest and self._old_offsets and offsets.storage == "kafka":
            old = await fetch_old_offsets(self._client, offsets.group, rest, offsets.coordinator)
            found = {**await offsets.current(old), **found}
        return found

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, stable: bool | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets that the group has committed. Raises IllegalState without a group.

        `stable`: after open transactions, if the brokers can wait for them; None: if this member reads or commits in
        them.
        """
        stable = (self._stable or self.transact is not None) if stable is None else stable
        return await self.offsets.fetch(partitions, require_stable=stable and self._client.broker_version >= (2, 5))

    # -- committing ----------------------------------------------------------------------------------------------

    async def until_may_act(self) -> None:
        """Returns once records may be handled and offsets committed."""
        while not self.membership.may_act():
            await self._fetcher.news()  # `Ownership.resumed` wakes the fetcher

    async def commit(self, offsets: Offsets) -> None:
        """Commits these offsets. Raises NotOwned or CommitFailed before it sends anything, or the coordinator's
        error."""
        group = self.offsets
        if offsets:
            check_offsets(offsets)
            call = self._call()
            to_send = self._to_send(offsets)
            call.note(offsets)
            await self.until_decided(lambda: any(map(self._state.is_in_doubt, offsets)))
            if self.transact is not None:
                await in_transactions(
                    self.transact, partial(without, offsets), lambda _, offset: Chosen(offset, call), offsets.get
                )
                return
            await group.commit(to_send, call.terms())

    async def until_decided(self, in_doubt: Callable[[], bool], patience_s: float = math.inf) -> None:
        """Waits for a limited time while it is in doubt whether offsets belong to a topic that is gone."""
        until = time.monotonic() + min(patience_s, self._client.request_timeout_s)
        while in_doubt() and time.monotonic() < until:
            await self._fetcher.news(until - time.monotonic())

    async def commit_done(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        or_raise: bool = False,
        patience_s: float = math.inf,
    ) -> None:
        """Commits what is done, of these partitions or of all. Leaves out partitions that are lost meanwhile; with
        `or_raise`, raises Fenced for them. After the first request, gives up once the coordinator has not responded for
        `patience_s` seconds, so that commits do not wait for it one after another. Waits also for topics in doubt, and
        leaves those out that remain; with `or_raise`, raises CommitFailed for them.

        Raises CommitFailed before it sends anything if the lease is not valid, or the coordinator's error.
        """
        wanted, group = None if partitions is None else frozenset(partitions), self.offsets

        def in_doubt() -> bool:
            tenures = self._state.assignment
            return any(t.in_doubt and t.is_uncommitted for p, t in tenures.items() if wanted is None or p in wanted)

        await self.until_decided(in_doubt, patience_s if or_raise else min(patience_s, DOUBT_PATIENCE_S))
        if await self.has_uncommitted(wanted):
            tenures = list(self._uncommitted(wanted)) if or_raise else []
            self._must_act()
            await self._commit_chosen(
                group, partial(self._done, wanted), one=lambda p: self._done({p}).get(p), patience_s=patience_s
            )
            if (error := _left(self.offsets.group, tenures)) is not None:
                raise error

    def commit_async(self, offsets: Offsets | None, callback: OnCommit | None = None) -> None:
        """Like `commit`, or like `commit_done` for None, but returns at once. Commits keep the order of the calls.
        `close` waits for them."""
        group = self.offsets
        call = self._call()
        tenures: list[TopicPartitionState] = []
        if offsets is None:
            tenures = list(self._uncommitted(None))
            if tenures:
                self._must_act()
            choose = call.noting(partial(self._done, None), self.metadata.added)
            task = group.commit_async(choose, call.terms())
        elif offsets:
            to_send = self._to_send(offsets)
            call.note(offsets)
            task = group.commit_async(to_send, call.terms())
        else:
            task = group.commit_async({})
        task.add_done_callback(partial(self._decided, call, tenures, callback))

    def _decided(
        self, call: CommitCall, tenures: list[TopicPartitionState], callback: OnCommit | None, task: asyncio.Task[None]
    ) -> None:
        if task.cancelled():
            return
        group = self.offsets.group
        error = task.exception() or _left(group, tenures)
        if error is not None and not isinstance(error, AllocatorError):
            log.error("%s: a commit ended with an internal error", group, exc_info=error)
            return
        try:
            if callback is not None:
                callback(call.offsets, error)
            elif error is not None:
                log.error("%s: %d offsets are not committed: %s", group, len(call.offsets), error)
        except Exception:
            log.exception("%s: the callback of a commit failed", group)

    async def has_uncommitted(self, partitions: Partitions | None) -> bool:
        """Whether there is something to commit, of these partitions or of all. If not yet, waits for the commits that
        are under way: the user may have set an offset back."""
        if next(self._uncommitted(partitions), None) is None and (ends := self.offsets.pending(partitions)):
            await asyncio.wait(ends)
        return next(self._uncommitted(partitions), None) is not None

    def _uncommitted(self, partitions: Partitions | None) -> Iterator[TopicPartitionState]:
        for partition, tenure in self._state.assignment.items():
            if (partitions is None or partition in partitions) and tenure.is_uncommitted:
                yield tenure

    async def _commit_chosen(
        self,
        group: StoredOffsets,
        choose: Choice,
        *,
        one: One | None = None,
        follows: bool = True,
        patience_s: float = math.inf,
    ) -> None:
        """`one`: like `choose`, for one partition. `follows`: see `CommitCall`."""
        if self.transact is not None:
            await in_transactions(self.transact, choose, partial(self.chosen, follows=follows), one)
            return
        call = self._call(follows=follows)
        await group.commit(call.noting(choose, self.metadata.added), call.terms(patience_s))

    def chosen(self, partition: TopicPartition, offset: OffsetAndMetadata, *, follows: bool = True) -> Chosen:
        """Returns the offset with what it belongs to now. Call it when the offset is chosen."""
        call = self._call(follows=follows)
        call.note({partition: offset})
        return Chosen(offset, call)

    def _call(self, *, follows: bool = True) -> CommitCall:
        return CommitCall(self._state, self.membership, self.now, follows=follows)

    def _done(self, partitions: Collection[TopicPartition] | None, over: Collection[TopicPartition] = ()) -> Offsets:
        """Returns what to commit now, for as many partitions as one request takes. Leaves out those in `over`."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, tenure in self._state.assignment.items():
            if (partitions is None or partition in partitions) and partition not in over and not tenure.in_doubt:
                point = tenure.to_commit()
                if point is not None:
                    found[partition] = point
                    if len(found) == MOST_PARTITIONS:
                        break
        return found

    @property
    def are_automatic(self) -> bool:
        """Whether this member commits what is done by itself."""
        return self._offsets is not None and self._interval_s is not None

    def every(self, interval_s: float | None) -> None:
        """Changes the interval of automatic commits; None ends them."""
        self._interval_s = interval_s
        if self._woken is not None:
            self._woken.set()

    def _commit_at_once(self) -> None:
        """Commits the start of a partition soon: if this member lost it before, the next owner would begin later."""
        if self._woken is not None:
            self._at_once = True
            self._woken.set()

    async def _commit_regularly(self, woken: asyncio.Event) -> None:
        """Commits what is done at each interval. After a retriable error, commits again sooner."""
        backoff, failing = Backoff(BACKOFF_S, self._interval_s or BACKOFF_S), Reminder(log)
        wait_s = None
        while True:
            changed = await wait_for_event(woken, self._interval_s if wait_s is None else wait_s) and not self._at_once
            woken.clear()
            wait_s, self._at_once = None, False
            if changed or self._interval_s is None:
                backoff = Backoff(BACKOFF_S, self._interval_s or BACKOFF_S)
                continue
            try:
                await self.commit_done(patience_s=0.0)
                backoff.reset()
                failing.over()
            except AllocatorError as error:
                # no offset is lost: the next interval, revocation or close commits a later one
                failing.warn("%s: commit postponed: %s", self.offsets.group, error)
                if error.retriable:
                    await self.until_may_act()
                    wait_s = backoff.next()

    def _to_send(self, offsets: Offsets) -> Offsets:
        """Raises NotOwned, or CommitFailed if the lease is not valid."""
        self._must_own(offsets)
        self._must_act()
        return self.metadata.added(offsets)

    def _must_act(self) -> None:
        if not self.membership.may_act():
            raise CommitFailed(
                f"{self.offsets.group}: offsets are not committed: the lease of their partitions is not valid, so "
                "another member may own them now. Retry: once the lease is renewed, the commit succeeds; if another "
                "member is the owner, it reads their records again",
                retriable=True,
            )

    async def settled(self, partitions: Partitions) -> None:
        """Waits until no commit of these partitions is in flight."""
        if self._refreshing is not None:
            await asyncio.wait({self._refreshing})
        if self._offsets is not None:
            await self._offsets.settled(partitions)

    def _kept(self) -> Mapping[TopicPartition, TopicPartitionState]:
        """Returns the tenures whose committed offsets Kafka may delete unless they are committed again."""
        if self.offsets.storage == "zookeeper" or not self.membership.may_act():  # offsets in ZooKeeper do not expire
            return {}
        # an automatic commit, or that of a release, commits what is done; one may be stored already and unanswered
        automatic = self._interval_s is not None
        return {
            p: t
            for p, t in self._state.assignment.items()
            if t.committed is not None and not t.in_doubt and not (automatic and t.is_uncommitted)
        }

    def now(self) -> float:
        return boot_clock() if self._idle is None else self._idle.clock()


def _left(group: str, tenures: Iterable[TopicPartitionState]) -> AllocatorError | None:
    """Returns the error if some of these tenures are not committed: they have ended before, or are in doubt."""
    left = [each for each in tenures if each.is_uncommitted]
    lost = [each.partition for each in left if each.phase is Phase.ENDED]
    if lost:
        names = partition_names(lost)
        return Fenced(f"group {group!r}: not committed: {names} (this member has lost it since)")
    if doubted := [each.partition for each in left if each.in_doubt]:
        return CommitFailed(f"group {group!r}: not committed: {partition_names(doubted)} ({IN_DOUBT})")
    return None
