"""Commits the offsets of one member: which, when, and with what metadata."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.reminder import Reminder
from allocator.core.aio.tasks import BackgroundTasks, within
from allocator.core.client.client import KafkaClient
from allocator.core.errors import AllocatorError, BrokerError, CommitFailed, IllegalState
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.membership.membership import Membership
from allocator.core.offsets.coordinator import METADATA_BYTES
from allocator.core.offsets.idle import IdleOffsets
from allocator.core.offsets.pending_commit import Refusal
from allocator.core.offsets.storage import StoredOffsets, fetch_old_offsets
from allocator.core.offsets.tracker import OffsetTracker
from allocator.core.subscription.done import with_done
from allocator.core.subscription.loss import Committed, stamped, topic_of_offset
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import NO_PARTITIONS, OffsetAndMetadata, OnCommit, Partitions, TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

# time limit for the commit of idle offsets at a close. Higher: a close waits longer for a slow coordinator; lower: the
# commit is given up sooner
FRESH_WITHIN_S = 2.0
# parts of a commit's metadata, in characters
IDS_CHARACTERS = 120  # for the ids of topic and cluster
STAMP_CHARACTERS = 476  # for these ids and the member
BACKOFF_S = 0.1  # first pause after a failed automatic commit


class Commits:
    """Commits the offsets of one member.

    Guarantees: a commit names only partitions that this member owns, and is sent only while its lease is valid. An
    earlier commit never replaces a later one. When `settled` has returned, no commit of these partitions is in flight.

    `offsets` is None without a group; then nothing can be committed. `must_own` raises NotOwned. `interval_s` is the
    interval of automatic commits in seconds, None for none. With `old_offsets`, an offset that an older client left in
    ZooKeeper counts where Kafka has none. With `stable`, `committed` waits for open transactions that may still commit
    an offset (KIP-447).
    """

    membership: Membership
    """Set before `start`."""

    def __init__(
        self,
        offsets: StoredOffsets | None,
        client: KafkaClient,
        state: SubscriptionState,
        progress: OffsetTracker,
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
        self._progress = progress
        self._fetcher = fetcher
        self._must_own = must_own
        self._interval_s = interval_s
        self._old_offsets = old_offsets
        self._stable = stable
        self._idle = None if offsets is None else IdleOffsets(offsets, self._idle_offsets, self.commit)
        self._under_way: dict[asyncio.Future[Any], Partitions] = {}
        self._refreshing: asyncio.Task[None] | None = None  # commits idle offsets while the member leaves
        self._metadata_bytes = METADATA_BYTES
        self._warned = False
        self._turn: asyncio.Lock | None = None

    def start(self, tasks: BackgroundTasks) -> None:
        """Starts the automatic commits, and the commits of idle offsets before they expire."""
        if self._offsets is None or self._idle is None:
            return
        self._offsets.committer = self.membership.committer
        # find the coordinator during the join, because the first assigned partitions need their committed offsets
        tasks.start(self._find_coordinator(), "coordinator")
        if self._interval_s is not None:
            tasks.start(self.commit_regularly(self._interval_s, self.commit_done), "auto-commit")
        if self._offsets.committer is None:  # Kafka sees a group without members, whose offsets expire
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
        if self._idle is not None and self.membership.committer is None:
            old = self._idle.not_ours()
            if self._interval_s is not None:
                old -= self._progress.uncommitted().keys()  # the release commits these partitions
            if old:
                self._refreshing = tasks.start(self._refresh(self._idle, old), "idle offsets of the leaving member")

    async def _refresh(self, idle: IdleOffsets, partitions: Set[TopicPartition]) -> None:
        with contextlib.suppress(AllocatorError, asyncio.TimeoutError):
            await within(idle.commit_again(partitions), FRESH_WITHIN_S)

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
        found = await offsets.fetch(wanted, require_stable=self._stable and self._client.broker_version >= (2, 5))
        rest = wanted - set(found)
        if rest and self._old_offsets and offsets.storage == "kafka":
            found = {**await fetch_old_offsets(self._client, offsets.group, rest, offsets.coordinator), **found}
        return found

    # -- committing ----------------------------------------------------------------------------------------------

    @property
    def turn(self) -> asyncio.Lock:
        """The lock to hold from reading the done offsets until they are committed, so that an earlier offset never
        follows a later one."""
        if self._turn is None:  # on Python 3.9 a lock belongs to the loop that runs when it is created
            self._turn = asyncio.Lock()
        return self._turn

    async def until_may_act(self) -> None:
        """Returns once records may be handled and offsets committed."""
        while not self.membership.may_act():
            await self._fetcher.news()  # `Ownership.resumed` wakes the fetcher

    async def commit(self, offsets: Offsets) -> None:
        """Commits these offsets. Raises NotOwned or CommitFailed before it sends anything, or the coordinator's
        error."""
        group = self.offsets
        if offsets:
            under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            to_send, since = self._to_send(offsets), self._progress.changes
            self.hold(under_way, offsets)
            try:
                await group.commit(to_send, self._refusal(offsets))
            finally:
                under_way.set_result(None)
            self._note_committed(offsets, since)

    def commit_async(self, offsets: Offsets, callback: OnCommit | None = None) -> None:
        """Like `commit`, but returns at once. Commits keep the order of the calls. `close` waits for them."""
        group = self.offsets
        if offsets:
            task = group.commit_async(self._to_send(offsets), self._refusal(offsets))
            self.hold(task, offsets)
            task.add_done_callback(partial(self._decided, offsets, callback, self._progress.changes))

    def _decided(self, offsets: Offsets, callback: OnCommit | None, since: int, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        group, error = self.offsets.group, task.exception()
        if error is None:
            self._note_committed(offsets, since)
        elif not isinstance(error, AllocatorError):
            log.error("%s: a commit ended with an internal error", group, exc_info=error)
            return
        try:
            if callback is not None:
                callback(offsets, error)
            elif error is not None:
                log.error("%s: %d offsets are not committed: %s", group, len(offsets), error)
        except Exception:
            log.exception("%s: the callback of a commit failed", group)

    async def commit_done(self, partitions: Iterable[TopicPartition] | None = None, *, in_hand: bool = False) -> None:
        """Commits the done offsets. With `in_hand`, delivered records count as done."""
        async with self.turn:
            offsets = self._progress.uncommitted(partitions, in_hand=in_hand)
            await self.commit({p: OffsetAndMetadata(o, "", -1) for p, o in offsets.items()})
            # mark them done only after the commit: this lets a draining partition be released
            self._progress.finish_up_to(offsets)

    async def commit_regularly(self, interval_s: float, commit: Callable[[], Awaitable[None]]) -> None:
        """Calls `commit` every `interval_s` seconds. After a retriable error, calls it again sooner."""
        wait_s, backoff, failing = interval_s, Backoff(BACKOFF_S, interval_s), Reminder(log)
        while True:
            await asyncio.sleep(wait_s)
            wait_s = interval_s
            try:
                await commit()
                backoff.reset()
                failing.over()
            except AllocatorError as error:
                # no offset is lost: the next interval, revocation or close commits a later one
                failing.warn("%s: commit postponed: %s", self.offsets.group, error)
                if error.retriable:
                    await self.until_may_act()
                    wait_s = backoff.next()

    def hold(self, work: asyncio.Future[Any], partitions: Iterable[TopicPartition]) -> None:
        """Keeps these partitions from being released until `work` has ended."""
        self._under_way[work] = frozenset(partitions)
        work.add_done_callback(self._under_way.pop)

    async def settled(self, partitions: Partitions) -> None:
        """Waits until no commit of these partitions is in flight."""
        if self._refreshing is not None:
            await asyncio.wait({self._refreshing})
        while True:
            waits = [each for each, theirs in self._under_way.items() if not theirs.isdisjoint(partitions)]
            if not waits:
                break
            await asyncio.wait(waits)
        if self._offsets is not None:
            await self._offsets.settled()

    def _refusal(self, offsets: Offsets) -> Refusal:
        """Returns the check whether a later request may contain these offsets: only in the current tenures."""
        tenures = {partition: self._state.assignment.get(partition) for partition in offsets}

        def refusal(partition: TopicPartition) -> BrokerError | None:
            if self._state.assignment.get(partition) is not tenures[partition]:
                return BrokerError("this member has lost it since")
            if not self.membership.may_act():
                return BrokerError("the lease is not valid", retriable=True)
            return None

        return refusal

    def _note_committed(self, offsets: Offsets, since: int) -> None:
        self._progress.note_committed({p: o.offset for p, o in offsets.items()}, since)
        if self._idle is not None:
            self._idle.committed(offsets)

    def _idle_offsets(self) -> dict[TopicPartition, int]:
        """Returns the committed offsets that may be committed again, so that Kafka does not delete them."""
        if self.offsets.storage == "zookeeper" or not self.membership.may_act():  # offsets in ZooKeeper do not expire
            return {}
        busy = NO_PARTITIONS.union(*self._under_way.values())
        committed = {p: self._progress.committed(p) for p in self._state.owned - busy}
        return {p: offset for p, offset in committed.items() if offset is not None}

    # -- metadata ------------------------------------------------------------------------------------------------

    def _to_send(self, offsets: Offsets) -> Offsets:
        """Adds the leader epoch if it is known, and the id of this member where the user gives no metadata.

        Raises NotOwned, or CommitFailed if the lease is not valid.
        """
        self._must_own(offsets)
        membership = self.membership
        if not membership.may_act():
            error = CommitFailed(
                f"{self.offsets.group}: offsets of {len(offsets)} partitions are not committed: the lease is not "
                "valid, so another member may own them now. Retry: once the lease is renewed, the commit succeeds; if "
                "another member is the owner, it reads their records again"
            )
            error.retriable = True
            raise error
        stamp = f"generation {membership.generation} member {membership.member_id}"
        self._progress.note_member(membership.member_id)
        last_id, text = None, stamp  # reused while the topic stays the same, because most commits have one topic
        to_send = {}
        for partition, each in offsets.items():
            offset, metadata, epoch = each
            if epoch is None or epoch < 0:
                # the epoch lets the next owner detect a truncation of the log (KIP-320)
                epoch = self._fetcher.leader_epoch(partition, offset)
            if not metadata and isinstance(each, Committed):
                metadata = self._metadata(stamp, partition, each)
            elif not metadata:
                topic_id = self._topic_id(partition)
                if topic_id is not last_id:
                    last_id, text = topic_id, stamped(stamp, topic_id)
                metadata = text
            to_send[partition] = OffsetAndMetadata(offset, metadata, epoch)
        return to_send

    def _metadata(self, stamp: str, partition: TopicPartition, offset: Committed) -> str:
        done = offset.done
        if done is not None:
            self._warn_without_metadata()
            text, whole = done.encoded(self._metadata_bytes - IDS_CHARACTERS - len(stamp))
            stamp = with_done(stamp, text)
            self._client.measures.done_sets_cut += not whole
        return stamped(stamp, topic_of_offset(offset) or self._topic_id(partition))

    @property
    def done_characters(self) -> int:
        """The number of characters in a commit's metadata that are free for done records beyond the offset."""
        return self._metadata_bytes - IDS_CHARACTERS - STAMP_CHARACTERS

    async def learn_metadata_limit(self) -> None:
        """Requests the metadata limit of a commit from the coordinator. Until then the default limit applies."""
        if self._offsets is not None and self._offsets.storage != "zookeeper":
            await self._find_coordinator()
            self._metadata_bytes = await self._offsets.coordinator.metadata_bytes()

    def _warn_without_metadata(self) -> None:
        if self._warned or (self.offsets.storage != "zookeeper" and self._client.broker_version >= (0, 8, 2)):
            return
        self._warned = True
        log.warning(
            "%s: offsets in ZooKeeper have no metadata, so a commit cannot name the records that are done beyond its "
            "offset; after a restart or a move they are handled again. Offsets in Kafka (0.8.2 or newer) keep them",
            self.offsets.group,
        )

    def stamped(self, text: str, partition: TopicPartition) -> str:
        """Adds the topic's id to the metadata of a commit, so that a later member detects another topic of that
        name."""
        return stamped(text, self._topic_id(partition))

    def _topic_id(self, partition: TopicPartition) -> Any:
        return self._state.topic_id(partition) or self._client.topic_id(partition.topic)
