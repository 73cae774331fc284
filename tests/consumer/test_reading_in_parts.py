"""A batch that is read in parts is decoded once, and its errors come in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fetch_decoders import make
from fetch_encode import R, batch, sign

from allocator.core.consumer.reading import Reading
from allocator.core.fetch import Batch
from allocator.core.fetch import decode_plain as plain
from allocator.errors import CorruptRecordError, DeserializationError

VALUES = [b"%d" % number for number in range(30)]


class Engine:
    """The part of the engine that a reader uses, with some batches."""

    may_deliver = True
    group = None

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)
        self.delivered = 0
        self.fetcher = SimpleNamespace(take=lambda: self.batches.pop(0) if self.batches else None)
        self.membership = SimpleNamespace(polled=lambda: None)
        self.progress = SimpleNamespace(finish=lambda: None, abandon=lambda: None)
        self.state = SimpleNamespace(
            is_fetchable=lambda partition: True,
            epoch=lambda partition: 1,
            position=lambda partition: SimpleNamespace(offset=self.delivered),
        )

    def deliver(self, batch: Batch, next_offset: int) -> None:
        assert next_offset >= self.delivered
        self.delivered = next_offset

    async def news(self, timeout_s: float | None) -> None:
        raise AssertionError("there is no more")


def values(found: dict[Any, list[Any]]) -> list[bytes]:
    return [record.value for records in found.values() for record in records]


@pytest.mark.parametrize("size", [1, 7])
async def test_a_batch_is_decoded_once_however_few_records_are_requested(size: int) -> None:
    decoded: list[bytes] = []

    def value(data: bytes) -> bytes:
        decoded.append(data)
        return data

    data = batch([R(n, value) for n, value in enumerate(VALUES)], 0, "gzip")
    engine = Engine(make(plain, data, value_deserializer=value))
    reading = Reading(engine)  # type: ignore[arg-type]
    got = []
    while len(got) < len(VALUES):
        got += values(await reading.many(0, size))
        assert engine.delivered == len(got)
    assert got == decoded == VALUES
    assert await reading.many(0, size) == {}


async def test_records_before_one_that_does_not_deserialize_come_first() -> None:
    data = batch([R(n, value) for n, value in enumerate(VALUES)])
    number = make(plain, data, value_deserializer=lambda value: 1 // (value != b"20") and value)
    engine = Engine(number)
    reading = Reading(engine)  # type: ignore[arg-type]
    assert values(await reading.many(0, 15)) == VALUES[:15]
    assert values(await reading.many(0, 15)) == VALUES[15:20]
    with pytest.raises(DeserializationError):
        await reading.many(0, 15)
    assert engine.delivered == 21
    assert values(await reading.many(0, 15)) == VALUES[21:]


async def test_records_before_damage_come_first_and_each_request_raises_the_damage() -> None:
    sound, bad = (bytearray(batch([R(n, value) for n, value in enumerate(VALUES)], base)) for base in (0, 30))
    bad[61] = 0x7F  # the length of the first record
    found = plain.scan(bytes(sound) + sign(bytes(bad)), topic="t", partition=3, start=0)
    engine = Engine(Batch("t", 3, found))
    reading = Reading(engine)  # type: ignore[arg-type]
    assert values(await reading.many(0, None)) == VALUES
    assert engine.delivered == 30
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            await reading.many(0, None)
    assert engine.delivered == 30
