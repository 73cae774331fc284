"""A proxy between clients and one broker that damages chosen responses."""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

DAMAGED = {
    request.API_KEY: request
    for request in (
        FetchRequest,
        FindCoordinatorRequest,
        HeartbeatRequest,
        JoinGroupRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        SyncGroupRequest,
    )
}

Damage = Callable[[Any, bytes], bytes]
"""Gets the request and the frame of its response; returns the frame to send instead."""


def cut_short(request: Any, frame: bytes) -> bytes:
    return frame[: len(frame) // 2]


def of_another_request(request: Any, frame: bytes) -> bytes:
    (correlation_id,) = struct.unpack_from(">i", frame)
    return struct.pack(">i", correlation_id + 1000) + frame[4:]


def noise(request: Any, frame: bytes) -> bytes:
    return frame[:5] + b"\xff" * (len(frame) - 5)


def _changing(change: Callable[[str, Any, Any], Any]) -> Damage:
    """Returns a damage that replaces each value by `change(name, field, value)`."""

    def damage(request: Any, frame: bytes) -> bytes:
        data = io.BytesIO(frame)
        kind = request.header.get_response_class()
        header = kind.parse_header(data)
        response = kind.decode(data)
        _change(response, response.API_VERSION, change)
        response.with_header(correlation_id=header.correlation_id)
        return bytes(response.encode(header=True))

    return damage


def _change(message: Any, version: int, change: Callable[[str, Any, Any], Any]) -> None:
    for name, field in type(message).fields.items() if hasattr(type(message), "fields") else message.fields.items():
        if not field.for_version_q(version) or name == "throttle_time_ms":
            continue
        value = getattr(message, name)
        if field.is_struct_array():
            for element in value or ():
                _change(element, version, change)
        setattr(message, name, change(name, field, value))


null_lists = _changing(lambda name, field, value: None if field.is_array() else value)
of_others = _changing(lambda name, field, value: "nobody" if isinstance(value, str) else value)
other_numbers = _changing(lambda name, field, value: value + 7 if name in PARTITION else value)


def error_codes(code: int) -> Damage:
    """Returns a damage that gives each partition of a Fetch response this error code, and no records."""
    return _changing(lambda name, field, value: code if name == "error_code" else None if name == "records" else value)


PARTITION = ("partition", "partition_index")


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        yield await reader.readexactly(size)


class Mangler:
    """Forwards to `broker_port`."""

    def __init__(self, broker_port: int) -> None:
        self.broker_port = broker_port
        self._damage: dict[int, tuple[Damage, str, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Mangler:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def damage(self, key: int, damage: Damage, client: str, times: int = 2) -> None:
        """Damages the next responses with that key to clients with `client` in their ids."""
        self._damage[key] = damage, client, times

    def undamaged(self) -> int:
        """Returns how many responses that `damage` named have not come."""
        return sum(left for _, _, left in self._damage.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_broker = None
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
                from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
                requests: dict[int, Any] = {}
                ways = [
                    asyncio.ensure_future(self._requests(reader, to_broker, requests)),
                    asyncio.ensure_future(self._responses(from_broker, writer, requests)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._tasks.discard(task)
            for each in (writer, to_broker):
                if each is not None:
                    each.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: dict[int, Any]
    ) -> None:
        async for data in _frames(reader):
            key, version, correlation_id = struct.unpack_from(">hhi", data)
            if key in DAMAGED:
                requests[correlation_id] = DAMAGED[key].decode(data, version=version, header=True)
            writer.write(struct.pack(">i", len(data)) + data)

    async def _responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: dict[int, Any]
    ) -> None:
        async for frame in _frames(reader):
            request = requests.pop(struct.unpack_from(">i", frame)[0], None)
            if request is not None:
                damage, client, left = self._damage.get(request.API_KEY, (cut_short, "", 0))
                if left and client in (request.header.client_id or ""):
                    self._damage[request.API_KEY] = damage, client, left - 1
                    frame = damage(request, frame)
            writer.write(struct.pack(">i", len(frame)) + frame)
