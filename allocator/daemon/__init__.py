"""`allocator run`: a process that consumes with a handler, retries, and keeps refused records.

In: a TOML file, environment variables, a handler `package.module:function`. Out: handled records, committed offsets,
dead letters, an exit code. May touch: what the consumer touches, the dead-letter topic, systemd's notify socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.daemon.config import Config, load
    from allocator.daemon.daemon import Daemon
    from allocator.daemon.preflight import try_servers
    from allocator.daemon.process import Beside, check, configure_logs, run

__all__ = ["Beside", "Config", "Daemon", "check", "configure_logs", "load", "run", "try_servers"]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "config": "Config load",
            "daemon": "Daemon",
            "preflight": "try_servers",
            "process": "Beside check configure_logs run",
        },
    )
