"""`GroupedConsumer`, with the interface of kiel's class of the same name."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Optional

from allocator import RebalanceListener, RecordsLost
from allocator.assignors import naive_allocator, of_kiel
from allocator.compat.base_consumer import TURN_S, BaseConsumer
from allocator.core.aio import Backoff, start_task
from allocator.core.client import list_offsets
from allocator.core.consumer import GroupMember, MembershipConfig, MembershipOptions
from allocator.core.fetch import Batch, Fetcher
from allocator.core.settings import ANY_TOPIC, DEFAULT, names_arguments
from allocator.core.subscription import Hold, SubscriptionState
from allocator.errors import AllocatorError, CommitFailed, Fenced, NoOffsetsError, NotOwned
from allocator.operate import ChoiceWatcher
from allocator.protocols.zookeeper import ClusterChoice, EnsembleOptions, choice_path
from allocator.types import Assignors, MembershipName, OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

# seconds that `connect` waits for the first partitions. Higher: `connect` of a member without partitions takes longer;
# lower: `allocation` may be empty after `connect`
FIRST_SHARE_S = 5.0
COMMIT_BACKOFF_S = 0.1  # seconds until a commit is retried; doubles each time, up to COMMIT_BACKOFF_MAX_S
COMMIT_BACKOFF_MAX_S = 2.0


@names_arguments
class GroupedConsumer(BaseConsumer):
    """Replaces kiel 0.9.3's GroupedConsumer: a service only changes its import.

        consumer = GroupedConsumer(["kafka01:9092"], "work.group", ["zk01:2181"])
        yield consumer.connect()
        messages = yield consumer.consume("example")

    Asynchronous methods return an awaitable for `yield` in `@gen.coroutine` and for `await`, on tornado's asyncio loop.
    As in kiel, the group has the partitions of *all* topics, the default `deserializer` decodes JSON, and `autocommit`
    commits *before* the values are returned (at most once). With autocommit off, call `commit_offsets` after you have
    handled the values (at least once).

    The consumer resumes from the committed offsets, including those that kiel stored in ZooKeeper: it uses them for
    partitions without an offset in Kafka. Members of kiel and of this library do not see each other. Stop the members
    of kiel first, or use `membership="kiel"` to upgrade one process at a time (docs/old-groups.md).

    Differences from kiel (docs/howto/kiel.md has all of them): a partition never has two owners; nothing blocks the
    event loop; a coordinator that refuses raises an error; a commit that is refused for one partition is retried for
    that partition. As in kiel, `consume` logs errors of a topic or a partition, and returns the values of the others.
    With autocommit off, a partition moves only after `commit_offsets`, the next `consume` of its topic, or `close`, and
    after all commits that were started, awaited or not.

    If the group is paused or moved to another cluster (docs/migration.md), `consume` returns no more values. The member
    leaves when the returned values are done, and resumes from the committed offsets of that cluster. Returned values
    that were not committed are read again.

    `membership` and `security` are new, and optional. `membership` is a name or an object, as for `Consumer`, and
    `zk_hosts` is its ensemble. With `membership="kafka"`, the group uses Kafka's own protocol (brokers from 0.9), and
    `zk_hosts` is ignored.
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        group: str,
        zk_hosts: str | Sequence[str] | None,
        deserializer: Callable[[bytes], Any] | None = None,
        partition_allocator: Assignors | None = None,
        autocommit: bool = True,
        max_wait_time: int = 1000,  # milliseconds
        min_bytes: int = 1,
        max_bytes: int = 1024 * 1024,
        *,
        membership: MembershipName | MembershipOptions = DEFAULT["membership"],
        security: Mapping[str, Any] | None = DEFAULT["security"],
        connect_timeout_s: float = DEFAULT["connect_timeout_s"],
    ) -> None:
        super().__init__(deserializer, max_wait_time, max_bytes, group)
        self.group_name = group
        self.autocommit = autocommit
        self.topics_to_commit: set[str] = set()
        hosts = zk_hosts if isinstance(zk_hosts, str) else ",".join(zk_hosts or ())
        joining = MembershipConfig.of(
            membership,
            zookeeper=hosts,
            group=group,
            client_id=self.name,
            pattern=ANY_TOPIC,
            assignor=of_kiel(partition_allocator) if callable(partition_allocator) else partition_allocator,
            connect_timeout_s=connect_timeout_s,
        )
        self._make = partial(
            GroupMember,
            joining,
            listener=_PauseUnconsumed(self),
            auto_commit_interval_s=None,
            old_offsets=True,
            auto_offset_reset="earliest",
            security=security,
            max_wait_s=max_wait_time / 1000.0,
            min_bytes=min_bytes,
            max_partition_bytes=max_bytes,
        )
        self._brokers = brokers
        self._member = self._make(brokers=brokers)
        self._reads: Optional[ClusterChoice] = None  # the joined cluster; None: not in the group
        self._connect_timeout_s = connect_timeout_s
        self._watcher = None
        place = joining.options
        if isinstance(place, EnsembleOptions) and place.name == "zookeeper":
            self._watcher = ChoiceWatcher(place.ensemble(), choice_path(place.root, group))
        self._consumed: set[str] = set()
        self._fetching: dict[str, GroupMember] = {}  # topic -> the core that fetches it for the current `consume`
        self._synced: set[str] = set()  # topics that were ever in `synced_offsets`
        self._started = False
        self.allocator = KielAllocator(self, zk_hosts, partition_allocator)

    # -- start and close ------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        if self._started:
            return
        self._loop = asyncio.get_running_loop()
        self._switching, self._committing = asyncio.Lock(), asyncio.Lock()
        try:
            if self._watcher is not None:
                await self._watcher.start(self._connect_timeout_s)
            await self._follow()
        except BaseException:
            if self._watcher is not None:
                await self._watcher.close()
            self._loop = None  # `close` has nothing to close
            raise
        self._started = True
        if self._reads is not None:
            await self._until_first_partition()

    async def _until_first_partition(self) -> None:
        """Waits until this member owns a partition, at most `FIRST_SHARE_S` seconds, so that `allocation` is filled."""
        loop, member = asyncio.get_running_loop(), self._member
        end = loop.time() + FIRST_SHARE_S
        while not (self.closing or member.state.held or member.ended) and member.client.topics():
            left = end - loop.time()
            if left <= 0:
                break
            await member.news(left)

    async def _follow(self) -> bool:
        """Leaves or joins according to the group's cluster choice. Returns whether the member may read."""
        choice = self._wanted_cluster()
        if choice == self._reads:
            return choice is not None
        if self._member.state.reader:
            return False
        async with self._switching:
            choice = self._wanted_cluster()
            if self.closing or choice == self._reads or self._member.state.reader:
                return False  # another call has already applied the cluster choice
            if self._reads is not None:
                log.info("%s: leaving, because the group's cluster choice is now %s", self.group_name, choice)
                self._reads = None
                await self._member.close()
            if choice is None:
                return False
            self._member = self._make(brokers=choice.brokers or self._brokers)
            if self._watcher is not None:
                self._member.membership.join_again_if(self._watcher.still(choice))
            await self._member.start()
            try:
                await self._member.commits.offsets.find()
            except BaseException:
                await self._member.close()
                raise
            self._reads = choice
            return True

    def _wanted_cluster(self) -> ClusterChoice | None:
        """Returns the cluster that the group reads; None if the group is paused."""
        choice = ClusterChoice() if self._watcher is None else self._watcher.current
        return None if choice.frozen else choice

    def _stop(self) -> None:
        self._member.state.reader.abandon()
        super()._stop()

    async def _wind_down(self) -> None:
        if not self._started:
            return
        async with self._switching:  # waits for a join in progress
            try:
                if self._reads is not None:
                    self._reads = None
                    await self._member.close()
            finally:
                if self._watcher is not None:
                    await self._watcher.close()

    def on_records_lost(self, loss: RecordsLost) -> object:
        """Called if the log no longer has the position of a partition, so that values are lost. Subclasses may extend
        it.

        A topic that was deleted and created again is read from its beginning. May be a coroutine; `consume` returns no
        values before it has ended.
        """

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def allocation(self) -> dict[str, list[int]]:
        """Topic -> the partitions that this member owns now; `[]` for any other topic."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self._member.state.held):
            found[topic].append(partition)
        return found

    def may_act(self) -> bool:
        """Returns whether the user may handle values and commit offsets at this instant.

        Call it before you handle a value that was returned some time ago: the lease may have expired since. If this
        member has lost the partition of a returned value, it stays False for all topics until the next `consume` of the
        topic of that value. If the partitions stay here and autocommit is off, the values in hand come again once the
        lease is renewed, also those that you handle when it is true again.
        """
        may_act = self._reads is not None and self._member.may_act()
        if not may_act:
            self._member.state.reader.refuse_all()
        return may_act

    @property
    def coordinator_id(self) -> int | None:
        """The node id of the broker that stores the group's offsets."""
        return self._member.commits.offsets.coordinator.node

    async def _consume(self, topic: str, start: Any) -> list[Any] | None:
        if self.closing:
            return None
        self._member.state.reader.finish(topic)
        self._fetching.pop(topic, None)
        if topic in self._synced and topic not in self.synced_offsets:  # the user removed the topic, as in kiel
            try:
                await self._determine_offsets(topic)
            except NoOffsetsError as error:
                self._report(error)
                return []
        values, starts = await self._read(topic)
        if self.autocommit and starts and not await self._committed_first(starts):
            return []
        return values

    @property
    def _state(self) -> SubscriptionState:  # type: ignore[override]
        return self._member.state

    @property
    def _fetcher(self) -> Fetcher:  # type: ignore[override]
        return self._member.fetcher

    @property
    def _ended(self) -> BaseException | None:
        return self._member.ended

    async def _ready(self, topic: str) -> bool:
        try:
            if not await self._follow():
                return False
        except AllocatorError as error:
            if not error.retriable:
                raise
            self._report(error)
            return False
        member = self._member
        if self._fetching.get(topic) is member:
            return True
        self._fetching[topic] = member
        member.membership.polled()
        if (
            topic not in self._consumed
        ):  # members own partitions of all topics, but fetch only those that the user consumes
            self._consumed.add(topic)
            for partition in member.state.owned:
                if partition.topic == topic:
                    member.state.resume(partition)
            member.fetcher.wake()
        if member.client.partitions(topic) is None:
            self._log(f"topic {topic!r} is unknown, or this user may not see it")
        return True

    def _deliver(self, batch: Batch, next_offset: int) -> None:
        tenure = self._state.assignment[TopicPartition(batch.topic, batch.partition)]
        epoch = self._fetcher.leader_epoch(tenure.partition, next_offset)
        tenure.deliver(next_offset, epoch, self._state.reader, confirms=False)
        self.topics_to_commit.add(batch.topic)
        self._synced.add(batch.topic)

    async def _wait(self, timeout_s: float) -> None:
        await self._member.news(timeout_s)

    async def _committed_first(self, starts: Mapping[TopicPartition, int]) -> bool:
        """Commits before the values are returned. Returns False if the commit failed; the values are then read
        again."""
        member = self._member
        wanted = {p: offset for p, offset in _delivered(member).items() if p in starts}
        try:
            member.must_own(starts)
            await self._start_commit(wanted, retry=False)
        except AllocatorError as error:
            log.warning("%s: commit failed, reading the values again: %s", self.group_name, error)
            self._put_back(starts)
            return False
        except asyncio.CancelledError:
            self._put_back(starts)  # the user does not get these values
            raise
        return True

    def _put_back(self, starts: Mapping[TopicPartition, int]) -> None:
        outlived = self._member.state.reader.outlived  # a later tenure of these has a start of its own
        current = {partition: offset for partition, offset in starts.items() if partition not in outlived}
        self._member.state.reader.abandon(starts)
        super()._put_back(current)

    def _go_to(self, partition: TopicPartition, offset: int) -> None:
        state = self._member.state
        # not if the partition was lost or is being revoked
        if partition in state.held and state.position(partition) is not None:
            self._member.seek(partition, offset)

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        self._member.must_own([partition])
        self._member.seek(partition, offset)

    # -- offsets -------------------------------------------------------------------------------------------------

    def determine_coordinator(self) -> asyncio.Future[object]:
        """Finds the coordinator again. Raises NoOffsetsError if a broker refuses that."""
        self._must_be_connected()
        return start_task(self._member.commits.offsets.find())

    def determine_offsets(self, topic: str, start: Any = None) -> asyncio.Future[None]:
        """Seeks to the committed offsets of this member's partitions of a topic. `start` is ignored."""
        self._must_be_connected()
        return start_task(self._determine_offsets(topic))

    async def _determine_offsets(self, topic: str) -> None:
        partitions = [p for p in self._member.state.held if p.topic == topic]
        committed = {p: value.offset for p, value in (await self._member.commits.committed(partitions)).items()}
        rest = set(partitions) - set(committed)
        if rest:  # partitions without a committed offset are read from their beginning
            found = await list_offsets(self._member.client, dict.fromkeys(rest, "earliest"))
            committed.update((p, at.offset) for p, at in found.items() if at is not None)
        super()._put_back(committed)  # keeps the returned values uncommitted: the user may still work on them
        self._synced.add(topic)
        self.synced_offsets.add(topic)

    def commit_offsets(self, metadata: str | None = None) -> asyncio.Future[None]:
        """Commits the returned values of all topics, with an optional text as metadata.

        It commits the values that were returned before the call, whether the call is awaited or not, and a partition
        moves only after that. It retries while this member owns the partition, so a service survives an outage of
        ZooKeeper or of the coordinator. If a partition is lost meanwhile, its next owner reads the values again, and a
        warning is logged. Raises CommitFailed if the coordinator refuses permanently.

        If the text is too long for the broker, it is omitted and a warning is logged.
        """
        self._must_be_connected()
        wanted: dict[TopicPartition, int] = {}
        if self._reads is not None:  # otherwise the member has left, and there is nothing to commit
            delivered = _delivered(self._member)
            wanted = {p: offset for p, offset in delivered.items() if p.topic in self.topics_to_commit}
        return self._start_commit(wanted, metadata)

    def _start_commit(
        self, wanted: dict[TopicPartition, int], metadata: str | None = None, *, retry: bool = True
    ) -> asyncio.Future[None]:
        member = self._member
        work = partial(self._commit_in_turn, member, wanted, metadata, retry, member.state.assignment)
        task = start_task(self._commit(member, work if wanted else None))
        # before any `await`, because a rebalance may begin
        holds = [Hold(member.state.assignment[partition]) for partition in wanted]
        for hold in holds:
            hold.tenure.add(hold)
        task.add_done_callback(lambda _: _end(holds, member))
        return task

    async def _commit(self, member: GroupMember, work: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        if work is not None:
            # one commit at a time: the retry of an earlier commit must not overtake a later one
            async with self._committing:
                await work()
        # keeps topics of which more values were returned during the commit
        self.topics_to_commit &= {p.topic for p in _delivered(member)}

    async def _commit_in_turn(
        self,
        member: GroupMember,
        wanted: dict[TopicPartition, int],
        metadata: str | None,
        retry: bool,
        tenures: Mapping[TopicPartition, object],
    ) -> None:
        """Commits offsets of these `tenures`. A partition that was lost since may have had another owner."""
        backoff, stamp = Backoff(COMMIT_BACKOFF_S, COMMIT_BACKOFF_MAX_S), f"committed by {self.name}"

        def left() -> dict[TopicPartition, int]:
            return {p: offset for p, offset in wanted.items() if member.state.assignment.get(p) is tenures[p]}

        while wanted:
            if len(left()) < len(wanted):
                lost = f"lost {len(wanted) - len(left())} partitions before their commit"
                if not retry:
                    raise NotOwned(f"{self.name}: {lost}")
                log.warning("%s: %s; the next owners read the values again", self.name, lost)
                wanted = left()
                continue
            text = {p: member.commits.metadata.stamped(stamp, p) if metadata is None else metadata for p in wanted}
            try:
                await member.commits.commit({p: OffsetAndMetadata(o, text[p], -1) for p, o in wanted.items()})
                member.state.reader.finish_up_to(wanted)
                return
            except (CommitFailed, NotOwned) as error:
                final = not (error.retriable or isinstance(error, (Fenced, NotOwned)))
                if member.closing or final or not retry:
                    raise
                log.warning("%s: retrying the commit: %s", self.group_name, error)
            await asyncio.sleep(backoff.next())
            while left() and not member.closing and not member.membership.may_act():
                await member.fetcher.news(TURN_S)


def _delivered(member: GroupMember) -> dict[TopicPartition, int]:
    """Returns the positions that are not committed."""
    found = {p: tenure.to_commit(delivered=True) for p, tenure in member.state.assignment.items()}
    return {p: point.offset for p, point in found.items() if point is not None}


def _end(holds: list[Hold], member: GroupMember) -> None:
    for hold in holds:
        hold.busy = False
    member.state.on_freed()


class _PauseUnconsumed(RebalanceListener):
    def __init__(self, consumer: GroupedConsumer) -> None:
        self._consumer = consumer

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        consumer = self._consumer
        for partition in partitions:
            if partition.topic not in consumer._consumed:
                consumer._member.state.pause(partition)
        self._rebalanced(partitions)

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._rebalanced(partitions)

    def _rebalanced(self, partitions: frozenset[TopicPartition]) -> None:
        topics = {p.topic for p in partitions}
        self._consumer._synced -= topics
        self._consumer.synced_offsets -= topics
        self._consumer.allocator.on_rebalance()

    def on_records_lost(self, loss: RecordsLost) -> object:
        return self._consumer.on_records_lost(loss)


class KielAllocator:
    """A member's view of its group, with the attributes of kiel's `PartitionAllocator`.

    Set `on_rebalance` to a function without arguments; the consumer calls it after the assignment has changed.
    `allocator_fn` is the allocator function of the consumer. The attributes `members` and `mapping` do not exist,
    because a member only knows its own partitions.
    """

    def __init__(self, consumer: GroupedConsumer, zk_hosts: str | Sequence[str] | None, allocator_fn: Any) -> None:
        self.group_name = consumer.group_name
        self.consumer_name = consumer.name
        self.zk_hosts = zk_hosts
        self.allocator_fn = naive_allocator if allocator_fn is None else allocator_fn
        self.on_rebalance: Callable[[], Any] = lambda: None
        self._consumer = consumer

    @property
    def allocation(self) -> dict[str, list[int]]:
        """Topic -> the partitions that the consumer owns now."""
        return self._consumer.allocation

    @property
    def partitions(self) -> set[str]:
        """All partitions of the group's topics, as "topic:number"."""
        client = self._consumer._member.client
        return {f"{topic}:{number}" for topic in client.topics() for number in client.partitions(topic) or ()}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"consumer.allocator has no {name!r}: unlike in kiel, a member only knows its own partitions; `allocator "
            f"group describe {self.__dict__.get('group_name')}` shows members and owners"
        )
