"""One dead letter: the record, its original place and the error, from its headers and through masks. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Optional

from allocator.core.aio import milliseconds
from allocator.core.settings import MASK
from allocator.core.text import parse_json
from allocator.errors import ConfigError
from allocator.handlers import origin_of, restored
from allocator.handlers.schemas import Masks
from allocator.producer import NewRecord
from allocator.types import Record, TopicPartition

NO_MASKS = Masks()
MAX_SUMMARY_TEXT = 4000  # characters of a text in a summary. Higher: lists of letters take more memory


class Settled(NamedTuple):
    """How a letter was settled: "redriven" or "discarded", when (ms since the epoch), by which operator, and why."""

    action: str
    at_ms: int
    by: str
    reason: str = ""


class Note(NamedTuple):
    """The note that a letter is settled. Its key is the letter's partition and offset.

    A topic that is deleted and created again uses the same offsets again. So the note also has the id of the topic and
    the timestamp of the letter.
    """

    settled: Settled
    topic_id: Optional[str]
    """None for brokers before 2.8."""
    written_ms: Optional[int]
    """The timestamp of the letter."""

    def concerns(self, written_ms: int, topic_id: Optional[str]) -> bool:
        """Returns whether the note is about the letter with this timestamp in the topic with this id."""
        return self.written_ms in (None, written_ms) and (
            None in (self.topic_id, topic_id) or self.topic_id == topic_id
        )

    def encode(self) -> bytes:
        return json.dumps({**self.settled._asdict(), "topic_id": self.topic_id, "written_ms": self.written_ms}).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> Note | None:
        """Returns None for content that no version of this library writes."""
        try:
            found = parse_json(data or b"")
            topic_id, written_ms = found.get("topic_id"), found.get("written_ms")
            return cls(
                Settled(str(found["action"]), int(found["at_ms"]), str(found["by"]), str(found.get("reason", ""))),
                None if topic_id is None else str(topic_id),
                None if written_ms is None else int(written_ms),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class Letter:
    """A record of a dead-letter topic, as masks show it. Fields that its headers lack are None, or "" for texts.

    With any mask, `error` is only the class of the error, or "***" if no header has it alone, and `stack` is "***":
    messages and stacks may quote the record.
    """

    place: TopicPartition
    """The partition of the letter."""
    offset: int
    """The offset of the letter."""
    record: Record = field(repr=False)
    """The record without masks: to be written again, or decoded by a `Viewer`."""
    original: Optional[TopicPartition]
    original_offset: Optional[int]
    original_timestamp: int
    """Milliseconds since the epoch; the timestamp of the letter if the headers lack it."""
    group: str
    error: str
    """The class and message of the error."""
    stack: str
    attempts: Optional[int]
    redrives: int
    """Number of earlier times that the record was written back to its topic."""
    settled: Optional[Settled] = None

    @classmethod
    def of(cls, record: Record, settled: Settled | None = None, masks: Masks = NO_MASKS) -> Letter:
        """Returns the letter from a record. The last header of a name counts."""
        origin = origin_of(record)
        return cls(
            TopicPartition(record.topic, record.partition),
            record.offset,
            record,
            origin.partition,
            origin.offset,
            record.timestamp if origin.timestamp is None else origin.timestamp,
            origin.group,
            (origin.error_class or MASK) if masks and origin.error else origin.error,
            MASK if masks and origin.stack else origin.stack,
            origin.attempts,
            origin.redrives,
            settled,
        )

    @property
    def name(self) -> str:
        """The name of the letter in commands: "partition:offset"."""
        return f"{self.place.partition}:{self.offset}"

    @property
    def written_ms(self) -> Optional[int]:
        """Time of the letter in milliseconds since the epoch; None in a log without timestamps (0.9)."""
        return self.record.timestamp if self.record.timestamp >= 0 else None

    def to_json(self) -> dict[str, Any]:
        """Returns the letter without key, value and headers."""
        original = self.original
        return {
            "letter": self.name,
            "topic": None if original is None else original.topic,
            "partition": None if original is None else original.partition,
            "offset": self.original_offset,
            "timestamp_ms": self.written_ms,
            "group": self.group,
            "error": self.error,
            "attempts": self.attempts,
            "redrives": self.redrives,
            "settled": None if self.settled is None else self.settled._asdict(),
        }


@dataclass(frozen=True)
class LetterFilter:
    """Selects letters. Without fields: all letters.

    `error`: a part of the error as the letter shows it. `topic`: the original topic. `since_ms` and `until_ms`
    (exclusive): times of letters in milliseconds since the epoch; a letter without a time matches neither. `places`:
    (partition, offset) of letters.
    """

    error: str = ""
    topic: str = ""
    since_ms: Optional[int] = None
    until_ms: Optional[int] = None
    places: frozenset[tuple[int, int]] = frozenset()

    def matches(self, letter: Letter) -> bool:
        written_ms = letter.written_ms
        return (
            self.error.casefold() in letter.error.casefold()
            and (not self.topic or (letter.original is not None and letter.original.topic == self.topic))
            and (self.since_ms is None or (written_ms is not None and written_ms >= self.since_ms))
            and (self.until_ms is None or (written_ms is not None and written_ms < self.until_ms))
            and (not self.places or (letter.place.partition, letter.offset) in self.places)
        )


def summary_of(letter: Letter) -> Letter:
    """Returns the letter without key, value and headers of its record, and with the beginning of long texts.

    A letter of a few hundred bytes in the log may decompress to megabytes.
    """
    bare = letter.record
    record = Record(bare.topic, bare.partition, bare.offset, bare.timestamp, bare.timestamp_type, None, None, [])
    group, error = letter.group[:MAX_SUMMARY_TEXT], letter.error[:MAX_SUMMARY_TEXT]
    return replace(letter, record=record, group=group, error=error, stack=letter.stack[-MAX_SUMMARY_TEXT:])


def redriven(letter: Letter, now_ms: int) -> NewRecord:
    """Returns the original record with two more headers: its first timestamp, and the number of redrives.

    Its timestamp is `now_ms`, because the retention of its topic could delete an old record at once.
    """
    value, headers = restored(letter.record)
    return NewRecord(letter.record.key, value, now_ms, headers)


def parse_place(name: str) -> tuple[int, int]:
    """Returns (partition, offset) from the name of a letter. Raises ConfigError."""
    if not re.fullmatch(r"[0-9]{1,9}:[0-9]{1,18}", name):
        raise ConfigError(f'letter {name!r} is not "PARTITION:OFFSET", such as "0:17"')
    partition, _, offset = name.partition(":")
    return int(partition), int(offset)


def parse_time(option: str, text: str | None) -> int | None:
    """Returns milliseconds since the epoch for an ISO 8601 time; None for "" or None. Raises ConfigError."""
    try:
        return milliseconds(text) if text else None
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not a time such as 2026-01-31T12:00:00Z ({error})") from None
