"""What an allocator function is shown of the group and of the cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import islice

from allocator.assignors import Assignor, GroupView, Member, wants
from allocator.errors import AllocatorError
from allocator.groups.membership import PartitionCountSource
from allocator.tasks import within
from allocator.types import TopicPartition

__all__ = ["GroupViewBuilder", "Load", "tell_left_out"]

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 3.0  # more: load is known of more partitions; less: a silent Kafka holds a rebalance up for less
SHOWN = 10  # partitions that a line of the log names
LOAD_AT_ONCE = 1000  # partitions; more would keep the loop from renewing the lease while requests are encoded

Load = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, float]]]
"""How much work each partition is, in any one unit; it may leave some out, and raise AllocatorError."""


class GroupViewBuilder:
    """Fills in the racks and the load that a function wants, and asks nobody for what it does not.

    They are looked up when an assignment is computed anyway, because the group, a topic or a partition count changed;
    they never cause a rebalance themselves. Nothing of them is written to ZooKeeper. Load that was told less than
    `fresh_s` seconds ago is not asked for again.
    """

    def __init__(self, group: str, topics: PartitionCountSource, load: Load | None, *, fresh_s: float = 0.0) -> None:
        self._group = group
        self._topics = topics
        self._ask = load
        self._load: dict[TopicPartition, float] = {}
        self._fresh_s = fresh_s
        self._asked = float("-inf")

    async def view(
        self,
        assignor: Assignor,
        members: tuple[Member, ...],
        counts: Mapping[str, int],
        owned: Mapping[str, frozenset[TopicPartition]],
    ) -> GroupView:
        """All that `assignor` may base its answer on; takes at most LOAD_TIMEOUT_S."""
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
        """Brings `_load` up to date as far as time allows; what is not answered keeps what was known of it."""
        if self._ask is None:
            return
        known = set(partitions)
        self._load = {partition: load for partition, load in self._load.items() if partition in known}
        loop = asyncio.get_running_loop()
        if loop.time() - self._asked < self._fresh_s and len(self._load) == len(known):
            return
        self._asked = loop.time()
        ends = self._asked + LOAD_TIMEOUT_S
        rest = iter(partitions)
        try:
            while some := list(islice(rest, LOAD_AT_ONCE)):
                self._load.update(await within(self._ask(some), ends - loop.time()))
        except asyncio.TimeoutError:
            log.warning("%s: Kafka did not tell the load of all partitions in %g s", self._group, LOAD_TIMEOUT_S)
        except AllocatorError as error:
            log.warning("%s: Kafka did not tell the load of all partitions: %s", self._group, error)


def tell_left_out(group: str, strategy: str, partitions: Collection[TopicPartition]) -> None:
    """Logs which partitions an allocator function gives to nobody. Caller: the leader, when they are others."""
    if not partitions:
        log.info("%s: allocator function %r leaves no partition out any more", group, strategy)
        return
    names = ", ".join(f"{topic}:{number}" for topic, number in sorted(partitions)[:SHOWN])
    more = f" and {len(partitions) - SHOWN} more" if len(partitions) > SHOWN else ""
    log.warning(
        "%s: allocator function %r gives %d partitions to nobody: %s%s; nobody reads them",
        group,
        strategy,
        len(partitions),
        names,
        more,
    )
