"""The progress of long commands: a line on a terminal, and nothing in a pipe."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console
from terminal import in_a_terminal

from allocator.cli.progress import Meter, ProgressDisplay, Step, progress

COPYING = """
import os, signal, sys
from allocator.cli.progress import Step, progress, say
with progress("copying", "--quiet" in sys.argv) as meter:
    meter.step = Step("copying", 1, 2, "records")
    say("a line of output")
    print("a warning", file=sys.stderr)
    if "--interrupt" in sys.argv:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
"""


def drawn(step: Step, width: int, seconds: int = 10) -> str:
    """The line after so many seconds; in each second, a tenth of `step.done` is done."""
    now = 0.0
    shown = [Step(step.what, step.done * n / seconds, step.total, step.unit, step.rate) for n in range(seconds + 1)]
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    line = ProgressDisplay(lambda: shown[min(int(now), seconds)], console, get_time=lambda: now)
    for _ in range(seconds + 1):
        list(line.get_renderables())
        now += 1.0
    with console.capture() as capture:
        console.print(*line.get_renderables())
    return capture.get()


def test_a_line_has_the_rate_and_the_time_that_is_left() -> None:
    text = drawn(Step("archiving orders", 1_000_000, 5_000_000, "offsets"), 120)
    assert re.search(r"archiving orders +━+.* 1,000,000 of 5,000,000 offsets +100,000/s +40 s left", text), text
    assert "left" not in drawn(Step("archiving orders", 50, 50, "offsets"), 120)
    assert "7/s" in drawn(Step("m1 (3 partitions)", 10, 50, "records", 7.0), 120), "the caller's own rate"


@pytest.mark.parametrize("width", [120, 80, 40, 20])
def test_a_line_is_one_line(width: int) -> None:
    for what in ("mirror", "archiving " + "請求書-" * 20):
        text = drawn(Step(what, 10**12, 5 * 10**12, "records"), width)
        (line,) = text.rstrip("\n").split("\n")
        assert cell_len(line) <= width


def test_the_bar_of_a_lag_starts_at_its_largest() -> None:
    meter = Meter(Step("mirror"))
    shown = []
    for left in (100, 40, 250, 0):
        meter.left(left, f"m1 ({left} partitions)", "records")
        shown.append((meter.step.done, meter.step.total))
    assert shown == [(0, 100), (60, 100), (0, 250), (250, 250)]
    meter.left(3, "freeze: waiting for members", "members")
    assert (meter.step.done, meter.step.total) == (0, 3), "other work has a bar of its own"


def test_a_pipe_gets_no_progress(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("copying", False) as meter:
        meter.step = Step("copying", 1, 2, "records")
    assert capfd.readouterr() == ("", "")


def copying(*options: str, stdout: int | None = None) -> tuple[int, str, str]:
    return in_a_terminal([sys.executable, "-c", COPYING, *options], stdout=stdout)


@pytest.mark.parametrize("options", [(), ("--interrupt",)])
def test_a_terminal_is_clean_afterwards(options: tuple[str, ...]) -> None:
    code, shown, _ = copying(*options)
    assert (code == 0) == (not options)
    assert "copying" in shown
    for text in ("a line of output", "a warning"):
        assert f"\x1b[2K{text}\r\n" in shown, "above the line, which is drawn again"
    last = shown.rpartition("copying")[2]  # the last time that the line was drawn; Python's traceback follows
    assert "\x1b[2K" in last, "the line is erased"
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is visible again"


def test_output_in_a_file_stays_output() -> None:
    _, shown, piped = copying(stdout=subprocess.PIPE)
    assert piped == "a line of output\n"
    assert "copying" in shown
    assert "a line of output" not in shown


def test_quiet_shows_output_alone() -> None:
    assert copying("--quiet")[1].replace("\r\n", "\n") == "a line of output\na warning\n"
