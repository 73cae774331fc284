"""A recording: a file with records of some topics, which a test produces again.

The file is text with one line of JSON for each record, so that a person can review changes. With the suffix ".gz" it is
compressed. The first line is a header:

    {"format": 1, "partitions": {"orders": 4}}
    {"topic": "orders", "partition": 3, "timestamp": 1700000000000, "key": "c7", "value": "{...}", "headers": []}

Keys and values that are not UTF-8 are written as {"base64": "..."}. Lines of one partition are in the order of its log.
Lines of different partitions are in the order of their timestamps, as far as the first rule allows. The file is the
only I/O.
"""

from __future__ import annotations

import base64
import gzip
import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Protocol

from allocator.documents import write_file
from allocator.errors import ConfigError

__all__ = ["Recorded", "Recording", "TrafficRecord"]

FORMAT = 1


class Recorded(Protocol):
    """A record of this library, kafka-python or aiokafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Optional[bytes]
    value: Optional[bytes]
    headers: Sequence[tuple[str, Optional[bytes]]]


@dataclass(frozen=True)
class TrafficRecord:
    topic: str
    partition: int
    key: Optional[bytes]
    value: Optional[bytes]
    timestamp: Optional[int] = None
    """Milliseconds since the epoch; None without a timestamp (0.8, 0.9)."""
    headers: tuple[tuple[str, Optional[bytes]], ...] = ()


@dataclass(frozen=True)
class Recording:
    """Records in the order of the replay."""

    partitions: Mapping[str, int]
    """Topic -> number of partitions."""
    records: Sequence[TrafficRecord] = field(default_factory=tuple)

    @classmethod
    def of(cls, records: Iterable[Recorded], partitions: Mapping[str, int] | None = None) -> Recording:
        """Returns a recording of the records of any consumer. It does not keep transactions, gaps and offsets.

        `partitions`: topic -> number of partitions, needed if some partitions have no records.
        """
        logs: dict[tuple[str, int], list[tuple[int, Recorded]]] = {}
        for each in records:
            logs.setdefault((each.topic, each.partition), []).append((each.offset, each))
        counts = dict(partitions or {})
        for topic, number in logs:
            counts[topic] = max(counts.get(topic, 0), number + 1)
        streams = []
        for place, log in sorted(logs.items()):
            latest, stream = -1, []
            for offset, each in sorted(log, key=lambda pair: pair[0]):
                latest = max(
                    latest, each.timestamp or -1
                )  # timestamps may decrease within a log, whose order takes precedence
                stream.append((latest, place, offset, each))
            streams.append(stream)
        merged = heapq.merge(*streams, key=lambda entry: entry[:3])
        return cls(counts, tuple(_taken(each) for _, _, _, each in merged))

    def save(self, path: str | Path) -> None:
        """Writes the file atomically."""
        lines = [json.dumps({"format": FORMAT, "partitions": dict(sorted(self.partitions.items()))})]
        lines += [json.dumps(_to_json(record), ensure_ascii=False) for record in self.records]
        data = ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
        path = Path(path)
        write_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Reads a file. Raises ConfigError, which names the file and the line."""
        path = Path(path)
        try:
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise ConfigError(f"the recording {path} cannot be read: {error}") from error
        lines = text.splitlines()
        partitions = _head(path, lines[0] if lines else "")
        records = []
        for number, line in enumerate(lines[1:], 2):
            if line.strip():
                try:
                    records.append(_from_json(json.loads(line)))
                except (ValueError, KeyError, TypeError) as error:
                    raise ConfigError(
                        f"{path}, line {number}: {error!r}; see allocator.testing.traffic for the format"
                    ) from None
                last = records[-1]
                if not 0 <= last.partition < partitions.get(last.topic, 0):
                    raise ConfigError(
                        f"{path}, line {number}: {last.topic}:{last.partition} is not in the partitions of line 1"
                    )
        return cls(partitions, tuple(records))


def _head(path: Path, line: str) -> dict[str, int]:
    try:
        head = json.loads(line)
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']!r}; this version reads {FORMAT}")
        partitions = {str(topic): int(count) for topic, count in head["partitions"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}, line 1: {error!r}; this is not a recording of traffic") from None
    return partitions


def _taken(each: Recorded) -> TrafficRecord:
    timestamp = each.timestamp if each.timestamp is not None and each.timestamp >= 0 else None
    headers = tuple((name, value) for name, value in each.headers or ())
    return TrafficRecord(each.topic, each.partition, _bytes(each.key), _bytes(each.value), timestamp, headers)


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


def _to_json(record: TrafficRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "timestamp": record.timestamp,
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": [[name, _shown(value)] for name, value in record.headers],
    }


def _shown(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _from_json(entry: Mapping[str, Any]) -> TrafficRecord:
    return TrafficRecord(
        str(entry["topic"]),
        int(entry["partition"]),
        _read(entry.get("key")),
        _read(entry.get("value")),
        None if entry.get("timestamp") is None else int(entry["timestamp"]),
        tuple((str(name), _read(value)) for name, value in entry.get("headers", ())),
    )


def _read(shown: Any) -> bytes | None:
    if shown is None:
        return None
    if isinstance(shown, str):
        return shown.encode()
    return base64.b64decode(shown["base64"], validate=True)
