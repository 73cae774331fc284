"""Whether an old topic is still the one that was mirrored, or was deleted and created again under the same name.

A new topic begins at offset 0 again. A mirror that goes on at its old position would pass over the first records of the
new topic, or repeat some of the former one's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple, Optional

from allocator.errors import AllocatorError
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap
from allocator.migrate.spans import read_spans
from allocator.migrate.tails import digest
from allocator.migrate.topic_ids import same_topic
from allocator.migrate.ways import ends_of
from allocator.record import Record
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient

__all__ = ["Log", "TopicsStopped", "find_recreated"]

# records before the position that are compared where there is no topic id. More: a few compacted ones do not matter
SAMPLE: Final = 20
# more: a leader that was just elected tells the end of its log; less: a shorter log is told sooner
PATIENCE_S: Final = 3.0
CREATE_TIME: Final = 0


class TopicsStopped(AllocatorError):
    """Topics were deleted and created again since they were mirrored; a mirror leaves them until it is told how."""


class Log(NamedTuple):
    """Of one old partition: its first offset, and the mirror's position in it, if it has one."""

    start: int
    position: Optional[int]


async def find_recreated(
    settings: MirrorSettings,
    old: KafkaClient,
    new: KafkaClient,
    known: OffsetMap,
    logs: Mapping[TopicPartition, Log],
    ids: Mapping[str, str | None],
) -> dict[TopicPartition, str]:
    """Those of `logs` that are not what was mirrored, each with what shows it. `ids`: of the old topics, now.

    By the topic's id where the map has one as well; else by a log that ends before the position, and by the last
    mirrored records: the same offsets must hold the same records on both clusters. What is no longer there on either
    side cannot be compared.
    """
    found: dict[TopicPartition, str] = {}
    unproven: dict[TopicPartition, tuple[int, int]] = {}
    at = {each: log.position for each, log in logs.items() if log.position is not None}
    ends = await _ends_beyond(old, at)
    for partition, (start, position) in logs.items():
        reason = known.recreated(partition, ids[partition.topic])
        if reason is not None:
            found[partition] = f"the old topic was deleted and created again: {reason}"
        elif position is None:
            continue
        elif position > ends[partition]:
            found[partition] = (
                f"the old topic was deleted and created again, or lost its tail: partition {partition.partition} was "
                f"mirrored up to offset {position - 1} and ends at {ends[partition] - 1} now"
            )
        elif not same_topic(known.incarnation(partition).topic_id, ids[partition.topic]):
            unproven[partition] = (max(start, position - SAMPLE), position)
    found.update(await _by_content(settings, new, known, unproven))
    return found


async def _ends_beyond(client: KafkaClient, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The ends of these logs, asked again for a while where one is before its offset in `at`.

    The leader of an old Kafka may tell a lower end for a moment after its election.
    """
    deadline = time.monotonic() + PATIENCE_S
    ends = {each: found.end for each, found in (await ends_of(client, at)).items()}
    while time.monotonic() < deadline:
        short = [each for each, offset in at.items() if offset > ends.get(each, 0)]
        if not short:
            break
        await asyncio.sleep(client.retry_backoff_s)
        ends.update((each, found.end) for each, found in (await ends_of(client, short)).items())
    return {each: ends.get(each, 0) for each in at}


async def _by_content(
    settings: MirrorSettings, new: KafkaClient, known: OffsetMap, spans: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, str]:
    here: dict[TopicPartition, dict[int, Record]] = {}
    async for batch in read_spans(settings.old, spans, settings.old_security, isolation_level="read_committed"):
        for record in batch:
            partition = TopicPartition(batch.topic, batch.partition)
            target = known.positions(partition).exact(record.offset)
            if target is not None:
                here.setdefault(partition, {})[target] = record
    found: dict[TopicPartition, str] = {}
    ends = await ends_of(new, here)
    there = {
        each: (max(min(records), ends[each].start), min(max(records) + 1, ends[each].end))
        for each, records in here.items()
        if each in ends
    }
    async for batch in read_spans(settings.new, there, settings.new_security):
        for copy in batch:
            partition = TopicPartition(batch.topic, batch.partition)
            original = here[partition].get(copy.offset)
            if original is not None and not _same(original, copy):
                found[partition] = (
                    f"the old topic was deleted and created again: its record at offset {original.offset} is not the "
                    f"one that was mirrored from there to offset {copy.offset} of the new cluster"
                )
    return found


def _same(record: Record, copy: Record) -> bool:
    # a broker that sets times itself gives the copy another one
    return digest(record, timed=False) == digest(copy, timed=False) and (
        record.timestamp == copy.timestamp or copy.timestamp_type != CREATE_TIME
    )
