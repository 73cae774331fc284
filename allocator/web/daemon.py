"""The web server of a daemon: health checks, metrics, and the page of its group while a browser shows it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Optional

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from allocator import Consumer
from allocator.core.aio import BackgroundTasks, TaskGroup, wait_for_event
from allocator.daemon import Daemon
from allocator.operate import Clusters
from allocator.operate.doctor import Finding, Severity
from allocator.types import TopicPartition
from allocator.viewer import Viewer
from allocator.web.actions import GroupWork, actions
from allocator.web.dead_letters import LetterDesk
from allocator.web.guard import Guard
from allocator.web.metrics import ConsumerCollector
from allocator.web.server import Health, Site, serve
from allocator.web.watch import Watcher

log = logging.getLogger(__name__)

# between the close of the last page and the end of the watch. Higher: history is kept longer; lower: fewer reads
LINGER_S = 60.0
AGAIN_S = 5.0  # before a failed watcher restarts. Higher: the page is stale longer; lower: more log lines
LOSSES_S = 1.0  # between two reads of the lost records. Higher: the page shows them later; lower: more work
READ_WITHIN_S = 30.0  # longest time without a fetch response for an owned partition. Higher: a later report


class DaemonHealth:
    """The health of one daemon.

    live: the event loop runs, and no abandoned handler still runs. A lost session or an unresponsive ZooKeeper does
    not count, because a restart would not help: the member is already rejoining.

    ready: the member has a valid lease and reads its partitions, or the assignment gives it none. A rebalance does not
    change this, even if it moves all partitions.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        stuck: Callable[[], frozenset[TopicPartition]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumers = consumers
        self._stuck = stuck
        self._clock = clock
        self._unread: dict[TopicPartition, float] = {}
        self._has_read = False
        """Whether the member has read a partition since it last joined."""

    def live(self) -> list[str]:
        return [
            f"{topic}:{number}: its handler was abandoned and still runs" for topic, number in sorted(self._stuck())
        ]

    def ready(self) -> list[str]:
        if not self._consumers:
            return ["it has not started yet, or its group is paused"]
        consumer = self._consumers[-1]
        if not consumer.may_act():
            self._has_read = False
            return [
                "its lease is not valid: it is joining, its group is paused, or ZooKeeper (or Kafka's coordinator) "
                "does not respond"
            ]
        owned = consumer.assignment()
        if consumer.generation == 0 and not owned:
            return ["it has joined, and has no assignment yet"]
        now = self._clock()
        # a paused partition counts as read: its records wait for the handler
        unread = owned & consumer.unreachable()
        self._unread = {partition: self._unread.get(partition, now) for partition in unread}
        late = sorted(p for p, since in self._unread.items() if now - since > READ_WITHIN_S)
        if late:
            first = f"{late[0].topic}:{late[0].partition}"
            return [f"{len(late)} of its partitions have not been read for {READ_WITHIN_S:g} s, such as {first}"]
        if not self._has_read and owned and len(unread) == len(owned):
            return ["none of its partitions has been read yet"]
        self._has_read |= bool(owned - unread)
        return []


class Demand:
    """Runs a watcher while a page is open, and for LINGER_S afterwards.

    Daemons without an open page put no load on ZooKeeper, even if a hundred of them rebalance.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._viewers = 0
        self._wanted = asyncio.Event()
        self._unwatched = asyncio.Event()

    @contextlib.asynccontextmanager
    async def viewing(self) -> AsyncIterator[None]:
        """Counts one open page during the block."""
        self._viewers += 1
        self._unwatched.clear()
        self._wanted.set()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._unwatched.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._wanted.wait()
            try:
                await TaskGroup().run(self._until_unwatched(), watcher=self._watcher.run())
            except Exception as error:
                # the page reports the failure; the daemon keeps handling records
                log.exception("the page shows no groups; the watch restarts in %g s", AGAIN_S)
                self._watcher.fail(error)
                await asyncio.sleep(AGAIN_S)
                continue
            self._watcher.forget()

    async def _until_unwatched(self) -> None:
        while True:
            await self._unwatched.wait()
            self._wanted.clear()
            if not await wait_for_event(self._wanted, LINGER_S) and not self._viewers:
                return


def losses(consumer: Consumer) -> list[Finding]:
    """Returns a finding for each loss of records in this process, newest first."""
    return [
        Finding(
            "records-lost",
            Severity.CRITICAL,
            str(loss),
            (f"{loss.partition.topic}:{loss.partition.partition}",),
            "This process has not handled these records, and continues without them.",
            "Raise the topic's retention if the group may fall behind again; read the lost records from a copy.",
        )
        for loss in reversed(consumer.losses)
    ]


async def _show_losses(consumers: Sequence[Consumer], watcher: Watcher) -> None:
    while True:
        if consumers and consumers[-1].group is not None:
            watcher.note(consumers[-1].group, losses(consumers[-1]))
        await asyncio.sleep(LOSSES_S)


def beside(
    hosts: Collection[str],
    token: Optional[str],
    host: str,
    port: int,
    group: str,
    access: Optional[Clusters] = None,
    viewer: Optional[Viewer] = None,
) -> Callable[[Any, Sequence[Consumer], Daemon], contextlib.AbstractAsyncContextManager[None]]:
    """Returns the web server of a daemon: metrics, health, and the page of its group.

    `access` has the group's clusters; without it the server has no page. The page shows dead letters, but not their
    records, by the masks of `viewer`; without it, none. Raises ConfigError. Entering the context raises PortTaken.
    """
    guard = Guard.make(hosts, token)

    @contextlib.asynccontextmanager
    async def running(_: Any, consumers: Sequence[Consumer], daemon: Daemon) -> AsyncIterator[None]:
        registry = CollectorRegistry()
        registry.register(ConsumerCollector(consumers))
        for collector in (ProcessCollector, PlatformCollector):
            collector(registry=registry)
        health = DaemonHealth(consumers, lambda: daemon.stuck)
        site = Site(guard, registry, Health(health.live, health.ready))
        tasks = BackgroundTasks(lambda error: log.error("the watch of the groups has ended", exc_info=error))
        if access is not None:
            watcher = Watcher(access, only=group, kafka_groups=[group] if access.zookeeper is None else ())
            demand = Demand(watcher)
            allowed = actions(GroupWork(access))
            letters = None if viewer is None else LetterDesk.of(access, viewer, contents=False)
            site = replace(site, watcher=watcher, viewing=demand.viewing, actions=allowed, letters=letters)
            tasks.start(demand.run(), "watching")
            tasks.start(_show_losses(consumers, watcher), "losses")
        try:
            async with serve(site, host, port) as bound:
                log.info("http://%s:%d/ has metrics, health and the status page", host, bound)
                yield
        finally:
            await tasks.close()

    return running
