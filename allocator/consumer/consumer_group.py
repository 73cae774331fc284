"""Membership of a group, one generation after the other."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Protocol

from allocator.client.client import KafkaClient
from allocator.consumer.generation import Generation, GenerationTracker, PartitionStart, PendingGeneration
from allocator.consumer.group_config import ConsumerGroupConfig, client_of, group_settings_of
from allocator.errors import AllocatorError, GroupClosed
from allocator.groups.kafka_classic.membership import KafkaMembership
from allocator.groups.kafka_classic.settings import KafkaSettings
from allocator.groups.zookeeper.leader import LeaderSettings
from allocator.groups.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings
from allocator.groups.zookeeper.znodes import AssignmentDocument, Paths
from allocator.offsets.group_offsets import GroupOffsets
from allocator.offsets.idle import KeptOffsets
from allocator.offsets.messages import Identity
from allocator.subscription.loss import topic_of
from allocator.tasks import wait_for_event
from allocator.types import NO_PARTITIONS, OffsetAndMetadata, TopicPartition
from allocator.zookeeper.client import ZooKeeper

__all__ = ["ConsumerGroup", "GenerationSource", "KafkaGenerations", "ZooKeeperGenerations", "member_of"]

log = logging.getLogger(__name__)


class ConsumerGroup:
    """For those who read and commit by themselves, and want to know which partitions are theirs, and for how long.

    Guarantees: there are never two active generations, `next` returns one only when everything of the one before has
    ended; the member joins again only after that; every error comes out of `next`, of which each caller gets another.

        async with ConsumerGroup(config) as group:
            while True:
                generation = await group.next()
                for topic, starts in generation.assignments.items():
                    for partition, offset in starts:
                        generation.start(read(generation, topic, partition, offset))

    The constructor touches nothing; the first `next`, or `async with`, begins to connect. After a failure the member
    leaves, `next` raises the reason, and it joins anew `join_backoff_s` after the failure; not before somebody was
    told of it. Everything that is not a failure, a rebalance or a session that was lost, is mended without a word:
    the generation ends and the next one follows.

    A committed offset of a topic that was deleted and created again since counts as none (brokers from 2.8 on): the
    partition begins at `first_offset`, with a warning in the log.
    """

    def __init__(self, config: ConsumerGroupConfig) -> None:
        self.config = config
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._standing: GenerationTracker | None = None
        self._offer: Generation | BaseException | None = None
        # made with the task: before 3.10 they belong to the loop that is current when they are made
        self._news: asyncio.Event
        self._taken: asyncio.Event
        self._closing: asyncio.Event

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._task is not None else "not begun"
        return f"<ConsumerGroup {self.config.group!r} over {self.config.membership}, {state}>"

    async def __aenter__(self) -> ConsumerGroup:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- the surface ----------------------------------------------------------------------------------------------

    async def next(self) -> Generation:
        """The next generation, when the one before is over.

        Raises what prevents it, whatever it is, and may then be called again; `GroupClosed` after `close`, at once
        and for everybody who waits. May be cancelled: nothing is lost by it.
        """
        self._begin()
        while True:
            if self._closed:
                raise GroupClosed(f"group {self.config.group!r}: this ConsumerGroup is closed; make a new one")
            offer, self._offer = self._offer, None
            if offer is not None:
                self._taken.set()
                if isinstance(offer, Generation):
                    return offer
                raise offer
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        """Ends the current generation, waits for its functions, leaves the group and closes every connection.

        May be called twice, and while another call waits. Called by a function of the generation, or by a task that
        one has started, it does not return: that function is cancelled, as the others are. If the call is cancelled,
        it waits for functions still, but for no answer of the coordinator any more.
        """
        self._closed = True
        task = self._task
        if task is None:
            return
        self._tell_all()
        standing = self._standing
        generation = None if standing is None else standing.current
        inside = generation is not None and generation.runs_here()
        if standing is not None:
            standing.stop(GroupClosed(f"group {self.config.group!r} is closed"))
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
            self._news, self._taken, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"group {self.config.group}")

    async def _run(self) -> None:
        """One turn for each membership: until closed, another one after each failure."""
        now = asyncio.get_running_loop().time
        try:
            while not self._closed:
                try:
                    await self._take_part()
                except Exception as error:  # noqa: BLE001  whatever a function of the user's raised comes out of `next`
                    if self._closed:
                        if not isinstance(error, GroupClosed):
                            log.warning("%s: while it was closed: %r", self.config.group, error)
                        return
                    resume = now() + self.config.join_backoff_s  # it has been a while when somebody hears of it
                    log.warning("%s: %r; joins again in %g s", self.config.group, error, self.config.join_backoff_s)
                    await self._report(error)
                    await wait_for_event(self._closing, max(0.0, resume - now()))
        finally:
            self._closed = True
            self._tell_all()

    async def _take_part(self) -> None:
        """Connects, joins, and serves generations. Raises what ended it; by then the member has left."""
        self._standing = standing = GenerationTracker()
        client = client_of(self.config)
        try:
            await standing.unless_stopped(client.connect(self.config.connect_timeout_s))
            client.follow(self.config.topics)
            member = member_of(self.config, client, standing)
            joining = asyncio.get_running_loop().create_task(member.join(), name="join")
            joining.add_done_callback(lambda task: _note(task, standing))
            try:
                await self._generations(client, member, standing)
            finally:
                await self._leave(member, joining)
        finally:
            await client.close()

    async def _generations(self, client: KafkaClient, member: GenerationSource, standing: GenerationTracker) -> None:
        while True:
            round = await standing.settled()
            with client.measures.span("rebalance", step="assigned", partitions=len(round.partitions)):
                generation = await self._make(round, client, member, standing)
            if generation is None:
                continue
            try:
                self._offer = generation
                self._news.set()
                await generation.wait()
            finally:
                generation.end("the group gives up")  # only if somebody cancelled us
                if self._offer is generation:
                    self._offer = None  # nobody took it, so nobody has to see its end before the next one
                with client.measures.span("rebalance", step="revoked", partitions=len(round.partitions)):
                    await generation.over()
                standing.current = None
            if generation.failure is not None:
                raise generation.failure
            if generation.returned:
                member.rejoin(str(generation.ended))

    async def _make(
        self, round: PendingGeneration, client: KafkaClient, member: GenerationSource, standing: GenerationTracker
    ) -> Generation | None:
        """The generation itself; None if it ended before it began."""
        options: dict[str, Any] = {"timeout_s": self.config.timeout_s, "retention_s": self.config.retention_s}
        kept = None
        if round.committer is None:  # Kafka knows no members of the group, and would forget idle offsets
            offsets: GroupOffsets = (kept := KeptOffsets(client, self.config.group, **options))
        else:
            offsets = GroupOffsets(client, self.config.group, committer=round.committer, **options)
        try:
            committed = await standing.unless_stopped(offsets.fetch(round.partitions))
        except AllocatorError:
            if standing.may_begin(round):
                raise
            return None
        if not standing.may_begin(round):
            return None

        def still_ours() -> bool:
            here = round.committer is None or round.committer.identity is not None
            return here and member.member_id == round.member_id and member.may_act()

        generation = Generation(
            round.id,
            self.config.group,
            round.member_id,
            self._starts(round.partitions, committed, client),
            offsets,
            still_ours,
            client.topic_id,
        )
        standing.current = generation
        log.info(
            "%s: %s gets generation %d: %d partitions",
            self.config.group,
            round.member_id,
            round.id,
            len(round.partitions),
        )
        if kept is not None:
            generation.start(kept.keep(committed, still_ours), "idle offsets")
        if self.config.watch_partition_changes:
            for topic in self.config.topics:
                generation.start(self._watch(topic, client, member), f"watch of {topic}")
        return generation

    def _starts(
        self,
        partitions: frozenset[TopicPartition],
        committed: dict[TopicPartition, OffsetAndMetadata],
        client: KafkaClient,
    ) -> dict[str, tuple[PartitionStart, ...]]:
        starts: dict[str, list[PartitionStart]] = {topic: [] for topic in self.config.topics}
        for partition in sorted(partitions):
            found = committed.get(partition)
            offset = self.config.first_offset if found is None else found.offset
            if found is not None:
                ours, now = topic_of(found.metadata), client.topic_id(partition.topic)
                if None not in (ours, now) and ours != now:
                    offset = self.config.first_offset
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
        """Has the member join again when `topic` has another number of partitions than when the generation began."""
        before: int | None = None
        while True:
            try:
                await client.refresh([topic])
            except AllocatorError as error:
                # heartbeats say whether the membership stands, and they have connections of their own
                log.warning("%s: the partitions of %s cannot be read: %s", self.config.group, topic, error)
            else:
                count = len(client.partitions(topic) or ())  # one that does not exist (yet) has none
                if before is not None and count != before:
                    log.info("%s: %s has %d partitions instead of %d", self.config.group, topic, count, before)
                    member.rejoin(f"{topic} has {count} partitions instead of {before}")
                before = count
            await asyncio.sleep(self.config.partition_watch_interval_s)

    async def _leave(self, member: GenerationSource, joining: asyncio.Task[None]) -> None:
        """Ends a join that is under way too; by leaving first, so that the group hears of it."""
        (error,) = await asyncio.gather(member.leave(), return_exceptions=True)
        if isinstance(error, Exception):
            log.warning("%s: leaving failed: %r", self.config.group, error)
        joining.cancel()
        await asyncio.wait({joining})

    # -- handing over ---------------------------------------------------------------------------------------------

    async def _report(self, error: BaseException) -> None:
        """Until a caller of `next` has it, or we are closed."""
        self._taken.clear()
        self._offer = error
        self._news.set()
        await self._taken.wait()

    def _tell_all(self) -> None:
        for event in (self._news, self._taken, self._closing):
            event.set()


def _note(joining: asyncio.Task[None], standing: GenerationTracker) -> None:
    error = None if joining.cancelled() else joining.exception()
    if error is not None:
        standing.stop(error)


# -- group_members ----------
# Both memberships under the generations of a `ConsumerGroup`: when a generation ends, and when the next may begin.


# a ZooKeeper group does not say of a member that it is to get nothing, only what others get
# more: a member without partitions has its generation later; less: one that is about to get some has two
NOTHING_AFTER_S = 1.0


class GenerationSource(Protocol):
    """What a `ConsumerGroup` needs of a membership."""

    member_id: str

    async def join(self) -> None: ...

    async def leave(self) -> None: ...

    def may_act(self) -> bool: ...

    def rejoin(self, why: str) -> None:
        """Ask the group for a new assignment, where it does not see by itself that one is due."""


def member_of(config: ConsumerGroupConfig, client: KafkaClient, standing: GenerationTracker) -> GenerationSource:
    """The member that `config` describes, which has touched nothing yet."""
    if config.membership == "kafka":
        return KafkaGenerations(config, client, standing)
    return ZooKeeperGenerations(config, client, standing)


class KafkaGenerations(KafkaMembership):
    """Every join begins a generation, one that gives nothing too, and ends the one before, whatever is kept."""

    def __init__(self, config: ConsumerGroupConfig, client: KafkaClient, standing: GenerationTracker) -> None:
        super().__init__(
            client,
            config.group,
            standing,
            config.assignors(),
            KafkaSettings(
                name=config.client_id,
                topics=frozenset(config.topics),
                connect_timeout_s=config.connect_timeout_s,
                topic_poll_s=config.topic_poll_s,
                group=group_settings_of(config),
            ),
        )
        self._standing = standing

    def rejoin(self, why: str) -> None:
        self._standing.round = None
        self.group.request_rejoin(why)

    async def prepare(self) -> None:
        await self._standing.ending("the group rebalances")
        await super().prepare()

    async def joined(self, generation: int, protocol: str, assignment: bytes) -> None:
        before = self.held
        await super().joined(generation, protocol, assignment)
        if before <= self.held:  # else it has to join once more, so that others get what it gave up
            committer = _Under(Identity(generation, self.member_id), self)
            self._standing.settle(PendingGeneration(generation, self.member_id, self.held, committer))


class _Under:
    """A member as of one generation: in the next one it commits nothing any more."""

    def __init__(self, identity: Identity, member: KafkaGenerations) -> None:
        self._identity = identity
        self._member = member

    @property
    def identity(self) -> Identity | None:
        return self._identity if self._member.identity == self._identity else None

    def may_commit(self, partition: TopicPartition) -> bool:
        return self._member.may_commit(partition)

    def refused(self, code: int, sent: Identity) -> bool:
        return self._member.refused(code, sent) and self.identity is not None


class ZooKeeperGenerations(ZooKeeperMembership):
    """Partitions come and go one by one here; a generation begins when nothing more of the assignment is to come.

    That is: what is given is held, and nothing is promised, or the promise was not kept within the rebalance timeout
    because its present owner does not let go.
    """

    def __init__(self, config: ConsumerGroupConfig, client: KafkaClient, standing: GenerationTracker) -> None:
        assert config.zookeeper is not None
        super().__init__(
            ZooKeeper(config.zookeeper, session_timeout_s=config.session_timeout_s, options=config.zookeeper_options),
            Paths(config.root, config.group),
            standing,
            client,
            config.assignors(),
            ZooKeeperSettings(
                name=config.client_id,
                topics=frozenset(config.topics),
                connect_timeout_s=config.connect_timeout_s,
                leader=LeaderSettings(topic_poll_s=config.topic_poll_s),
            ),
            followed=self._read,
        )
        self._standing = standing
        self._promise_s = config.rebalance_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = 0.0

    def rejoin(self, why: str) -> None:
        """The leader sees by itself what calls for a new assignment."""

    async def leave(self) -> None:
        self._stop_timer()
        await super().leave()

    def _read(self, document: AssignmentDocument) -> None:
        if document.owners.get(self.member_id, NO_PARTITIONS) != self.held:
            return  # on the way
        if document.promised.get(self.member_id):
            self._settle_after(self._promise_s)
        elif not self.held:
            self._settle_after(NOTHING_AFTER_S)
        else:
            self._settle()

    def _settle_after(self, pause_s: float) -> None:
        if self._timer is None or self._pause_s != pause_s:  # else the clock runs already
            self._stop_timer()
            self._pause_s = pause_s
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._settle)

    def _settle(self) -> None:
        self._stop_timer()
        self._standing.settle(PendingGeneration(self.generation, self.member_id, self.held))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
