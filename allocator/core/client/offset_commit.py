"""OffsetCommit on the wire, v0 to v9 (https://kafka.apache.org/protocol#The_Messages_OffsetCommit).

A service may commit after each record. kafka-python creates an object for each partition of the request and of the
response, which takes longer than the rest of a commit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from allocator.core.client.errors import Undecodable
from allocator.core.client.request_writer import OwnRequest, RequestWriter, by_topic
from allocator.core.client.response_reader import INT32, ResponseReader
from allocator.core.types import OffsetAndMetadata, TopicPartition

API_KEY: Final = 8
# from v10 on, topics have ids instead of names
NEWEST: Final = 9
# from this version on, lengths and counts are compact, and each structure may have tagged fields
_FLEXIBLE: Final = 8

_INT64: Final = struct.Struct(">q")
_RESULT: Final = struct.Struct(">ih")
_RESULT_AND_TAGS: Final = struct.Struct(">ihx")
_OFFSET: Final = struct.Struct(">iq")
_OFFSET_AND_TIME: Final = struct.Struct(">iqq")  # v1
_OFFSET_AND_EPOCH: Final = struct.Struct(">iqi")  # v6 on
_BROKERS_CLOCK: Final = -1


@dataclass(eq=False, repr=False)
class OffsetCommit(OwnRequest):
    """An OffsetCommit request.

    `retention_s`: how long the broker keeps the offset (v2 to v4 only); None: the broker's setting. `check`: called
    just before the request is written to the socket, and stops it by raising `RequestFailed`. `text` returns the
    metadata as it is sent.
    """

    API_KEY = API_KEY

    group: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    generation: int
    member_id: str
    instance_id: str | None
    retention_s: float | None
    min_version: int = 0
    max_version: int = NEWEST
    check: Callable[[], None] | None = None
    text: Callable[[str], str] = str

    def __repr__(self) -> str:
        return f"<OffsetCommit v{self.API_VERSION} of {len(self.offsets)} partitions for {self.group!r}>"

    def encode(self, *, framed: bool, header: bool) -> bytearray:
        assert framed and header and self.header is not None  # noqa: PT018 - how a connection calls it
        if self.check is not None:
            self.check()
        version = self.header.request_api_version
        out = RequestWriter(self.header, flexible=version >= _FLEXIBLE)
        out.text(self.group)
        if version >= 1:
            out.data += INT32.pack(self.generation)
            out.text(self.member_id)
        if version >= 7:
            out.text(self.instance_id)
        if 2 <= version <= 4:
            out.data += _INT64.pack(-1 if self.retention_s is None else int(self.retention_s * 1000))
        self._topics(out, version)
        out.tags()
        return out.framed()

    def _topics(self, out: RequestWriter, version: int) -> None:
        topics = by_topic(self.offsets)
        out.count(len(topics))
        last: Any = None
        rest, data = b"", out.data
        for topic, parts in topics.items():
            out.text(topic)
            out.count(len(parts))
            for partition, (offset, metadata, epoch) in parts:
                if metadata != last or not rest:  # usually the same text for all partitions
                    rest, last = out.encoded(self.text(metadata or "")) + out.no_tags, metadata
                if version >= 6:
                    data += _OFFSET_AND_EPOCH.pack(partition, offset, -1 if epoch is None else epoch) + rest
                elif version == 1:
                    data += _OFFSET_AND_TIME.pack(partition, offset, _BROKERS_CLOCK) + rest
                else:
                    data += _OFFSET.pack(partition, offset) + rest
            out.tags()


class OffsetCommitResponse(NamedTuple):
    # kafka-python reads these two attributes of every response
    API_VERSION: int
    throttle_time_ms: int
    results: Mapping[TopicPartition, int]
    """Partition -> error code."""


def _codes(reader: ResponseReader) -> list[tuple[int, int]]:
    """Reads the partition numbers and error codes of one topic."""
    count = reader.count()
    size = _RESULT.size + reader.flexible
    start, end = reader.pos, reader.pos + count * size
    # brokers may send tagged fields after each result, but do not so far
    if not reader.flexible or not any(reader.frame[start + _RESULT.size : end : size]):
        chunk = reader.taken(count * size)
        return list((_RESULT_AND_TAGS if reader.flexible else _RESULT).iter_unpack(chunk))
    found = []
    for _ in range(count):
        partition, code = reader.unpack(_RESULT)
        found.append((partition, code))
        reader.tags()
    return found


def read_response(frame: memoryview, version: int) -> tuple[int, OffsetCommitResponse]:
    """Returns the correlation id and the response in `frame`, which begins after its length. Raises `Undecodable`."""
    try:
        return INT32.unpack_from(frame)[0], _decoded(bytes(frame[INT32.size :]), version)
    except (struct.error, IndexError, ValueError) as error:
        raise Undecodable(
            f"an OffsetCommit response v{version} of {len(frame)} bytes does not decode: {error}"
        ) from error


@lru_cache(maxsize=4)
def _decoded(frame: bytes, version: int) -> OffsetCommitResponse:
    """Decodes a response without its correlation id. A member that commits often gets the same bytes each time."""
    reader = ResponseReader(memoryview(frame), version, flexible=version >= _FLEXIBLE)
    reader.tags()
    throttle = reader.unpack(INT32)[0] if version >= 3 else 0
    results: dict[TopicPartition, int] = {}
    for _ in range(reader.count()):
        topic = reader.text()
        results.update((TopicPartition(topic, partition), code) for partition, code in _codes(reader))
        reader.tags()
    reader.tags()
    return OffsetCommitResponse(version, throttle, results)
