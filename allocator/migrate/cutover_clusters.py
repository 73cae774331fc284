"""Both clusters of a cutover, the ensemble of its groups and the map of its mirror: what the steps ask them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from allocator.coordinator.offsets import GroupOffsets
from allocator.errors import AllocatorError
from allocator.migrate.offset_map import OffsetMap, map_topic
from allocator.migrate.places import Place, connected
from allocator.migrate.plan import Plan
from allocator.migrate.topic_ids import TopicIds
from allocator.migrate.ways import ends_of
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.zookeeper import ZooKeeper

__all__ = ["LOOK_S", "Clusters", "CutoverFailed", "opened", "until"]

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2

T = TypeVar("T")


class CutoverFailed(AllocatorError):
    """A step is not done. What was done stays done: mend what it says and run it again, or roll back."""


class Clusters(NamedTuple):
    """Connected."""

    plan: Plan
    old: KafkaClient
    new: KafkaClient
    ensemble: ZooKeeper
    map: OffsetMap

    def partitions(self, client: KafkaClient) -> list[TopicPartition]:
        """Of the plan's topics, on one of the two."""
        return [TopicPartition(topic, n) for topic in self.plan.topics for n in client.partitions(topic) or ()]

    async def committed(self, place: Place) -> dict[TopicPartition, int]:
        """What a group has committed of them."""
        async with place.opened() as there:
            return await there.committed(self.partitions(there.client))

    async def mirrored(self) -> dict[TopicPartition, int]:
        """Old positions up to which all stands on the new cluster.

        Raises CutoverFailed for a topic that was deleted and created again since it was mirrored.
        """
        ids = await TopicIds(self.old).of(self.plan.topics)
        found = await GroupOffsets(self.old, self.plan.mirror).fetch(self.partitions(self.old))
        await self.map.refresh()
        for each in self.partitions(self.old):
            reason = self.map.recreated(each, ids[each.topic])
            if reason is not None:
                raise CutoverFailed(
                    f"topic {each.topic!r} of the old cluster was deleted and created again: {reason}; the groups' "
                    "offsets may be of the former topic. Tell the mirror how to go on (--recreated), and check where "
                    "the groups stand"
                )
        return {each: offset.offset for each, offset in found.items()}

    async def mirror_lag(self) -> int:
        """Records that the mirror has still to bring."""
        ends, mirrored = await ends_of(self.old, self.partitions(self.old)), await self.mirrored()
        return sum(max(0, end.end - mirrored.get(each, 0)) for each, end in ends.items())

    async def back(self, group: str) -> None:
        """What the group has done on the new cluster, committed on the old one."""
        await self.map.refresh()
        done = await self.committed(self.plan.new(group))
        async with self.plan.old(group).opened() as old:
            offsets = {}
            before = await old.committed(self.partitions(self.old))
            for each, target in done.items():
                source = self.map.positions(each).source(target)
                if source is not None:
                    offsets[each] = max(source, before.get(each, 0))
            await old.refuse_members()
            await old.commit(offsets, "rolled back")


@contextlib.asynccontextmanager
async def opened(plan: Plan) -> AsyncIterator[Clusters]:
    """Closed with the block. Raises CutoverFailed when there is no mirror."""
    async with contextlib.AsyncExitStack() as stack:
        old = await connected(stack, plan.old_brokers, plan.old_security)
        new = await connected(stack, plan.new_brokers, plan.new_security)
        ensemble = ZooKeeper(plan.zookeeper)
        stack.push_async_callback(ensemble.close)
        await ensemble.connect(make_chroot=False)
        offset_map = OffsetMap(new, plan.new_brokers, map_topic(plan.mirror), plan.new_security)
        if new.partitions(offset_map.topic) is None:
            raise CutoverFailed(f"the new cluster has no {offset_map.topic!r}: start the mirror, `allocator mirror`")
        await offset_map.open()
        yield Clusters(plan, old, new, ensemble, offset_map)


async def until(look: Callable[[], Awaitable[T]], enough: Callable[[T], bool], timeout_s: float) -> T:
    """What `look` found last: enough, or time was up."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = await look()
        except AllocatorError as error:
            # coordinators that have just started, leaders that move
            if not error.retriable or time.monotonic() > deadline:
                raise
            log.info("asked again: %s", error)
        else:
            if enough(found) or time.monotonic() > deadline:
                return found
        await asyncio.sleep(LOOK_S)
