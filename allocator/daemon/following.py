"""A daemon that follows the cluster setting of its group, or pauses (`switching` describes the znode)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from allocator.core.aio import TaskGroup, first_of
from allocator.daemon.daemon import Daemon
from allocator.daemon.notify import Notifier
from allocator.errors import CommitFailed, HandlerCutOff
from allocator.operate import ChoiceWatcher, ClusterChoice
from allocator.types import TopicPartition

log = logging.getLogger(__name__)


class FollowingDaemon:
    """Runs one daemon after another, each on the cluster that the group should read; none while the group is frozen.

    `make` creates the daemon for a setting that is not frozen. The constructor does no I/O.

    Guarantee: a daemon has drained, committed and left the group before the next one begins. Records after its last
    commit are read again, if offsets were copied before that commit.
    """

    def __init__(
        self,
        watcher: ChoiceWatcher,
        make: Callable[[ClusterChoice], Daemon],
        *,
        connect_timeout_s: float | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._watcher = watcher
        self._make = make
        self._connect_timeout_s = connect_timeout_s
        self._notifier = notifier or Notifier({})
        self._daemon: Daemon | None = None
        self._stopping = False
        self._stop: asyncio.Event | None = None

    @property
    def stuck(self) -> frozenset[TopicPartition]:
        """Like `Daemon.stuck`."""
        return frozenset() if self._daemon is None else self._daemon.stuck

    def stop(self) -> None:
        """Like `Daemon.stop`."""
        self._stopping = True
        if self._stop is not None:
            self._stop.set()
        if self._daemon is not None:
            self._daemon.stop()

    async def run(self) -> None:
        """Like `Daemon.run`. Also raises ZooKeeperUnavailable, and ConfigError for a znode with invalid content."""
        self._stop = asyncio.Event()
        if self._stopping:
            return
        started, _ = await first_of(self._watcher.start(self._connect_timeout_s), self._stop.wait())
        if not started:
            return
        try:
            while not self._stopping:
                self._watcher.changed.clear()
                choice = self._watcher.current
                if not choice.frozen:
                    await self._run(choice)
                    continue
                log.info("resting: the group is paused")
                self._notifier.tell("READY=1", "STATUS=the group is paused")
                await first_of(self._stop.wait(), self._watcher.changed.wait())
        finally:
            await self._watcher.close()

    async def _run(self, choice: ClusterChoice) -> None:
        """Runs until the setting changes or `stop` is called. Raises the daemon's error."""
        self._daemon = daemon = self._make(choice)
        switching = False

        async def stop_at_change() -> None:
            nonlocal switching
            while self._watcher.current == choice:
                self._watcher.changed.clear()
                await self._watcher.changed.wait()
            if not self._stopping:
                switching = True
                log.info("the group is told %s: draining", self._watcher.current)
                daemon.stop()

        try:
            await TaskGroup().run(daemon.run(), switch=stop_at_change())
        except (CommitFailed, HandlerCutOff) as error:
            # the next daemon must not begin while a call runs
            if not switching or (isinstance(error, HandlerCutOff) and error.running):
                raise
            log.warning("what was handled and not committed comes again: %s", error)
