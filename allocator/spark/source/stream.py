"""Plans the offsets of micro-batches, and commits them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from allocator.core.client import KafkaClient
from allocator.core.text import partition_names
from allocator.errors import TopicNotFound
from allocator.spark.errors import CheckpointMismatch, DataLoss, in_one_line
from allocator.spark.link import ClusterLink
from allocator.spark.options import Options
from allocator.spark.ranges import EARLIEST, LATEST, NEW_PARTITION_START, Range, StartOrEnd, StreamOffsets, limit_ends
from allocator.spark.shipping import Shipped
from allocator.spark.source.group import commit, refuse_members
from allocator.spark.source.member import StreamMember
from allocator.spark.source.plan import bounds, clip, ends, find_partitions, resolve, topic_ids
from allocator.spark.source.reading import Piece, pieces, read_ranges
from allocator.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Maximum age of metadata. Higher: new partitions are found later; lower: more requests, because Spark polls up to 100
# times per second
METADATA_S = 1.0

# How long metadata may lack a planned partition before it counts as deleted. Higher: a query waits longer after a
# deletion; lower: a broker that starts, or has old metadata, makes a partition look deleted
DELETED_AFTER_S = 10.0

Offsets = dict[TopicPartition, int]


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # not followed
    """The reader of a stream. Its methods run on the driver, except `read`, which runs in tasks.

    Guarantees: the checkpoint has the ends of a batch, and the starts that no earlier batch has, before the batch is
    read, so a repeated batch has the same records. No batch is larger than `max_offsets_per_trigger`. The stream reads
    a partition that is created while the query runs from its first record. A commit covers only records of finished
    batches.
    """

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options = options
        self.columns = columns
        self._link: ClusterLink | None = None
        # the last positions whose commit succeeded, or was not needed; None until this process has such positions
        self._settled: StreamOffsets | None = None
        self._latest: Offsets = {}
        # with Trigger.AvailableNow, the ends when the query started
        self._target: Offsets | None = None
        # deleted topics, of which the log tells
        self._missing: Collection[str] = ()
        # monotonic time of the last planned batch
        self._planned_at: float | None = None
        self._group_checked = False
        self._member = None if options.membership == "none" else StreamMember(options)

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles this reader for its tasks, which need neither the connection nor the state
        return {"options": self.options, "columns": self.columns}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # -- called by Spark on the driver ---------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        # Spark calls this for each attempt at the first batch, so it must not depend on what the topics have now: the
        # first plan resolves the start, and the checkpoint keeps it. A membership gives each partition its start
        first: dict[str, Any] = StreamOffsets({}, {}, resolved=self._member is not None).to_json()
        return first

    def getDefaultReadLimit(self) -> Any:
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        before = StreamOffsets.of_json(start)
        after = self._run(self._next(before, limit.max_rows if isinstance(limit, ReadMaxRows) else None))
        if after is before or self._too_few(before, after):
            return start
        self._planned_at = time.monotonic()
        found: dict[str, Any] = after.to_json()
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return StreamOffsets(self._latest, {}).to_json() if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._run(self._ends_now())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = StreamOffsets.of_json(start), StreamOffsets.of_json(end)
        if self._settled is None:
            self._run(self._commit(first))  # after a restart, Spark repeats a batch without another call before
        ranges = self._run(self._ranges(first, last))
        return pieces(self.options, ranges, self._run(self._client()).metadata.cluster_id)

    def commit(self, end: dict[str, Any]) -> None:
        self._run(self._commit(StreamOffsets.of_json(end)))

    def stop(self) -> None:
        if self._member is not None:
            self._member.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _too_few(self, before: StreamOffsets, after: StreamOffsets) -> bool:
        """Returns whether the batch waits for more records. The first batch, and batches of AvailableNow, do not
        wait."""
        least = self.options.min_offsets_per_trigger
        if least is None or self._target is not None or self._planned_at is None:
            return False
        begin = {**before.next, **after.begin}
        new = sum(max(0, end - begin.get(tp, end)) for tp, end in after.next.items())
        return new < least and time.monotonic() < self._planned_at + self.options.max_trigger_delay

    # -- called in tasks --------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Piece):
            yield from read_ranges(self.options, partition.ranges, self.columns, partition.cluster)

    # -- internal ---------------------------------------------------------------------------------------------------

    @in_one_line()
    def _run(self, work: Any) -> Any:
        if self._link is None:
            self._link = ClusterLink(self.options)
        return self._link.run(work)

    async def _client(self) -> KafkaClient:
        assert self._link is not None
        client = await self._link.client()
        if not self._group_checked and self.options.commit == "after_batch" and self._member is None:
            await refuse_members(client, self.options)
        self._group_checked = True
        return client

    async def _initial(self, client: KafkaClient) -> StreamOffsets:
        """Returns the start of the first batch, from the options."""
        options = self.options
        known = await bounds(client, options, await find_partitions(client, options))
        offsets = await resolve(client, options, options.start or StartOrEnd(LATEST), known, "starting_offsets")
        # the committed offset of a group that reads uncommitted records may be inside an open transaction
        upto = await self._held_back(client, offsets, {tp: end for tp, (_, end) in known.items()})
        known = {tp: (first, upto[tp]) for tp, (first, _) in known.items()}
        start = clip(options, offsets, known, "starting_offsets")
        return StreamOffsets(start, start, topic_ids(client, {tp.topic for tp in known}))

    async def _ends_now(self) -> Offsets:
        client = await self._client()
        try:
            tps = await find_partitions(client, self.options, METADATA_S)
        except TopicNotFound:
            tps = _present(client, self.options)  # the first batch knows whether they were deleted, or never existed
        return await ends(client, self.options, tps)

    async def _next(self, before: StreamOffsets, most: int | None) -> StreamOffsets:
        """Returns the end of the next batch, or `before` itself if there is nothing new."""
        client = await self._client()
        if self._member is not None:
            return await self._next_as_member(client, self._member, before, most)
        try:
            # the previous batch is processed, but Spark calls `commit` only when there is another batch
            await self._commit(before)
            return await self._after(client, before, most)
        except TopicNotFound:
            # the topic was deleted after the metadata was read; plans again with new metadata
            return await self._after(client, before, most)

    async def _after(self, client: KafkaClient, before: StreamOffsets, most: int | None) -> StreamOffsets:
        if not before.resolved:
            before = await self._initial(client)
        tps = await self._partitions(client, before.next)
        upto = await self._ends(client, before, tps)
        ids = {**before.ids, **topic_ids(client, {tp.topic for tp in tps})}
        again = _created_again(self.options, before, ids)
        known = {tp: at for tp, at in before.next.items() if tp.topic not in again}
        first = await self._start_of_new(client, [tp for tp in tps if tp not in known])
        return await self._batch(client, before, {**known, **first}, upto, ids, most)

    async def _next_as_member(
        self, client: KafkaClient, member: StreamMember, before: StreamOffsets, most: int | None
    ) -> StreamOffsets:
        """Like `_after`, for the partitions that the group assigns to this query."""
        if self._target is not None and not self._target:
            await find_partitions(client, self.options, METADATA_S)  # raises TopicNotFound
            return before  # the group has no partition to assign
        options, owned = self.options, member.border(before.next, before.ids, bounded=self._target is not None)
        # the membership may know newer partitions than this client
        await find_partitions(client, options, METADATA_S)
        upto = await self._ends(client, before, list(owned))
        ids = topic_ids(client, {tp.topic for tp in owned})
        again = _created_again(self.options, before, ids)
        # only partitions that start at this query's position: any other start was committed by a member in the new
        # topic
        former = [tp for tp, at in owned.items() if tp.topic in again and at == before.next.get(tp)]
        new = [tp for tp, at in owned.items() if at is None]
        known = await bounds(client, options, new)
        first = await resolve(client, options, options.start or StartOrEnd(EARLIEST), known, "starting_offsets")
        start = {tp: first[tp] if at is None else at for tp, at in owned.items()}
        return await self._batch(client, before, {**start, **await self._start_of_new(client, former)}, upto, ids, most)

    async def _batch(
        self,
        client: KafkaClient,
        before: StreamOffsets,
        start: Offsets,
        upto: Offsets,
        ids: Mapping[str, str],
        most: int | None,
    ) -> StreamOffsets:
        """Returns the end of a batch that reads from `start`, and at most to `upto`.

        `start` may have deleted partitions, whose offsets stay: if the topic is created again with fewer records, that
        is data loss. Returns `before` itself if there is nothing new.
        """
        upto = await self._held_back(client, start, upto)
        start = {**start, **await self._after_loss(client, before, start, upto, ids)}
        if self._target is not None:
            upto = {tp: max(start[tp], min(end, self._target.get(tp, start[tp]))) for tp, end in upto.items()}
        if most is not None:
            upto = limit_ends(start, upto, most)
        moved = {tp: at for tp, at in start.items() if before.next.get(tp) != at}
        end = {**start, **upto}
        if end == before.next and not moved and not before.recreated(ids):
            return before
        # Spark stores no start of a batch
        return StreamOffsets(end, start if before.is_start else moved, ids)

    async def _start_of_new(self, client: KafkaClient, tps: Collection[TopicPartition]) -> Offsets:
        """Returns the start of partitions that the checkpoint does not have. Raises DataLoss if their first records
        were deleted."""
        first = {tp: first for tp, (first, _) in (await bounds(client, self.options, tps)).items()}
        late = sorted(tp for tp, at in first.items() if at > NEW_PARTITION_START)
        if late:
            tp = late[0]
            what = (
                f"{tp.topic}:{tp.partition} is new to this query and begins at offset {first[tp]}: {first[tp]} offsets "
                f"were deleted before the query read them ({len(late)} such partitions in all)"
            )
            if self.options.fail_on_data_loss:
                raise DataLoss(f"{what}; set fail_on_data_loss to false to start at the first record that exists")
            log.warning("%s; starting at the first record that exists", what)
        return first

    async def _partitions(self, client: KafkaClient, start: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Returns the partitions to read now. Raises CheckpointMismatch, and DataLoss for a deleted partition."""
        options = self.options
        foreign = sorted({tp.topic for tp in start if not options.wants(tp)})
        if foreign:
            raise CheckpointMismatch(
                f"the checkpoint belongs to a query that read {', '.join(foreign)}, which this query does not read; "
                "give this query its own checkpointLocation"
            )
        try:
            tps = await find_partitions(client, options, METADATA_S)
        except TopicNotFound as error:
            if not start:
                raise  # the topic never existed, so its name is probably wrong
            if options.fail_on_data_loss:
                raise _deleted(error.topics) from error
            if error.topics != self._missing:  # Spark plans up to 100 times per second
                log.warning("%s; reading the others", error)
                self._missing = error.topics
            return _present(client, self.options)
        deleted = sorted({tp.topic for tp in start if tp not in set(tps)})
        if deleted and options.fail_on_data_loss:
            raise _deleted(deleted)
        return tps

    async def _ends(self, client: KafkaClient, before: StreamOffsets, tps: Collection[TopicPartition]) -> Offsets:
        """Returns the current ends. If there are new records, refreshes the topic ids afterwards, so that they are
        newer."""
        self._latest = upto = await ends(client, self.options, tps, before.next)
        if any(before.next.get(tp) != end for tp, end in upto.items()):
            await client.refresh({tp.topic for tp in tps})
        return upto

    async def _held_back(self, client: KafkaClient, start: Mapping[TopicPartition, int], upto: Offsets) -> Offsets:
        """Returns `upto`, but `start` for partitions whose end is lower only because of an open transaction.

        These partitions lost no records: positions from read_uncommitted can be ahead of the end that read_committed
        has.
        """
        short = [tp for tp, end in upto.items() if end < start[tp]]
        if not short or self.options.isolation_level != "read_committed":
            return upto
        whole = await ends(client, replace(self.options, isolation_level="read_uncommitted"), short)
        return {**upto, **{tp: start[tp] for tp in short if whole[tp] >= start[tp]}}

    async def _after_loss(
        self,
        client: KafkaClient,
        before: StreamOffsets,
        start: Mapping[TopicPartition, int],
        upto: Mapping[TopicPartition, int],
        ids: Mapping[str, str],
    ) -> Offsets:
        """Returns where the stream goes on in partitions that end before `start`. Raises DataLoss.

        It goes on at the end of the log. Without topic ids, the topic may be a new one: the stream reads it from its
        first record.
        """
        short = sorted(tp for tp, end in upto.items() if end < start[tp])
        if not short:
            return {}
        tp = short[0]
        what = f"{tp.topic}:{tp.partition} was read up to offset {start[tp]} and now ends at {upto[tp]}"
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{what}: the topic was created again, or its log was truncated; start with another "
                "checkpointLocation, or set fail_on_data_loss to false to continue with the records that it has now"
            )
        log.warning("%s (%d partitions in all): their last records are lost; continuing at the end", what, len(short))
        perhaps_new = [tp for tp in short if before.ids.get(tp.topic) is None or ids.get(tp.topic) is None]
        if perhaps_new:
            log.warning("%s may have been created again; reading from the first record", partition_names(perhaps_new))
        return {**{tp: upto[tp] for tp in short}, **await self._start_of_new(client, perhaps_new)}

    async def _ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[Range]:
        client = await self._client()
        begin = {**start.next, **end.begin}
        if self._member is None and end.next and not start.resolved and not end.begin:
            begin.update((await self._start_anew(client)).next)
        planned = await self._existing(client, {tp: at for tp, at in end.next.items() if begin.get(tp) != at})
        if self._member is not None:
            planned = {tp: last for tp, last in planned.items() if tp in begin and last > begin[tp]}
            owned = self._member.claim(planned)
            left_out = planned.keys() - owned.keys()
            if left_out:
                log.warning("other members own %s now, and continue at the committed offset", partition_names(left_out))
            done = {tp: max(begin[tp], owned[tp] or 0) for tp in planned if tp in owned}
            return [_range(tp, at, end) for tp, at in done.items() if end.next[tp] > at]
        # a checkpoint of Spark's own connector has no start of new partitions
        missing = [tp for tp in planned if tp not in begin]
        if missing:
            begin.update(await self._start_of_new(client, missing))
            log.info("%s start at their first record", partition_names(missing))
        backwards = [tp for tp, last in planned.items() if last < begin[tp]]
        if backwards:
            names = partition_names(backwards)
            what = f"the checkpoint lacks the start of a batch that ends before the present start of {names}"
            if self.options.fail_on_data_loss:
                raise DataLoss(
                    f"{what}: Spark's own connector planned it; start with another checkpointLocation, or set "
                    "fail_on_data_loss to false to go on after it"
                )
            log.warning("%s; going on after it", what)
        return [_range(tp, begin[tp], end) for tp, last in planned.items() if last > begin[tp]]

    async def _start_anew(self, client: KafkaClient) -> StreamOffsets:
        """Returns the start of the options for a first batch that Spark's own connector planned. Raises DataLoss,
        because it may differ from the planned start."""
        what = "the checkpoint lacks the start of its first batch, which is unfinished"
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{what}: Spark's own connector planned it, and keeps the start in another file of the checkpoint, "
                "sources/0/0; start with another checkpointLocation and starting_offsets from that file, or set "
                "fail_on_data_loss to false to start at the present starting_offsets"
            )
        log.warning("%s; reading from the present starting_offsets", what)
        return await self._initial(client)

    async def _existing(self, client: KafkaClient, planned: Offsets) -> Offsets:
        """Returns the part of `planned` whose partitions exist. Raises DataLoss for a deleted partition."""
        if not planned:
            return planned
        topics = {tp.topic for tp in planned}
        deadline = time.monotonic() + DELETED_AFTER_S
        await client.refresh(topics, max_age_s=METADATA_S)
        while deleted := {tp for tp in planned if tp.partition not in (client.partitions(tp.topic) or ())}:
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(client.retry_backoff_s)
            await client.refresh(topics)
        if not deleted:
            return planned
        if self.options.fail_on_data_loss:
            raise _deleted(sorted({tp.topic for tp in deleted}))
        log.warning("%s: deleted after the batch was planned; reading the others", partition_names(deleted))
        return {tp: at for tp, at in planned.items() if tp not in deleted}

    async def _commit(self, done: StreamOffsets) -> None:
        """Commits the positions of a finished batch, once."""
        if self.options.commit != "after_batch" or self._member is not None or done == self._settled:
            return
        if await commit(await self._client(), self.options, done, self._settled):
            self._settled = done


def _range(tp: TopicPartition, start: int, end: StreamOffsets) -> Range:
    return Range(tp.topic, tp.partition, start, end.next[tp], end.ids.get(tp.topic))


def _present(client: KafkaClient, options: Options) -> list[TopicPartition]:
    """Returns the partitions of the topics that exist."""
    return [
        TopicPartition(topic, number) for topic in options.topics or () for number in client.partitions(topic) or ()
    ]


def _created_again(options: Options, before: StreamOffsets, ids: Mapping[str, str]) -> set[str]:
    """Returns the topics that were recreated since `before`. Raises DataLoss."""
    again = before.recreated(ids)
    if again and options.fail_on_data_loss:
        raise DataLoss(
            f"topic {', '.join(map(repr, again))} was deleted and created again while the query read it (its id "
            f"was {before.ids[again[0]]}, and is {ids[again[0]]} now); start with another checkpointLocation, or "
            "set fail_on_data_loss to false to read the new topic from its first record"
        )
    for topic in again:
        log.warning("topic %r was deleted and created again; reading it from its first record", topic)
    return set(again)


def _deleted(topics: Any) -> DataLoss:
    return DataLoss(
        f"topic {', '.join(map(repr, topics))} was deleted, or lost partitions, while the query read it; create it "
        "and start with another checkpointLocation, or set fail_on_data_loss to false to read the others"
    )
