"""How callers and members react to the error codes of coordinators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from allocator.core.client.errors import COMMIT, OFFSET_FETCH, Reaction, reaction_to
from allocator.protocols.reactions import HEARTBEAT, JOIN, KIP848_HEARTBEAT, KIP848_LEAVE, LEAVE, MEMBER_COMMIT, SYNC

# request -> its table, and the reaction to each error code that a coordinator of 0.8.1 to 4.1 may send, from the
# protocol's documentation and Kafka's sources
REACTIONS: dict[str, tuple[Mapping[int, Any], str]] = {
    "OffsetCommit": (
        COMMIT,
        "RETRY -1 7 14; REFIND 15 16; CHECK_TOPIC 3; DROP_METADATA 12 28; FAIL 22 24 25 27 29 30 35 42 69 82 113",
    ),
    "OffsetCommit of a member": (
        {**COMMIT, **MEMBER_COMMIT},
        "RETRY -1 7 14; REFIND 15 16; CHECK_TOPIC 3; DROP_METADATA 12 28; FAIL 24 29 30 35 42; "
        "LOST 22; RESET 25 69 110; REJOIN 27; FENCED 82; NEW_EPOCH 113",
    ),
    "OffsetFetch": (OFFSET_FETCH, "RETRY 14 25 69 88 113; REFIND 15 16; CHECK_TOPIC 3; FAIL 24 29 30 35 42"),
    "JoinGroup": (
        JOIN,
        "RETRY 7 14 27 111; REFIND 15 16; FAIL 23 24 26 30 81; LOST 22; RESET 25 110; TAKE_ID 79; FENCED 82",
    ),
    "SyncGroup": (SYNC, "REJOIN 7 14 27; REFIND 15 16; FAIL 23 30; LOST 22; RESET 25 110; FENCED 82"),
    "Heartbeat": (HEARTBEAT, "RETRY 14; REFIND 15 16; FAIL 30; LOST 22; RESET 25 110; REJOIN 27; FENCED 82"),
    "LeaveGroup": (LEAVE, "RETRY 14; REFIND 15 16; DONE 25 82"),
    "ConsumerGroupHeartbeat": (
        KIP848_HEARTBEAT,
        "RETRY 14 111; REFIND 15 16; FAIL 29 30 35 42 81 112 128; LOST 25 69 110; FENCED 82; NEW_EPOCH 113",
    ),
    "ConsumerGroupHeartbeat of a leaving member": (KIP848_LEAVE, "RETRY 14; REFIND 15 16; DONE 25 69 82 110"),
}


def expected(api: str) -> dict[int, str]:
    """Error code -> reaction."""
    reactions = (part.split() for part in REACTIONS[api][1].split("; "))
    return {int(code): name for name, *codes in reactions for code in codes}


@pytest.mark.parametrize("api", REACTIONS)
def test_each_code_that_the_coordinator_may_send_has_its_reaction(api: str) -> None:
    assert {code: reaction_to(code, REACTIONS[api][0]).name for code in expected(api)} == expected(api)


@pytest.mark.parametrize("api", REACTIONS)
def test_no_table_names_a_code_that_the_coordinator_does_not_send(api: str) -> None:
    # SyncGroup and JoinGroup share the table of Heartbeat
    assert set(map(int, REACTIONS[api][0])) - expected(api).keys() <= {27, 110}


def test_unknown_codes_are_not_retried() -> None:
    assert reaction_to(9999, COMMIT) is Reaction.FAIL
