"""Topics of an old cluster copied to a new one as they grow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, Optional

from allocator.core.aio import TaskGroup, first_of, wait_for_event, wall_ms, within
from allocator.core.client import BY_NAME, FetchRequest, KafkaClient
from allocator.core.consumer import ConsumerBase, membership_from
from allocator.core.fetch import Batch
from allocator.core.offsets import GroupOffsets
from allocator.core.subscription import NoPosition, RebalanceListener
from allocator.core.zookeeper import NoChroot, ZooKeeperClient
from allocator.errors import AllocatorError, CommitFailed, ConfigError, LogTruncated, OffsetOutOfRange
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap, Run, map_topic
from allocator.migrate.positions import PartitionPosition, Target, target_lost
from allocator.migrate.takeover import (
    Log,
    Replaced,
    SourceLoss,
    TakenOver,
    TopicsStopped,
    find_replaced,
    find_targets_lost,
    take_over,
    truncated,
)
from allocator.migrate.topic_sync import TopicSync, refuse_same_cluster
from allocator.migrate.topics import ZNODE, TopicIds, deletes_after, same_topic
from allocator.migrate.translate import ends_of
from allocator.producer import Encoded, Producer, encode
from allocator.types import OffsetAndMetadata, Partitions, TopicPartition

__all__ = ["Mirror", "MirrorProgress", "MirrorSettings", "RecordsGone", "Throttle"]

log = logging.getLogger(__name__)


CONNECT_S: Final = 30.0  # for a cluster; more: waits for a cluster that is starting; less: reports it sooner
RESTART_S: Final = 1.0  # pause after a failure that may pass
TARGETS_S: Final = 5.0  # between checks that the new topics exist; more: fewer requests; less: a loss is noticed sooner
POLL_S: Final = 0.5  # wait for records; less: `stop` is noticed sooner
LOSSES: Final = 1000  # most ranges in `Mirror.losses`
STOP_S: Final = 10.0  # wait at the end for acknowledgements of batches under way

# remedies for topics that are stopped
RECREATED: Final = (
    "Start with --recreated {topic}=earliest to mirror it from its earliest record, behind what the new cluster has; "
    "or with --recreated {topic}=continue to go on at the stored position, as if it were the same topic"
)
TRUNCATED: Final = (
    "Start with --recreated {topic}=continue to go on at the first offset that the old log lost, behind what the new "
    "cluster has, which keeps the records that the old one lost; or with --recreated {topic}=earliest to mirror all "
    "records again"
)
EXPIRED: Final = (
    "Set retention.ms of the new topic to -1 until its consumers have moved, and start the mirror again; or start with "
    "--accept-loss to mirror these records nevertheless"
)
TARGET_LOST: Final = (
    "Start with --restart {topic} to mirror it again from its earliest old record, behind what the new cluster has"
)


class SourceConsumer(ConsumerBase):
    """Reads the old cluster, and gives the mirror its connections and what its fetcher knows."""

    _fetching = {"max_partition_bytes": 4 << 20}

    @property
    def client(self) -> KafkaClient:
        return self._engine.client

    def leader_epoch(self, partition: TopicPartition, offset: int) -> int:
        """Returns the leader epoch of the record before `offset`, -1 if it is unknown."""
        return self._engine.fetcher.leader_epoch(partition, offset)


class RecordsGone(AllocatorError):
    """The old cluster deleted records before they were mirrored. Everything else is done."""


class MirrorProgress(NamedTuple):
    """The progress of one partition. `next` is the old position after the last acknowledged record.

    `end` of the old log is None before the first response of its leader.
    """

    partition: TopicPartition
    next: int
    end: Optional[int]

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.next)


class Throttle:
    """At most `bytes_s` bytes a second, and one second's bytes at once; None: no limit.

    After a larger batch it waits longer, so the average rate holds for batches of every size.
    """

    def __init__(self, bytes_s: float | None) -> None:
        self._rate = bytes_s
        self._budget = 0.0
        self._at = 0.0

    async def take(self, size: int, stop: asyncio.Event) -> None:
        """Returns when `size` bytes may be sent, or at once when `stop` is set."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._budget = min(self._rate, self._budget + (now - self._at) * self._rate) - size
        self._at = now
        if self._budget < 0:
            await wait_for_event(stop, -self._budget / self._rate)


class Mirror(RebalanceListener):
    """One process of a mirror. Any number of processes with the same settings share the partitions.

    Guarantee: the mirror writes every record of an old partition to the new partition of the same number, in the same
    order, with key, value, timestamp and headers, at least once. After a crash it writes each record exactly once if
    no other producer writes there. The old formats have no headers (before 0.11) and no timestamp (-1, before 0.10).
    Of transactions, the mirror writes the committed records, without the transaction.

    When a process takes a partition over, it compares the records of the new cluster behind the committed position with
    the old cluster's, and does not send again those that are there (`already_present`; `duplicated` counts records that
    differ). Each step writes records, then the offset map, then the commit, so a process may be killed between any two.

    `run` ends after `stop`, or, with `until_caught_up`, when the records that the old topics had at its start are
    mirrored.

    `lost_at_source` counts offsets that the old cluster deleted before they were mirrored, and `losses` names them. A
    topic that was deleted and created again, or truncated, stops and is in `stopped`, until `settings.recreated` says
    how to go on; the other topics go on. Both survive restarts: positions are offsets of the group, ids are in the
    offset map.
    """

    def __init__(self, settings: MirrorSettings) -> None:
        settings.check()
        self.settings = settings
        self.records = 0
        """Records that the new cluster acknowledged since the start of this process."""
        self.bytes = 0
        """Their bytes on the wire."""
        self.records_of: Counter[str] = Counter()
        """`records`, by old topic."""
        self.bytes_of: Counter[str] = Counter()
        """`bytes`, by old topic."""
        self.last_progress_ms: int | None = None
        """When the new cluster last acknowledged records, or `run` began; milliseconds since the epoch."""
        self.errors = 0
        """Failures after which the mirror tried again."""
        self.problem: str | None = "it has not reached its servers yet"
        """Why nothing is mirrored at present; None while it runs."""
        self.duplicated = 0
        """Records of the new cluster that the mirror did not expect there: of another producer, or written twice."""
        self.already_present = 0
        """Records that the new cluster had already after a crash, and that were not sent again."""
        self.lost_at_source = 0
        """Old offsets that the old cluster deleted before they were mirrored."""
        self.losses: deque[SourceLoss] = deque(maxlen=LOSSES)
        """Their ranges; the last thousand."""
        self.stopped: dict[str, str] = {}
        """Old topics that are not mirrored until `settings.recreated` says how to go on -> the reason."""
        self.caught_up = False
        """Whether `run(until_caught_up=True)` has mirrored all records of its goal."""
        self._stopping: asyncio.Event | None = None
        self._connected = False  # reached its servers at least once
        self._remedies: dict[str, str] = {}  # of stopped topics
        self._restartable: set[str] = set()  # stopped topics of which the new cluster lost records
        self._targets_checked = 0.0
        self._throttle = Throttle(settings.throttle_bytes_s)
        self._last: list[MirrorProgress] = []
        self._positions: dict[TopicPartition, PartitionPosition] = {}
        self._lost_to: dict[tuple[TopicPartition, int], int] = {}
        self._topic_ids: dict[str, Optional[str]] = {}  # when their partitions were taken over
        self._doubted: set[str] = set()
        self._deleted_after: dict[str, int] = {}  # topic -> age in ms
        self._error: Exception | None = None
        self._unsent: TopicPartition | None = None  # the producer does not have all of its last batch yet
        # created by `_open` and `_mirror`, for each start
        self._old: KafkaClient
        self._new: KafkaClient
        self._offsets: GroupOffsets
        self._topic_sync: TopicSync
        self._ids: TopicIds
        self._target_ids: TopicIds
        self._map: OffsetMap
        self._producer: Producer
        self._consumer: SourceConsumer
        self._source: KafkaClient  # the consumer's client
        self._commit_lock: asyncio.Lock

    # -- life -----------------------------------------------------------------------------------------------------

    async def run(self, *, until_caught_up: bool = False) -> None:
        """Mirrors. Once it has reached its servers, it logs failures that may pass and retries without end.

        Raises failures to reach them, so that a mistyped address ends it, and failures that an operator has to mend:
        ConfigError, TopicsDiffer, NotEmpty and others. After all other work it raises TopicsStopped for stopped topics,
        and RecordsGone if the old cluster deleted records before they were mirrored, unless `settings.accept_loss`.
        """
        await self._run(until_caught_up)
        if self.stopped:
            raise TopicsStopped("; ".join(map(self._remedy, sorted(self.stopped))))
        if self.lost_at_source and not self.settings.accept_loss:
            raise RecordsGone(
                f"the old cluster deleted {self.lost_at_source} offsets before they were mirrored: "
                f"{', '.join(map(str, list(self.losses)[:5]))}{' and others' if len(self.losses) > 5 else ''}; all "
                "that it still had is mirrored. Copy them from a backup, or pass --accept-loss to end without this "
                "error"
            )

    async def _run(self, until_caught_up: bool) -> None:
        self._stopping = asyncio.Event()
        self.last_progress_ms = wall_ms()
        goal: dict[TopicPartition, int] | None = None
        while not self._stopping.is_set():
            try:
                async with contextlib.AsyncExitStack() as stack:
                    if not await self._unless_stopped(self._open(stack)):
                        return
                    self.problem = None
                    if until_caught_up and goal is None:
                        goal = await self._goal()
                    await self._mirror(goal)
                    return
            except AllocatorError as error:
                if not error.retriable or not self._connected:
                    raise
                self.errors += 1
                self.problem = str(error)
                log.warning("%s: retrying in %g s: %s", self.settings.group, RESTART_S, error)
                await wait_for_event(self._stopping, RESTART_S)

    def stop(self) -> None:
        """`run` finishes the batches under way, commits and returns."""
        if self._stopping is not None:
            self._stopping.set()

    def progress(self) -> list[MirrorProgress]:
        """The progress of the partitions of this process; after `run`, of those that it had last."""
        if not self._positions:
            return self._last
        found = []
        for partition in sorted(self._positions):
            with contextlib.suppress(AllocatorError):  # the partition has just moved
                found.append(
                    MirrorProgress(
                        partition, self._positions[partition].acked, self._consumer.high_watermark(partition)
                    )
                )
        return found

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        self._old = KafkaClient(settings.old, security=settings.old_security)
        self._new = KafkaClient(settings.new, security=settings.new_security)
        for client in (self._old, self._new):
            stack.push_async_callback(client.close)
            await client.connect(CONNECT_S)
        if settings.membership == "zookeeper" and not self._connected:
            await _reach(settings.zookeeper or "", settings.create)
        self._connected = True
        await refuse_same_cluster(self._old, self._new)
        self._offsets = GroupOffsets(self._old, settings.group)
        stack.push_async_callback(self._offsets.close)
        self._map = OffsetMap(self._new, map_topic(settings.group))
        ensemble = None
        if settings.old_zookeeper is not None and self._old.broker_version < (2, 8):
            ensemble = ZooKeeperClient(settings.old_zookeeper)
            stack.push_async_callback(ensemble.close)
            await ensemble.connect(make_chroot=False)
        self._ids, self._target_ids = TopicIds(self._old, ensemble), TopicIds(self._new)
        self._topic_sync = TopicSync(settings, self._old, self._new, self._offsets, ensemble)
        self._producer = Producer(self._new, self._note, self._may_send, buffer_bytes=settings.buffer_bytes)
        self._producer.open()
        if self._producer.magic < 2:
            raise ConfigError(
                f"the new cluster is Kafka {'.'.join(map(str, self._new.broker_version))}; a mirror writes record "
                "batches of format v2, which takes 0.11 or newer"
            )
        self._commit_lock = asyncio.Lock()
        self._error = self._unsent = None
        self._positions = {}
        self._topic_ids, self._doubted, self._deleted_after = {}, set(), {}
        self.stopped.clear()
        self._restartable.clear()
        if settings.pattern is not None:
            self._old.follow_all()
        else:
            await self._topic_sync.keep(settings.topics)
        await self._map.open(settings.replication)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether `work` ended before `stop` was called, which cancels it."""
        assert self._stopping is not None
        ended, _ = await first_of(work, self._stopping.wait())
        return ended

    async def _mirror(self, goal: Mapping[TopicPartition, int] | None) -> None:
        settings = self.settings
        self._consumer = SourceConsumer(
            *settings.topics,
            pattern=settings.pattern,
            brokers=settings.old,
            security=settings.old_security,
            group=settings.group,
            membership=membership_from(settings.membership, vars(settings)),
            auto_commit_interval_s=None,
            isolation_level="read_committed",
            assignor="range",
            listener=self,
            auto_offset_reset="none",  # `_out_of_range` handles positions that the log does not have
        )
        scope = TaskGroup()
        await scope.run(self._read(goal), producer=self._producer.run(scope), commits=self._commits())

    async def _read(self, goal: Mapping[TopicPartition, int] | None) -> None:
        assert self._stopping is not None
        consumer = self._consumer
        self._source = consumer.client
        self._source.on_metadata(self._doubt)
        if not await self._unless_stopped(consumer.start()):
            return
        goal_checked = time.monotonic()
        try:
            while not self._stopping.is_set():
                batch = None
                try:
                    batch = await consumer.getbatch(POLL_S)
                    # at once: the position is behind the batch now, and a commit would count the batch as done
                    self._unsent = None if batch is None else TopicPartition(batch.topic, batch.partition)
                except OffsetOutOfRange as error:
                    await self._out_of_range(TopicPartition(error.topic, error.partition), error)
                except NoPosition:
                    pass  # partitions without a committed offset: `_begin` sets where they begin
                if self._error is not None:
                    raise self._error
                if batch is not None:
                    await self._check_id(batch.topic)
                await self._settle_doubts()
                if time.monotonic() - self._targets_checked > TARGETS_S:
                    await self._check_targets()
                if batch is not None and batch.topic not in self.stopped:
                    await self._send(batch)
                    if self._stopping.is_set():
                        break  # the rest of the batch is unsent, and may not count as done
                    self._unsent = None
                    if goal is None or time.monotonic() - goal_checked < POLL_S:
                        continue  # producers may never pause
                goal_checked = time.monotonic()
                if goal is not None and await self._reached(goal):
                    self.caught_up = True
                    break
            await self._drain(consumer.assignment())
            await self._commit(consumer.assignment())
            self._last = self.progress()
        finally:
            await consumer.close()

    # -- records --------------------------------------------------------------------------------------------------

    async def _drain(self, partitions: Partitions) -> None:
        """Waits until all their records are acknowledged; after `stop`, for `STOP_S` at most.

        The new cluster may be down. The next start reads unacknowledged records again.
        """
        if not await self._unless_stopped(self._producer.drained(partitions)):
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._producer.drained(partitions), STOP_S)

    async def _send(self, batch: Batch) -> None:
        """Gives the batch to the producer, until the partition is lost or `stop` is called."""
        assert self._stopping is not None
        partition = TopicPartition(batch.topic, batch.partition)
        queue = self._producer.queue(partition)
        for encoded in encode(batch, self._producer.takes_zstd):
            if self._expires(partition, encoded):
                return
            await self._throttle.take(encoded.size, self._stopping)
            await self._unless_stopped(self._producer.room(encoded.size))
            if self._stopping.is_set() or not self._producer.put(partition, queue, encoded):
                return
            await asyncio.sleep(0)

    def _expires(self, partition: TopicPartition, encoded: Encoded) -> bool:
        """Stops the topic if the new cluster would delete the batch at once and the old one keeps it."""
        topic, age = partition.topic, self._deleted_after.get(partition.topic)
        if age is None or not 0 <= encoded.max_time < wall_ms() - age:
            return False
        newest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(encoded.max_time / 1000))
        reason = (
            f"the new cluster would delete its records at once: those at offsets {encoded.first} to "
            f"{encoded.next - 1} of partition {partition.partition} are of {newest} or older, and retention.ms is "
            f"{age} there"
        )
        if self.settings.accept_loss:
            log.warning("%s: topic %r: %s", self.settings.group, topic, reason)
            del self._deleted_after[topic]  # once for each topic
            return False
        self._stop(topic, reason, EXPIRED)
        self._pause_stopped(self._consumer.assignment())
        return True

    def _may_send(self) -> bool:
        return self._consumer.may_act()

    def _note(self, partition: TopicPartition, encoded: Encoded, target: int) -> None:
        """Caller: the producer, in the order of each partition."""
        position = self._positions.get(partition)
        if position is None:
            return  # the next owner finds the records on the new cluster
        for source, before in encoded.runs:
            self._map.note(partition, Run(source, target + before))
        others = position.note(encoded, target)
        if others < 0:
            reason = target_lost(partition, Target(target - others), target, position.topic_id)
            self._stop_target(partition.topic, reason or "")
        elif others:
            self.duplicated += others
            log.warning(
                "%s:%d: %d records before %d are of another producer, or written twice", *partition, others, target
            )
        self.records += encoded.records
        self.bytes += encoded.size
        self.records_of[partition.topic] += encoded.records
        self.bytes_of[partition.topic] += encoded.size
        self.last_progress_ms = wall_ms()

    # -- commits --------------------------------------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_interval_s)
            try:
                await self._commit(self._consumer.assignment())
            except AllocatorError as error:
                self.errors += 1
                log.warning("%s: commit failed, retrying with the next one: %s", self.settings.group, error)

    async def _commit(self, partitions: Iterable[TopicPartition]) -> None:
        async with self._commit_lock:
            # positions in a topic that lost records stay as evidence for the next start
            mine = [each for each in partitions if each in self._positions and each.topic not in self._restartable]
            for partition in mine:
                await self._pass_markers(partition)
            # taken before the flush: the commit may not contain batches that are acknowledged during it
            offsets = {each: self._to_commit(each) for each in mine if each in self._positions}
            offsets = {each: at for each, at in offsets.items() if each.topic not in self._restartable}
            if not offsets:
                return
            if not self._consumer.may_act():  # the next owner may have written other entries of the map
                error = CommitFailed(f"{self.settings.group}: it is not confirmed that it still owns its partitions")
                error.retriable = True
                raise error
            await self._map.flush()
            await self._consumer.commit(offsets)

    def _to_commit(self, partition: TopicPartition) -> OffsetAndMetadata:
        position, known = self._positions[partition], self._topic_ids.get(partition.topic)
        source_id = None if known is None or known.startswith(ZNODE) else known
        epoch = self._consumer.leader_epoch(partition, position.acked)
        return position.stored.committed(position.acked, source_id, epoch)

    async def _pass_markers(self, partition: TopicPartition) -> None:
        """Moves the position past invisible records (transaction markers) at the end of the old log."""
        busy = self._unsent == partition or not self._producer.idle(partition)
        if busy or partition.topic in self.stopped:
            return
        try:
            position = await self._consumer.position(partition)
        except NoPosition:
            return  # it was gained just now, and the reader has not set its position yet
        if self._unsent != partition and self._producer.idle(partition) and partition in self._positions:
            self._positions[partition].pass_to(position)

    async def _goal(self) -> dict[TopicPartition, int]:
        await self._old.refresh(self.settings.topics)
        topics = self.settings.topics or [t for t in self._old.topics() if self._matches(t)]
        wanted = [TopicPartition(topic, n) for topic in topics for n in self._old.partitions(topic) or ()]
        return {partition: log.end for partition, log in (await ends_of(self._old, wanted)).items()}

    async def _reached(self, goal: Mapping[TopicPartition, int]) -> bool:
        mine = self._consumer.assignment()
        await self._commit(mine)
        if all(
            self._next(each) >= end for each, end in goal.items() if each in mine and each.topic not in self.stopped
        ):
            await self._check_targets()
        left = {each: end for each, end in goal.items() if end and each.topic not in self.stopped}
        if any(self._next(each) < end for each, end in left.items() if each in mine):
            return False
        committed = await self._offsets.fetch(list(left))
        late = [each for each, end in left.items() if each not in committed or committed[each].offset < end]
        if late:
            await self._stop_others(late)
        return all(each.topic in self.stopped for each in late)

    async def _stop_others(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops recreated topics among `partitions` of other processes: they will not reach the goal."""
        ids = await self._ids.of({each.topic for each in partitions})
        await self._map.refresh()
        for each in partitions:
            reason = self._map.recreated(each, ids[each.topic])
            if reason is not None and each.topic not in self.settings.recreated:
                self._stop(each.topic, reason, RECREATED)

    # -- assignment -----------------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Sets the positions. The consumer reads the partitions after this returns."""
        try:
            await self._begin(partitions)
        except Exception as error:  # noqa: BLE001 - `_read` raises it; the group would only log it
            self._error = error

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Waits until all their records that were read are acknowledged, and commits."""
        await self._drain(partitions)
        try:
            await self._commit(partitions)
        except AllocatorError as error:
            log.warning("%s: commit failed, the next owner compares the records: %s", self.settings.group, error)
        self._forget(partitions)

    def on_partitions_lost(self, partitions: Partitions) -> None:
        """Drops the partitions. The next owner finds the written records on the new cluster."""
        self._forget(partitions)

    def _forget(self, partitions: Partitions) -> None:
        self._producer.drop(partitions)
        self._map.forget(partitions)
        for partition in partitions:
            self._positions.pop(partition, None)

    async def _begin(self, partitions: Partitions) -> None:
        await self._topic_sync.keep({partition.topic for partition in partitions})
        ids = await self._ids.of({partition.topic for partition in partitions})
        target_ids = await self._target_ids.of({partition.topic for partition in partitions})
        taken = await take_over(
            partitions, self.settings, self._old, self._new, self._offsets, self._map, ids, target_ids
        )
        self._topic_ids.update(ids)
        for topic in ids:
            age = await deletes_after(self._old, self._new, topic)
            if age is not None:
                self._deleted_after[topic] = age
        await self._producer.add(partitions)
        for partition, each in taken.items():
            if each.lost is not None:
                self._lose(each.lost)
            if each.replaced is not None:
                self._stop_replaced(partition, each.replaced)
            elif each.target_lost is not None:
                self._restartable.add(partition.topic)
                self._stop(partition.topic, each.target_lost, TARGET_LOST)
        for partition, each in taken.items():
            if not each.stopped:
                self._positions[partition] = PartitionPosition(each.position, each.end, target_ids[partition.topic])
                self._count_present(partition, each)
        moved = {each: self._to_commit(each) for each, one in taken.items() if one.seek and not one.stopped}
        if moved:
            await self._consumer.commit(moved)
        for partition, each in taken.items():
            if each.seek:
                self._consumer.seek(partition, each.position)
        self._pause_stopped(partitions)

    def _count_present(self, partition: TopicPartition, taken: TakenOver) -> None:
        self.already_present += taken.present
        if taken.unexpected:
            self.duplicated += taken.unexpected
            log.warning(
                "%s:%d: %d records before offset %d of the new log match no record of the old log: another producer "
                "wrote them, a mirror wrote them twice, or the old cluster has deleted the originals",
                *partition,
                taken.unexpected,
                taken.end,
            )

    # -- losses -----------------------------------------------------------------------------------------------------

    def _lose(self, loss: SourceLoss) -> None:
        """Counts and logs a loss, without offsets that were counted before a reconnection."""
        key = (loss.partition, self._map.incarnation(loss.partition).number)
        loss = loss._replace(first=max(loss.first, self._lost_to.get(key, 0)))
        if loss.offsets <= 0:
            return
        self._lost_to[key] = loss.last + 1
        self.lost_at_source += loss.offsets
        self.losses.append(loss)
        log.error("%s: the old cluster deleted %s before they were mirrored", self.settings.group, loss)

    def _stop(self, topic: str, reason: str, remedy: str) -> None:
        if topic not in self.stopped:
            self.stopped[topic] = reason
            self._remedies[topic] = remedy.format(topic=topic)
            log.error("%s: %s", self.settings.group, self._remedy(topic))

    def _stop_replaced(self, partition: TopicPartition, why: Replaced) -> None:
        """Stops a topic that was created again or truncated on the old cluster."""
        self._stop(partition.topic, why.reason, RECREATED if why.cut is None else TRUNCATED)
        self._pause_stopped(self._consumer.assignment())

    def _stop_target(self, topic: str, reason: str) -> None:
        """Stops a topic of which the new cluster lost records. Sends no more of it and commits nothing."""
        self._restartable.add(topic)
        self._stop(topic, reason, TARGET_LOST)
        mine = frozenset(each for each in self._positions if each.topic == topic)
        self._producer.drop(mine)
        self._pause_stopped(mine & self._consumer.assignment())

    async def _check_targets(self) -> None:
        """Stops topics of which the new cluster lost records that it had acknowledged."""
        kept = {
            each: Target(position.end, position.topic_id)
            for each, position in self._positions.items()
            if each.topic not in self.stopped
        }
        ids = await self._target_ids.of({each.topic for each in kept})
        for each, reason in (await find_targets_lost(self._new, kept, ids)).items():
            if each in self._positions and each.topic not in self.stopped:
                self._stop_target(each.topic, reason)
        self._targets_checked = time.monotonic()

    def _pause_stopped(self, partitions: Iterable[TopicPartition]) -> None:
        stopped = [partition for partition in partitions if partition.topic in self.stopped]
        if stopped:
            self._consumer.pause(*stopped)

    def _remedy(self, topic: str) -> str:
        return f"topic {topic!r} is not mirrored: {self.stopped[topic]}. {self._remedies[topic]}"

    async def _out_of_range(self, partition: TopicPartition, error: OffsetOutOfRange) -> None:
        """The old log does not have the position: its beginning was deleted, or it is another log."""
        await self._drain(frozenset({partition}))
        ids = await self._ids.of([partition.topic])
        ends = (await ends_of(self._old, [partition])).get(partition)
        if ends is None or partition not in self._consumer.assignment():
            return  # the topic was deleted, or another process owns the partition
        if await self._consumer.position(partition) != error.offset:
            return  # the error is about the committed offset, and `_begin` has moved the position since
        at = Log(ends.start, error.offset)
        why = (await find_replaced(self._old, self._new, self._map, {partition: at}, ids, {})).get(partition)
        if why is None and isinstance(error, LogTruncated):
            why = truncated(partition, error.offset, error.divergent_offset)
        if why is not None:
            self._stop_replaced(partition, why)
            return
        if at.start > error.offset:
            self._lose(SourceLoss(partition, error.offset, at.start - 1))
        self._consumer.seek(partition, max(at.start, error.offset))

    def _doubt(self) -> None:
        """Marks topics that may have been created again as doubted. Caller: the client, when its metadata changed."""
        for topic in {partition.topic for partition in self._positions} - self.stopped.keys():
            now = self._source.topic_id(topic)
            same = same_topic(self._topic_ids.get(topic), None if now is None else str(now))
            # a truncated topic, and without ids a recreated one, shows only by partitions without a leader
            if same is not False:
                numbers = self._source.partitions(topic) or ()
                same = bool(numbers) and all(self._source.leader(TopicPartition(topic, n)) is not None for n in numbers)
            if not same:
                self._doubted.add(topic)

    async def _check_id(self, topic: str) -> None:
        """Marks the topic as doubted if a batch that was fetched by name may be of a recreated topic."""
        version, known = self._source.api_version(FetchRequest), self._topic_ids.get(topic)
        if known is None or (version is not None and version > BY_NAME and not known.startswith(ZNODE)):
            return  # the metadata of a new topic reaches `_doubt` before such a batch
        if same_topic(known, (await self._ids.of([topic]))[topic]) is False:
            self._doubted.add(topic)

    async def _settle_doubts(self) -> None:
        """Compares doubted topics with the mirrored records. A topic that does not exist now stays doubted."""
        for topic in list(self._doubted):
            ids = await self._ids.of([topic])
            mine = frozenset(each for each in self._positions if each.topic == topic)
            if self._old.partitions(topic) is None or any(self._old.leader(each) is None for each in mine):
                continue
            await self._drain(mine)
            ends = await ends_of(self._old, mine)
            logs = {
                each: Log(ends[each].start, self._positions[each].acked)
                for each in mine
                if each in ends and each in self._positions
            }
            found = await find_replaced(self._old, self._new, self._map, logs, ids, {})
            self._doubted.discard(topic)
            if found:
                self._stop_replaced(*min(found.items()))

    def _next(self, partition: TopicPartition) -> int:
        position = self._positions.get(partition)
        return 0 if position is None else position.acked

    def _matches(self, topic: str) -> bool:
        return re.match(self.settings.pattern or "", topic) is not None


async def _reach(hosts: str, create: bool) -> None:
    """Raises if the ensemble is unreachable, or ConfigError if it lacks the chroot; `create` creates it.

    Processes with a mistyped chroot would form a second mirror, and mirror every record twice.
    """
    ensemble = ZooKeeperClient(hosts)
    try:
        await ensemble.connect(CONNECT_S, make_chroot=create)
    except NoChroot as error:
        raise ConfigError(f"{error} Correct --zookeeper, or start once with --create") from error
    finally:
        await ensemble.close()
