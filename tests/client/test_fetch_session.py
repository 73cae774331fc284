"""The requests of a fetch session (KIP-227). `tests/fetch/test_fetcher_sessions.py` shows how brokers use them."""

from __future__ import annotations

import uuid

from allocator.core.client.fetch_messages import FetchResponse, FetchSession, Wanted
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
