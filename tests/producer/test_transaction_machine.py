"""Transactions keep their promises in every order of events that the machine tries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer.progress_machine import play
from tests.consumer.progress_mutations import PACKAGE, Mutation, played
from tests.producer.transaction_machine import TransactionMachine
from tests.producer.transaction_mutations import MUTATIONS

MACHINE = "tests.producer.transaction_machine"
EXAMPLES = 60  # about 8 each second
MUTATED_EXAMPLES = 400  # most need far fewer; all pass without a mutation


def test_transactions_keep_their_promises() -> None:
    run = played(PACKAGE.parent, EXAMPLES, MACHINE)
    assert run.returncode == 0, run.stdout


@pytest.mark.long
def test_transactions_keep_their_promises_in_thousands_of_examples() -> None:
    play(3000, machine=TransactionMachine)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.rule)
def test_each_mutation_has_its_place(mutation: Mutation) -> None:
    mutation.mutated()


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.rule)
def test_the_machine_finds_each_rule_that_is_taken_out(mutation: Mutation, tmp_path: Path) -> None:
    mutation.assert_found(tmp_path, MUTATED_EXAMPLES, MACHINE)
