"""Loads what deserializers need, such as schemas, before the consumer calls them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from allocator.core.errors import CorruptRecordError
from allocator.core.fetch.batch import Batch
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.types import Deserializer, LoadingDeserializer


class Loading:
    """Loads for one batch at a time, in a task, so that the timeout or cancellation of a reader does not interrupt it.

    `deserializers` are those for keys and for values. `start_task` runs a coroutine. `gate` raises an error that the
    reader has to receive first.
    """

    def __init__(
        self,
        deserializers: tuple[Deserializer, Deserializer],
        fetcher: Fetcher,
        start_task: Callable[[Coroutine[Any, Any, Any], str], None],
        gate: Callable[[], object],
    ) -> None:
        self._fetcher = fetcher
        self._start_task = start_task
        self._gate = gate
        self._loaders = [
            (part, each) for part, each in zip(("key", "value"), deserializers) if isinstance(each, LoadingDeserializer)
        ]
        self._batch: Batch | None = None
        """The batch that `load` was last called for."""
        self.over = True
        """Whether everything is loaded for the current batch."""
        self._running = False
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Begins with another batch."""
        self.over = not self._loaders

    def load(self, batch: Batch) -> bool:
        """Returns whether everything is loaded for the current batch, of which `batch` is the rest. Otherwise starts to
        load it, and wakes the fetcher at the end. Raises the error of a deserializer."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._batch = batch
        if self._running:
            self._gate()
            return False
        missing = []
        with contextlib.suppress(CorruptRecordError):  # raised again when the reader reaches the record
            for part, loader in self._loaders:
                ids = loader.missing(getattr(record, part) for record in batch.raw())
                if ids:
                    missing.append((loader, ids))
        if missing:
            self._running = True
            self._start_task(self._load(batch, missing), "loading of deserializers")
        self.over = not missing
        return self.over

    async def _load(self, batch: Batch, missing: list[tuple[LoadingDeserializer, Collection[Any]]]) -> None:
        try:
            for loader, ids in missing:
                await loader.load(ids)
            if self._batch is batch:
                # without another check of missing ids, which may never succeed for an id that cannot be loaded
                self.over = True
        except Exception as error:  # noqa: BLE001 - the reader raises it
            self._error = error
        finally:
            self._running = False
            self._fetcher.wake()
