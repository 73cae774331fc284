"""Translates committed offsets into offsets of another log, by one of several methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Optional

from allocator.core.client import KafkaClient, list_offsets
from allocator.core.fetch import RangeReader
from allocator.core.offsets import GroupOffsets
from allocator.core.settings import DEFAULT
from allocator.errors import ConfigError
from allocator.migrate.offset_map import OffsetMap, map_topic
from allocator.migrate.positions import Target, target_lost
from allocator.migrate.tails import digest
from allocator.migrate.topics import TopicIds
from allocator.types import IsolationLevel, Record, TopicPartition

if TYPE_CHECKING:
    from allocator.migrate.storage import OpenOffsetStore

METHODS: Final = ("offset", "timestamp", "content", "map")
Progress = Callable[[int, int, str], None]
"""Called with the amount done, the total, and the unit."""
# Number of consecutive records that identify a position. Higher: tells repeated runs apart; lower: faster.
SAMPLE: Final = 20
_bare: Final = partial(digest, timed=False)  # other copy tools set their own timestamps


def silent(_done: int, _total: int, _unit: str) -> None:
    """Shows no progress."""


class Found(NamedTuple):
    """The offset in the other log, or None and the reason. `note` is shown in the table."""

    offset: Optional[int]
    note: str = ""


class Ends(NamedTuple):
    start: int
    end: int


async def ends_of(
    client: KafkaClient,
    partitions: Iterable[TopicPartition],
    *,
    isolation_level: IsolationLevel = DEFAULT["isolation_level"],
) -> dict[TopicPartition, Ends]:
    """Returns the ends of existing logs; with "read_committed" up to the first open transaction."""
    await client.refresh()
    existing = [each for each in partitions if each.partition in (client.partitions(each.topic) or ())]
    found = await RangeReader(client, isolation_level=isolation_level).bounds(existing)
    return {each: Ends(*bounds) for each, bounds in found.items()}


async def by_timestamp(
    old: OpenOffsetStore, new: OpenOffsetStore, committed: Mapping[TopicPartition, int], progress: Progress = silent
) -> dict[TopicPartition, Found]:
    """Translates by time: finds the first record that is at least as new as the group's next record. The group reads
    records of the same millisecond again.

    A group that has read all records continues at its last record, because the new log may have newer records.
    """
    ends = await ends_of(old.client, committed, isolation_level="read_committed")
    found: dict[TopicPartition, Found] = {}
    times: dict[TopicPartition, int] = {}
    # a deleted or compacted record is replaced by the next one
    spans = {
        each: (max(offset, ends[each].start), ends[each].end) for each, offset in committed.items() if each in ends
    }
    unread = sum(start < stop for start, stop in spans.values())
    async for batch in old.reader.read(spans, enough=times.__contains__):
        times[TopicPartition(batch.topic, batch.partition)] = batch[0].timestamp
        progress(len(times), unread, "partitions")
    read_all = {each for each in spans if each not in times}
    for each in read_all:
        last = await _last_record(old, each, ends[each])
        if last is not None:
            times[each] = last.timestamp
    for each in committed:
        if each not in ends:
            found[each] = Found(None, "not on the old cluster")
        elif each not in times and ends[each].end > 0:
            found[each] = Found(None, "the group had read all, and no record is left to compare; use map")
        elif times.get(each) == -1:
            found[each] = Found(None, "its records have no timestamp (before 0.10); use map or content")
    targets = await list_offsets(new.client, {each: when for each, when in times.items() if each not in found})
    remaining = {each for each in committed if each not in found}
    new_ends = await ends_of(new.client, remaining)
    for each in remaining:
        target = targets.get(each)
        if each not in new_ends:
            found[each] = Found(None, "not on the new cluster")
        elif each not in times:
            found[each] = Found(new_ends[each].start, "the old log never had a record")
        elif target is None:
            found[each] = Found(None, "all records there are older")
        else:
            note = "; the group had read all" if each in read_all else ""
            found[each] = Found(target.offset, f"at {times[each]} ms{note}")
    return found


async def _last_record(store: OpenOffsetStore, partition: TopicPartition, ends: Ends) -> Record | None:
    """Returns the last visible record of a log; None if no record is left."""
    size, last = SAMPLE, None
    while True:
        start = max(ends.start, ends.end - size)
        async for batch in store.reader.read({partition: (start, ends.end)}):
            last = batch[-1]
        if last is not None or start == ends.start:
            return last
        size *= 8  # found no visible record: transaction markers, or aborted or compacted records


async def by_map(
    old: OpenOffsetStore, new: OpenOffsetStore, mirror: str, committed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Found]:
    """Translates by the offset map of mirror `mirror`. Raises ConfigError if it has no map."""
    known = OffsetMap(old.client, new.client, map_topic(mirror))
    if not await known.exists():
        raise ConfigError(
            f"cluster {new.store.brokers} has no offset map {known.topic!r}, so no mirror of group {mirror!r} copies "
            "to it; name the group of one that does (--mirror). Back to the cluster that a mirror copies from, use "
            "content (--by content)"
        )
    positions = await GroupOffsets(old.client, mirror).fetch(list(committed))
    mirrored = {each: offset.offset for each, offset in positions.items()}
    await known.open()  # after reading the positions: a mirror writes the map before it commits
    ids = await TopicIds(old.client).of({each.topic for each in committed})
    ends = await ends_of(new.client, committed)
    new.client.refuse_hidden({each.topic for each in committed.keys() - ends.keys()})
    new_ids = await TopicIds(new.client).of({each.topic for each in committed})
    found = {}
    for each, offset in committed.items():
        kept = Target.of(positions.get(each))
        recreated = known.recreated(each, ids[each.topic])
        if each not in ends:
            found[each] = Found(None, "not on the new cluster")
        elif recreated is not None:
            found[each] = Found(None, f"the old topic was created again: {recreated}; set the mirror's --recreated")
        elif kept is not None and (lost := target_lost(each, kept, ends[each].end, new_ids[each.topic])) is not None:
            found[each] = Found(None, f"{lost}; start the mirror with --restart {each.topic}")
        elif offset > mirrored.get(each, -1):
            found[each] = Found(None, f"mirrored only up to {mirrored.get(each, 'nothing')}; wait for the mirror")
        else:
            start = known.start(each, offset, None if kept is None else (mirrored[each], kept.offset))
            # after invisible old records, the map has no entry until the next visible record is mirrored
            at = None if start.offset is None else min(start.offset, ends[each].end)
            note = "the old log began later" if at is not None and offset < known.positions(each).runs[0].source else ""
            if start.again:
                note = f"up to {start.again} records again, because records of others are between the copies"
            found[each] = Found(at, start.reason or note)
    return found


async def by_content(
    old: OpenOffsetStore, new: OpenOffsetStore, committed: Mapping[TopicPartition, int], progress: Progress = silent
) -> dict[TopicPartition, Found]:
    """Compares the records around the offset. Reads the new logs from start to end."""
    old_ends, new_ends = [
        await ends_of(each.client, committed, isolation_level="read_committed") for each in (old, new)
    ]
    found: dict[TopicPartition, Found] = {}
    sizes = {each: new_ends[each].end - new_ends[each].start for each in committed if each in new_ends}
    done, total = 0, sum(sizes.values())
    for each, offset in sorted(committed.items()):
        before_it, done = done, done + sizes.get(each, 0)
        progress(before_it, total, "records")
        if each not in old_ends or each not in new_ends:
            found[each] = Found(None, f"not on the {'old' if each not in old_ends else 'new'} cluster")
            continue
        low, high = old_ends[each]
        span = {each: (max(low, offset - SAMPLE), min(high, max(low, offset) + SAMPLE))}
        sample = [record async for batch in old.reader.read(span) for record in batch]
        if not sample:
            empty = Found(new_ends[each].start, "the old log is empty")
            found[each] = empty if low == high else Found(None, "no record at that offset is left to compare")
            continue
        before = sum(record.offset < offset for record in sample)

        def tell(offset: int, base: int = before_it - new_ends[each].start) -> None:
            progress(base + offset, total, "records")

        found[each] = await _search(new, each, new_ends[each], list(map(_bare, sample)), before, tell)
    return found


async def _search(
    new: OpenOffsetStore,
    partition: TopicPartition,
    ends: Ends,
    sample: list[bytes],
    before: int,
    tell: Callable[[int], None],
) -> Found:
    """Searches the log for the records of `sample`, one right after the other. Returns the offset after the first
    `before` of these records."""
    matches: list[int] = []
    window: list[tuple[int, bytes]] = []
    async for batch in new.reader.read({partition: ends}):
        for record in batch:
            window.append((record.offset, _bare(record)))
            del window[: -len(sample)]
            if [content for _, content in window] == sample:
                matches.append(window[before][0] if before < len(window) else window[-1][0] + 1)
        tell(batch.next_offset)
    if not matches:
        return Found(None, f"the new cluster does not have the {len(sample)} records around it in a row")
    note = f"{len(sample)} records compared"
    return Found(matches[0], note if len(matches) == 1 else f"{note}; {len(matches)} matches, the first is used")
