"""Delivers records to one reader: whole batches, single records, or several records at a time."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from allocator.core.consumer.group_member import GroupMember
from allocator.core.errors import Closed, ConfigError, CorruptRecordError, DeserializationError
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.loading import Loading
from allocator.core.fetch.undecodable import EndOfDelivered
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.text.quoting import shown
from allocator.core.types import Deserializer, Record, TopicPartition

# marks the current task, and the tasks that it starts, as the reader of each `Reading`
_read_here: ContextVar[WeakKeyDictionary[Reading, object]] = ContextVar("allocator_read_here")


class Reading:
    """Delivers records to one task, the reader, and tracks how much of the current batch it has delivered.

    A request for more records marks the delivered records as done. `deserializers` are those for keys and for values.
    """

    def __init__(self, member: GroupMember, deserializers: tuple[Deserializer, Deserializer] = (None, None)) -> None:
        self._member = member
        self._loading = Loading(deserializers, member.fetcher, member.start_task, member.may_take)
        self._next_error: Exception | None = None
        # the rest of a batch that `one` or `many` has begun, and its iterator
        self._rest: Batch | None = None
        self._records: Iterator[Record] | None = None
        # the tenure of the latest batch, and its epoch then
        self._tenure: TopicPartitionState
        self._epoch: int
        self._cut = False
        """Whether the rest may have no record."""
        self._reader: asyncio.Task[Any] | None = None
        self._thread = 0
        self._mark: object = None
        """Identifies the current reader. Each reader gets a new object."""
        self._busy = False
        self._closed = False

    def close(self) -> None:
        """Makes the reader's current or next request raise `Closed`."""
        self._closed = True
        self._member.fetcher.wake()
        if self._reader is None or self.may_be_asked():
            # the delivered records may not be handled: they are not committed, and the next owner reads them again
            self._member.state.reader.abandon()
        else:
            # the reader finishes its records and requests more, or ends without another request
            self._reader.add_done_callback(lambda _: self._member.state.reader.abandon())

    def may_be_asked(self) -> bool:
        """Whether the caller may be the reader: the task that requested the last records, a task that it has started,
        or any task once that one has ended, because it may have read for another."""
        return self._reader is None or self._reader.done() or self._called_by_reader()

    def _called_by_reader(self) -> bool:
        """Returns whether the current task is the reader, or was started by it with gather, wait_for or create_task.

        The reader usually waits for such a task, so that task must not wait for the reader.
        """
        known = _read_here.get(None)
        return known is not None and known.get(self) is self._mark

    def _is_read(self) -> None:
        """Makes the current task the reader."""
        # cheaper than to look at the running loop each time; from another thread, it may be any task of the loop
        task, thread = asyncio.current_task(self._member.loop), get_ident()
        if task is not None and task is self._reader and thread == self._thread:
            return
        self._member.must_be_here()
        self._reader, self._thread, self._mark = task, thread, object()
        # copied, because the context of tasks that were started earlier has the old mapping
        known = WeakKeyDictionary(_read_here.get({}))
        known[self] = self._mark
        _read_here.set(known)

    async def batch(self, timeout_s: float | None) -> Batch | None:
        member = self._member
        with self._reading_more():
            self._cut_rest()
            while True:
                batch = await self._take(timeout_s)
                if batch is None:
                    return None
                is_empty = self._is_empty(batch)
                self._keep(None)
                if is_empty:  # `one` has returned all its records
                    self._pass_by(batch.next_offset)
                    continue
                self._deliver(batch.next_offset)
                batch.watch(EndOfDelivered(member.fetcher, member.state, self._tenure, member.loop))
                return batch

    async def one(self, timeout_s: float | None) -> Record | None:
        with self._reading_more():
            while True:
                batch = await self._take(timeout_s)
                if batch is None:
                    return None
                if self._records is None:
                    self._records = iter(batch)
                try:
                    record = next(self._records, None)
                except DeserializationError as error:
                    self._skip(batch, error)
                    raise
                except CorruptRecordError as error:
                    self._halt(error)
                    raise
                if record is not None:
                    self._deliver(record.offset + 1)
                    return record
                # the batch may end after its last record (compaction, control records)
                self._pass_by(batch.next_offset)
                self._keep(None)

    async def many(self, timeout_s: float | None, max_records: int | None) -> dict[TopicPartition, list[Record]]:
        try:
            is_valid = max_records is None or operator.index(max_records) >= 1
        except TypeError:
            raise TypeError(f"max_records is an int or None, not {shown(max_records)}") from None
        if not is_valid:
            raise ConfigError(f"max_records must be at least 1, not {max_records!r}")
        found: dict[TopicPartition, list[Record]] = {}
        count = 0
        with self._reading_more():
            batch = await self._take(timeout_s)
            while batch is not None:
                records, end, error = self._some_of(batch, None if max_records is None else max_records - count)
                if records:
                    self._deliver(end)
                    found.setdefault(self._tenure.partition, []).extend(records)
                    count += len(records)
                elif error is None:
                    self._pass_by(end)
                if error is not None:
                    if not found:
                        if isinstance(error, DeserializationError):
                            self._skip(batch, error)
                        else:
                            self._halt(error)
                        raise error
                    # returns what was taken; the next call comes to this record again, and raises its error
                    if isinstance(error, DeserializationError):
                        self._keep(batch.from_offset(error.offset))
                    break
                if end >= batch.next_offset:
                    self._keep(None)
                if end < batch.next_offset or count == max_records:
                    break
                batch = await self._take_also(found)
        return found

    async def _take_also(self, found: Collection[Any]) -> Batch | None:
        """Returns the next batch without waiting. If records are already `found`, leaves an error for the next call."""
        try:
            return await self._take(0)
        except Exception as error:
            if not found:
                raise
            self._next_error = error
            return None

    def _some_of(
        self, batch: Batch, limit: int | None
    ) -> tuple[list[Record], int, DeserializationError | CorruptRecordError | None]:
        """Returns at most `limit` records of the batch, the position after them, and the error of the next record."""
        records: list[Record] = []
        # one iterator for all calls, because a new iterator decodes the complete record batch again
        if self._records is None:
            self._records = iter(batch)
        while limit is None or len(records) < limit:
            try:
                record = next(self._records, None)
            except (DeserializationError, CorruptRecordError) as error:
                return records, records[-1].offset + 1 if records else batch.base_offset, error
            if record is None:
                return records, batch.next_offset, None
            records.append(record)
        return records, records[-1].offset + 1, None

    def _skip(self, batch: Batch, error: DeserializationError) -> None:
        """Continues after the record that the reader gets as an error."""
        self._deliver(error.offset + 1)
        self._keep(batch.from_offset(error.offset + 1))
        self._cut = True

    def _halt(self, error: CorruptRecordError) -> None:
        """Stops the partition before bytes that do not decode, so that other partitions go on."""
        self._keep(None)
        self._member.fetcher.halt(self._tenure.partition, error)

    def _is_empty(self, batch: Batch) -> bool:
        if not self._cut:
            return False
        try:
            return not len(batch)
        except CorruptRecordError:
            return False  # the reader gets the error when it comes to the record

    async def _take(self, timeout_s: float | None) -> Batch | None:
        """Returns the rest of the current batch or the next batch; None after the timeout."""
        try:
            end = None if timeout_s is None else time.monotonic() + timeout_s
        except TypeError:
            raise TypeError(f"timeout_s is a number of seconds or None, not {shown(timeout_s)}") from None
        error, self._next_error = self._next_error, None
        if error is not None and self._member.fetcher.lasts(error):
            raise error
        while True:
            if self._closed:
                raise Closed(f"the consumer of group {self._member.group!r} is closed")
            if self._rest is not None and not self._is_wanted():
                self._drop()
            if self._rest is None:
                batch = self._member.fetcher.take()
                if batch is not None:
                    self._keep(batch)
                    self._tenure = self._member.state.assignment[TopicPartition(batch.topic, batch.partition)]
                    self._epoch = self._tenure.epoch
                    self._loading.begin()
                    if self._loading.over or self._loading.load(batch):
                        return batch
            elif self._member.may_deliver and (self._loading.over or self._loading.load(self._rest)):
                return self._rest
            left = None if end is None else end - time.monotonic()
            if left is not None and not left > 0:  # also for a timeout that is no number (nan)
                return None
            # every event that may end this wait calls `Fetcher.wake`
            await self._member.news(left)

    def _deliver(self, next_offset: int) -> None:
        """Notes that the user gets the records of the current batch up to `next_offset`."""
        member, tenure = self._member, self._tenure
        # the leader epoch lets a later check detect a truncation of the log (KIP-320)
        epoch = member.fetcher.leader_epoch(tenure.partition, next_offset)
        reader = member.state.reader if member.processor is None else None
        tenure.deliver(next_offset, epoch, reader, confirms=member.commits.are_automatic)

    def _pass_by(self, next_offset: int) -> None:
        """Notes that the current batch has no more record before `next_offset`."""
        self._tenure.pass_by(next_offset, self._member.fetcher.leader_epoch(self._tenure.partition, next_offset))

    def _is_wanted(self) -> bool:
        """Returns False if the partition was sought, reset or revoked since the fetcher delivered the batch."""
        return self._tenure.epoch == self._epoch and self._tenure.is_fetchable()

    def _keep(self, batch: Batch | None) -> None:
        self._rest = batch
        self._records = None
        self._cut = False

    def _drop(self) -> None:
        """Drops the rest of a batch, so that its records are fetched again when they may be delivered."""
        self._keep(None)
        if self._tenure.epoch == self._epoch:
            # otherwise the fetcher would continue after the batch and skip the rest
            self._tenure.fetch_again()

    def _cut_rest(self) -> None:
        """Removes the records that `getone` has delivered from the rest of the batch."""
        if self._rest is not None and self._records is not None and self._is_wanted():
            position = self._tenure.position
            if position is not None:
                self._keep(self._rest.from_offset(position.offset))
                self._cut = True

    def _reading_more(self) -> Reading:
        """Marks the delivered records as done, because the user requests more.

        Returns a context manager for the request. Raises RuntimeError while another task reads.
        """
        if self._busy:
            raise RuntimeError("two tasks read from one consumer; records would count as done before they are handled")
        self._is_read()
        self._member.state.reader.finish()
        self._member.membership.polled()
        return self

    def __enter__(self) -> None:
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False
