"""Micro-batches: which offsets each one reads, and what is committed after it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from allocator.client.client import KafkaClient
from allocator.errors import TopicNotFound
from allocator.spark.errors import CheckpointMismatch, DataLoss, in_one_line
from allocator.spark.link import ClusterLink
from allocator.spark.options import Options
from allocator.spark.ranges import EARLIEST, LATEST, Range, StartOrEnd, StreamOffsets, share_out
from allocator.spark.source.group import commit, refuse_members
from allocator.spark.source.member import StreamMember
from allocator.spark.source.plan import bounds, clip, ends, find_partitions, resolve, some, topic_ids
from allocator.spark.source.reading import Piece, pieces, read_ranges
from allocator.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before pyspark 4.2 a source is not told the start, nor the limit
    ReadAllAvailable = ReadMaxRows = None
    SupportsTriggerAvailableNow = object

__all__ = ["StreamReader"]

log = logging.getLogger(__name__)

# more: new partitions are found later; less: more requests, as Spark asks for news up to a hundred times a second
METADATA_S = 1.0

Offsets = dict[TopicPartition, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # not followed
    """Lives on the driver for as long as the query does; only `read` runs in tasks.

    Guarantees: a batch is a range of offsets that stands in the checkpoint before it is read, so that a repeated
    batch is the same; no batch is larger than `max_offsets_per_trigger`; partitions that appear while the query runs
    are read from their first record; a commit never covers what no finished batch has read.
    """

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options = options
        self.columns = columns
        self._link: ClusterLink | None = None
        # as far as batches were planned, for a pyspark that does not say where the next one starts
        self._reached: StreamOffsets | None = None
        # nothing before it was read by a batch
        self._initial_positions: StreamOffsets | None = None
        self._committed: Offsets = {}
        self._latest: Offsets = {}
        # Trigger.AvailableNow: what was there when the query began
        self._target: Offsets | None = None
        # when a batch was planned last, on the monotonic clock
        self._last_news: float | None = None
        self._group_checked = False
        self._member = None if options.membership == "none" else StreamMember(options)

    def __getstate__(self) -> dict[str, Any]:
        # tasks get a copy; it has no connection, and no memory
        return {"options": self.options, "columns": self.columns}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # -- what Spark asks, on the driver ---------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        self._initial_positions = self._run(self._initial())
        return self._noted(self._initial_positions)

    def getDefaultReadLimit(self) -> Any:
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        before = self._reached if start is None else StreamOffsets.of_json(start)
        most = self.options.max_offsets_per_trigger
        if limit is not None:
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        after = self._run(self._next(before or StreamOffsets({}, {}), most))
        if before is not None and after is not before and self._too_few(before, after):
            after = before
        if start is not None and after is before:
            return start
        if after is not before:
            self._last_news = time.monotonic()
        return self._noted(after)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return StreamOffsets(self._latest, {}).to_json() if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._run(self._ends_now())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        upto = StreamOffsets.of_json(end)
        self._noted(upto)
        return pieces(self.options, self._run(self._ranges(StreamOffsets.of_json(start), upto)))

    def commit(self, end: dict[str, Any]) -> None:
        done = StreamOffsets.of_json(end)
        if self._reached is None:
            self._noted(done)
        if self.options.commit == "after_batch" and self._member is None:
            self._run(self._commit(done))

    def stop(self) -> None:
        if self._member is not None:
            self._member.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _too_few(self, before: StreamOffsets, after: StreamOffsets) -> bool:
        """Whether the batch waits for more records. The first batch, and those of AvailableNow, wait for none."""
        least = self.options.min_offsets_per_trigger
        if least is None or self._target is not None or self._last_news is None:
            return False
        begin = {**before.next, **after.begin}
        new = sum(max(0, end - begin.get(tp, end)) for tp, end in after.next.items())
        return new < least and time.monotonic() < self._last_news + self.options.max_trigger_delay

    # -- what tasks do --------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Piece):
            yield from read_ranges(self.options, partition.ranges, self.columns)

    # -- inside ---------------------------------------------------------------------------------------------------

    @in_one_line()
    def _run(self, work: Any) -> Any:
        if self._link is None:
            self._link = ClusterLink(self.options)
        return self._link.run(work)

    def _noted(self, positions: StreamOffsets) -> dict[str, Any]:
        self._reached = positions
        return positions.to_json()

    async def _client(self) -> KafkaClient:
        assert self._link is not None
        client = await self._link.client()
        if not self._group_checked and self.options.commit == "after_batch" and self._member is None:
            await refuse_members(client, self.options)
        self._group_checked = True
        return client

    async def _initial(self) -> StreamOffsets:
        if self._member is not None:
            return StreamOffsets({}, {})  # what it is given has its beginning with it
        client, options = await self._client(), self.options
        known = await bounds(client, options, await find_partitions(client, options))
        offsets = await resolve(client, options, options.start or StartOrEnd(LATEST), known, "starting_offsets")
        # where a group stands that reads what is not committed yet, a transaction may be open
        upto = await self._held_back(client, offsets, {tp: end for tp, (_, end) in known.items()})
        known = {tp: (first, upto[tp]) for tp, (first, _) in known.items()}
        ids = topic_ids(client, {tp.topic for tp in known})
        return StreamOffsets(clip(options, offsets, known, "starting_offsets"), {}, ids)

    async def _ends_now(self) -> Offsets:
        client = await self._client()
        return await ends(client, self.options, await self._partitions(client, {}))

    async def _next(self, before: StreamOffsets, most: int | None) -> StreamOffsets:
        """The end of the next batch; `before` itself if there is nothing new."""
        client, options = await self._client(), self.options
        if self._member is not None:
            return await self._next_of_ours(client, self._member, before, most)
        if options.commit == "after_batch" and before != self._initial_positions:
            # Spark asks for the next batch when the one before is done, but says so only once there is a next one
            await self._commit(before)
        try:
            return await self._after(client, before, most)
        except TopicNotFound:
            # deleted since the metadata was read, which it has been again by now
            return await self._after(client, before, most)

    async def _after(self, client: KafkaClient, before: StreamOffsets, most: int | None) -> StreamOffsets:
        options = self.options
        start = dict(before.next)
        tps = await self._partitions(client, start)
        upto = await self._ends(client, before, tps)
        ids = {**before.ids, **topic_ids(client, {tp.topic for tp in tps})}
        again = self._created_again(before, ids)
        start = {tp: at for tp, at in start.items() if tp.topic not in again}
        new = [tp for tp in tps if tp not in start]
        begin = {tp: first for tp, (first, _) in (await bounds(client, options, new)).items()}
        if self._target is not None:
            upto = {tp: min(end, self._target[tp]) for tp, end in upto.items() if tp in self._target}
            begin = {tp: min(first, upto[tp]) for tp, first in begin.items() if tp in upto}
        start.update(begin)
        upto = await self._held_back(client, start, upto)
        self._must_reach(start, upto)
        if most is not None:
            # what was made anew is read whole: beside a busy partition a share would never come
            anew = {tp: end for tp, end in upto.items() if end < start[tp]}
            upto = {**share_out(start, upto, most), **anew}
        # a topic that is gone keeps its place: should it come back, with fewer records, that is data loss, not news
        after = {**{tp: at for tp, at in before.next.items() if tp.topic not in again}, **upto}
        return before if after == before.next and not again else StreamOffsets(after, begin, ids)

    async def _next_of_ours(
        self, client: KafkaClient, member: StreamMember, before: StreamOffsets, most: int | None
    ) -> StreamOffsets:
        """The same, of the partitions that the group gives to this query."""
        options, ours = self.options, member.border(before.next, before.ids)
        # what the membership was told of may be news to this client
        await find_partitions(client, options, METADATA_S)
        upto = await self._ends(client, before, list(ours))
        ids = topic_ids(client, {tp.topic for tp in ours})
        again = self._created_again(before, ids)
        # what came from another member begins where that one committed
        former = [tp for tp, at in ours.items() if tp.topic in again and at == before.next.get(tp)]
        new = [tp for tp, at in ours.items() if at is None]
        known = await bounds(client, options, new)
        first = await resolve(client, options, options.start or StartOrEnd(EARLIEST), known, "starting_offsets")
        earliest = {tp: at for tp, (at, _) in (await bounds(client, options, former)).items()}
        start = {**{tp: first[tp] if at is None else at for tp, at in ours.items()}, **earliest}
        if self._target is not None:
            upto = {tp: max(start[tp], min(end, self._target.get(tp, start[tp]))) for tp, end in upto.items()}
        upto = await self._held_back(client, start, upto)
        self._must_reach(start, upto)
        if most is not None:
            upto = share_out(start, upto, most)
        begin = {tp: at for tp, at in start.items() if before.next.get(tp) != at}
        return before if upto == dict(before.next) and not begin else StreamOffsets(upto, begin, ids)

    async def _partitions(self, client: KafkaClient, start: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Those to read now. Raises CheckpointMismatch, or DataLoss for what is gone."""
        options = self.options
        foreign = sorted({tp.topic for tp in start if not _chosen(options, tp)})
        if foreign:
            raise CheckpointMismatch(
                f"the checkpoint is of a query that read {', '.join(foreign)}, which this one does not; give it a "
                "checkpointLocation of its own"
            )
        try:
            tps = await find_partitions(client, options, METADATA_S)
        except TopicNotFound as error:
            if not start:
                raise  # it was never there: a name with a fault, more likely
            if options.fail_on_data_loss:
                raise self._gone(error.topics) from error
            log.warning("%s; the others are read on", error)
            present = {topic: client.partitions(topic) or () for topic in options.topics or ()}
            return [TopicPartition(topic, number) for topic, numbers in present.items() for number in numbers]
        gone = sorted({tp.topic for tp in start if tp not in set(tps)})
        if gone and options.fail_on_data_loss:
            raise self._gone(gone)
        return tps

    async def _ends(self, client: KafkaClient, before: StreamOffsets, tps: Collection[TopicPartition]) -> Offsets:
        """Of these partitions, now. Where there is news, the topics' ids are asked after it: they are not older."""
        self._latest = upto = await ends(client, self.options, tps)
        if any(before.next.get(tp) != end for tp, end in upto.items()):
            await client.refresh({tp.topic for tp in tps})
        return upto

    def _created_again(self, before: StreamOffsets, ids: Mapping[str, str]) -> set[str]:
        """Topics that are other ones than those that `before` speaks of. Raises DataLoss."""
        again = sorted(topic for topic, known in before.ids.items() if ids.get(topic, known) != known)
        if again and self.options.fail_on_data_loss:
            raise DataLoss(
                f"topic {', '.join(map(repr, again))} was deleted and created again while the query read it (its id "
                f"was {before.ids[again[0]]}, and is {ids[again[0]]} now); begin with another checkpointLocation, or "
                "set fail_on_data_loss to false to read the new topic from its first record"
            )
        for topic in again:
            log.warning("topic %r was deleted and created again; it is read from its first record", topic)
        return set(again)

    def _gone(self, topics: Any) -> DataLoss:
        return DataLoss(
            f"topic {', '.join(map(repr, topics))} was deleted, or lost partitions, while the query read it; create it "
            "and begin anew with another checkpointLocation, or set fail_on_data_loss to false to read the others on"
        )

    async def _held_back(self, client: KafkaClient, start: Mapping[TopicPartition, int], upto: Offsets) -> Offsets:
        """`upto`, and `start` where only an open transaction ends the partition before it: nothing was lost there.

        A checkpoint or group that read what was not committed is ahead of what read_committed may read now.
        """
        short = [tp for tp, end in upto.items() if end < start[tp]]
        if not short or self.options.isolation_level != "read_committed":
            return upto
        whole = await ends(client, replace(self.options, isolation_level="read_uncommitted"), short)
        return {**upto, **{tp: start[tp] for tp in short if whole[tp] >= start[tp]}}

    def _must_reach(self, start: Mapping[TopicPartition, int], upto: Mapping[TopicPartition, int]) -> None:
        short = sorted(tp for tp, end in upto.items() if end < start[tp])
        if not short:
            return
        tp = short[0]
        what = f"{tp.topic}:{tp.partition} was read up to offset {start[tp]} and now ends at {upto[tp]}"
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{what}: the topic was made anew, or its log was cut; begin with another checkpointLocation, or set "
                "fail_on_data_loss to false to read what is there now"
            )
        log.warning("%s (%d partitions in all); they are read from their first record", what, len(short))

    async def _ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[Range]:
        begin = {**start.next, **end.begin}
        if self._member is not None:
            planned = [tp for tp, last in end.next.items() if tp in begin and last > begin[tp]]
            ours = self._member.claim(frozenset(planned))
            left_out = set(planned) - ours.keys()
            if left_out:
                log.warning("%s are other members' by now, who go on from the commit", some(left_out))
            done = {tp: max(begin[tp], ours[tp] or 0) for tp in planned if tp in ours}
            return [_range(tp, at, end) for tp, at in done.items() if end.next[tp] > at]
        missing = [tp for tp in end.next if tp not in begin]
        # made anew, and that is accepted: from the first record
        anew = [tp for tp, last in end.next.items() if tp in begin and last < begin[tp]]
        if missing or anew:
            client = await self._client()
            first = await bounds(client, self.options, [*missing, *anew])
            begin.update({tp: at for tp, (at, _) in first.items()})
            log.info("%s begin at their first record", some(first))
        return [_range(tp, begin[tp], end) for tp, last in end.next.items() if last > begin[tp]]

    async def _commit(self, done: StreamOffsets) -> None:
        news = {tp: at for tp, at in done.next.items() if self._committed.get(tp) != at}
        if news and await commit(await self._client(), self.options, news, done.ids):
            self._committed.update(news)


def _range(tp: TopicPartition, start: int, end: StreamOffsets) -> Range:
    return Range(tp.topic, tp.partition, start, end.next[tp], end.ids.get(tp.topic))


def _chosen(options: Options, tp: TopicPartition) -> bool:
    if options.assign is not None:
        return tp in options.assign
    if options.topics is not None:
        return tp.topic in options.topics
    return re.fullmatch(options.topics_pattern or "", tp.topic) is not None
