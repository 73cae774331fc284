"""Fetch answers, read from the frame that the broker sent (https://kafka.apache.org/protocol#The_Messages_Fetch).

kafka-python's decoder copies a frame four times on its way to an object for each partition; at hundreds of megabytes
a second that is what a consumer spends its time on. This one walks the frame where it was received, and copies the
records of each partition once, so that the frame's memory serves the next answer.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Optional, Union

import kafka.errors as kafka_errors
from kafka.protocol.consumer import FetchRequest

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
    "compose",
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


# partition, error, high watermark; then the last stable offset (v4) and the log's start (v5)
_PART: Final = {0: struct.Struct(">ihq"), 4: struct.Struct(">ihqq"), 5: struct.Struct(">ihqqq")}


class FetchedPartition(NamedTuple):
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

    def part(self, topic: Union[str, uuid.UUID]) -> FetchedPartition:
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
        return FetchedPartition(topic, partition, code, high, stable, replica, aborted, records)

    def topic(self) -> Union[str, uuid.UUID]:
        if self.version >= _BY_ID:
            return uuid.UUID(bytes=bytes(self.taken(16)))
        return self.text()


# -- fetch_request ----------
# Fetch requests on the wire (https://kafka.apache.org/protocol#The_Messages_Fetch), v0 to v18.


# from here on an answer has an upper bound, and a record larger than that comes all the same (KIP-74)
BOUNDED: Final = 3


# from here on brokers remember what they were asked for (KIP-227)
SESSIONS: Final = 7


# the newest that names topics; later ones know them by id (KIP-516)
BY_NAME: Final = 12


_Topic: Final = FetchRequest.FetchTopic


_Partition: Final = _Topic.FetchPartition


_Forgotten: Final = FetchRequest.ForgottenTopic


class Wanted(NamedTuple):
    """The request for one partition. An unknown `leader_epoch` is -1, an unknown `topic_id` None."""

    offset: int
    size: int
    leader_epoch: int
    topic_id: Optional[uuid.UUID]


def newest_for(wanted: Iterable[Wanted]) -> int:
    """The newest version that can say all of this: brokers older than 2.8 have told no topic's id."""
    return NEWEST if all(each.topic_id is not None for each in wanted) else BY_NAME


def compose(
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
) -> Any:
    """A request for `asked`, in the order in which the broker is to fill the answer.

    `session` is (id, epoch) of `fetch_session`; `forgotten` is to be taken out of it.
    """
    topics: dict[tuple[str, Any], list[Any]] = {}
    for tp, wanted in asked.items():
        topics.setdefault((tp.topic, wanted.topic_id), []).append(
            _Partition(
                partition=tp.partition,
                current_leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=wanted.size,
            )
        )
    gone: dict[tuple[str, Any], list[int]] = {}
    for tp, wanted in forgotten.items():
        gone.setdefault((tp.topic, wanted.topic_id), []).append(tp.partition)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=int(max_wait_s * 1000),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=1 if committed_only else 0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[_Topic(topic=name, topic_id=known, partitions=parts) for (name, known), parts in topics.items()],
        forgotten_topics_data=[
            _Forgotten(topic=name, topic_id=known, partitions=parts) for (name, known), parts in gone.items()
        ],
        rack_id=rack,
        max_version=max_version,
    )


# -- fetch_session ----------
# Incremental fetch sessions (KIP-227): a broker remembers what it was asked for, and hears of changes. No I/O.


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
    asked: dict[TopicPartition, Wanted]
    forgotten: dict[TopicPartition, Wanted]
    max_version: int


class FetchSession:
    """What one broker remembers for us. One request at a time: `turn`, then `answered` or `lost`.

    Guarantee: whatever the broker forgot, evicted or refused, the request after that says everything anew, in a new
    session; a broker that grants none is told everything each time. A partition that is not wanted is not answered.
    """

    def __init__(self) -> None:
        self._id, self._epoch = 0, _NEW
        self._known: dict[TopicPartition, Wanted] = {}
        self._by_id = False
        self._names: dict[uuid.UUID, str] = {}

    def turn(self, wanted: Mapping[TopicPartition, Wanted], version: int) -> Turn:
        """How to ask for exactly `wanted`, of a broker that speaks `version`."""
        newest = newest_for(wanted.values())
        by_id = min(version, newest) > BY_NAME
        self._names = {each.topic_id: tp.topic for tp, each in wanted.items() if each.topic_id is not None}
        if version < SESSIONS:
            return Turn(NO_SESSION, dict(wanted), {}, newest)
        if by_id != self._by_id:
            self.lost()  # a session speaks of topics either by name or by id
            self._by_id = by_id
        known, self._known = self._known, dict(wanted)
        if self._epoch == _NEW:
            return Turn((self._id, _NEW), dict(wanted), {}, newest)
        changed = {tp: each for tp, each in wanted.items() if known.get(tp) != each}
        forgotten = {
            tp: each
            for tp, each in known.items()
            # a topic that was deleted and created again is another topic
            if tp not in wanted or (by_id and wanted[tp].topic_id != each.topic_id)
        }
        return Turn((self._id, self._epoch), changed, forgotten, newest)

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
            name: Union[str, uuid.UUID, None] = part.topic
            if isinstance(name, uuid.UUID):
                name = self._names.get(name)
            if name is not None:
                yield TopicPartition(name, part.partition), part
