"""Queries the state of servers with requests that every version supports.

Kafka: Metadata v0 (protocol guide, "Metadata API"), from 0.8 to 4.x; an empty list means all topics, and creates none.
ZooKeeper: the four letter word `srvr` (administrator's guide).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass, field

_HOST = "127.0.0.1"
_LIST_OFFSETS, _METADATA, _API_VERSIONS = 2, 3, 18
_NO_VERSION = 0x7FFF


@dataclass(frozen=True)
class PartitionState:
    """The state of a partition. `leader` is None if it is unknown."""

    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True)
class Metadata:
    """The metadata of one broker: broker id -> (host, port); topic -> partition -> state."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, dict[int, PartitionState]] = field(default_factory=dict)


def metadata(port: int, timeout_s: float = 5.0, host: str = _HOST) -> Metadata | None:
    """Returns the metadata of the broker, or None without a response in time."""
    response = _request(host, port, _METADATA, struct.pack(">i", 0), timeout_s)
    return None if response is None else _decode(response)


def api_versions(port: int, timeout_s: float = 5.0, host: str = _HOST) -> dict[int, tuple[int, int]] | None:
    """Returns API key -> (oldest, newest) version; None without a response.

    0.8 closes the connection. 0.9 does not respond, so this takes all of `timeout_s`. A 0.9 broker also loses other
    requests that reach the same network thread at the same time.
    """
    response = _request(host, port, _API_VERSIONS, b"", timeout_s)
    if response is None or response.int16() != 0:
        return None
    return {response.int16(): (response.int16(), response.int16()) for _ in range(response.int32())}


def ignores_versions(port: int, timeout_s: float = 5.0, host: str = _HOST) -> bool:
    """Whether the broker responds to ListOffsets in a version that does not exist, as only 0.8 and 0.9 do."""
    return _request(host, port, _LIST_OFFSETS, struct.pack(">ii", -1, 0), timeout_s, _NO_VERSION) is not None


def four_letter_word(port: int, word: str, timeout_s: float = 2.0, host: str = _HOST) -> str | None:
    """Returns the response of a ZooKeeper node to `srvr`, `mntr`, ...; None without a response in time."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.sendall(word.encode())
            response = b""
            while chunk := connection.recv(4096):
                response += chunk
    except OSError:
        return None
    return response.decode(errors="replace")


def zookeeper_mode(port: int, timeout_s: float = 2.0) -> str | None:
    """Returns `standalone`, `leader` or `follower`; None if the node does not serve requests yet."""
    for line in (four_letter_word(port, "srvr", timeout_s) or "").splitlines():
        if line.startswith("Mode: "):
            return line[len("Mode: ") :].strip()
    return None


class Connection:
    """One blocking connection to a broker, for one request at a time. Raises OSError."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, key: int, version: int, body: bytes, expect_response: bool = True) -> Reader | None:
        """Sends a request. Returns the body of the response; None without `expect_response`."""
        client = b"allocator-testing"
        head = struct.pack(">hhih", key, version, 1, len(client)) + client
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        if not expect_response:
            return None
        (size,) = struct.unpack(">i", self._exactly(4))
        return Reader(self._exactly(size)[4:])  # skip the correlation id: requests never overlap

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            data += chunk
        return bytes(data)


def _request(host: str, port: int, key: int, body: bytes, timeout_s: float, version: int = 0) -> Reader | None:
    try:
        with contextlib.closing(Connection(host, port, timeout_s)) as connection:
            return connection.request(key, version, body)
    except OSError:
        return None


class Reader:
    """Reads big-endian numbers and strings in sequence."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def text(self) -> str:
        return self.bytes(self.int16()).decode()

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def int32s(self) -> tuple[int, ...]:
        return tuple(self.int32() for _ in range(self.int32()))

    def skip(self, size: int) -> None:
        self._at += size

    def _number(self, form: str, size: int) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return int(value)


def _decode(reader: Reader) -> Metadata:
    found = Metadata()
    for _ in range(reader.int32()):
        node = reader.int32()
        found.brokers[node] = (reader.text(), reader.int32())
    for _ in range(reader.int32()):
        reader.int16()  # skip the topic's error: its partitions have it too
        partitions = found.topics.setdefault(reader.text(), {})
        for _ in range(reader.int32()):
            reader.int16()
            partition, leader = reader.int32(), reader.int32()
            partitions[partition] = PartitionState(None if leader < 0 else leader, reader.int32s(), reader.int32s())
    return found
