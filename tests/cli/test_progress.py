"""The progress of long commands: a line on a terminal, and nothing in a pipe."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.cli.terminal import in_a_terminal

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


def test_the_doctor_tells_a_terminal_how_long_it_polls() -> None:
    command = "from allocator.cli.commands import main; main()"
    away = ("--zookeeper", "127.0.0.1:1", "--timeout", "0.5", "--interval", "0.5")
    code, shown, _ = in_a_terminal([sys.executable, "-c", command, "doctor", "billing", *away])
    assert code == 1
    assert "polling twice, 0.5 s apart" in shown


@pytest.mark.parametrize(
    ("lag", "wanted"),
    [
        ("4000, 300.0, 500.0", "m (2 partitions, 5 min behind) 1,000 of 5,000 records 7/s 8 min left"),
        ("4000, None, None", "m (2 partitions) 1,000 of 5,000 records 7/s remaining time unknown"),
        ("None, None, None", "m (2 partitions, lag unknown) 1,000 of 5,000 records 7/s remaining time unknown"),
    ],
)
def test_a_terminal_shows_an_unknown_lag_as_unknown(lag: str, wanted: str) -> None:
    code = f"""
from allocator.cli.mirror import show_lag
from allocator.cli.progress import progress
from allocator.migrate import Lag
with progress("m", False) as meter:
    for left in 5000, 4000:
        show_lag(meter, "m", 2, left, 7.0, Lag({lag}))
"""
    _, shown, _ = in_a_terminal([sys.executable, "-c", code], columns=120)
    assert wanted in " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[━╸╺]", "", shown).split())
