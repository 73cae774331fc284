"""Runs a handler on the cluster that its group should read, and follows changes of that choice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from allocator import Consumer, RebalanceListener
from allocator.core.aio import TaskGroup, first_of
from allocator.daemon.notify import Notifier
from allocator.errors import CommitFailed, HandlerCutOff
from allocator.handlers import Handler, Handling, Processor
from allocator.operate import ChoiceWatcher
from allocator.protocols.zookeeper import ClusterChoice
from allocator.types import TopicPartition

log = logging.getLogger(__name__)


class Daemon:
    """Runs processors one after the other, each on the cluster that the group should read, and none while it is paused.

    `make` creates the consumer for a choice that is not frozen. It must use the given listener and must not commit
    automatically. Without `watcher` the group has no cluster choice. `restart` is passed to `Consumer.close`. The
    constructor does no I/O. The daemon reports its state to systemd.

    Guarantee: a processor has drained and committed, and its member has left the group, before the next one starts. If
    offsets were copied to another cluster before that commit, the records in between are handled again.
    """

    def __init__(
        self,
        make: Callable[[ClusterChoice, RebalanceListener], Consumer],
        handler: Handler,
        handling: Handling,
        watcher: ChoiceWatcher | None = None,
        *,
        connect_timeout_s: float | None = None,
        notifier: Notifier | None = None,
        restart: bool = True,
    ) -> None:
        self._make = make
        self._handler = handler
        self._handling = handling
        self._watcher = watcher
        self._connect_timeout_s = connect_timeout_s
        self._notifier = notifier or Notifier({})
        self._restart = restart
        self._processor: Processor | None = None
        self._stopping = False
        self._stop: asyncio.Event | None = None

    @property
    def stuck(self) -> frozenset[TopicPartition]:
        """Partitions with a call that still runs although the daemon has stopped."""
        return frozenset() if self._processor is None else self._processor.stuck

    def stop(self) -> None:
        """Makes `run` drain, commit, leave and return. May be called at any time, on the loop."""
        self._stopping = True
        if self._stop is not None:
            self._stop.set()
        if self._processor is not None:
            self._processor.stop()

    async def run(self) -> None:
        """Runs until `stop` or an error. Raises the errors of `Processor.run` and of the watcher."""
        self._stop = asyncio.Event()
        if self._stopping:
            return
        if self._watcher is None:
            await self._process(ClusterChoice())
            return
        started, _ = await first_of(self._watcher.start(self._connect_timeout_s), self._stop.wait())
        if not started:
            return
        try:
            while not self._stopping:
                self._watcher.changed.clear()
                choice = self._watcher.current
                if not choice.frozen:
                    await self._process_until_change(choice, self._watcher)
                    continue
                log.info("waiting: the group is paused")
                self._notifier.notify("READY=1", "STATUS=the group is paused")
                await first_of(self._stop.wait(), self._watcher.changed.wait())
        finally:
            await self._watcher.close()

    def _process(self, choice: ClusterChoice) -> Coroutine[Any, Any, None]:
        """Creates a processor, which `stop` stops from now on. Returns a coroutine that runs it."""
        self._processor = Processor(self._handler, self._handling)
        return self._processor.run(
            self._make(choice, _Status(self._notifier)),
            started=lambda: self._notifier.notify("READY=1"),
            restart=self._restart,
        )

    async def _process_until_change(self, choice: ClusterChoice, watcher: ChoiceWatcher) -> None:
        """Runs a processor until the choice changes or `stop` is called. Raises the processor's error."""
        switching, processing = False, self._process(choice)

        async def stop_at_change() -> None:
            nonlocal switching
            while watcher.current == choice:
                watcher.changed.clear()
                await watcher.changed.wait()
            if not self._stopping and self._processor is not None:
                switching = True
                log.info("the cluster choice is now %s: draining", watcher.current)
                self._processor.stop()

        try:
            await TaskGroup().run(processing, switch=stop_at_change())
        except (CommitFailed, HandlerCutOff) as error:
            # the next processor must not start while a call runs
            if not switching or (isinstance(error, HandlerCutOff) and error.running):
                raise
            log.warning("records that are handled but not committed are handled again: %s", error)


class _Status(RebalanceListener):
    """Reports to systemd how many partitions the member owns."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._owned: frozenset[TopicPartition] = frozenset()

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._owned |= partitions
        self._notifier.notify(f"STATUS={len(self._owned)} partitions")

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._owned -= partitions
        self._notifier.notify(f"STATUS={len(self._owned)} partitions")
