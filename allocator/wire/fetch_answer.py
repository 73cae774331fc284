"""Fetch answers, read from the frame that the broker sent (https://kafka.apache.org/protocol#The_Messages_Fetch).

kafka-python's decoder copies a frame four times on its way to an object for each partition; at hundreds of megabytes
a second that is what a consumer spends its time on. This one walks the frame where it was received, and copies the
records of each partition once, so that the frame's memory serves the next answer.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple, Union

import kafka.errors as kafka_errors

from allocator.wire.answer_reader import INT32, AnswerReader

__all__ = ["NEWEST", "FetchAnswer", "Part", "read_answer"]

NEWEST: Final = 18
# from here on lengths and counts are compact and everything may carry tagged fields
_FLEXIBLE: Final = 12
# from here on topics go by id
_BY_ID: Final = 13

_ERROR_AND_SESSION: Final = struct.Struct(">hi")
_ABORTED: Final = struct.Struct(">qq")
# partition, error, high watermark; then the last stable offset (v4) and the log's start (v5)
_PART: Final = {0: struct.Struct(">ihq"), 4: struct.Struct(">ihqq"), 5: struct.Struct(">ihqqq")}


class Part(NamedTuple):
    """One partition of an answer; the topic's name, or its id from v13 on.

    `aborted` is (producer id, first offset) of each aborted transaction. -1 stands for what the version does not tell.
    """

    topic: Union[str, uuid.UUID]
    partition: int
    code: int
    high_watermark: int
    last_stable_offset: int
    preferred_replica: int
    aborted: list[tuple[int, int]]
    records: bytes


class FetchAnswer:
    """An answer. `error_code` is that of the whole (v7 on), `session_id` 0 if it belongs to no session."""

    __slots__ = ("API_VERSION", "error_code", "parts", "session_id", "throttle_time_ms")

    def __init__(self, version: int, parts: list[Part], error_code: int = 0, session_id: int = 0) -> None:
        # kafka-python reads these two names of every answer
        self.API_VERSION = version
        self.throttle_time_ms = 0
        self.error_code = error_code
        self.session_id = session_id
        self.parts = parts

    def __repr__(self) -> str:
        size = sum(len(part.records) for part in self.parts)
        return f"<FetchAnswer v{self.API_VERSION} error {self.error_code}, {len(self.parts)} partitions, {size} bytes>"


def read_answer(frame: memoryview, version: int) -> tuple[int, FetchAnswer]:
    """The correlation id and the answer in `frame` (without its length), which is not needed afterwards.

    Raises kafka-python's `KafkaProtocolError` for what does not decode; never takes more memory than the frame does.
    """
    try:
        return _Reader(frame, version).answer()
    except (struct.error, IndexError, ValueError) as error:
        raise kafka_errors.KafkaProtocolError(
            f"a Fetch answer v{version} of {len(frame)} bytes that does not decode: {error}"
        ) from error


class _Reader(AnswerReader):
    def __init__(self, frame: memoryview, version: int) -> None:
        super().__init__(frame, version, flexible=version >= _FLEXIBLE)

    def answer(self) -> tuple[int, FetchAnswer]:
        version = self.version
        correlation_id = self.header()
        throttle = self.unpack(INT32)[0] if version >= 1 else 0
        error, session = self.unpack(_ERROR_AND_SESSION) if version >= 7 else (0, 0)
        parts: list[Part] = []
        for _ in range(self.count()):
            topic = self.topic()
            for _ in range(self.count()):
                parts.append(self.part(topic))
            self.tags()
        self.tags()
        answer = FetchAnswer(version, parts, error, session)
        answer.throttle_time_ms = throttle
        return correlation_id, answer

    def part(self, topic: Union[str, uuid.UUID]) -> Part:
        version = self.version
        stable = replica = -1
        aborted: list[tuple[int, int]] = []
        if version >= 5:
            partition, code, high, stable, _ = self.unpack(_PART[5])
        elif version == 4:
            partition, code, high, stable = self.unpack(_PART[4])
        else:
            partition, code, high = self.unpack(_PART[0])
        if version >= 4:
            for _ in range(self.count()):
                producer, first = self.unpack(_ABORTED)
                aborted.append((producer, first))
                self.tags()
        if version >= 11:
            (replica,) = self.unpack(INT32)
        size = self.count()
        records = bytes(self.taken(size)) if size else b""
        self.tags()
        return Part(topic, partition, code, high, stable, replica, aborted, records)

    def topic(self) -> Union[str, uuid.UUID]:
        if self.version >= _BY_ID:
            return uuid.UUID(bytes=bytes(self.taken(16)))
        return self.text()
