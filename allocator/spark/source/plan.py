"""Which offsets are to be read: the options, asked of the cluster and the group."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

from allocator.client.client import KafkaClient
from allocator.client.log_offsets import EARLIEST as BEGIN
from allocator.client.log_offsets import LATEST as END
from allocator.client.log_offsets import list_offsets
from allocator.errors import BrokersUnavailable, ConfigError, TopicNotFound
from allocator.offsets.group_offsets import GroupOffsets
from allocator.spark.errors import DataLoss
from allocator.spark.options import Options
from allocator.spark.ranges import COMMITTED, EARLIEST, LATEST, Range, StartOrEnd
from allocator.subscription.loss import topic_of
from allocator.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "END_NAME",
    "Bounds",
    "Narrow",
    "begin_again",
    "bounds",
    "clip",
    "ends",
    "find_partitions",
    "narrowed",
    "plan_batch",
    "resolve",
    "some",
    "topic_ids",
]

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]


# partition -> the first offset that it has, and the one after its last
Bounds = dict[TopicPartition, tuple[int, int]]


END_NAME = "ending_offsets"


async def find_partitions(client: KafkaClient, options: Options, max_age_s: float = 0.0) -> list[TopicPartition]:
    """The partitions that the options choose, now or up to `max_age_s` ago.

    Raises TopicNotFound for a topic, or a partition of `assign`, that does not exist. A pattern may match nothing yet.
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
        # a broker that has just started knows no topic yet
        await client.refresh(wanted)
        missing = [topic for topic in wanted if client.partitions(topic) is None]
    if missing:
        if not client.brokers:
            raise BrokersUnavailable("the cluster announces no broker yet; try again when it has its first topic")
        raise TopicNotFound(missing)
    if options.assign is None:
        return [TopicPartition(topic, number) for topic in wanted for number in client.partitions(topic) or ()]
    absent = [tp for tp in options.assign if tp.partition not in (client.partitions(tp.topic) or ())]
    if absent:
        tp = absent[0]
        raise ConfigError(
            f"assign: {tp.topic!r} has no partition {tp.partition}, it has {len(client.partitions(tp.topic) or ())}"
        )
    return list(options.assign)


async def bounds(client: KafkaClient, options: Options, tps: Collection[TopicPartition]) -> Bounds:
    """Where each partition begins and ends (read_committed: up to the last stable offset). Raises BrokerError."""
    if not tps:
        return {}
    first = await list_offsets(client, dict.fromkeys(tps, BEGIN), timeout_s=options.timeout_s)
    last = await ends(client, options, tps)
    return {tp: (begin.offset if (begin := first[tp]) is not None else 0, last[tp]) for tp in tps}


async def ends(client: KafkaClient, options: Options, tps: Collection[TopicPartition]) -> Offsets:
    """Where each partition ends now. Raises BrokerError."""
    found = await list_offsets(
        client, dict.fromkeys(tps, END), isolation_level=options.isolation_level, timeout_s=options.timeout_s
    )
    return {tp: there.offset if there is not None else 0 for tp, there in found.items()}


async def resolve(client: KafkaClient, options: Options, place: StartOrEnd, known: Bounds, name: str) -> Offsets:
    """The offset of `place` in each partition of `known`, as it is asked for: it may lie outside the log.

    `name` of the option, for errors: a time after every record is the partition's end for END_NAME. `known` is brought
    up to date where a group has committed since what was written after it was asked for.
    Raises ConfigError for a partition of which JSON says nothing and for a time after every record to begin at (unless
    `timestamp_strategy` is "latest"), NoOffsetsError, BrokerError.
    """
    found: Offsets = {}
    times: dict[TopicPartition, int] = {}
    committed = set()
    for tp, (begin, end) in known.items():
        kind, what = place.of(tp)
        if kind == "":
            raise ConfigError(f"{name} says nothing of {tp.topic}:{tp.partition}; its JSON must name every partition")
        if kind == "time":
            times[tp] = what
        elif kind == "offset":
            found[tp] = what
        elif what == COMMITTED:
            committed.add(tp)
        else:
            found[tp] = {EARLIEST: begin, LATEST: end}[what]
    if times:
        found.update(await _at_times(client, options, times, known, name))
    if committed:
        assert options.group is not None
        offsets = await GroupOffsets(client, options.group, timeout_s=options.timeout_s).fetch(committed)
        new = committed - offsets.keys()
        if new:
            log.warning("group %s committed nothing of %s: begins at the earliest record", options.group, some(new))
        found.update({tp: offsets[tp].offset if tp in offsets else known[tp][0] for tp in committed})
        found.update((tp, known[tp][0]) for tp in begin_again(client, options, offsets))
    grown = [tp for tp in (*committed, *times) if found[tp] > known[tp][1]]
    if grown:
        known.update({tp: (known[tp][0], end) for tp, end in (await ends(client, options, grown)).items()})
    return found


def begin_again(
    client: KafkaClient, options: Options, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[TopicPartition]:
    """Those of which the group committed `offsets` before their topic was deleted and created again.

    Raises DataLoss if that is an error.
    """
    ids = {tp: (topic_of(at.metadata), client.topic_id(tp.topic)) for tp, at in offsets.items()}
    former = [tp for tp, (then, now) in ids.items() if None not in (then, now) and then != now]
    if former and options.fail_on_data_loss:
        raise DataLoss(
            f"group {options.group!r} committed offsets of {some(former)} before the topic was deleted and created "
            "again; say where to begin, or set fail_on_data_loss to false to begin at the earliest record"
        )
    if former:
        log.warning("%s: the topic was created again; begins at its earliest record", some(former))
    return former


async def _at_times(
    client: KafkaClient, options: Options, times: Mapping[TopicPartition, int], known: Bounds, name: str
) -> Offsets:
    there = await list_offsets(client, times, isolation_level=options.isolation_level, timeout_s=options.timeout_s)
    late = sorted(tp for tp, at in there.items() if at is None)
    if late and options.timestamp_strategy == "error" and name != END_NAME:
        raise ConfigError(
            f"{name}: no record of {some(late)} is as young as {times[late[0]]} ms; set timestamp_strategy to latest "
            "to take the end there"
        )
    return {tp: known[tp][1] if at is None else at.offset for tp, at in there.items()}


def clip(options: Options, offsets: Mapping[TopicPartition, int], known: Bounds, name: str) -> Offsets:
    """`offsets`, within the logs. Raises DataLoss for one that is not, if that is an error."""
    outside = {tp: at for tp, at in offsets.items() if not known[tp][0] <= at <= known[tp][1]}
    if outside and options.fail_on_data_loss:
        tp = min(outside)
        more = f" (and {len(outside) - 1} more partitions)" if len(outside) > 1 else ""
        if options.isolation_level == "read_committed":
            more = f", as far as transactions have ended{more}"
        raise DataLoss(
            f"{name}: {tp.topic}:{tp.partition} is to be read from or to offset {outside[tp]}, and has "
            f"{known[tp][0]} to {known[tp][1]}{more}; name offsets that exist, or set fail_on_data_loss to false to "
            "take the nearest"
        )
    for tp, at in outside.items():
        log.warning("%s:%d has no offset %d; goes on from %d to %d", tp.topic, tp.partition, at, *known[tp])
    return {tp: min(max(at, known[tp][0]), known[tp][1]) for tp, at in offsets.items()}


async def plan_batch(client: KafkaClient, options: Options, narrow: Narrow | None = None) -> list[Range]:
    """The ranges that a batch reads, one a partition; `narrow` takes away what filters leave out."""
    tps = await find_partitions(client, options)
    start_place, end_place = options.start or StartOrEnd(EARLIEST), options.end or StartOrEnd(LATEST)
    for place, name in ((start_place, "starting_offsets"), (end_place, END_NAME)):
        _must_exist(place, tps, name)
    if narrow is not None:
        tps = [tp for tp in tps if narrow.wants(tp)]
    known = await bounds(client, options, tps)
    if narrow is not None:
        # what JSON says of partitions that the filters leave out is not asked about
        start_place, end_place = (place.only(known) for place in (start_place, end_place))
    start = await resolve(client, options, start_place, known, "starting_offsets")
    end = await resolve(client, options, end_place, known, END_NAME)
    backwards = sorted(tp for tp in known if tp in end_place.named and end[tp] < start[tp])
    if backwards:
        tp = backwards[0]
        raise ConfigError(f"{tp.topic}:{tp.partition} is to be read from offset {start[tp]} to {end[tp]}, backwards")
    start, end = (clip(options, offsets, known, "offsets") for offsets in (start, end))
    ids = topic_ids(client, {tp.topic for tp in known})
    ranges = [Range(tp.topic, tp.partition, start[tp], end[tp], ids.get(tp.topic)) for tp in known]
    if narrow is not None:
        ranges = await narrow.ranges(client, options, ranges)
    return [found for found in ranges if found.end > found.start]


def _must_exist(place: StartOrEnd, tps: Collection[TopicPartition], name: str) -> None:
    strangers = place.named - set(tps)
    if strangers:
        raise ConfigError(f"{name} speaks of {some(strangers)}, which does not exist; leave it out")


def topic_ids(client: KafkaClient, topics: Iterable[str]) -> dict[str, str]:
    """As of the last metadata; those that have none (brokers before 2.8) are left out."""
    return {topic: str(found) for topic in topics if (found := client.topic_id(topic)) is not None}


def some(tps: Collection[TopicPartition]) -> str:
    """A few of them by name, for people."""
    names = ", ".join(f"{tp.topic}:{tp.partition}" for tp in sorted(tps)[:5])
    return names + (f" and {len(tps) - 5} more" if len(tps) > 5 else "")


# -- pushdown ----------
# Filters that need not be evaluated record by record, as they say which offsets to read.
#
# Exact for topic, partition and offset: Spark does not look again. A lower bound on the timestamp moves the start to
# the first record that is young enough (what was before it is all older), and Spark looks again, as times need not
# ascend. An upper bound on the timestamp says nothing about offsets, and is Spark's alone.


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Narrow:
    """What is still wanted, all of it to hold at once. None: anything."""

    topics: Optional[frozenset[str]] = None
    partitions: Optional[frozenset[int]] = None
    low: int = 0
    high: int = 2**63
    """Offsets from `low` up to, not including, `high`."""
    since_ms: Optional[int] = None

    def wants(self, tp: TopicPartition) -> bool:
        return (self.topics is None or tp.topic in self.topics) and (
            self.partitions is None or tp.partition in self.partitions
        )

    async def ranges(self, client: KafkaClient, options: Options, ranges: Sequence[Range]) -> list[Range]:
        """What is left of `ranges`. Raises BrokerError."""
        cut = [r._replace(start=max(r.start, self.low), end=min(r.end, self.high)) for r in ranges]
        cut = [r for r in cut if r.size > 0]
        if self.since_ms is None or not cut:
            return cut
        times = {r.tp: self.since_ms for r in cut}
        found = await list_offsets(client, times, timeout_s=options.timeout_s)
        left = []
        for r in cut:
            there = found[r.tp]
            if there is None:
                continue  # no record is so young
            # before 0.10.1 brokers answer for whole segments, by the time of a file, which bounds no record's time
            start = r.start if there.timestamp < 0 else max(r.start, there.offset)
            left.append(r._replace(start=start))
        return [r for r in left if r.size > 0]


def narrowed(filters: Iterable[Any]) -> tuple[Narrow, list[Any]]:
    """What pyspark's filters leave to be read, and those that Spark has to evaluate itself."""
    narrow, rest = Narrow(), []
    for given in filters:
        attribute = given.__dict__.get("attribute", ())
        column = attribute[0] if len(attribute) == 1 else ""
        after = _after(narrow, column, type(given).__name__, given)
        if after is None or column == "timestamp":
            rest.append(given)
        narrow = after or narrow
    return narrow, rest


def _after(narrow: Narrow, column: str, kind: str, given: Any) -> Narrow | None:
    """`narrow` and this filter as well; None: it cannot be told in offsets."""
    if kind == "IsNotNull":
        return narrow if column in ("topic", "partition", "offset") else None
    value = given.__dict__.get("value")
    if column == "topic":
        return _among(narrow, "topics", kind, value, str)
    if column == "partition":
        return _among(narrow, "partitions", kind, value, int)
    if column == "offset" and type(value) is int:
        if kind in ("EqualTo", "EqualNullSafe"):
            return _between(narrow, value, value + 1)
        if kind in ("GreaterThan", "GreaterThanOrEqual"):
            return _between(narrow, value + (kind == "GreaterThan"), narrow.high)
        if kind in ("LessThan", "LessThanOrEqual"):
            return _between(narrow, narrow.low, value + (kind == "LessThanOrEqual"))
    if (
        column == "timestamp"
        and kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo")
        and isinstance(value, datetime)
        and value.tzinfo is not None
    ):
        # rounded down: Spark's times are finer than Kafka's
        since = (value - _EPOCH) // timedelta(milliseconds=1)
        return replace(narrow, since_ms=max(0, since, narrow.since_ms or 0))
    return None


def _among(narrow: Narrow, name: str, kind: str, value: Any, of: type) -> Narrow | None:
    values = value if kind == "In" else (value,) if kind in ("EqualTo", "EqualNullSafe") else None
    if values is None or not all(type(one) is of for one in values):
        return None
    before = getattr(narrow, name)
    wanted: Any = frozenset(values) if before is None else before & frozenset(values)
    return replace(narrow, topics=wanted) if name == "topics" else replace(narrow, partitions=wanted)


def _between(narrow: Narrow, low: int, high: int) -> Narrow:
    return replace(narrow, low=max(narrow.low, low), high=min(narrow.high, high))
