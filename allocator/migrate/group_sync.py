"""Keeps the committed offsets of live groups translated on the new cluster, as MirrorMaker 2's checkpoints do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kafka.protocol.admin import ListGroupsRequest

from allocator.core.aio import boot_clock
from allocator.core.offsets import GroupOffsets, IdleOffsets, Terms
from allocator.core.subscription import stamped
from allocator.core.text import partition_names, some_of
from allocator.errors import AllocatorError, BrokerError, CommitFailed, ConfigError, Fenced
from allocator.migrate.positions import SYNCED, PartitionCopy, Target, is_synced
from allocator.migrate.report import MirrorReport
from allocator.migrate.takeover import MirrorClusters
from allocator.operate import list_kafka_groups, live_members
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

# Time between two rounds. Higher: fewer requests; lower: a group that moves repeats fewer records.
SYNC_S: Final = 5.0
# Age that the list of the group's members may have when a commit is sent. Higher: the mirror more often commits under a
# member that has just joined; lower: nothing is synced over a slow network. A member needs about 3 s to join an empty
# group (group.initial.rebalance.delay.ms).
CURRENT_S: Final = 2.0
# Age that the offsets on the new cluster may have when a commit is sent, beside twice the time that reading them takes.
# Higher: the mirror overwrites more commits of consumers and operators; lower: a busy process syncs later.
STALL_S: Final = 0.2
TRIES: Final = 3  # for each group and round. Higher: a busy process syncs sooner; lower: fewer requests
NO_TEXT: Final = BrokerError(
    "the brokers refuse the text that marks the mirror's own offsets: set offset.metadata.max.bytes to 100 or more"
)
AT_ONCE: Final = 20  # groups. Higher: a round over a slow network is shorter; lower: fewer requests at a time


class _Translated(NamedTuple):
    """The offsets of a group in the partitions of this process, in one round."""

    committed: dict[TopicPartition, int]
    """Its offsets on the old cluster."""
    targets: dict[TopicPartition, int]
    """The translated ones."""
    untranslated: set[TopicPartition]
    """Its other partitions: the map cannot translate the offset or, unless the group has no offset at all, there is
    none."""
    skipping: set[TopicPartition]
    """Those of them in which the group would skip records of others at the translated offset."""


class GroupSync:
    """Translates the offsets of the groups that `sync_group_offsets` names, in the partitions of this process.

    Guarantee: a group that starts on the new cluster at an offset of the mirror gets every record after the offset that
    it had on the old one in the last round. The mirror commits none for a group with live members: Kafka refuses that.
    A group that has members there, and whose offsets there are missing or behind the old ones, is reported. Groups with
    members in the ensemble are left to a cutover, because their members may read either cluster.

    Each round fetches the offsets on both clusters. It writes those that the new cluster lacks, makes its own ones
    follow the old cluster in both directions, and commits its own ones again before they expire. Their text says which
    offset the mirror committed. Clients may keep the text when they commit another offset, so an offset is the mirror's
    only if its text names exactly this offset. All others were committed by a consumer or an operator there.

    Kafka has no conditional commit. So members and offsets are read again before each commit, and the commit is not
    sent if the offsets are older than `STALL_S` and twice the time of such a read, if an open transaction has one of
    them (brokers from 2.5 on tell), or if the lease of this process has ended (`may_act`). A commit of a consumer or an
    operator that arrives after the read and before the mirror's commit is overwritten.
    """

    def __init__(
        self,
        report: MirrorReport,
        clusters: MirrorClusters,
        copies: Mapping[TopicPartition, PartitionCopy],
        may_act: Callable[[], bool],
        pattern: str,
    ) -> None:
        self._report = report
        self._clusters = clusters
        self._copies = copies
        self._may_act = may_act
        self._pattern = pattern
        self._round = asyncio.Lock()  # two rounds at a time would commit their offsets in any order
        self._stores: dict[str, tuple[GroupOffsets, GroupOffsets]] = {}  # on the old and on the new cluster
        self._failed: dict[str, str] = {}  # groups that failed in the last round -> why
        self._renew_at: dict[str, float] = {}
        self._left: dict[str, dict[TopicPartition, int]] = {}
        """Groups -> their old offsets when this process first saw that the new cluster has offsets of others."""
        self._unknown: set[tuple[str, TopicPartition]] = set()  # groups and partitions that were logged

    async def run(self) -> None:
        if self._clusters.old.api_version(ListGroupsRequest) is None:
            raise ConfigError("the old cluster cannot list its groups (before 0.9), so it has none to sync")
        while True:
            with contextlib.suppress(AllocatorError):
                await self.sync()
            await asyncio.sleep(SYNC_S)

    async def sync(self) -> None:
        """Runs a round. Reports the groups that an operator has to correct, and raises the first other failure."""
        async with self._round:
            failures: dict[str, AllocatorError] = {}
            try:
                groups = [*filter(re.compile(self._pattern).fullmatch, await list_kafka_groups(self._clusters.old))]
                places = asyncio.Semaphore(AT_ONCE)
                results = await asyncio.gather(*(self._try_sync(group, places) for group in groups))
                failures.update((group, each) for group, each in zip(groups, results) if each is not None)
            except AllocatorError as error:  # of the list
                failures[self._pattern] = error
            for group, each in failures.items():
                if self._failed.get(group) != str(each):
                    log.warning("%s: the offsets of %r are not synced: %s", self._report.settings.group, group, each)
            self._failed = {group: str(each) for group, each in failures.items()}
            self._report.unsynced = {group: str(each) for group, each in failures.items() if not each.retriable}
            for each in failures.values():
                if each.retriable:
                    raise each

    async def _try_sync(self, group: str, places: asyncio.Semaphore) -> AllocatorError | None:
        async with places:
            try:
                await self._sync(group)
            except AllocatorError as error:
                return error
        return None

    async def _sync(self, group: str) -> None:
        clusters = self._clusters
        if group not in self._stores:
            self._stores[group] = (
                GroupOffsets(clusters.old, group),
                GroupOffsets(clusters.new, group, timeout_s=SYNC_S),  # an open transaction holds up the other groups
            )
        old, new = self._stores[group]
        committed, targets, untranslated, skipping = await self._translated(group, old)
        if not targets and not untranslated:
            return
        now = boot_clock()
        is_due = now >= self._renew_at.get(group, 0.0)  # without members, Kafka counts the age from the last commit
        there = await new.fetch([*targets, *untranslated])
        # these stay as they are, and are committed again before they expire
        targets.update({each: there[each].offset for each in skipping if each in there and is_synced(there[each])})
        if self._wanted(targets, there, is_due):
            await self._write(group, new, targets, is_due, boot_clock() - now)
        if is_due:
            self._renew_at[group] = now + IdleOffsets.period_s(await new.retention_s())
        await self._refuse_left(group, committed, targets, there)
        kept = sorted(each for each in untranslated - skipping if each in there and is_synced(there[each]))
        skipped = sorted(each for each in skipping if each not in there or is_synced(there[each]))
        if skipped:
            raise CommitFailed(
                f"in {partition_names(skipped)} of the new cluster, other producers wrote records before copies of the "
                "mirror (or a mirror wrote some twice), and the group would skip them at its translated offset. So it "
                "keeps the offset that was synced before, or has none: start it there, it reads some records again"
            )
        if kept:
            raise CommitFailed(
                f"it has no old offset in {partition_names(kept)}, or the map lacks it, while the new cluster has the "
                "offset that was synced before: commit the right one there, or delete it"
            )

    async def _write(
        self, group: str, new: GroupOffsets, targets: Mapping[TopicPartition, int], renews: bool, read_s: float
    ) -> None:
        """Commits what `_wanted` returns. `read_s`: the time that reading these offsets has taken."""
        for tries_left in reversed(range(TRIES)):
            looked_at = boot_clock()
            if await self._has_members(group):
                await self._refuse_behind(group, new, targets)
                return
            # read after the members: one that has committed and left meanwhile is not overwritten. A transaction may
            # have an offset without being a member (KIP-447)
            read_at, stable = boot_clock(), self._clusters.new.broker_version >= (2, 5)
            wanted = self._wanted(targets, await new.fetch(targets, require_stable=stable), renews)
            read_s = min(read_s, boot_clock() - read_at)  # this process may have been suspended in one of the reads
            try:
                await self._commit(group, new, wanted, min(looked_at + CURRENT_S, read_at + STALL_S + 2 * read_s))
                return
            except CommitFailed as error:
                if not error.retriable or not tries_left:
                    raise

    async def _translated(self, group: str, old: GroupOffsets) -> _Translated:
        copies = {each: copy for each, copy in self._copies.items() if each.topic not in self._report.stops}
        committed = await old.fetch(copies)
        if any(Target.of(offset) for offset in committed.values()):
            return _Translated({}, {}, set(), set())  # the group of a mirror, whose offsets say what it has copied
        former, targets = old.of_former_topics(committed), {}
        # its other partitions may be those of another process
        has_offsets = bool(committed) or bool(await old.fetch(None))
        untranslated = copies.keys() - committed.keys() if has_offsets else set()
        skipping: set[TopicPartition] = set()
        for each, offset in committed.items():
            copy, known = copies[each], self._clusters.map.positions(each)
            if offset.offset < 0 or each in former:
                continue
            start = self._clusters.map.start(each, offset.offset, (copy.acked, copy.end))
            if start.offset is None:
                untranslated.add(each)
                if start.skips:
                    skipping.add(each)
                elif known and (group, each) not in self._unknown:
                    self._unknown.add((group, each))
                    log.warning(
                        "group %r is not synced in %s:%d: its offset %d is before the first one in the map, %d",
                        *(group, *each, offset.offset, known.runs[0].source),
                    )
                continue
            targets[each] = start.offset
        offsets = {each: offset.offset for each, offset in committed.items()}
        return _Translated(offsets, targets, untranslated, skipping)

    async def _has_members(self, group: str) -> bool:
        return bool(await live_members(self._clusters.new, self._ensembles(), group, self._clusters.root))

    def _ensembles(self) -> list[ZooKeeperClient]:
        return [] if self._clusters.groups is None else [self._clusters.groups]

    async def _refuse_behind(self, group: str, new: GroupOffsets, targets: Mapping[TopicPartition, int]) -> None:
        """Raises CommitFailed if the group, which has members on the new cluster, lacks offsets there or has synced
        ones that are behind. An offset that its consumers committed there is none of them: they read on from it."""
        if await live_members(None, self._ensembles(), group, self._clusters.root):
            return
        there = await new.fetch(targets)
        behind = {
            each.topic
            for each, at in targets.items()
            if each not in there or (is_synced(there[each]) and there[each].offset < at)
        }
        if behind:
            raise CommitFailed(
                "it has members on the new cluster, so Kafka refuses the offsets that are missing or behind there, of "
                f"{some_of([*map(repr, sorted(behind))], 10)}. Services of one group move together: stop all of them, "
                "wait until the offsets are synced, and start all of them with the new brokers"
            )

    async def _refuse_left(
        self,
        group: str,
        committed: Mapping[TopicPartition, int],
        targets: Mapping[TopicPartition, int],
        there: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Raises CommitFailed if the group goes on or back on the old cluster, while it has offsets on the new one
        which others committed, so that the mirror leaves them as they are. A member that only subscribes there may have
        died."""
        before = self._left.get(group, {})
        others = {
            each: before.get(each, committed[each])
            for each, at in targets.items()
            if each in there and not is_synced(there[each]) and there[each].offset != at
        }
        self._left[group] = others
        reads = sorted(each for each, at in others.items() if at != committed[each])
        if reads and not await self._has_members(group):  # with members there, it is moving
            raise CommitFailed(
                f"it reads {partition_names(reads)} on the old cluster, and a consumer or an operator has committed "
                "others on the new one, which do not follow: delete these there (the mirror then writes its own)"
            )

    def _wanted(
        self, targets: Mapping[TopicPartition, int], there: Mapping[TopicPartition, OffsetAndMetadata], renews: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns what to commit where the new cluster has `there`: missing offsets, and those of a mirror that differ;
        with `renews` all of a mirror."""
        topic_id, wanted = self._clusters.new.topic_id, {}
        for each, at in targets.items():
            stored = there.get(each)
            if stored is None or (is_synced(stored) and (renews or stored.offset != at)):
                wanted[each] = OffsetAndMetadata(at, stamped(f"{SYNCED} {at}", topic_id(each.topic)), -1)
        return wanted

    async def _commit(
        self, group: str, new: GroupOffsets, wanted: Mapping[TopicPartition, OffsetAndMetadata], until: float
    ) -> None:
        """Commits, but sends no request after `until`."""
        stale = BrokerError("read too long ago, or another process owns the partition")
        unmarked: set[TopicPartition] = set()

        def refusals(left: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, BrokerError]:
            # called when the request is written: this process may have been suspended at any moment before
            current = self._may_act() and boot_clock() <= until
            unmarked.update(each for each, offset in left.items() if not offset.metadata)
            return {
                each: NO_TEXT if each in unmarked else stale
                for each in left
                if not current or each not in self._copies or each in unmarked
            }

        try:
            await new.commit(wanted, Terms(refusals))
        except Fenced as error:
            raise CommitFailed(str(error), retriable=not unmarked) from error
        except CommitFailed as error:
            if error.retriable or not await self._has_members(group):  # those that have joined since refuse it
                raise
