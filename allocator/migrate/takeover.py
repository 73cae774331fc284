"""Where a mirror goes on with partitions that it takes over: from nobody, or from a process that died."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional

from allocator.coordinator.offsets import GroupOffsets
from allocator.errors import AllocatorError
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap
from allocator.migrate.positions import Run
from allocator.migrate.tails import Tail, read_tails
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.list_offsets import EARLIEST, LATEST, list_offsets

__all__ = ["NotEmpty", "TakenOver", "take_over"]


class NotEmpty(AllocatorError):
    """A partition of the new cluster holds records, and nothing says that they are this mirror's."""


class TakenOver(NamedTuple):
    """One partition: the old offset to go on from, where the new log ends, and what stands between.

    `fresh`: nothing was committed of it. `gone`: old offsets that were deleted before they were mirrored.
    """

    position: int
    end: int
    tail: Optional[Tail]
    fresh: bool
    gone: int


async def take_over(
    partitions: Iterable[TopicPartition],
    settings: MirrorSettings,
    old: KafkaClient,
    new: KafkaClient,
    offsets: GroupOffsets,
    known: OffsetMap,
) -> dict[TopicPartition, TakenOver]:
    """When this returns, the map says where each goes on: whoever takes over next compares from there.

    Raises NotEmpty.
    """
    wanted = list(partitions)
    await known.refresh()
    committed = await offsets.fetch(wanted)
    starts = await list_offsets(old, dict.fromkeys(wanted, EARLIEST))
    ends = await list_offsets(new, dict.fromkeys(wanted, LATEST))
    found: dict[TopicPartition, TakenOver] = {}
    spans: dict[TopicPartition, tuple[int, int]] = {}
    for partition in wanted:
        start, end = starts[partition], ends[partition]
        lowest, there = 0 if start is None else start.offset, 0 if end is None else end.offset
        before = committed.get(partition)
        position = lowest if before is None else before.offset
        target = None if before is None else known.positions(partition).target(position)
        fresh = target is None
        if target is None:
            if there and not settings.append:
                raise NotEmpty(
                    f"{partition.topic}:{partition.partition} of the new cluster holds {there} records that no mirror "
                    f"of this group wrote (of group {settings.group!r} nothing is committed on the old cluster, or the "
                    "offset map is gone); empty it, or say that they may stay (--append)"
                )
            known.note(partition, Run(position, there))
            target = there
        spans[partition] = (target, there)
        found[partition] = TakenOver(position, there, None, fresh, max(0, lowest - position))
    await known.flush()
    tails = await read_tails(settings.new, spans, settings.new_security)
    return {partition: each._replace(tail=tails.get(partition)) for partition, each in found.items()}
