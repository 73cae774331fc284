"""A batch that is read in parts is decoded once, and its errors come in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
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
    """The part of the engine that a reader uses, with one batch to give."""

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
async def test_a_batch_is_decoded_once_however_few_are_asked_for(size: int) -> None:
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


async def test_all_three_ways_of_reading_go_on_where_the_other_stopped() -> None:
    reading = Reading(Engine(make(plain, batch([R(n, value) for n, value in enumerate(VALUES)]))))  # type: ignore[arg-type]
    got = values(await reading.many(0, 5))
    for _ in range(3):
        record = await reading.one(0)
        assert record is not None
        got.append(record.value)
    got += values(await reading.many(0, 4))
    rest = await reading.batch(0)
    assert rest is not None
    assert got + [record.value for record in rest] == VALUES


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


async def test_records_before_damage_come_first_and_the_damage_as_often_as_it_is_asked_for() -> None:
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


class Loader:
    """Needs something for each batch, for ever; `load` waits for `respond`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[list[bytes | None]] = []
        self.respond = asyncio.Event()
        self.error = error

    def __call__(self, data: bytes) -> int:
        return int(data)

    def missing(self, data: Iterable[bytes | None]) -> set[int]:
        self.asked.append(list(data))
        return {1}

    async def load(self, missing: Any) -> None:
        await self.respond.wait()
        if self.error is not None:
            raise self.error


class LoadingEngine(Engine):
    """The same, with tasks."""

    def __init__(self, *batches: Batch) -> None:
        super().__init__(*batches)
        self.fetcher.wake = lambda: None
        self.tasks: list[Any] = []

    def start_task(self, work: Any, name: str) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def may_take(self) -> bool:
        return True

    async def news(self, timeout_s: float | None) -> None:
        await asyncio.sleep(0)


def loading(loader: Loader) -> tuple[LoadingEngine, Reading]:
    made = make(plain, batch([R(n, value) for n, value in enumerate(VALUES)]), value_deserializer=loader)
    engine = LoadingEngine(made)
    return engine, Reading(engine, (None, loader))  # type: ignore[arg-type]


async def test_a_batch_waits_for_what_its_deserializer_loads_and_is_asked_about_once() -> None:
    loader = Loader()
    engine, reading = loading(loader)
    for _ in range(3):
        assert await reading.batch(0) is None
    waiting = asyncio.ensure_future(reading.one(None))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert engine.delivered == 0
    loader.respond.set()
    record = await asyncio.wait_for(waiting, 30)
    assert record is not None
    assert record.value == 0
    assert len(values(await reading.many(0, None))) == len(VALUES) - 1
    assert loader.asked == [VALUES], "once, although it needs something still"
    assert len(engine.tasks) == 1
