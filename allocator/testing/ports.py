"""Leases ports on 127.0.0.1 to servers, and keeps the lease while a server is down.

A server that restarts needs its port again. Outgoing connections use ports of the kernel's ephemeral range, so these
ports are below it. A lock file for each port keeps other test processes from using it; the kernel releases the
lock when its process ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import stat
import tempfile
from pathlib import Path

from .errors import ClusterError

_FIRST, _LAST = 20000, 32000
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class PortLease:
    """Holds leased ports. No other test process gets them until `release`."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def take(self, wanted: int | None = None) -> int:
        """Leases one more port, `wanted` if given. Raises ClusterError if that port, or every port, is in use."""
        directory = _directory()
        for port in random.sample(range(_FIRST, _LAST), 500) if wanted is None else [wanted]:
            descriptor = os.open(directory / str(port), _LOCK, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _bind(port)
            except OSError:
                os.close(descriptor)
                continue
            self._held[port] = descriptor
            return port
        if wanted is not None:
            raise ClusterError(
                f"port {wanted} on 127.0.0.1 is in use; stop the process that listens there, or choose another"
            )
        raise ClusterError(f"no free port between {_FIRST} and {_LAST} on 127.0.0.1; stop some servers first")

    def release(self) -> None:
        while self._held:
            _, descriptor = self._held.popitem()
            os.close(descriptor)


def _directory() -> Path:
    """Returns the directory of this user's lock files.

    Raises ClusterError if another user created it, which is possible because its name is predictable.
    """
    directory = Path(tempfile.gettempdir()) / f"allocator-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ClusterError(f"{directory} is not a directory that you alone write to; remove it, or set TMPDIR")
    return directory


def _bind(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like the servers: ignore connections in TIME_WAIT
        probe.bind(("127.0.0.1", port))
