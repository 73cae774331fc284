"""Base class of the two consumers with kiel's interface, which return lists of values by topic."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from allocator.compat.base_client import BaseClient
from allocator.compat.views import OffsetsByTopic
from allocator.core.aio import start_task
from allocator.core.fetch import Batch, Fetcher
from allocator.core.subscription import SubscriptionState
from allocator.errors import AllocatorError, Closed, ConfigError, CorruptRecordError, InconsistentAssignor
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.types import Record, TopicPartition

log = logging.getLogger(__name__)

TURN_S = 0.2  # seconds between two checks of the cluster choice in `consume`
LOG_AGAIN_S = 60.0  # seconds until the same error is logged again at level ERROR
DURATION = re.compile(r"[\d.]+ m?s\b")  # ignored when two error texts are compared
RETRY_S = 60.0  # seconds until a partition is retried after an error


class BaseConsumer(BaseClient):
    """Reads values, one topic at a time, and continues if one topic or partition fails, as kiel does.

    An error of a topic, a partition or a broker is logged, again once a minute while it lasts, and `consume` returns
    the values of the others. An error that ends all reading is raised. If `consume` raises or is cancelled, the values
    that it has taken are read again.
    """

    def __init__(
        self, deserializer: Callable[[bytes], Any] | None, max_wait_time: int, max_bytes: int, group: str | None = None
    ) -> None:
        if deserializer is not None and not callable(deserializer):
            raise ConfigError(f"deserializer is {deserializer!r}; pass a function that takes the bytes of a value")
        if isinstance(max_wait_time, bool) or not isinstance(max_wait_time, (int, float)) or not max_wait_time >= 0:
            raise ConfigError(f"max_wait_time is {max_wait_time!r}; pass a number of milliseconds")
        # one colon, as in kiel: allocator functions of kiel's users split the name there to get the host
        self.name = f"{socket.gethostname()}:{os.getpid()}-{id(self):x}"
        label = group or self.name
        super().__init__(label, "consumer", f"of group {label!r}")
        self.deserializer: Callable[[Any], Any] = deserializer or json.loads
        self.max_wait_time = max_wait_time
        self.max_bytes = max_bytes
        self.synced_offsets: set[str] = set()
        self._logged: dict[str, float] = {}  # text of an error -> time when it was logged
        self._halted: dict[TopicPartition, float] = {}  # unreadable partition -> time of the error
        self._retry_halted_at = 0.0

    # -- methods of a subclass ------------------------------------------------------------------------------------

    _state: SubscriptionState
    _fetcher: Fetcher

    @property
    def _ended(self) -> BaseException | None:
        """The error that ended all reading, or None."""
        return self._fetcher.broken

    async def _consume(self, topic: str, start: Any) -> list[Any] | None:
        raise NotImplementedError

    async def _ready(self, topic: str) -> bool:
        """Returns whether the consumer may take a batch now. Called before each batch."""
        return True

    def _deliver(self, batch: Batch, next_offset: int) -> None:
        """Marks the records of `batch` up to `next_offset` as delivered."""
        raise NotImplementedError

    def _go_to(self, partition: TopicPartition, offset: int) -> None:
        """Seeks to `offset`, if the consumer may still read the partition."""
        raise NotImplementedError

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        """Seeks to `offset` for the user. Raises if the consumer may not read the partition."""
        raise NotImplementedError

    async def _wait(self, timeout_s: float) -> None:
        await self._fetcher.news(timeout_s)

    def _stop(self) -> None:
        self._fetcher.wake()

    def _abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        ZooKeeperClient.end_sessions(loop)

    # -- offsets -------------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> MutableMapping[str, MutableMapping[int, int]]:
        """Topic -> partition -> next offset. Setting `offsets[topic][partition]` seeks."""
        return OffsetsByTopic(
            lambda: {p: at.offset for p, at in self._state.all_consumed_offsets().items()}, self._seek
        )

    # -- reading -------------------------------------------------------------------------------------------------

    def consume(self, topic: str, start: Any = None) -> asyncio.Future[list[Any] | None]:
        """Returns the values of a topic that arrive within `max_wait_time` milliseconds, at most about `max_bytes`.

        The list is empty if no values arrive, for an unknown topic, and after an error, which is logged. The result is
        None if the consumer is closing. A value or tombstone that the deserializer refuses is logged and omitted.
        Raises IllegalState before `connect`.
        """
        if self.closing:
            # a future, not a task: if the loop stops now, Python would warn that the task never ran
            over: asyncio.Future[list[Any] | None] = (self._loop or asyncio.get_running_loop()).create_future()
            over.set_result(None)
            return over
        self._must_be_connected()
        return start_task(self._consume(topic, start))

    async def _read(self, topic: str) -> tuple[list[Any], dict[TopicPartition, int]]:
        """Returns the values for one `consume`, and partition -> offset of its first value."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.max_wait_time / 1000.0
        values: list[Any] = []
        starts: dict[TopicPartition, int] = {}
        size = 0
        self._retry_halted()
        try:
            while not self.closing:
                ready = await self._ready(topic)
                taken = self._take(topic, values, starts) if ready else None
                size += taken or 0
                left = end - loop.time()
                if taken is not None and size < self.max_bytes:
                    continue
                if values or left <= 0:
                    break
                await (self._wait if ready else asyncio.sleep)(min(TURN_S, left))
        except BaseException:
            # the user does not get these values, so they must not be committed
            self._put_back(starts)
            raise
        return values, starts

    def _take(self, topic: str, values: list[Any], starts: dict[TopicPartition, int]) -> int | None:
        """Appends the values of the next batch. Returns their size in bytes, or None if no batch is available."""
        try:
            batch = self._fetcher.take(topic)
        except AllocatorError as error:
            self._report(error)
            return 0
        if batch is None:
            return None
        starts.setdefault(TopicPartition(batch.topic, batch.partition), batch.base_offset)
        self._deliver(batch, self._decode(batch, values))
        self.synced_offsets.add(topic)
        return batch.nbytes

    def _decode(self, batch: Batch, values: list[Any]) -> int:
        """Appends the values of `batch`. Returns the offset after the last readable record."""
        end = batch.base_offset
        try:
            for record in batch:
                try:
                    values.append(self.deserializer(record.value))
                except Exception as error:  # noqa: BLE001  the user's code may raise anything
                    self._omit(batch, record, error)
                end = record.offset + 1
        except CorruptRecordError as error:
            self._report(error)
            # otherwise the fetcher would continue after the corrupt record
            self._fetcher.halt(TopicPartition(batch.topic, batch.partition), error)
            return end
        return batch.next_offset

    def _put_back(self, starts: Mapping[TopicPartition, int]) -> None:
        for partition, offset in starts.items():
            self._go_to(partition, offset)

    def _retry_halted(self) -> None:
        """Retries unreadable partitions after `RETRY_S` seconds."""
        now = time.monotonic()
        if now < self._retry_halted_at:
            return
        self._retry_halted_at = now + 1.0  # limits the cost with thousands of partitions and of calls per second
        self._halted = {partition: self._halted.get(partition, now) for partition in self._fetcher.halted()}
        for partition, since in self._halted.items():
            position = self._state.position(partition)
            if position is not None and now - since >= RETRY_S:
                self._state.seek(partition, position)
                self._fetcher.wake()

    # -- the log -------------------------------------------------------------------------------------------------

    def _report(self, error: AllocatorError) -> None:
        """Logs an error of some topics. Raises an error that ends all reading, or that the user must fix."""
        if self._ended is not None or isinstance(error, InconsistentAssignor):
            raise error
        if not isinstance(error, Closed):  # Closed: `close` was called during `consume`
            self._log(str(error))

    def _log(self, text: str) -> None:
        """Logs at level ERROR, or at DEBUG if the same text was logged less than `LOG_AGAIN_S` seconds ago."""
        now, key = time.monotonic(), DURATION.sub("", text)
        known = key in self._logged and now - self._logged[key] < LOG_AGAIN_S
        if not known:
            self._logged = {each: at for each, at in self._logged.items() if now - at < LOG_AGAIN_S}
            self._logged[key] = now
        log.log(logging.DEBUG if known else logging.ERROR, "%s: %s", self._label, text)

    def _omit(self, batch: Batch, record: Record, error: Exception) -> None:
        """Logs a record that is omitted because the deserializer raised `error`."""
        if record.value is None:
            self._log(
                f"records of topic {batch.topic!r} without a value (tombstones) are omitted, because the deserializer "
                "does not accept None; to get them, pass a deserializer that does"
            )
        else:
            where = f"{batch.topic}:{batch.partition} at offset {record.offset}"
            log.error("%s: omitting a value, the deserializer raised at %s", self._label, where, exc_info=error)
