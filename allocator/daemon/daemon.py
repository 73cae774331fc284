"""`allocator run`: a consumer, a handler, and a processor between them."""

from __future__ import annotations

from collections.abc import Callable

from allocator.core.subscription import RebalanceListener
from allocator.daemon.notify import Notifier
from allocator.handlers.failures import DeadLetters
from allocator.handlers.handlers import Handler
from allocator.handlers.processor import Processor, ProcessSettings, RecordSource
from allocator.handlers.retry_topics import RetryTopics


class Daemon(Processor):
    """A `Processor` with its own consumer, which reports its state to systemd.

    `source` creates the consumer from a listener; the consumer must not commit by itself. The constructor does no I/O.
    """

    def __init__(
        self,
        source: Callable[[RebalanceListener], RecordSource],
        handler: Handler,
        settings: ProcessSettings,
        *,
        dead_letters: DeadLetters | None = None,
        retry_topics: RetryTopics | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        super().__init__(handler, settings, dead_letters=dead_letters, retry_topics=retry_topics)
        self._make_source = source
        self._notifier = notifier or Notifier({})

    async def run(self) -> None:  # type: ignore[override]
        """Like `Processor.run`; the daemon starts and closes the consumer."""
        await super().run(self._make_source(self))

    def _started(self) -> None:
        self._notifier.tell("READY=1")

    def _partitions_changed(self) -> None:
        self._notifier.tell(f"STATUS={len(self._source.assignment())} partitions")
