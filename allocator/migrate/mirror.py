"""Copies topics of an old cluster to a new one as they grow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final, Optional

from allocator.core.aio import wait_for_event, wall_ms
from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.errors import AllocatorError, ConfigError
from allocator.migrate.copying import Copying, Throttle, ends_unless
from allocator.migrate.lag import Lag, MirrorProgress
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap, map_topic
from allocator.migrate.report import MirrorReport
from allocator.migrate.takeover import MirrorClusters
from allocator.migrate.topics import TopicIds, refuse_same_cluster
from allocator.protocols.zookeeper import NoChroot, ZooKeeperClient
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

CONNECT_S: Final = 30.0  # for a cluster. Higher: waits for a cluster that is starting; lower: reports it sooner.
RESTART_S: Final = 1.0  # pause after a retriable failure


class Mirror(MirrorReport):
    """One process of a mirror. Any number of processes with the same settings share the partitions.

    Guarantee: the mirror writes every record of an old partition to the new partition of the same number at least once,
    in the same order, with key, value, timestamp and headers. After a crash it writes each record exactly once if no
    other producer writes there. The old formats have no headers (before 0.11) and no timestamp (-1, before 0.10). The
    mirror copies the committed records of transactions, but not the transactions.

    A process that takes over a partition compares the new cluster's records after the committed position with the old
    cluster's records. It does not send matching records again (`already_present`); `duplicated` counts those that
    differ. Each step writes records, then the offset map, then the commit, so a process may be killed at any point.

    `run` ends after `stop`. With `until_caught_up`, it ends when it has mirrored the records that the old topics had at
    its start.

    `lost_at_source` counts offsets that the old cluster deleted before they were mirrored, and `losses` names them. If
    a topic was deleted and created again, or truncated, the mirror stops it, names it in `stopped` and continues with
    the others, until `settings.recreated` says how to continue. Both survive restarts: positions are offsets of the
    group, and ids are in the offset map.
    """

    def __init__(self, settings: MirrorSettings) -> None:
        settings.check()
        super().__init__(settings)
        self._stopping: asyncio.Event | None = None
        self._connected = False  # True once it has reached its servers
        self._throttle = Throttle(settings.throttle_bytes_s)
        self._copying: Copying | None = None

    async def run(self, *, until_caught_up: bool = False) -> None:
        """Mirrors. Once it has reached its servers, it logs retriable failures and retries forever.

        Raises failures to reach the servers, so that a mistyped address ends it. Raises failures that an operator has
        to correct, such as ConfigError, TopicsDiffer and NotEmpty. After all other work it raises TopicsStopped for
        stopped topics, and RecordsGone if the old cluster deleted unmirrored records, unless `settings.accept_loss`.
        """
        stopping = self._stopping = asyncio.Event()
        self.last_progress_ms = wall_ms()
        goal: dict[TopicPartition, Optional[int]] | None = None
        while not stopping.is_set():
            try:
                async with contextlib.AsyncExitStack() as stack:
                    if not await ends_unless(stopping, self._open(stack, stopping)):
                        break
                    assert self._copying is not None
                    self.problem = None
                    if until_caught_up and goal is None:
                        goal = await self._copying.goal()
                    await self._copying.run(goal)
                    break
            except AllocatorError as error:
                if not error.retriable or not self._connected:
                    raise
                self.errors += 1
                self.problem = str(error)
                log.warning("%s: retrying in %g s: %s", self.settings.group, RESTART_S, error)
                await wait_for_event(stopping, RESTART_S)
        self.check()

    def stop(self) -> None:
        """Makes `run` finish the batches under way, commit and return."""
        if self._stopping is not None:
            self._stopping.set()

    def progress(self) -> list[MirrorProgress]:
        """Returns the progress of this process's partitions; after `run`, of its last partitions."""
        return [] if self._copying is None else self._copying.progress()

    def lag(self, progress: Sequence[MirrorProgress]) -> Lag:
        """Returns the lag of the partitions in `progress` together."""
        return Lag(None, None, None) if self._copying is None or not progress else self._copying.lags.total(progress)

    async def _open(self, stack: contextlib.AsyncExitStack, stopping: asyncio.Event) -> None:
        settings = self.settings
        old = KafkaClient(settings.old, security=settings.old_security)
        new = KafkaClient(settings.new, security=settings.new_security)
        for client in (old, new):
            stack.push_async_callback(client.close)
            await client.connect(CONNECT_S)
        if settings.membership == "zookeeper" and not self._connected:
            await _reach(settings.zookeeper or "", settings.create)
        self._connected = True
        await refuse_same_cluster(old, new)
        ensemble = None
        if settings.old_zookeeper is not None and old.broker_version < (2, 8):
            ensemble = ZooKeeperClient(settings.old_zookeeper)
            stack.push_async_callback(ensemble.close)
            await ensemble.connect(make_chroot=False)
        offsets = GroupOffsets(old, settings.group)
        stack.push_async_callback(offsets.close)
        offset_map = OffsetMap(old, new, map_topic(settings.group))
        back = None if settings.back_of is None else OffsetMap(new, old, map_topic(settings.back_of))
        groups = None
        if settings.zookeeper is not None and (back is not None or settings.sync_group_offsets is not None):
            groups = ZooKeeperClient(settings.zookeeper)
            stack.push_async_callback(groups.close)
            await groups.connect(CONNECT_S, make_chroot=False)
        ids = TopicIds(old, ensemble), TopicIds(new)
        clusters = MirrorClusters(old, new, offsets, offset_map, *ids, ensemble, back, groups, settings.root)
        self.stops.clear()
        self.left_out.clear()
        self._copying = Copying(self, clusters, self._throttle, stopping)
        await self._copying.open()


async def _reach(hosts: str, create: bool) -> None:
    """Connects to the ensemble. Raises ConfigError if it lacks the chroot, unless `create` creates the chroot.

    Processes with a mistyped chroot would form a second mirror, and mirror every record twice.
    """
    ensemble = ZooKeeperClient(hosts)
    try:
        await ensemble.connect(CONNECT_S, make_chroot=create)
    except NoChroot as error:
        raise ConfigError(f"{error} Correct --zookeeper, or start once with --create") from error
    finally:
        await ensemble.close()
