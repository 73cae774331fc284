"""Reads, decodes and masks records in one call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from allocator.core.text import plain, table
from allocator.handlers.schemas import Decoded, Decoder, Formats, Masks, Registry, Schema
from allocator.types import Record
from allocator.viewer.read import Query, Reader, ReadResult


@dataclass(frozen=True)
class SeenRecord:
    """One record, decoded and masked."""

    partition: int
    offset: int
    timestamp_ms: Optional[int]
    key: Decoded
    value: Decoded
    headers: tuple[tuple[str, Decoded], ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the record with complete key, value and headers."""
        return {
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "key": self.key.value,
            "value": self.value.value,
            "headers": [[name, each.value] for name, each in self.headers],
            "key_format": self.key.format,
            "value_format": self.value.format,
            "header_formats": [each.format for _, each in self.headers],
        }

    def shown(self, most: int) -> dict[str, Any]:
        """Returns the record with key, value and headers as texts of at most `most` characters."""
        return {
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "key": _shown(self.key, most),
            "value": _shown(self.value, most),
            "headers": [{"name": name, **_shown(each, most)} for name, each in self.headers],
        }


@dataclass(frozen=True)
class View:
    """The result of a query."""

    found: ReadResult
    records: list[SeenRecord]

    def to_json(self, most: Optional[int] = None) -> dict[str, Any]:
        """Returns the result. `most`: maximum characters of keys and values as text; None: complete values."""
        return {
            **vars(self.found),
            "records": [each.to_json() if most is None else each.shown(most) for each in self.records],
            "windows": [vars(window) for window in self.found.windows],
        }

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the first records, and how many were read."""
        rows = [[r.partition, r.offset, r.timestamp_ms, r.key.text, r.value.text] for r in self.records]
        until = f", until the limit of {self.found.stopped}" if self.found.stopped else ""
        note = f"{self.found.topic}: {len(rows)} records of {self.found.scanned} read{until}"
        if self.found.leaderless:
            note += f"; {len(self.found.leaderless)} partitions have no leader and were not read"
        return table(("partition", "offset", "timestamp, ms", "key", "value"), rows, len(rows), note)

    def lines(self) -> Iterator[str]:
        """Yields one line of JSON for each record."""
        for each in self.records:
            line = json.dumps({"topic": self.found.topic, **each.to_json()}, ensure_ascii=False)
            yield plain(line, json=True) + "\n"


@dataclass(frozen=True)
class Viewer:
    """Reads, decodes and masks records. Create one per process."""

    reader: Reader
    masks: Masks = field(default_factory=Masks)
    formats: Formats = field(default_factory=Formats)
    registry: Optional[Registry] = None

    async def view(self, query: Query, key_format: str = "auto", value_format: str = "auto") -> View:
        """Returns the decoded and masked records of a query. "auto" uses the format that `formats` has for the topic.

        Raises ConfigError for an invalid query, MissingExtra, and the errors of `Reader.read`.
        """
        decoder = self._decoder(query.topic, key_format, value_format)
        if query.key is not None:
            decoder.check_search()
        found = await self.reader.read(query)
        return View(found, await self._all_seen(found.records, decoder))

    async def decode(self, topic: str, record: Record) -> SeenRecord:
        """Decodes and masks a record that the caller has read. Raises MissingExtra, RegistryFailed."""
        (one,) = await self._all_seen([record], self._decoder(topic, "auto", "auto"))
        return one

    def _decoder(self, topic: str, key_format: str, value_format: str) -> Decoder:
        return Decoder(
            self.formats.of(topic, "key") if key_format == "auto" else key_format,
            self.formats.of(topic, "value") if value_format == "auto" else value_format,
            self.masks,
        )

    async def _all_seen(self, records: Sequence[Record], decoder: Decoder) -> list[SeenRecord]:
        schemas: Mapping[int, Union[Schema, str]] = {}
        if self.registry is not None:
            ids = {number for each in records for number in decoder.schema_ids(each)}
            schemas = await self.registry.load(ids)
        # decode in a thread: large values take time, and a server must handle other requests meanwhile
        return await asyncio.to_thread(lambda: [seen(record, decoder, schemas) for record in records])


def seen(record: Record, decoder: Decoder, schemas: Mapping[int, Union[Schema, str]]) -> SeenRecord:
    """Decodes and masks one record."""
    return SeenRecord(
        record.partition,
        record.offset,
        record.timestamp if record.timestamp >= 0 else None,
        decoder.decode("key", record.key, schemas),
        decoder.decode("value", record.value, schemas),
        tuple((name, decoder.decode_header(name, value)) for name, value in record.headers),
    )


def _shown(decoded: Decoded, most: int) -> dict[str, Any]:
    text = decoded.text
    return {
        "format": decoded.format,
        "text": text[:most],
        "cut": len(text) > most,
        "size": decoded.size,
        "note": decoded.note,
    }
