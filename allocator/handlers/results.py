"""Writes the records that handlers return: before their record is done, or in a transaction with its offset."""

from __future__ import annotations

import asyncio
import contextlib
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Optional

from allocator.core.aio import Backoff, start_task
from allocator.core.consumer import Chosen, ConsumerBase
from allocator.core.subscription import Hold, TopicPartitionState
from allocator.errors import AllocatorError, Closed, DeliveryFailed, Fenced
from allocator.handlers.handlers import HandlerMisuse, is_unread
from allocator.handlers.window import Unit, Window, offset_of
from allocator.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from allocator.producer import ConsumerTransactions, NewRecord, Producer, TakenRecord

# The kinds of results that are searched for records. Reading another one, such as the response of a server, may have
# effects or fail
MAPPINGS: Final = (dict, UserDict, ChainMap, MappingProxyType)
COLLECTIONS: Final = (*MAPPINGS, list, tuple, set, frozenset, deque, UserList, KeysView, ValuesView, ItemsView)
BACKOFF_S, BACKOFF_MAX_S = 0.1, 5.0  # pauses after a failed transaction


class Produce(NamedTuple):
    """A record that a handler of `Consumer.process` or of the daemon returns, alone or in a list, to have it written.

    The fields are the arguments of `Producer.send`; keys and values are bytes or None.
    """

    topic: str
    value: Optional[bytes]
    key: Optional[bytes] = None
    partition: Optional[int] = None
    timestamp: Optional[int] = None
    headers: Sequence[tuple[str, Optional[bytes]]] = ()


def produced(result: Any, name: str) -> Sequence[Produce]:
    """Returns the records in the result of a handler. Raises HandlerMisuse for a list of records and other values, and
    for records in other collections."""
    if isinstance(result, Produce):
        return (result,)
    if isinstance(result, (list, tuple)):
        found = [each for each in result if isinstance(each, Produce)]
        if found and len(found) < len(result):
            raise HandlerMisuse(f"handler {name!r} returned a list of Produce and other values; return only Produce")
        if found:
            return found
    inside = _unwritten(result)
    if inside is not None:
        raise HandlerMisuse(
            f"handler {name!r} returned a {type(result).__name__} with {type(inside).__name__} inside, which is not "
            "written; return one Produce, or a flat list of them"
        )
    return ()


def _unwritten(result: Any) -> Any:
    """Returns a Produce, or an iterator that may yield some, in the collection at any depth; None: there is none."""
    left = [result]
    searched: dict[int, Any] = {}  # by `id`, because a collection may contain itself
    while left:
        value = left.pop()
        if isinstance(value, Produce) or is_unread(value):
            return value
        if isinstance(value, COLLECTIONS) and id(value) not in searched:
            searched[id(value)] = value
            with contextlib.suppress(Exception):  # of a subclass of the user
                left += value
                left += value.values() if isinstance(value, MAPPINGS) else ()
    return None


class Results:
    """The producer of one processor: that of the consumer (`transactions`), or one that connects when the first record
    is written."""

    def __init__(self, consumer: ConsumerBase, *, exactly_once: bool) -> None:
        self._consumer = consumer
        self.exactly_once = exactly_once
        """Whether records are written in transactions with the offsets of the consumer."""
        self._opening: asyncio.Lock | None = None
        self._producer: Producer | None = None

    @property
    def _given(self) -> Producer | None:
        given: Producer | None = self._consumer._transactions
        return given

    def take(self, records: Sequence[Produce]) -> Sequence[TakenRecord]:
        """Returns what a handler has returned, to be written later. Raises TypeError and ConfigError as `send` does.

        Call it before any other code runs: a handler may fill the same list of headers for its next record.
        """
        from allocator.producer import Intake  # imported with the first result

        intake = Intake() if self._given is None else self._given._intake
        return [intake.record(*each) for each in records]

    def take_in_thread(self, records: Sequence[Produce], loop: asyncio.AbstractEventLoop) -> Sequence[TakenRecord]:
        """Like `take`, in the thread of the handler. The serializers run in the event loop, as those of `send` do."""
        if self._given is None or not self._given._intake.serializes:
            return self.take(records)

        async def take() -> Sequence[TakenRecord]:
            return self.take(records)

        return asyncio.run_coroutine_threadsafe(take(), loop).result()

    async def producer(self) -> Producer:
        if self._given is not None:
            return self._given
        # Python 3.9 binds a lock to the loop that is current when the lock is created
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._producer is not None and self._producer.has_failed:
                await self.close()
            if self._producer is None:
                from allocator.producer import Producer

                client = self._consumer._member.client
                name = f"allocator-results-{self._consumer.group}"
                producer = Producer(brokers=client.bootstrap, security=client.security, client_id=name)
                await producer.start()
                self._producer = producer
            return self._producer

    async def write(self, records: Sequence[TakenRecord]) -> None:
        """Returns once the records are acknowledged. Raises DeliveryFailed."""
        producer = await self.producer()
        for future in [await producer._append(each) for each in records]:
            await asyncio.shield(future)

    async def transactions(self) -> ConsumerTransactions:
        return (await self.producer())._transactions_of(self._consumer)

    async def commit_offset(self, partition: TopicPartition, choose: Callable[[], Chosen | None]) -> None:
        await (await self.transactions()).commit_offset(partition, choose)

    def chosen(self, partition: TopicPartition, offset: int) -> Chosen:
        return self._consumer._member.commits.chosen(partition, OffsetAndMetadata(offset, "", -1))

    async def close(self) -> None:
        """Closes the producer, if it was started. Safe to call twice."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(DeliveryFailed):  # the handlers got the failures
                await producer.close()


class Committing:
    """Commits the results of the records of one hold in their order, as many at a time as are there.

    Drops the results of records that their log has lost: an unclean election cut them off, or the topic was created
    again. No offset belongs to them any more, and so no transaction.

    `finished` is called with the units whose results are committed, `refused` with a unit whose result cannot be
    written, and `ended` when nothing is left to commit.
    """

    def __init__(
        self,
        results: Results,
        hold: Hold,
        finished: Callable[[Sequence[Unit]], None],
        refused: Callable[[Unit, BaseException], None],
        ended: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._results = results
        self._hold = hold
        assert isinstance(hold.tenure, TopicPartitionState)
        self._tenure = hold.tenure
        self._finished = finished
        self._refused = refused
        self._ended = ended
        self.task: asyncio.Task[None] | None = None
        """Runs while results wait to be committed."""
        self._most = 0
        """How many results a transaction takes, so that those before a refused one are aborted a few times only: half
        as many after each refusal, and twice as many after each success. 0: all."""

    def wake(self, window: Window) -> None:
        """Called when units have results."""
        if self.task is None and window.returned(1)[0]:
            self.task = start_task(self._run(window), "results")
            self.task.add_done_callback(partial(self._end, window))

    def _goes_on(self) -> bool:
        hold = self._hold
        return not hold.has_outlived and (hold.of_former_log or not hold.void)

    def _end(self, window: Window, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and task.exception() is None and self._goes_on():
            self.wake(window)  # a call may have returned since the task ended
        self._ended(task)

    async def _run(self, window: Window) -> None:
        backoff = Backoff(BACKOFF_S, BACKOFF_MAX_S)
        while self._goes_on():
            units, end = window.returned(self._most)
            if not units:
                return
            if not self._tenure.can_commit and not self._hold.of_former_log:  # where the log was cut is not known yet
                await asyncio.sleep(backoff.next())
                continue
            reach = 0 if self._hold.of_former_log else self._tenure.done(delivered=True)[0]
            kept = [unit for unit in units if offset_of(unit.argument) < reach]
            if not kept:
                self._finished(units)
                continue
            units, end = kept, min(end, reach)
            # now, because until the transaction begins, a seek or another log may come
            chosen = self._results.chosen(self._tenure.partition, end)
            try:
                placed, records, error = await self._placed(units)
                if error is not None and not placed:
                    self._refused(units[0], error)
                    return
                if placed < len(units):
                    units, end = units[:placed], offset_of(units[placed].argument)
                    chosen = chosen._replace(offset=OffsetAndMetadata(end, "", -1))
                transactions = (await self._results.transactions()).of(self._tenure)
                await transactions.commit(records, partial(self._unmoved, chosen), partial(self._finished, units))
                backoff.reset()
                self._most = 2 * self._most if len(units) == self._most else 0
            except AllocatorError as failed:
                if failed.retriable or isinstance(failed, Fenced):
                    await asyncio.sleep(backoff.next())
                elif not self._goes_on():
                    return
                elif not _is_refusal(failed):
                    raise  # of the transaction: no record is to blame
                elif len(units) > 1:
                    self._most = len(units) // 2
                else:
                    self._refused(units[0], failed)
                    return

    def _unmoved(self, chosen: Chosen) -> Chosen:
        """Raises Fenced if the position was moved since: that may be committed already, and comes later."""
        topic, partition = self._tenure.partition
        if self._tenure.moves != chosen.call.moves(self._tenure.partition):
            why = "nothing is written, because the position was moved since the handler returned"
            raise Fenced(f"{topic}:{partition}: {why}", retriable=True)
        return chosen

    async def _placed(
        self, units: Sequence[Unit]
    ) -> tuple[int, dict[TopicPartition, list[NewRecord]], BaseException | None]:
        """Returns the number of units whose results have a partition, these, and the error of the next unit."""
        producer = await self._results.producer()
        records: dict[TopicPartition, list[NewRecord]] = defaultdict(list)
        for number, unit in enumerate(units):
            try:
                placed = [(await producer._place(each), each.record) for each in unit.results or ()]
            except Closed:
                raise
            except Exception as error:  # noqa: BLE001 - it is a failure of the handler, like those of its call
                return number, records, error
            for at, record in placed:
                records[at].append(record)
        return len(units), records, None


def _is_refusal(error: BaseException) -> bool:
    from allocator.producer import RefusedByTopic  # imported with the first transaction

    return isinstance(error, RefusedByTopic)
