"""Free ports on 127.0.0.1 that stay ours for as long as a server needs them, also while it is down.

A server that is killed and started again must find its port free. A port of the kernel's ephemeral range may be
taken meanwhile by any outgoing connection, so ours lie below it; a lock file a port keeps several test
processes of this machine apart, and is let go by the kernel when its holder dies.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from .errors import ClusterError

__all__ = ["PortLease"]

_FIRST, _LAST = 20000, 32000


class PortLease:
    """Some ports, free when they were taken and leased by no other process until `release`."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def take(self, wanted: int | None = None) -> int:
        """One more port, `wanted` if that is given. Raises ClusterError when it, or every port, is taken."""
        directory = Path(tempfile.gettempdir()) / f"allocator-ports-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        for port in random.sample(range(_FIRST, _LAST), 500) if wanted is None else [wanted]:
            descriptor = os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _bind(port)
            except OSError:
                os.close(descriptor)
                continue
            self._held[port] = descriptor
            return port
        if wanted is not None:
            raise ClusterError(f"port {wanted} on 127.0.0.1 is taken; stop what listens there, or choose another")
        raise ClusterError(f"no free port between {_FIRST} and {_LAST} on 127.0.0.1; stop some servers first")

    def release(self) -> None:
        while self._held:
            _, descriptor = self._held.popitem()
            os.close(descriptor)


def _bind(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT does not matter
        probe.bind(("127.0.0.1", port))
