"""Where a mirror goes on with partitions that it takes over: from nobody, or from a process that died."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

from allocator.coordinator.offsets import GroupOffsets
from allocator.errors import AllocatorError, TopicNotFound
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap
from allocator.migrate.positions import Run
from allocator.migrate.recreated import Log, find_recreated
from allocator.migrate.tails import Tail, first_records, read_tails
from allocator.migrate.ways import Ends, ends_of
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient

__all__ = ["Loss", "NotEmpty", "TakenOver", "take_over"]

log = logging.getLogger(__name__)


class NotEmpty(AllocatorError):
    """A partition of the new cluster holds records, and nothing says that they are this mirror's."""


class Loss(NamedTuple):
    """Offsets of an old partition that were deleted before they were mirrored, both ends included."""

    partition: TopicPartition
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition} offsets {self.first} to {self.last}"

    @property
    def offsets(self) -> int:
        return self.last - self.first + 1


class TakenOver(NamedTuple):
    """One partition: the old offset to go on from, where the new log ends, and what stands between.

    `seek`: what is committed is another offset, or of another topic. `lost`: what was deleted right before that offset.
    `recreated`: why nothing of it is mirrored until the operator says how to go on.
    """

    position: int
    end: int
    tail: Optional[Tail] = None
    seek: bool = False
    lost: Optional[Loss] = None
    recreated: Optional[str] = None


async def take_over(
    partitions: Iterable[TopicPartition],
    settings: MirrorSettings,
    old: KafkaClient,
    new: KafkaClient,
    offsets: GroupOffsets,
    known: OffsetMap,
    ids: Mapping[str, str | None],
) -> dict[TopicPartition, TakenOver]:
    """When this returns, the map says where each goes on: whoever takes over next compares from there.

    `ids`: of the old topics, now. Raises NotEmpty.
    """
    wanted = list(partitions)
    await known.refresh()
    committed = {each: found.offset for each, found in (await offsets.fetch(wanted)).items()}
    sources, targets = await ends_of(old, wanted), await ends_of(new, wanted)
    missing = {each.topic for each in wanted if each not in sources or each not in targets}
    if missing:
        raise TopicNotFound(sorted(missing))
    logs = {each: Log(sources[each].start, committed.get(each)) for each in wanted}
    recreated = await find_recreated(settings, old, new, known, logs, ids)
    found: dict[TopicPartition, TakenOver] = {}
    spans: dict[TopicPartition, tuple[int, int]] = {}
    for partition, source in sources.items():
        reason, choice = recreated.get(partition), settings.recreated.get(partition.topic)
        there = targets[partition].end
        if reason is not None and choice is None:
            found[partition] = TakenOver(source.start, there, recreated=reason)
            continue
        incarnation = known.incarnation(partition)
        incarnation = incarnation._replace(topic_id=ids[partition.topic] or incarnation.topic_id)
        position = committed.get(partition)
        if reason is not None:
            more, position = _as_told(known, partition, source, position, there, str(choice))
            incarnation = incarnation._replace(number=incarnation.number + more)
            log.warning("%s:%d: %s; goes on at offset %d, as recreated=%r says", *partition, reason, position, choice)
        known.begin(partition, incarnation)
        target = None if position is None else known.positions(partition).target(position)
        if position is None:
            position = source.start
        if target is None:
            if there and not settings.append and reason is None:
                raise NotEmpty(
                    f"{partition.topic}:{partition.partition} of the new cluster holds {there} records that no mirror "
                    f"of this group wrote (of group {settings.group!r} nothing is committed on the old cluster, or the "
                    "offset map is gone); empty it, or say that they may stay (--append)"
                )
            known.note(partition, Run(position, there))
            target = there
        spans[partition] = (target, there)
        lost = Loss(partition, position, source.start - 1) if position < source.start else None
        position = max(position, source.start)
        seek = reason is not None or committed.get(partition) != position
        found[partition] = TakenOver(position, there, None, seek, lost)
    await known.flush()
    tails = await read_tails(settings.new, spans, settings.new_security)
    return await _without_found(settings, sources, found, tails)


def _as_told(
    known: OffsetMap, partition: TopicPartition, source: Ends, position: int | None, there: int, choice: str
) -> tuple[int, int]:
    """What the operator's choice for a topic that was created again means: how much its incarnation grows, and where
    it begins."""
    if choice == "earliest":
        return 1, source.start
    if position is None:  # the brokers forget it with the topic
        position = known.positions(partition).source(there)
    return 0, min(source.start if position is None else position, source.end)


async def _without_found(
    settings: MirrorSettings,
    sources: Mapping[TopicPartition, Ends],
    taken: Mapping[TopicPartition, TakenOver],
    tails: Mapping[TopicPartition, Tail],
) -> dict[TopicPartition, TakenOver]:
    """With their tails; what a process wrote that died before it committed is not lost though the source deleted it."""
    found = {partition: each._replace(tail=tails.get(partition)) for partition, each in taken.items()}
    doubtful = {each: sources[each] for each, one in found.items() if one.lost is not None and one.tail is not None}
    firsts = await first_records(settings.old, doubtful, settings.old_security)
    for partition in doubtful:
        lost, tail = found[partition].lost, found[partition].tail
        assert lost is not None
        assert tail is not None
        kept = tail.skip_to(firsts.get(partition), lost.offsets)
        rest = lost._replace(first=lost.first + kept) if kept < lost.offsets else None
        found[partition] = found[partition]._replace(lost=rest, tail=None if not tail.left else tail)
    return found
