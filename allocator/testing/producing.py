"""Produces records on any version of Kafka, with any compression and record format that the brokers support.

Uses versions 0, 2 and 3 of the Produce API (protocol guide), one for each record format, and 7 for zstd. It detects the
brokers' versions by an ApiVersions request, to which 0.8 and 0.9 do not respond.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Optional, Union

from .batches import CODECS, ProducedRecord, encode
from .errors import ClusterError
from .probe import Connection, Metadata, api_versions, ignores_versions, metadata

__all__ = ["Produced", "ProducedRecord", "produce"]

Value = Optional[bytes]
Produced = Union[bytes, ProducedRecord, tuple[Value, Value], tuple[Value, Value, Optional[int]]]
"""A record to produce: a value, (key, value), (key, value, partition), or a ProducedRecord."""

_PRODUCE = 0
_API_VERSION = {0: 0, 1: 2, 2: 3}  # record format -> version of the Produce API
_DETECT_S = 3.0
# Seconds until a resend: a 0.9 broker loses requests that arrive together with an unknown request, such as ApiVersions
# of a newer client. Higher: a longer wait after such a loss; lower: a slow broker gets records twice
_RESPONSE_S = 20.0
_ZSTD_API_VERSION = 7  # KIP-110: older versions refuse zstd
_FLUSH_BYTES = 4 << 20
_RETRIABLE = frozenset((3, 5, 6, 7, 19, 20))  # leader unknown or moved, timeout, missing replicas


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Produced],
    *,
    compression: str | None = None,
    magic: int | None = None,
    batch_records: int = 5000,
    batch_bytes: int = 512 << 10,
    acks: int = -1,
    timeout_s: float = 60.0,
    version: str | None = None,
) -> dict[int, int]:
    """Appends the records. Returns partition -> number of acknowledged records; raises if not all are acknowledged.

    A record without a partition goes to the partition of its key's hash, as with Java's and kafka-python's producers;
    records without a key go to the partitions in turn. The order within a partition is kept. A record may be duplicated
    if a broker crashes, or does not respond for 20 s, because unacknowledged records are sent again.

    `compression`: gzip, snappy, lz4 (0.8.2 and newer) or zstd (2.1 and newer). `magic`: the record format, by default
    the newest that the brokers support. `batch_records`, `batch_bytes`: limits of one batch. `timeout_s`: seconds for
    each flush of some megabytes. `version`: the Kafka version; by default it is detected, which takes seconds with 0.9.
    Raises ClusterError, which names the partition that a broker refused or did not acknowledge in time.
    """
    if compression not in CODECS:
        raise ClusterError(f"unknown compression {compression!r}; known: {', '.join(str(name) for name in CODECS)}")
    if magic not in (None, *_API_VERSION):
        raise ClusterError(f"unknown record format {magic!r}; known: 0, 1 and 2")
    link = _Link(bootstrap, topic, timeout_s)
    try:
        newest = link.newest_api() if version is None else _api_of(version)
        chosen = max(form for form, api in _API_VERSION.items() if api <= newest) if magic is None else magic
        api = _ZSTD_API_VERSION if compression == "zstd" else _API_VERSION[chosen]
        if api > newest or (compression == "zstd" and chosen < 2):
            raise ClusterError(
                f"record format {chosen} with compression {compression} needs Produce v{api}; {bootstrap} supports up "
                f"to v{newest}"
            )
        partitions = link.partitions()
        counts: dict[int, int] = dict.fromkeys(partitions, 0)
        waiting: dict[int, list[ProducedRecord]] = defaultdict(list)
        sizes: dict[int, int] = defaultdict(int)
        total = 0

        def flush() -> None:
            nonlocal total
            now = int(time.time() * 1000)
            batches = {p: encode(held, chosen, compression, now) for p, held in waiting.items() if held}
            link.send(batches, api, acks)
            for partition, held in waiting.items():
                counts[partition] += len(held)
            waiting.clear()
            sizes.clear()
            total = 0

        for number, item in enumerate(records):
            record = _record(item)
            partition = record.partition
            if partition is None:
                at = number if record.key is None else _hash(record.key)
                partition = partitions[at % len(partitions)]
            elif partition not in counts:
                raise ClusterError(f"record {number}: topic {topic!r} has no partition {partition}")
            size = len(record.key or b"") + len(record.value or b"") + 40
            held = waiting[partition]
            full = len(held) >= batch_records or sizes[partition] + size > batch_bytes
            if (held and full) or total > _FLUSH_BYTES:
                flush()
                held = waiting[partition]
            held.append(record)
            sizes[partition] += size
            total += size
        if waiting:
            flush()
    finally:
        link.close()
    return {partition: count for partition, count in counts.items() if count}


def _record(item: Produced) -> ProducedRecord:
    if isinstance(item, ProducedRecord):
        return item
    return ProducedRecord(*item) if isinstance(item, tuple) else ProducedRecord(None, item)


def _hash(key: bytes) -> int:
    from kafka.partitioner import murmur2

    return int(murmur2(key)) & 0x7FFFFFFF


def _api_of(version: str) -> int:
    """Returns the newest version of the Produce API that this module and this version of Kafka support."""
    number = tuple(int(part) for part in version.split("."))
    return 0 if number < (0, 10) else 2 if number < (0, 11) else 3 if number < (2, 1) else _ZSTD_API_VERSION


class _Link:
    """The connections to the leaders of one topic. After a failure, looks up the leaders again."""

    def __init__(self, bootstrap: str, topic: str, timeout_s: float) -> None:
        self._bootstrap, self._topic, self._timeout_s = bootstrap, topic, timeout_s
        self._known = Metadata()
        self._open: dict[int, Connection] = {}

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def newest_api(self) -> int:
        patience_s = _DETECT_S
        for address in self._bootstrap.split(","):
            host, _, port = address.rpartition(":")
            while metadata(int(port), host=host) is not None:
                known = api_versions(int(port), patience_s, host)
                if known is not None:
                    return known.get(_PRODUCE, (0, 0))[1]
                if ignores_versions(int(port), patience_s, host):
                    return 0  # 0.8 or 0.9
                if patience_s > self._timeout_s:
                    break
                patience_s *= 2  # the broker may be slow rather than old
        raise ClusterError(f"no broker of {self._bootstrap} can be reached; check that they run")

    def partitions(self) -> list[int]:
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._refresh()
            if self._topic in self._known.topics:
                return sorted(self._known.topics[self._topic])
            self._pause(deadline, f"{self._bootstrap} does not know the topic {self._topic!r}; create it first")

    def send(self, sets: Mapping[int, bytes], api: int, acks: int) -> None:
        """Sends the record sets until all are acknowledged. Raises ClusterError."""
        deadline = time.monotonic() + self._timeout_s
        left = dict(sets)
        why = "no leader"
        while True:
            by_leader: dict[int, dict[int, bytes]] = defaultdict(dict)
            for partition, data in left.items():
                state = self._known.topics.get(self._topic, {}).get(partition)
                if state is not None and state.leader is not None:
                    by_leader[state.leader][partition] = data
            for leader, mine in by_leader.items():
                try:
                    codes = self._exchange(leader, mine, api, acks)
                except OSError as error:
                    why = f"broker {leader}: {error}"
                    connection = self._open.pop(leader, None)
                    if connection is not None:
                        connection.close()
                    continue
                for partition, code in codes.items():
                    if code == 0:
                        del left[partition]
                    elif code in _RETRIABLE:
                        why = f"broker {leader} responds with error {code}"
                    else:
                        raise ClusterError(f"broker {leader} refused {self._topic!r}:{partition} with error {code}")
            if not left:
                return
            self._pause(deadline, f"partitions {sorted(left)} of {self._topic!r} accepted no records: {why}")
            self._refresh()

    def _exchange(self, leader: int, sets: Mapping[int, bytes], api: int, acks: int) -> dict[int, int]:
        if leader not in self._open:
            if leader not in self._known.brokers:
                raise ConnectionError("its address is unknown")
            host, port = self._known.brokers[leader]
            self._open[leader] = Connection(host, port, min(_RESPONSE_S, self._timeout_s))
        name = self._topic.encode()
        body = [b"\xff\xff" if api >= 3 else b"", struct.pack(">hii", acks, int(self._timeout_s * 1000), 1)]
        body += [struct.pack(">h", len(name)), name, struct.pack(">i", len(sets))]
        for partition, data in sets.items():
            body += [struct.pack(">ii", partition, len(data)), data]
        reader = self._open[leader].request(_PRODUCE, api, b"".join(body), expect_response=acks != 0)
        if reader is None:
            return dict.fromkeys(sets, 0)
        codes = {}
        for _ in range(reader.int32()):
            reader.text()
            for _ in range(reader.int32()):
                partition, code = reader.int32(), reader.int16()
                reader.skip(8 + (8 if api >= 2 else 0) + (8 if api >= 5 else 0))  # base offset, append time, log start
                codes[partition] = code
        return codes

    def _refresh(self) -> None:
        for address in self._bootstrap.split(","):
            host, _, port = address.rpartition(":")
            known = metadata(int(port), host=host)
            if known is not None and known.brokers:
                self._known = known
                return

    def _pause(self, deadline: float, complaint: str) -> None:
        if time.monotonic() >= deadline:
            raise ClusterError(f"{complaint} (waited {self._timeout_s:g} s)")
        time.sleep(0.05)
