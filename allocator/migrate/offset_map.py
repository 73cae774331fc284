"""The offset map of a mirror, in a topic of the new cluster.

There, and not in a file: every member of a mirror and every cutover finds it, it is replicated like the records that
it speaks of, and it comes to an end with them. The topic is compacted, with one partition, so that entries have one
order. An entry is written when old and new offsets part in another way than before: once for each partition of an
ordinary topic, once for each gap that compaction or transactions left (nine in a thousand records at most).

Each entry also says which incarnation of the old topic it speaks of: a topic that is deleted and created again begins
at offset 0 again, and the brokers forget what a group committed of it. So this is where a mirror remembers its id.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Optional

from allocator.client.client import KafkaClient
from allocator.client.log_offsets import EARLIEST, LATEST, list_offsets
from allocator.errors import AllocatorError
from allocator.foreign import shown
from allocator.migrate.spans import read_spans
from allocator.migrate.topics import create, same_topic
from allocator.producer.encode import written
from allocator.producer.producer import append
from allocator.record import Record
from allocator.types import TopicPartition

__all__ = [
    "BadOffsetMap",
    "Entry",
    "Incarnation",
    "OffsetMap",
    "OffsetTranslation",
    "Run",
    "map_topic",
    "pack",
    "unpack",
]

# runs of one entry, which has to fit into a record batch
MOST: Final = 5000
# Of each SPAN mirrored records, at most MOST_RUNS runs are noted exactly. The map stays small on compacted topics, and
# a group that is moved to a position between two runs reads up to SPAN records again
MOST_RUNS: Final = 8
SPAN: Final = 1000


def map_topic(group: str) -> str:
    """The topic of the map of this group's mirror."""
    return f"{group}.offset-map"


class BadOffsetMap(AllocatorError):
    """An entry of an offset map was not written by a mirror."""


class Run(NamedTuple):
    """From `source` of the old partition on, records stand one by one from `target` of the new one on.

    `exact` False: somewhere behind `target`, in the same order.
    """

    source: int
    target: int
    exact: bool = True


class Incarnation(NamedTuple):
    """Which of the old topics that had one name, one after the other.

    `number` counts how often the mirror began such a topic from its earliest record again; `topic_id` is what
    `topic_ids.TopicIds` tells, None where it tells nothing or no mirror has noted it yet.
    """

    number: int = 0
    topic_id: Optional[str] = None


class Entry(NamedTuple):
    """One record of an offset map. `runs` may be empty: then it tells the incarnation alone."""

    partition: TopicPartition
    incarnation: Incarnation
    runs: list[Run]


class OffsetTranslation:
    """The runs of one partition.

    Guarantee: a reader of the new partition from `target(s)` on gets every record that the old one had at `s` or
    above, as far as it was mirrored. Before them it gets none, or a few that it had already: at runs that are not
    exact, and where records were mirrored twice.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs: list[Run] = []
        self._sources: list[int] = []
        for run in runs:
            self.note(run)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def runs(self) -> list[Run]:
        """In the order of the old offsets."""
        return list(self._runs)

    def note(self, run: Run) -> Run | None:
        """Adds what is known now, and returns it as it was added; None if it says nothing new.

        The later word about an offset counts.
        """
        at = bisect_left(self._sources, run.source)
        if at < len(self._runs) and self._sources[at] == run.source:
            if self._runs[at] == run:
                return None
            self._runs[at] = run
            return run
        if at == len(self._runs) and at:
            before = self._runs[-1]
            if before.exact and run.exact and before.target - before.source == run.target - run.source:
                return None
            if not before.exact and 0 <= run.target - before.target < SPAN:
                return None  # it is somewhere behind that one
            if at >= MOST_RUNS and 0 <= run.target - self._runs[-MOST_RUNS].target < SPAN:
                run = run._replace(exact=False)
        self._runs.insert(at, run)
        self._sources.insert(at, run.source)
        return run

    def target(self, source: int) -> int | None:
        """The new offset for a reader whose next old offset is `source`; None below the first run."""
        at = bisect_right(self._sources, source)
        if at == 0:
            return None
        run = self._runs[at - 1]
        found = run.target + (source - run.source if run.exact else 0)
        # where old offsets are missing, the next run begins before so many records have been
        return found if at == len(self._runs) else min(found, self._runs[at].target)

    def exact(self, source: int) -> int | None:
        """The new offset of the record at `source`, if the map says precisely where it stands."""
        at = bisect_right(self._sources, source)
        if at == 0 or not self._runs[at - 1].exact:
            return None
        found = self._runs[at - 1].target + (source - self._runs[at - 1].source)
        return found if at == len(self._runs) or found < self._runs[at].target else None

    def source(self, target: int) -> int | None:
        """The way back: the old offset for a reader whose next new offset is `target`.

        As `target`: nothing is passed over that the new partition has at `target` or above from the old one.
        """
        # records that were mirrored twice make later runs begin before earlier ones end
        found = None
        for run, following in zip(self._runs, [*self._sources[1:], None]):
            if run.target > target:
                break
            found = run.source + (target - run.target if run.exact else 0)
            if following is not None:
                found = min(found, following)
        return found


def pack(entry: Entry) -> tuple[bytes, bytes]:
    """Key and value of a record that says this. Keys differ from entry to entry: a compacted topic keeps them all.

    A topic without an id that was never begun again has the keys that mirrors wrote before they noted incarnations;
    a mirror of such a version passes over what the newer keys say besides.
    """
    told = [[*run[:2]] if run.exact else [*run[:2], 0] for run in entry.runs]
    key: dict[str, Any] = {"topic": entry.partition.topic, "partition": entry.partition.partition}
    if told:
        key["from"] = told[0][0]
    if entry.incarnation.topic_id is not None:
        key["id"] = entry.incarnation.topic_id
    if entry.incarnation.number:
        key["incarnation"] = entry.incarnation.number
    return _json(key), _json(told)


def unpack(key: bytes | None, value: bytes | None) -> Entry:
    """Raises BadOffsetMap for what `pack` does not write."""
    try:
        where, told = json.loads(key or b""), json.loads(value or b"")
        runs = [Run(int(each[0]), int(each[1]), len(each) == 2) for each in told]
        topic_id = where.get("id")
        incarnation = Incarnation(int(where.get("incarnation", 0)), None if topic_id is None else str(topic_id))
        return Entry(TopicPartition(str(where["topic"]), int(where["partition"])), incarnation, runs)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadOffsetMap(f"an entry of an offset map does not read ({shown(error)}): key {shown(key)}") from error


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class OffsetMap:
    """The offset translations of all partitions, in memory and in the topic.

    Guarantee: after `flush`, everything that was noted stands on all replicas in sync.
    """

    def __init__(
        self, client: KafkaClient, brokers: str, topic: str, security: Mapping[str, Any] | None = None
    ) -> None:
        self.topic = topic
        self._client = client
        self._brokers = brokers
        self._security = security
        self._at = TopicPartition(topic, 0)
        self._known: dict[TopicPartition, OffsetTranslation] = defaultdict(OffsetTranslation)
        self._incarnations: dict[TopicPartition, Incarnation] = {}
        self._new: dict[TopicPartition, list[Run]] = defaultdict(list)
        self._read_to = 0
        self._flushing: asyncio.Lock

    async def open(self, replication: int | None = None) -> None:
        """Reads all of it. With `replication` it is made where it does not exist. Raises TopicNotFound."""
        self._flushing = asyncio.Lock()
        await self._client.refresh([self.topic])
        if self._client.partitions(self.topic) is None and replication is not None:
            await create(self._client, self.topic, 1, replication, {"cleanup.policy": "compact"})
        await self.refresh()

    async def refresh(self) -> None:
        """Reads entries that other processes have added."""
        end = await list_offsets(self._client, {self._at: LATEST})
        start = await list_offsets(self._client, {self._at: EARLIEST})
        found, first = end[self._at], start[self._at]
        if found is None:
            return
        begin = max(self._read_to, 0 if first is None else first.offset)
        async for batch in read_spans(self._brokers, {self._at: (begin, found.offset)}, self._security):
            for record in batch:
                self.learn(unpack(record.key, record.value))
        self._read_to = found.offset

    def learn(self, entry: Entry) -> None:
        """Takes an entry of the topic, in the topic's order."""
        partition, there, runs = entry
        known = self.incarnation(partition)
        if there.number < known.number:
            return  # of a topic that is gone, by a process that did not know yet
        if there.number > known.number:
            self._known[partition] = OffsetTranslation()
            self._new.pop(partition, None)
        topic_id = there.topic_id or (known.topic_id if there.number == known.number else None)
        self._incarnations[partition] = Incarnation(there.number, topic_id)
        for run in runs:
            self._known[partition].note(run)

    def positions(self, partition: TopicPartition) -> OffsetTranslation:
        """The translation of one partition."""
        return self._known[partition]

    def incarnation(self, partition: TopicPartition) -> Incarnation:
        """The old topic that `positions` belongs to."""
        return self._incarnations.get(partition, Incarnation())

    def recreated(self, partition: TopicPartition, topic_id: str | None) -> str | None:
        """What shows that the old topic, which has the id `topic_id` now, is not the one that was mirrored; or None."""
        known = self.incarnation(partition).topic_id
        if same_topic(known, topic_id) is not False:
            return None
        return f"its id was {known} when it was mirrored, and is {topic_id} now"

    def begin(self, partition: TopicPartition, incarnation: Incarnation) -> None:
        """From now on `positions` speaks of this one, which the next `flush` writes if it is new.

        Where its number is greater than that of `incarnation(partition)`, all that was known is forgotten.
        """
        known = self.incarnation(partition)
        if incarnation == known:
            return
        if incarnation.number > known.number:
            self._known[partition] = OffsetTranslation()
            self._new.pop(partition, None)
        self._incarnations[partition] = incarnation
        self._new.setdefault(partition, [])  # an entry is written though there may be no run to tell

    def note(self, partition: TopicPartition, run: Run) -> None:
        """The next `flush` writes it, if it is new."""
        added = self._known[partition].note(run)
        if added is not None:
            self._new[partition].append(added)

    async def flush(self) -> None:
        """Writes the noted runs. Raises BrokerError, and keeps them for the next call."""
        async with self._flushing:
            news, self._new = self._new, defaultdict(list)
            if not news:
                return
            now = int(time.time() * 1000)
            records: list[Record] = []
            slices = [
                Entry(each, self.incarnation(each), runs[at : at + MOST])
                for each, runs in news.items()
                for at in range(0, max(1, len(runs)), MOST)
            ]
            for entry in slices:
                key, value = pack(entry)
                records.append(Record(self.topic, 0, len(records), now, 0, key, value, []))
            try:
                for made in written(iter(records), 0):
                    await append(self._client, self._at, made)
            except BaseException:
                for entry in slices:
                    if entry.incarnation.number == self.incarnation(entry.partition).number:
                        self._new[entry.partition] += entry.runs
                raise
