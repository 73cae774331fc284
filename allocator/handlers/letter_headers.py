"""Writes and reads the headers that name the origin and the error of a dead letter. Pure.

It reads the headers of three writers: this library's `allocator.*`, Spring Kafka's `kafka_dlt-*` (numbers are
big-endian integers of 4 and 8 bytes) and Kafka Connect's `__connect.errors.*` (numbers are text).
"""

from __future__ import annotations

import contextlib
import re
import struct
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from allocator.core.settings import check_topic
from allocator.core.text import plain, text_of, utf8
from allocator.errors import ConfigError
from allocator.types import Record, TopicPartition

PREFIX = "allocator."
# other tools read the prefixes of Spring Kafka's DeadLetterPublishingRecoverer and of Kafka Connect
SPRING = "kafka_dlt-"
CONNECT = "__connect.errors."
CLASSES = (SPRING + "exception-fqcn", CONNECT + "exception.class.name")
CLASS_NAME = re.compile(r"[\w$.<>]{1,250}")
REDRIVES = "allocator.redrives"  # counts how often the record was written back to its topic
FIRST_TIMESTAMP = "allocator.first_timestamp"  # timestamp of a redriven record before its first redrive, in ms
NULL_VALUE = "allocator.null_value"  # "true" if key and value are null; only letters of such records have it
RETRIES = "allocator.retries"  # number of retry topics that the record has been in; only in retry topics
DUE = "allocator.due"  # due time of a record in a retry topic, in ms since the epoch; only in retry topics
ERROR_BYTES = 1000  # maximum bytes of the error's text; a longer text could make a large record too large for the topic
STACK_BYTES = 4000
LONGEST_TEXT = 10_000  # characters of an error in logs
LAST_PARTITION, LAST_OFFSET = (1 << 31) - 1, (1 << 63) - 1  # the protocol's largest ones


class Origin(NamedTuple):
    """The contents of a dead letter's headers. A missing header is None; a missing text is ""."""

    partition: Optional[TopicPartition]
    offset: Optional[int]
    timestamp: Optional[int]
    """Milliseconds since the epoch."""
    group: str
    error: str
    """The error's class and message."""
    error_class: str
    """The error's class, which quotes no record; "" if no header has it alone."""
    stack: str
    attempts: Optional[int]
    redrives: int
    """Number of times that the record was written back to its topic before."""


def headers_of(record: Record, group: str, error: BaseException, attempts: int) -> list[tuple[str, Optional[bytes]]]:
    """Returns the headers of a dead letter.

    They are the record's own headers, then `allocator.topic`, `.partition`, `.offset`, `.timestamp`, `.group`, `.error`
    and `.attempts` as text, and then the same values and the stack under Spring Kafka's names, with binary numbers.
    """
    error, stack = _formatted(error)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    text = text_of(error)
    own = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "group": group,
        "error": f"{kind}: {text}",
        "attempts": str(attempts),
    }
    time_type = (
        "NoTimestampType" if record.timestamp_type is None else ("CreateTime", "LogAppendTime")[record.timestamp_type]
    )
    spring = {
        "original-topic": utf8(record.topic),
        "original-partition": struct.pack(">i", record.partition),
        "original-offset": struct.pack(">q", record.offset),
        "original-timestamp": struct.pack(">q", record.timestamp),
        "original-timestamp-type": time_type.encode(),
        "original-consumer-group": utf8(group),
        "exception-fqcn": utf8(kind),
        "exception-message": utf8(text)[:ERROR_BYTES],
        # keep the end of the stack, which shows the innermost call and the error
        "exception-stacktrace": utf8(stack)[-STACK_BYTES:],
    }
    letter: list[tuple[str, Optional[bytes]]] = [
        *((PREFIX + name, utf8(each)[:ERROR_BYTES]) for name, each in own.items()),
        *(((NULL_VALUE, b"true"),) if record.key is None and record.value is None else ()),
        *((SPRING + name, data) for name, data in spring.items()),
    ]
    names = {name for name, _ in letter} | {NULL_VALUE, RETRIES, DUE}
    return [*_without_own_letter(record.headers, group, names), *letter]


def shortened(error: BaseException) -> BaseException:
    """Returns the error, or one of the same name with the begin of its text if that text, or its cause's, is long.

    A handler may quote a record of 50 MB in an error. To log that would take longer than the lease. An error whose
    attributes raise cannot be logged with its traceback either.
    """
    return _formatted(error)[0]


def _formatted(error: BaseException) -> tuple[BaseException, str]:
    """Returns what `shortened` returns, with its traceback as text."""
    with contextlib.suppress(Exception):  # whatever the user's class raises
        if all(_length(each) <= LONGEST_TEXT for each in error_chain(error)):
            return error, _traceback_of(error)
    text = text_of(error)
    kind = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    kind.__qualname__ = type(error).__qualname__
    left_out = f"... ({len(text)} characters)" if len(text) > LONGEST_TEXT else ""
    found: BaseException = kind(text[:LONGEST_TEXT] + left_out)
    found = found.with_traceback(error.__traceback__)
    return found, _traceback_of(found)


def _traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, those that a traceback shows before it, and those of a group."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner: Sequence[BaseException] = ()
        before: BaseException | None = None
        with contextlib.suppress(Exception):  # whatever the user's class raises
            inner = getattr(error, "exceptions", ()) if _is_group(error) else ()
            # not `or`: an error of a user's class may be false
            hidden = error.__cause__ is not None or error.__suppress_context__
            before = error.__cause__ if hidden else error.__context__
        for each in inner:
            yield from error_chain(each)
        error = before


def _length(error: BaseException) -> int:
    notes = getattr(error, "__notes__", ())
    return sum(map(len, map(text_of, [error, *(notes if isinstance(notes, Sequence) else (notes,))])))


def _is_group(error: BaseException) -> bool:
    return any(each.__name__ == "BaseExceptionGroup" for each in type(error).__mro__)  # from Python 3.11 on


def own_count(headers: Sequence[tuple[str, Optional[bytes]]]) -> int | None:
    """Returns how many headers a record had before `headers_of` appended others; None: it has not.

    The record may have headers of the same names, as a letter has that became a letter of the next service.
    """
    return next((n for n in reversed(range(len(headers))) if headers[n][0] == PREFIX + "topic"), None)


def _without_own_letter(
    headers: Sequence[tuple[str, Optional[bytes]]], group: str, names: Collection[str]
) -> Sequence[tuple[str, Optional[bytes]]]:
    """Leaves out what an earlier letter of the same group had: a tool may have written it back with all its headers.

    `names`: those of a letter's headers. The tool may have appended others, which are the record's own by now.
    """
    count = own_count(headers)
    if count is None or dict(headers[count:]).get(PREFIX + "group") != utf8(group):
        return headers
    return [*headers[:count], *(each for each in headers[count:] if each[0] not in names)]


def own_headers(record: Record) -> list[tuple[str, Optional[bytes]]]:
    """Returns the headers that a record had before it became a dead letter, and those of earlier redrives."""
    count = own_count(record.headers)
    if count is not None:
        return list(record.headers[:count])
    return [(name, value) for name, value in record.headers if not name.startswith((SPRING, CONNECT))]


def origin_of(record: Record) -> Origin:
    """Reads the headers. If a name occurs several times, the last one counts."""
    headers = {name: value for name, value in record.headers if value is not None}
    topic = _text(headers, PREFIX + "topic", SPRING + "original-topic", CONNECT + "topic")
    number = _number(headers, "partition", ">i", LAST_PARTITION)
    return Origin(
        TopicPartition(topic, number) if number is not None and _is_topic(topic) else None,
        _number(headers, "offset", ">q"),
        _number(headers, "timestamp", ">q"),
        _text(headers, PREFIX + "group", SPRING + "original-consumer-group", CONNECT + "connector.name"),
        _error(headers),
        _error_class(headers),
        _text(headers, SPRING + "exception-stacktrace", CONNECT + "exception.stacktrace", lines=True),
        integer(headers.get(PREFIX + "attempts")),
        integer(headers.get(REDRIVES)) or 0,
    )


def restored(record: Record) -> tuple[Optional[bytes], list[tuple[str, Optional[bytes]]]]:
    """Returns the original value and headers of a dead letter, for a redrive.

    Two headers are added: the first timestamp, and the number of redrives.
    """
    origin, own = origin_of(record), own_headers(record)
    marks = dict(record.headers[own_count(record.headers) or 0 :])  # the record's own headers may have the same names
    headers = [each for each in own if each[0] not in (REDRIVES, FIRST_TIMESTAMP)]
    first_ms = record.timestamp if origin.timestamp is None else origin.timestamp
    headers += [
        (FIRST_TIMESTAMP, dict(own).get(FIRST_TIMESTAMP) or b"%d" % first_ms),
        (REDRIVES, b"%d" % (origin.redrives + 1)),
    ]
    return None if marks.get(NULL_VALUE) == b"true" else record.value, headers


def _error(headers: Mapping[str, bytes]) -> str:
    own = _text(headers, PREFIX + "error")
    if own:
        return own
    kind = _text(headers, *CLASSES)
    message = _text(headers, SPRING + "exception-message", CONNECT + "exception.message")
    return ": ".join(filter(None, (kind, message)))


def _error_class(headers: Mapping[str, bytes]) -> str:
    """Returns the class of the error. A foreign `allocator.error` may begin with anything, so it does not count."""
    kind = _text(headers, *CLASSES)
    return kind if CLASS_NAME.fullmatch(kind) else ""


def _text(headers: Mapping[str, bytes], *names: str, lines: bool = False) -> str:
    found = next((headers[name] for name in names if name in headers), b"")
    return plain(found.decode(errors="replace"), lines=lines)


def _is_topic(name: str) -> bool:
    try:
        check_topic(name)
    except ConfigError:
        return False
    return True


def _number(headers: Mapping[str, bytes], name: str, format: str, most: int = LAST_OFFSET) -> int | None:
    spring = headers.get(SPRING + "original-" + name)
    for text in (headers.get(PREFIX + name), headers.get(CONNECT + name)):
        number = integer(text, most)
        if number is not None:
            return number
    if spring is not None and len(spring) == struct.calcsize(format):
        return int(struct.unpack(format, spring)[0])
    return None


def integer(text: bytes | None, most: int = LAST_OFFSET) -> int | None:
    """Returns the number that a header has as text; None for another text, and for a number that no record can have.

    Anyone who may write to the topic may have written it.
    """
    try:
        number = int(text or b"")
    except ValueError:
        return None
    return number if -most <= number <= most else None
