"""The command `allocator`, also as `python -m allocator.cli`.

In: arguments, settings files, the environment. Out: text or JSON, and exit codes. May touch: every other package
through its face; `testing` only in `cluster`.

Loading the commands takes a moment, and a process may be out of memory before it ends. So this module sets up first how
the process ends then: without a traceback. `commands` has the command group.
"""

from __future__ import annotations

import signal
import sys

from allocator.core.text import limit_reached

__all__ = ["main"]


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell ignores SIGINT for background jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `commands` takes it back once the command is loaded
    try:
        from allocator.cli.commands import main as commands
    except (MemoryError, ImportError, SystemError) as error:
        limit = limit_reached(error)
        if limit is None:
            raise
        sys.exit(f"error: {limit}")
    commands(prog_name="allocator")
