"""Takes the arguments of `send`: checks them, and copies what the caller may change afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, Optional

from allocator.core.aio import wall_ms
from allocator.core.settings import check_topic
from allocator.core.text import shown
from allocator.errors import ConfigError
from allocator.producer.transaction import NewRecord
from allocator.types import Serializer

LAST_TIMESTAMP = (1 << 63) - 1
_AS_IT_IS: Final = frozenset((bytes, type(None)))

Headers = Sequence[tuple[str, Optional[bytes]]]


class TakenRecord(NamedTuple):
    """A record that the brokers can store, before its partition is chosen. The caller cannot change it any more."""

    topic: str
    partition: Optional[int]
    """None: the key chooses it."""
    record: NewRecord


class Intake(NamedTuple):
    """The serializers of a producer, which take what its callers pass."""

    key_serializer: Serializer = None
    value_serializer: Serializer = None

    @property
    def serializes(self) -> bool:
        return self.key_serializer is not None or self.value_serializer is not None

    def take(
        self, topic: str, value: Any, key: Any, timestamp: int | None, headers: Headers
    ) -> tuple[bytes | None, bytes | None, Headers]:
        """Returns the key and the value as bytes, and the headers. Raises TypeError, ConfigError, and the errors of the
        serializers."""
        if self.key_serializer is not None and key is not None:
            key = self.key_serializer(key)
        if self.value_serializer is not None and value is not None:
            value = self.value_serializer(value)
        if value.__class__ is not bytes and value is not None:
            value = _as_bytes(topic, "value", value)
        if key.__class__ is not bytes and key is not None:
            key = _as_bytes(topic, "key", key)
        if timestamp is not None:
            check_timestamp(topic, timestamp)
        return key, value, own_headers(topic, headers) if headers else ()

    def take_many(
        self, topic: str, values: list[Any], keys: list[Any] | None, timestamp: int | None, headers: Headers
    ) -> tuple[list[bytes | None], list[bytes | None] | None, Headers]:
        """Like `take`, for records that have the same timestamp and headers."""
        if self.serializes or not _AS_IT_IS.issuperset(map(type, chain(values, keys or ()))):
            taken = [self.take(topic, *record, None, ()) for record in zip(values, keys or repeat(None))]
            values = [value for _, value, _ in taken]
            keys = None if keys is None else [key for key, _, _ in taken]
        if timestamp is not None:
            check_timestamp(topic, timestamp)
        return values, keys, own_headers(topic, headers) if headers else ()

    def record(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> TakenRecord:
        """Returns a record from the arguments of `send`. Raises the errors of `take`."""
        key, value, headers = self.take(topic, value, key, timestamp, headers)
        check_topic(topic)
        return TakenRecord(
            topic, partition, NewRecord(key, value, wall_ms() if timestamp is None else timestamp, headers)
        )


def _as_bytes(topic: str, what: str, data: Any) -> bytes:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"{topic}: the {what} is {shown(data)}; pass bytes or None, or set {what}_serializer")


def check_timestamp(topic: str, timestamp: Any) -> None:
    if not isinstance(timestamp, int) or isinstance(timestamp, bool) or not 0 <= timestamp <= LAST_TIMESTAMP:
        raise ConfigError(f"{topic}: timestamp is {shown(timestamp)}; pass milliseconds since the epoch, an int")


def own_headers(topic: str, headers: Any) -> Headers:
    """Returns a copy of the headers. Raises TypeError and ConfigError if they are not valid."""
    if not hasattr(headers, "__len__"):
        raise TypeError(f"{topic}: the headers are {shown(headers)}, which can be read once; pass a list")
    own = tuple(headers)
    for pair in own:
        whole = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
        if not whole or not isinstance(pair[1], (bytes, type(None))):
            raise TypeError(f"{topic}: a header is {shown(pair)}; pass pairs (str, bytes or None)")
        try:
            pair[0].encode("utf-8", "surrogateescape")  # as consumers decode names that are not UTF-8
        except UnicodeEncodeError as error:
            raise ConfigError(f"{topic}: the name of header {shown(pair)} is no UTF-8: {error.reason}") from error
    return own
