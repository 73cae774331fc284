"""Reading metadata when leaders are unknown or have refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from allocator.errors import AllocatorError, Closed

if TYPE_CHECKING:
    from allocator.wire.kafka import KafkaClient

__all__ = ["Lookups"]

log = logging.getLogger(__name__)

# longer: a topic or leader that comes back is found later; shorter: more requests meanwhile
BACKOFF_MAX_S: Final = 1.0


class Lookups:
    """Which topics' leaders are to be looked up, and when.

    Guarantee: one request at a time, and a pause after it that doubles as long as something stays unknown.
    """

    def __init__(self, client: KafkaClient, backoff_s: float, changed: Callable[[], None]) -> None:
        self._client = client
        self._backoff_s = backoff_s
        self._changed = changed
        # topics with a partition whose leader is unknown; set by the owner
        self.lost: set[str] = set()
        # topics of which some broker said that it does not lead
        self.doubted: set[str] = set()
        self._under_way = False
        self._failures = 0
        self._not_before = 0.0

    def due(self, now: float, times: list[float]) -> set[str]:
        """The topics to `run` now; adds to `times` when to ask again."""
        topics = self.lost | self.doubted
        if not topics or self._under_way:
            return set()
        if now < self._not_before:
            times.append(self._not_before)
            return set()
        self._under_way = True
        self.doubted = set()
        return topics

    async def run(self, topics: set[str]) -> None:
        """Look them up, then call `changed`."""
        try:
            await self._client.refresh(topics)
        except Closed:
            return
        except AllocatorError as error:
            log.info("metadata of %s: %s", ", ".join(sorted(topics)), error)
        finally:
            known = not self.lost and all(self._client.partitions(topic) for topic in topics)
            self._failures = 0 if known else min(10, self._failures + 1)
            self._not_before = time.monotonic() + min(BACKOFF_MAX_S, self._backoff_s * (1 << self._failures))
            self._under_way = False
            self._changed()
