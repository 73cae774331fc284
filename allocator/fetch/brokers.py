"""One broker that is fetched from: whose turn it is there, and what is under way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Union, cast

from allocator.client.fetch_messages import (
    BOUNDED,
    FetchAnswer,
    FetchedPartition,
    FetchRequest,
    FetchSession,
    Wanted,
    compose,
)
from allocator.errors import AllocatorError, BrokerError, Closed
from allocator.fetch.buffer import ByteBudget, Chunk, PartitionBuffer
from allocator.fetch.position_requests import ResetRequests, ValidationRequests
from allocator.fetch.responses import Answers
from allocator.subscription import LogTruncation, SubscriptionState
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from allocator.client.client import KafkaClient

__all__ = ["Ask", "BrokerFetcher", "BrokerFetchers", "Lookups", "Sink"]

log = logging.getLogger(__name__)

SESSIONLESS: Final = 0


class Ask(NamedTuple):
    """What every request to every broker says alike."""

    min_bytes: int
    committed_only: bool
    rack: str


class BrokerFetcher:
    """The fetchable partitions of one broker, the one to ask for first at the front, and its fetch session.

    It leads them, or is the replica that their leader named. The main request is part of the session; the urgent one
    stands alone, on a connection of its own, for it comes and goes while the broker holds the main one back.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.feeds: dict[TopicPartition, PartitionBuffer] = {}
        self.main: asyncio.Task[None] | None = None
        self.urgent: asyncio.Task[None] | None = None
        # since when it is under way, and until when the broker may hold it back
        self.main_since = self.main_until = 0.0
        # its last answer was full, so some partitions of it may have records that found no room
        self.full = False
        self.session = FetchSession()

    def to_the_end(self, tps: Iterable[TopicPartition]) -> None:
        """They had their turn."""
        for tp in tps:
            feed = self.feeds.pop(tp, None)
            if feed is not None:
                self.feeds[tp] = feed

    async def ask(
        self,
        client: KafkaClient,
        wanted: Mapping[TopicPartition, Wanted],
        what: Ask,
        *,
        urgent: bool,
        max_bytes: int,
        wait_s: float,
    ) -> tuple[FetchSession, FetchAnswer]:
        """The broker's answer, and the session that reads it. Raises `BrokerError`, `Closed`.

        When the broker refuses the session, it is asked once more, in a new one.
        """
        version = client.api_version(FetchRequest)
        session = FetchSession() if urgent else self.session
        # ("urgent", node) is a connection of its own to that node
        where = cast(int, ("urgent", self.node_id)) if urgent else self.node_id
        for attempt in (1, 2):
            turn = session.turn(wanted, SESSIONLESS if urgent or version is None else version)
            request = compose(
                turn.asked,
                turn.forgotten,
                session=turn.session,
                max_version=turn.max_version,
                max_wait_s=wait_s,
                min_bytes=what.min_bytes,
                max_bytes=max_bytes,
                committed_only=what.committed_only,
                rack=what.rack,
            )
            try:
                with client.measures.span("fetch", broker=self.node_id, partitions=len(wanted)):
                    answer: FetchAnswer = await client.send(where, request, client.request_timeout_s + wait_s)
            except BrokerError:
                session.lost()
                raise
            if session.answered(answer) or attempt == 2:
                return session, answer
        raise AssertionError("two attempts, and each ends above")


# -- leaders ----------
# Which partition is asked of which broker, when, and for how many bytes.


# While a fetch waits at a broker for new records, partitions that come in between (assigned, resumed, drained) are
# asked for on a second connection. Longer: fewer requests; shorter: the next newcomer waits less.
URGENT_WAIT_S: Final = 0.05


# If there was no room for all in the last answer, the next one comes at once, and whoever was served meanwhile must not
# be served again before it. Longer: who came last waits longer where that was wrong; shorter: slow brokers are unfair.
FULL_WAIT_S: Final = 0.1


POSITION_TIMEOUT_S: Final = 10.0


# the lease of a replica ends without a word, so while there is one it is looked for this often
LEASE_LOOK_S: Final = 5.0


# headers and checksums of so many bytes, then others run
BREATH_BYTES: Final = 1 << 20


Chore = Union[ResetRequests, ValidationRequests]


class Sink(Protocol):
    """Who takes what comes."""

    def arrived(self, feed: PartitionBuffer) -> None: ...

    def tell(self, error: AllocatorError) -> None: ...

    def broke(self, error: BaseException) -> None: ...

    def recreated(self, tp: TopicPartition) -> None: ...

    def reset(self, tp: TopicPartition, offset: int, epoch: int) -> None: ...

    def cut(self, what: LogTruncation) -> None: ...


class BrokerFetchers:
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
        budget: ByteBudget,
        isolation_level: str,
        check_crcs: bool,
        retry_backoff_s: float,
        rack: str,
    ) -> None:
        self._client = client
        self._state = state
        self._sink = sink
        self._max_wait_s = max_wait_s
        self._what = Ask(min_bytes, isolation_level == "read_committed", rack)
        self.budget = budget
        self._answers = Answers(
            self,
            state,
            sink,
            check_crcs=check_crcs,
            max_bytes=budget.max_bytes,
            backoff=(retry_backoff_s, BACKOFF_MAX_S),
        )
        chores: dict[str, Any] = {
            "backoff_s": retry_backoff_s,
            "timeout_s": POSITION_TIMEOUT_S,
            "clock": time.monotonic,
            "tell": sink.tell,
        }
        self._resets = ResetRequests(client, state, isolation_level=isolation_level, found=sink.reset, **chores)
        self._validations = ValidationRequests(client, state, cut=sink.cut, **chores)
        # when to look what is due; None: nothing is awaited
        self._due_at: dict[Chore, float | None] = {self._resets: None, self._validations: None}
        self._lookups = Lookups(client, retry_backoff_s, self.metadata_changed)
        self._feeds: dict[TopicPartition, PartitionBuffer] = {}
        self._leaders: dict[int, BrokerFetcher] = {}
        self._leader_of: dict[TopicPartition, int] = {}
        # partition -> the epoch under which nothing of it is wanted any more
        self._discarded: dict[TopicPartition, int] = {}
        # topic -> ids that it had before: a broker that lags behind may still announce one
        self._former: dict[str, set[Any]] = {}
        self._seen_version = -1
        self._new_metadata = True
        # brokers whose connection for fetches was opened while positions were looked for
        self._prepared: set[int] = set()
        # something was not asked for want of room
        self._pressed = False
        self._lease_look_at: float | None = None
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

    def halt(self, feed: PartitionBuffer) -> None:
        """Fetch no more of `feed`, and forget what is queued."""
        self._drop(feed)
        feed.halted = True

    def halt_partition(self, tp: TopicPartition) -> None:
        feed = self._feeds.get(tp)
        if feed is not None:
            self.halt(feed)

    def halted(self) -> list[TopicPartition]:
        """Partitions of which nothing more is fetched, and nothing is left to hand out."""
        return [tp for tp, feed in self._feeds.items() if feed.halted and not feed.queue and self.is_current(feed)]

    def wake(self) -> None:
        """Decide anew soon."""
        if self._event is not None:
            self._event.set()

    def metadata_changed(self) -> None:
        """Caller: the client. Leaders may have moved."""
        self._new_metadata = True
        self._seen_version = -1
        self.wake()

    def is_current(self, feed: PartitionBuffer) -> bool:
        """Whether nothing made `feed` void."""
        return self._feeds.get(feed.tp) is feed and self._state.epoch(feed.tp) == feed.epoch

    def push(self, feed: PartitionBuffer, chunk: Chunk) -> None:
        """An answer for `feed` has come."""
        feed.push(chunk)
        self.budget.held += chunk.size

    def pop(self, feed: PartitionBuffer) -> None:
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

    def leader_epoch(self, tp: TopicPartition, offset: int) -> int:
        """Of the last offset before `offset`, as it was read; -1 if unknown."""
        feed = self._feeds.get(tp)
        return -1 if feed is None else feed.leader_epoch(offset)

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
        if self._lease_look_at is not None and now >= self._lease_look_at:
            self._seen_version = -1
        if self._state.version != self._seen_version:
            self._sync(now)
        if self._lease_look_at is not None:
            times.append(self._lease_look_at)
        for chore, at in self._due_at.items():
            if at is not None and now >= at:
                due = chore.due()
                if due:
                    self._spawn(self._do(chore, due))
                at = self._due_at[chore] = chore.next_time()
            if at is not None:
                times.append(at + 0.001)  # allowed strictly after it
        topics = self._lookups.due(now, times)
        if topics:
            self._spawn(self._lookups.run(topics))
        self._pressed = False
        for leader in list(self._leaders.values()):
            if self._plan_leader(leader, now, times):
                # the others come first when there is not room for all
                self._leaders[leader.node_id] = self._leaders.pop(leader.node_id)
        return min(times, default=None)

    def _sync(self, now: float) -> None:
        """Take over what changed in the state and the metadata."""
        state, client = self._state, self._client
        # what was sought as well: the offset may have been committed under an older leader
        new = [tp for tp in state.assignment if tp not in self._feeds or state.epoch(tp) != self._feeds[tp].epoch]
        looked_at = list(state.assignment) if self._new_metadata else new
        self._look_at_topics(looked_at)
        self._validations.look(looked_at)
        self._new_metadata = False
        self._seen_version = state.version
        self._lease_look_at = None
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
                self._due_at[self._resets] = 0.0
            elif partition.awaiting_validation:
                self._due_at[self._validations] = 0.0
            if partition.position is None:
                self._prepare(tp)
            if partition.position is None or self._discarded.get(tp) == partition.epoch:
                continue
            if tp not in self._feeds:
                self._feeds[tp] = PartitionBuffer(tp, partition.epoch, partition.position)
            if not partition.is_fetchable():
                continue
            count += 1
            leader = partition.preferred_read_replica()
            if leader is None:
                leader = client.leader(tp)
            else:
                self._lease_look_at = now + LEASE_LOOK_S
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
            self._leaders[node_id] = BrokerFetcher(node_id)
        for node_id, leader_state in list(self._leaders.items()):
            mine = fetchable.get(node_id, set())
            # the order is kept: it says who had his turn
            kept = {tp: self._feeds[tp] for tp in leader_state.feeds if tp in mine}
            leader_state.feeds = {**kept, **{tp: self._feeds[tp] for tp in mine}}
            if not mine and leader_state.main is None and leader_state.urgent is None:
                del self._leaders[node_id]

    def _look_at_topics(self, partitions: Iterable[TopicPartition]) -> None:
        """Finds positions that are offsets of a topic that was deleted and created again meanwhile (from 2.8 on)."""
        for tp in partitions:
            found = self._client.topic_id(tp.topic)
            if found is None or found in self._former.get(tp.topic, ()):
                continue
            before = self._state.note_topic(tp, found)
            if before is not None:
                self._former.setdefault(tp.topic, set()).add(before)
                self._sink.recreated(tp)

    def _prepare(self, tp: TopicPartition) -> None:
        """The position of `tp` is being looked for: meanwhile the connection to its leader is opened."""
        leader = self._client.leader(tp)
        if leader is not None and leader not in self._prepared:
            self._prepared.add(leader)
            self._spawn(self._client.prepare(leader, FetchRequest))

    def _drop(self, feed: PartitionBuffer) -> None:
        self.budget.held -= feed.held
        feed.queue.clear()
        feed.held = 0

    def _plan_leader(self, leader: BrokerFetcher, now: float, times: list[float]) -> bool:
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
        if urgent and leader.full and now < leader.main_since + FULL_WAIT_S:
            times.append(leader.main_since + FULL_WAIT_S)
            return False
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
        else:
            # whoever is asked for had his turn, with records or without: not all of them fit into one request
            leader.to_the_end([feed.tp for feed, _ in asked])
        wait = min(URGENT_WAIT_S, leader.main_until - now) if urgent else self._max_wait_s
        for feed, _ in asked:
            feed.in_flight = True
        self.budget.reserve(reserved)
        task = self._spawn(self._fetch(leader, urgent, asked, room, reserved, wait))
        if urgent:
            leader.urgent = task
        else:
            leader.main, leader.main_since, leader.main_until = task, now, now + wait
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
        leader: BrokerFetcher,
        urgent: bool,
        asked: list[tuple[PartitionBuffer, int]],
        max_bytes: int,
        reserved: int,
        wait_s: float,
    ) -> None:
        """One request and its answer."""
        client = self._client
        sizes = {feed.tp: (feed, feed.fetch_offset, size) for feed, size in asked}
        with_records: list[TopicPartition] = []
        try:
            wanted = {tp: self._wanted(tp, offset, size) for tp, (_, offset, size) in sizes.items()}
            shunned = self._what.rack and any(feed.shuns_replicas(time.monotonic()) for feed, _ in asked)
            session, answer = await leader.ask(
                client,
                wanted,
                self._what._replace(rack="") if shunned else self._what,
                urgent=urgent,
                max_bytes=max_bytes,
                wait_s=wait_s,
            )
            if not urgent:
                brought = sum(len(part.records) for part in answer.parts)
                leader.full = brought + self.budget.max_partition_bytes > max_bytes
            with_records = await self._take(leader, sizes, session, answer)
        except Closed:
            return
        except BrokerError as error:
            log.info("fetching from broker %s: %s", leader.node_id, error)
            self._answers.lost([feed for feed, _ in asked], error, leader.node_id)
        finally:
            self.budget.reserve(-reserved)
            for feed, _ in asked:
                feed.in_flight = False
            if urgent:
                leader.urgent = None
            else:
                leader.main = None
            self.wake()
        if self._state.version == self._seen_version and not self._pressed:
            # The next request goes out first: the broker works while whoever hears of this answer decodes. Not when
            # room is short, for then it may be another leader's turn.
            self._plan_leader(leader, time.monotonic(), [])
        for tp in with_records:
            if self.is_current(sizes[tp][0]):
                self._sink.arrived(sizes[tp][0])

    def _wanted(self, tp: TopicPartition, offset: int, size: int) -> Wanted:
        epoch = self._client.leader_epoch(tp)
        return Wanted(offset, size, -1 if epoch is None else epoch, self._client.topic_id(tp.topic))

    async def _take(
        self,
        leader: BrokerFetcher,
        sizes: dict[TopicPartition, tuple[PartitionBuffer, int, int]],
        session: FetchSession,
        answer: FetchAnswer,
    ) -> list[TopicPartition]:
        """Give each feed its part. Returns those that brought records."""
        if answer.error_code:
            for tp, (feed, offset, size) in sizes.items():
                part = FetchedPartition(tp.topic, tp.partition, answer.error_code, -1, -1, -1, [], b"")
                self._answers.take(feed, offset, size, part, answer.API_VERSION, leader.node_id)
            return []
        with_records = []
        breath = 0
        # one by one: what a part brought is in its feed now, and the answer need not hold it any more
        answer.parts, parts = [], session.parts(answer.parts)
        for tp, part in parts:
            if tp not in sizes:
                continue
            if part.records:
                with_records.append(tp)
                breath += len(part.records)
                if breath > BREATH_BYTES:
                    breath = 0
                    await asyncio.sleep(0)
            self._answers.take(*sizes[tp], part, answer.API_VERSION, leader.node_id)
        leader.to_the_end(with_records)
        return with_records

    async def _do(self, chore: Chore, due: set[TopicPartition]) -> None:
        try:
            self._lookups.doubted |= {tp.topic for tp in await chore.run(due)}
        except Closed:
            return
        finally:
            self._due_at[chore] = chore.next_time()
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


# -- lookups ----------
# Reading metadata when leaders are unknown or have refused.


# longer: a topic or leader that comes back is found later; shorter: more requests meanwhile
BACKOFF_MAX_S: Final = 1.0


class Lookups:
    """Which topics' leaders are to be looked up, and when.

    Guarantee: one request at a time, and a pause after it that doubles as long as something stays unknown.
    """

    def __init__(self, client: KafkaClient, backoff_s: float, changed: Callable[[], None]) -> None:
        self._client = client
        self._backoff_s = backoff_s
        self._changed = changed
        # topics with a partition whose leader is unknown; set by the owner
        self.lost: set[str] = set()
        # topics of which some broker said that it does not lead
        self.doubted: set[str] = set()
        self._under_way = False
        self._failures = 0
        self._not_before = 0.0

    def due(self, now: float, times: list[float]) -> set[str]:
        """The topics to `run` now; adds to `times` when to ask again."""
        topics = self.lost | self.doubted
        if not topics or self._under_way:
            return set()
        if now < self._not_before:
            times.append(self._not_before)
            return set()
        self._under_way = True
        self.doubted = set()
        return topics

    async def run(self, topics: set[str]) -> None:
        """Look them up, then call `changed`."""
        try:
            await self._client.refresh(topics)
        except Closed:
            return
        except AllocatorError as error:
            log.info("metadata of %s: %s", ", ".join(sorted(topics)), error)
        finally:
            known = not self.lost and all(self._client.partitions(topic) for topic in topics)
            self._failures = 0 if known else min(10, self._failures + 1)
            self._not_before = time.monotonic() + min(BACKOFF_MAX_S, self._backoff_s * (1 << self._failures))
            self._under_way = False
            self._changed()
