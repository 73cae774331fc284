"""The stacks of a member whose event loop stands still, for its log."""

from __future__ import annotations

import asyncio
import faulthandler

__all__ = ["dump_when_stuck"]

LIMIT_S = 20.0  # more than a fault stops a member


async def dump_when_stuck() -> None:
    """Writes the stacks of all threads to standard error if the loop stands still for `LIMIT_S`.

    Runs until it is cancelled.
    """
    try:
        while True:
            faulthandler.dump_traceback_later(LIMIT_S)
            await asyncio.sleep(1.0)
    finally:
        faulthandler.cancel_dump_traceback_later()
