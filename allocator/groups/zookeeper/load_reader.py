"""The loads that members have reported, as the leader and observers read them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import partial

from allocator.groups.zookeeper.checked import InvalidZnode
from allocator.groups.zookeeper.load_report import LoadReport
from allocator.groups.zookeeper.store import Store
from allocator.types import TopicPartition
from allocator.zookeeper.client import Watch, Watched

__all__ = ["LoadReader", "loads_of"]

log = logging.getLogger(__name__)


class LoadReader:
    """Reads the reports of the members; those only that have changed since the last time.

    A partition keeps the load that was reported last until its new owner reports one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reports: dict[str, Watched[LoadReport | None]] = {}
        self._known: dict[TopicPartition, float] = {}

    async def read(
        self, members: Collection[str], source: str, counts: Mapping[str, int]
    ) -> Mapping[TopicPartition, float]:
        """The loads of the partitions that exist (`counts`), as far as members have reported them in this unit."""
        self._reports = {
            member: self._reports.get(member) or Watched(partial(self._report, member), _nothing) for member in members
        }
        found = await asyncio.gather(*(watched.get() for watched in self._reports.values()))
        known = {**self._known, **loads_of(dict(zip(self._reports, found)), source)}
        self._known = {each: load for each, load in known.items() if each.partition < counts.get(each.topic, 0)}
        return self._known

    async def _report(self, member: str, watch: Watch) -> LoadReport | None:
        try:
            return await self._store.load_report(member, watch)
        except InvalidZnode as error:
            log.error("%s: the load of this member's partitions is unknown: %s", self._store.paths.group, error)
            return None


def loads_of(reports: Mapping[str, LoadReport | None], source: str) -> dict[TopicPartition, float]:
    """The loads in these reports. Where two members report a partition, one of which had it before, the greater one."""
    found: dict[TopicPartition, float] = {}
    for report in reports.values():
        if report is not None and report.source == source:
            for partition, load in report.loads.items():
                found[partition] = max(load, found.get(partition, 0.0))
    return found


def _nothing() -> None:
    """The next look reads what changed."""
