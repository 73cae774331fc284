"""What the two consumers with kiel's interface share: values by topic, in lists, and offsets that can be set."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Optional

from allocator.compat.views import OffsetsByTopic
from allocator.errors import AllocatorError, Closed, ConfigError, CorruptRecordError, IllegalState, InconsistentAssignor
from allocator.fetch.batch import Batch
from allocator.fetch.fetcher import Fetcher
from allocator.subscription.state import SubscriptionState
from allocator.types import Record, TopicPartition

__all__ = ["TURN_S", "BaseConsumer"]

log = logging.getLogger(__name__)

TURN_S = 0.2  # how soon `consume` sees that the group is told something else
TELL_AGAIN_S = 60.0  # more: an error that lasts is logged less often; less: it fills the log
DURATION = re.compile(r"[\d.]+ m?s\b")  # in the text of an error; the same error comes with others
RETRY_S = 60.0  # more: a partition that could not be read waits longer; less: more requests that fail


class BaseConsumer:
    """Reads values, a topic at a time, and goes on when one topic or partition cannot be read, as kiel does.

    An error of a topic, a partition or a broker is logged (again once a minute while it lasts) and `consume` returns
    what it has. An error that ends reading for good is raised. When `consume` raises, or is cancelled, the values
    that it had taken are read again.
    """

    def __init__(
        self, deserializer: Callable[[bytes], Any] | None, max_wait_time: int, min_bytes: int, max_bytes: int
    ) -> None:
        if deserializer is not None and not callable(deserializer):
            raise ConfigError(f"deserializer is {deserializer!r}; give a function of the value's bytes")
        if isinstance(max_wait_time, bool) or not isinstance(max_wait_time, (int, float)) or not max_wait_time >= 0:
            raise ConfigError(f"max_wait_time is {max_wait_time!r}; give a number of milliseconds")
        # one colon, as in kiel: allocator functions of its users split names there to get the host
        self.name = f"{socket.gethostname()}:{os.getpid()}-{id(self):x}"
        self.deserializer: Callable[[Any], Any] = deserializer or json.loads
        self.max_wait_time = max_wait_time
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.closing = False
        self.synced_offsets: set[str] = set()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._logged: dict[str, float] = {}  # what was logged, and when
        self._halted: dict[TopicPartition, float] = {}  # partitions that could not be read, and since when
        self._look_for_halted_at = 0.0

    # -- what a subclass says ------------------------------------------------------------------------------------

    @property
    def _label(self) -> str:
        return self.name

    @property
    def _state(self) -> SubscriptionState:
        raise NotImplementedError

    @property
    def _fetcher(self) -> Fetcher:
        raise NotImplementedError

    @property
    def _ended(self) -> BaseException | None:
        """Why nothing will be read any more."""
        return self._fetcher.broken

    async def _consume(self, topic: str, start: Any) -> list[Any] | None:
        raise NotImplementedError

    async def _ready(self, topic: str) -> bool:
        """Whether there may be something to take now; asked before each batch."""
        return True

    def _next_batch(self, topic: str) -> Batch | None:
        return self._fetcher.take(topic)

    def _deliver(self, batch: Batch, next_offset: int) -> None:
        """The user gets the values of `batch` up to `next_offset`."""
        raise NotImplementedError

    def _go_to(self, partition: TopicPartition, offset: int) -> None:
        """Reads on from `offset`, if the partition may still be read."""
        raise NotImplementedError

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        """As `_go_to`, for the user; raises for a partition that may not be read."""
        raise NotImplementedError

    async def _wait(self, timeout_s: float) -> None:
        await self._fetcher.news(timeout_s)

    def _stop(self) -> None:
        """Called once, when the consumer begins to close."""

    async def _wind_down(self) -> None:
        raise NotImplementedError

    # -- life ----------------------------------------------------------------------------------------------------

    def close(self) -> asyncio.Future[None]:
        """Closes every connection; values that were returned and not committed are read again.

        When the loop was stopped, as by Ctrl-C, it runs once more until that is done, and this returns then.
        """
        loop = self._loop
        if loop is None or loop.is_running():
            return asyncio.ensure_future(self._close())
        done = loop.create_future()
        if not loop.is_closed():  # else all tasks were ended with it
            loop.run_until_complete(self._close())
        done.set_result(None)
        return done

    async def _close(self) -> None:
        if self.closing:
            return
        self.closing = True
        self._stop()
        self._fetcher.wake()
        await self.wind_down()

    def wind_down(self) -> asyncio.Future[None]:
        """Ends what `connect` began; called by `close`, and there for subclasses to extend."""
        return asyncio.ensure_future(self._wind_down())

    # -- offsets -------------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> MutableMapping[str, MutableMapping[int, int]]:
        """The next offset of each partition, by topic. Setting `offsets[topic][partition]` reads on from there."""
        return OffsetsByTopic(self._positions, self._seek)

    def _positions(self) -> Mapping[TopicPartition, int]:
        return {partition: at.offset for partition, at in self._state.all_consumed_offsets().items()}

    # -- reading -------------------------------------------------------------------------------------------------

    def consume(self, topic: str, start: Any = None) -> asyncio.Future[list[Any] | None]:
        """The values of a topic that come within `max_wait_time` (milliseconds), at most about `max_bytes` of them.

        Empty when there are none, when the topic is unknown, or when an error was logged; None once the consumer is
        closing. A value that the deserializer does not take is logged and left out, a record without a value too.
        Raises IllegalState before `connect`.
        """
        if self.closing:
            # not a task: when the loop is stopped next, as `close` does, Python warns that it never began
            over: asyncio.Future[list[Any] | None] = (self._loop or asyncio.get_running_loop()).create_future()
            over.set_result(None)
            return over
        self._must_be_connected()
        return asyncio.ensure_future(self._consume(topic, start))

    async def _read(self, topic: str) -> tuple[list[Any], dict[TopicPartition, int]]:
        """The values of one `consume`, and the offset at which each partition was begun."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.max_wait_time / 1000.0
        values: list[Any] = []
        starts: dict[TopicPartition, int] = {}
        size = 0
        self._retry_halted()
        try:
            while not self.closing:
                if await self._ready(topic):
                    taken = self._take(topic, values, starts)
                    if taken is not None:
                        size += taken
                        if size < self.max_bytes:
                            continue
                    if values or loop.time() >= end:
                        break
                    await self._wait(min(TURN_S, end - loop.time()))
                elif values or loop.time() >= end:
                    break
                else:
                    await asyncio.sleep(max(0.0, min(TURN_S, end - loop.time())))
        except BaseException:
            # the user never sees these values: without this they would count as handled
            self._put_back(starts)
            raise
        return values, starts

    def _take(self, topic: str, values: list[Any], starts: dict[TopicPartition, int]) -> int | None:
        """Adds the values of the next batch; how many bytes they had, or None when there is no batch at present."""
        try:
            batch = self._next_batch(topic)
        except AllocatorError as error:
            self._tell(error)
            return 0
        if batch is None:
            return None
        starts.setdefault(TopicPartition(batch.topic, batch.partition), batch.base_offset)
        self._deliver(batch, self._decode(batch, values))
        self.synced_offsets.add(topic)
        return batch.nbytes

    def _decode(self, batch: Batch, values: list[Any]) -> int:
        """Adds the values of `batch`; the offset after the last record that could be read."""
        end = batch.base_offset
        try:
            for record in batch:
                try:
                    values.append(self.deserializer(record.value))
                except Exception as error:  # noqa: BLE001  whatever the user's code raises
                    self._leave_out(batch, record, error)
                end = record.offset + 1
        except CorruptRecordError as error:
            self._tell(error)
            # the fetcher has gone past it: what follows would come as if nothing were missing
            self._fetcher.halt(TopicPartition(batch.topic, batch.partition))
            return end
        return batch.next_offset

    def _put_back(self, starts: Mapping[TopicPartition, int]) -> None:
        for partition, offset in starts.items():
            self._go_to(partition, offset)

    def _retry_halted(self) -> None:
        """Tries partitions again that could not be read: their brokers may have been mended."""
        now = time.monotonic()
        if now < self._look_for_halted_at:
            return
        self._look_for_halted_at = now + 1.0  # there may be thousands of partitions, and as many calls a second
        self._halted = {partition: self._halted.get(partition, now) for partition in self._fetcher.halted()}
        for partition, since in self._halted.items():
            position = self._state.position(partition)
            if position is not None and now - since >= RETRY_S:
                self._state.seek(partition, position)
                self._fetcher.wake()

    def _must_be_connected(self) -> None:
        if self._loop is None:
            raise IllegalState(f"{self._label}: this consumer is not connected; wait for connect() first")

    # -- the log -------------------------------------------------------------------------------------------------

    def _tell(self, error: AllocatorError) -> None:
        """Logs an error that concerns a part of what is read; raises one that ends all of it, or that is the user's."""
        if self._ended is not None or isinstance(error, InconsistentAssignor):
            raise error
        if not isinstance(error, Closed):  # by `close`, under a `consume` that is under way
            self._log(str(error))

    def _log(self, text: str) -> None:
        """At level ERROR, or DEBUG when the same was logged less than TELL_AGAIN_S ago."""
        now, key = time.monotonic(), DURATION.sub("", text)
        known = key in self._logged and now - self._logged[key] < TELL_AGAIN_S
        if not known:
            self._logged = {each: at for each, at in self._logged.items() if now - at < TELL_AGAIN_S}
            self._logged[key] = now
        log.log(logging.DEBUG if known else logging.ERROR, "%s: %s", self._label, text)

    def _leave_out(self, batch: Batch, record: Record, error: Exception) -> None:
        """The deserializer raised `error`."""
        if record.value is None:
            self._log(
                f"records of topic {batch.topic!r} without a value (tombstones) are left out, because the deserializer "
                "does not take None; give the consumer one that does to see them"
            )
        else:
            where = f"{batch.topic}:{batch.partition} at offset {record.offset}"
            log.error("%s: a value was left out, the deserializer raised at %s", self._label, where, exc_info=error)
