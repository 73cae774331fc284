"""How the headers of a dead letter are read, for three writers: allocator, Spring Kafka and Kafka Connect."""

from __future__ import annotations

import struct

import pytest

from allocator.handlers.letter_headers import headers_of
from allocator.operate.dead_letters import Letter, LetterFilter, Settled
from allocator.operate.dead_letters.letter import Note, redriven
from allocator.types import Record, TopicPartition

ORDERS = TopicPartition("orders", 3)
STACK = "Traceback:\n  line 1\nValueError: bad"
SPRING = [
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", struct.pack(">i", 3)),
    ("kafka_dlt-original-offset", struct.pack(">q", 17)),
    ("kafka_dlt-original-timestamp", struct.pack(">q", 1234)),
    ("kafka_dlt-original-consumer-group", b"billing"),
    ("kafka_dlt-exception-fqcn", b"ValueError"),
    ("kafka_dlt-exception-message", b"bad"),
    ("kafka_dlt-exception-stacktrace", STACK.encode()),
]
CONNECT = [
    ("__connect.errors.topic", b"orders"),
    ("__connect.errors.partition", b"3"),
    ("__connect.errors.offset", b"17"),
    ("__connect.errors.connector.name", b"billing"),
    ("__connect.errors.exception.class.name", b"ValueError"),
    ("__connect.errors.exception.message", b"bad"),
    ("__connect.errors.exception.stacktrace", STACK.encode()),
]


def of(headers: list[tuple[str, bytes | None]], **more: object) -> Letter:
    return Letter.of(Record("dead", 0, 5, 2000, 0, b"k", b"v", headers))


@pytest.mark.parametrize("headers", [SPRING, CONNECT], ids=["spring", "connect"])
def test_letters_of_other_writers_say_the_same(headers: list[tuple[str, bytes | None]]) -> None:
    letter = of(headers)
    assert (letter.original, letter.original_offset, letter.group) == (ORDERS, 17, "billing")
    assert (letter.error, letter.stack, letter.attempts, letter.redrives) == ("ValueError: bad", STACK, None, 0)


def test_a_letter_is_redriven_as_the_record_that_it_was() -> None:
    record = Record("orders", 3, 17, 1234, 0, None, None, [("trace", b"x"), ("null", None), ("empty", b"")])
    letter = of([*headers_of(record, "billing", ValueError("bad"), 6)])
    assert (letter.original, letter.original_offset, letter.attempts) == (ORDERS, 17, 6)
    assert letter.error == "builtins.ValueError: bad"
    again = redriven(letter, 5000)
    assert (again.value, again.timestamp) == (None, 5000)
    own = [("trace", b"x"), ("null", None), ("empty", b"")]
    first = ("allocator.first_timestamp", b"1234")
    assert again.headers == [*own, first, ("allocator.redrives", b"1")]
    failed_again = Record("orders", 3, 18, 5000, 0, None, None, list(again.headers))
    once_more = of([*headers_of(failed_again, "billing", ValueError("bad"), 6)])
    assert once_more.redrives == 1
    assert redriven(once_more, 9000).headers == [*own, first, ("allocator.redrives", b"2")]


def test_what_the_headers_do_not_say_is_none() -> None:
    letter = of([("kafka_dlt-original-partition", b"3"), ("allocator.attempts", b"many"), ("null", None)])
    assert (letter.original, letter.original_offset, letter.attempts, letter.error) == (None, None, None, "")
    assert letter.original_timestamp == 2000


def test_a_filter_takes_the_letters_that_fit_it_in_all_ways() -> None:
    letter = of(SPRING)  # type: ignore[arg-type]
    for fits in (
        LetterFilter(),
        LetterFilter(error="valueerror", topic="orders", since_ms=2000, until_ms=2001, places=frozenset({(0, 5)})),
    ):
        assert fits.matches(letter)
    for fails in (
        LetterFilter(error="timeout"),
        LetterFilter(topic="order"),
        LetterFilter(since_ms=2001),
        LetterFilter(until_ms=2000),
        LetterFilter(places=frozenset({(1, 5)})),
    ):
        assert not fails.matches(letter)


def test_a_letter_in_a_log_without_timestamps_has_no_time_and_no_filter_by_time_takes_it() -> None:
    letter = Letter.of(Record("dead", 0, 5, -1, None, b"k", b"v", []))
    assert letter.to_json()["timestamp_ms"] is None
    assert LetterFilter().matches(letter)
    assert not LetterFilter(since_ms=0).matches(letter)
    assert not LetterFilter(until_ms=2**60).matches(letter)


@pytest.mark.parametrize("data", [None, b"", b"[]", b"{}", b'{"action": "redriven", "at_ms": "x", "by": "me"}'])
def test_a_note_that_no_version_wrote_is_none(data: bytes | None) -> None:
    assert Note.decode(data) is None
    note = Note(Settled("discarded", 1, "me@host", "old"), "id-1", 2000)
    assert Note.decode(note.encode()) == note
    bare = Note.decode(b'{"action": "redriven", "at_ms": 1, "by": "me"}')
    assert bare == Note(Settled("redriven", 1, "me"), None, None)


def test_a_note_is_about_one_letter_of_one_topic() -> None:
    settled = Settled("redriven", 1, "me")
    assert Note(settled, "id-1", 2000).concerns(2000, "id-1")
    assert not Note(settled, "id-1", 2000).concerns(2000, "id-2")
    assert not Note(settled, None, 2000).concerns(2001, None), "brokers before 2.8 know no topic id"
    assert Note(settled, None, None).concerns(2000, "id-1")
