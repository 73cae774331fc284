"""Runs commands in a thread, or in a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess

from click.testing import CliRunner

from allocator.cli.commands import main

__all__ = ["in_a_terminal", "run_command"]


async def run_command(*words: str) -> tuple[int, str, str]:
    """Returns the exit code, the output and the errors of `allocator WORDS...`."""
    done = await asyncio.to_thread(CliRunner().invoke, main, words)
    return done.exit_code, done.stdout, done.stderr


def in_a_terminal(
    command: list[str], wanted: bytes = b"", typed: bytes = b"", *, stdout: int | None = None, columns: int = 80
) -> tuple[int, str, str]:
    """Returns the exit code, the text on the terminal, and the output of stdout if that is a pipe.

    Types `typed` once the terminal shows `wanted`.
    """
    screen, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal if stdout is None else stdout, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while True:
                try:
                    shown += os.read(screen, 65536)
                except OSError:  # Linux raises this when the other side of the terminal is closed
                    break
                if typed and wanted in shown:
                    os.write(screen, typed)
                    typed = b""
            piped = b"" if process.stdout is None else process.stdout.read()
            return process.wait(60), shown.decode(), piped.decode()
        finally:
            os.close(screen)
            process.kill()
