"""`allocator run`: a consumer, a handler, and a processor between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.core.subscription import RebalanceListener
from allocator.daemon.notify import Notifier
from allocator.handlers import Processor, RecordSource


class Daemon(Processor):
    """A `Processor` with its own consumer, which reports its state to systemd.

    `source` creates the consumer from a listener; the consumer must not commit by itself. `parts` and `more` are the
    arguments of `Processor`. The constructor does no I/O.
    """

    def __init__(
        self,
        source: Callable[[RebalanceListener], RecordSource],
        *parts: Any,
        notifier: Notifier | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*parts, **more)
        self._make_source = source
        self._notifier = notifier or Notifier({})

    async def run(self) -> None:  # type: ignore[override]
        """Like `Processor.run`; the daemon starts and closes the consumer."""
        await super().run(self._make_source(self))

    def _started(self) -> None:
        self._notifier.tell("READY=1")

    def _partitions_changed(self) -> None:
        self._notifier.tell(f"STATUS={len(self._source.assignment())} partitions")
