"""Consumers keep their promises about progress in every order of events that the machine tries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test
from progress_machine import PARTITIONS, QUIET_S, ProgressMachine, examples
from progress_mutations import MUTATIONS, Mutation

import allocator

HERE = Path(__file__).parent
PACKAGE = Path(allocator.__file__).parent
# most of the mutations are found within 300 examples; a run without a fault takes about 30 ms for each example
MUTATED_EXAMPLES = 4000


def played(package: Path, count: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Plays this number of examples in a process of its own, with the `allocator` in `package`."""
    tests = [str(HERE.parent / name) for name in ("", "consumer", "fetch", "groups")]
    return subprocess.run(
        [sys.executable, str(HERE / "progress_machine.py"), str(count)],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join([str(package), *tests])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_progress_keeps_its_promises() -> None:
    """The order of sets decides which examples follow, so it is fixed: the same code plays the same examples."""
    run = played(PACKAGE.parent, 250, PYTHONHASHSEED="0")
    assert run.returncode == 0, run.stdout


@pytest.mark.long
def test_progress_keeps_its_promises_in_thousands_of_examples() -> None:
    run_state_machine_as_test(ProgressMachine, settings=examples(5000))


def test_an_operators_seek_is_reported_only_once_its_offset_is_committed() -> None:
    """The session is lost while the commit is retried; the member owns the partition again when it is sent."""
    state = ProgressMachine()
    try:
        state.begin(ids=False, reset="earliest", auto=False, sink=False, latency_s=0.01, empty=False)
        state.next_commit_fails("refused")
        state.operator_seeks(PARTITIONS[0], 1.0)
        state.lose_session(0, back=True, reads=False)
        state.wait(QUIET_S)
    finally:
        state.teardown()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.rule)
def test_each_mutation_has_its_place(mutation: Mutation) -> None:
    mutation.mutated()


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.rule)
def test_the_machine_finds_each_rule_that_is_taken_out(mutation: Mutation, tmp_path: Path) -> None:
    mutation.apply(tmp_path)
    run = played(tmp_path, MUTATED_EXAMPLES)
    assert run.returncode == 1, run.stdout
    assert "state.begin" in run.stdout, run.stdout
