"""Measures how far a mirror is behind: in records, in seconds, and until it has caught up."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple, Optional

from allocator.core.client import KafkaClient, list_offsets
from allocator.errors import AllocatorError
from allocator.migrate.positions import PartitionCopy
from allocator.types import TopicPartition

MEASURE_S: Final = 1.0  # between requests for the ends of the old logs. Higher: fewer requests; lower: exacter ages.
PATIENCE_S: Final = 5.0  # for a response. Higher: waits for slow leaders; lower: other partitions wait less for them.
STALE_S: Final = 15.0  # an end that is older is unknown. Higher: bridges longer outages; lower: tells them sooner.
WINDOW_S: Final = 60.0  # Higher: steadier rates; lower: they follow a change sooner.
LEAST_S: Final = 5.0  # Higher: the first estimate comes later; lower: it is less steady.
EXACTNESS: Final = 16  # Higher: exacter ages of a backlog; lower: less memory.


class MirrorProgress(NamedTuple):
    """The progress of one partition. `next` is the old position after the last acknowledged record.

    `end` is the end of the old log. `lag_s` is how long the oldest record that is not mirrored has been there: since
    this process first saw the log as long, or else by the record's timestamp. `waits` says for what the partition
    waits. What is unknown is None: before the first response of the leader, while the old cluster does not respond, and
    while the topic is stopped.
    """

    partition: TopicPartition
    next: Optional[int]
    end: Optional[int]
    lag_s: Optional[float] = None
    waits: Optional[str] = None

    @property
    def lag(self) -> int | None:
        """The number of old offsets that are not mirrored; None if it is unknown."""
        return None if self.end is None or self.next is None else max(0, self.end - self.next)


class Lag(NamedTuple):
    """The lag of several partitions; each is None if it is unknown for any of them.

    `seconds` is the largest of the partitions. `eta_s` is the time until nothing is left, if records are copied and
    produced at the rates of the last minute; None also if they are produced faster than they are copied.
    """

    records: Optional[int]
    seconds: Optional[float]
    eta_s: Optional[float]


class LagMeter:
    """Asks for the ends of the old logs. Remembers when they grew, and how fast records were produced and copied.

    Fetches learn the ends late under a throttle, and nothing in an outage.
    """

    def __init__(
        self, old: KafkaClient, copies: Mapping[TopicPartition, PartitionCopy], stopped: Container[str]
    ) -> None:
        self._old = old
        self._copies = copies
        self._stopped = stopped
        self._measured: dict[TopicPartition, float] = {}
        self._seen: dict[TopicPartition, list[tuple[int, Optional[float]]]] = {}  # ends, and when they were new
        self._acked: dict[TopicPartition, int] = {}
        self._copied = self._produced = 0
        self._totals: deque[tuple[float, int, int]] = deque()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(AllocatorError):
                await self.measure()
            await asyncio.sleep(MEASURE_S)

    async def measure(self) -> None:
        """Asks for the ends. Partitions without a leader, and stopped topics, have none. Raises AllocatorError."""
        led = [each for each in self._copies if each.topic not in self._stopped and self._old.leader(each) is not None]
        found = await list_offsets(self._old, dict.fromkeys(led, "latest"), timeout_s=PATIENCE_S)
        acked = {each: copy.acked for each, copy in self._copies.items()}
        self.sample({each: end.offset for each, end in found.items() if end and each in acked}, acked)

    def sample(self, ends: Mapping[TopicPartition, int], acked: Mapping[TopicPartition, int]) -> None:
        """Notes the ends of the old logs, and up to where they are copied."""
        now = time.monotonic()
        for partition, end in ends.items():
            at = acked[partition]
            seen = self._seen.setdefault(partition, [(end, None)])
            if end > seen[-1][0]:
                self._produced += end - seen[-1][0]
                oldest, last = next((since for _, since in seen if since is not None), now), seen[-1][1]
                if last is not None and now - last < (now - oldest) / EXACTNESS:
                    seen[-1] = (end, last)  # an age may be too high, never too low
                else:
                    seen.append((end, now))
            elif end < seen[-1][0]:  # another log
                seen[:] = [(end, None)]
            while len(seen) > 1 and seen[0][0] <= at:
                del seen[0]
            self._copied += max(0, at - self._acked.get(partition, at))
            self._measured[partition] = now
        self._acked = dict(acked)
        for gone in self._measured.keys() - acked.keys():
            del self._measured[gone]
            self._seen.pop(gone, None)
        self._totals.append((now, self._copied, self._produced))
        while self._totals[0][0] < now - WINDOW_S:
            self._totals.popleft()

    def end(self, partition: TopicPartition, fetched: int | None) -> int | None:
        """Returns the end of the old log; None if it is unknown. `fetched`: the end as of the last fetch."""
        now = time.monotonic()
        if now - self._measured.setdefault(partition, now) >= STALE_S:
            return None
        seen = self._seen.get(partition)
        return fetched if seen is None else max(seen[-1][0], fetched or 0)

    def age_s(self, partition: TopicPartition, at: int, timestamp_ms: int) -> float | None:
        """Returns how long the record at `at`, before the end, has been there; None if it is unknown.

        `timestamp_ms` is its timestamp or that of a record shortly before it, for a record that was there at first.
        """
        for upto, since in self._seen.get(partition, [(math.inf, None)]):
            if upto > at and since is not None:
                return time.monotonic() - since
            if upto > at:
                return None if timestamp_ms < 0 else max(0.0, time.time() - timestamp_ms / 1000)
        return 0.0  # it has arrived since the last sample

    def total(self, progress: Iterable[MirrorProgress]) -> Lag:
        """Returns the lag of these partitions together."""
        records: int | None = 0
        seconds: float | None = 0.0
        for each in progress:
            records = None if records is None or each.lag is None else records + each.lag
            seconds = None if seconds is None or each.lag_s is None else max(seconds, each.lag_s)
        return Lag(records, seconds, None if records is None else self._eta_s(records))

    def _eta_s(self, records: int) -> float | None:
        if not records:
            return 0.0
        if not self._totals or self._totals[-1][0] - self._totals[0][0] < LEAST_S:
            return None
        (then, *before), (now, *after) = self._totals[0], self._totals[-1]
        copied, produced = (more - less for less, more in zip(before, after))
        # less than LEAST_S behind, it has caught up, and records under way are no trend
        fewer = copied if records * (now - then) < copied * LEAST_S else copied - produced
        return records * (now - then) / fewer if fewer > 0 else None
