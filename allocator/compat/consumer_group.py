"""Membership of a group in generations, for a program that reads and commits by itself."""

from __future__ import annotations

import asyncio
import logging

from allocator.compat.generation import Generation, PartitionStart
from allocator.compat.generation_source import (
    GenerationSource,
    GenerationTracker,
    KafkaGenerations,
    PendingGeneration,
    ZooKeeperGenerations,
)
from allocator.compat.group_config import ConsumerGroupConfig, client_of
from allocator.compat.kept_offsets import KeptOffsets
from allocator.core.aio import start_task, wait_for_event, warn_unclosed
from allocator.core.client import KafkaClient
from allocator.errors import AllocatorError, GroupClosed
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)


class ConsumerGroup:
    """Assigns partitions in generations to a program that reads and commits by itself.

    Guarantees: there are never two active generations. `next` returns a generation only after all functions of the last
    generation have ended, and the member joins again only after that. `next` raises every error, each to one caller.

        async with ConsumerGroup(config) as group:
            while True:
                generation = await group.next()
                for topic, starts in generation.assignments.items():
                    for partition, offset in starts:
                        generation.start(read(generation, topic, partition, offset))

    The constructor does no I/O; the first `next`, or `async with`, starts to connect. After a failure, the member
    leaves and `next` raises the reason. The member joins again `join_backoff_s` seconds after the failure, if a caller
    of `next` has received the error by then, and otherwise as soon as a caller has. A rebalance or a lost session is
    not a failure: the generation ends, and the next one follows.

    A committed offset is ignored if its topic was deleted and created again after the commit (brokers from 2.8 on).
    Then the partition starts at `first_offset`, and a warning is logged.
    """

    def __init__(self, config: ConsumerGroupConfig) -> None:
        self.config = config
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._tracker: GenerationTracker | None = None
        self._offer: Generation | BaseException | None = None
        # created with the task: before Python 3.10 an event belongs to the loop that is current then
        self._offered: asyncio.Event
        self._taken: asyncio.Event
        self._closing: asyncio.Event

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._task is not None else "not begun"
        return f"<ConsumerGroup {self.config.group!r} over {self.config.membership}, {state}>"

    def __del__(self) -> None:
        if self._task is not None and not self._closed:
            warn_unclosed(self, f"of group {self.config.group!r}")

    async def __aenter__(self) -> ConsumerGroup:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def next(self) -> Generation:
        """Returns the next generation, after the last one has ended.

        Raises any error that prevents a generation, and may be called again after the error. Raises `GroupClosed` after
        `close`, also in calls that are waiting. A cancelled call loses no generation and no error.
        """
        self._begin()
        while True:
            if self._closed:
                raise GroupClosed(f"group {self.config.group!r}: this ConsumerGroup is closed; create a new one")
            offer, self._offer = self._offer, None
            if offer is not None:
                self._taken.set()
                if isinstance(offer, Generation):
                    return offer
                raise offer
            self._offered.clear()
            await self._offered.wait()

    async def close(self) -> None:
        """Ends the current generation, waits for its functions, leaves the group and closes all connections.

        May be called twice, and while another call waits. A call from a function of the generation, or from a task that
        such a function started, does not return: that function is cancelled like all others. A cancelled call still
        waits for the functions, but not for the coordinator.
        """
        self._closed = True
        task = self._task
        if task is None:
            return
        self._wake_all()
        tracker = self._tracker
        generation = None if tracker is None else tracker.current
        inside = generation is not None and generation.runs_here()
        if tracker is not None:
            tracker.stop(GroupClosed(f"group {self.config.group!r} is closed"))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            if not inside:
                task.cancel()
                await asyncio.wait({task})
            raise

    # -- the loop -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._task is None and not self._closed:
            self._offered, self._taken, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
            self._task = start_task(self._run(), f"group {self.config.group}")

    async def _run(self) -> None:
        """Runs one membership after the other until the group is closed. A failure ends a membership."""
        now = asyncio.get_running_loop().time
        try:
            while not self._closed:
                try:
                    await self._take_part()
                except Exception as error:  # noqa: BLE001  `next` raises every error, also of the user's functions
                    if self._closed:
                        if not isinstance(error, GroupClosed):
                            log.warning("%s: while it was closed: %r", self.config.group, error)
                        return
                    resume = now() + self.config.join_backoff_s  # counted from the failure, not from `next`
                    log.warning("%s: %r; joins again in %g s", self.config.group, error, self.config.join_backoff_s)
                    await self._report(error)
                    await wait_for_event(self._closing, max(0.0, resume - now()))
        finally:
            self._closed = True
            self._wake_all()

    async def _take_part(self) -> None:
        """Connects, joins, and offers generations. Raises the error that ended the membership, after the member has
        left."""
        self._tracker = tracker = GenerationTracker()
        client = client_of(self.config)
        try:
            client.follow(self.config.topics)
            await tracker.unless_stopped(client.connect(self.config.connect_timeout_s))
            client.refuse_hidden(self.config.topics, "read")
            kind = KafkaGenerations if self.config.membership == "kafka" else ZooKeeperGenerations
            member: GenerationSource = kind(self.config, client, tracker)
            joining = start_task(member.join(), "join")
            joining.add_done_callback(lambda task: _note(task, tracker))
            try:
                await self._generations(client, member, tracker)
            finally:
                await self._leave(member, joining)
        finally:
            await client.close()

    async def _generations(self, client: KafkaClient, member: GenerationSource, tracker: GenerationTracker) -> None:
        while True:
            pending = await tracker.settled()
            with client.measures.span("rebalance", step="assigned", partitions=len(pending.partitions)):
                generation = await self._make(pending, client, member, tracker)
            if generation is None:
                continue
            try:
                self._offer = generation
                self._offered.set()
                await generation.wait()
            finally:
                generation.end("the group gives up")  # still active only if this task was cancelled
                if self._offer is generation:
                    self._offer = None  # no caller has received this generation
                with client.measures.span("rebalance", step="revoked", partitions=len(pending.partitions)):
                    await generation.over()
                tracker.current = None
            if generation.failure is not None:
                raise generation.failure
            if generation.returned:
                member.rejoin(str(generation.ended))

    async def _make(
        self, pending: PendingGeneration, client: KafkaClient, member: GenerationSource, tracker: GenerationTracker
    ) -> Generation | None:
        """Creates a generation. Returns None if it ended before it began."""
        offsets = KeptOffsets(
            client,
            self.config.group,
            committer=pending.committer,
            timeout_s=self.config.timeout_s,
            retention_s=self.config.retention_s,
        )
        try:
            committed = await tracker.unless_stopped(offsets.fetch(pending.partitions))
        except AllocatorError:
            if tracker.may_begin(pending):
                raise
            return None
        if not tracker.may_begin(pending):
            return None

        def still_owned() -> bool:
            here = pending.committer is None or pending.committer.identity is not None
            return here and member.member_id == pending.member_id and member.may_act()

        generation = Generation(
            pending.id,
            self.config.group,
            pending.member_id,
            self._starts(pending.partitions, committed, offsets.of_former_topics(committed)),
            offsets,
            still_owned,
            client.topic_id,
        )
        tracker.current = generation
        log.info(
            "%s: %s gets generation %d: %d partitions",
            self.config.group,
            pending.member_id,
            pending.id,
            len(pending.partitions),
        )
        if offsets.may_expire:
            generation.start(offsets.keep(committed, still_owned), "idle offsets")
        if self.config.watch_partition_changes:
            for topic in self.config.topics:
                generation.start(self._watch(topic, client, member), f"watch of {topic}")
        return generation

    def _starts(
        self,
        partitions: frozenset[TopicPartition],
        committed: dict[TopicPartition, OffsetAndMetadata],
        former: frozenset[TopicPartition],
    ) -> dict[str, tuple[PartitionStart, ...]]:
        starts: dict[str, list[PartitionStart]] = {topic: [] for topic in self.config.topics}
        for partition in sorted(partitions):
            found = committed.get(partition)
            offset = self.config.first_offset if found is None or partition in former else found.offset
            if found is not None and partition in former:
                log.warning(
                    "%s: %s:%d is committed at offset %d of a topic that was deleted and created again; its "
                    "generation begins at %d",
                    self.config.group,
                    *partition,
                    found.offset,
                    offset,
                )
            starts[partition.topic].append(PartitionStart(partition.partition, offset))
        return {topic: tuple(each) for topic, each in starts.items()}

    async def _watch(self, topic: str, client: KafkaClient, member: GenerationSource) -> None:
        """Makes the member join again when the number of partitions of `topic` changes."""
        before: int | None = None
        while True:
            try:
                await client.refresh([topic])
                client.refuse_hidden([topic])
            except AllocatorError as error:
                # keeps the membership, because heartbeats use other connections
                log.warning("%s: the partitions of %s cannot be read: %s", self.config.group, topic, error)
            else:
                count = len(client.partitions(topic) or ())  # 0 for a topic that does not exist yet
                if before is not None and count != before:
                    log.info("%s: %s has %d partitions instead of %d", self.config.group, topic, count, before)
                    member.rejoin(f"{topic} has {count} partitions instead of {before}")
                before = count
            await asyncio.sleep(self.config.partition_watch_interval_s)

    async def _leave(self, member: GenerationSource, joining: asyncio.Task[None]) -> None:
        """Leaves, and then cancels a join in progress. In the reverse order, the coordinator would keep the member."""
        (error,) = await asyncio.gather(member.leave(), return_exceptions=True)
        if isinstance(error, Exception):
            log.warning("%s: leaving failed: %r", self.config.group, error)
        joining.cancel()
        await asyncio.wait({joining})

    # -- handing over ---------------------------------------------------------------------------------------------

    async def _report(self, error: BaseException) -> None:
        """Offers the error to callers of `next`. Returns when one has received it, or the group is closed."""
        self._taken.clear()
        self._offer = error
        self._offered.set()
        await self._taken.wait()

    def _wake_all(self) -> None:
        for event in (self._offered, self._taken, self._closing):
            event.set()


def _note(joining: asyncio.Task[None], tracker: GenerationTracker) -> None:
    error = None if joining.cancelled() else joining.exception()
    if error is not None:
        tracker.stop(error)
