"""Requests the metadata of topics whose leaders are unknown or have refused a fetch."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from allocator.core.aio.backoff import Backoff
from allocator.core.errors import AllocatorError, Closed
from allocator.core.fetch.repeats import RepeatedFailures

if TYPE_CHECKING:
    from allocator.core.client.client import KafkaClient

log = logging.getLogger(__name__)

# Longest pause between metadata requests. Higher: a topic or leader that comes back is found later; lower: more
# requests
BACKOFF_MAX_S: Final = 1.0


class Lookups:
    """Reads metadata to find leaders that are unknown or have refused a fetch.

    Guarantee: one request at a time, followed by a pause that doubles while a leader or topic stays unknown.
    """

    def __init__(self, client: KafkaClient, changed: Callable[[], None]) -> None:
        self._client = client
        self._failed_lines = RepeatedFailures(log)
        self._backoff = Backoff(client.retry_backoff_s, BACKOFF_MAX_S)
        self._changed = changed
        self._leaderless: set[str] = set()
        # topics with a partition that another broker leads, according to a response
        self.doubted: set[str] = set()
        self._under_way = False
        self._not_before = 0.0

    def due(self, leaderless: set[str], now: float) -> tuple[set[str], float]:
        """Returns the topics to `run` now, and when to call this again. `leaderless`: topics without a leader."""
        self._leaderless = leaderless
        topics = leaderless | self.doubted
        if not topics or self._under_way:
            return set(), math.inf
        if now < self._not_before:
            return set(), self._not_before
        self._under_way = True
        self.doubted = set()
        return topics, math.inf

    async def run(self, topics: set[str]) -> None:
        """Requests the metadata of these topics, then calls `changed`."""
        try:
            await self._client.refresh(topics)
        except Closed:
            return
        except AllocatorError as error:
            names = ", ".join(sorted(topics))
            self._failed_lines.note((names, type(error)), "metadata of %s: %s", names, error)
        finally:
            if not self._leaderless and all(self._client.partitions(topic) for topic in topics):
                self._backoff.reset()
            self._not_before = time.monotonic() + self._backoff.next()
            self._under_way = False
            self._changed()
