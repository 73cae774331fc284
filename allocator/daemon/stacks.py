"""Shows where a process hangs if its event loop is blocked."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from typing import Final

# Seconds. Higher: the cause of a hang is shown later; lower: handlers that block the loop for a while fill the log.
STUCK_S: Final = 30.0


async def dump_when_stuck(limit_s: float = STUCK_S) -> None:
    """Writes the stacks of all threads to standard error once the loop has been blocked for `limit_s`.

    A thread of the interpreter writes them, so it also works while other code holds the GIL. Runs until cancelled.
    """
    stream = sys.__stderr__  # faulthandler needs a real file
    if stream is None:
        return
    try:
        while True:
            faulthandler.dump_traceback_later(limit_s, file=stream)
            await asyncio.sleep(limit_s / 20)
    finally:
        faulthandler.cancel_dump_traceback_later()
