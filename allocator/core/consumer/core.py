"""The core of every consumer: client, membership, fetcher and offsets, started and closed together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import re
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.reminder import Reminder
from allocator.core.aio.tasks import BackgroundTasks, wait_for_event, within
from allocator.core.client.client import KafkaClient
from allocator.core.consumer.measures import OwnLoad, lag
from allocator.core.consumer.membership_config import (
    Connections,
    EnsembleOptions,
    MembershipConfig,
    OrderSource,
)
from allocator.core.consumer.operator_orders import OperatorOrders
from allocator.core.consumer.ownership import Ownership
from allocator.core.consumer.record_processor import RecordProcessor
from allocator.core.consumer.sink import OffsetSink, SinkClaim
from allocator.core.errors import AllocatorError, CommitFailed, ConfigError, IllegalState, NotOwned
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.membership.fixed import does_not_exist
from allocator.core.membership.membership import Membership
from allocator.core.offsets.coordinator import METADATA_BYTES, Coordinator
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.offsets.idle import IdleOffsets, commit_again
from allocator.core.offsets.storage import StoredOffsets, fetch_old_offsets
from allocator.core.offsets.tracker import OffsetTracker
from allocator.core.settings.table import check_keywords
from allocator.core.subscription.done import with_done
from allocator.core.subscription.listener import check_listener
from allocator.core.subscription.loss import Committed, OutOfTurn, RecordsLost, stamped, topic_of_offset
from allocator.core.subscription.patterns import topic_pattern, with_topics
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import Listener, OffsetAndMetadata, OffsetReset, OnCommit, Partitions, TopicPartition
from allocator.core.zookeeper.client import ZooKeeperClient

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

LOSSES = 100  # losses kept
# limit of reading the orders at a start. more: an unreadable topic delays it longer; less: first records may miss
# orders
ORDERS_WITHIN_S = 10.0
# limit of committing idle partitions at a close. more: waits longer for a coordinator; less: gives up a slow one
FRESH_WITHIN_S = 2.0
IDS_CHARACTERS = 120  # characters of a commit's metadata for the ids of topic and cluster
STAMP_CHARACTERS = 476  # characters of a commit's metadata for these ids and the member
COMMIT_BACKOFF_S = 0.1  # pause after a failed auto-commit, unless another commit comes first


class ConsumerCore:
    """Client, membership, fetcher and offsets of one member of one group.

    Guarantee: `fetcher` delivers a batch, and `commit` sends offsets, only while this member owns the partition and its
    lease is valid. The parts share the subscription state; this class starts, calls and closes them.
    """

    def __init__(
        self,
        joining: MembershipConfig,
        *,
        brokers: str | Sequence[str],
        listener: Listener | None,
        auto_commit_interval_s: float | None,
        commit_on_revoke: bool,
        auto_offset_reset: OffsetReset | int,
        security: Mapping[str, Any] | None = None,
        old_offsets: bool = False,
        sink: OffsetSink | None = None,
        **fetch: Any,
    ) -> None:
        own = {"brokers": brokers, "security": security, "auto_commit_interval_s": auto_commit_interval_s}
        check_keywords({**own, "auto_offset_reset": auto_offset_reset, **fetch})
        joining.check()
        self.group = joining.group
        self._joining = joining
        self._chosen: tuple[Sequence[str], str | None] = joining.topics, joining.pattern
        """The user's subscription."""
        self._also: tuple[str, ...] = ()
        self._old_offsets = old_offsets
        self._read_committed = fetch.get("isolation_level") == "read_committed"
        self._auto_commit_interval_s = None if self.group is None else auto_commit_interval_s
        self.progress = OffsetTracker(asking_is_done=auto_commit_interval_s is not None)
        self.state = SubscriptionState(auto_offset_reset)
        check_listener(listener)
        self.state.rebalance_listener = listener
        # a 0.9 broker builds a JMX name from it, and fails every fetch if it contains a colon, as kiel's names do
        name = re.sub(r"[^A-Za-z0-9._-]", "-", joining.client_id)
        self.client = KafkaClient(brokers, client_id=name, security=security)
        self.brokers = brokers if isinstance(brokers, str) else ",".join(brokers)
        self.security = security
        self.fetcher = Fetcher(
            self.client,
            self.state,
            auto_offset_reset=auto_offset_reset,
            rack=joining.rack,
            lost=self._records_lost,
            gate=self.may_take,
            **fetch,
        )
        self.sink = sink
        self.sink_member = None if sink is None else SinkMember(self, sink)
        self._orders = OperatorOrders(self)
        self._order_source = joining.options.order_source(joining, brokers, security)
        self._ownership = Ownership(
            self.state,
            self.progress,
            self.committed,
            self.fetcher,
            self._commit_last,
            self.commits_settled,
            self.client.measures,
            auto_commit=commit_on_revoke and self.group is not None,
            began=self._began,
            sink=self.sink_member,
        )
        self._coordinator = Coordinator(self.client, self.group or "", self.client.retry_backoff_s)
        self.load = OwnLoad(self.state, self.client.measures)
        self._load = partial(lag, self.client, self.committed, auto_offset_reset)
        self._offsets = None
        if self.group is not None:
            self._offsets = StoredOffsets(self.client, self.group, joining.storage, coordinator=self._coordinator)
        self.membership = self._make_membership()
        self._idle = IdleOffsets(self._with_commit, self._commit_again, self._retention_s)
        self.losses: deque[RecordsLost] = deque(maxlen=LOSSES)
        """The latest losses, for the page and for users."""
        self._metadata_bytes = METADATA_BYTES
        self.processor: RecordProcessor | None = None
        """What calls the handler, for `Consumer.process` or the daemon. It tracks done records itself, so a request for
        more records marks nothing as done."""
        self.closing = False
        """Whether `close` was called. An offset that cannot be committed now will never be."""
        self.ever_chosen = False
        """Whether topics were subscribed, or partitions assigned, at least once."""
        self.started = self._warned = False
        self._nonexistent: set[TopicPartition] = set()
        self._note_choice()
        self._broken: BaseException | None = None
        self._under_way: dict[asyncio.Future[None], Partitions] = {}  # running commits, each with its partitions
        self._refreshing: asyncio.Task[None] | None = None
        self._exits = contextlib.AsyncExitStack()
        self._tasks = BackgroundTasks(self._broke)
        self._one_commit: asyncio.Lock

    @property
    def joining(self) -> MembershipConfig:
        """The settings of the membership, with the present subscription."""
        return self._joining

    def _make_membership(self) -> Membership:
        connections = Connections(
            self.client,
            self._ownership,
            self._coordinator,
            self._load,
            self._offsets,
            self.load.measure,
            self._orders.take,
            self._ownership.expect,
        )
        made = self._joining.make(connections)
        if self._offsets is not None:
            self._offsets.committer = made.committer
        return made

    def _began(self, partitions: Partitions) -> None:
        """Requests the committed offsets of newly assigned partitions. Called by the ownership."""
        for partition in partitions:
            self.state.set_fence(partition, self.membership.fence(partition))
        self._orders.apply()

    def join_again_if(self, admitted: Callable[[ZooKeeperClient], Awaitable[bool]]) -> None:
        """Like `Membership.join_again_if`."""
        self.membership.join_again_if(admitted)

    async def start(self) -> None:
        """Connects to Kafka (and ZooKeeper) and joins the group. Undoes everything if a step fails."""
        self._one_commit = asyncio.Lock()
        self.started = True
        joining, topics = self._joining, self._topics()
        self.client.measures.trace(self.group, joining.client_id)
        try:
            self._exits.push_async_callback(self.client.close)
            self.client.on_metadata(self._check_chosen)
            # before the first answer, so that it tells of them
            self.client.follow(topics)
            if joining.pattern is not None:
                self.client.follow_all()
            if self._order_source is not None:
                self._order_source.watch(self.client)
            await self._connect()
            for topic in topics:
                if self.client.partitions(topic) is None:
                    log.warning("%s: topic %r does not exist (yet); waiting for it", joining.client_id, topic)
            if self._offsets is not None:
                self._exits.push_async_callback(self._offsets.close)
            self._exits.push_async_callback(self._tasks.close)
            self._ownership.start(self._tasks)
            self._exits.push_async_callback(self.fetcher.close)
            await self.fetcher.start()
            if self._auto_commit_interval_s is not None:
                self._tasks.start(self._auto_commit(self._auto_commit_interval_s), "auto-commit")
            if self._offsets is not None:  # during the join: the first request for assigned partitions
                self._tasks.start(self._find_coordinator(self._offsets), "coordinator")
                # Kafka does not know the members of this group, so idle offsets can expire
                if self._offsets.committer is None:
                    self._tasks.start(self._idle.run(), "idle offsets")
            if self._order_source is not None:
                await self._follow_orders(self._order_source)
            await self.membership.join()
        except BaseException:
            await self._exits.aclose()
            raise

    async def _follow_orders(self, source: OrderSource) -> None:
        """Reads the orders before the join, so that a new owner obeys them from its first record on. Continues without
        them if the topic cannot be read."""
        began = asyncio.Event()
        self._tasks.start(source.follow(self.client, self._orders.take, began), "orders")
        if not await wait_for_event(began, ORDERS_WITHIN_S):
            log.warning("%s: joins before it has read its orders from topic %s", self.group, source.topic)

    async def _connect(self) -> None:
        """Connects to Kafka and to the service that coordinates the group, concurrently. Kafka's error has priority."""
        membership = asyncio.ensure_future(self.membership.connect())
        try:
            await self.client.connect(self._joining.connect_timeout_s)
            await membership
        except BaseException:
            membership.cancel()
            await asyncio.gather(membership, return_exceptions=True)
            await self.membership.leave()
            raise

    async def _find_coordinator(self, offsets: GroupOffsets) -> None:
        with contextlib.suppress(AllocatorError):  # the caller that needs it retries and reports the error
            await offsets.find()

    async def close(self, *, commit: bool = True, restart: bool = True) -> None:
        """Drains, commits done records (unless `commit` is False), leaves, and closes every connection.

        `restart` False: reserves nothing for another process of this instance id.
        """
        self.closing = True
        self.fetcher.wake()
        if not commit:
            self._ownership.stop_committing()
        try:
            if self._offsets is not None:
                await self._offsets.close()  # sends the commits that no caller waits for
                if commit and self._offsets.committer is None and self._refreshing is None and self._idle.not_ours():
                    # while the handlers finish and their records are committed; the release waits for it
                    self._refreshing = self._tasks.start(self._leave_fresh(), "idle offsets of the leaving member")
            if not restart:
                self.membership.leave_for_good()
            await self.membership.leave()
        finally:
            await self._exits.aclose()

    async def _leave_fresh(self) -> None:
        """Commits the offsets of idle partitions again before Kafka deletes them."""
        old = self._idle.not_ours()
        if self._auto_commit_interval_s is not None:
            old -= self.progress.uncommitted().keys()  # their release commits them
        if old:
            with contextlib.suppress(AllocatorError, asyncio.TimeoutError):
                await within(self._commit_again(old), FRESH_WITHIN_S)

    def _records_lost(self, loss: RecordsLost) -> None:
        self._ownership.records_lost(loss)
        self.losses.append(loss)

    def _broke(self, error: BaseException) -> None:
        """An internal task failed unexpectedly; the reader gets the error, so that it does not wait forever."""
        log.error("%s: the consumer is broken", self.group, exc_info=error)
        self._broken = error
        self.fetcher.wake()

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def may_deliver(self) -> bool:
        """Whether records may be delivered to the user at this instant."""
        return self._joining.chosen and not self._ownership.closed_gate and self.membership.may_act()

    @property
    def ended(self) -> BaseException | None:
        """The error that ended reading for good; None while the consumer works."""
        return self._broken or self.membership.ended or self.fetcher.broken

    async def until_may_act(self) -> None:
        """Returns once records may be handled and offsets committed; at once if they may already."""
        while not self.membership.may_act():
            await self.fetcher.news()  # `resumed` wakes the fetcher

    async def until_confirmed(self) -> None:
        """Like `until_may_act`, but gives up once the ZooKeeper session cannot be alive any more.

        Call it before the last commit of a partition: while the connection to ZooKeeper is lost, commits are refused.
        A member of a Kafka group need not wait: a coordinator that does not confirm it takes no commit either.
        """
        options, now = self._joining.options, asyncio.get_running_loop().time()
        if isinstance(options, EnsembleOptions) and not self.membership.may_act():
            left_s = (self._ownership.suspended_at or now) + options.session_timeout_s - now
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self.until_may_act(), max(0.0, left_s))

    def polled(self) -> None:
        """The user requests records."""
        self.membership.polled()

    async def news(self, timeout_s: float | None) -> None:
        """Waits until records may have arrived for a waiting user, at most `timeout_s` seconds."""
        limit_s = self._joining.max_poll_interval_s
        if limit_s is not None:
            # a waiting reader counts as polling
            timeout_s = limit_s / 3 if timeout_s is None else min(timeout_s, limit_s / 3)
        await self.fetcher.news(timeout_s)
        self.polled()

    def subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        """Replaces the subscription. Without topics and pattern, ends it, and ends an assignment by hand too.

        Raises ConfigError, or IllegalState after `assign`, and changes nothing.
        """
        self._subscribe(topics, pattern)
        self._chosen = topics, pattern

    def also_read(self, topics: Sequence[str]) -> None:
        """Subscribes to these topics in addition to the user's, and replaces earlier additional topics. Called by the
        processor.

        Without a committed offset they begin at their first record.
        """
        before, self._also = self._also, tuple(topics)
        self.state.begin_at_start = frozenset(topics)
        if before != self._also:
            self._subscribe(*self._chosen)

    def _subscribe(self, topics: Sequence[str], pattern: str | None) -> None:
        if topics or pattern is not None:
            topics, pattern = with_topics(topics, pattern, self._also)
        joining = dataclasses.replace(self._joining, topics=topics, pattern=pattern, partitions=())
        joining.check()
        if joining.chosen and self._joining.partitions:
            raise OutOfTurn(
                "partitions are assigned by hand, and topics can't be subscribed beside them; unsubscribe() first"
            )
        self._joining = joining
        if self.started:
            self._note_choice()
            if pattern is not None:
                self.client.follow_all()
            self.membership.subscribe(topics, pattern)
            self._stop_left_out()
        else:
            self._choose_anew()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Assigns these partitions and no others. If the consumer is started, they are assigned when this returns.

        Raises IllegalState when topics are subscribed or a group assigns, and ConfigError for a partition that its
        topic does not have; in both cases it changes nothing.
        """
        if not partitions:
            self.subscribe((), None)
            return
        if self._joining.membership != "fixed":
            raise OutOfTurn(
                f"the group assigns the partitions with membership={self._joining.membership!r}; to assign them by "
                'hand, make the consumer with membership="fixed"'
            )
        if self._joining.topics or self._joining.pattern:
            raise OutOfTurn("topics are subscribed, and partitions can't be assigned beside them; unsubscribe() first")
        joining = dataclasses.replace(self._joining, partitions=partitions)
        joining.check()
        if self.started:
            gained = self.membership.assign(partitions)
            self._joining = joining
            self._note_choice()
            self._stop_left_out()
            if gained:
                self._ownership.assign(gained)
        else:
            self._joining = joining
            self._choose_anew()

    def _stop_left_out(self) -> None:
        """Delivers nothing more of partitions that the new choice leaves out; they are revoked soon."""
        if self._joining.membership == "fixed":  # a group still owns them until the rebalance
            self._ownership.stop(self.state.assigned_partitions() - self.membership.held)

    def _check_chosen(self) -> None:
        """Fails partitions that their topic does not have. Its metadata may come only after the call of `assign`."""
        for partition in self._joining.partitions:
            error = does_not_exist(self.client, partition)
            if error is not None:
                self._nonexistent.add(partition)
                self.fetcher.fail(partition, error, lasting=True)
            elif partition in self._nonexistent:
                self._nonexistent.discard(partition)
                self.fetcher.healed(partition)

    def _choose_anew(self) -> None:
        """Replaces the membership, which has done no I/O before the start."""
        self.state.unsubscribe()
        self._note_choice()
        self.membership = self._make_membership()

    def _note_choice(self) -> None:
        """Passes a first subscription to the subscription state, before partitions of it are assigned."""
        joining = self._joining
        if joining.chosen:
            self.ever_chosen = True
            if not self.state.partitions_auto_assigned():
                self.state.subscribe(self._topics(), joining.pattern, self.state.rebalance_listener)

    def _topics(self) -> list[str]:
        """The topics named by the subscription or by assigned partitions."""
        return list(dict.fromkeys([*self._joining.topics, *(topic for topic, _ in self._joining.partitions)]))

    def subscription(self) -> frozenset[str]:
        """The subscribed topics; for a pattern, the matching topics whose metadata is known."""
        joining = self._joining
        if joining.pattern is None:
            return frozenset(joining.topics)
        if joining.membership == "zookeeper":
            matches: Callable[[str], Any] = topic_pattern(joining.pattern).matches
        else:
            matches = re.compile(joining.pattern).match
        return frozenset(filter(matches, self.client.topics()))

    def may_take(self) -> bool:
        """Whether the fetcher may deliver a batch now. Raises an error that the user must see first."""
        error = self._ownership.take_error() or self._broken or self.membership.ended
        if error is not None:
            raise error
        return self.may_deliver

    def deliver(self, batch: Batch, next_offset: int) -> None:
        """Notes that the user gets the records of `batch` up to `next_offset`."""
        partition = TopicPartition(batch.topic, batch.partition)
        # with the leader epoch of the record before it, so that a truncated log is distinguished from one that grew
        # (KIP-320)
        self.state.update_position(partition, next_offset, self.fetcher.leader_epoch(partition, next_offset))
        if self.processor is None:
            self.progress.hand_out(partition, next_offset)

    def must_not_process(self) -> None:
        """Raises RuntimeError while `process` runs: another call would take its partitions from its handler."""
        if self.processor is not None:
            raise RuntimeError("process() runs already; cancel that call first, or make a second Consumer")

    async def process_with(self, processor: RecordProcessor) -> None:
        """Lets `processor` track done records, and tells it of every change of partitions, until `process_no_more`.

        Waits for calls that outlasted a former processor: they keep their partitions, and two calls at once would break
        the order. Raises RuntimeError while another one runs.
        """
        self.must_not_process()
        if self._ownership.processor is not None:
            await self._ownership.processor.until_ended()
            self.must_not_process()
        self.processor = self._ownership.processor = processor
        self._orders.apply()

    def process_no_more(self) -> None:
        """Called by the processor when it ends. Calls of its handler that still run keep their partitions."""
        self.processor = None
        self._orders.apply()

    def sought(self, partition: TopicPartition, offset: int) -> bool:
        """Continues at `offset`, whatever position was reached before. Called for operators' orders.

        Returns False, and changes nothing, if the partition is about to leave this member.
        """
        if self.processor is not None and not self.processor.restart(partition, offset):
            return False
        self.state.seek(partition, offset)
        self.progress.rewind(partition, offset)
        self.fetcher.wake()
        return True

    async def commit_sought(self, partition: TopicPartition, offset: int) -> None:
        """Commits the offset of `sought`, or what has been done since. A sink has it already. Raises AllocatorError."""
        if self.sink is not None:
            return
        if self.processor is not None:
            await self.processor.commit_restart(partition, offset)
        else:
            await self.commit_progress({partition})

    def start_task(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Runs a coroutine until it ends or the consumer is closed."""
        self._tasks.start(work, name)

    # -- offsets -------------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> StoredOffsets:
        """Raises IllegalState if there is no group to commit for."""
        if self._offsets is None:
            raise IllegalState(
                "this consumer has no group, so nothing is committed and nothing can be; give it a `group`, or keep "
                "the offsets yourself and `seek`"
            )
        return self._offsets

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the committed offsets of the group; with `old_offsets`, also those of older clients in ZooKeeper.

        Returns nothing without a group.
        """
        if self._offsets is None or self.group is None:
            return {}
        wanted = set(partitions)
        # an open transaction may still commit an offset, so with read_committed wait for it (KIP-447)
        stable = self._read_committed and self.client.broker_version >= (2, 5)
        found = await self._offsets.fetch(wanted, require_stable=stable)
        rest = wanted - set(found)
        if rest and self._old_offsets and self._offsets.storage == "kafka":
            found = {**await fetch_old_offsets(self.client, self.group, rest), **found}
        return found

    async def commit(self, offsets: Offsets) -> None:
        """Commits exactly these offsets. Raises NotOwned or CommitFailed before sending anything, or the
        coordinator's error."""
        group = self.offsets
        if offsets:
            with self.committing(offsets):
                await group.commit(self._to_send(offsets))
            self._note_committed(offsets)

    def _note_committed(self, offsets: Offsets) -> None:
        self.progress.note_committed({p: o.offset for p, o in offsets.items()})
        self._idle.committed(offsets)

    async def _retention_s(self) -> float | None:
        return await self.offsets.retention_s()

    def _with_commit(self) -> Partitions:
        return frozenset(p for p in self.state.assigned_partitions() if self.progress.committed(p) is not None)

    async def _commit_again(self, partitions: Collection[TopicPartition]) -> None:
        """Commits idle positions before Kafka deletes them. Raises AllocatorError."""
        if self.offsets.storage != "zookeeper" and self.membership.may_act():  # offsets in ZooKeeper do not expire
            await commit_again(self.offsets, partitions, self._known, self.commit)

    def _known(self, partition: TopicPartition) -> int | None:
        """The committed offset, unless a newer commit is under way."""
        busy = any(partition in theirs for theirs in self._under_way.values())
        return None if busy or not self.state.is_assigned(partition) else self.progress.committed(partition)

    @contextlib.contextmanager
    def committing(self, partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Keeps these partitions from being released during the block."""
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[under_way] = frozenset(partitions)
        try:
            yield
        finally:
            del self._under_way[under_way]
            under_way.set_result(None)

    async def commits_settled(self, partitions: Partitions) -> None:
        """Returns once no commit of one of these partitions is under way."""
        if self._refreshing is not None:
            await asyncio.wait({self._refreshing})
        while True:
            waits = [each for each, theirs in self._under_way.items() if not theirs.isdisjoint(partitions)]
            if not waits:
                break
            await asyncio.wait(waits)
        if self._offsets is not None:
            await self._offsets.settled()

    async def commit_progress(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        in_hand: bool = False,
    ) -> None:
        """Commits the done offsets; with `in_hand`, also marks delivered records as done and commits them.

        One commit at a time: an earlier one that arrives after a later one would set the group back.
        """
        async with self._one_commit:
            offsets = self.progress.uncommitted(partitions, in_hand=in_hand)
            await self.commit({p: OffsetAndMetadata(o, "", -1) for p, o in offsets.items()})
            # compute the offsets only now: a partition that moves is released when it is done, after this commit
            self.progress.finish_up_to(offsets)

    async def _commit_last(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits the done offsets of partitions that leave this member."""
        if self.progress.uncommitted(partitions):
            await self.until_confirmed()
        await self.commit_progress(partitions)

    def commit_async(self, offsets: Offsets, callback: OnCommit | None = None) -> None:
        """Like `commit`, but returns at once. Commits keep the order of the calls. `close` waits for them."""
        group = self.offsets
        if offsets:
            task = group.commit_async(self._to_send(offsets), lambda _, error: self._decided(callback, offsets, error))
            self._under_way[task] = frozenset(offsets)
            task.add_done_callback(self._under_way.pop)

    def _decided(self, callback: OnCommit | None, offsets: Offsets, error: AllocatorError | None) -> None:
        if error is None:
            self._note_committed(offsets)
        if callback is not None:
            callback(offsets, error)
        elif error is not None:
            log.error("%s: %d offsets are not committed: %s", self.group, len(offsets), error)

    def _to_send(self, offsets: Offsets) -> Offsets:
        """Adds the known leader epoch, and the committing member's id where the user gives no metadata.

        Raises if a commit is not allowed now.
        """
        self.must_own(offsets)
        if not self.membership.may_act():
            error = CommitFailed(
                f"{self.group}: offsets of {len(offsets)} partitions are not committed: it is not confirmed that this "
                "member still owns them; they are committed once it is, or read again by the next owner"
            )
            error.retriable = True
            raise error
        stamp = f"generation {self.membership.generation} member {self.membership.member_id}"
        self.progress.note_member(self.membership.member_id)
        last_id, text = None, stamp  # commits mostly have one topic
        to_send = {}
        for partition, each in offsets.items():
            offset, metadata, epoch = each
            if epoch is None or epoch < 0:
                # the next owner detects by it that the log was truncated (KIP-320)
                epoch = self.fetcher.leader_epoch(partition, offset)
            if not metadata and isinstance(each, Committed):
                metadata = self._metadata(stamp, partition, each)
            elif not metadata:
                topic_id = self._topic_id(partition, None)
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
            self.client.measures.done_sets_cut += not whole
        return self.stamped(stamp, partition, topic_of_offset(offset))

    @property
    def done_characters(self) -> int:
        """The characters that a commit's metadata has for done records beyond its offset."""
        return self._metadata_bytes - IDS_CHARACTERS - STAMP_CHARACTERS

    async def learn_metadata_limit(self) -> None:
        """Asks the coordinator for the metadata limit of a commit. Until then the default limit applies."""
        if self._offsets is not None and self._offsets.storage != "zookeeper":
            await self._find_coordinator(self._offsets)
            self._metadata_bytes = await self._coordinator.metadata_bytes()

    def _warn_without_metadata(self) -> None:
        if self._warned or (self.offsets.storage != "zookeeper" and self.client.broker_version >= (0, 8, 2)):
            return
        self._warned = True
        log.warning(
            "%s: offsets in ZooKeeper have no metadata, so a commit cannot name the records that are done beyond its "
            "offset; after a restart or a move they are handled again. Offsets in Kafka (0.8.2 or newer) keep them",
            self.group,
        )

    def stamped(self, text: str, partition: TopicPartition, topic_id: Any = None) -> str:
        """Returns the metadata of a commit, including the topic's id, so that a later member detects another topic of
        the same name.

        `topic_id`: the topic that the offset belongs to, if known.
        """
        return stamped(text, self._topic_id(partition, topic_id))

    def _topic_id(self, partition: TopicPartition, known: Any) -> Any:
        return known or self.state.topic_id(partition) or self.client.topic_id(partition.topic)

    async def _auto_commit(self, interval_s: float) -> None:
        wait_s, backoff, failing = interval_s, Backoff(COMMIT_BACKOFF_S, interval_s), Reminder(log)
        while True:
            await asyncio.sleep(wait_s)
            wait_s = interval_s
            try:
                await self.commit_progress()
                backoff.reset()
                failing.over()
            except AllocatorError as error:
                # nothing is lost: the next turn, the revocation or the close commits a later offset
                failing.warn("%s: auto-commit put off: %s", self.group, error)
                if error.retriable:
                    await self.until_may_act()
                    wait_s = backoff.next()

    # -- ownership -----------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> Partitions:
        """What the membership holds and `must_own` accepts: a new partition is held before the consumer knows of it."""
        return self.membership.held & self.state.assigned_partitions()

    def must_own(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises NotOwned with the partitions that are not owned."""
        foreign = [p for p in partitions if not self.state.is_assigned(p)]
        if foreign:
            names = ", ".join(f"{p.topic}:{p.partition}" for p in foreign[:5])
            more = f" and {len(foreign) - 5} more" if len(foreign) > 5 else ""
            raise NotOwned(f"{self.group}: this member does not own {names}{more}")


class SinkMember:
    """One member's access to the offsets in a sink. Implements `SinkOffsets` for `Ownership`."""

    def __init__(self, core: ConsumerCore, sink: OffsetSink) -> None:
        if isinstance(sink, type) or not isinstance(sink, OffsetSink):
            raise ConfigError(f"sink takes an SqliteSink or an SqlSink, not {sink!r}")
        if core.group is None:
            raise ConfigError("a sink keeps the offsets of a group; give the consumer a `group`")
        self._core = core
        self._sink = sink
        self._group = core.group
        # the number alone does not distinguish owners if the membership's numbers can fall back or repeat
        self._owner = uuid.uuid4().hex

    async def begin(self, partitions: Partitions) -> Mapping[TopicPartition, OffsetAndMetadata]:
        membership, topic_id = self._core.membership, self._core.client.topic_id
        claims = {p: SinkClaim(membership.fence(p), topic_id(p.topic)) for p in partitions}

        async def confirm() -> bool:
            confirmed = await membership.confirm()
            return confirmed and all(p in membership.held and membership.fence(p) == claims[p].fence for p in claims)

        found = await self._sink.begin(self._group, self._owner, claims, confirm)
        return {
            p: OffsetAndMetadata(at.offset, stamped("", claims[p].topic_id), at.leader_epoch) for p, at in found.items()
        }

    async def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Waits for the records in work first: what is written later would set the sink forward again.

        Nothing of the partition may be delivered meanwhile.
        """
        processor = self._core.processor
        if processor is not None:
            processor.restart(partition, offset)
            await processor.until_idle(partition)
        await self._core.progress.finished(frozenset({partition}))
        await self._sink.rewind(partition, offset, self._core.client.topic_id(partition.topic))
