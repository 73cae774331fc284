"""The command `allocator`, also as `python -m allocator`. `commands` has the command group.

The commands take time to import. So this module first ensures that Ctrl-C, or a lack of memory, ends the process
without a traceback during the import, and that SIGTERM ends it in a container too.
"""

from __future__ import annotations

import os
import signal
import sys

from allocator.core.text import limit_reached

__all__ = ["main"]


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell ignores SIGINT for background jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `commands` restores the handler once the command is imported
    if os.getpid() == 1:
        # Linux drops a signal that process 1 does not handle. Commands that stop in order replace this later
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    try:
        from allocator.cli.commands import main as commands
    except (MemoryError, ImportError, SystemError) as error:
        limit = limit_reached(error)
        if limit is None:
            raise
        sys.exit(f"error: {limit}")
    commands(prog_name="allocator")
