"""The requests of a fetch session (KIP-227). `tests/fetch/test_fetcher_sessions.py` shows how brokers use them."""

from __future__ import annotations

import uuid

import pytest

from allocator.core.client.fetch_messages import (
    SESSION_ERRORS,
    FetchedPartition,
    FetchResponse,
    FetchSession,
    Wanted,
)
from allocator.types import TopicPartition

A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("c", 0)
ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)


def want(offset: int = 0, topic_id: uuid.UUID | None = None) -> Wanted:
    return Wanted(offset, 1000, 3, topic_id)


def granted(session_id: int = 9) -> FetchResponse:
    return FetchResponse(12, [], 0, session_id)


def started(*, by_id: bool = False) -> FetchSession:
    """Returns session 9 with A and B at offset 0."""
    session = FetchSession()
    known = {A: want(0, ONE if by_id else None), B: want(0, ONE if by_id else None)}
    assert session.turn(known, 18).session == (0, 0)
    assert session.received(granted())
    return session


def test_a_request_lists_changed_partitions_and_removes_missing_ones() -> None:
    session = started()
    turn = session.turn({A: want(5), C: want(1)}, 12)
    assert turn.session == (9, 1)
    assert turn.wanted == {A: want(5), C: want(1)}
    assert set(turn.forgotten) == {B}
    session.received(granted())
    turn = session.turn({A: Wanted(5, 1000, 4, None), C: want(1)}, 12)
    assert (turn.session, turn.forgotten) == ((9, 2), {})
    assert turn.wanted == {A: Wanted(5, 1000, 4, None)}, "a new leader epoch"


@pytest.mark.parametrize(
    ("response", "next_session"),
    [
        (None, (9, 0)),  # it was lost
        (granted(0), (0, 0)),  # the broker dropped the session
        (FetchResponse(12, [], -1), (9, 0)),
        *((FetchResponse(12, [], code), (0, 0) if code == 70 else (9, 0)) for code in sorted(SESSION_ERRORS)),
    ],
)
def test_after_an_error_a_new_session_has_every_partition(
    response: FetchResponse | None, next_session: tuple[int, int]
) -> None:
    session = started()
    session.turn({A: want(1), B: want()}, 12)
    if response is None:
        session.lost()
    else:
        assert session.received(response) is (response.error_code not in SESSION_ERRORS)
    turn = session.turn({A: want(1), B: want()}, 12)
    assert (turn.session, set(turn.wanted), turn.forgotten) == (next_session, {A, B}, {})
    session.received(granted(10))
    assert session.turn({A: want(1), B: want()}, 12).session == (10, 1)


def test_requests_have_topic_ids_once_all_topics_have_one() -> None:
    session = started(by_id=True)
    turn = session.turn({A: want(1, ONE), B: want(0, ONE)}, 18)
    assert (turn.max_version, set(turn.wanted)) == (18, {A})
    session.received(granted())
    turn = session.turn({A: want(1, ONE), B: want(0, ONE), C: want()}, 18)
    assert turn.max_version == 12
    assert turn.session == (9, 0), "the session named topics by id"
    assert set(turn.wanted) == {A, B, C}


def test_a_recreated_topic_is_another_topic() -> None:
    session = started(by_id=True)
    turn = session.turn({A: want(0, TWO), B: want(0, ONE)}, 18)
    assert turn.wanted == {A: want(0, TWO)}
    assert turn.forgotten == {A: want(0, ONE)}


def test_parts_have_the_names_of_their_topics() -> None:
    session = started(by_id=True)
    parts = [
        FetchedPartition(ONE.bytes, 1, 0, 5, 5, -1, [], b""),
        FetchedPartition(TWO.bytes, 0, 0, 5, 5, -1, [], b""),
        FetchedPartition("c", 0, 0, 5, 5, -1, [], b""),
    ]
    assert [tp for tp, _ in session.parts(parts)] == [B, C]
