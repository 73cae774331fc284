"""Implements `allocator run`: a process that reads a settings file and calls a handler `package.module:function`.

It returns an exit code, and reports its state to systemd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.daemon.config import Config, load, load_security
    from allocator.daemon.daemon import Daemon
    from allocator.daemon.logs import configure_logs
    from allocator.daemon.preflight import try_servers
    from allocator.daemon.process import Beside, load_with_code, run


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "config": "Config load load_security",
            "daemon": "Daemon",
            "preflight": "try_servers",
            "logs": "configure_logs",
            "process": "Beside load_with_code run",
        },
    )
