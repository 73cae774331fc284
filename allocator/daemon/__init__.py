"""`allocator run`: a process that consumes with a handler, retries, and keeps refused records.

In: a TOML file, environment variables, a handler `package.module:function`. Out: handled records, committed offsets,
dead letters, an exit code. May touch: what the consumer touches, the dead-letter topic, systemd's notify socket.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allocator.daemon.config import Config, load
    from allocator.daemon.preflight import try_servers
    from allocator.daemon.process import Beside, Runner, check, configure_logs, run

__all__ = ["Beside", "Config", "Runner", "check", "configure_logs", "load", "run", "try_servers"]

_HOME = {"Config": "config", "load": "config", "try_servers": "preflight"}  # the others: process

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOME.get(name, 'process')}"), name)
