"""Topics of an old cluster copied to a new one as they grow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from allocator.core.aio import wait_for_event, wall_ms
from allocator.core.client import KafkaClient
from allocator.core.offsets import GroupOffsets
from allocator.core.zookeeper import NoChroot, ZooKeeperClient
from allocator.errors import AllocatorError, ConfigError
from allocator.migrate.copying import Copying, MirrorProgress, Throttle, ends_unless
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offset_map import OffsetMap, map_topic
from allocator.migrate.report import MirrorReport
from allocator.migrate.takeover import MirrorClusters
from allocator.migrate.topics import TopicIds, refuse_same_cluster
from allocator.types import TopicPartition

log = logging.getLogger(__name__)

CONNECT_S: Final = 30.0  # for a cluster; more: waits for a cluster that is starting; less: reports it sooner
RESTART_S: Final = 1.0  # pause after a failure that may pass


class Mirror(MirrorReport):
    """One process of a mirror. Any number of processes with the same settings share the partitions.

    Guarantee: the mirror writes every record of an old partition to the new partition of the same number, in the same
    order, with key, value, timestamp and headers, at least once. After a crash it writes each record exactly once if
    no other producer writes there. The old formats have no headers (before 0.11) and no timestamp (-1, before 0.10).
    Of transactions, the mirror writes the committed records, without the transaction.

    When a process takes a partition over, it compares the records of the new cluster behind the committed position with
    the old cluster's, and does not send again those that are there (`already_present`; `duplicated` counts records that
    differ). Each step writes records, then the offset map, then the commit, so a process may be killed between any two.

    `run` ends after `stop`, or, with `until_caught_up`, when the records that the old topics had at its start are
    mirrored.

    `lost_at_source` counts offsets that the old cluster deleted before they were mirrored, and `losses` names them. A
    topic that was deleted and created again, or truncated, stops and is in `stopped`, until `settings.recreated` says
    how to go on; the other topics go on. Both survive restarts: positions are offsets of the group, ids are in the
    offset map.
    """

    def __init__(self, settings: MirrorSettings) -> None:
        settings.check()
        super().__init__(settings)
        self._stopping: asyncio.Event | None = None
        self._connected = False  # reached its servers at least once
        self._throttle = Throttle(settings.throttle_bytes_s)
        self._copying: Copying | None = None

    async def run(self, *, until_caught_up: bool = False) -> None:
        """Mirrors. Once it has reached its servers, it logs failures that may pass and retries without end.

        Raises failures to reach them, so that a mistyped address ends it, and failures that an operator has to mend:
        ConfigError, TopicsDiffer, NotEmpty and others. After all other work it raises TopicsStopped for stopped topics,
        and RecordsGone if the old cluster deleted records before they were mirrored, unless `settings.accept_loss`.
        """
        stopping = self._stopping = asyncio.Event()
        self.last_progress_ms = wall_ms()
        goal: dict[TopicPartition, int] | None = None
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
        """`run` finishes the batches under way, commits and returns."""
        if self._stopping is not None:
            self._stopping.set()

    def progress(self) -> list[MirrorProgress]:
        """The progress of the partitions of this process; after `run`, of those that it had last."""
        return [] if self._copying is None else self._copying.progress()

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
        offset_map = OffsetMap(new, map_topic(settings.group))
        clusters = MirrorClusters(old, new, offsets, offset_map, TopicIds(old, ensemble), TopicIds(new), ensemble)
        self.stops.clear()
        self._copying = Copying(self, clusters, self._throttle, stopping)
        await self._copying.open()


async def _reach(hosts: str, create: bool) -> None:
    """Raises if the ensemble is unreachable, or ConfigError if it lacks the chroot; `create` creates it.

    Processes with a mistyped chroot would form a second mirror, and mirror every record twice.
    """
    ensemble = ZooKeeperClient(hosts)
    try:
        await ensemble.connect(CONNECT_S, make_chroot=create)
    except NoChroot as error:
        raise ConfigError(f"{error} Correct --zookeeper, or start once with --create") from error
    finally:
        await ensemble.close()
