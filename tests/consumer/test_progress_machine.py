"""Consumers keep their promises about progress in every order of events that the machine tries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from allocator.core.offsets.idle import IDLE_S
from tests.consumer.progress_machine import PARTITIONS, QUIET_S, ProgressMachine, play
from tests.consumer.progress_mutations import MUTATIONS, PACKAGE, Mutation, played

MUTATED_EXAMPLES = 250  # all pass without a mutation; 100 examples take about 5 s


@pytest.mark.parametrize("count", [100, pytest.param(MUTATED_EXAMPLES, marks=pytest.mark.long)])
def test_progress_keeps_its_promises(count: int) -> None:
    run = played(PACKAGE.parent, count)
    assert run.returncode == 0, run.stdout


@pytest.mark.long
def test_progress_keeps_its_promises_in_thousands_of_examples() -> None:
    play(5000)


@contextlib.contextmanager
def machine() -> Iterator[ProgressMachine]:
    state = ProgressMachine()
    try:
        yield state
    finally:
        state.teardown()


def test_an_operators_seek_is_reported_only_once_its_offset_is_committed() -> None:
    """The session is lost while the commit is retried; the member owns the partition again when it is sent."""
    with machine() as state:
        state.begin(ids=False, reset="earliest", auto=False, sink=False, latency_s=0.01, empty=False)
        state.next_commit_fails("refused")
        state.operator_seeks(PARTITIONS[0], 1.0)
        state.lose_session(n=0, back=True, then="")
        state.wait(QUIET_S)


def test_a_seek_while_the_last_offset_is_committed_is_committed_too() -> None:
    """The partition moves, and its user seeks while the response to the last commit is awaited."""
    with machine() as state:
        state.begin(ids=False, reset="earliest", auto=True, sink=False, latency_s=0.15, empty=False)
        state.read(n=0, kinds=["all", "getone"], timeout_s=0.0, then="", later=False)
        state.move(PARTITIONS[0], to=1)
        state.seek(PARTITIONS[0], 0.3, seconds=QUIET_S)


def test_after_a_refused_record_at_its_end_the_rest_of_a_batch_is_not_returned() -> None:
    """`getone` raises the error of the last record, and `getbatch` returns the next batch with records."""
    with machine() as state:
        state.begin(ids=False, reset="earliest", auto=True, sink=False, latency_s=0.01, empty=True)
        state.produce(PARTITIONS[0], count=1, kind="plain", poison=0)
        state.read(n=0, kinds=["getone", "getbatch"], timeout_s=0.3, then="", later=False)


def test_an_operators_seek_leaves_the_sink_at_the_position() -> None:
    """The user seeks too, while the sink waits for the records in hand."""
    with machine() as state:
        state.begin(ids=False, reset="earliest", auto=True, sink=True, latency_s=0.01, empty=False)
        state.reads(state.members[0], ["all"], 0.1, "", later=False)
        state.operator_seeks(PARTITIONS[0], 1.0)
        state.seek(PARTITIONS[0], 0.6, seconds=0.02)
        state.reads(state.members[0], ["getbatch"], 0.1, "", later=False)


def test_an_operators_seek_ends_with_the_tenure_in_which_it_waits_for_the_sink() -> None:
    """The other member carries it out, and its user seeks; then the first member is the owner again."""
    with machine() as state:
        state.begin(ids=True, reset="latest", auto=False, sink=True, latency_s=0.15, empty=True)
        state.move(PARTITIONS[1], to=1)
        state.create_topic_again(how="another cluster", kept=True)
        state.produce(PARTITIONS[1], count=5, kind="plain", poison=1)
        state.operator_seeks(PARTITIONS[1], 0.3)
        state.lose_session(n=1, sought=1.0, back=False, then="commit")
        state.lose_session(n=0, sought=1.0, back=False, then="heir reads")


@pytest.mark.parametrize("auto", [True, False])
def test_an_idle_offset_never_replaces_a_commit_whose_response_is_lost(auto: bool) -> None:
    """The new owner commits while it looks which of the committed offsets are old."""
    with machine() as state:
        state.begin(ids=False, reset="earliest", auto=auto, sink=False, latency_s=0.15, empty=False)
        state.reads(state.members[0], ["getone"], 0.3, "all", later=False)
        state.move(PARTITIONS[0], to=1)
        state.reads(state.members[0], ["getone"] * 3, 0.1, "", later=False)
        state.go(rest_s=IDLE_S - 0.04 - state.loop.now)
        state.next_commit_fails("unanswered")
        state.reads(state.members[1], ["getone"] * 2, 0.1, "" if auto else "all", later=True)
        state.wait(QUIET_S)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.rule)
def test_each_mutation_has_its_place(mutation: Mutation) -> None:
    mutation.mutated()


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.rule)
def test_the_machine_finds_each_rule_that_is_taken_out(mutation: Mutation, tmp_path: Path) -> None:
    mutation.assert_found(tmp_path, MUTATED_EXAMPLES)
