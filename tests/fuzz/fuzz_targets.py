"""Fuzz targets: functions that accept any bytes and raise only if the code breaks a promise.

Each target has seeds: valid inputs that a fuzzer changes. Store an input that broke a target in
tests/fuzz/corpus/<target>/. The tests then try it in each run.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from allocator.core.fetch import decode_plain as plain
from allocator.documents.checked import InvalidZnode
from allocator.errors import CorruptRecordError
from allocator.protocols.kafka_classic.consumer_protocol import (
    Malformed,
    MemberAssignment,
    StickyUserData,
    Subscription,
)
from allocator.protocols.zookeeper.znodes.documents import (
    AssignmentDocument,
    Claim,
    MemberInfo,
    Waiting,
    shard_names,
    split,
)
from allocator.testing.batches import ProducedRecord, encode
from allocator.types import TopicPartition
from tests.fetch.fetch_encode import signed

try:
    from allocator.core import _records
except ImportError:  # then only the plain decoder runs
    _records = None  # type: ignore[assignment]

__all__ = ["CORPUS", "SEEDS", "TARGETS", "known"]

CORPUS = Path(__file__).with_name("corpus")
HELD = frozenset({TopicPartition("orders", 0), TopicPartition("orders", 2), TopicPartition("bills", 7)})


# -- records ---------------------------------------------------------------------------------------------------------


def decoded(decoder: Any, data: bytes) -> list[Any]:
    """Batches, records and places of errors. Catches only CorruptRecordError."""
    found = decoder.scan(data, topic="t", partition=3, start=0, aborted=[(1, 0)])
    seen: list[Any] = [found.next_offset, found.wanted, place(found.error)]
    for number, segment in enumerate(found.segments):
        seen.append((segment.base_offset, segment.next_offset, segment.count, segment.size, segment.leader_epoch))
        try:
            for record in found.columns(number, number + 1).records():
                key = (record.offset, record.timestamp, record.timestamp_type)
                seen.append((*key, record.key, record.value, tuple(record.headers)))
        except CorruptRecordError as error:
            seen.append(place(error))
    return seen


def place(error: CorruptRecordError | None) -> Any:
    return error and (error.topic, error.partition, error.offset, error.next_offset)


def records(data: bytes) -> None:
    """Bytes of a fetch response. Both decoders give the same result, or CorruptRecordError.

    The checksums are corrected first, because a fuzzer does not find them.
    """
    data = signed(data)
    by_plain = decoded(plain, data)
    if _records is not None:
        by_compiled = decoded(_records, data)
        assert by_compiled == by_plain, (by_compiled, by_plain)


def record_sets() -> Iterator[bytes]:
    many = [
        ProducedRecord(b"k", b"value"),
        ProducedRecord(None, b"v" * 70, headers=[("name", b"value"), ("", None)]),
        ProducedRecord(b"key", None),
    ]
    for magic in (0, 1, 2):
        for codec in (None, "gzip", "snappy", "lz4", *(["zstd"] if magic == 2 else [])):
            yield encode(many, magic, codec, now_ms=1_700_000_000_000)


# -- znodes ----------------------------------------------------------------------------------------------------------


def znodes(data: bytes) -> None:
    """Content of any znode of a group: InvalidZnode, or a value that survives writing and reading."""
    for kind in (AssignmentDocument, Claim, MemberInfo):
        for raw in (data, zlib.compress(data)):
            try:
                read = kind.decode("/z", raw)
            except InvalidZnode as error:
                assert "/z" in str(error)
                continue
            again = kind.decode("/z", read.encode())
            assert again == read, (again, read)
    try:
        shard_names("/z", data)
    except InvalidZnode as error:
        assert "/z" in str(error)


def znode_contents() -> Iterator[bytes]:
    member = "m-0123456789abcdef-0000000042"
    for written in (
        AssignmentDocument(
            generation=3,
            revision=7,
            leader=member,
            strategy="sticky",
            owners={member: HELD},
            promised={member: HELD},
            waiting={member: Waiting(2, HELD)},
            refused={"m-x": "no function in common"},
            problem="why",
        ).encode(),
        Claim(1, HELD, 2).encode(),
        MemberInfo("worker", "host", frozenset({"orders"}), "x.*", 2.5, "rack-1", ("naive", "pkg:fn")).encode(),
        split(bytes(2_000_000), member, 7)[0],
    ):
        yield written
        with contextlib.suppress(zlib.error):
            yield zlib.decompress(written)  # text is easier to change than deflated bytes


# -- consumer protocol -----------------------------------------------------------------------------------------------


def protocol(data: bytes) -> None:
    """Messages of other members of a Kafka group: Malformed, or a value that survives writing and reading."""
    for kind in (Subscription, MemberAssignment, StickyUserData):
        try:
            read = kind.decode(data)
        except Malformed as error:
            assert "cannot be read" in str(error)
            continue
        again = kind.decode(read.encode())
        assert again == read, (again, read)


def protocol_messages() -> Iterator[bytes]:
    for version in range(4):
        yield Subscription(("orders", "bills"), b"data", HELD, 7, "rack-1", version).encode()
        yield MemberAssignment(HELD, b"data", version).encode()
    yield StickyUserData(HELD, 7).encode()


TARGETS: dict[str, Callable[[bytes], None]] = {"records": records, "znodes": znodes, "protocol": protocol}
SEEDS: dict[str, list[bytes]] = {
    "records": list(record_sets()),
    "znodes": list(znode_contents()),
    "protocol": list(protocol_messages()),
}


def known(target: str) -> list[bytes]:
    """The seeds of a target, and all inputs that broke it once."""
    return [*SEEDS[target], *(path.read_bytes() for path in sorted((CORPUS / target).glob("*")))]
