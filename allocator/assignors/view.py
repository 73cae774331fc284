"""Builds the view of the group and the cluster for an allocator function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import islice

from allocator.assignors.types import Assignor, GroupView, Member, wants
from allocator.core.aio import within
from allocator.core.settings import PartitionCountSource
from allocator.core.text import some_of
from allocator.errors import AllocatorError
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 3.0  # the requests for loads delay a rebalance for at most this long
LOAD_AT_ONCE = 1000  # partitions in one call; encoding more requests would keep the loop from renewing the lease

Load = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, float]]]
"""Returns the load of each partition, in any unit. It may omit partitions, and raise AllocatorError."""


class GroupViewBuilder:
    """Adds racks and loads to the view, if the function uses them.

    The leader requests them when it computes an assignment. They never cause a rebalance, and are not written to
    ZooKeeper. A load that is younger than `fresh_s` seconds is not requested again.
    """

    def __init__(self, group: str, topics: PartitionCountSource, load: Load | None, *, fresh_s: float = 0.0) -> None:
        self._group = group
        self._topics = topics
        self._read_load = load
        self._load: dict[TopicPartition, float] = {}
        self._fresh_s = fresh_s
        self._requested_at = float("-inf")

    async def view(
        self,
        assignor: Assignor,
        members: tuple[Member, ...],
        counts: Mapping[str, int],
        owned: Mapping[str, frozenset[TopicPartition]],
    ) -> GroupView:
        """Returns the view for `assignor`, within LOAD_TIMEOUT_S."""
        wanted = wants(assignor)
        if not wanted:
            return GroupView(members, dict(counts), owned)
        subscribed = set().union(*(member.topics for member in members))
        partitions = [
            TopicPartition(topic, number)
            for topic, count in sorted(counts.items())
            if topic in subscribed
            for number in range(count)
        ]
        racks = {}
        if "racks" in wanted:
            racks = {partition: self._topics.racks(partition) for partition in partitions}
        if "load" in wanted:
            await self._refresh(partitions)
        return GroupView(members, dict(counts), owned, racks, dict(self._load))

    async def _refresh(self, partitions: Collection[TopicPartition]) -> None:
        """Refreshes `_load`. After the timeout, the remaining partitions keep their former loads."""
        if self._read_load is None:
            return
        known = set(partitions)
        self._load = {partition: load for partition, load in self._load.items() if partition in known}
        loop = asyncio.get_running_loop()
        if loop.time() - self._requested_at < self._fresh_s and len(self._load) == len(known):
            return
        self._requested_at = loop.time()
        ends = self._requested_at + LOAD_TIMEOUT_S
        rest = iter(partitions)
        try:
            while some := list(islice(rest, LOAD_AT_ONCE)):
                self._load.update(await within(self._read_load(some), ends - loop.time()))
        except asyncio.TimeoutError:
            log.warning(
                "%s: the load of some partitions is unknown: Kafka did not respond in %g s", self._group, LOAD_TIMEOUT_S
            )
        except AllocatorError as error:
            log.warning("%s: the load of some partitions is unknown: %s", self._group, error)

    def log_left_out(self, assignor: str, partitions: Collection[TopicPartition]) -> None:
        """Logs the partitions that an allocator function omits. The leader calls it when they change."""
        if not partitions:
            log.info("%s: allocator function %r no longer omits partitions", self._group, assignor)
            return
        names = some_of([f"{topic}:{number}" for topic, number in sorted(partitions)], 10)
        log.warning(
            "%s: allocator function %r omits %d partitions: %s; no member reads them",
            self._group,
            assignor,
            len(partitions),
            names,
        )
