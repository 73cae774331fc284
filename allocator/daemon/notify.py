"""Reports the state of the process to systemd (protocol: sd_notify(3)). Does nothing without NOTIFY_SOCKET."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    """Sends states such as "READY=1" to the socket that NOTIFY_SOCKET names.

    It never raises or blocks, because a broken service manager must not stop the daemon.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = environ.get("NOTIFY_SOCKET", "")
        microseconds, own = environ.get("WATCHDOG_USEC", ""), str(os.getpid())
        meant = environ.get("WATCHDOG_PID", own) == own and microseconds.isdecimal()
        self.watchdog_s = int(microseconds) / 1e6 or None if meant else None
        """Seconds within which systemd expects the next report; None: no watchdog."""

    def notify(self, *states: str) -> None:
        """Sends states in one datagram."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(states).encode(), address)
        except OSError as error:
            log.debug("NOTIFY_SOCKET %s: %s", self._address, error)

    async def keep_alive(self) -> None:
        """Reports to the watchdog while the loop runs. Returns at once without a watchdog."""
        while self.watchdog_s is not None:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)
