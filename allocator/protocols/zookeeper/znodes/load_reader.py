"""Reads the loads that members report in ZooKeeper. The leader and the observers of a group use it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial

from allocator.assignors import LoadReport
from allocator.protocols.zookeeper.client.client import Watch, Watched
from allocator.protocols.zookeeper.znodes.store import Store
from allocator.types import TopicPartition


class LoadReader:
    """Reads the members' load reports. A read fetches only the reports that have changed since the last read.

    A partition keeps its last reported load until its new owner reports one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reports: dict[str, Watched[LoadReport | None]] = {}
        self._known: dict[TopicPartition, float] = {}

    async def read(
        self, members: Collection[str], source: str, counts: Mapping[str, int]
    ) -> Mapping[TopicPartition, float]:
        """Returns the reported loads of existing partitions (`counts`). Reports with another `source` are ignored."""
        self._reports = {
            # nothing to do when a report changes: the next call reads it again
            member: self._reports.get(member) or Watched(partial(self._report, member), lambda: None)
            for member in members
        }
        found = await asyncio.gather(*(watched.get() for watched in self._reports.values()))
        known = {**self._known, **loads_of(dict(zip(self._reports, found)), source)}
        self._known = {each: load for each, load in known.items() if each.partition < counts.get(each.topic, 0)}
        return self._known

    async def _report(self, member: str, watch: Watch) -> LoadReport | None:
        effect = "the load of this member's partitions is unknown"
        return await self._store.readable(effect, self._store.load_report, member, watch)


def loads_of(reports: Mapping[str, LoadReport | None], source: str) -> dict[TopicPartition, float]:
    """Merges reports with this `source`. If two members report one partition after a move, the larger load counts."""
    found: dict[TopicPartition, float] = {}
    for report in reports.values():
        if report is not None and report.source == source:
            for partition, load in report.loads.items():
                found[partition] = max(load, found.get(partition, 0.0))
    return found
