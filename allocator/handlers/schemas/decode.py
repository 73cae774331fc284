"""Decodes keys, values and headers to JSON, and masks them. No I/O: the caller supplies the schemas.

A decoder never fails. If the bytes are not in the given format, it uses the first of JSON, text and hex that fits, and
adds a note. A note never quotes the bytes, because they may be masked.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Optional, Union, get_args

from allocator.core.settings import MASK
from allocator.core.text import plain
from allocator.errors import ConfigError
from allocator.handlers.schemas.masks import Masks
from allocator.handlers.schemas.schema import HEADER, Schema, file_schema, read_json, schema_id
from allocator.types import Record

PlainFormat = Literal["auto", "json", "text", "hex"]
_ALLOWED = (
    f"{', '.join(get_args(PlainFormat))} or avro:FILE, confluent-avro:FILE, protobuf:FILE:MESSAGE, "
    "confluent-protobuf:FILE:MESSAGE"
)

Schemas = Mapping[int, Union[Schema, str]]
"""Id in the registry -> the schema, or the reason why it is missing."""
NO_SCHEMAS: Schemas = {}


@dataclass(frozen=True)
class Decoded:
    """A decoded key, value or header. `format`: "null", "json", "text", "hex", "avro", "protobuf" or "masked"."""

    format: str
    value: Any
    note: str = ""
    size: int = 0
    """Bytes on the wire."""

    @property
    def text(self) -> str:
        """The value as one line of text."""
        if isinstance(self.value, str) and self.format in ("text", "hex", "masked"):
            return self.value
        return json.dumps(self.value, ensure_ascii=False)


class Formats:
    """Formats of keys and values by topic.

    Each text is "TOPIC:key=FORMAT" or "TOPIC:value=FORMAT"; the topic `*` means all others. A FORMAT is auto, json,
    text, hex, avro:FILE, confluent-avro:FILE, protobuf:FILE:MESSAGE or confluent-protobuf:FILE:MESSAGE. A FILE is an
    Avro schema in JSON, or a descriptor set that `protoc --include_imports --descriptor_set_out` wrote.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Raises ConfigError for an invalid format, and MissingExtra if its package is not installed."""
        self._formats: dict[tuple[str, str], str] = {}
        for text in texts:
            place, equals, format = text.partition("=")
            topic, colon, part = place.rpartition(":")
            if not (equals and colon and topic and part in ("key", "value")):
                raise ConfigError(
                    f"record format {text!r} is not TOPIC:key=FORMAT or TOPIC:value=FORMAT, such as orders:value=json"
                )
            _reader(format)  # raises ConfigError
            self._formats[topic, part] = format

    def of(self, topic: str, part: str) -> str:
        return self._formats.get((topic, part)) or self._formats.get(("*", part), "auto")


class Decoder:
    """Decodes and masks records of one topic. `key` and `value` are formats."""

    def __init__(self, key: str = "auto", value: str = "auto", masks: Optional[Masks] = None) -> None:
        """Raises ConfigError for a format that is invalid or would show masked fields, and MissingExtra."""
        self.masks = masks or Masks()
        self._readers: dict[str, Optional[_Reader]] = {}
        self._wanted = {"key": key, "value": value}
        for part, wanted in self._wanted.items():
            if wanted in ("text", "hex") and self.masks.cover(part):
                raise ConfigError(
                    f"the {part} has masked fields, so it is not shown as {wanted}: the bytes would show them; "
                    "choose auto, json or a format with a schema"
                )
            self._readers[part] = _reader(wanted)

    def check_search(self) -> None:
        """Raises ConfigError if keys are masked: a search would show whether a guessed key exists."""
        if self.masks.cover("key"):
            raise ConfigError("keys have masked fields, so records cannot be searched by key; search by offset or time")

    def schema_ids(self, record: Record) -> set[int]:
        """Returns the registry ids of the schemas that `decode` needs for a record."""
        parts = {"key": record.key, "value": record.value}
        found = {schema_id(data) for part, data in parts.items() if self._wanted[part] == "auto" and data is not None}
        return {each for each in found if each is not None}

    def decode(self, part: str, data: Optional[bytes], schemas: Schemas = NO_SCHEMAS) -> Decoded:
        """Decodes and masks a key or a value."""
        found = self._decoded(part, data, schemas)
        if not self.masks.cover(part) or data is None:
            return found
        if found.format in ("text", "hex") or not isinstance(found.value, (dict, list)):
            return Decoded("masked", MASK, found.note or "has no fields to mask", len(data))
        value = self.masks.apply(part, found.value)
        return Decoded("masked" if isinstance(value, str) else found.format, value, found.note, len(data))

    def decode_header(self, name: str, data: Optional[bytes]) -> Decoded:
        """Decodes a header value as text, or as hex if it is not text."""
        if data is not None and self.masks.hides_header(name, bytes(data)):
            return Decoded("masked", MASK, "", len(data))
        return Decoded("null", None) if data is None else _plain(bytes(data), formats=("text", "hex"))

    def _decoded(self, part: str, data: Optional[bytes], schemas: Schemas) -> Decoded:
        if data is None:
            return Decoded("null", None)
        data = bytes(data)
        read = self._readers[part]
        if read is not None:
            kind = self._wanted[part].partition(":")[0].replace("confluent-", "")
            shown = {"json": "JSON", "text": "text"}.get(kind, f"a record of the {kind} schema")
            return _first(data, {kind: read}, "") or _plain(data, f"not {shown}")
        number = schema_id(data)
        schema = None if number is None else schemas.get(number)
        if schema is None or isinstance(schema, str):
            return _plain(data, schema or "")
        found = _first(data[HEADER:], {schema.kind: schema.read}, f"schema {number}")
        return replace(found, size=len(data)) if found else _plain(data, f"does not match schema {number}")


_Reader = Callable[[bytes], Any]


def _reader(text: str) -> Optional[_Reader]:
    """Returns the decoding function of a format; None for auto. Raises ConfigError."""
    if text == "auto":
        return None
    if text in _READERS:
        return _READERS[text]
    kind, _, where = text.partition(":")
    skip = kind.startswith("confluent-")
    schema = file_schema(kind.replace("confluent-", ""), where, framed=skip) if where else None
    if schema is None:
        raise ConfigError(f"{text!r} is not a format of records; use {_ALLOWED}")
    return (lambda data: schema.read(_unframed(data))) if skip else schema.read


def _unframed(data: bytes) -> bytes:
    if schema_id(data) is None:
        raise ValueError("no schema id")
    return data[HEADER:]


def _plain(data: bytes, note: str = "", formats: Sequence[str] = ("json", "text", "hex")) -> Decoded:
    found = _first(data, {format: _READERS[format] for format in formats}, note)
    assert found is not None, "any bytes have a form in hex"
    return found


def _first(data: bytes, readers: Mapping[str, _Reader], note: str) -> Optional[Decoded]:
    """Decodes by the first reader that accepts the bytes; None if no reader does."""
    for format, read in readers.items():
        with contextlib.suppress(ValueError, RecursionError):
            return Decoded(format, read(data), note, len(data))
    return None


def _text(data: bytes) -> str:
    text = data.decode()
    shown = text.replace("\n", "").replace("\r", "").replace("\t", "")
    if plain(shown) != shown:
        raise ValueError("control characters")
    return text


_READERS: Mapping[str, _Reader] = {"json": read_json, "text": _text, "hex": bytes.hex}
