"""`pytest --stalls` stops processes, names them, and leaves none stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stalls import Stalls, state_of

HELPER = Path(__file__).parent.parent / "stalls.py"


@pytest.fixture
def idle() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def helper_of(process: subprocess.Popen[bytes]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", str(HELPER), str(process.pid), "7", ""],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_it_stops_a_process_once_for_each_request_and_names_it(idle: subprocess.Popen[bytes]) -> None:
    lines = helper_of(idle).communicate("stall 0.01\nrest\nstall 0.02\n")[0].splitlines()
    assert [line.split(" ", 1)[1] if " " in line else line for line in lines] == [
        "0.010 pytest", "ok", "ok", "0.020 pytest", "ok",
    ]  # fmt: skip
    assert state_of(idle.pid) != "T"


def test_it_stops_a_process_at_random_and_continues_it_when_pytest_ends(idle: subprocess.Popen[bytes]) -> None:
    helper = helper_of(idle)
    assert helper.stdin is not None
    assert helper.stdout is not None
    helper.stdin.write("go\n")
    helper.stdin.flush()
    assert helper.stdout.readline() == "ok\n"
    assert helper.stdout.readline().endswith(" pytest\n")
    helper.communicate()  # which closes its input
    assert state_of(idle.pid) != "T"


@pytest.mark.parametrize("option", ["", "seven", "7:", "7:brokers"])
def test_an_option_with_a_typo_is_refused(option: str) -> None:
    with pytest.raises(pytest.UsageError, match="give a number"):
        Stalls(option)
