"""Kills a process at a chosen moment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from allocator.testing import wait_until

__all__ = ["run_and_kill"]


def run_and_kill(command: list[str], log: Path, when: Callable[[], object]) -> bool:
    """Kills a process of its own and its Spark as soon as `when` holds; returns whether it ended before."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        try:
            wait_until(lambda: child.poll() is not None or when(), 900, "the moment to kill", interval_s=0.01)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
    assert code in (0, -signal.SIGKILL), log.read_text()[-3000:]
    return code == 0
