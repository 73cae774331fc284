"""Fetch requests, responses and sessions, v0 to v18 (https://kafka.apache.org/protocol#The_Messages_Fetch).

kafka-python's decoder copies a frame four times and creates an object for each partition. At hundreds of megabytes per
second this takes most of a consumer's time. This decoder reads the receive buffer and copies the records of each
partition once, so the buffer is free for the next response.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Optional, Union

from allocator.core.client.errors import ErrorCode, Undecodable
from allocator.core.client.request_writer import OwnRequest, RequestWriter, by_topic
from allocator.core.client.response_reader import INT32, ResponseReader
from allocator.core.types import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

NEWEST: Final = 18
# from this version on, lengths and counts are compact, and each structure may have tagged fields
_FLEXIBLE: Final = 12
# from this version on, requests name topics by id
BY_ID: Final = 13
_ERROR_AND_SESSION: Final = struct.Struct(">hi")
# correlation id, the count of tagged fields, throttle time; then `_ERROR_AND_SESSION`
_NO_TAGS: Final = struct.Struct(">iBihi")
_ABORTED: Final = struct.Struct(">qq")
# all fields of `_PART[5]`, the compact count of aborted transactions (0: null, 1: none), the preferred replica
_NONE_ABORTED: Final = struct.Struct(">ihqqqBi")
# partition, error, high watermark; then last stable offset (v4) and log start offset (v5)
_PART: Final = {0: struct.Struct(">ihq"), 4: struct.Struct(">ihqq"), 5: struct.Struct(">ihqqq")}


class FetchedPartition(NamedTuple):
    """One partition of a response. `topic` is a name, or from v13 on the 16 bytes of an id.

    `aborted` has (producer id, first offset) of each aborted transaction. A field that this version lacks is -1.
    """

    topic: Union[str, bytes]
    partition: int
    code: int
    high_watermark: int
    last_stable_offset: int
    preferred_replica: int
    aborted: list[tuple[int, int]]
    records: bytes


class FetchResponse(NamedTuple):
    """A Fetch response. `error_code` (from v7 on) is for the whole response; `session_id` is 0 without a session."""

    # kafka-python reads this attribute and `throttle_time_ms` of every response
    API_VERSION: int
    parts: list[FetchedPartition]
    error_code: int = 0
    session_id: int = 0
    throttle_time_ms: int = 0

    def __repr__(self) -> str:
        size = sum(len(part.records) for part in self.parts)
        return (
            f"<FetchResponse v{self.API_VERSION} error {self.error_code}, {len(self.parts)} partitions, {size} bytes>"
        )


def read_response(frame: memoryview, version: int) -> tuple[int, FetchResponse]:
    """Returns the correlation id and the response in `frame`, which begins after its length.

    Copies everything, so the caller may reuse the frame. Raises `Undecodable`, before it allocates more than the frame.
    """
    try:
        return _FetchReader(frame, version).response()
    except (struct.error, IndexError, ValueError) as error:
        raise Undecodable(f"a Fetch response v{version} of {len(frame)} bytes does not decode: {error}") from error


class _FetchReader(ResponseReader):
    def __init__(self, frame: memoryview, version: int) -> None:
        super().__init__(frame, version, flexible=version >= _FLEXIBLE)

    def response(self) -> tuple[int, FetchResponse]:
        version = self.version
        if version >= _FLEXIBLE and self.frame[INT32.size] == 0:
            # decodes the usual case in one step
            correlation_id, _, throttle, error, session = self.unpack(_NO_TAGS)
        else:
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
        return correlation_id, FetchResponse(version, parts, error, session, throttle)

    def part(self, topic: Union[str, bytes]) -> FetchedPartition:
        version = self.version
        stable = replica = -1
        aborted: list[tuple[int, int]] = []
        if version >= _FLEXIBLE:
            # decodes the usual case in one step
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
        """Reads the last fields of a partition: records and tags."""
        size = self.count()
        records = bytes(self.taken(size)) if size else b""
        self.tags()
        return records

    def topic(self) -> Union[str, bytes]:
        if self.version >= BY_ID:
            return bytes(self.taken(16))
        return self.text()


# -- requests -------------------------------------------------------------------------------------------------------


# from this version on, `max_bytes` bounds a response, unless its first record is larger (KIP-74)
BOUNDED: Final = 3
# from this version on, brokers remember the requested partitions (KIP-227)
SESSIONS: Final = 7
# the newest version with topic names; later ones have topic ids (KIP-516)
BY_NAME: Final = 12

_LIMITS: Final = struct.Struct(">ii")  # wait, least bytes
_SESSION: Final = struct.Struct(">ii")  # id and epoch
_WANTED: Final = {
    0: struct.Struct(">iqi"),  # partition, offset, bytes
    5: struct.Struct(">iqqi"),  # adds the start offset of a follower's log, before the bytes
    9: struct.Struct(">iiqqi"),  # adds the leader epoch, after the partition
    12: struct.Struct(">iiqiqiB"),  # adds the epoch of a follower's last record, after the offset, and tagged fields
}
_CONSUMER: Final = -1  # value of fields that only replicas fill in


class Wanted(NamedTuple):
    """Where to read one partition, and at most how many bytes. `leader_epoch` is -1 if unknown."""

    offset: int
    size: int
    leader_epoch: int
    topic_id: Optional[UUID]


@dataclass(eq=False, repr=False)
class FetchRequest(OwnRequest):
    """Requests the partitions `wanted`; the broker fills the response in this order.

    `session` is the (id, epoch) of a `FetchSession`, from which the partitions `forgotten` are removed. kafka-python's
    encoder creates an object for each partition, which takes a third of the time of a consumer with few records.
    """

    API_KEY = 1

    wanted: Mapping[TopicPartition, Wanted]
    forgotten: Mapping[TopicPartition, Wanted]
    session: tuple[int, int]
    max_wait_s: float
    min_bytes: int
    max_bytes: int
    committed_only: bool
    rack: str
    max_version: int = NEWEST

    def __repr__(self) -> str:
        return f"<FetchRequest v{self.API_VERSION} of {len(self.wanted)} partitions, session {self.session}>"

    def encode(self, *, framed: bool, header: bool) -> bytearray:
        assert framed and header and self.header is not None  # noqa: PT018 - how a connection calls it
        version = self.header.request_api_version
        out = RequestWriter(self.header, flexible=version >= _FLEXIBLE)
        if version < 15:
            out.data += INT32.pack(_CONSUMER)
        out.data += _LIMITS.pack(int(self.max_wait_s * 1000), self.min_bytes)
        if version >= BOUNDED:
            out.data += INT32.pack(self.max_bytes)
        if version >= 4:
            out.data.append(self.committed_only)
        if version >= SESSIONS:
            out.data += _SESSION.pack(*self.session)
        self._write_wanted(out, version)
        if version >= SESSIONS:
            self._write_forgotten(out, version)
        if version >= 11:
            out.text(self.rack)
        out.tags()
        return out.framed()

    def _write_wanted(self, out: RequestWriter, version: int) -> None:
        topics = by_topic(self.wanted)
        out.count(len(topics))
        for topic, parts in topics.items():
            _write_topic(out, topic, parts[0][1], version)
            out.count(len(parts))
            data = out.data
            for number, (offset, size, epoch, _) in parts:
                if version >= _FLEXIBLE:
                    data += _WANTED[12].pack(number, epoch, offset, _CONSUMER, _CONSUMER, size, 0)
                elif version >= 9:
                    data += _WANTED[9].pack(number, epoch, offset, _CONSUMER, size)
                elif version >= 5:
                    data += _WANTED[5].pack(number, offset, _CONSUMER, size)
                else:
                    data += _WANTED[0].pack(number, offset, size)
            out.tags()

    def _write_forgotten(self, out: RequestWriter, version: int) -> None:
        topics = by_topic(self.forgotten) if self.forgotten else {}
        out.count(len(topics))
        for topic, parts in topics.items():
            _write_topic(out, topic, parts[0][1], version)
            out.count(len(parts))
            out.data += struct.pack(f">{len(parts)}i", *(number for number, _ in parts))
            out.tags()


def _write_topic(out: RequestWriter, topic: str, wanted: Wanted, version: int) -> None:
    if version > BY_NAME:
        assert wanted.topic_id is not None  # `FetchSession.turn` allows no such version without it
        out.data += wanted.topic_id.bytes
    else:
        out.text(topic)


# -- sessions -------------------------------------------------------------------------------------------------------

NO_SESSION: Final = (0, -1)
_NEW, _FIRST = 0, 1
_LAST: Final = (1 << 31) - 1
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


def _has_moved(was: Wanted | None, now: Wanted) -> bool:
    """Returns whether a partition is new, or its topic was deleted and created again."""
    return was is None or (was.topic_id is not now.topic_id and was.topic_id != now.topic_id)


class Turn(NamedTuple):
    """The contents of the next request of a session: `wanted` adds or changes partitions, `forgotten` removes them."""

    session: tuple[int, int]
    wanted: Mapping[TopicPartition, Wanted]
    forgotten: Mapping[TopicPartition, Wanted]
    max_version: int


class FetchSession:
    """A fetch session with one broker (KIP-227). Call `turn`, then `received` or `lost`, for one request at a time.

    After the broker dropped or refused the session, the next request names every partition, in a new session. If a
    broker grants no session, each request names every partition.
    """

    def __init__(self) -> None:
        self._id, self._epoch = 0, _NEW
        self._known: Mapping[TopicPartition, Wanted] = {}
        self._by_id = False
        self._newest = NEWEST
        self._names: dict[bytes, str] = {}

    def turn(self, wanted: Mapping[TopicPartition, Wanted], version: int) -> Turn:
        """Returns the next request for exactly the partitions `wanted`. `version` is the broker's. Keeps `wanted`."""
        known = self._known
        # the caller passes the same object again for an idle partition, so `is` avoids most comparisons
        changed = {tp: each for tp, each in wanted.items() if (was := known.get(tp)) is not each and was != each}
        # mostly only offsets have changed
        moved = len(known) != len(wanted) or any(_has_moved(known.get(tp), each) for tp, each in changed.items())
        if moved:
            # topics have no id before Kafka 2.8
            by_name = any(each.topic_id is None for each in wanted.values())
            self._newest = BY_NAME if by_name else NEWEST
            self._names = {each.topic_id.bytes: tp.topic for tp, each in wanted.items() if each.topic_id is not None}
        by_id = min(version, self._newest) > BY_NAME
        if version < SESSIONS:
            return Turn(NO_SESSION, wanted, {}, self._newest)
        if by_id != self._by_id:
            self.lost()  # a session names topics either by name or by id, so start another one
            self._by_id = by_id
        self._known = wanted
        if self._epoch == _NEW:
            return Turn((self._id, _NEW), wanted, {}, self._newest)
        forgotten = {
            tp: each
            for tp, each in (known.items() if moved else ())
            # a topic that was deleted and created again has another id
            if tp not in wanted or (by_id and wanted[tp].topic_id != each.topic_id)
        }
        return Turn((self._id, self._epoch), changed, forgotten, self._newest)

    def received(self, response: FetchResponse) -> bool:
        """Returns whether the response has data. False: the broker refused the session, so repeat the request."""
        if response.error_code:
            self.lost()
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0  # the broker has no session to close
            return response.error_code not in SESSION_ERRORS
        self._id = response.session_id
        # 0: the broker granted no session, or dropped this one
        self._epoch = _NEW if self._id == 0 else _FIRST if self._epoch in (_NEW, _LAST) else self._epoch + 1
        return True

    def lost(self) -> None:
        """Notes that the last request may not have reached the broker. The next one replaces the session."""
        self._epoch = _NEW
        self._known = {}

    def parts(self, parts: Iterable[FetchedPartition]) -> Iterator[tuple[TopicPartition, FetchedPartition]]:
        """Yields the parts of the response, without topics that the last request did not have."""
        for part in parts:
            name = self._names.get(part.topic) if isinstance(part.topic, bytes) else part.topic
            if name is not None:
                yield TopicPartition(name, part.partition), part
