"""The checks of the demo can fail, and the demo runs."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from examples.demo.check import History, verify  # noqa: E402

JOURNALS: dict[str, list[dict[str, Any]]] = {
    "ada": [
        {"what": "assigned", "at": 1.0, "partitions": [0]},
        {"what": "batch", "partition": 0, "offsets": [[0, 9]], "from": 1.1, "to": 1.2},
        {"what": "batch", "partition": 0, "offsets": [[10, 14]], "from": 1.3, "to": 1.4},
    ],
    "bob": [
        {"what": "assigned", "at": 5.0, "partitions": [0]},
        {"what": "batch", "partition": 0, "offsets": [[10, 19]], "from": 5.1, "to": 5.2},
        {"what": "revoked", "at": 6.0, "partitions": [0]},
    ],
}
PRODUCED = {0: 20}


def broken(journals: dict[str, list[dict[str, Any]]], committed: dict[int, int] | None = None) -> set[str]:
    history = History(journals, killed={"ada": 2.0})
    claims = verify(history, PRODUCED, PRODUCED if committed is None else committed, window_s=1.0)
    return {claim.text for claim in claims if not claim.holds}


def test_a_sound_history_holds() -> None:
    assert broken(JOURNALS) == set()


def edit(member: str, number: int, **changes: Any) -> dict[str, list[dict[str, Any]]]:
    journals = copy.deepcopy(JOURNALS)
    journals[member][number].update(changes)
    return journals


@pytest.mark.parametrize(
    ("journals", "committed", "expected"),
    [
        (edit("bob", 1, offsets=[[10, 17], [19, 19]]), None, "every record is processed"),
        (edit("bob", 1, offsets=[[10, 20]]), None, "nothing but what was produced is processed"),
        (edit("bob", 1, offsets=[[8, 19]]), None, None),  # ada did 8 and 9 within the second before her death
        (edit("bob", 0, at=1.5), None, "no two members own a partition at one time"),
        (edit("bob", 1, **{"from": 1.35}), None, "no two members work on a partition at one time"),
        (JOURNALS, {0: 19}, "the offsets stand in Kafka"),
    ],
)
def test_each_promise_can_be_broken(journals: Any, committed: Any, expected: str | None) -> None:
    assert broken(journals, committed) == ({expected} if expected else set())


def test_a_repeat_that_no_kill_explains_is_found() -> None:
    history = History(JOURNALS, killed={"ada": 2.0})
    claims = verify(history, PRODUCED, PRODUCED, window_s=0.1)
    assert [claim.found for claim in claims if not claim.holds] == ["5 repeated, 0 possible"]


@pytest.mark.servers
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="members"),
        # a Spark of its own; test_spark_documents.py runs the pipeline in the one that is there
        pytest.param(["--spark"], id="spark", marks=pytest.mark.long),
    ],
)
def test_the_demo_runs_and_every_promise_holds(options: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "examples.demo", *options, "--records", "20000", "--rate", "4000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "every promise holds" in run.stdout
    assert "FAILS" not in run.stdout
    assert ("the audit of the topic and the archive finds no difference" in run.stdout) == bool(options)
