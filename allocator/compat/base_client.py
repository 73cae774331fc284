"""Base class of the clients with kiel's interface: `connect`, `close` and `wind_down`."""

from __future__ import annotations

import asyncio
from typing import Optional

from allocator.core.aio import ClosesOnce, start_task, warn_unclosed
from allocator.errors import Closed, IllegalState


class BaseClient:
    """Connects once, and closes once. `label` and `what` name the client in errors, `place` in a warning."""

    def __init__(self, label: str, what: str, place: str) -> None:
        self._label, self._what, self._place = label, what, place
        self.closing = False
        self._closes_once = ClosesOnce()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        """The event loop of `connect`, which a subclass sets; None before."""
        self._connecting: Optional[asyncio.Task[None]] = None

    # -- methods of a subclass ------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        raise NotImplementedError

    async def _wind_down(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        """Called once at the start of `close`."""

    def _abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called instead of `_wind_down` if the loop is closed, so that no task can run any more."""

    # -- start and close ------------------------------------------------------------------------------------------

    def connect(self) -> asyncio.Future[None]:
        """Connects to Kafka. A member of a group also joins the group and finds its coordinator.

        Further calls return the same task while it runs. Raises BrokersUnavailable, ZooKeeperUnavailable for a group
        that needs ZooKeeper, and IllegalState after `close`.
        """
        if self._connecting is None or self._connecting.done():
            self._connecting = start_task(self._connect_unless_closed())
        return self._connecting

    async def _connect_unless_closed(self) -> None:
        if self.closing:
            raise IllegalState(f"{self._label}: this {self._what} is closed; create a new {type(self).__name__}")
        try:
            await self._connect()
        except asyncio.CancelledError:
            if self.closing:
                raise Closed(f"{self._label}: this {self._what} was closed while it connected") from None
            raise

    def close(self) -> asyncio.Future[None]:
        """Closes all connections. A consumer's returned values that were not committed are read again; a producer first
        sends its messages.

        May be called twice: each call completes when the connections are closed. If the loop was stopped, for example
        by Ctrl-C, `close` runs it until the client is closed. If the loop is closed, `close` ends a membership, but
        cannot commit or send.
        """
        loop = self._loop
        self.closing = True
        if loop is None or loop.is_running():
            return start_task(self._closes_once.run(self._close_all))
        done = loop.create_future()
        if loop.is_closed():
            self._abandon(loop)
        else:
            loop.run_until_complete(self._closes_once.run(self._close_all))
        done.set_result(None)
        return done

    async def _close_all(self) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        self._stop()
        await self.wind_down()

    def __del__(self) -> None:
        if getattr(self, "_loop", None) is not None and not self.closing:  # `_loop` is missing if `__init__` raised
            warn_unclosed(self, self._place)

    def wind_down(self) -> asyncio.Future[None]:
        """Closes the connections that `connect` opened. A consumer leaves its group, a producer sends its messages.
        Called by `close`. Subclasses may extend it."""
        return start_task(self._wind_down())

    def _must_be_connected(self) -> None:
        if self._loop is None:
            raise IllegalState(f"{self._label}: this {self._what} is not connected; await connect() first")
