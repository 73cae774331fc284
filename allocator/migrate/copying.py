"""Copies partitions of the old cluster to the new one until it is stopped or fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, Optional

from kafka.errors import NoOffsetForPartitionError

from allocator import RebalanceListener
from allocator.assignors import GroupView, resolve
from allocator.core.aio import TaskGroup, first_of, time_text, wait_for_event, wall_ms, within
from allocator.core.client import ErrorCode
from allocator.core.consumer import ConsumerBase, client_of, membership_from
from allocator.core.fetch import Batch
from allocator.core.text import partition_names
from allocator.errors import (
    AllocatorError,
    BrokerError,
    CommitFailed,
    ConfigError,
    CorruptRecordError,
    InconsistentAssignor,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
)
from allocator.migrate.group_sync import GroupSync
from allocator.migrate.lag import LagMeter, MirrorProgress
from allocator.migrate.mirrored_topics import MirroredTopics
from allocator.migrate.offset_map import Run
from allocator.migrate.open_transactions import OpenTransactions
from allocator.migrate.positions import PartitionCopy, Target, Wait, target_lost
from allocator.migrate.report import MirrorReport, Remedy, SourceLoss, Stop
from allocator.migrate.source_watch import SourceWatch
from allocator.migrate.takeover import MirrorClusters, find_targets_lost, refuse_other_target, take_over
from allocator.migrate.topics import deletes_after
from allocator.migrate.translate import ends_of
from allocator.producer import (
    SMALL_BYTES,
    BatchSender,
    BatchTooLarge,
    Encoded,
    PartitionQueue,
    SequenceLost,
    encode,
    halves,
    merged,
)
from allocator.types import OffsetAndMetadata, PartitionLike, Partitions, TopicPartition

log = logging.getLogger(__name__)

TARGETS_S: Final = 5.0  # time between checks of new topics. Higher: fewer requests; lower: a loss is noticed sooner.
POLL_S: Final = 0.5  # longest wait for records. Lower: `stop` takes effect sooner.
# Time at an open transaction, with nothing else left to copy, after which a mirror with a goal ends. Higher: waits for
# longer transactions; lower: reports a hanging one sooner.
OPEN_S: Final = 30.0
# Longest wait for partitions before the last round of synced groups: other processes may own all. Higher: such a
# process ends later; lower: a process that gets its partitions late ends without syncing them
OWN_S: Final = 10.0
STOP_S: Final = 10.0  # longest wait after `stop` for acknowledgements of batches in flight


class SourceConsumer(ConsumerBase):
    """Reads the old cluster in large batches."""

    _fetching = {"max_partition_bytes": 4 << 20}


class RangeTo:
    """Kafka's `range`, under a name that only the processes of a mirror to the cluster with the id `target` offer.

    So a group refuses the processes of a mirror to another cluster, whether it is in ZooKeeper or in Kafka: they would
    take partitions, and each cluster would get only some of the records.
    """

    def __init__(self, target: str) -> None:
        self.name = f"range to {target}"

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[PartitionLike]]:
        return resolve("range")(view)


class Throttle:
    """Limits sending to `bytes_s` bytes a second, with bursts of one second's bytes; None: no limit.

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


async def ends_unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work` until `stopping` is set, which cancels it. Returns whether `work` ended first."""
    return (await first_of(work, stopping.wait()))[0]


class Copying(RebalanceListener):
    """One start of a mirror: reads the partitions that its consumer owns, sends their records and commits.

    `stopping` ends it. Each step writes records, then the offset map, then the commit.
    """

    def __init__(
        self, report: MirrorReport, clusters: MirrorClusters, throttle: Throttle, stopping: asyncio.Event
    ) -> None:
        settings = report.settings
        self._settings = settings
        self._report = report
        self._clusters = clusters
        self._throttle = throttle
        self._stopping = stopping
        self._consumer = SourceConsumer(
            *settings.topics,
            pattern=settings.pattern,
            brokers=settings.old,
            security=settings.old_security,
            group=settings.group,
            membership=membership_from(settings.membership, vars(settings)),
            auto_commit_interval_s=None,
            isolation_level="read_committed",
            assignor=RangeTo(str(clusters.new.metadata.cluster_id)),
            listener=self,
            auto_offset_reset="none",  # `_out_of_range` handles positions that the log does not have
        )
        may_act = self._consumer._member.may_act  # `Consumer.may_act` would have the records in hand delivered again
        self._sender = BatchSender(
            clusters.new, self._acknowledged, self._refused, may_act, buffer_bytes=settings.buffer_bytes
        )
        self._topics = MirroredTopics(report, clusters, self._stop)
        self._copies: dict[TopicPartition, PartitionCopy] = {}
        self._waits: dict[TopicPartition, Wait] = {}
        self._watch = SourceWatch(clusters, client_of(self._consumer), self._copies, self._waits, report.stops)
        self._committing = asyncio.Lock()
        self._targets_checked = 0.0
        self._error: Exception | None = None
        self._unsent: TopicPartition | None = None  # partition whose last batch is not completely passed to the sender
        self._last: list[MirrorProgress] = []
        self.lags = LagMeter(clusters.old, self._copies, report.stops)
        self._open = OpenTransactions(clusters.old)

    # -- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Creates the topics that the new cluster lacks, and reads the offset map."""
        clusters, settings = self._clusters, self._settings
        if self._sender.magic < 2:
            raise ConfigError(
                f"the new cluster is Kafka {'.'.join(map(str, clusters.new.broker_version))}; a mirror writes record "
                "batches of format v2, which takes 0.11 or newer"
                + (": there is no way back to it" if settings.back_of is not None else "")
            )
        if clusters.back is not None and not await clusters.back.exists():
            raise ConfigError(
                f"the cluster {settings.old} has no {clusters.back.topic!r}, so no mirror of group "
                f"{settings.back_of!r} goes there; correct back_of (--back-of)"
            )
        if settings.pattern is not None:
            clusters.old.follow_all()
        if await clusters.map.exists():
            await clusters.map.open()
        await refuse_other_target(clusters, settings, await self._topics.wanted())
        if settings.pattern is None:
            await self._topics.keep(settings.topics)
        await clusters.map.open(settings.replication)
        if clusters.back is not None:
            await clusters.back.open()

    async def goal(self) -> dict[TopicPartition, Optional[int]]:
        """Returns the ends of the old topics; None for partitions without a leader."""
        partitions, topics = self._clusters.old.partitions, await self._topics.wanted()
        return await self._ends(TopicPartition(topic, n) for topic in topics for n in partitions(topic) or ())

    async def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Optional[int]]:
        old = self._clusters.old
        existing = [each for each in partitions if each.partition in (old.partitions(each.topic) or ())]
        found = await ends_of(old, [each for each in existing if old.leader(each) is not None])
        return {each: found[each].end if each in found else None for each in existing}

    async def run(self, goal: dict[TopicPartition, Optional[int]] | None) -> None:
        """Copies until it is stopped, or until all processes together have reached `goal`."""
        scope = TaskGroup()
        beside = {"sender": self._sender.run(scope), "commits": self._commits(), "ends": self.lags.run()}
        pattern, groups = self._settings.sync_group_offsets, None
        if pattern is not None:
            may_act = self._consumer._member.may_act
            groups = GroupSync(self._report, self._clusters, self._copies, may_act, pattern)
            beside["groups"] = groups.run()
        try:
            await scope.run(self._read(goal, groups), **beside)
        except (InconsistentAssignor, BrokerError) as error:
            if isinstance(error, BrokerError) and error.code != ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                raise
            raise ConfigError(
                f"group {self._settings.group!r} has members that mirror to another cluster than {self._settings.new}, "
                f"or that are no mirrors: start this one with another --group ({error})"
            ) from error

    def progress(self) -> list[MirrorProgress]:
        """Returns the progress of this process's partitions; after `run`, of its last partitions."""
        if not self._copies and not self._waits:
            return self._last
        found = []
        for partition in sorted(self._copies.keys() | self._waits.keys()):
            copy, wait = self._copies.get(partition), self._waits.get(partition)
            if wait is None and self._clusters.new.leader(partition) is None:
                wait = Wait.NEW_LEADER  # the sender repeats its requests
            why = None if wait is None else wait.value
            if copy is None or wait is Wait.DOUBTED:
                found.append(MirrorProgress(partition, None if copy is None else copy.acked, None, waits=why))
                continue
            at, end, lag_s = copy.acked, None, None
            if partition.topic not in self._report.stops:  # nobody measures those
                fetched = None
                with contextlib.suppress(AllocatorError):  # the partition has just moved
                    fetched = self._consumer.high_watermark(partition)
                end = self.lags.end(partition, fetched)
            if end is not None:
                queue = self._sender.queues.get(partition)
                pending = None if queue is None else queue.first
                oldest_ms = copy.newest_ms if pending is None else pending.batch.base_time
                lag_s = self.lags.age_s(partition, at, oldest_ms) if at < end else 0.0
            if at == self._open.begin.get(partition):
                why = Wait.OPEN_TRANSACTION.value
            found.append(MirrorProgress(partition, at, end, lag_s, why))
        return found

    async def _read(self, goal: dict[TopicPartition, Optional[int]] | None, groups: GroupSync | None) -> None:
        consumer = self._consumer
        client_of(consumer).on_metadata(self._watch.metadata_changed)
        if not await ends_unless(self._stopping, consumer.start()):
            return
        began = goal_checked = time.monotonic()
        reached = False
        try:
            while not self._stopping.is_set():
                batch = None
                try:
                    batch = await consumer.getbatch(POLL_S)
                    # set before any `await`: the position is already after the batch, so a commit would count the batch
                    # as done
                    self._unsent = None if batch is None else TopicPartition(batch.topic, batch.partition)
                except OffsetOutOfRange as error:
                    await self._out_of_range(TopicPartition(error.topic, error.partition), error)
                except TopicAuthorizationFailed as error:
                    self._stop(error.topic, Stop(str(error), Remedy.UNFIT))
                except CorruptRecordError as error:
                    await self._stop_behind(TopicPartition(error.topic, error.partition), error)
                except NoOffsetForPartitionError:
                    pass  # partitions without a committed offset: `_begin` sets where they begin
                if self._error is not None:
                    raise self._error
                if self._unsent is not None:
                    await self._watch.check(self._unsent)
                for partition, replaced in sorted((await self._watch.settle(self._drain)).items()):
                    self._stop(partition.topic, replaced.stop)
                if batch is not None and self._unsent in self._waits:
                    consumer.seek(self._unsent, batch.base_offset)
                    batch = self._unsent = None
                if time.monotonic() - self._targets_checked > TARGETS_S:
                    await self._topics.leave_ended(consumer.assignment(), self._drain)
                    if self._topics.has_ended(consumer.assignment()):
                        break  # as a member, it would keep its partitions from the next mirror in this direction
                    await self._check_targets()
                    await self._begin_postponed()
                await self._topics.check_origins({each.topic for each in self._copies})
                if batch is not None and batch.topic not in self._report.stops:
                    try:
                        await self._send(batch)
                    except (CorruptRecordError, BatchTooLarge) as error:
                        await self._stop_behind(TopicPartition(batch.topic, batch.partition), error)
                    if self._stopping.is_set():
                        break  # the rest of the batch is unsent, and may not count as done
                    self._unsent = None
                    if goal is None or time.monotonic() - goal_checked < POLL_S:
                        continue  # producers may never pause
                goal_checked = time.monotonic()
                if groups is not None and not self._copies and goal_checked - began < OWN_S:
                    continue
                reached = goal is not None and (await self._reached(goal) or bool(self._report.uncommitted))
                if reached:
                    break
            await self._drain(consumer.assignment())
            await self._commit(consumer.assignment())
            if reached and (groups is None or await ends_unless(self._stopping, groups.sync())):
                self._report.caught_up = not self._report.uncommitted
            with contextlib.suppress(AllocatorError, asyncio.TimeoutError):
                await within(self.lags.measure(), STOP_S)
            self._last = self.progress()
        finally:
            await consumer.close()

    # -- records --------------------------------------------------------------------------------------------------

    async def _drain(self, partitions: Partitions) -> None:
        """Waits until all records of these partitions are acknowledged; after `stop`, for at most `STOP_S`.

        The new cluster may be down. The next start reads unacknowledged records again.
        """
        if not await self._patiently(partial(self._sender.drained, partitions)):
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._sender.drained(partitions), STOP_S)

    async def _patiently(self, wait: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Waits for the sender, but not for partitions without a leader. Returns False if `stop` came first."""
        new = self._clusters.new
        while not self._stopping.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                return await within(ends_unless(self._stopping, wait()), POLL_S)
            gone = {each for each in self._copies if new.leader(each) is None and not self._sender.idle(each)}
            self._postpone(gone, Wait.NEW_LEADER)
        return False

    async def _send(self, batch: Batch) -> None:
        """Passes the batch to the sender, until the partition is lost or `stop` is called."""
        partition = TopicPartition(batch.topic, batch.partition)
        queue, copy = self._sender.queues.get(partition), self._copies.get(partition)
        if copy is None:
            return
        # `_expires` judges a batch by its newest record, so it gets the batches as they are
        small = SMALL_BYTES if copy.expires_after_ms is None else 0
        for encoded in encode(batch, self._sender.takes_zstd, small=small):
            if self._expires(partition, copy, encoded):
                return
            await self._throttle.take(encoded.size, self._stopping)
            if not self._sender.has_space(encoded.size):
                await self._patiently(partial(self._sender.wait_for_space, encoded.size))
            if self._stopping.is_set() or not self._sender.put(partition, queue, encoded):
                return
            await asyncio.sleep(0)

    def _expires(self, partition: TopicPartition, copy: PartitionCopy, encoded: Encoded) -> bool:
        """Stops the topic if the new cluster would delete the batch at once while the old one keeps it."""
        age = copy.expires_after_ms
        if age is None or not 0 <= encoded.max_time < wall_ms() - age:
            return False
        newest = time_text(encoded.max_time)
        reason = (
            f"the new cluster would delete its records at once: those at offsets {encoded.first} to "
            f"{encoded.next - 1} of partition {partition.partition} are of {newest} or older, and retention.ms is "
            f"{age} there"
        )
        if self._settings.accept_loss:
            log.warning("%s: topic %r: %s", self._settings.group, partition.topic, reason)
            copy.expires_after_ms = None  # one warning for each partition
            return False
        self._stop(partition.topic, Stop(reason, Remedy.EXPIRED))
        return True

    def _acknowledged(self, partition: TopicPartition, encoded: Encoded, target: int, _: int) -> None:
        """Called by the sender, in the order of each partition."""
        copy = self._copies.get(partition)
        if copy is None:
            return  # the next owner finds the records on the new cluster
        if target < 0:  # the next start finds them
            raise SequenceLost("{}:{} has a batch already, and does not say where".format(*partition), retriable=True)
        ends = [*(before for _, before in encoded.runs[1:]), encoded.records]
        for (source, before), end in zip(encoded.runs, ends):
            self._clusters.map.extend(partition, Run(source, target + before), end - before)
        if copy.is_exact and target > copy.end:
            self._clusters.map.note_other(partition, copy.end)
        others = copy.note(encoded, target)
        if others < 0:
            reason = target_lost(partition, Target(target - others), target, copy.target_id)
            self._stop(partition.topic, Stop(reason or "", Remedy.RESTART))
        elif others:
            self._report.duplicated += others
            log.warning(
                "%s:%d: %d records before offset %d come from another producer, or were written twice",
                *partition,
                others,
                target,
            )
        self._report.records_of[partition.topic] += encoded.records
        self._report.bytes_of[partition.topic] += encoded.size
        self._report.last_progress_ms = wall_ms()

    def _refused(self, partition: TopicPartition, queue: PartitionQueue[Encoded], error: BrokerError) -> None:
        if isinstance(error, SequenceLost):
            raise error  # the next start continues at the commit
        batch = queue.pending[0].batch
        if error.code == ErrorCode.MESSAGE_TOO_LARGE and batch.records > 1:  # merged, or encoded for an old format
            with contextlib.suppress(CorruptRecordError):
                smaller = halves(batch)
                queue.merged_bytes = batch.size // 2
                if not self._sender.replace_first(partition, smaller):
                    raise SequenceLost(f"{error}; the batch may be written", code=error.code, retriable=True)
                return
        reason = (
            f"the new cluster refuses old offsets {batch.first} to {batch.next - 1} of partition {partition.partition} "
            f"({batch.size} bytes): {error}; nothing is skipped"
        )
        remedy = Remedy.TIMES if error.code == ErrorCode.INVALID_TIMESTAMP else Remedy.UNFIT
        self._stop(partition.topic, Stop(reason, remedy))

    # -- commits --------------------------------------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_s)
            try:
                await self._commit(self._consumer.assignment())
            except AllocatorError as error:
                self._report.errors += 1
                log.warning("%s: commit failed, retrying with the next one: %s", self._settings.group, error)

    async def _commit(self, partitions: Iterable[TopicPartition]) -> None:
        async with self._committing:
            for partition in partitions:
                if partition in self._copies:
                    await self._pass_markers(partition)
            # taken before the flush: the commit must not contain batches that are acknowledged during the flush. The
            # committed offsets of a topic that lost records stay as evidence for the next start. A commit of a deleted
            # partition is tried again for seconds, and delays those of all others
            old = client_of(self._consumer)
            offsets = {
                each: self._copies[each].commit
                for each in partitions
                if each in self._copies
                and not self._report.is_lost(each.topic)
                and each.partition in (old.partitions(each.topic) or ())
            }
            if not offsets:
                return
            if not self._consumer._member.may_act():  # the next owner may have written other entries of the map
                raise CommitFailed(
                    f"{self._settings.group}: no valid lease, so another process may own the partitions", retriable=True
                )
            await self._clusters.map.flush()
            await _commit_permitted(self._consumer, offsets, self._stop)

    async def _pass_markers(self, partition: TopicPartition) -> None:
        """Moves the position past invisible records, such as transaction markers, at the end of the old log."""
        if not self._all_acknowledged(partition) or partition.topic in self._report.stops:
            return
        try:
            position = await self._consumer.position(partition)
        except NoOffsetForPartitionError:
            return  # just assigned, without a position yet
        if self._all_acknowledged(partition) and partition in self._copies:
            self._copies[partition].pass_to(position)

    def _all_acknowledged(self, partition: TopicPartition) -> bool:
        return self._unsent != partition and self._sender.idle(partition)

    async def _reached(self, goal: dict[TopicPartition, Optional[int]]) -> bool:
        mine, stops = self._consumer.assignment(), self._report.stops
        unknown = [each for each, end in goal.items() if end is None]
        for each in unknown:
            del goal[each]
        goal.update(await self._ends(unknown))
        await self._commit(mine)
        left = {each: end for each, end in goal.items() if end != 0 and each.topic not in stops}
        lags = self._consumer.lag()  # up to open transactions
        for partition in mine & left.keys():
            end, copy = left[partition], self._copies.get(partition)
            if end is None or copy is None or (copy.acked < end and lags.get(partition) != 0):
                return False
        await self._check_targets()
        left = {each: end for each, end in left.items() if each.topic not in stops}
        committed = await self._clusters.offsets.fetch(list(left))
        reached = {
            each for each, offset in committed.items() if (end := left[each]) is not None and offset.offset >= end
        }
        late = left.keys() - reached
        if late:
            await self._stop_others(late)
        late = {each for each in late if each.topic not in stops}
        await self._open.update({each: committed[each].offset for each in late if each in committed})
        if late and late == self._open.begin.keys() and self._open.age_s >= OPEN_S:
            self._report.uncommitted.update(await self._open.describe(sorted(late)))
        return not late

    async def _stop_others(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops recreated topics of other processes: they will not reach the goal."""
        known = self._clusters.map
        ids = await self._clusters.source_ids.of({each.topic for each in partitions})
        await known.refresh()
        for each in partitions:
            reason = known.recreated(each, ids[each.topic])
            if reason is not None and each.topic not in self._settings.recreated:
                self._stop(each.topic, Stop(reason, Remedy.RECREATED))

    # -- assignment -----------------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Sets the positions. The consumer reads the partitions after this returns."""
        try:
            # `stop` can interrupt this, which may wait a minute for slow replicas of a crashed process's records
            await ends_unless(self._stopping, self._begin(partitions))
        except Exception as error:  # noqa: BLE001 - `_read` raises it; the group would only log it
            self._error = error

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Waits until all fetched records are acknowledged, and commits."""
        await self._drain(partitions)
        try:
            await self._commit(partitions)
        except AllocatorError as error:
            log.warning("%s: commit failed, the next owner compares the records: %s", self._settings.group, error)
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: Partitions) -> None:
        """Drops the partitions. The next owner finds the written records on the new cluster."""
        self._sender.drop(partitions)
        self._clusters.map.forget(partitions)
        for partition in partitions:
            self._copies.pop(partition, None)
            self._waits.pop(partition, None)

    async def _begin(self, partitions: Partitions) -> None:
        clusters, topics = self._clusters, {partition.topic for partition in partitions}
        await self._topics.prepare(topics)
        self._pause_stopped(partitions)
        while True:
            topics = {each.topic for each in partitions if self._topics.is_mirrored(each.topic)}
            ages = await _ages(clusters, topics, self._stop)
            topics &= ages.keys()
            partitions = frozenset(each for each in partitions if each.topic in topics)
            gone = await _leaderless(clusters, partitions, self._stop)
            for wait in Wait:
                self._postpone({each for each, why in gone.items() if why is wait}, wait)
            partitions -= gone.keys()
            ids, target_ids = await clusters.source_ids.of(topics), await clusters.target_ids.of(topics)
            try:
                taken = await take_over(clusters, self._settings, partitions, ids, target_ids)
                break
            except TopicAuthorizationFailed as error:
                self._stop(error.topic, Stop(str(error), Remedy.UNFIT))
        await self._sender.add(partitions, merged)
        for partition, each in taken.items():
            if each.lost is not None:
                self._report.count_lost(each.lost, clusters.map.incarnation(partition).number)
            if each.stop is not None:
                self._stop(partition.topic, each.stop)
        copies = {
            each: PartitionCopy(
                one.position,
                one.end,
                ids[each.topic],
                target_ids[each.topic],
                ages[each.topic],
                counted=one.counted,
                is_exact=one.is_exact,
            )
            for each, one in taken.items()
            if one.stop is None
        }
        for partition in copies:
            self._report.already_present += taken[partition].present
            self._report.duplicated += taken[partition].unexpected
            if taken[partition].unexpected:
                log.warning(
                    "%s:%d: %d records before offset %d of the new log match no record of the old log: another "
                    "producer wrote them, a mirror wrote them twice, or the old cluster has deleted the originals",
                    *partition,
                    taken[partition].unexpected,
                    taken[partition].counted,
                )
        moved = {each: copy.commit for each, copy in copies.items() if taken[each].seek}
        if moved:
            await _commit_permitted(self._consumer, moved, self._stop)
            copies = {each: copy for each, copy in copies.items() if self._topics.is_mirrored(each.topic)}
        for partition in copies:
            self._consumer.seek(partition, taken[partition].position)
        # set only after the seek: earlier, `_commit` would count all records before the former position as done
        self._copies.update(copies)
        for partition in partitions:
            self._waits.pop(partition, None)
        self._pause_stopped(partitions)

    def _postpone(self, partitions: AbstractSet[TopicPartition], wait: Wait) -> None:
        """Gives up partitions without a leader until they have one. The others continue."""
        if partitions:
            names = partition_names(partitions)
            log.warning("%s: %d partitions wait (%s): %s", self._settings.group, len(partitions), wait.value, names)
            self.on_partitions_lost(frozenset(partitions))
            self._waits.update(dict.fromkeys(partitions, wait))
            self._consumer.pause(partitions & self._consumer.assignment())

    async def _begin_postponed(self) -> None:
        waiting = {each for each in self._waits if each not in self._copies and self._topics.is_mirrored(each.topic)}
        again = waiting & self._consumer.assignment()
        if again:
            again -= (await _leaderless(self._clusters, again, self._stop)).keys()
        if again:
            await self._begin(frozenset(again))
            self._consumer.resume(each for each in again & self._consumer.assignment() if each in self._copies)

    def _stop(self, topic: str, stop: Stop) -> None:
        """Stops copying a topic. If the new cluster lost records of it, also stops its commits."""
        if topic in self._report.stops and (stop.remedy is not Remedy.RESTART or self._report.is_lost(topic)):
            return
        self._report.stops[topic] = stop
        log.error("%s: %s", self._settings.group, stop.text(topic))
        if stop.remedy in (Remedy.RESTART, Remedy.TIMES, Remedy.UNFIT):
            self._sender.drop([each for each in self._copies if each.topic == topic])
        self._pause_stopped(self._consumer.assignment())

    async def _stop_behind(self, partition: TopicPartition, error: AllocatorError) -> None:
        """Stops a topic that cannot be read further, after the records before that place."""
        await self._drain(frozenset({partition}))
        self._stop(partition.topic, Stop(str(error), Remedy.UNFIT))

    def _pause_stopped(self, partitions: Partitions) -> None:
        self._consumer.pause([each for each in partitions if not self._topics.is_mirrored(each.topic)])

    async def _check_targets(self) -> None:
        """Stops topics whose acknowledged records the new cluster has lost."""
        new, stops = self._clusters.new, self._report.stops
        self._targets_checked = time.monotonic()
        while True:
            ids = await self._clusters.target_ids.of({each.topic for each in self._copies if each.topic not in stops})
            kept = {
                each: copy.target
                for each, copy in self._copies.items()
                if each.topic in ids and not (new.partitions(each.topic) and new.leader(each) is None)
            }
            try:
                found = await within(find_targets_lost(new, kept, ids), TARGETS_S)
                break
            except asyncio.TimeoutError:  # a leader has just failed
                return
            except TopicAuthorizationFailed as error:
                self._stop(error.topic, Stop(str(error), Remedy.UNFIT))
        for each, reason in found.items():
            if each in self._copies:
                self._stop(each.topic, Stop(reason, Remedy.RESTART))

    async def _out_of_range(self, partition: TopicPartition, error: OffsetOutOfRange) -> None:
        """Handles a position that the old log lacks: its beginning was deleted, or it is another log."""
        await self._drain(frozenset({partition}))
        ends = (await ends_of(self._clusters.old, [partition])).get(partition)
        if ends is None or partition not in self._consumer.assignment():
            return  # the topic was deleted, or another process owns the partition
        if await self._consumer.position(partition) != error.offset:
            return  # the error concerns the committed offset, but `_begin` has moved the position since
        replaced = await self._watch.replaced(partition, ends.start, error)
        if replaced is not None:
            self._stop(partition.topic, replaced.stop)
            return
        if ends.start > error.offset:
            loss = SourceLoss(partition, error.offset, ends.start - 1)
            self._report.count_lost(loss, self._clusters.map.incarnation(partition).number)
        self._consumer.seek(partition, max(ends.start, error.offset))


async def _commit_permitted(
    consumer: SourceConsumer, offsets: Mapping[TopicPartition, OffsetAndMetadata], stop: Callable[[str, Stop], None]
) -> None:
    """Commits these offsets. Stops the topics whose offsets this user may not commit."""
    denied: frozenset[str] = frozenset()
    while left := {each: offset for each, offset in offsets.items() if each.topic not in denied}:
        try:
            await consumer.commit(left)
            return
        except CommitFailed as error:
            if not error.denied:
                raise
            denied |= error.denied
        for topic in sorted(denied):
            stop(topic, Stop(str(TopicAuthorizationFailed(topic)), Remedy.UNFIT))


async def _leaderless(
    clusters: MirrorClusters, partitions: AbstractSet[TopicPartition], stop: Callable[[str, Stop], None]
) -> dict[TopicPartition, Wait | None]:
    """Returns those of the partitions that have no leader now, and on which cluster.

    Stops topics that this user may not see; None for their partitions.
    """
    found: dict[TopicPartition, Optional[Wait]] = {}
    for client, wait in (clusters.old, Wait.OLD_LEADER), (clusters.new, Wait.NEW_LEADER):
        left = partitions - found.keys()
        await client.refresh({each.topic for each in left})
        found.update(dict.fromkeys((each for each in left if client.leader(each) is None), wait))
        for topic in {each.topic for each in found}:
            try:
                client.refuse_hidden([topic])
            except TopicAuthorizationFailed as error:
                stop(topic, Stop(str(error), Remedy.UNFIT))
                found.update(dict.fromkeys((each for each in found if each.topic == topic), None))
    return found


async def _ages(
    clusters: MirrorClusters, topics: Iterable[str], stop: Callable[[str, Stop], None]
) -> dict[str, int | None]:
    """Returns the ages at which the new cluster deletes records that the old one keeps. Stops topics whose settings
    this user may not read."""
    found = {}
    for topic in topics:
        try:
            found[topic] = await deletes_after(clusters.old, clusters.new, topic)
        except BrokerError as error:
            if error.retriable:
                raise
            stop(topic, Stop(str(error), Remedy.UNFIT))
    return found
