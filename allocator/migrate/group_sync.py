"""Keeps the committed offsets of live groups translated on the new cluster, as MirrorMaker 2's checkpoints do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kafka.protocol.admin import ListGroupsRequest

from allocator.core.aio import boot_clock
from allocator.core.offsets import GroupOffsets, IdleOffsets, Terms
from allocator.core.subscription import stamped
from allocator.errors import AllocatorError, BrokerError, CommitFailed, ConfigError, Fenced
from allocator.migrate.positions import PartitionCopy, Target
from allocator.migrate.report import MirrorReport
from allocator.migrate.takeover import MirrorClusters
from allocator.operate import list_kafka_groups, live_members
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

# Time between two rounds. Higher: fewer requests; lower: a group that moves repeats fewer records.
SYNC_S: Final = 5.0
# Age that the group's state on the new cluster may have when a commit is sent. Higher: a group that moves meanwhile is
# more often set back; lower: nothing is synced over a slow network. A member needs about 3 s to join an empty group
# (group.initial.rebalance.delay.ms).
CURRENT_S: Final = 2.0
SYNCED: Final = "synced"  # the text of this mirror's commits
AT_ONCE: Final = 20  # groups. Higher: a round over a slow network is shorter; lower: fewer requests at a time


class GroupSync:
    """Translates the offsets of the groups that `sync_group_offsets` names, in the partitions of this process.

    Guarantee: a group that starts on the new cluster gets every record after its offset on the old one. It commits none
    for a group with live members: Kafka refuses that. Groups with members in the ensemble are left to a cutover,
    because their members may read either cluster.

    Each round fetches the offsets on both clusters. It writes those that the new cluster lacks, raises its own ones,
    and commits its own ones again before they expire. They have the text `SYNCED`. An offset without it was committed
    by a consumer or an operator there, and is never overwritten.

    Kafka has no conditional commit. So members and offsets are read again before each commit, and the commit is not
    sent if that took longer than `CURRENT_S`, or if the lease of this process has ended (`may_act`). A request that the
    network holds back after it was sent may still set back an offset that a consumer commits meanwhile.
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
            self._stores[group] = GroupOffsets(clusters.old, group), GroupOffsets(clusters.new, group)
        old, new = self._stores[group]
        targets = await self._targets(group, old)
        if not targets:
            return
        now = boot_clock()
        is_due = now >= self._renew_at.get(group, 0.0)  # without members, Kafka counts the age from the last commit
        texts = {each: stamped(SYNCED, clusters.new.topic_id(each.topic)) for each in targets}
        if _wanted(targets, texts, await new.fetch(targets), is_due):
            read_at = boot_clock()
            if not await self._has_members(group):
                # read after the members: one that has committed and left meanwhile is not overwritten
                wanted = _wanted(targets, texts, await new.fetch(targets), is_due)
                await self._commit(group, new, wanted, read_at)
        if is_due:
            self._renew_at[group] = now + IdleOffsets.period_s(await new.retention_s())

    async def _targets(self, group: str, old: GroupOffsets) -> dict[TopicPartition, int]:
        """Returns the translated offsets of the group."""
        copies = {each: copy for each, copy in self._copies.items() if each.topic not in self._report.stops}
        committed = await old.fetch(copies)
        if any(Target.of(offset) for offset in committed.values()):
            return {}  # the group of a mirror, whose offsets say what it has copied
        former, targets = old.of_former_topics(committed), {}
        for each, offset in committed.items():
            copy, known = copies[each], self._clusters.map.positions(each)
            if offset.offset < 0 or each in former or not known:
                continue
            target = known.start(offset.offset)
            if target is None:
                if (group, each) not in self._unknown:
                    self._unknown.add((group, each))
                    log.warning(
                        "group %r is not synced in %s:%d: its offset %d is before the first one in the map, %d",
                        *(group, *each, offset.offset, known.runs[0].source),
                    )
                continue
            targets[each] = copy.end if offset.offset >= copy.acked else min(target, copy.end)
        return targets

    async def _has_members(self, group: str) -> bool:
        clusters = self._clusters
        ensembles = [] if clusters.groups is None else [clusters.groups]
        return bool(await live_members(clusters.new, ensembles, group, clusters.root))

    async def _commit(
        self, group: str, new: GroupOffsets, wanted: Mapping[TopicPartition, OffsetAndMetadata], read_at: float
    ) -> None:
        def refusals(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerError]:
            # called when the request is written: this process may have been suspended at any moment before
            current = self._may_act() and boot_clock() - read_at <= CURRENT_S
            error = BrokerError("read too long ago, or another process owns the partition")
            return {each: error for each in partitions if not current or each not in self._copies}

        try:
            await new.commit(wanted, Terms(refusals))
        except Fenced as error:
            raise CommitFailed(str(error), retriable=True) from error
        except CommitFailed as error:
            if error.retriable or not await self._has_members(group):  # those that have joined since refuse it
                raise


def _wanted(
    targets: Mapping[TopicPartition, int],
    texts: Mapping[TopicPartition, str],
    there: Mapping[TopicPartition, OffsetAndMetadata],
    renews: bool,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns what to commit where the new cluster has `there`: missing offsets, and larger ones in place of those of
    a mirror; with `renews` also these as they are."""
    wanted = {}
    for each, at in targets.items():
        stored = there.get(each)
        if stored is None or ((stored.metadata or "").partition(" topic ")[0] == SYNCED and stored.offset < at):
            wanted[each] = OffsetAndMetadata(at, texts[each], -1)
        elif renews and stored.metadata == texts[each]:
            wanted[each] = OffsetAndMetadata(stored.offset, texts[each], -1)
    return wanted
