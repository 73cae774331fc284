"""When a member says that it lives, and what follows from silence on either side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from allocator.errors import BrokerError
from allocator.tasks import wait_for_event

__all__ = ["Heart", "Heartbeat"]


class Heartbeat:
    """The times of heartbeats, and of the user's calls. Pure; every method may be given the time.

    `session_timeout_s`: how long the coordinator keeps a silent member. `interval_s`: between two heartbeats.
    `max_poll_interval_s`: how long the user may be silent, None for ever.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        session_timeout_s: float = 10.0,
        interval_s: float = 3.0,
        max_poll_interval_s: float | None = None,
    ) -> None:
        self.clock = clock
        self.session_timeout_s = session_timeout_s
        self.interval_s = interval_s
        self.max_poll_interval_s = max_poll_interval_s
        self.last_sent = float("-inf")
        self.last_received = float("-inf")
        self._last_polled = clock()
        self._due = float("-inf")

    def reset_session_timeout(self) -> None:
        """Caller: a join, a newly found coordinator. Silence counts from now, and the schedule begins anew."""
        self.last_received = self.clock()
        self._due = self.last_received + self.interval_s

    def sent_heartbeat(self) -> float:
        """Returns the time, from which the answer's proof counts."""
        self.last_sent = self.clock()
        return self.last_sent

    def received_heartbeat(self) -> None:
        """The last one sent was acknowledged; the next is due an interval after that was sent."""
        self.last_received = self.clock()
        self._due = max(self.last_received, self.last_sent + self.interval_s)

    def failed_heartbeat(self, pause_s: float) -> None:
        self._due = self.clock() + pause_s

    def polled(self) -> None:
        """The user gave a sign of life."""
        self._last_polled = self.clock()

    @property
    def ttl(self) -> float:
        """Seconds until the next one is due, 0 when it is."""
        return max(0.0, self._due - self.clock())

    @property
    def should_heartbeat(self) -> bool:
        return self.ttl == 0.0

    @property
    def session_expired(self) -> bool:
        """No acknowledgement for a whole session timeout."""
        return self.clock() - self.last_received > self.session_timeout_s

    @property
    def idle_ttl(self) -> float | None:
        """Seconds until the user has been silent for too long; None if there is no such limit."""
        if self.max_poll_interval_s is None:
            return None
        return max(0.0, self._last_polled + self.max_poll_interval_s - self.clock())

    @property
    def idle_too_long(self) -> bool:
        return self.idle_ttl == 0.0


class Heart:
    """Sends heartbeats for as long as they are wanted.

    `wanted` says whether there is a member to keep alive; `beat` sends one and awaits the answer (a `BrokerError` of
    its means that the coordinator did not acknowledge us); `failed` is told of that error and says for how many
    seconds to pause; `idle` is called when the user was silent for too long and `silent` when the coordinator was.
    Call `poke` whenever one of them would answer otherwise.
    """

    def __init__(
        self,
        timing: Heartbeat,
        *,
        wanted: Callable[[], bool],
        beat: Callable[[], Awaitable[None]],
        failed: Callable[[BrokerError], float],
        idle: Callable[[], None],
        silent: Callable[[], None],
    ) -> None:
        self._timing = timing
        self._wanted = wanted
        self._beat = beat
        self._failed = failed
        self._idle = idle
        self._silent = silent
        self._changed: asyncio.Event | None = None

    def poke(self) -> None:
        """Look again at what is wanted and due."""
        if self._changed is not None:
            self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        self._changed = asyncio.Event()
        timing = self._timing
        while True:
            self._changed.clear()
            if not self._wanted():
                await self._changed.wait()
                continue
            if timing.idle_too_long:
                self._idle()
                continue
            if not timing.should_heartbeat:
                ttl, idle_ttl = timing.ttl, timing.idle_ttl
                # woken in time for the idle limit, which may come before the next heartbeat
                await wait_for_event(self._changed, ttl if idle_ttl is None else min(ttl, idle_ttl))
                continue
            if timing.session_expired:
                self._silent()
            timing.sent_heartbeat()
            try:
                await self._beat()
            except BrokerError as error:
                timing.failed_heartbeat(self._failed(error))
            else:
                timing.received_heartbeat()
