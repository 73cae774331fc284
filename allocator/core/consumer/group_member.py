"""Starts, connects and closes the parts of a consumer: client, membership, fetcher and offsets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from allocator.core.aio.tasks import BackgroundTasks, start_task, wait_for_event, within
from allocator.core.client.client import KafkaClient
from allocator.core.client.coordinator import Coordinator
from allocator.core.client.log_offsets import lag, list_offsets
from allocator.core.consumer.commits import RELEASE_PATIENCE_S, Commits
from allocator.core.consumer.membership_config import CommandSource, MemberParts, MembershipConfig
from allocator.core.consumer.own_load import OwnLoad
from allocator.core.consumer.ownership import Ownership
from allocator.core.consumer.record_processor import RecordProcessor
from allocator.core.consumer.sink import MemberSink
from allocator.core.consumer.topic_choice import TopicChoice
from allocator.core.errors import AllocatorError, Closed, CommitFailed, IllegalState, NotOwned
from allocator.core.fetch.doubts import Doubts
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.offsets.storage import StoredOffsets
from allocator.core.settings.table import check_keywords
from allocator.core.subscription.commit_text import stamped
from allocator.core.subscription.loss import RecordsLost
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.progress import Hold
from allocator.core.subscription.state import SubscriptionState
from allocator.core.text.quoting import partition_names
from allocator.core.types import (
    EARLIEST,
    LATEST,
    NO_PARTITIONS,
    Listener,
    OffsetAndMetadata,
    OffsetReset,
    Partitions,
    TopicPartition,
)

log = logging.getLogger(__name__)

LOSSES = 100  # number of losses that are kept
# time limit for reading the operator commands at a start. Higher: an unreadable topic delays the start longer; lower:
# the first records may be handled without the commands
COMMANDS_WITHIN_S = 10.0


class GroupMember:
    """Client, membership, fetcher and offsets of one member of one group.

    Guarantee: `fetcher` delivers a batch, and `commits` sends offsets, only while this member owns the partition and
    its lease is valid.
    """

    def __init__(
        self,
        joining: MembershipConfig,
        *,
        brokers: str | Sequence[str],
        listener: Listener | None,
        auto_commit_interval_s: float | None,
        auto_offset_reset: OffsetReset | int,
        security: Mapping[str, Any] | None = None,
        old_offsets: bool = False,
        sink: Callable[[GroupMember], MemberSink] | None = None,
        **fetch: Any,
    ) -> None:
        own = {"brokers": brokers, "security": security, "auto_commit_interval_s": auto_commit_interval_s}
        check_keywords({**own, "auto_offset_reset": auto_offset_reset, **fetch})
        joining.check()
        self.group = joining.group
        self.state = SubscriptionState(auto_offset_reset)
        # a 0.9 broker builds a JMX name from the client id, and fails every fetch if it has a colon, as kiel's names
        # have
        name = re.sub(r"[^A-Za-z0-9._-]", "-", joining.client_id)
        self.client = KafkaClient(brokers, client_id=name, security=security)
        self.fetcher = Fetcher(
            self.client, self.state, rack=joining.rack, lost=self._records_lost, gate=self.may_take, **fetch
        )
        coordinator = Coordinator(self.client, self.group or "", self.client.retry_backoff_s)
        offsets = None
        if self.group is not None:
            offsets = StoredOffsets(self.client, self.group, joining.storage, coordinator=coordinator)
        self.commits = Commits(
            offsets,
            self.client,
            self.state,
            self.fetcher,
            self.must_own,
            interval_s=auto_commit_interval_s,
            old_offsets=old_offsets,
            stable=fetch.get("isolation_level") == "read_committed",
        )
        self.sink = None if sink is None else sink(self)
        self._doubts = Doubts(self.client, self.state, self.fetcher, self.commits.committed)
        if offsets is not None:
            offsets.outdated = partial(self._doubts.outdated, offsets.group)
        self._executor = joining.options.executor(self)
        self.state.on_read = self._executor.apply
        self._ownership = Ownership(
            self.state,
            self._doubts.committed,
            self.fetcher,
            self.commit_last,
            self.commits.settled,
            self.client.measures,
            began=self._executor.apply,
            sink=self.sink,
            listener=listener,
        )
        self.load = OwnLoad(self.state, self.client.measures)
        self.membership = joining.options.make(
            joining,
            MemberParts(
                self.client,
                self._ownership,
                coordinator,
                partial(lag, self.client, self.commits.committed, auto_offset_reset),
                offsets,
                self.load.measure,
                self._executor.take,
            ),
        )
        self.commits.metadata.membership = self._doubts.membership = self.membership
        self.choice = TopicChoice(joining, self.client, self.state, self.fetcher, self.membership, self._ownership)
        self.losses: deque[RecordsLost] = deque(maxlen=LOSSES)
        """The latest losses, for the page and for users."""
        self.processor: RecordProcessor | None = None
        """The running processor of `Consumer.process` or the daemon, which holds the delivered records."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of `start`."""
        self.closing = False
        """Whether `close` was called. If so, an offset that cannot be committed now will never be committed."""
        self._exits = contextlib.AsyncExitStack()
        self._tasks = BackgroundTasks(self._broke)

    async def start(self) -> None:
        """Connects to Kafka (and ZooKeeper) and joins the group. If a step fails, closes everything."""
        self.loop = asyncio.get_running_loop()
        config = self.choice.config
        self.client.measures.trace(self.group, config.client_id)
        command_source = config.options.command_source(config, self.client.bootstrap, self.client.security)
        try:
            self._exits.push_async_callback(self.client.close)
            self.client.on_metadata(self._doubts.metadata_came)
            self.choice.follow()  # so that the first metadata request names the topics
            if command_source is not None:
                command_source.watch(self.client)
            await self._connect(config.connect_timeout_s)
            # a leader that cannot see a topic would assign its partitions to no member
            self.client.refuse_hidden(self.choice.topics(), "read")
            for topic in self.choice.topics():
                if self.client.partitions(topic) is None:
                    log.warning("%s: topic %r does not exist (yet); waiting for it", config.client_id, topic)
            self._exits.push_async_callback(self.commits.close)
            self._exits.push_async_callback(self._tasks.close)
            self._ownership.start(self._tasks)
            self._exits.push_async_callback(self.fetcher.close)
            await self.fetcher.start()
            self.commits.start(self._tasks)
            self._tasks.start(self._doubts.run(), "doubts")
            if command_source is not None:
                await self._follow_commands(command_source)
            self._exits.push_async_callback(self.membership.abandon)  # if `close` is cancelled before it leaves
            await self.membership.join()
        except BaseException:
            await self._exits.aclose()
            raise

    async def _follow_commands(self, source: CommandSource) -> None:
        """Reads the operator commands before the join, so that they hold for the first record of a new owner.

        Continues without them if the topic cannot be read.
        """
        began = asyncio.Event()
        self._tasks.start(source.follow(self.client, self._executor.take, began), "commands")
        if not await wait_for_event(began, COMMANDS_WITHIN_S):
            log.warning("%s: joining without the operator commands; topic %s is not read yet", self.group, source.topic)

    async def _connect(self, timeout_s: float) -> None:
        """Connects to Kafka and to the group's coordination service, concurrently. Kafka's error has priority."""
        membership = start_task(self.membership.connect())
        try:
            await self.client.connect(timeout_s)
            await membership
        except BaseException:
            membership.cancel()
            await asyncio.gather(membership, return_exceptions=True)
            await self.membership.leave()
            raise

    async def close(self, *, commit: bool = True, restart: bool = True) -> None:
        """Drains, commits done records (unless `commit` is False), leaves, and closes every connection.

        With `restart` False, the group reserves nothing for the next process of this instance id. After a call that was
        cancelled, another one closes what is left.
        """
        again, self.closing = self.closing, True
        self.fetcher.wake()
        if not commit:
            self.commits.every(None)
        try:
            await self.commits.close()  # waits for the commits of `commit_async`
            if commit and not again:  # not awaited: if the caller gives up meanwhile, the member must still leave
                self.commits.leave_fresh(self._tasks)
            if not restart:
                self.membership.leave_for_good()
            await self.membership.leave()
        finally:
            await self._exits.aclose()

    def _records_lost(self, loss: RecordsLost) -> None:
        self._ownership.records_lost(loss)
        self.losses.append(loss)
        self._executor.apply()  # commands about offsets of a former topic end

    def _broke(self, error: BaseException) -> None:
        """Passes an unexpected error of an internal task to the reader, because the reader would wait forever
        otherwise."""
        if not isinstance(error, Closed):
            log.error("%s: the consumer is broken", self.group, exc_info=error)
        self.fetcher.broke(error)

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        return self.loop is not None

    def may_act(self) -> bool:
        """Returns whether the user may handle the delivered records and commit at this instant.

        In a call of a handler, these are the records of the call.
        """
        return self.membership.may_act() and not self.outlived

    @property
    def outlived(self) -> Partitions:
        """The partitions that were lost while the user works on their records. In a call of a handler, these are the
        records of the call."""
        hold = self.hold_of_call
        if hold is None:
            return self.state.reader.outlived
        return frozenset({hold.tenure.partition}) if hold.has_outlived else NO_PARTITIONS

    @property
    def hold_of_call(self) -> Hold | None:
        """The hold of the handler's call in which the code runs; None outside of this consumer's calls."""
        hold = Hold.of_this_context()
        tenure = None if hold is None else hold.tenure
        # the handler of another consumer may use this one
        return hold if isinstance(tenure, TopicPartitionState) and tenure.record is self.state else None

    def must_be_here(self) -> None:
        """Raises IllegalState in another event loop than that of `start`, where nothing would wake a waiting call."""
        if self.loop is not None and asyncio.get_running_loop() is not self.loop:
            raise IllegalState(
                "this consumer was started in another event loop; use it there, with "
                "asyncio.run_coroutine_threadsafe from other threads"
            )

    @property
    def may_deliver(self) -> bool:
        """Whether records may be delivered to the user at this instant."""
        return self.choice.config.chosen and not self._ownership.closed_gate and self.membership.may_act()

    @property
    def ended(self) -> BaseException | None:
        """The error that ended reading; None while the consumer works."""
        return self.fetcher.broken or self.membership.ended

    async def until_confirmed(self) -> None:
        """Like `Commits.until_may_act`, but gives up once the ZooKeeper session cannot be alive any more.

        Call it before the last commit of a partition, because commits are refused while the connection to ZooKeeper is
        lost. Does not wait in a Kafka group, whose coordinator confirms the member and takes its commits.
        """
        limit_s, now = self.choice.config.options.confirms_within_s, asyncio.get_running_loop().time()
        if limit_s is not None and not self.membership.may_act():
            left_s = (self._ownership.suspended_at or now) + limit_s - now
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self.commits.until_may_act(), max(0.0, left_s))

    async def news(self, timeout_s: float | None) -> None:
        """Waits until new records may have arrived, at most `timeout_s` seconds."""
        limit_s = self.choice.config.max_poll_interval_s
        if limit_s is not None:
            # wait in short intervals: each one tells the membership that the reader still polls
            timeout_s = limit_s / 3 if timeout_s is None else min(timeout_s, limit_s / 3)
        await self.fetcher.news(timeout_s)
        self.membership.polled()

    def may_take(self) -> bool:
        """Returns whether the fetcher may deliver a batch now. Raises an error that the user has to receive first."""
        error = self._ownership.take_error() or self.ended
        if error is not None:
            raise error
        return self.may_deliver

    def must_not_process(self) -> None:
        """Raises RuntimeError while `process` runs."""
        if self.processor is not None:
            raise RuntimeError("process() runs already; cancel that call first, or create a second Consumer")

    def process_with(self, processor: RecordProcessor, commit_interval_s: float) -> None:
        """Makes `processor` hold the records, and commits what is done at this interval, until `process_no_more`.

        Raises RuntimeError while another processor runs.
        """
        self.must_not_process()
        self.processor, self.state.reader.reads = processor, False
        self.commits.every(commit_interval_s)
        self._executor.apply()

    def process_no_more(self) -> None:
        """Ends `process_with`: reading continues at the first record of each partition that is not done. Handler calls
        that still run keep their partitions."""
        self.processor = None
        if not self.closing:
            self.commits.every(self.commits.configured_s)
        for tenure in self.state.assignment.values():
            tenure.hand_back()
        self._executor.apply()
        self.fetcher.wake()

    def seek(self, partition: TopicPartition, position: OffsetAndMetadata | int) -> None:
        """Sets the position, whatever was delivered or done before."""
        self.state.seek(partition, position)
        if self.sink is not None:
            self.sink.sought(partition)
        self.fetcher.wake()

    def sought(self, partition: TopicPartition, offset: int, topic_id: Any = None) -> bool:
        """Like `seek`, for an operator command. A topic with another id than `topic_id` is read from a reset instead.

        Returns False, and changes nothing, if the partition drains or is not owned, because its next owner seeks.
        """
        if partition not in self.state.held:
            return False
        self.state.seek(partition, OffsetAndMetadata(offset, stamped("", topic_id), -1))
        self.fetcher.wake()
        return True

    async def log_offset(self, partition: TopicPartition, at: int | str) -> int:
        """Returns the offset at "earliest", "latest", or of the first record at or after a time in milliseconds; the
        end if all records are older. Raises AllocatorError."""
        asked = {"earliest": EARLIEST, "latest": LATEST}.get(at, at) if isinstance(at, str) else at
        there = (await list_offsets(self.client, {partition: int(asked)}, or_end=True))[partition]
        assert there is not None
        return int(there.offset)

    async def commit_sought(self, partition: TopicPartition) -> None:
        """Commits the offset of `sought`, or a later offset that is done since. With a sink, commits nothing, because
        the sink has the offset. Raises AllocatorError."""
        if self.sink is None:
            await self.commits.commit_done({partition}, or_raise=True)
            tenure = self.state.assignment.get(partition)
            if tenure is not None and tenure.is_sought:  # such as at a deleted offset, from which a reset goes on
                name = partition_names([partition])
                raise CommitFailed(f"group {self.group!r}: not committed: {name} (its position is not known yet)")

    def holds_changed(self) -> None:
        """Called when the processor takes no more records of a partition, or takes some again."""
        self.state.version += 1
        self.fetcher.wake()

    def start_task(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Runs a coroutine until it ends or the consumer is closed."""
        self._tasks.start(work, name)

    async def commit_last(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits the done offsets of partitions that drain, if this consumer commits by itself."""
        if not self.commits.are_automatic:
            return
        wanted = frozenset(partitions)
        if await self.commits.has_uncommitted(wanted):
            await self.until_confirmed()
            await self.commits.commit_done(wanted, patience_s=RELEASE_PATIENCE_S)

    async def report(self, error: AllocatorError) -> None:
        """Passes an error to the user. Returns when the user has received it."""
        await self._ownership.report(error)

    async def until_free(self, holds: Iterable[Hold]) -> None:
        """Waits until nobody works on the records of these holds."""
        holds = list(holds)
        await self._ownership.until(lambda: not any(hold.busy for hold in holds))

    # -- ownership -----------------------------------------------------------------------------------------------

    def must_own(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises NotOwned that names the partitions which this member does not own."""
        assignment = self.state.assignment
        foreign = [p for p in partitions if p not in assignment]
        if foreign:
            raise NotOwned(f"{self.group}: this member does not own {partition_names(foreign)}")
