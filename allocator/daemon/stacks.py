"""Shows where a process hangs whose event loop stands still."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from typing import Final

# more: the cause of a standstill is known later; less: handlers that block the loop for a while fill the log
STUCK_S: Final = 30.0


async def dump_when_stuck(limit_s: float = STUCK_S) -> None:
    """Writes the stacks of all threads to standard error once the loop has stood still for `limit_s` seconds.

    A thread of the interpreter writes them, so it also works while other code holds the GIL. Runs until cancelled.
    """
    stream = sys.__stderr__  # a real file, unlike the replacements of tests
    if stream is None:
        return
    try:
        while True:
            faulthandler.dump_traceback_later(limit_s, file=stream)
            await asyncio.sleep(limit_s / 20)
    finally:
        faulthandler.cancel_dump_traceback_later()
