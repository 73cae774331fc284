"""How the headers of a dead letter are read, for three writers: allocator, Spring Kafka and Kafka Connect."""

from __future__ import annotations

import struct

import pytest

from allocator.handlers.letter_headers import headers_of
from allocator.handlers.schemas import Masks
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


def of(headers: list[tuple[str, bytes | None]]) -> Letter:
    return Letter.of(Record("dead", 0, 5, 2000, 0, b"k", b"v", headers))


@pytest.mark.parametrize("headers", [SPRING, CONNECT], ids=["spring", "connect"])
def test_letters_of_other_writers_are_read(headers: list[tuple[str, bytes | None]]) -> None:
    letter = of(headers)
    assert (letter.original, letter.original_offset, letter.group) == (ORDERS, 17, "billing")
    assert (letter.error, letter.stack, letter.attempts, letter.redrives) == ("ValueError: bad", STACK, None, 0)


def test_a_letter_is_redriven_as_the_original_record() -> None:
    record = Record("orders", 3, 17, 1234, 0, None, None, [("trace", b"x"), ("null", None), ("empty", b"")])
    headers = headers_of(record, "billing", ValueError("bad"), 6)
    letter = of([*headers])
    assert (letter.original, letter.original_offset, letter.attempts) == (ORDERS, 17, 6)
    for_spring = of([each for each in headers if each[0].startswith("kafka_dlt-")])
    assert (for_spring.original, for_spring.original_offset, for_spring.group) == (ORDERS, 17, "billing")
    assert (for_spring.error, for_spring.stack) == ("builtins.ValueError: bad", "ValueError: bad\n")
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


def test_headers_that_a_tool_appends_to_a_letter_it_writes_back_are_kept() -> None:
    """The record fails again: its next letter replaces the first one, and the rest is the record's own."""
    record = Record("orders", 3, 17, 1234, 0, None, None, [("trace", b"x")])
    retried = [("allocator.retries", b"1"), ("allocator.due", b"5")]
    appended = [("tenant", b"42"), ("allocator.redrives", b"1"), ("kafka_dlt-other", None), ("trace", b"y")]
    written_back = [*headers_of(record, "billing", ValueError("bad"), 6), *retried, *appended]
    again = headers_of(Record("orders", 3, 18, 5000, 0, None, b"v", written_back), "billing", TypeError("worse"), 2)
    assert again[:5] == [("trace", b"x"), *appended]
    names = [name for name, _ in again[5:]]
    assert names[0] == "allocator.topic"
    assert len(names) == len(set(names))
    assert not set(names) & {"allocator.null_value", "allocator.retries", "allocator.due"}
    own = [each for each in redriven(of(again), 9000).headers if not each[0].startswith("allocator.")]
    assert own == [("trace", b"x"), ("tenant", b"42"), ("kafka_dlt-other", None), ("trace", b"y")]
    # another group's letter is the record's own for this one
    other = headers_of(Record("orders", 3, 18, 5000, 0, None, b"v", written_back), "audit", TypeError("worse"), 2)
    assert other[: len(written_back)] == written_back


@pytest.mark.parametrize("value", [b"", b"v", None])
def test_a_letter_of_a_letter_is_redriven_with_its_value(value: bytes | None) -> None:
    """The first letter was of a null record, which its headers still say when they are the second record's own."""
    first = headers_of(Record("orders", 3, 17, 1234, 0, None, None, []), "billing", ValueError("bad"), 6)
    second = headers_of(Record("orders.dead", 0, 5, 2000, 0, None, value, first), "audit", TypeError("worse"), 1)
    letter = Letter.of(Record("audit.dead", 0, 0, 3000, 0, None, value or b"", second))
    assert redriven(letter, 9000).value == value


def test_missing_or_invalid_headers_are_none() -> None:
    letter = of([("kafka_dlt-original-partition", b"3"), ("allocator.attempts", b"many"), ("null", None)])
    assert (letter.original, letter.original_offset, letter.attempts, letter.error) == (None, None, None, "")
    assert letter.original_timestamp == 2000


@pytest.mark.parametrize("digits", [30, 4300])
def test_numbers_that_no_record_can_have_are_none(digits: int) -> None:
    names = ("partition", "offset", "timestamp", "attempts", "redrives")
    letter = of([("allocator.topic", b"orders"), *(("allocator." + name, b"9" * digits) for name in names)])
    assert (letter.original, letter.original_offset, letter.attempts, letter.redrives) == (None, None, None, 0)
    assert dict(redriven(letter, 9000).headers)["allocator.redrives"] == b"1"


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        (SPRING, "ValueError"),
        (CONNECT, "ValueError"),
        ([("kafka_dlt-exception-message", b"bad")], "***"),
        ([("allocator.error", b"bad")], "***"),
        ([("allocator.error", b"bad: bad")], "***"),
        ([("kafka_dlt-exception-fqcn", b"a bad one")], "***"),
        ([], ""),
    ],
)
def test_with_masks_a_letter_has_only_the_class_of_its_error(headers: list[tuple[str, bytes]], error: str) -> None:
    letter = Letter.of(Record("dead", 0, 5, 2000, 0, b"k", b"v", [*headers]), masks=Masks(["key"]))
    assert letter.error == error
    assert letter.stack in ("", "***")
    assert "bad" not in repr(letter)
    assert not LetterFilter(error="bad").matches(letter)


NESTED = (b"[" * 50_000, b'{"a":' * 50_000, b'{"action":"redriven","at_ms":1e999,"by":"x"}', b"9" * 100_000)


FITS = {"error": "valueerror", "topic": "orders", "since_ms": 2000, "until_ms": 2001, "places": frozenset({(0, 5)})}
FAILS = {"error": "timeout", "topic": "order", "since_ms": 2001, "until_ms": 2000, "places": frozenset({(1, 5)})}


@pytest.mark.parametrize("name", FITS)
def test_a_filter_matches_letters_that_fit_all_its_conditions(name: str) -> None:
    letter = of([*SPRING])
    assert LetterFilter(**FITS).matches(letter)  # type: ignore[arg-type]
    assert not LetterFilter(**{**FITS, name: FAILS[name]}).matches(letter)  # type: ignore[arg-type]
    no_time = Letter.of(Record("dead", 0, 5, -1, None, b"k", b"v", []))
    assert no_time.to_json()["timestamp_ms"] is None
    assert not LetterFilter(since_ms=0).matches(no_time)


@pytest.mark.parametrize(
    "data", [None, b"", b"[]", b"{}", b'{"action": "redriven", "at_ms": "x", "by": "me"}', *NESTED]
)
def test_an_invalid_note_is_none(data: bytes | None) -> None:
    assert Note.decode(data) is None
    note = Note(Settled("discarded", 1, "me@host", "old"), "id-1", 2000)
    assert Note.decode(note.encode()) == note
    bare = Note.decode(b'{"action": "redriven", "at_ms": 1, "by": "me"}')
    assert bare == Note(Settled("redriven", 1, "me"), None, None)
