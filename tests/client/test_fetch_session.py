"""The requests of a fetch session (KIP-227), step by step."""

from __future__ import annotations

import uuid

import pytest

from allocator.core.client.fetch_messages import (
    NO_SESSION,
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


def begun(*, by_id: bool = False) -> FetchSession:
    """A session that knows A and B at offset 0."""
    session = FetchSession()
    known = {A: want(0, ONE if by_id else None), B: want(0, ONE if by_id else None)}
    assert session.turn(known, 18).session == (0, 0)
    assert session.received(granted())
    return session


def test_a_request_has_only_changed_partitions_and_forgets_the_others() -> None:
    session = begun()
    turn = session.turn({A: want(5), C: want(1)}, 12)
    assert turn.session == (9, 1)
    assert turn.wanted == {A: want(5), C: want(1)}
    assert set(turn.forgotten) == {B}
    session.received(granted())
    turn = session.turn({A: want(5), C: want(1)}, 12)
    assert (turn.session, turn.wanted, turn.forgotten) == ((9, 2), {}, {})
    session.received(granted())
    assert session.turn({A: Wanted(5, 1000, 4, None), C: want(1)}, 12).wanted == {A: Wanted(5, 1000, 4, None)}


def test_each_request_to_an_old_broker_has_every_partition() -> None:
    session = FetchSession()
    for _ in range(2):
        turn = session.turn({A: want(), B: want()}, 6)
        assert (turn.session, set(turn.wanted), turn.forgotten) == (NO_SESSION, {A, B}, {})
        assert session.received(FetchResponse(6, []))


def test_without_a_session_each_request_has_every_partition() -> None:
    session = FetchSession()
    for _ in range(3):
        turn = session.turn({A: want()}, 12)
        assert (turn.session, set(turn.wanted)) == ((0, 0), {A})
        assert session.received(granted(0))


@pytest.mark.parametrize("code", sorted(SESSION_ERRORS))
def test_a_refused_session_is_replaced_by_one_with_every_partition(code: int) -> None:
    session = begun()
    session.turn({A: want(1)}, 12)
    assert not session.received(FetchResponse(12, [], code))
    turn = session.turn({A: want(1)}, 12)
    # the broker has no session to close
    assert turn.session == ((0, 0) if code == 70 else (9, 0))
    assert (set(turn.wanted), turn.forgotten) == ({A}, {})
    session.received(granted(10))
    assert session.turn({A: want(1)}, 12).session == (10, 1)


def test_another_error_of_the_response_is_delivered_and_ends_the_session() -> None:
    session = begun()
    session.turn({A: want(1)}, 12)
    assert session.received(FetchResponse(12, [], -1))
    assert session.turn({A: want(1)}, 12).session == (9, 0)


def test_a_lost_response_replaces_the_session() -> None:
    session = begun()
    session.turn({A: want(1)}, 12)
    session.lost()
    turn = session.turn({A: want(1), B: want()}, 12)
    assert (turn.session, set(turn.wanted)) == ((9, 0), {A, B})


def test_a_session_that_the_broker_dropped_is_replaced() -> None:
    session = begun()
    session.turn({A: want(1)}, 12)
    session.received(granted(0))
    assert session.turn({A: want(1)}, 12).session == (0, 0)


def test_requests_have_topic_ids_once_all_topics_have_one() -> None:
    session = begun(by_id=True)
    turn = session.turn({A: want(1, ONE), B: want(0, ONE)}, 18)
    assert (turn.max_version, set(turn.wanted)) == (18, {A})
    session.received(granted())
    turn = session.turn({A: want(1, ONE), B: want(0, ONE), C: want()}, 18)
    assert turn.max_version == 12
    assert turn.session == (9, 0), "the session spoke of topics by id"
    assert set(turn.wanted) == {A, B, C}


def test_a_recreated_topic_is_another_topic() -> None:
    session = begun(by_id=True)
    turn = session.turn({A: want(0, TWO), B: want(0, ONE)}, 18)
    assert turn.wanted == {A: want(0, TWO)}
    assert turn.forgotten == {A: want(0, ONE)}


def test_parts_have_the_names_of_their_topics() -> None:
    session = begun(by_id=True)
    parts = [
        FetchedPartition(ONE.bytes, 1, 0, 5, 5, -1, [], b""),
        FetchedPartition(TWO.bytes, 0, 0, 5, 5, -1, [], b""),
        FetchedPartition("c", 0, 0, 5, 5, -1, [], b""),
    ]
    assert [tp for tp, _ in session.parts(parts)] == [B, C]
