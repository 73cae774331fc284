"""Bytes of a connection, received in place and cut into the frames that brokers send."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any, Final

import kafka.errors as kafka_errors

from allocator.client import fetch_messages, offset_commit

__all__ = ["Frames", "read_response"]

# api key -> reader of its responses; kafka-python reads all others
READERS: Final = {1: fetch_messages.read_response, offset_commit.API_KEY: offset_commit.read_response}
_LENGTH: Final = 4
# of the buffer that an idle connection keeps
_SMALL: Final = 1 << 16


class Frames:
    """The receive buffer of one connection: large enough for the frame that is coming, used again for the next one.

    Guarantee: memory is taken for a frame only after its length was found to be allowed, and given back once frames
    are small again.
    """

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_SMALL))
        self._filled = 0

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self._buffer[self._filled :]

    def arrived(self, count: int, most: int) -> Iterator[memoryview]:
        """`count` bytes were written to `room`. Gives each frame that is whole, to be read before the next one.

        Raises kafka-python's `InvalidReceiveError` for a frame below 0 or above `most` bytes.
        """
        self._filled += count
        pos = 0
        size = _LENGTH
        while self._filled - pos >= _LENGTH:
            length = int.from_bytes(self._buffer[pos : pos + _LENGTH], "big", signed=True)
            if not 0 <= length <= most:
                raise kafka_errors.InvalidReceiveError(
                    _not_kafka(bytes(self._buffer[pos : pos + _LENGTH]), length, most)
                )
            size = _LENGTH + length
            if self._filled - pos < size:
                break
            yield self._buffer[pos + _LENGTH : pos + size]
            pos += size
        self._keep(pos, size)

    def _keep(self, pos: int, size: int) -> None:
        """Move what is left of an unfinished frame of `size` bytes to the front of a buffer that it fits into."""
        left = self._filled - pos
        wanted = max(_SMALL, size)
        if len(self._buffer) < wanted or (len(self._buffer) > 8 * wanted and left < _LENGTH):
            before, self._buffer = self._buffer, memoryview(bytearray(wanted))
            self._buffer[:left] = before[pos : self._filled]
        elif pos and left:
            self._buffer[:left] = bytes(self._buffer[pos : self._filled])
        self._filled = left


def read_response(header: Any, frame: memoryview) -> Any:
    """The response in `frame` to the request with `header`; frequent ones have readers of their own.

    Raises kafka-python's `CorrelationIdError` where it responds to another request.
    """
    read = READERS.get(getattr(header, "request_api_key", -1))  # the tokens of SASL v0 go without a header
    if read is not None:
        found, response = read(frame, header.request_api_version)
    else:
        response_class = header.get_response_class()
        if response_class is None:
            raise kafka_errors.KafkaProtocolError(f"no schema of responses to {header}")
        data = io.BytesIO(frame)
        found = response_class.parse_header(data).correlation_id
    if found != header.correlation_id:
        raise kafka_errors.CorrelationIdError(f"the response to request {found} where {header.correlation_id} is due")
    return response if read is not None else _decoded(response_class, data)


def _decoded(response_class: Any, data: io.BytesIO) -> Any:
    try:
        return response_class.decode(data)
    except (ValueError, struct.error) as error:
        raise kafka_errors.KafkaProtocolError(f"cannot decode a {response_class.__name__}: {error}") from error


def _not_kafka(start: bytes, length: int, most: int) -> str:
    """What an answer is that begins with such a length: a port of another kind shows itself so."""
    if start[:2] == b"\x15\x03":
        return "it answers in TLS"
    if start == b"HTTP":
        return "it answers in HTTP"
    return f"it answers with a frame of {length} bytes, where 0 to {most} are possible"
