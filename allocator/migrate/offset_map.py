"""The offset map of a mirror, in a topic of the new cluster.

All processes of a mirror and all cutovers read the map, and the new cluster replicates it like records. The topic is
compacted and has one partition, so its entries have one order. The mirror writes an entry when the difference between
old and new offsets changes: once for each partition of an ordinary topic, and once for each gap that compaction or
transactions left (at most nine in a thousand records: eight exact ones, and one that covers the next thousand).

Each entry also names the incarnation of the old topic. A recreated topic begins at offset 0, and the brokers delete the
group's offsets of the former topic. So the mirror stores the topic's id in the map.

An entry may also say where the producers moved to the new cluster. A mirror in the other direction begins there. And
one may name the first record of other producers that is before copies: groups must not start behind it.

And each entry names both clusters. A map may hold entries of another pair: a mirror whose pattern matched the map has
copied it, or two mirrors of one name write to this cluster.
"""

from __future__ import annotations

import asyncio
import json
import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Optional

from allocator.core.aio import wall_ms
from allocator.core.client import KafkaClient
from allocator.core.fetch import RangeReader
from allocator.core.text import parse_json, shown
from allocator.errors import AllocatorError
from allocator.migrate.topics import SUFFIX, same_topic
from allocator.producer import BatchSender, Encoded, create_topic, written
from allocator.types import Record, TopicPartition

log = logging.getLogger(__name__)

MOST: Final = 5000  # runs in one entry, which must fit into a record batch
# The map notes at most MOST_RUNS exact runs for each SPAN mirrored records, so it stays small on compacted topics. A
# group that moves to an offset between two runs repeats up to SPAN records.
MOST_RUNS: Final = 8
SPAN: Final = 1000
BEGUN: Final = "begun"
WRITE_S: Final = 30.0  # timeout of a flush. Higher: it waits longer for a lost leader; lower: it fails sooner.


def map_topic(group: str) -> str:
    """Returns the name of the topic with the offset map of this group."""
    return group + SUFFIX


class BadOffsetMap(AllocatorError):
    """An entry of an offset map that no mirror wrote."""


class Run(NamedTuple):
    """Maps old offset `source` to new offset `target`, and each following offset to the one after it.

    If `exact` is False, the records are somewhere after `target`, in the same order.
    """

    source: int
    target: int
    exact: bool = True

    def after(self, covered: int, records: int) -> list[Run]:
        """Returns the rest of an exact run of `records` after its first `covered` ones; [] if there is none."""
        return [Run(self.source + covered, self.target + covered)] if records > covered else []


class Incarnation(NamedTuple):
    """Identifies one of several old topics that had the same name, one after the other.

    `number` counts how often the mirror restarted at the earliest record of a recreated topic. `topic_id` is from
    `TopicIds`; None if unknown.
    """

    number: int = 0
    topic_id: Optional[str] = None


class Route(NamedTuple):
    """The ids of the two clusters of a mirror; None if unknown (before Kafka 0.10.1).

    `before`: the clusters from which other mirrors bring the topic to the old one.
    """

    old: Optional[str] = None
    new: Optional[str] = None
    before: tuple[str, ...] = ()

    def is_other(self, other: Route) -> bool:
        """Returns whether the clusters are known to be others."""
        return any(here and there and here != there for here, there in zip(self[:2], other[:2]))


class Switch(NamedTuple):
    """Where the producers moved: old offset `source` and new offset `target` are the ends of the mirrored records.

    `number` counts the moves in both directions, and is also in the map of the mirror back once that has begun.
    """

    number: int
    source: int
    target: int
    state: str = "moved"
    """"moved": to the new cluster. "ended" once the mirror back has begun: this mirror must not copy any more. "left"
    once it has noticed. "begun": to the old cluster, and this mirror copies from `source` on. Then `target` is where
    the mirror in the other direction has ended: the new cluster alone has what others wrote from there on."""

    @property
    def has_moved(self) -> bool:
        """Whether producers write to the new cluster."""
        return self.state != BEGUN

    @property
    def is_over(self) -> bool:
        return self.state in ("ended", "left")


class Start(NamedTuple):
    """Where a group starts on the new cluster: an offset, or None and the reason."""

    offset: Optional[int]
    reason: str = ""
    again: int = 0
    """The most mirrored records that it reads again, because records of others are between the copies."""
    skips: bool = False
    """Whether there is no offset because the group would never read records of others."""


class Entry(NamedTuple):
    """One record of an offset map. An entry without `runs` only names the incarnation and the route, or `other`, the
    new offset of the first record of others."""

    partition: TopicPartition
    incarnation: Incarnation
    runs: list[Run]
    route: Route = Route()
    switch: Optional[Switch] = None
    other: Optional[int] = None


class OffsetTranslation:
    """Maps old offsets of one partition to new offsets, by runs.

    Guarantee: a reader that starts at `target(s)` or `start(s)` gets every mirrored record whose old offset is `s` or
    above. It may first get a few earlier records: at inexact runs, and where records were mirrored twice.

    Only runs prove an offset, and they say nothing about the old offsets before the first one. The new log may have
    those records too: from before the map was deleted and begun again, from before a `--restart`, from a topic that
    was restored under another id, or from another mirror. Neither an id nor what the logs still have proves anything:
    either cluster may delete its records first. So `start` refuses such an offset, unless the first run begins at new
    offset 0, because nothing comes before that.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs: list[Run] = []
        for run in runs:
            self.note(run)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def runs(self) -> list[Run]:
        """The runs, sorted by old offset."""
        return list(self._runs)

    def note(self, run: Run) -> bool:
        """Adds a run, or replaces the one of the same old offset. Returns whether it is new."""
        at = self._position(run.source)
        there = self._runs[at : at + 1]
        if there == [run]:
            return False
        self._runs[at : at + (bool(there) and there[0].source == run.source)] = [run]
        return True

    def extend(self, run: Run, records: int) -> list[Run]:
        """Adds an exact run of `records` mirrored records, as few runs as `SPAN` allows. Returns those that are new."""
        at, added = self._position(run.source), [run]
        if at and at == len(self._runs):
            before = self._runs[-1]
            covered = run.target - before.target
            # an inexact run that is not beyond the run before it is left from records that one of the logs lost
            is_left = at > 1 and before.target <= self._runs[-2].target
            if before.exact and covered == run.source - before.source:
                added = []
            elif not before.exact and not is_left and 0 <= covered < SPAN:
                added = run.after(SPAN - covered, records)
            elif at >= MOST_RUNS and 0 <= run.target - self._runs[-MOST_RUNS].target < SPAN:
                added = [run._replace(exact=False), *run.after(SPAN, records)]
        # records that are mirrored again are where this run says
        again = self._runs[at : self._position(run.source + records)]
        added += [Run(each.source, run.target + each.source - run.source) for each in again if each.source > run.source]
        return [each for each in added if self.note(each)]

    def target(self, source: int) -> int | None:
        """Returns the new offset for a reader whose next old offset is `source`; None before the first run."""
        at = self._position(source + 1)
        if at == 0:
            return None
        run = self._runs[at - 1]
        found = run.target + (source - run.source if run.exact else 0)
        # offsets between the runs may be missing, so the next run may begin before `found`
        return found if at == len(self._runs) else min(found, self._runs[at].target)

    def start(self, source: int) -> int | None:
        """Returns the new offset at which a group with committed offset `source` starts; None if no run proves one."""
        if not self._runs or (source < self._runs[0].source and self._runs[0].target > 0):
            return None
        return self.target(source) or 0

    def others(self, begin: int, ends: Sequence[tuple[int, int]]) -> int:
        """Returns the least number of new records behind old offset `begin` that no mirror wrote, or one wrote twice.

        Two old offsets have no more records between them than their difference, so the new ones cannot be further
        apart. `ends` are more pairs of old and new offsets, behind all runs that count. An old log with gaps hides
        some records.
        """
        pairs: list[tuple[int, int]] = []
        for run in self._runs:
            is_before = not ends or run.source < ends[0][0]
            # a run that is not beyond the one before it is left from records that were mirrored again
            if run.exact and begin <= run.source and is_before and (not pairs or run.target >= pairs[-1][1]):
                pairs.append((run.source, run.target))
        pairs += ends
        return sum(max(0, later[1] - each[1] - (later[0] - each[0])) for each, later in zip(pairs, pairs[1:]))

    def corrected(self, end: int) -> list[Run]:
        """Returns replacements for runs beyond the end of the new log. The log lost them, and they will be at `end` or
        later."""
        return [Run(run.source, end, exact=False) for run in self._runs if run.target > end]

    def exact(self, source: int) -> int | None:
        """Returns the new offset of the record at `source` if an exact run contains it."""
        at = self._position(source + 1)
        if at == 0 or not self._runs[at - 1].exact:
            return None
        found = self._runs[at - 1].target + (source - self._runs[at - 1].source)
        return found if at == len(self._runs) or found < self._runs[at].target else None

    def source(self, target: int) -> int | None:
        """Returns the old offset for a reader whose next new offset is `target`. It skips no record either."""
        return self.inverse().target(target)

    def inverse(self) -> OffsetTranslation:
        """Returns the translation from new offsets to old ones.

        An inexact run counts only if no other has its new offset. Otherwise it is left from records that one of the
        logs lost, and says nothing of the records that were mirrored there since.
        """
        by_target: dict[int, Run] = {}
        for run in self._runs:
            if run.exact or run.target not in by_target:
                by_target[run.target] = run
        found: list[Run] = []
        for target, run in sorted(by_target.items(), reverse=True):
            # after records were mirrored again, the new log has older records behind
            lowest = min(run.source, found[-1].target) if found else run.source
            found.append(Run(target, lowest, run.exact and lowest == run.source))
        return OffsetTranslation(reversed(found))

    def _position(self, source: int) -> int:
        """Returns the number of runs that begin before old offset `source`."""
        return bisect_left(self._runs, Run(source, -1))


def pack(entry: Entry) -> tuple[bytes, bytes]:
    """Encodes an entry as key and value. Every key is different, so that compaction keeps all entries.

    Without an id, with incarnation 0 and without a route, the key is the same as in the first version. Older versions
    ignore the additional fields.
    """
    runs = [[*run[:2]] if run.exact else [*run[:2], 0] for run in entry.runs]
    key: dict[str, Any] = {"topic": entry.partition.topic, "partition": entry.partition.partition}
    if runs:
        key["from"] = runs[0][0]
    if entry.incarnation.topic_id is not None:
        key["id"] = entry.incarnation.topic_id
    if entry.incarnation.number:
        key["incarnation"] = entry.incarnation.number
    if any(entry.route[:2]):
        key["clusters"] = entry.route[:2]
    if entry.route.before:
        key["before"] = entry.route.before
    if entry.switch is not None:
        key["switch"] = [entry.switch.number, entry.switch.state]
    if entry.other is not None:
        key["other"] = entry.other
    return _json(key), _json(runs)


def unpack(key: bytes | None, value: bytes | None) -> Entry:
    """Decodes an entry. Raises BadOffsetMap if `pack` did not write it."""
    try:
        where, rows = parse_json(key or b""), parse_json(value or b"")
        runs = [Run(int(each[0]), int(each[1]), len(each) == 2) for each in rows]
        topic_id = where.get("id")
        incarnation = Incarnation(int(where.get("incarnation", 0)), None if topic_id is None else str(topic_id))
        old, new = (each and str(each) for each in where.get("clusters", (None, None)))
        route = Route(old, new, tuple(map(str, where.get("before", ()))))
        switch = None
        if "switch" in where:
            number, state = where["switch"]
            switch = Switch(int(number), *runs[0][:2], str(state))
        other = int(where["other"]) if "other" in where else None
        partition = TopicPartition(str(where["topic"]), int(where["partition"]))
        return Entry(partition, incarnation, runs, route, switch, other)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadOffsetMap(f"invalid entry of an offset map ({shown(error)}): key {shown(key)}") from error


def _is_key(key: bytes | None) -> bool:
    """Returns whether a record with this key is of an offset map, and not of another program."""
    try:
        found = parse_json(key or b"")
    except ValueError:
        return False
    return isinstance(found, dict) and {"topic", "partition"} <= found.keys()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class OffsetMap:
    """Holds the offset translations of all partitions in memory, and reads and writes them in the topic.

    Guarantee: after `flush`, all noted runs are on all in-sync replicas. `old` and `client` are connected to the
    clusters of the mirror.
    """

    def __init__(self, old: KafkaClient, client: KafkaClient, topic: str) -> None:
        self.topic = topic
        self._old = old
        self._client = client
        self._before: dict[str, tuple[str, ...]] = {}
        self._has_others = False
        self._at = TopicPartition(topic, 0)
        self._known: dict[TopicPartition, OffsetTranslation] = defaultdict(OffsetTranslation)
        self._incarnations: dict[TopicPartition, Incarnation] = {}
        self._new: dict[TopicPartition, list[Run]] = defaultdict(list)
        self._switches: dict[TopicPartition, Switch] = {}
        self._new_switches: dict[TopicPartition, Switch] = {}
        self._others: dict[TopicPartition, int] = {}
        self._new_others: dict[TopicPartition, int] = {}
        self._read_to = 0
        self._forgotten: set[TopicPartition] = set()  # partitions that `refresh` reads again from the start
        self._flushing: asyncio.Lock
        self._sender: BatchSender[Encoded]

    async def open(self, replication: int | None = None) -> None:
        """Reads the map. If the topic does not exist, creates it with `replication`, or raises TopicNotFound without
        it."""
        self._flushing, self._sender = asyncio.Lock(), BatchSender(self._client)
        await self._client.refresh([self.topic])
        if self._client.partitions(self.topic) is None and replication is not None:
            await create_topic(self._client, self.topic, 1, replication, {"cleanup.policy": "compact"})
        await self.refresh()

    async def exists(self) -> bool:
        """Returns whether the topic exists, also while it has no leader. Raises BrokerError."""
        return self.topic in await self._client.list_topics()

    async def refresh(self) -> None:
        """Reads the entries that other processes added. Ignores records of other programs.

        Raises BadOffsetMap for an invalid entry that no later record replaces: without it, the map might skip records.
        """
        reader = RangeReader(self._client)
        start, end = (await reader.bounds([self._at]))[self._at]
        forgotten, self._forgotten = self._forgotten, set()
        begin = max(0 if forgotten else self._read_to, start)
        invalid: dict[bytes | None, str] = {}
        try:
            async for batch in reader.read({self._at: (begin, end)}):
                for record in batch:
                    where = f"{self.topic}:0 at offset {record.offset}"
                    invalid.pop(record.key, None)
                    if record.value is None:
                        continue
                    if not _is_key(record.key):
                        log.warning("%s: ignoring a record of another program, with key %s", where, shown(record.key))
                        continue
                    try:
                        entry = unpack(record.key, record.value)
                    except BadOffsetMap as error:
                        invalid[record.key] = f"{where}: {error}"
                        continue
                    if record.offset >= self._read_to or entry.partition in forgotten:
                        self.learn(entry)
            for why in invalid.values():
                raise BadOffsetMap(
                    f"{why}. Find the program that wrote it. To drop the entry, write a record with this key and "
                    "without a value"
                )
        except BaseException:
            self._forgotten |= forgotten
            raise
        self._read_to = end

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drops unwritten runs of partitions that another process owns now: that process may have noted others.

        The next `refresh` reads all entries of these partitions again.
        """
        for each in partitions:
            if self._new.pop(each, None) is not None:
                self._known.pop(each, None)
                self._incarnations.pop(each, None)
                for noted in self._switches, self._new_switches, self._others, self._new_others:
                    noted.pop(each, None)
                self._forgotten.add(each)

    def learn(self, entry: Entry) -> None:
        """Adds an entry of the topic. Entries must come in the order of the topic."""
        partition, there, runs, route, switch, other = entry
        if self._route().is_other(route):
            if not self._has_others:
                log.warning("%s: ignoring entries of another mirror, from cluster %s to %s", self.topic, *route[:2])
            self._has_others = True
            return
        if partition.partition < 0:
            self._before[partition.topic] = route.before
            return
        known = self.incarnation(partition)
        if there.number < known.number:
            return  # a process that had not noticed the deletion wrote it for the former topic
        topic_id = there.topic_id or (known.topic_id if there.number == known.number else None)
        self._enter(partition, Incarnation(there.number, topic_id))
        for run in runs:
            self._known[partition].note(run)
        if switch is not None:
            self._set_switch(partition, switch)
        if other is not None:
            self._others[partition] = min(other, self._others.get(partition, other))

    def _route(self, topic: str = "") -> Route:
        return Route(self._old.metadata.cluster_id, self._client.metadata.cluster_id, self._before.get(topic, ()))

    def note_before(self, topic: str, clusters: Iterable[str]) -> None:
        """Notes from which clusters other mirrors bring the topic to the old one. The next `flush` writes it."""
        before = tuple(sorted(clusters))
        if before != self._before.get(topic, ()):
            self._before[topic] = before
            self._new.setdefault(TopicPartition(topic, -1), [])

    def positions(self, partition: TopicPartition) -> OffsetTranslation:
        """Returns the translation of one partition."""
        return self._known[partition]

    def incarnation(self, partition: TopicPartition) -> Incarnation:
        """Returns the old topic to which `positions` belongs."""
        return self._incarnations.get(partition, Incarnation())

    def recreated(self, partition: TopicPartition, topic_id: str | None) -> str | None:
        """Returns why the old topic with the current `topic_id` is not the mirrored topic; None if it is."""
        known = self.incarnation(partition).topic_id
        if same_topic(known, topic_id) is not False:
            return None
        return f"its id was {known} when it was mirrored, and is {topic_id} now"

    def begin(self, partition: TopicPartition, incarnation: Incarnation) -> None:
        """Sets the incarnation of a partition. The next `flush` writes it if it is new.

        A higher number than before drops all runs of the partition.
        """
        if incarnation != self.incarnation(partition):
            self._enter(partition, incarnation)
            self._new.setdefault(partition, [])  # so that `flush` writes an entry even without runs

    def _enter(self, partition: TopicPartition, incarnation: Incarnation) -> None:
        if incarnation.number > self.incarnation(partition).number:
            self._known[partition] = OffsetTranslation()
            for noted in self._new, self._switches, self._new_switches, self._others, self._new_others:
                noted.pop(partition, None)
        self._incarnations[partition] = incarnation

    def note(self, partition: TopicPartition, run: Run) -> None:
        """Adds a run. The next `flush` writes it if it is new."""
        if self._known[partition].note(run):
            self._new[partition].append(run)

    def extend(self, partition: TopicPartition, run: Run, records: int) -> None:
        """Adds an exact run of `records` mirrored records. The next `flush` writes what the map needs of it."""
        added = self._known[partition].extend(run, records)
        if added:
            self._new[partition] += added

    def switch(self, partition: TopicPartition) -> Switch | None:
        """Returns where the producers of this partition moved last; None if they have not."""
        return self._switches.get(partition)

    def note_switch(self, partition: TopicPartition, switch: Switch) -> None:
        """Notes where the producers move, and that the ends belong together. The next `flush` writes it."""
        self.note(partition, Run(switch.source, switch.target))
        self._set_switch(partition, switch)
        self._new_switches[partition] = switch
        self._new.setdefault(partition, [])  # so that `flush` and `forget` see it

    def _set_switch(self, partition: TopicPartition, switch: Switch) -> None:
        # the mirror in the other direction has copied what others wrote before. A `refresh` reads the own entry again
        if not switch.has_moved and switch != self._switches.get(partition):
            for noted in self._others, self._new_others:
                noted.pop(partition, None)
        self._switches[partition] = switch

    def other(self, partition: TopicPartition) -> int | None:
        """Returns the new offset of the first record that no mirror wrote, or one wrote twice, and that is before
        copies; None if there is none since the mirror has begun or continued in this direction."""
        return self._others.get(partition)

    def note_other(self, partition: TopicPartition, target: int) -> None:
        """Notes that the record at this new offset is such a record. The next `flush` writes it if it is the first."""
        if target < self._others.get(partition, target + 1):
            self._others[partition] = self._new_others[partition] = target
            self._new.setdefault(partition, [])

    def start(self, partition: TopicPartition, source: int, copied: tuple[int, int] | None = None) -> Start:
        """Returns where a group with committed offset `source` starts on the new cluster.

        `copied` are the old and the new offset up to which the mirror has copied, if known. Guarantee: the group gets
        the records that `OffsetTranslation` promises, and those that others wrote to the new log, as far as the
        mirror has seen that copies follow them. Once producers have moved, it gets all that they wrote since.
        """
        known, switch, other = self._known[partition], self._switches.get(partition), self._others.get(partition)
        if not known:
            return Start(None, "never mirrored")
        target = known.start(source)
        if target is None:
            reason = f"before the first offset in the map, {known.runs[0].source}; use timestamp or content"
            return Start(None, reason)
        if copied is not None:
            target = copied[1] if source >= copied[0] else min(target, copied[1])
        first = target if other is None else min(target, other)
        if switch is None and first < target:
            return Start(
                None,
                f"its new offset would be {target}, but others wrote records to the new cluster from {first} on, or a "
                "mirror wrote some twice: the group would never read those before its new offset, or read some again",
                skips=True,
            )
        if switch is not None and switch.has_moved:
            first = min(first, switch.target)
        again = 0 if first == target else max(0, source - (known.source(first) or 0))
        return Start(first, again=again)

    async def flush(self) -> None:
        """Writes the noted runs and switches. After a BrokerError, the next call writes them again."""
        async with self._flushing:
            changed, self._new = self._new, defaultdict(list)
            switches, self._new_switches = self._new_switches, {}
            others, self._new_others = self._new_others, {}
            if not changed:
                return
            now = wall_ms()
            slices = [
                Entry(each, self.incarnation(each), runs[at : at + MOST], self._route(each.topic))
                for each, runs in changed.items()
                for at in range(0, max(1, len(runs)), MOST)
            ]
            slices += [
                Entry(each, self.incarnation(each), [Run(one.source, one.target)], self._route(each.topic), one)
                for each, one in switches.items()
            ]
            slices += [  # after the switches: they end what was noted before them
                Entry(each, self.incarnation(each), [], self._route(each.topic), other=at)
                for each, at in others.items()
            ]
            records = [Record(self.topic, 0, n, now, 0, *pack(entry), []) for n, entry in enumerate(slices)]
            try:
                if self._at not in self._sender.queues:
                    await self._sender.add([self._at])
                late = asyncio.get_running_loop().time() + WRITE_S
                for batch in written(iter(records), 0):
                    self._sender.put(self._at, self._sender.queues[self._at], batch, expires_at=late)
                await self._sender.send_all()
            except BaseException:
                self._sender.drop([self._at])
                for entry in slices:
                    same = entry.incarnation.number == self.incarnation(entry.partition).number
                    if same and entry.partition not in self._forgotten:
                        self._new[entry.partition] += entry.runs
                        if entry.switch is not None:
                            self._new_switches.setdefault(entry.partition, entry.switch)
                        if entry.other is not None and self.other(entry.partition) == entry.other:
                            self._new_others[entry.partition] = entry.other
                raise
