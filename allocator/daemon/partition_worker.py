"""One partition's records through the handler, in order."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Union

from allocator.daemon.config import HandlerSection
from allocator.daemon.handlers import Handler, HandlerMisuse
from allocator.errors import AllocatorError, HandlerFailed
from allocator.fetch.batch import Batch
from allocator.foreign import shown
from allocator.tasks import wait_for_event
from allocator.types import Record, TopicPartition

__all__ = ["PartitionWorker", "Retries", "Unit", "Work"]

log = logging.getLogger(__name__)

# how long one partition keeps its slot (and a handler that never waits keeps the loop) before others have a turn;
# more: fewer hops between threads; less: commits, stops and other partitions wait less
SLICE_S = 0.1


@dataclass(frozen=True)
class Retries:
    """How often a failed call is repeated, and the seconds before each attempt."""

    count: int = HandlerSection.retries
    backoff_s: float = HandlerSection.retry_backoff_s
    backoff_max_s: float = HandlerSection.retry_backoff_max_s

    def delay_s(self, failures: int) -> float:
        """Doubled for every failure up to the maximum; up to half is taken off so that members do not keep step."""
        full = self.backoff_max_s if failures > 64 else min(self.backoff_max_s, self.backoff_s * 2.0 ** (failures - 1))
        return full * random.uniform(0.5, 1.0)


class DeadLetters(Protocol):
    """Takes the records that the handler refused for good."""

    async def send(self, records: Sequence[Record], error: BaseException, attempts: int) -> None:
        """Returns once all of them are acknowledged."""

    async def close(self) -> None: ...


class Unit(NamedTuple):
    """The argument of one call of the handler, its offset, and the position after it."""

    argument: Any
    offset: int
    done: int

    def records(self) -> list[Record]:
        return [self.argument] if isinstance(self.argument, Record) else list(self.argument)


@dataclass
class Work:
    """Shared by the workers of all partitions. Created and used on the loop."""

    handler: Handler
    slots: asyncio.Semaphore
    """Partitions that may be in the handler at the same time."""
    threads: concurrent.futures.Executor
    """For plain handlers, which may block."""
    retries: Retries
    dead_letters: DeadLetters | None
    may_act: Callable[[], bool]
    """Whether a record may be delivered at this instant. Called from the handler's thread too."""
    until_active: Callable[[], Awaitable[None]]
    """Returns once `may_act` is true."""


class PartitionWorker:
    """Feeds the batches of one partition to the handler, one call at a time, in order.

    Guarantee: `position` never passes a record that the handler has not finished (or that is not a dead letter,
    acknowledged). After `drain` or `abandon` no further call begins.
    """

    def __init__(
        self,
        partition: TopicPartition,
        start: int,
        work: Work,
        taken: Callable[[], None],
        after: PartitionWorker | None = None,
    ) -> None:
        self.partition = partition
        self.position = start
        """Everything before it is done, so this offset may be committed."""
        self.committed = start
        self.topic_id: Any = None
        """Of the topic that was read last, where it is known."""
        self._work = work
        self._taken = taken
        self._after = after
        self._queue: deque[Union[Batch, int]] = deque()
        self._restarts = 0
        self._wake = asyncio.Event()
        self._stopping = False
        self._call: concurrent.futures.Future[Any] | None = None
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"handler {_name(partition)}")

    def __len__(self) -> int:
        """Batches that wait."""
        return len(self._queue)

    def put(self, batch: Batch) -> None:
        """Caller: the feed. The order of calls is the order of the log."""
        self._queue.append(batch)
        self._wake.set()

    def restart(self, offset: int) -> None:
        """After what waits, records from a lower `offset` on follow. Caller: the feed."""
        self._restarts += 1
        self._queue.append(offset)
        self._wake.set()

    @property
    def may_commit(self) -> bool:
        """False while records wait that came before a restart: `position` belongs to them."""
        return not self._restarts

    def stop(self) -> None:
        """No further call begins; the one that runs may end. What waits is forgotten."""
        self._stopping = True
        self._queue.clear()
        self._wake.set()

    async def drain(self, timeout_s: float) -> bool:
        """`stop`, then wait for the call that runs; after `timeout_s` it is cut off. Returns whether it ended."""
        self.stop()
        await asyncio.wait({self.task}, timeout=timeout_s)
        if self.task.done():
            return True
        log.warning(
            "%s: the handler has not come to an end within %g s; its record will be handled again by the next owner",
            _name(self.partition),
            timeout_s,
            extra=_where(self.partition, self.position),
        )
        await self.abandon(timeout_s)
        return False

    async def abandon(self, patience_s: float) -> None:
        """Cancels a coroutine handler; a plain one cannot be, but ends after its record."""
        self.stop()
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=patience_s)
        if not self.task.done():
            log.error("%s: the handler does not heed its cancellation", _name(self.partition))

    @property
    def stuck(self) -> bool:
        """Whether a plain handler still runs though nobody waits for it any more."""
        running = self.task.done() and self._call is not None and not self._call.done()
        return running or (self._after is not None and self._after.stuck)

    async def ended(self) -> None:
        """Returns when no call of this worker, or of those before it, runs any more."""
        await asyncio.wait({self.task})
        if self._call is not None and not self._call.done():
            await asyncio.wait({asyncio.wrap_future(self._call)})
        if self._after is not None:
            await self._after.ended()

    # ------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        if self._after is not None:
            # two calls for one partition at a time would break its order, whoever owned it in between
            await self._after.ended()
            self._after = None
        while True:
            while not self._queue:
                if self._stopping:
                    return
                self._wake.clear()
                await self._wake.wait()
            batch = self._queue.popleft()
            if isinstance(batch, int):
                self.position, self._restarts = batch, self._restarts - 1
                continue
            self._taken()
            await self._batch(batch)
            if self._stopping:
                return

    async def _batch(self, batch: Batch) -> None:
        if self._work.handler.by_batch:
            units = [Unit(batch, batch.base_offset, batch.next_offset)] if len(batch) else []
        else:
            units = [Unit(record, record.offset, record.offset + 1) for record in batch]
        failures = 0
        index = 0
        while index < len(units) and not self._stopping:
            before = index
            index, error = await self._slice(units, index)
            if error is None:
                if index == before and not self._stopping:
                    await self._until_active()
                continue
            failures = failures + 1 if index == before else 1
            if not isinstance(error, HandlerMisuse) and failures <= self._work.retries.count:
                await self._back_off("the handler failed", units[index], error, failures)
            elif await self._give_up(units[index], error, failures):
                index, failures = index + 1, 0
        if index == len(units):
            self.position = batch.next_offset  # past what a batch holds besides records: markers, compacted ones

    async def _slice(self, units: Sequence[Unit], index: int) -> tuple[int, Exception | None]:
        """Some calls from `index` on; where it stopped, and the error if one stopped it."""
        async with self._work.slots:
            if self._work.handler.on_loop:
                index, error = await self._slice_on_loop(units, index)
            else:
                self._call = self._work.threads.submit(self._slice_in_thread, units, index)
                index, error = await asyncio.wrap_future(self._call)
        await asyncio.sleep(0)  # a handler that never waits must not keep the loop from everything else
        return index, error

    async def _slice_on_loop(self, units: Sequence[Unit], index: int) -> tuple[int, Exception | None]:
        ends = time.monotonic() + SLICE_S
        while index < len(units) and self._may_call() and time.monotonic() < ends:
            try:
                await self._work.handler.call(units[index].argument)
            except asyncio.CancelledError:
                if self._stopping:
                    raise
                return index, asyncio.TimeoutError("the handler was cancelled from within")
            except Exception as error:  # noqa: BLE001 - the user's; the retries decide what follows
                return index, error
            self.position = units[index].done
            index += 1
        return index, None

    def _slice_in_thread(self, units: Sequence[Unit], index: int) -> tuple[int, Exception | None]:
        ends = time.monotonic() + SLICE_S
        while index < len(units) and self._may_call() and time.monotonic() < ends:
            try:
                self._work.handler.call_plain(units[index].argument)
            except Exception as error:  # noqa: BLE001 - the user's; the retries decide what follows
                return index, error
            self.position = units[index].done
            index += 1
        return index, None

    async def _until_active(self) -> None:
        """Until the lease is valid again, or we are told to stop."""
        self._wake.clear()
        if self._stopping:
            return
        waits = {asyncio.ensure_future(self._work.until_active()), asyncio.ensure_future(self._wake.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)

    def _may_call(self) -> bool:
        return not self._stopping and self._work.may_act()

    async def _back_off(self, what: str, unit: Unit, error: Exception, failures: int) -> None:
        """Waits before the next attempt, or until the worker is stopped."""
        delay_s = self._work.retries.delay_s(failures)
        log.warning(
            "%s: offset %d: %s (attempt %d of %d), again in %.2f s: %s",
            _name(self.partition),
            unit.offset,
            what,
            failures,
            self._work.retries.count + 1,
            delay_s,
            shown(error),
            extra={**_where(self.partition, unit.offset), "attempt": failures},
            exc_info=error if failures == 1 else None,
        )
        ends = time.monotonic() + delay_s
        while not self._stopping and time.monotonic() < ends:
            self._wake.clear()
            await wait_for_event(self._wake, ends - time.monotonic())

    async def _give_up(self, unit: Unit, error: Exception, attempts: int) -> bool:
        """Writes the dead letter; False if the partition has left this member. Raises HandlerFailed without a topic."""
        if self._stopping:
            return False  # the next owner tries again
        failed = HandlerFailed(
            self._work.handler.name, self.partition.topic, self.partition.partition, unit.offset, attempts, error
        )
        if self._work.dead_letters is None or isinstance(error, HandlerMisuse):
            raise failed from error
        where = _where(self.partition, unit.offset)
        log.error("%s; writing it to the dead-letter topic", failed.what, extra=where, exc_info=error)
        refusals = 0
        while not self._stopping:
            try:
                await self._work.dead_letters.send(unit.records(), error, attempts)
            except AllocatorError as refused:
                refusals += 1
                if refusals > self._work.retries.count or not refused.retriable:
                    raise
                await self._back_off("the dead letter was not written", unit, refused, refusals)
            else:
                # not before it is acknowledged, or the record would be in neither place
                self.position = unit.done
                return True
        return False


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}:{partition.partition}"


def _where(partition: TopicPartition, offset: int) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition, "offset": offset}
