"""Fetch answers, read from the frame that the broker sent (https://kafka.apache.org/protocol#The_Messages_Fetch).

kafka-python's decoder copies a frame four times on its way to an object for each partition; at hundreds of megabytes
a second that is what a consumer spends its time on. This one walks the frame where it was received, and copies the
records of each partition once, so that the frame's memory serves the next answer.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Optional, Union

import kafka.errors as kafka_errors

from allocator.client.request_writer import RequestHeader, RequestWriter
from allocator.client.response_reader import INT32, AnswerReader
from allocator.types import TopicPartition

__all__ = [
    "BOUNDED",
    "BY_NAME",
    "NEWEST",
    "NO_SESSION",
    "SESSIONS",
    "SESSION_ERRORS",
    "FetchAnswer",
    "FetchRequest",
    "FetchSession",
    "FetchedPartition",
    "Turn",
    "Wanted",
    "newest_for",
    "read_response",
]

NEWEST: Final = 18


# from here on lengths and counts are compact and everything may carry tagged fields
_FLEXIBLE: Final = 12


# from here on topics go by id
_BY_ID: Final = 13


_ERROR_AND_SESSION: Final = struct.Struct(">hi")


_ABORTED: Final = struct.Struct(">qq")


# v5 and the compact count of aborted transactions (0: null, 1: none), and the preferred replica
_NONE_ABORTED: Final = struct.Struct(">ihqqqBi")
# partition, error, high watermark; then the last stable offset (v4) and the log's start (v5)
_PART: Final = {0: struct.Struct(">ihq"), 4: struct.Struct(">ihqq"), 5: struct.Struct(">ihqqq")}


class FetchedPartition(NamedTuple):
    """One partition of an answer; the topic's name, or the 16 bytes of its id from v13 on.

    `aborted` is (producer id, first offset) of each aborted transaction. -1 stands for what the version does not tell.
    """

    topic: Union[str, bytes]
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

    def __init__(self, version: int, parts: list[FetchedPartition], error_code: int = 0, session_id: int = 0) -> None:
        # kafka-python reads these two names of every answer
        self.API_VERSION = version
        self.throttle_time_ms = 0
        self.error_code = error_code
        self.session_id = session_id
        self.parts = parts

    def __repr__(self) -> str:
        size = sum(len(part.records) for part in self.parts)
        return f"<FetchAnswer v{self.API_VERSION} error {self.error_code}, {len(self.parts)} partitions, {size} bytes>"


def read_response(frame: memoryview, version: int) -> tuple[int, FetchAnswer]:
    """The correlation id and the answer in `frame` (without its length), which is not needed afterwards.

    Raises kafka-python's `KafkaProtocolError` for what does not decode; never takes more memory than the frame does.
    """
    try:
        return _FetchReader(frame, version).answer()
    except (struct.error, IndexError, ValueError) as error:
        raise kafka_errors.KafkaProtocolError(
            f"a Fetch answer v{version} of {len(frame)} bytes that does not decode: {error}"
        ) from error


class _FetchReader(AnswerReader):
    def __init__(self, frame: memoryview, version: int) -> None:
        super().__init__(frame, version, flexible=version >= _FLEXIBLE)

    def answer(self) -> tuple[int, FetchAnswer]:
        version = self.version
        correlation_id = self.header()
        throttle = self.unpack(INT32)[0] if version >= 1 else 0
        error, session = self.unpack(_ERROR_AND_SESSION) if version >= 7 else (0, 0)
        parts: list[FetchedPartition] = []
        for _ in range(self.count()):
            topic = self.topic()
            for _ in range(self.count()):
                parts.append(self.part(topic))
            self.tags()
        self.tags()
        answer = FetchAnswer(version, parts, error, session)
        answer.throttle_time_ms = throttle
        return correlation_id, answer

    def part(self, topic: Union[str, bytes]) -> FetchedPartition:
        version = self.version
        stable = replica = -1
        aborted: list[tuple[int, int]] = []
        if version >= _FLEXIBLE:
            # the usual case in one step; else from the beginning
            partition, code, high, stable, _, count, replica = _NONE_ABORTED.unpack_from(self.frame, self.pos)
            if count <= 1:
                self.pos += _NONE_ABORTED.size
                return FetchedPartition(topic, partition, code, high, stable, replica, aborted, self.records())
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
        return FetchedPartition(topic, partition, code, high, stable, replica, aborted, self.records())

    def records(self) -> bytes:
        """The records of a partition, and what ends it."""
        size = self.count()
        records = bytes(self.taken(size)) if size else b""
        self.tags()
        return records

    def topic(self) -> Union[str, bytes]:
        if self.version >= _BY_ID:
            return bytes(self.taken(16))
        return self.text()


# -- requests -------------------------------------------------------------------------------------------------------


# from here on an answer has an upper bound, and a record larger than that comes all the same (KIP-74)
BOUNDED: Final = 3
# from this version on, brokers remember the requested partitions (KIP-227)
SESSIONS: Final = 7
# the newest that names topics; later ones know them by id (KIP-516)
BY_NAME: Final = 12

# the fields before the topics: from each version on
_LIMITS: Final = {
    0: struct.Struct(">iii"),  # replica, wait, least bytes
    3: struct.Struct(">iiii"),  # most bytes
    4: struct.Struct(">iiiib"),  # isolation level
    7: struct.Struct(">iiiibii"),  # session, its epoch
    15: struct.Struct(">iiibii"),  # no replica
}
_ASKED: Final = {
    0: struct.Struct(">iqi"),  # partition, offset, bytes
    5: struct.Struct(">iqqi"),  # the start of a follower's log, before the bytes
    9: struct.Struct(">iiqqi"),  # leader epoch, after the partition
    12: struct.Struct(">iiqiqiB"),  # epoch of a follower's last record, after the offset; tags
}
_CONSUMER: Final = -1  # in the place of a replica's id, epoch and offset


class Wanted(NamedTuple):
    """The request for one partition. An unknown `leader_epoch` is -1, an unknown `topic_id` None."""

    offset: int
    size: int
    leader_epoch: int
    topic_id: Optional[uuid.UUID]


class FetchRequest:
    """Asks for `asked`, in the order in which the broker is to fill the response.

    `session` is the (id, epoch) of a `FetchSession`; `forgotten` leaves it. kafka-python's encoder makes an object for
    each partition and is compiled at its first use; a consumer of few records spends a third of its time there.
    """

    API_KEY = 1
    name = "FetchRequest"
    min_version = 0
    max_version = NEWEST
    _min_version: Optional[int] = None
    _max_version: Optional[int] = None

    def __init__(
        self,
        asked: Mapping[TopicPartition, Wanted],
        forgotten: Mapping[TopicPartition, Wanted],
        *,
        session: tuple[int, int],
        max_version: int,
        max_wait_s: float,
        min_bytes: int,
        max_bytes: int,
        committed_only: bool,
        rack: str,
    ) -> None:
        self.API_VERSION: int | None = None  # set once the broker is known
        self.header: RequestHeader | None = None
        self.asked = asked
        self.forgotten = forgotten
        self.session = session
        self.max_wait_ms = int(max_wait_s * 1000)
        self.max_bytes = max_bytes
        self.rack = rack
        self._max_version = max_version
        self._min_bytes = min_bytes
        self._isolation_level = 1 if committed_only else 0

    def __repr__(self) -> str:
        return f"<FetchRequest v{self.API_VERSION} of {len(self.asked)} partitions, session {self.session}>"

    def expect_response(self) -> bool:
        return True

    def with_header(self, correlation_id: int = 0, client_id: str = "") -> None:
        assert self.API_VERSION is not None
        self.header = RequestHeader(correlation_id, self.API_KEY, self.API_VERSION, client_id)

    def encode(self, *, framed: bool, header: bool) -> bytearray:
        assert framed and header and self.header is not None  # noqa: PT018 - the one way in which it is sent
        version = self.header.request_api_version
        out = RequestWriter(self.header, flexible=version >= _FLEXIBLE)
        wait, least, most, isolation = self.max_wait_ms, self._min_bytes, self.max_bytes, self._isolation_level
        if version >= 15:
            out.data += _LIMITS[15].pack(wait, least, most, isolation, *self.session)
        elif version >= SESSIONS:
            out.data += _LIMITS[7].pack(_CONSUMER, wait, least, most, isolation, *self.session)
        elif version >= 4:
            out.data += _LIMITS[4].pack(_CONSUMER, wait, least, most, isolation)
        elif version >= BOUNDED:
            out.data += _LIMITS[3].pack(_CONSUMER, wait, least, most)
        else:
            out.data += _LIMITS[0].pack(_CONSUMER, wait, least)
        self._write_asked(out, version)
        if version >= SESSIONS:
            self._write_forgotten(out, version)
        if version >= 11:
            out.text(self.rack)
        out.tags()
        return out.framed()

    def _write_asked(self, out: RequestWriter, version: int) -> None:
        topics = _by_topic(self.asked)
        out.count(len(topics))
        for topic, parts in topics.items():
            _write_topic(out, topic, parts[0][1], version)
            out.count(len(parts))
            data = out.data
            for number, (offset, size, epoch, _) in parts:
                if version >= _FLEXIBLE:
                    data += _ASKED[12].pack(number, epoch, offset, _CONSUMER, _CONSUMER, size, 0)
                elif version >= 9:
                    data += _ASKED[9].pack(number, epoch, offset, _CONSUMER, size)
                elif version >= 5:
                    data += _ASKED[5].pack(number, offset, _CONSUMER, size)
                else:
                    data += _ASKED[0].pack(number, offset, size)
            out.tags()

    def _write_forgotten(self, out: RequestWriter, version: int) -> None:
        topics = _by_topic(self.forgotten)
        out.count(len(topics))
        for topic, parts in topics.items():
            _write_topic(out, topic, parts[0][1], version)
            out.count(len(parts))
            out.data += struct.pack(f">{len(parts)}i", *(number for number, _ in parts))
            out.tags()


def _by_topic(partitions: Mapping[TopicPartition, Wanted]) -> dict[str, list[tuple[int, Wanted]]]:
    topics: dict[str, list[tuple[int, Wanted]]] = {}
    for (topic, number), wanted in partitions.items():
        topics.setdefault(topic, []).append((number, wanted))
    return topics


def _write_topic(out: RequestWriter, topic: str, wanted: Wanted, version: int) -> None:
    if version > BY_NAME:
        assert wanted.topic_id is not None  # `newest_for` allows no such version without it
        out.data += wanted.topic_id.bytes
    else:
        out.text(topic)


def newest_for(wanted: Iterable[Wanted]) -> int:
    """The newest version that can say all of this: brokers older than 2.8 have told no topic's id."""
    return NEWEST if all(each.topic_id is not None for each in wanted) else BY_NAME


# -- sessions -------------------------------------------------------------------------------------------------------


NO_SESSION: Final = (0, -1)


_NEW, _FIRST = 0, 1


_LAST: Final = (1 << 31) - 1


FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR = 70, 71, 106


SESSION_ERRORS: Final = frozenset(
    {FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR}
)


class Turn(NamedTuple):
    """One request: what to say of which partitions, and as which (session, epoch)."""

    session: tuple[int, int]
    asked: Mapping[TopicPartition, Wanted]
    forgotten: Mapping[TopicPartition, Wanted]
    max_version: int


class FetchSession:
    """The state of a fetch session with one broker. One request at a time: `turn`, then `answered` or `lost`.

    Guarantee: whatever the broker forgot, evicted or refused, the request after that says everything anew, in a new
    session; a broker that grants none is told everything each time. A partition that is not wanted is not answered.
    """

    def __init__(self) -> None:
        self._id, self._epoch = 0, _NEW
        self._known: Mapping[TopicPartition, Wanted] = {}
        self._by_id = False
        self._newest = NEWEST
        self._names: dict[bytes, str] = {}

    def turn(self, wanted: Mapping[TopicPartition, Wanted], version: int) -> Turn:
        """How to ask for exactly `wanted`, which is kept, of a broker that speaks `version`."""
        known = self._known
        # idle partitions are the same objects as in the last turn
        changed = {tp: each for tp, each in wanted.items() if known.get(tp) is not each and known.get(tp) != each}
        if changed or len(known) != len(wanted):
            self._newest = newest_for(wanted.values())
            self._names = {each.topic_id.bytes: tp.topic for tp, each in wanted.items() if each.topic_id is not None}
        by_id = min(version, self._newest) > BY_NAME
        if version < SESSIONS:
            return Turn(NO_SESSION, wanted, {}, self._newest)
        if by_id != self._by_id:
            self.lost()  # a session speaks of topics either by name or by id
            self._by_id = by_id
        self._known = wanted
        if self._epoch == _NEW:
            return Turn((self._id, _NEW), wanted, {}, self._newest)
        forgotten: dict[TopicPartition, Wanted] = {}
        if changed or len(known) != len(wanted):
            forgotten = {
                tp: each
                for tp, each in known.items()
                # a topic that was deleted and created again is another topic
                if tp not in wanted or (by_id and wanted[tp].topic_id != each.topic_id)
            }
        return Turn((self._id, self._epoch), changed, forgotten, self._newest)

    def answered(self, answer: FetchAnswer) -> bool:
        """Whether the answer is one, and not the refusal of the session: then ask again."""
        if answer.error_code:
            self.lost()
            if answer.error_code == FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0  # nothing to close
            return answer.error_code not in SESSION_ERRORS
        self._id = answer.session_id
        # 0: the broker grants no session, or ended this one
        self._epoch = _NEW if self._id == 0 else _FIRST if self._epoch in (_NEW, _LAST) else self._epoch + 1
        return True

    def lost(self) -> None:
        """Nobody knows whether the broker got the last request: the next one closes the session and begins another."""
        self._epoch = _NEW
        self._known = {}

    def parts(self, parts: Iterable[FetchedPartition]) -> Iterator[tuple[TopicPartition, FetchedPartition]]:
        """The parts of an answer by partition; those of topics that the last turn did not want are left out."""
        for part in parts:
            name = self._names.get(part.topic) if isinstance(part.topic, bytes) else part.topic
            if name is not None:
                yield TopicPartition(name, part.partition), part
