"""Decides when a member of a Kafka group sends a heartbeat, and detects a user who polls too rarely."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from allocator.core.aio import wait_for_event
from allocator.core.settings import DEFAULT
from allocator.errors import BrokerError

# seconds between the first two heartbeats after a rebalance; the interval doubles with each heartbeat. Higher: the
# member notices the next rebalance later; lower: more requests after each rebalance
SOON_S = 0.05


class HeartbeatTimer:
    """Computes when the next heartbeat is due, and whether the user polls often enough. Does no I/O.

    `max_poll_interval_s` limits the seconds between two polls of the user. None means no limit.
    """

    def __init__(self, clock: Callable[[], float], max_poll_interval_s: float | None) -> None:
        self.clock = clock
        self.session_timeout_s: float = DEFAULT["session_timeout_s"]
        """Seconds after which the coordinator removes a silent member."""
        self.interval_s: float = DEFAULT["heartbeat_interval_s"]
        """Seconds between two heartbeats."""
        self.max_poll_interval_s = max_poll_interval_s or float("inf")
        self.last_sent = float("-inf")
        self.last_received = float("-inf")
        self._last_polled = clock()
        self._due = float("-inf")
        self._soon_s = float("inf")

    def reset_session_timeout(self) -> None:
        """Restarts the session timeout and the interval. Called after each JoinGroup and SyncGroup."""
        self.last_received = self.clock()
        self._due = self.last_received + self.interval_s

    def expect_rebalance(self) -> None:
        """Shortens the interval of the next heartbeats. Called after a rebalance.

        Rebalances often follow each other: members start and stop one after the other, and a cooperative member rejoins
        after it has released the moving partitions. With growing intervals, the member notices the next rebalance
        within about the time that has passed since the last one.
        """
        self._soon_s = min(SOON_S, self.interval_s)
        self._due = self.clock() + self._soon_s

    def sent_heartbeat(self) -> float:
        """Stores and returns the time of sending. A response proves that the session was alive at this time."""
        self.last_sent = self.clock()
        return self.last_sent

    def received_heartbeat(self) -> None:
        """Schedules the next heartbeat one interval after the acknowledged one was sent."""
        self.last_received = self.clock()
        self._soon_s = min(2 * self._soon_s, self.interval_s)
        self._due = max(self.last_received, self.last_sent + self._soon_s)

    def failed_heartbeat(self, pause_s: float) -> None:
        self._due = self.clock() + pause_s

    def polled(self) -> None:
        """Called when the user polls."""
        self._last_polled = self.clock()

    @property
    def ttl(self) -> float:
        """Seconds until the next heartbeat is due, at least 0."""
        return max(0.0, self._due - self.clock())

    @property
    def session_expired(self) -> bool:
        """Whether the last acknowledgement is older than the session timeout."""
        return self.clock() - self.last_received > self.session_timeout_s

    @property
    def idle_ttl(self) -> float:
        """Seconds that remain for the user to poll, at least 0."""
        return max(0.0, self._last_polled + self.max_poll_interval_s - self.clock())

    @property
    def idle_too_long(self) -> bool:
        return self.idle_ttl == 0.0


@dataclass(eq=False)
class HeartbeatLoop:
    """Sends the heartbeats of a member.

    `wanted` returns whether there is a member to keep alive. `send` sends one heartbeat and handles the response; it
    raises `BrokerError` if the coordinator did not acknowledge the member. `failed` handles that error and returns the
    seconds to pause. `idle` is called when the user has not polled for too long. Call `poke` when the result of
    `wanted` or a time has changed.
    """

    timer: HeartbeatTimer
    wanted: Callable[[], bool]
    send: Callable[[], Awaitable[None]]
    failed: Callable[[BrokerError], float]
    idle: Callable[[], None]
    _urgent: bool = field(default=False, init=False)
    _changed: asyncio.Event | None = field(default=None, init=False)

    def poke(self) -> None:
        """Makes the loop check again whether a heartbeat is wanted and due."""
        if self._changed is not None:
            self._changed.set()

    def send_now(self) -> None:
        """Sends a heartbeat at once, or right after the one in progress."""
        self._urgent = True
        self.poke()

    async def run(self) -> None:
        """Sends heartbeats until cancelled."""
        self._changed = asyncio.Event()
        timer = self.timer
        while True:
            self._changed.clear()
            if not self.wanted():
                await self._changed.wait()
            elif timer.idle_too_long:
                self.idle()
            elif not self._urgent and timer.ttl > 0:
                # the idle limit may come before the next heartbeat
                await wait_for_event(self._changed, min(timer.ttl, timer.idle_ttl))
            else:
                self._urgent = False
                try:
                    await self.send()
                except BrokerError as error:
                    timer.failed_heartbeat(self.failed(error))
