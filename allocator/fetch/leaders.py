"""Which partition is asked of which broker, when, and for how many bytes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from allocator.errors import AllocatorError, BrokerError, Closed
from allocator.fetch.answers import Answers
from allocator.fetch.budget import Budget
from allocator.fetch.feed import Chunk, Feed
from allocator.fetch.lookups import BACKOFF_MAX_S, Lookups
from allocator.fetch.resets import Resets
from allocator.subscription import SubscriptionState
from allocator.types import TopicPartition
from allocator.wire.fetch_request import BOUNDED, FetchRequest, compose, parts_of

if TYPE_CHECKING:
    from allocator.wire.kafka import KafkaClient

__all__ = ["Leaders", "Sink"]

log = logging.getLogger(__name__)

# While a fetch waits at a broker for new records, partitions that come in between (assigned, resumed, drained) are
# asked for on a second connection. Longer: fewer requests; shorter: the next newcomer waits less.
URGENT_WAIT_S: Final = 0.05
RESET_TIMEOUT_S: Final = 10.0


class Sink(Protocol):
    """Who takes what comes."""

    def arrived(self, feed: Feed) -> None: ...

    def tell(self, error: AllocatorError) -> None: ...

    def broke(self, error: BaseException) -> None: ...


class _Leader:
    """One broker: the fetchable partitions it leads, the one to ask for first at the front, and what is under way."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.feeds: dict[TopicPartition, Feed] = {}
        self.main: asyncio.Task[None] | None = None
        self.urgent: asyncio.Task[None] | None = None
        # until when the broker may hold the main request back
        self.main_until = 0.0

    def to_the_end(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            feed = self.feeds.pop(tp, None)
            if feed is not None:
                self.feeds[tp] = feed


class Leaders:
    """Keeps a fetch under way at each leader as long as there is something to ask and room for the answer.

    Guarantee: a partition is in one request at most, and the `budget` is kept. One task decides (`_plan`, which waits
    for nothing); `close` ends it and the tasks of the requests, and waits for them all.
    """

    def __init__(
        self,
        client: KafkaClient,
        state: SubscriptionState,
        sink: Sink,
        *,
        max_wait_s: float,
        min_bytes: int,
        budget: Budget,
        isolation_level: str,
        check_crcs: bool,
        retry_backoff_s: float,
    ) -> None:
        self._client = client
        self._state = state
        self._sink = sink
        self._max_wait_s = max_wait_s
        self._min_bytes = min_bytes
        self.budget = budget
        self._committed_only = isolation_level == "read_committed"
        self._answers = Answers(
            self,
            state,
            sink,
            check_crcs=check_crcs,
            max_bytes=budget.max_bytes,
            backoff=(retry_backoff_s, BACKOFF_MAX_S),
        )
        self._resets = Resets(
            client,
            state,
            isolation_level=isolation_level,
            backoff_s=retry_backoff_s,
            timeout_s=RESET_TIMEOUT_S,
            clock=time.monotonic,
            tell=sink.tell,
        )
        self._lookups = Lookups(client, retry_backoff_s, self.metadata_changed)
        self._feeds: dict[TopicPartition, Feed] = {}
        self._leaders: dict[int, _Leader] = {}
        self._leader_of: dict[TopicPartition, int] = {}
        # partition -> the epoch under which nothing of it is wanted any more
        self._discarded: dict[TopicPartition, int] = {}
        self._seen_version = -1
        # something was not asked for want of room
        self._pressed = False
        self._reset_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._event: asyncio.Event | None = None
        self._forget_listener: Any = None

    def start(self) -> None:
        if self._event is None:
            self._event = asyncio.Event()
            self._forget_listener = self._client.on_metadata(self.metadata_changed)
            self._spawn(self._run())

    async def close(self) -> None:
        """End all tasks and wait for them."""
        if self._forget_listener is not None:
            self._forget_listener()
            self._forget_listener = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._feeds.clear()
        self._leaders.clear()
        self.budget.held = self.budget.reserved = 0

    def halt(self, feed: Feed) -> None:
        """Fetch no more of `feed`, and forget what is queued."""
        self._drop(feed)
        feed.halted = True

    def wake(self) -> None:
        """Decide anew soon."""
        if self._event is not None:
            self._event.set()

    def metadata_changed(self) -> None:
        """Caller: the client. Leaders may have moved."""
        self._seen_version = -1
        self.wake()

    def is_current(self, feed: Feed) -> bool:
        """Whether nothing made `feed` void."""
        return self._feeds.get(feed.tp) is feed and self._state.epoch(feed.tp) == feed.epoch

    def push(self, feed: Feed, chunk: Chunk) -> None:
        """An answer for `feed` has come."""
        feed.push(chunk)
        self.budget.held += chunk.size

    def pop(self, feed: Feed) -> None:
        """The first thing of `feed` is handed out."""
        before = feed.held
        feed.pop()
        self.budget.held -= before - feed.held
        if self._pressed:
            self.wake()

    def discard(self, tp: TopicPartition) -> None:
        """Forget what is held of it; nothing more of it under this epoch."""
        epoch = self._state.epoch(tp)
        if epoch is not None:
            self._discarded[tp] = epoch
        feed = self._feeds.pop(tp, None)
        if feed is not None:
            self._drop(feed)
        self._seen_version = -1
        self.wake()

    def want_metadata(self, topic: str) -> None:
        """The leaders of `topic` may be others now."""
        self._lookups.doubted.add(topic)
        self.wake()

    # -- deciding

    async def _run(self) -> None:
        assert self._event is not None
        loop = asyncio.get_running_loop()
        while True:
            self._event.clear()
            again_at = self._plan()
            timer = None
            if again_at is not None:
                timer = loop.call_later(max(0.001, again_at - time.monotonic()), self._event.set)
            try:
                await self._event.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _plan(self) -> float | None:
        """Send what can be sent. Returns when to look again even if nothing happens; None: no need."""
        now = time.monotonic()
        times: list[float] = []
        if self._state.version != self._seen_version:
            self._sync()
        if self._reset_at is not None and now >= self._reset_at:
            due = self._resets.due()
            if due:
                self._spawn(self._reset(due))
            self._reset_at = self._state.next_offset_reset_retry_time()
        if self._reset_at is not None:
            times.append(self._reset_at + 0.001)  # allowed strictly after it
        topics = self._lookups.due(now, times)
        if topics:
            self._spawn(self._lookups.run(topics))
        self._pressed = False
        for leader in list(self._leaders.values()):
            if self._plan_leader(leader, now, times):
                # the others come first when there is not room for all
                self._leaders[leader.node_id] = self._leaders.pop(leader.node_id)
        return min(times, default=None)

    def _sync(self) -> None:
        """Take over what changed in the state and the metadata."""
        state, client = self._state, self._client
        self._seen_version = state.version
        for tp, feed in list(self._feeds.items()):
            if state.epoch(tp) != feed.epoch:
                del self._feeds[tp]
                self._drop(feed)
        self._discarded = {tp: epoch for tp, epoch in self._discarded.items() if state.epoch(tp) == epoch}
        self._lookups.lost = set()
        leader_of: dict[TopicPartition, int] = {}
        fetchable: dict[int, set[TopicPartition]] = {}
        count = 0
        for tp, partition in state.assignment.items():
            if partition.awaiting_reset:
                self._reset_at = 0.0
            if partition.position is None or self._discarded.get(tp) == partition.epoch:
                continue
            if tp not in self._feeds:
                self._feeds[tp] = Feed(tp, partition.epoch, partition.position.offset)
            if not partition.is_fetchable():
                continue
            count += 1
            leader = client.leader(tp)
            if leader is None:
                self._lookups.lost.add(tp.topic)
                if tp in self._leader_of:
                    leader_of[tp] = self._leader_of[tp]  # to notice that the next one is another
                continue
            leader_of[tp] = leader
            fetchable.setdefault(leader, set()).add(tp)
            if self._leader_of.get(tp, leader) != leader:
                self._feeds[tp].next_try = 0.0  # what failed there may work here
        self._leader_of = leader_of
        self.budget.divide(count)
        for node_id in fetchable.keys() - self._leaders.keys():
            self._leaders[node_id] = _Leader(node_id)
        for node_id, leader_state in list(self._leaders.items()):
            mine = fetchable.get(node_id, set())
            # the order is kept: it says who had his turn
            kept = {tp: self._feeds[tp] for tp in leader_state.feeds if tp in mine}
            leader_state.feeds = {**kept, **{tp: self._feeds[tp] for tp in mine}}
            if not mine and leader_state.main is None and leader_state.urgent is None:
                del self._leaders[node_id]

    def _drop(self, feed: Feed) -> None:
        self.budget.held -= feed.held
        feed.queue.clear()
        feed.held = 0

    def _plan_leader(self, leader: _Leader, now: float, times: list[float]) -> bool:
        """Send to one leader what can be sent, if anything. Adds to `times` when a back-off ends."""
        if leader.main is not None and (leader.urgent is not None or leader.main_until <= now):
            return False
        wanting = []
        for feed in leader.feeds.values():
            if feed.in_flight or feed.halted:
                continue
            if feed.next_try > now:
                times.append(feed.next_try)
            elif feed.held >= self.budget.share:
                self._pressed = True
            else:
                wanting.append(feed)
        if not wanting:
            return False
        urgent = leader.main is not None
        # One part is left over: idle long polls must not reserve all there is, or a newcomer would wait for their end.
        others = self._leaders.values()
        takers = 1 + (len(others) if urgent else sum(other.main is None for other in others))
        room = self.budget.room(len(others), takers, self._reclaim)
        if room is None:
            self._pressed = True
            return False
        version = self._client.api_version(FetchRequest)
        bounded = version is not None and version >= BOUNDED
        asked = self.budget.sizes(wanting, room, bounded=bounded)
        reserved = sum(size for _, size in asked)
        if bounded:
            reserved = min(room, reserved)
        if not bounded:
            # whoever is asked for had his turn, with records or without: not all of them fit into one request
            leader.to_the_end([feed.tp for feed, _ in asked])
        wait = min(URGENT_WAIT_S, leader.main_until - now) if urgent else self._max_wait_s
        for feed, _ in asked:
            feed.in_flight = True
        self.budget.reserved += reserved
        task = self._spawn(self._fetch(leader, urgent, asked, room, reserved, wait))
        if urgent:
            leader.urgent = task
        else:
            leader.main, leader.main_until = task, now + wait
        return True

    def _reclaim(self, wanted: int) -> int:
        """Give back what is held of partitions that may not be handed out, the largest first; they are read again."""
        freed = 0
        idle = [feed for feed in self._feeds.values() if feed.held and not self._state.is_fetchable(feed.tp)]
        for feed in sorted(idle, key=lambda feed: feed.held, reverse=True):
            if freed >= wanted:
                break
            freed += feed.rewind()
        self.budget.held -= freed
        return freed

    # -- doing

    async def _fetch(
        self,
        leader: _Leader,
        urgent: bool,
        asked: list[tuple[Feed, int]],
        max_bytes: int,
        reserved: int,
        wait_s: float,
    ) -> None:
        """One request and its answer."""
        client = self._client
        sizes = {feed.tp: (feed, feed.fetch_offset, size) for feed, size in asked}
        epochs = {tp: client.leader_epoch(tp) for tp in sizes}
        try:
            request = compose(
                {tp: (offset, size) for tp, (_, offset, size) in sizes.items()},
                {tp: epoch for tp, epoch in epochs.items() if epoch is not None},
                max_wait_s=wait_s,
                min_bytes=self._min_bytes,
                max_bytes=max_bytes,
                committed_only=self._committed_only,
            )
            # ("urgent", node) is a connection of its own to that node
            where = cast(int, ("urgent", leader.node_id)) if urgent else leader.node_id
            response = await client.send(where, request, client.request_timeout_s + wait_s)
            with_records = []
            for part in parts_of(response, list(sizes)):
                if part.tp not in sizes:
                    continue
                if part.records:
                    with_records.append(part.tp)
                    # headers and checksums of megabytes: let others run in between
                    await asyncio.sleep(0)
                self._answers.take(*sizes[part.tp], part, response.API_VERSION)
            leader.to_the_end(with_records)
        except Closed:
            return
        except BrokerError as error:
            log.info("fetching from broker %s: %s", leader.node_id, error)
            self._answers.lost([feed for feed, _ in asked], error)
        finally:
            self.budget.reserved -= reserved
            for feed, _ in asked:
                feed.in_flight = False
            if urgent:
                leader.urgent = None
            else:
                leader.main = None
            self.wake()

    async def _reset(self, due: set[TopicPartition]) -> None:
        try:
            if await self._resets.run(due):
                self._lookups.doubted |= {tp.topic for tp in due if self._client.leader(tp) is None}
        except Closed:
            return
        finally:
            self._reset_at = self._state.next_offset_reset_retry_time()
            self.wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._sink.broke(cast(BaseException, task.exception()))
