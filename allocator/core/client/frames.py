"""Receives the bytes of a connection in place, and decodes responses."""

from __future__ import annotations

import asyncio
import io
import struct
from functools import cache
from typing import Any, Final

from allocator.core.client import fetch_messages, offset_commit
from allocator.core.client.errors import NotKafka, Undecodable, WrongResponse

# API key -> decoder of its responses; kafka-python decodes all others
READERS: Final = {1: fetch_messages.read_response, offset_commit.API_KEY: offset_commit.read_response}
_LENGTH: Final = struct.Struct(">i")
# minimum bytes of the buffer
_SMALL: Final = 1 << 16


class FrameProtocol(asyncio.BufferedProtocol):
    """The receiving half of a connection. Calls `frame_received` with each whole frame.

    Checks the length of a frame, at most `receive_max_bytes`, before it allocates memory. The next frame reuses the
    buffer, which shrinks again when frames are small. Each wake-up of the loop reads once, so that a busy broker does
    not block the others.

    Calls `stream_failed` with `NotKafka` or, after a frame, `Undecodable` for a wrong length, and with any error that
    `frame_received` raises.
    """

    def __init__(self, receive_max_bytes: int) -> None:
        self.received_bytes = 0
        self._receive_max_bytes = receive_max_bytes
        self._buffer = memoryview(bytearray(_SMALL))
        self._filled = 0
        self._spoke_kafka = False

    def frame_received(self, frame: memoryview) -> bool:
        """Handles `frame`, which is valid during this call only. Returns whether to continue with the next one."""
        raise NotImplementedError

    def stream_failed(self, error: Exception) -> None:
        """Handles an error after which the stream cannot be read any further."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        try:
            self._cut(nbytes)
        except Exception as error:  # noqa: BLE001 - waiting requests must fail
            self.stream_failed(error)

    def _cut(self, count: int) -> None:
        """Handles each complete frame, after `count` bytes were written to the buffer."""
        buffer = self._buffer
        self._filled += count
        pos = 0
        size = _LENGTH.size
        while self._filled - pos >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, pos)
            if not 0 <= length <= self._receive_max_bytes:
                start = bytes(buffer[pos : pos + _LENGTH.size])
                kind = Undecodable if self._spoke_kafka else NotKafka
                raise kind(_not_kafka(start, length, self._receive_max_bytes))
            size = _LENGTH.size + length
            if self._filled - pos < size:
                break
            if not self.frame_received(buffer[pos + _LENGTH.size : pos + size]):
                return
            self._spoke_kafka = True
            pos += size
        self._keep(pos, size)

    def _keep(self, pos: int, size: int) -> None:
        """Moves the received part of an incomplete frame to the front of a buffer that fits its `size`."""
        left = self._filled - pos
        wanted = max(_SMALL, size)
        if len(self._buffer) < wanted or (len(self._buffer) > 8 * wanted and left < _LENGTH.size):
            before, self._buffer = self._buffer, memoryview(bytearray(wanted))
            self._buffer[:left] = before[pos : self._filled]
        elif pos and left:
            self._buffer[:left] = bytes(self._buffer[pos : self._filled])
        self._filled = left


def correlation_id(frame: memoryview) -> int:
    """Returns the id of the request that `frame` responds to; -1 if the frame is too short."""
    return int.from_bytes(frame[:4], "big", signed=True) if len(frame) >= 4 else -1


def read_response(header: Any, frame: memoryview) -> Any:
    """Decodes `frame`, the response to the request with `header`.

    Raises `WrongResponse` if the frame responds to another request, and `Undecodable`.
    """
    read = READERS.get(getattr(header, "request_api_key", -1))  # SASL v0 sends tokens without a header
    if read is not None:
        found, response = read(frame, header.request_api_version)
    else:
        response_class = header.get_response_class()
        if response_class is None:
            raise Undecodable(f"no schema of responses to {header}")
        data = io.BytesIO(frame)
        try:
            found = response_class.parse_header(data).correlation_id
        except Exception as error:  # as in `_decoded`
            raise Undecodable(f"cannot decode the header of a {response_class.__name__}: {error}") from error
    if found != header.correlation_id:
        raise WrongResponse(f"the response to request {found} where {header.correlation_id} is due")
    return response if read is not None else _decoded(response_class, data)


def _decoded(response_class: Any, data: io.BytesIO) -> Any:
    try:
        response = response_class.decode(data)
    except Exception as error:  # kafka-python raises what the damage leads to, such as an IndexError
        raise Undecodable(f"cannot decode a {response_class.__name__}: {error}") from error
    if hasattr(response_class, "fields"):  # not the bare tokens of SASL v0
        _check_arrays(response, _arrays_of(response_class, response.API_VERSION))
    return response


Arrays = tuple[tuple[str, bool, "Arrays"], ...]
"""(name, whether it may be null, the arrays in its elements) of each array of a message."""


@cache
def _arrays_of(response_class: Any, version: int) -> Arrays:
    return _arrays(response_class, version)


def _arrays(described: Any, version: int) -> Arrays:
    """Returns the arrays of a message or of a field of it."""
    return tuple(
        (name, field.nullable_for_version_q(version), _arrays(field, version) if field.is_struct_array() else ())
        for name, field in described.fields.items()
        if field.is_array() and field.for_version_q(version)
    )


def _check_arrays(message: Any, arrays: Arrays) -> None:
    """Raises `Undecodable` for a null array that must not be null. kafka-python decodes it as None."""
    for name, nullable, inner in arrays:
        elements = getattr(message, name)
        if elements is None and not nullable:
            raise Undecodable(f"{name} in a {type(message).__name__} is null")
        if inner:
            for element in elements or ():
                _check_arrays(element, inner)


def _not_kafka(start: bytes, length: int, most: int) -> str:
    """Explains a frame of an impossible length: the port speaks another protocol."""
    if start[:2] == b"\x15\x03":
        return "it responds in TLS"
    if start == b"HTTP":
        return "it responds in HTTP"
    return f"it responds with a frame of {length} bytes, where 0 to {most} are possible"
