"""The states of the model of transactions by partition."""

from __future__ import annotations

import sys

import pytest

from tests.producer.transaction_model import (
    APPLIED,
    COMPARES,
    FENCES,
    INPUTS,
    LATE,
    REREADS,
    RULES,
    State,
    steps,
    unsafe,
)


def explore(broken: str = "", most: int = sys.maxsize, late: int = LATE) -> tuple[set[State], str]:
    """Returns the first `most` states, breadth first, and the shortest way to one in which a promise is broken, if any
    is."""
    first = State()
    ways: dict[State, tuple[State, str]] = {first: (first, "")}
    level = [first]
    while level and len(ways) < most:
        following = []
        for state in level:
            for step, after in steps(state, broken, late):
                if after in ways:
                    continue
                ways[after] = state, step
                following.append(after)
                why = unsafe(after)
                if why:
                    return set(ways), f"{why}: {', '.join(way_to(after, ways))}"
        level = following
    return set(ways), ""


def way_to(state: State, ways: dict[State, tuple[State, str]]) -> list[str]:
    way: list[str] = []
    while ways[state][1]:
        state, step = ways[state]
        way.insert(0, step)
    return way


# 13,267 states without late requests; with them there are more than 28 million, of which a million takes 0.7 GB
@pytest.mark.parametrize(
    ("most", "late"),
    [(sys.maxsize, 0), (60_000, LATE), pytest.param(3_000_000, LATE, marks=pytest.mark.long)],
    ids=["without late requests", "with", "more"],
)
def test_no_record_has_two_results_and_none_is_skipped(most: int, late: int) -> None:
    states, broken = explore(most=most, late=late)
    assert not broken
    assert any(state.committed == INPUTS for state in states)


# the ways without late requests are part of the model, and lead there after a tenth of the states
AT_ONCE = {FENCES, COMPARES, APPLIED, REREADS}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    assert explore(rule, late=0 if rule in AT_ONCE else LATE)[1]
