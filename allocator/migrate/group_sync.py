"""Keeps the committed offsets of live groups translated on the new cluster, as MirrorMaker 2's checkpoints do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Container, Mapping
from typing import Final

from kafka.protocol.admin import ListGroupsRequest

from allocator.core.aio import boot_clock
from allocator.core.client import KafkaClient, for_code
from allocator.core.offsets import GroupOffsets, IdleOffsets
from allocator.core.subscription import stamped
from allocator.errors import AllocatorError, ConfigError
from allocator.migrate.positions import PartitionCopy, Target
from allocator.migrate.takeover import MirrorClusters
from allocator.operate import live_members
from allocator.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

# Time between two rounds. Higher: fewer requests; lower: a group that moves repeats fewer records.
SYNC_S: Final = 5.0
AT_ONCE: Final = 20  # groups. Higher: a round over a slow network is shorter; lower: fewer requests at a time


class GroupSync:
    """Translates the offsets of the groups whose whole name matches `pattern`, in the partitions of this process.

    Guarantee: a group that starts on the new cluster gets every record after its offset on the old one. It never sets
    back an offset there, and commits none for a group with live members: Kafka refuses that. Groups with members in
    the ensemble are left to a cutover, because their members may read either cluster.

    Each round fetches the offsets on both clusters. It writes those that the new cluster lacks, and commits its own
    ones again before they expire. An offset that a consumer or an operator committed there is overwritten only by a
    later one that the group has reached on the old cluster since the last round.
    """

    def __init__(
        self,
        clusters: MirrorClusters,
        copies: Mapping[TopicPartition, PartitionCopy],
        stopped: Container[str],
        pattern: str,
    ) -> None:
        self._clusters = clusters
        self._copies = copies
        self._stopped = stopped
        self._pattern = re.compile(pattern)
        self._stores: dict[str, tuple[GroupOffsets, GroupOffsets]] = {}  # on the old and on the new cluster
        self._reached: dict[str, dict[TopicPartition, int]] = {}  # translated offsets of the last round
        self._renew_at: dict[str, float] = {}
        self._unknown: set[tuple[str, TopicPartition]] = set()  # groups and partitions that were logged

    async def run(self) -> None:
        if self._clusters.old.api_version(ListGroupsRequest) is None:
            raise ConfigError("the old cluster cannot list its groups (before 0.9), so it has none to sync")
        while True:
            with contextlib.suppress(AllocatorError):
                groups = filter(self._pattern.fullmatch, await list_groups(self._clusters.old))
                places = asyncio.Semaphore(AT_ONCE)
                await asyncio.gather(*(self._try_sync(group, places) for group in groups))
            await asyncio.sleep(SYNC_S)

    async def _try_sync(self, group: str, places: asyncio.Semaphore) -> None:
        async with places:
            try:
                await self._sync(group)
            except AllocatorError as error:
                log.info("the offsets of group %r are not synced now: %s", group, error)

    async def _sync(self, group: str) -> None:
        clusters = self._clusters
        if group not in self._stores:
            self._stores[group] = GroupOffsets(clusters.old, group), GroupOffsets(clusters.new, group)
        old, new = self._stores[group]
        copies = {each: copy for each, copy in self._copies.items() if each.topic not in self._stopped}
        committed = await old.fetch(copies)
        if any(Target.of(offset) for offset in committed.values()):
            return  # the group of a mirror, whose offsets say what it has copied
        former, targets = old.of_former_topics(committed), {}
        for each, offset in committed.items():
            copy, known = copies[each], clusters.map.positions(each)
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
        if not targets:
            return
        there, reached = await new.fetch(targets), self._reached.setdefault(group, {})
        wanted = {
            each: at
            for each, at in targets.items()
            if each not in there or (there[each].offset < at and reached.get(each) != at)
        }
        texts = {each: stamped("synced", clusters.new.topic_id(each.topic)) for each in targets}
        now = boot_clock()
        is_due = now >= self._renew_at.get(group, 0.0)
        if is_due:  # without members, Kafka counts the age of an offset from its last commit
            wanted = {each: one.offset for each, one in there.items() if one.metadata == texts[each]} | wanted
        ensembles = [] if clusters.groups is None else [clusters.groups]
        if not wanted or not await live_members(clusters.new, ensembles, group, clusters.root):
            await new.commit({each: OffsetAndMetadata(at, texts[each], -1) for each, at in wanted.items()})
            reached.update(targets)
        if is_due:
            self._renew_at[group] = now + IdleOffsets.period_s(await new.retention_s())


async def list_groups(client: KafkaClient) -> list[str]:
    """Returns the groups that the cluster coordinates. Raises BrokerError."""
    found: set[str] = set()
    for broker in client.brokers:
        response = await client.send(broker.node_id, ListGroupsRequest(states_filter=[], types_filter=[]))
        if response.error_code:
            raise for_code(response.error_code, f"the groups of broker {broker.node_id}")
        found.update(group.group_id for group in response.groups)
    return sorted(found)
