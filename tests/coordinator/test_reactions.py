"""The table of error codes: each code of the protocol's lists has one reaction."""

from __future__ import annotations

import pytest

from allocator.coordinator.reactions import COMMIT, FETCH, FIND, Reaction, react


@pytest.mark.parametrize(
    ("table", "code", "reaction"),
    [
        (COMMIT, 12, Reaction.DROP_METADATA),
        (COMMIT, 14, Reaction.RETRY),
        (COMMIT, 15, Reaction.REFIND),
        (COMMIT, 16, Reaction.REFIND),
        (COMMIT, 22, Reaction.FAIL),
        (COMMIT, 25, Reaction.FAIL),
        (COMMIT, 27, Reaction.FAIL),
        (COMMIT, 28, Reaction.DROP_METADATA),
        (COMMIT, 29, Reaction.FAIL),
        (COMMIT, 30, Reaction.FAIL),
        (FETCH, 3, Reaction.CHECK_TOPIC),
        (FETCH, 14, Reaction.RETRY),
        (FETCH, 16, Reaction.REFIND),
        (FETCH, 30, Reaction.FAIL),
        (FETCH, 88, Reaction.RETRY),
        (FIND, 15, Reaction.RETRY),
        (FIND, 24, Reaction.FAIL),
        (FIND, 30, Reaction.FAIL),
    ],
)
def test_each_code_has_its_reaction(table: dict[int, Reaction], code: int, reaction: Reaction) -> None:
    assert react(table, code) is reaction


def test_a_code_that_is_not_known_yet_fails() -> None:
    assert react(COMMIT, 9999) is Reaction.FAIL
