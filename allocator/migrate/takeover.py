"""Finds the start positions of partitions that a process of a mirror takes over.

`find_replaced` detects old topics that were recreated or truncated. A mirror that continued at its position would skip
the new records below it, or repeat records of the former topic.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Optional

from allocator.core.client import KafkaClient, ends_of_epochs
from allocator.core.fetch import RangeReader
from allocator.core.offsets import GroupOffsets
from allocator.core.settings import DEFAULT
from allocator.errors import AllocatorError, BrokerError, TopicNotFound
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import BEGUN, OffsetMap, Run, Switch
from allocator.migrate.positions import Target, target_lost
from allocator.migrate.report import Remedy, SourceLoss, Stop, TopicsStopped
from allocator.migrate.tails import digest, match_tails, read_tails
from allocator.migrate.topics import TopicIds, same_topic
from allocator.migrate.translate import Ends, ends_of
from allocator.operate import MembersAlive, live_members
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.types import IsolationLevel, OffsetAndMetadata, Record, TopicPartition

log = logging.getLogger(__name__)

# Compared offsets before the position. Higher: tolerates compacted records; lower: a takeover is faster.
SAMPLE: Final = 20
# Maximum number of offsets of a partition that are compared to find the first difference
MOST_COMPARED: Final = 100_000
# longest wait for a log end. Higher: a new leader has more time to report it; lower: truncation is detected sooner.
PATIENCE_S: Final = 3.0
# longest wait for replicas. Higher: waits longer for a slow replica; lower: the mirror restarts before the leader drops
# that replica.
REPLICATION_S: Final = 60.0
CREATE_TIME: Final = 0


class NotEmpty(AllocatorError):
    """A partition of the new cluster holds records that this mirror may not have written."""


class MirrorClusters(NamedTuple):
    """The connections of a mirror to both clusters."""

    old: KafkaClient
    new: KafkaClient
    offsets: GroupOffsets
    """Offsets of the mirror's group, on the old cluster."""
    map: OffsetMap
    source_ids: TopicIds
    """Ids of the old topics."""
    target_ids: TopicIds
    """Ids of the new topics."""
    ensemble: Optional[ZooKeeperClient]
    """The old cluster's ZooKeeper: brokers before 0.11 do not report topic settings."""
    back: Optional[OffsetMap] = None
    """The map of the mirror in the other direction, on the old cluster, if this mirror is the way back."""
    groups: Optional[ZooKeeperClient] = None
    """The ensemble with the mirrors' groups and those that are synced."""
    root: str = DEFAULT["root"]
    """The znode with these groups."""


class Log(NamedTuple):
    """The first offset of an old partition, and the mirror's position with its leader epoch, if known."""

    start: int
    position: Optional[int]
    epoch: int = -1


class Replaced(NamedTuple):
    """The reason why the log of an old partition lacks mirrored records.

    `cut` is the first offset that a truncated log lost; None if the topic was recreated.
    """

    reason: str
    cut: Optional[int] = None

    @property
    def stop(self) -> Stop:
        return Stop(self.reason, Remedy.RECREATED if self.cut is None else Remedy.TRUNCATED)

    @classmethod
    def truncated(
        cls, partition: TopicPartition, at: int, cut: int | None, end: int | None = None, what: str = "lost its tail"
    ) -> Replaced:
        """Describes an old log that lost records from `cut` on, below the mirror's position `at`."""
        others = "others below it" if cut is None else f"other records from offset {cut} on"
        now = f"has {others}" if end is None else f"ends at {end - 1} now"
        up_to = f"partition {partition.partition} was mirrored up to offset {at - 1}"
        return cls(f"the old topic {what}: {up_to}, and {now}", cut)


class TakenOver(NamedTuple):
    """The old offset at which a partition continues, and the new offset after the last copy: what others wrote behind
    it is not mirrored.

    `present` counts uncommitted records of a crashed process before `position`, and `unexpected` other new records
    after the committed target and before `counted`. `seek`: the committed offset differs, or belongs to another topic.
    `lost` are old offsets that were deleted before they were mirrored. `stop` is the reason why the partition is not
    mirrored. `is_exact`: whether `end` is known, and not only the lowest offset that it may have.
    """

    position: int
    end: int
    counted: int
    present: int = 0
    unexpected: int = 0
    seek: bool = False
    lost: Optional[SourceLoss] = None
    stop: Optional[Stop] = None
    is_exact: bool = True


async def take_over(
    clusters: MirrorClusters,
    settings: MirrorSettings,
    partitions: Iterable[TopicPartition],
    ids: Mapping[str, str | None],
    target_ids: Mapping[str, str | None],
) -> dict[TopicPartition, TakenOver]:
    """Returns the start of each partition, after it has written the map of the records on the new cluster.

    `ids` and `target_ids` are the current ids of the old and new topics. Raises NotEmpty for topics that the settings
    name.
    """
    wanted = list(partitions)
    known = clusters.map
    await known.refresh()
    stored = dict(await clusters.offsets.fetch(wanted))
    barred = await _begin_back(clusters, settings.back_of, stored, wanted)
    committed = {each: found.offset for each, found in stored.items()}
    sources, targets = await ends_of(clusters.old, wanted), await _replicated_ends(clusters.new, wanted)
    missing = {each.topic for each in wanted if each not in sources or each not in targets}
    if missing:
        for client in (clusters.old, clusters.new):
            client.refuse_hidden(missing)
        raise TopicNotFound(sorted(missing))
    epochs = {each: found.leader_epoch for each, found in stored.items()}
    logs = {each: Log(sources[each].start, committed.get(each), epochs.get(each, -1)) for each in wanted}
    intact = {
        each: same_topic(mirrored_to.topic_id, target_ids[each.topic])
        for each, offset in stored.items()
        if (mirrored_to := Target.of(offset)) is not None
    }
    replaced = await find_replaced(clusters, logs, ids, intact)
    targets_lost = await _find_targets_lost(clusters, stored, target_ids)
    elsewhere = await _mirrored_elsewhere(clusters, stored, target_ids)
    found: dict[TopicPartition, TakenOver] = {}
    spans: dict[TopicPartition, tuple[int, int]] = {}
    for partition, source in sources.items():
        change, choice = replaced.get(partition), settings.recreated.get(partition.topic)
        there = targets[partition]
        if partition in barred:
            found[partition] = TakenOver(source.start, there, there, stop=barred[partition])
            continue
        if change is not None and choice is None:
            found[partition] = TakenOver(source.start, there, there, stop=change.stop)
            continue
        reason = None if change is None else change.reason
        if reason is None and partition in elsewhere and partition.topic not in settings.restart:
            found[partition] = TakenOver(source.start, there, there, stop=_other_target(settings))
            continue
        if reason is None and partition in targets_lost:
            reason, choice = targets_lost[partition], "earliest" if partition.topic in settings.restart else None
            if choice is None:
                found[partition] = TakenOver(source.start, there, there, stop=Stop(reason, Remedy.RESTART))
                continue
        incarnation = known.incarnation(partition)
        incarnation = incarnation._replace(topic_id=ids[partition.topic] or incarnation.topic_id)
        position = committed.get(partition)
        if reason is not None:
            cut = None if change is None else change.cut
            more, position = _by_choice(known, partition, source, position, there, str(choice), cut)
            incarnation = incarnation._replace(number=incarnation.number + more)
            log.warning(
                "%s:%d: %s; continuing at offset %d because of --%s",
                *partition,
                reason,
                position,
                "restart" if change is None else f"recreated {choice}",
            )
        known.begin(partition, incarnation)
        target, is_exact = None if position is None else known.positions(partition).target(position), True
        if position is None:
            position = source.start
        if target is None:
            if there and not settings.append and reason is None:
                not_empty = NotEmpty(
                    f"{partition.topic}:{partition.partition} of the new cluster holds {there} records that no mirror "
                    f"of this group wrote (group {settings.group!r} has no committed offset on the old cluster, or the "
                    "offset map was deleted); empty the partition, or pass --append to keep its records"
                )
                if settings.pattern is None:
                    raise not_empty
                found[partition] = TakenOver(source.start, there, there, stop=Stop(str(not_empty), Remedy.UNFIT))
                continue
            # records that are gone before this mirror gets them may have copies that another one wrote
            known.note(partition, Run(max(position, source.start), there))
            target = there
        elif reason is None and (kept := Target.of(stored.get(partition))) is not None:
            # the commit names the exact target: the map has no entry for invisible offsets right before the position
            target = kept.offset
        else:
            is_exact = False
        spans[partition] = (min(target, there), there)
        _note_lost(known, partition, there)
        lost = SourceLoss(partition, position, source.start - 1) if position < source.start else None
        position = max(position, source.start)
        seek = reason is not None or committed.get(partition) != position
        found[partition] = TakenOver(position, min(target, there), there, seek=seek, lost=lost, is_exact=is_exact)
    found.update(await _behind_tails(clusters, found, spans, committed))
    await known.flush()
    return found


async def refuse_other_target(clusters: MirrorClusters, settings: MirrorSettings, topics: Iterable[str]) -> None:
    """Raises TopicsStopped if a mirror of this group copies these topics to another cluster.

    For the time before a process joins the group: as a member, it would take partitions from the processes of that
    mirror.
    """
    partitions = [TopicPartition(topic, n) for topic in topics for n in clusters.old.partitions(topic) or ()]
    stored = await clusters.offsets.fetch(partitions)
    ids = await clusters.target_ids.of({each.topic for each in stored})
    elsewhere = {each.topic for each in await _mirrored_elsewhere(clusters, stored, ids)} - {*settings.restart}
    if elsewhere:
        raise TopicsStopped("; ".join(map(_other_target(settings).text, sorted(elsewhere))))


def _other_target(settings: MirrorSettings) -> Stop:
    why = f"group {settings.group!r} has mirrored it, and the offset map here knows nothing of it"
    return Stop(why, Remedy.OTHER_TARGET)


async def _mirrored_elsewhere(
    clusters: MirrorClusters, stored: Mapping[TopicPartition, OffsetAndMetadata], target_ids: Mapping[str, str | None]
) -> set[TopicPartition]:
    """Returns the partitions that a mirror of this group has begun to copy to another cluster: it writes the map before
    its first commit. Also those whose topic was deleted together with the map."""
    known = clusters.map
    kept = {
        each: target
        for each, offset in stored.items()
        if (target := Target.of(offset)) is not None and not known.positions(each).runs and known.switch(each) is None
    }
    lost = await find_targets_lost(clusters.new, kept, target_ids) if kept else {}
    empty = {each for each, target in kept.items() if not target.offset}
    return {*lost, *(each for each in empty if not same_topic(kept[each].topic_id, target_ids[each.topic]))}


async def _begin_back(
    clusters: MirrorClusters,
    forward: str | None,
    stored: dict[TopicPartition, OffsetAndMetadata],
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, Stop]:
    """Lets a mirror back begin where the producers moved, and ends the mirror of group `forward` there.

    Sets these positions in `stored`, as if this mirror had committed them, and adds the offsets before them to its map.
    Returns the partitions that this mirror must not copy. Raises MembersAlive like `_refuse_forward`.
    """
    own, back, wanted = clusters.map, clusters.back, list(partitions)
    barred = {}
    if back is not None and forward is not None:
        await back.refresh()
        begins = {
            each: theirs for each in wanted if (theirs := _begin(own.switch(each), back.switch(each))) is not None
        }
        for each, theirs in begins.items():
            if not theirs.is_over:
                back.note_switch(each, theirs._replace(state="ended"))
        await back.flush()  # before this mirror's own map: a start after a crash does it again
        await _refuse_forward(clusters, forward, wanted)
        ended = await GroupOffsets(clusters.new, forward).fetch(begins) if begins else {}
        for each, theirs in begins.items():
            mine, kept = own.switch(each), ended.get(each)
            # what a forgotten producer wrote after the move is on both clusters up to here, and nothing beyond
            end = theirs.source if kept is None or Target.of(kept) is None else max(theirs.source, kept.offset)
            for run in back.positions(each).inverse().runs:
                if (mine is None or run.source >= mine.source) and run.target < theirs.source:
                    own.note(each, run)
            own.note_switch(each, Switch(theirs.number, theirs.target, end, BEGUN))
    for each in wanted:
        mine, theirs = own.switch(each), None if back is None else back.switch(each)
        if mine is not None and mine.is_over:
            barred[each] = leave(own, each, mine)
        elif back is not None and theirs is None and back.positions(each).runs:
            reason = f"its producers have not moved since {back.topic!r} began, so some records would go round"
            barred[each] = Stop(reason, Remedy.NOT_MOVED)
        elif back is not None and theirs is not None and mine is not None and theirs.number == mine.number:
            begin = Target(mine.target, back.incarnation(each).topic_id).committed(mine.source)
            stored[each] = max(begin, stored.get(each, begin), key=lambda at: at.offset)
    return barred


def _begin(mine: Switch | None, theirs: Switch | None) -> Switch | None:
    """Returns the switch of the other map at which this mirror has to begin; None if there is none, or it has begun."""
    is_new = theirs is not None and theirs.has_moved and (mine is None or theirs.number > mine.number)
    return theirs if is_new else None


async def _refuse_forward(clusters: MirrorClusters, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Raises MembersAlive while the mirror of `group`, in the other direction, may still copy these partitions."""
    switches = [] if clusters.back is None else [clusters.back.switch(each) for each in partitions]
    if any(switch is not None and switch.state == "ended" for switch in switches):
        ensembles = [] if clusters.groups is None else [clusters.groups]
        members = await live_members(clusters.new, ensembles, group, clusters.root)
        if members:
            raise MembersAlive(
                f"mirror {group!r} still runs ({', '.join(members)}), and has not noticed that its producers have "
                "moved. It does within some seconds; if not, stop it"
            )


def leave(known: OffsetMap, partition: TopicPartition, switch: Switch) -> Stop:
    """Notes that this mirror has noticed its end. Returns why it does not copy the partition."""
    if switch.state == "ended":
        known.note_switch(partition, switch._replace(state="left"))
    reason = f"it was mirrored up to offset {switch.source - 1}, where its producers moved to the new cluster"
    return Stop(f"{reason}, and the mirror back has begun", Remedy.ENDED)


def _by_choice(
    known: OffsetMap,
    partition: TopicPartition,
    source: Ends,
    position: int | None,
    there: int,
    choice: str,
    cut: int | None,
) -> tuple[int, int]:
    """Applies the operator's choice about a replaced topic. Returns the incarnation's increment and the position."""
    if choice == "earliest":
        return 1, source.start
    if cut is not None:
        # the records from `cut` on are new, so the mirror appends them after the copies of the lost records
        runs = [run for run in known.positions(partition).runs if run.source > cut]
        for run in (Run(cut, there), *(Run(run.source, there, exact=False) for run in runs)):
            known.note(partition, run)
        return 0, cut
    if position is None:  # no committed offset: brokers delete it together with the topic
        position = known.positions(partition).source(there)
    return 0, min(source.start if position is None else position, source.end)


def _note_lost(known: OffsetMap, partition: TopicPartition, end: int) -> None:
    """Corrects the map if the new log has lost records of a crashed process."""
    lost = known.positions(partition).corrected(end)
    for run in lost:
        known.note(partition, run)
    if lost:
        log.warning(
            "%s:%d: the new cluster lost records from offset %d on, which a mirror had written and not committed; they "
            "are sent again",
            *partition,
            end,
        )


async def _behind_tails(
    clusters: MirrorClusters,
    taken: Mapping[TopicPartition, TakenOver],
    spans: Mapping[TopicPartition, tuple[int, int]],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, TakenOver]:
    """Moves positions past the records that a crashed process wrote, and adds those records to the map.

    Such records do not count as lost if the old cluster has deleted them since. Where the old log has nothing left to
    copy, all records behind the committed target are of others, maybe of producers that have moved. They are not read.
    """
    # each of the new records may have had an old offset, so the old log must reach this far; a new leader may report
    # less at first
    least = {
        each: committed.get(each, taken[each].position) + end - start
        for each, (start, end) in spans.items()
        if start < end
    }
    ends = await _ends_beyond(clusters.old, least, isolation_level="read_committed")
    left = {each for each, end in ends.items() if end > taken[each].position or taken[each].lost is not None}
    found = {each: taken[each]._replace(counted=taken[each].end) for each in ends.keys() - left}
    tails = await read_tails(clusters.new, {each: spans[each] for each in left})
    await match_tails(clusters.old, {each: (taken[each].position, ends[each]) for each in tails}, tails)
    for partition, tail in tails.items():
        one = taken[partition]
        # since producers have moved, new records that match no old one are theirs
        moved = clusters.map.switch(partition) is not None
        kept = tail.finish(0 if one.lost is None or moved else one.lost.offsets)
        if one.lost is not None:
            one = one._replace(lost=one.lost._replace(first=one.lost.first + kept) if kept < one.lost.offsets else None)
        if tail.next_source is not None:
            one = one._replace(position=tail.next_source)
        source, target = committed.get(partition, one.position), spans[partition][0]
        for run in tail.runs:
            clusters.map.extend(partition, run, 1)
            # without a move, groups are refused for these: they may be copies of records that were compacted since
            if one.is_exact and run.target - target > (0 if moved else run.source - source):
                clusters.map.note_other(partition, target)
            source, target = run.source + 1, run.target + 1
        found[partition] = one._replace(
            end=tail.next_target, present=tail.present, unexpected=tail.unexpected, seek=True
        )
    return found


async def find_targets_lost(
    new: KafkaClient, kept: Mapping[TopicPartition, Target], target_ids: Mapping[str, str | None]
) -> dict[TopicPartition, str]:
    """Maps each partition whose new log lacks records below `kept` to the reason. `target_ids`: current ids of the new
    topics. Raises TopicAuthorizationFailed for topics that this user may not see."""
    ends = await _ends_beyond(new, {each: target.offset for each, target in kept.items()}, absent=None)
    new.refuse_hidden({each.topic for each, end in ends.items() if end is None})
    reasons = {each: target_lost(each, target, ends[each], target_ids[each.topic]) for each, target in kept.items()}
    return {each: reason for each, reason in reasons.items() if reason is not None}


async def _find_targets_lost(
    clusters: MirrorClusters, stored: Mapping[TopicPartition, OffsetAndMetadata], target_ids: Mapping[str, str | None]
) -> dict[TopicPartition, str]:
    """Like `find_targets_lost`, but also compares the last mirrored records of topics without an id."""
    kept = {each: target for each, offset in stored.items() if (target := Target.of(offset)) is not None}
    for each in stored.keys() - kept.keys():
        runs = clusters.map.positions(each).runs  # the commit has no metadata, because the old broker cannot store it
        if runs:
            kept[each] = Target(max(run.target for run in runs))
    found = await find_targets_lost(clusters.new, kept, target_ids)
    unproven = {
        each: (max(0, stored[each].offset - SAMPLE), stored[each].offset)
        for each, target in kept.items()
        if each not in found and target.offset and same_topic(target.topic_id, target_ids[each.topic]) is None
    }
    starts = await ends_of(clusters.old, unproven)
    spans = {each: (max(first, starts[each].start), stop) for each, (first, stop) in unproven.items() if each in starts}
    for each, one in (await _compare(clusters, spans)).items():
        if one.differs is not None:
            found[each] = f"the new topic was deleted and created again: {_unlike(one.differs[1], one.differs)}"
    return found


async def find_replaced(
    clusters: MirrorClusters,
    logs: Mapping[TopicPartition, Log],
    ids: Mapping[str, str | None],
    intact: Mapping[TopicPartition, bool | None] = MappingProxyType({}),
) -> dict[TopicPartition, Replaced]:
    """Returns the partitions of `logs` whose topic was recreated or truncated.

    `ids` are the current ids of the old topics. `intact`: whether the new topic is still the topic that the mirror
    wrote to; None or absent: unknown.

    It compares the topic's id with the map's, the end of the log, the leader epoch of the position, and the last
    mirrored records on both clusters: a broker that lost the end of its log may continue under the same epoch. It
    cannot compare deleted records.
    """
    found: dict[TopicPartition, Replaced] = {}
    same: dict[TopicPartition, bool] = {}
    stops: dict[TopicPartition, int] = {}
    at = {each: one.position for each, one in logs.items() if one.position is not None}
    known = clusters.map
    ends, cuts = await _ends_beyond(clusters.old, at), await _ends_of_epochs(clusters.old, logs)
    for partition in logs:
        reason = known.recreated(partition, ids[partition.topic])
        if reason is not None:
            found[partition] = Replaced(f"the old topic was deleted and created again: {reason}")
        elif partition in at:
            same[partition] = bool(same_topic(known.incarnation(partition).topic_id, ids[partition.topic]))
            stops[partition] = min(at[partition], ends[partition], cuts.get(partition, ends[partition]))
    last = {each: (logs[each].start, stop) for each, stop in stops.items() if intact.get(each) is not False}
    compared = await _compare_widely(clusters, last)
    for partition, stop in stops.items():
        one = compared.get(partition, Compared())
        is_same, position, end = same[partition] or one.equal, at[partition], ends[partition]
        # if all records differ, the new topic may have been replaced instead; then `intact` decides
        if one.differs is not None and (one.equal or not same[partition] or intact.get(partition)):
            what = "lost its tail" if is_same else "was deleted and created again"
            cut = one.differs[0].offset if one.equal else None
            found[partition] = Replaced(f"the old topic {what}: {_unlike(one.differs[0], one.differs)}", cut)
        elif stop < position:
            what = "lost its tail" if is_same else "was deleted and created again, or lost its tail"
            why = Replaced.truncated(partition, position, stop, end if end < position else None, what)
            found[partition] = why if is_same else why._replace(cut=None)
    return found


async def _ends_of_epochs(client: KafkaClient, logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Returns the end of each position's leader epoch (KIP-320), where the leaders know it."""
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for each, one in logs.items():
        leader = client.leader(each)
        if one.epoch >= 0 and one.position is not None and leader is not None:
            by_leader[leader][each] = one.epoch
    found: dict[TopicPartition, int] = {}
    for leader, epochs in by_leader.items():
        try:
            ends = await ends_of_epochs(client, leader, epochs, timeout_s=PATIENCE_S)
        except BrokerError as error:
            log.info("comparing records instead of leader epochs: %s", error)
            continue
        known = {each: end.offset for each, end in ends.items() if not isinstance(end, BrokerError)}
        found.update((each, offset) for each, offset in known.items() if offset >= 0)
    return found


async def _replicated_ends(client: KafkaClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the ends of existing logs, once all in-sync replicas have the leaders' records.

    Until then, readers do not see the last records of a crashed process. Brokers before 2.4 do not report such records.
    Raises BrokerError.
    """
    await client.refresh()
    epochs = {each: client.leader_epoch(each) for each in partitions}
    logs = {each: Log(0, 0, -1 if epoch is None else epoch) for each, epoch in epochs.items()}
    leading = await _ends_of_epochs(client, logs)
    ends = await _ends_beyond(client, {**dict.fromkeys(logs, 0), **leading}, None, patience_s=REPLICATION_S)
    for each, end in leading.items():
        if end > (ends[each] or 0):
            raise BrokerError(
                f"{each.topic}:{each.partition} of the new cluster has records up to offset {end - 1}, which its "
                "replicas have not copied; start the brokers of the replicas",
                retriable=True,
            )
    return {each: end for each, end in ends.items() if end is not None}


async def _ends_beyond(
    client: KafkaClient,
    at: Mapping[TopicPartition, int],
    absent: Any = 0,
    isolation_level: IsolationLevel = DEFAULT["isolation_level"],
    patience_s: float = PATIENCE_S,
) -> dict[TopicPartition, Any]:
    """Returns the ends of these logs, and `absent` for logs that do not exist.

    Retries for `patience_s` while an end is below the offset in `at`: a leader of an old Kafka may report a lower end
    for a moment after its election.
    """
    deadline = time.monotonic() + patience_s
    found = await ends_of(client, at, isolation_level=isolation_level)
    while time.monotonic() < deadline:
        short = [each for each, offset in at.items() if offset > (found[each].end if each in found else 0)]
        if not short:
            break
        await asyncio.sleep(client.retry_backoff_s)
        found.update(await ends_of(client, short, isolation_level=isolation_level))
    return {each: found[each].end if each in found else absent for each in at}


class Compared(NamedTuple):
    """The result of a comparison: whether some records are equal, and the first differing pair after them."""

    equal: bool = False
    differs: Optional[tuple[Record, Record]] = None


async def _compare_widely(
    clusters: MirrorClusters, at: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, Compared]:
    """Compares the last mirrored records before a position, and more of them until some are equal.

    `at` has the first offset of the old log, and the position.
    """
    found: dict[TopicPartition, Compared] = {}
    left, size = dict(at), SAMPLE
    while left:
        spans = {each: (max(start, stop - size), stop) for each, (start, stop) in left.items()}
        found.update(await _compare(clusters, spans))
        size *= 8
        left = {
            each: span
            for each, span in left.items()
            if each in found and not found[each].equal and spans[each][0] > span[0] and size <= MOST_COMPARED
        }
    return found


async def _compare(
    clusters: MirrorClusters, spans: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, Compared]:
    """Compares the records of these old spans with their copies. A partition without records is absent."""
    here: dict[TopicPartition, dict[int, Record]] = {}
    async for batch in RangeReader(clusters.old, isolation_level="read_committed").read(spans):
        for record in batch:
            partition = TopicPartition(batch.topic, batch.partition)
            target = clusters.map.positions(partition).exact(record.offset)
            if target is not None:
                here.setdefault(partition, {})[target] = record
    found: dict[TopicPartition, Compared] = {}
    ends = await ends_of(clusters.new, here)
    there = {
        each: (max(min(records), ends[each].start), min(max(records) + 1, ends[each].end))
        for each, records in here.items()
        if each in ends
    }
    async for batch in RangeReader(clusters.new).read(there):
        for copy in batch:
            partition = TopicPartition(batch.topic, batch.partition)
            original = here[partition].get(copy.offset)
            if original is not None:
                one = found.get(partition, Compared())
                if _same(original, copy):
                    found[partition] = Compared(equal=True)
                elif one.differs is None:
                    found[partition] = one._replace(differs=(original, copy))
    return found


def _unlike(record: Record, pair: tuple[Record, Record]) -> str:
    original, copy = pair
    return (
        f"its record at offset {record.offset} differs from the record that was mirrored from offset {original.offset} "
        f"of the old cluster to offset {copy.offset} of the new cluster"
    )


def _same(record: Record, copy: Record) -> bool:
    # compares timestamps only if the copy keeps them: with LogAppendTime, the broker replaces them
    return digest(record, timed=False) == digest(copy, timed=False) and (
        record.timestamp == copy.timestamp or copy.timestamp_type != CREATE_TIME
    )
