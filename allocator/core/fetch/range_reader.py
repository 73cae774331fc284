"""Reads ranges of offsets without a group.

Guarantee: the batches of a partition are in the order of offsets, and have all records of its range and no others.
Offsets without a record (transaction markers, aborted records, records that compaction removed) count as read. So a
range ends even if its last offsets have no record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from allocator.core.aio.tasks import within
from allocator.core.client.log_offsets import Found, list_offsets
from allocator.core.errors import BrokerError, LogTruncated, OffsetOutOfRange, TopicNotFound, TopicRecreated
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.settings.table import DEFAULT
from allocator.core.subscription import SubscriptionState
from allocator.core.subscription.commit_text import stamped
from allocator.core.types import EARLIEST, LATEST, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient

log = logging.getLogger(__name__)

# how long a broker may hold back a response. Higher: a partition at its end delays other partitions of its broker;
# lower: more requests
MAX_WAIT_S: Final = 0.1
DIAGNOSIS_S: Final = 5.0  # timeout of the request that finds the cause of a timeout

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""Partition -> first offset, and offset after the last one."""


class RangeUnread(BrokerError):
    """No record of a range arrived within `patience_s`."""


class RangeReader:
    """Reads ranges of offsets through a connected `client`. Joins no group and commits nothing.

    After `patience_s` without progress it raises `RangeUnread`. The time that the caller spends on a batch does not
    count. Offsets that the log no longer has are skipped with a warning. With `fail_on_data_loss`, they raise
    `OffsetOutOfRange`, or its subclasses `LogTruncated` and `TopicRecreated`. Brokers do not refuse the end of a log,
    so a range beyond it counts as truncated only after `patience_s`. `fetching`: further settings of `Fetcher`.
    """

    def __init__(
        self,
        client: KafkaClient,
        *,
        isolation_level: str = DEFAULT["isolation_level"],
        patience_s: float = 60.0,
        fail_on_data_loss: bool = False,
        **fetching: Any,
    ) -> None:
        self.client = client
        self.isolation_level = isolation_level
        self.patience_s = patience_s
        self.fail_on_data_loss = fail_on_data_loss
        self._fetching = {"max_wait_s": MAX_WAIT_S, **fetching}

    async def bounds(
        self,
        partitions: Iterable[TopicPartition],
        since_ms: int | None = None,
        reached: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns the ranges that these partitions have now. `since_ms`: from the first record at or after this time.

        With "read_committed", they end at the last stable offset. `reached`: as in `list_offsets`. Raises
        `TopicNotFound`, and a retriable `BrokerError` after `patience_s` without a response.
        """
        wanted = list(partitions)
        ends = await self._offsets(wanted, LATEST, reached)
        starts = await self._offsets(wanted, EARLIEST if since_ms is None else since_ms)
        found = {}
        for partition in wanted:
            end, start = ends[partition], starts[partition]
            stop = 0 if end is None else end.offset
            # the first record at that time may belong to an open transaction, and lie beyond the end
            found[partition] = (stop if start is None else min(start.offset, stop), stop)
        return found

    async def _offsets(
        self, partitions: list[TopicPartition], when: int, reached: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> Found:
        request = list_offsets(
            self.client,
            dict.fromkeys(partitions, when),
            isolation_level=self.isolation_level,
            timeout_s=self.patience_s,
            reached=reached,
        )
        try:
            return await within(request, self.patience_s)
        except asyncio.TimeoutError:
            dead = sorted("{}:{}".format(*each) for each in partitions if self.client.leader(each) is None)
            names = ", ".join(dead or sorted({partition.topic for partition in partitions}))
            why = "no leader" if dead else "no response"
            raise RangeUnread(
                f"{names}: {why} within {self.patience_s:g} s; check that its broker is available", retriable=True
            ) from None

    async def read(
        self,
        ranges: Ranges,
        *,
        enough: Callable[[TopicPartition], bool] = lambda _: False,
        topic_ids: Mapping[str, Any] = MappingProxyType({}),
    ) -> AsyncGenerator[Batch, None]:
        """Yields the records of `ranges`, as batches that are not empty.

        Stops reading a partition if `enough` returns True for it after a batch. `topic_ids`: ids of the topics that the
        offsets belong to, if known; a topic with another id was created again. Raises `RangeUnread`, and errors of a
        partition (`CorruptRecordError`, `RecordTooLarge`, `TopicAuthorizationFailed`).
        """
        state = SubscriptionState("none")
        left = {partition: (start, stop) for partition, (start, stop) in ranges.items() if start < stop}
        if not left:
            return
        state.assign_from_user(left)
        async with Fetcher(self.client, state, isolation_level=self.isolation_level, **self._fetching) as fetcher:
            reading = _Reading(self, state, fetcher, left, topic_ids)
            for partition, (start, _) in left.items():
                reading.seek(partition, start)
            while (batch := await reading.next()) is not None:
                yield batch
                partition = TopicPartition(batch.topic, batch.partition)
                if partition in left and enough(partition):
                    reading.end(partition)


@dataclass
class _Reading:
    """State of one `RangeReader.read`. `left`: the ranges that are not completely read."""

    reader: RangeReader
    state: SubscriptionState
    fetcher: Fetcher
    left: dict[TopicPartition, tuple[int, int]]
    topic_ids: Mapping[str, Any]
    refused: dict[TopicPartition, int] = field(default_factory=dict)
    """The last offset that the leader refused although its log has it."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        topic_id = self.topic_ids.get(partition.topic)
        self.state.seek(partition, OffsetAndMetadata(offset, stamped("", topic_id), -1))
        self.fetcher.wake()

    async def next(self) -> Batch | None:
        """Returns the next batch; None when all ranges are completely read."""
        now = asyncio.get_running_loop().time
        before = self._positions()
        deadline = now() + self.reader.patience_s
        while self.left:
            try:
                batch = self.fetcher.take()
            except OffsetOutOfRange as error:
                await self._lost(error)
                continue
            if batch is not None:
                batch = self._taken(batch)
                if batch is not None:
                    return batch
                continue
            # offsets without a record move the position, but come in no batch
            positions = self._positions()
            ended = [each for each, at in positions.items() if at >= self.left[each][1]]
            for partition in ended:
                self.end(partition)
            # a position may have moved before this call, while the caller had the previous batch
            if ended or positions != before:
                before, deadline = positions, now() + self.reader.patience_s
            elif not await self.fetcher.news(deadline - now()):
                await self._end_truncated()
                before, deadline = self._positions(), now() + self.reader.patience_s
        return None

    def end(self, partition: TopicPartition) -> None:
        """Stops reading this partition."""
        del self.left[partition]
        self.state.drain([partition])  # otherwise records beyond the stop would use other partitions' memory
        self.fetcher.wake()

    def _taken(self, batch: Batch) -> Batch | None:
        """Moves the position past `batch`. Returns its records before the stop, or None if there are none."""
        partition = TopicPartition(batch.topic, batch.partition)
        stop = self.left[partition][1]
        epoch = self.fetcher.leader_epoch(partition, batch.next_offset)
        self.state.update_position(partition, batch.next_offset, epoch)
        if batch.next_offset < stop:
            return batch
        self.end(partition)
        if batch.next_offset == stop:
            return batch
        batch = batch.until_offset(stop)
        return batch if len(batch) else None

    def _positions(self) -> dict[TopicPartition, int]:
        found = {}
        for partition, (start, _) in self.left.items():
            position = self.state.position(partition)
            found[partition] = start if position is None else position.offset
        return found

    async def _lost(self, error: OffsetOutOfRange) -> None:
        """Skips offsets that the log no longer has, or raises `error`."""
        if self.reader.fail_on_data_loss:
            raise error
        partition = TopicPartition(error.topic, error.partition)
        first, stop = self.left[partition]
        resume_at = stop
        if isinstance(error, TopicRecreated):
            log.warning("%s; skipping its offsets up to %d", error, stop - 1)
        elif isinstance(error, LogTruncated) and error.divergent_offset is not None:
            log.warning("%s", error)
            resume_at = max(first, error.divergent_offset)
        else:
            start, end = (await self.reader.bounds([partition], reached={partition: error.offset}))[partition]
            if start <= error.offset <= end:  # the log has the offset: a new leader did not know its end yet
                resume_at = self.refused[partition] = error.offset
                await asyncio.sleep(self.reader.client.retry_backoff_s)
            else:  # if the log ends before the position, it has no record of the range
                resume_at = min(start, stop) if error.offset < start else stop
                log.warning(
                    "%s:%d has offsets %d to %d, not %d; skipping %d offsets",
                    *partition,
                    start,
                    end - 1,
                    error.offset,
                    resume_at - error.offset,
                )
        if resume_at == stop:
            self.end(partition)
        else:
            self.seek(partition, resume_at)

    async def _end_truncated(self) -> None:
        """Ends the ranges that are read up to the end of their log, which was truncated; with `fail_on_data_loss`,
        raises `LogTruncated`. Raises `RangeUnread` if there are none."""
        positions = self._positions()
        partition, at = next(iter(positions.items()))
        refused = self.refused.get(partition) == at
        what = "refuses this offset, although its log has it" if refused else "responds, but sends no record"
        why = f"its leader {what}; read the log of the broker"
        # uncommitted, because an open transaction only holds records back; `reached`, because a new leader may not know
        # its end yet
        request = list_offsets(
            self.reader.client,
            dict.fromkeys(self.left, LATEST),
            isolation_level="read_uncommitted",
            timeout_s=DIAGNOSIS_S,
            reached={each: stop for each, (_, stop) in self.left.items()},
        )
        try:
            ends = await within(request, 2 * DIAGNOSIS_S)
        except asyncio.TimeoutError:
            why = "its leader does not respond"
        except (BrokerError, TopicNotFound) as error:
            why = str(error)
        else:
            truncated = {p: end.offset for p, end in ends.items() if end is not None and end.offset <= positions[p]}
            for each, end in truncated.items():
                if self.reader.fail_on_data_loss:
                    raise LogTruncated(*each, positions[each], end)
                stop = self.left[each][1]
                log.warning("%s:%d was truncated to offset %d; skipping %d offsets", *each, end, stop - positions[each])
                self.end(each)
            if truncated:
                return
        raise RangeUnread(
            f"{partition.topic}:{partition.partition} cannot be read from offset {at} to {self.left[partition][1]}: "
            f"no record arrived for {self.reader.patience_s:g} s ({why})",
            retriable=True,
        )
