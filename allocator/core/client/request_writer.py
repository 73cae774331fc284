"""Encodes the primitive types of Kafka's requests (https://kafka.apache.org/protocol)."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from allocator.core.client.errors import Unencodable, Unsupported
from allocator.core.client.response_reader import INT32
from allocator.core.types import TopicPartition
from allocator.core.varint import uvarint

if TYPE_CHECKING:
    from kafka.protocol.broker_version_data import BrokerVersionData

T = TypeVar("T")

_HEADER: Final = struct.Struct(">hhi")
_INT16: Final = struct.Struct(">h")
_LONGEST: Final = 32767  # maximum bytes of a text in versions that are not compact
_FRAME: Final = bytes(INT32.size)  # length of the request, written last


class RequestHeader(NamedTuple):
    """The header fields that the connection needs to match the response."""

    correlation_id: int
    request_api_key: int
    request_api_version: int
    client_id: str


class OwnRequest:
    """A request with its own encoder, and with the methods of kafka-python's requests that a connection calls.

    The version is negotiated between `min_version` and `max_version`, which a request may narrow.
    """

    API_KEY: ClassVar[int]
    API_VERSION: int | None = None  # None until it is negotiated
    min_version: int = 0
    max_version: int
    header: RequestHeader | None = None

    def with_header(self, correlation_id: int = 0, client_id: str = "") -> None:
        assert self.API_VERSION is not None
        self.header = RequestHeader(correlation_id, self.API_KEY, self.API_VERSION, client_id)


def negotiated(versions: BrokerVersionData, request: Any) -> int:
    """Returns the newest version of a request, or of its class, that the broker has. Raises `Unsupported`."""
    if isinstance(request, OwnRequest) or (isinstance(request, type) and issubclass(request, OwnRequest)):
        oldest, newest = versions.api_versions.get(request.API_KEY, (0, -1))
        version: int = min(newest, request.max_version)
        if version < oldest or version < request.min_version:
            raise Unsupported(f"the broker has no version of {request!r} that this client can send")
        return version
    from kafka.errors import KafkaError

    try:
        return int(versions.api_version(request))
    except KafkaError as error:
        raise Unsupported(str(error.args[0])) from None


def by_topic(partitions: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    """Returns topic -> (partition number, value) pairs."""
    topics: dict[str, list[tuple[int, T]]] = defaultdict(list)
    for (topic, number), value in partitions.items():
        topics[topic].append((number, value))
    return topics


class RequestWriter:
    """Appends to `data`, which begins with the header.

    In a flexible version lengths and counts are compact, and tagged fields may follow each structure (KIP-482); this
    writer writes no tags. Raises `Unencodable` for a text that is too long.
    """

    def __init__(self, header: RequestHeader, *, flexible: bool) -> None:
        self.flexible = flexible
        self.no_tags = b"\0" if flexible else b""
        client_id = header.client_id.encode()
        self.data = bytearray(_FRAME)
        self.data += _HEADER.pack(header.request_api_key, header.request_api_version, header.correlation_id)
        self.data += _INT16.pack(len(client_id)) + client_id + self.no_tags  # this text is compact in no version

    def framed(self) -> bytearray:
        """Returns the request with its length in front."""
        INT32.pack_into(self.data, 0, len(self.data) - INT32.size)
        return self.data

    def text(self, value: str | None) -> None:
        self.data += self.encoded(value)

    def encoded(self, value: str | None) -> bytes:
        """Returns the encoded text, for callers that write it many times."""
        if value is None:
            return b"\0" if self.flexible else b"\xff\xff"
        data = value.encode()
        if len(data) > _LONGEST:  # brokers close the connection for a longer compact text
            raise Unencodable(f"a text of {len(data)} bytes ({value[:20]!r}...); the protocol allows {_LONGEST}")
        return uvarint(len(data) + 1) + data if self.flexible else _INT16.pack(len(data)) + data

    def count(self, count: int) -> None:
        self.data += uvarint(count + 1) if self.flexible else INT32.pack(count)

    def tags(self) -> None:
        self.data += self.no_tags
