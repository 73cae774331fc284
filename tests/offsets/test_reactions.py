"""The table of error codes: each code of the protocol's lists has one reaction."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from allocator.core.client.errors import (
    COMMIT,
    FIND,
    HEARTBEAT,
    JOIN,
    KIP848_HEARTBEAT,
    KIP848_LEAVE,
    LEAVE,
    MEMBER_COMMIT,
    OFFSET_FETCH,
    SYNC,
    GroupReaction,
    react,
)

CODES = sorted(
    {
        kind.errno
        for kind in vars(kafka_errors).values()
        if isinstance(kind, type) and isinstance(getattr(kind, "errno", None), int) and kind.errno != 0
    }
    | {128}  # an invalid regular expression, which kafka-python does not know yet
)


@pytest.mark.parametrize(
    ("table", "code", "reaction"),
    [
        (COMMIT, 12, GroupReaction.DROP_METADATA),
        (COMMIT, 14, GroupReaction.RETRY),
        (COMMIT, 15, GroupReaction.REFIND),
        (COMMIT, 16, GroupReaction.REFIND),
        (COMMIT, 22, GroupReaction.FAIL),
        (COMMIT, 25, GroupReaction.FAIL),
        (COMMIT, 27, GroupReaction.FAIL),
        (COMMIT, 28, GroupReaction.DROP_METADATA),
        (COMMIT, 29, GroupReaction.FAIL),
        (COMMIT, 30, GroupReaction.FAIL),
        (OFFSET_FETCH, 3, GroupReaction.CHECK_TOPIC),
        (OFFSET_FETCH, 14, GroupReaction.RETRY),
        (OFFSET_FETCH, 16, GroupReaction.REFIND),
        (OFFSET_FETCH, 30, GroupReaction.FAIL),
        (OFFSET_FETCH, 88, GroupReaction.RETRY),
        (FIND, 15, GroupReaction.RETRY),
        (FIND, 24, GroupReaction.FAIL),
        (FIND, 30, GroupReaction.FAIL),
    ],
)
def test_each_code_has_its_reaction(table: dict[int, GroupReaction], code: int, reaction: GroupReaction) -> None:
    assert react(table, code) is reaction


def test_a_code_that_is_not_known_yet_fails() -> None:
    assert react(COMMIT, 9999) is GroupReaction.FAIL


R = GroupReaction
# the reaction of each API to each error code, written a second time by its meaning for the member
EXPECTED: dict[str, tuple[dict[int, GroupReaction], dict[GroupReaction, set[int]]]] = {
    "JoinGroup": (
        JOIN,
        {R.REFIND: {15, 16}, R.LOST: {22}, R.RESET: {25, 110}, R.TAKE_ID: {79}, R.FENCED: {82}, R.RETRY: {27, 111}},
    ),
    "SyncGroup": (
        SYNC,
        {R.REFIND: {15, 16}, R.LOST: {22}, R.RESET: {25, 110}, R.FENCED: {82}, R.REJOIN: {7, 14, 27}},
    ),
    "Heartbeat": (
        HEARTBEAT,
        {R.REFIND: {15, 16}, R.LOST: {22}, R.RESET: {25, 110}, R.FENCED: {82}, R.REJOIN: {27}},
    ),
    "LeaveGroup": (LEAVE, {R.REFIND: {15, 16}, R.DONE: {25, 82}}),
    "OffsetCommit": (COMMIT, {R.REFIND: {15, 16}, R.DROP_METADATA: {12, 28}, R.CHECK_TOPIC: {3}, R.RETRY: {-1}}),
    "OffsetCommit of a member": (
        MEMBER_COMMIT,
        {
            R.REFIND: {15, 16},
            R.DROP_METADATA: {12, 28},
            R.CHECK_TOPIC: {3},
            R.RETRY: {-1},
            R.LOST: {22},
            R.RESET: {25, 69, 110},
            R.REJOIN: {27},
            R.NEW_EPOCH: {113},
            R.FENCED: {82},
        },
    ),
    "OffsetFetch": (
        OFFSET_FETCH,
        {R.REFIND: {15, 16}, R.CHECK_TOPIC: {3}, R.NEW_EPOCH: {113}, R.RETRY: {25, 69, 88}},
    ),
    "ConsumerGroupHeartbeat": (
        KIP848_HEARTBEAT,
        {R.REFIND: {15, 16}, R.LOST: {25, 69, 110}, R.FENCED: {82}, R.NEW_EPOCH: {113}, R.RETRY: {111}},
    ),
    "ConsumerGroupHeartbeat of one who leaves": (KIP848_LEAVE, {R.REFIND: {15, 16}, R.DONE: {25, 69, 82, 110}}),
    "FindCoordinator": (FIND, {R.RETRY: {-1, 15}}),
}


@pytest.mark.parametrize("api", EXPECTED)
def test_every_code_of_every_api_has_the_reaction_that_its_meaning_calls_for(api: str) -> None:
    table, special = EXPECTED[api]
    named = {code: reaction for reaction, codes in special.items() for code in codes}
    assert len(named) == sum(map(len, special.values())), "a code is listed under two reactions"
    assert {code: react(table, code) for code in CODES} == {
        code: named.get(code, R.RETRY if kafka_errors.for_code(code).retriable else R.FAIL) for code in CODES
    }


# the error codes of all coordinator versions, 0.8.1 to 4.1, from the protocol's documentation and Kafka's sources
ANSWERS = {
    "OffsetCommit": {-1, 3, 7, 12, 14, 15, 16, 22, 24, 25, 27, 28, 29, 30, 35, 42, 69, 82, 113},
    "OffsetCommit of a member": {-1, 3, 7, 12, 14, 15, 16, 22, 24, 25, 27, 28, 29, 30, 35, 42, 69, 82, 110, 113},
    "OffsetFetch": {3, 14, 15, 16, 24, 25, 29, 30, 35, 42, 69, 88, 113},
    "ConsumerGroupHeartbeat": {14, 15, 16, 25, 29, 30, 35, 42, 69, 81, 82, 110, 111, 112, 128},
}


@pytest.mark.parametrize("api", ANSWERS)
def test_whatever_the_coordinator_may_answer_stands_in_the_table(api: str) -> None:
    table, _ = EXPECTED[api]
    assert ANSWERS[api] - set(table) == set()


@pytest.mark.parametrize("api", EXPECTED)
def test_no_table_names_a_code_that_kafka_does_not_have(api: str) -> None:
    assert set(EXPECTED[api][0]) <= set(CODES)


def test_every_reaction_says_what_it_is() -> None:
    assert all(len(reaction.value.split()) >= 3 for reaction in GroupReaction)
