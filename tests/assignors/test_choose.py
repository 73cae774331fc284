"""Members with different functions agree on one that all of them offer, or report why there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.assignors import choose
from allocator.errors import InconsistentAssignor

OFFERS = st.lists(st.lists(st.sampled_from("abcd"), unique=True, max_size=4), max_size=6).map(
    lambda names: [(f"m{i}", offered) for i, offered in enumerate(names)]
)


def test_a_newcomer_with_nothing_in_common_is_refused_with_both_offers() -> None:
    name, refused = choose([("m1", ["a", "b"]), ("m2", ["b", "c"]), ("m3", ["c"]), ("m4", ["b"])])
    assert name == "b"
    assert refused == {
        "m3": "it offers 'c', the members before it (the oldest is 'm1') share 'b'; offer one of these too"
    }


@given(OFFERS)
def test_every_kept_member_supports_the_choice_and_no_refused_member_could_have_stayed(
    offers: list[tuple[str, list[str]]],
) -> None:
    if not any(names for _, names in offers):
        with pytest.raises(InconsistentAssignor, match="no member of the group offers"):
            choose(offers)
        return
    name, refused = choose(offers)
    kept = [(member, names) for member, names in offers if member not in refused]
    assert kept
    assert all(name in names for _, names in kept)
    common = set.intersection(*(set(names) for _, names in kept))
    assert name == next(n for n in kept[0][1] if n in common)
    for member, names in offers:
        if member in refused:
            before = [set(n) for m, n in offers[: offers.index((member, names))] if m not in refused]
            assert not names or not set.intersection(set(names), *before)
