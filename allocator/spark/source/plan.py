"""Plans a read: computes ranges of offsets from options, the cluster and the group."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from allocator.core.client import KafkaClient, list_offsets
from allocator.core.fetch import RangeReader
from allocator.core.offsets import GroupOffsets
from allocator.core.text import partition_names
from allocator.errors import BrokersUnavailable, ConfigError
from allocator.spark.errors import DataLoss
from allocator.spark.options import Options
from allocator.spark.ranges import COMMITTED, EARLIEST, LATEST, Range, StartOrEnd, Time
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]
Bounds = dict[TopicPartition, tuple[int, int]]
"""Partition -> (first offset, end offset)."""
Reached = Mapping[TopicPartition, int]
NOTHING: Reached = MappingProxyType({})
END_NAME = "ending_offsets"


async def find_partitions(client: KafkaClient, options: Options, max_age_s: float = 0.0) -> list[TopicPartition]:
    """Returns the partitions that the options select, from metadata of at most `max_age_s` seconds.

    Raises TopicNotFound for a missing topic, TopicAuthorizationFailed for one that this user may not see, ConfigError
    for a missing partition of `assign`. A pattern may match nothing yet.
    """
    if options.topics_pattern is not None:
        client.follow_all()
        await client.refresh(max_age_s=max_age_s)
        matches = re.compile(options.topics_pattern).fullmatch
        topics = sorted(topic for topic in client.topics() if matches(topic))
        return [TopicPartition(topic, number) for topic in topics for number in client.partitions(topic) or ()]
    wanted = sorted({tp.topic for tp in options.assign or ()} | set(options.topics or ()))
    client.follow(wanted)
    await client.refresh(wanted, max_age_s=max_age_s)
    missing = [topic for topic in wanted if client.partitions(topic) is None]
    if missing:
        # a starting broker does not know its topics yet
        await client.refresh(wanted)
        missing = [topic for topic in wanted if client.partitions(topic) is None]
    if missing:
        if not client.brokers:
            raise BrokersUnavailable("the cluster reports no broker yet; try again when it has its first topic")
        raise await client.absence(missing)
    if options.assign is None:
        return [TopicPartition(topic, number) for topic in wanted for number in client.partitions(topic) or ()]
    absent = [tp for tp in options.assign if tp.partition not in (client.partitions(tp.topic) or ())]
    if absent:
        tp = absent[0]
        raise ConfigError(
            f"assign: {tp.topic!r} has no partition {tp.partition}, it has {len(client.partitions(tp.topic) or ())}"
        )
    return list(options.assign)


async def bounds(
    client: KafkaClient, options: Options, tps: Collection[TopicPartition], reached: Reached = NOTHING
) -> Bounds:
    """Returns the start and end of each partition (read_committed: the last stable offset). Raises BrokerError.

    `reached`: as in `list_offsets`.
    """
    reader = RangeReader(client, isolation_level=options.isolation_level, patience_s=options.timeout_s)
    return await reader.bounds(tps, reached=reached)


async def ends(
    client: KafkaClient, options: Options, tps: Collection[TopicPartition], reached: Reached = NOTHING
) -> Offsets:
    """Returns the current end of each partition. Raises BrokerError. `reached`: as in `list_offsets`."""
    found = await list_offsets(
        client,
        dict.fromkeys(tps, "latest"),
        isolation_level=options.isolation_level,
        timeout_s=options.timeout_s,
        reached=reached,
    )
    return {tp: there.offset if there is not None else 0 for tp, there in found.items()}


async def still_there(client: KafkaClient, options: Options, positions: Offsets, ids: Mapping[str, str]) -> Offsets:
    """Returns the part of `positions` that its logs still have: the topic has its id in `ids`, if both are known, and
    the log does not end earlier. Raises BrokerError, TopicNotFound."""
    if not positions:
        return positions
    topics = {tp.topic for tp in positions}
    await client.refresh(topics)
    if any(client.partitions(topic) is None for topic in topics):
        await client.refresh(topics)  # a starting broker does not know its topics yet
    now = topic_ids(client, topics)
    again = {topic for topic, known in ids.items() if now.get(topic, known) != known}
    same = {
        tp: at
        for tp, at in positions.items()
        if tp.topic not in again and tp.partition in (client.partitions(tp.topic) or ())
    }
    # an open transaction is no loss
    last = await ends(client, replace(options, isolation_level="read_uncommitted"), same, same)
    return {tp: at for tp, at in same.items() if at <= last[tp]}


async def resolve(client: KafkaClient, options: Options, place: StartOrEnd, known: Bounds, name: str) -> Offsets:
    """Returns the offset of `place` in each partition of `known`. It may lie outside the log.

    `name` is the option that errors name. With END_NAME, a time after every record means the end of the partition. If a
    committed offset or a time is beyond the ends in `known`, because records were written meanwhile, updates these
    ends. Raises ConfigError for a partition that the JSON does not name, and for a start time after every record unless
    `timestamp_strategy` is "latest". Raises NoOffsetsError, BrokerError.
    """
    found: Offsets = {}
    times: dict[TopicPartition, int] = {}
    committed = set()
    for tp, (begin, end) in known.items():
        at = place.of(tp)
        if at is None:
            raise ConfigError(f"{name} has no entry for {tp.topic}:{tp.partition}; its JSON must name every partition")
        if isinstance(at, Time):
            times[tp] = at.ms
        elif at == COMMITTED:
            committed.add(tp)
        else:
            found[tp] = {EARLIEST: begin, LATEST: end}[at] if isinstance(at, str) else at
    if times:
        found.update(await _at_times(client, options, times, known, name))
    if committed:
        assert options.group is not None
        group = GroupOffsets(client, options.group, timeout_s=options.timeout_s)
        offsets = await group.fetch(committed)
        new = committed - offsets.keys()
        if new:
            log.warning(
                "group %s has no committed offset of %s; starting at the earliest record",
                options.group,
                partition_names(new),
            )
        found.update({tp: offsets[tp].offset if tp in offsets else known[tp][0] for tp in committed})
        found.update((tp, known[tp][0]) for tp in begin_again(group, options, offsets))
    grown = [tp for tp in (*committed, *times) if found[tp] > known[tp][1]]
    if grown:
        known.update({tp: (known[tp][0], end) for tp, end in (await ends(client, options, grown)).items()})
    return found


def begin_again(
    group: GroupOffsets, options: Options, offsets: dict[TopicPartition, OffsetAndMetadata]
) -> frozenset[TopicPartition]:
    """Returns the partitions whose topic was deleted and recreated after the group committed `offsets`.

    Raises DataLoss if `fail_on_data_loss` is set.
    """
    former = group.of_former_topics(offsets)
    if former and options.fail_on_data_loss:
        raise DataLoss(
            f"group {options.group!r} committed offsets of {partition_names(former)} before the topic was deleted and "
            "created again; set starting_offsets, or set fail_on_data_loss to false to begin at the earliest record"
        )
    if former:
        log.warning("%s: the topic was created again; starting at its earliest record", partition_names(former))
    return former


async def _at_times(
    client: KafkaClient, options: Options, times: Mapping[TopicPartition, int], known: Bounds, name: str
) -> Offsets:
    there = await list_offsets(client, times, isolation_level=options.isolation_level, timeout_s=options.timeout_s)
    late = sorted(tp for tp, at in there.items() if at is None)
    if late and options.timestamp_strategy == "error" and name != END_NAME:
        raise ConfigError(
            f"{name}: no record of {partition_names(late)} is as new as {times[late[0]]} ms; set timestamp_strategy to "
            "latest to start at the end of such a partition"
        )
    return {tp: known[tp][1] if at is None else at.offset for tp, at in there.items()}


def clip(options: Options, offsets: Mapping[TopicPartition, int], known: Bounds, name: str) -> Offsets:
    """Returns `offsets`, moved into the logs. If `fail_on_data_loss` is set, raises DataLoss for an offset outside."""
    outside = {tp: at for tp, at in offsets.items() if not known[tp][0] <= at <= known[tp][1]}
    if outside and options.fail_on_data_loss:
        tp = min(outside)
        more = f" (and {len(outside) - 1} more partitions)" if len(outside) > 1 else ""
        if options.isolation_level == "read_committed":
            more = f", without open transactions{more}"
        raise DataLoss(
            f"{name}: {tp.topic}:{tp.partition} is to be read from or to offset {outside[tp]}, and has {known[tp][0]} "
            f"to {known[tp][1]}{more}; name offsets that exist, or set fail_on_data_loss to false to use the nearest"
        )
    for tp, at in outside.items():
        log.warning(
            "%s:%d has no offset %d; it has %d to %d, and reading continues there",
            tp.topic,
            tp.partition,
            at,
            *known[tp],
        )
    return {tp: min(max(at, known[tp][0]), known[tp][1]) for tp, at in offsets.items()}


async def plan_batch(client: KafkaClient, options: Options) -> list[Range]:
    """Returns the ranges that a batch reads, at most one for each partition."""
    tps = await find_partitions(client, options)
    start_place, end_place = options.start or StartOrEnd(EARLIEST), options.end or StartOrEnd(LATEST)
    for place, name in ((start_place, "starting_offsets"), (end_place, END_NAME)):
        unknown = place.each.keys() - set(tps)
        if unknown:
            raise ConfigError(f"{name} names {partition_names(unknown)}, which does not exist; remove it")
    known = await bounds(client, options, tps)
    start = await resolve(client, options, start_place, known, "starting_offsets")
    end = await resolve(client, options, end_place, known, END_NAME)
    # a group may have committed more than the end of the batch: then there is nothing to read
    inside = [tp for tp, (_, last) in known.items() if start[tp] <= last and start_place.of(tp) != COMMITTED]
    backwards = sorted(tp for tp in inside if end[tp] < start[tp])
    if backwards:
        tp = backwards[0]
        raise ConfigError(f"{tp.topic}:{tp.partition} is to be read from offset {start[tp]} to {end[tp]}, backwards")
    start, end = (clip(options, offsets, known, "offsets") for offsets in (start, end))
    ids = topic_ids(client, {tp.topic for tp in known})
    ranges = [Range(tp.topic, tp.partition, start[tp], end[tp], ids.get(tp.topic)) for tp in known]
    return [each for each in ranges if each.size > 0]


def topic_ids(client: KafkaClient, topics: Iterable[str]) -> dict[str, str]:
    """Returns topic -> id from the last metadata, without topics that have no id (brokers before 2.8)."""
    return {topic: str(found) for topic in topics if (found := client.topic_id(topic)) is not None}
