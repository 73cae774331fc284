"""Runs one server as a child, so that the server never outlives the test process.

Run as a script: `python -I -S supervisor.py LOG REMOVE COMMAND...`. It starts COMMAND with its output in LOG. It reads
the words TERM, KILL, STOP, CONT and BYE (exit) from its standard input, and writes `pid N` once, `ok WORD` for each
word, and `exit CODE` when COMMAND has ended (negative: the signal) to its standard output.

Guarantee: when the standard input ends, or the parent ends in any way (also kill -9), it kills COMMAND with SIGKILL and
deletes the directory REMOVE, unless that is empty. Only it reaps COMMAND, so no signal can reach another process with
the same pid.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

SIGNALS = {b"TERM": signal.SIGTERM, b"KILL": signal.SIGKILL, b"STOP": signal.SIGSTOP, b"CONT": signal.SIGCONT}


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # the reader has ended; the main loop notices that
        os.write(1, text.encode() + b"\n")


def launch(log: str, command: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 256)
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode())
    os._exit(127)


def main(log: str, remove: str, command: list[str]) -> None:
    parent = os.getppid()
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    pid = launch(log, command)
    say(f"pid {pid}")
    running, rest = True, b""
    while True:
        # with a timeout, because other children of a dead parent may keep the standard input open
        ready, _, _ = select.select([0, wake], [], [], 1.0)
        if wake in ready:
            os.read(wake, 512)
        if running:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running = False
                say(f"exit {-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)}")
        data = os.read(0, 512) if 0 in ready else None
        if data == b"" or os.getppid() != parent:
            break
        lines = (rest + (data or b"")).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line == b"BYE":
                return
            if running:
                os.kill(pid, SIGNALS[line])
            if running and line == b"STOP" and hasattr(os, "waitid"):  # macOS lacks it
                # on a busy machine its threads continue until one of them has handled the signal
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            say(f"ok {line.decode()}")
    if running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if remove:
        import shutil

        shutil.rmtree(remove, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
