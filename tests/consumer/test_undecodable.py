"""A record batch that does not decode ends what is delivered: nothing after it is read or committed until a seek."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from allocator import Batch, Consumer, TopicPartition
from allocator.errors import CorruptRecordError
from allocator.handlers.handlers import Handler
from allocator.handlers.handling import Handling
from allocator.handlers.processor import Processor
from allocator.sinks import SqliteSink
from allocator.testing import wait_until_async
from tests.consumer.fake_kafka import GroupCluster, HandMembership, consumer_by_hand
from tests.fetch.fetch_encode import R, batch

P, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
BAD = 5
"""The offset of the record batch that does not decode. It has two records; good ones are before and after it."""
END = 10


def broken(base: int, records: int = 2) -> bytes:
    """Returns a record batch with a valid checksum that is not compressed as it says."""
    return batch([R(number) for number in range(records)], base, attributes=1)


def fill(cluster: GroupCluster, partition: TopicPartition, *, first: int = BAD) -> None:
    """Writes the batches 0 to 2, 3 and 4; the one that does not decode; and three good ones of one record."""
    for count in (3, 2) if first else ():
        cluster.append(partition, count, codec="gzip")
    cluster.append_raw(partition, broken(first), 2)
    for _ in range(3):
        cluster.append(partition, 1)


@contextlib.asynccontextmanager
async def owner(*, first: int = BAD, **arguments: Any) -> AsyncIterator[tuple[Consumer, GroupCluster, HandMembership]]:
    cluster = GroupCluster(ids=True)
    consumer, made = consumer_by_hand(cluster, **arguments)
    cluster.create([P, OTHER])
    fill(cluster, P, first=first)
    async with consumer:
        await made[0].take(P, 1, lambda: None)
        yield consumer, cluster, made[0]


def iterated(found: Batch) -> list[int]:
    return [record.offset for record in found]


def in_columns(found: Batch) -> list[int]:
    pytest.importorskip("pyarrow")
    return found.to_arrow().column("offset").to_pylist()  # type: ignore[no-any-return]


def in_slices(found: Batch) -> list[int]:
    return [record.offset for at in range(0, len(found), 4) for record in found[at : at + 4]]


def by_offset(found: Batch) -> list[int]:
    return [record.offset for record in found.raw().from_offset(found.base_offset)]


async def all_of(get: Callable[[], Any], count: int, *, failures: int = 0) -> list[int]:
    """Reads until it has `count` records, and met `failures` errors if that is not 0. Returns the offsets."""
    got, errors = list[int](), 0

    async def enough() -> bool:
        nonlocal errors
        try:
            got.extend(await get())
        except CorruptRecordError as error:
            assert failures
            assert (error.offset, error.next_offset) == (BAD, BAD + 2)
            errors += 1
        return len(got) >= count and errors >= failures

    await wait_until_async(enough, 30, lambda: f"{count} records and {failures} errors: {got}, {errors}", interval_s=0)
    return got


def in_parts(found: Batch) -> list[int]:
    return [record.offset for _, _, records in found.parts() for record in records]


def on_the_wire(found: Batch) -> list[int]:
    return [record.offset for part, _, _ in found.encoded() for record in part]


FORMS = [iterated, in_columns, in_slices, by_offset]


@pytest.mark.parametrize("in_thread", [False, True], ids=["in the loop", "in a thread"])
@pytest.mark.parametrize("form", FORMS)
async def test_a_batch_ends_before_it(form: Callable[[Batch], list[int]], in_thread: bool) -> None:
    async with owner() as (consumer, cluster, _):

        async def get() -> list[int]:
            found = await consumer.getbatch(0.2)
            if found is None:
                return []
            offsets = await asyncio.to_thread(form, found) if in_thread else form(found)
            assert found.next_offset == BAD == await consumer.position(P)
            return offsets

        assert await all_of(get, BAD, failures=2) == [*range(BAD)]
        await consumer.commit()
        assert cluster.committed[P].offset == BAD
        consumer.seek(P, BAD + 2)
        assert await all_of(get_offsets(consumer), END - BAD - 2) == [*range(BAD + 2, END)]
        assert await consumer.getbatch(0.1) is None
    assert cluster.committed[P].offset == END


def get_offsets(consumer: Consumer) -> Callable[[], Any]:
    async def get() -> list[int]:
        return iterated(await consumer.getbatch(0.2) or ())  # type: ignore[arg-type]

    return get


@pytest.mark.parametrize("form", [*FORMS, in_parts, on_the_wire])
async def test_slices_that_were_taken_before_end_before_it_or_raise_the_error(
    form: Callable[[Batch], list[int]],
) -> None:
    async with owner() as (consumer, _, _):
        found = await consumer.getbatch(5)
        assert found is not None
        across, behind = found.from_offset(BAD - 1), found.from_offset(BAD + 2)
        assert iterated(found) == [*range(BAD)]
        assert across.next_offset == behind.next_offset == BAD
        assert form(across) == [BAD - 1]
        for _ in range(2):
            with pytest.raises(CorruptRecordError):
                form(behind)
        later = found.from_offset(BAD + 2)
        assert (form(later), later.next_offset) == ([], BAD)


async def test_a_reader_of_the_batches_on_the_wire_commits_nothing_behind_it() -> None:
    async with owner() as (consumer, cluster, _):
        found = await consumer.getbatch(5)
        assert found is not None
        offsets: list[int] = []
        with pytest.raises(CorruptRecordError):
            offsets.extend(record.offset for part, _, _ in found.encoded() for record in part)
        with pytest.raises(CorruptRecordError):
            await consumer.getbatch(5)
        await consumer.commit()
        assert cluster.committed[P].offset == BAD


async def test_a_commit_right_after_the_records_ends_before_it() -> None:
    async with owner(auto_commit_interval_s=None) as (consumer, cluster, _):
        found = await consumer.getbatch(5)
        assert found is not None
        assert iterated(found) == [*range(BAD)]
        await consumer.commit()
        assert cluster.committed[P].offset == BAD


async def test_a_partition_that_moves_after_the_records_is_committed_before_it() -> None:
    async with owner() as (consumer, cluster, hand):
        found = await consumer.getbatch(5)
        assert found is not None
        moving = hand.give_up([P])
        await asyncio.sleep(0.01)
        assert iterated(found) == [*range(BAD)]
        assert await consumer.getbatch(0.2) is None
        await asyncio.wait_for(moving, 10)
        assert cluster.committed[P].offset == BAD


async def test_a_batch_that_the_reader_leaves_early_counts_as_delivered() -> None:
    async with owner() as (consumer, _, _):
        async for found in consumer:
            for _ in found:
                break
            break
        assert await consumer.position(P) == END


async def test_the_last_record_of_a_batch_that_ends_earlier_is_the_one_before_it() -> None:
    async with owner() as (consumer, cluster, _):
        del cluster.logs[P][3:]
        found = await consumer.getbatch(5)
        assert found is not None
        assert found[-1].offset == BAD - 1
        assert len(found) == BAD


@pytest.mark.parametrize("form", ["getone", "getmany", "getbatch"])
async def test_other_partitions_are_read_on(form: str) -> None:
    async with owner() as (consumer, cluster, hand):
        await hand.take(OTHER, 2, lambda: None)

        async def get() -> list[int]:
            if form == "getone":
                record = await consumer.getone(0.2)
                records = [] if record is None else [record]
            elif form == "getmany":
                records = [each for some in (await consumer.getmany(0.2)).values() for each in some]
            else:
                records = list(await consumer.getbatch(0.2) or ())
            return [record.offset for record in records if record.partition == OTHER.partition]

        began = asyncio.get_running_loop().time()
        assert await all_of(get, 0, failures=5) == []
        assert asyncio.get_running_loop().time() - began > 0.12, "one each 50 ms here"
        cluster.append(OTHER, 3)
        assert await all_of(get, 3, failures=1) == [0, 1, 2]
        await consumer.commit()
        assert (cluster.committed[P].offset, cluster.committed[OTHER].offset) == (BAD, 3)


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_process_handles_and_commits_the_records_before_it(ordering: Any) -> None:
    async with owner() as (consumer, cluster, _):
        handled: list[int] = []

        async def handle(record: Any) -> None:
            await asyncio.sleep(0.05)
            handled.append(record.offset)

        with pytest.raises(CorruptRecordError):
            await asyncio.wait_for(consumer.process(handle, ordering=ordering), 30)
        assert sorted(handled) == [*range(BAD)]
        assert cluster.committed[P].offset == BAD


@pytest.mark.parametrize("in_thread", [False, True], ids=["in the loop", "in a thread"])
async def test_a_handler_of_batches_gets_the_records_before_it(in_thread: bool) -> None:
    async with owner() as (consumer, cluster, _):
        handled: list[int] = []

        async def handle(found: Batch) -> None:
            handled.extend(await asyncio.to_thread(iterated, found) if in_thread else iterated(found))

        processor = Processor(Handler("test", handle, by_batch=True), Handling())
        with pytest.raises(CorruptRecordError):
            await asyncio.wait_for(processor.run(consumer), 30)
        assert handled == [*range(BAD)]
        assert cluster.committed[P].offset == BAD


async def test_process_handles_the_records_before_a_damaged_one() -> None:
    """Its checksum is wrong, so that it is found before it is delivered."""
    async with owner() as (consumer, cluster, _):
        base, end, raw = cluster.logs[P][2]
        cluster.logs[P][2] = base, end, raw[:-1] + bytes([raw[-1] ^ 1])
        handled: list[int] = []

        async def handle(record: Any) -> None:
            await asyncio.sleep(0.2)
            handled.append(record.offset)

        with pytest.raises(CorruptRecordError, match="checksum"):
            await asyncio.wait_for(consumer.process(handle), 30)
        assert handled == [*range(BAD)]
        assert cluster.committed[P].offset == BAD


async def test_process_ends_if_the_first_record_does_not_decode() -> None:
    async with owner(first=0) as (consumer, cluster, _):
        handled: list[int] = []
        with pytest.raises(CorruptRecordError):
            await asyncio.wait_for(consumer.process(lambda record: handled.append(record.offset)), 30)
        assert not handled
        assert cluster.committed[P].offset == 0


@pytest.mark.parametrize("batches", [False, True], ids=["reader", "process"])
async def test_a_sink_that_decodes_in_its_effects_stores_the_offset_before_it(batches: bool, tmp_path: Path) -> None:
    stored: list[int] = []
    with contextlib.closing(SqliteSink(tmp_path / "sink.db")) as sink:
        async with owner(sink=sink) as (consumer, _, _):

            async def write(found: Batch) -> None:
                await sink.write_async(found, lambda _, part: stored.extend(iterated(part)))

            async def read() -> None:
                async for found in consumer:
                    await write(found)

            processor = Processor(Handler("test", write, by_batch=True), Handling())
            with pytest.raises(CorruptRecordError):
                await asyncio.wait_for(processor.run(consumer) if batches else read(), 30)
        assert stored == [*range(BAD)]
        assert sink.offsets("g") == {P: BAD}


@pytest.mark.parametrize("form", FORMS)
async def test_a_batch_without_a_record_before_it_raises_the_error(form: Callable[[Batch], list[int]]) -> None:
    """Not empty: a program that takes its last record would fail with an error that names nothing."""
    async with owner(first=0) as (consumer, cluster, _):
        found = await consumer.getbatch(5)
        assert found is not None
        with pytest.raises(CorruptRecordError) as raised:
            form(found)
        assert raised.value.offset == 0
        with pytest.raises(CorruptRecordError):
            await consumer.getbatch(5)
        await consumer.commit()
        assert cluster.committed[P].offset == 0


@pytest.mark.parametrize("ends", ["first", "middle"])
@pytest.mark.parametrize("size", [END, 4, 1], ids=["whole", "chunks", "one by one"])
@pytest.mark.parametrize("reads", ["all", "no", "part of a part"])
@pytest.mark.parametrize("batches", [False, True], ids=["reader", "process"])
async def test_a_sink_stores_no_offset_behind_it_whatever_the_effects_read(
    batches: bool, reads: str, size: int, ends: str, tmp_path: Path
) -> None:
    calls = 0

    def effects(_: object, found: Batch) -> None:
        nonlocal calls
        calls += 1
        if reads != "no":
            got = list(found if reads == "all" else found.from_offset(found.base_offset).from_offset(0))
            assert got or size == 1  # slices that are taken once it is found are empty

    bad = 0 if ends == "first" else BAD
    with contextlib.closing(SqliteSink(tmp_path / "sink.db")) as sink:
        async with owner(first=bad, sink=sink) as (consumer, _, _):

            async def write(found: Batch) -> None:
                for chunk in [found[at : at + size] for at in range(0, len(found), size)]:
                    await sink.write_async(chunk, effects)

            async def read() -> None:
                async for found in consumer:
                    await write(found)

            processor = Processor(Handler("test", write, by_batch=True), Handling(dead_letter_topic="letters"))
            with pytest.raises(CorruptRecordError):
                await asyncio.wait_for(processor.run(consumer) if batches else read(), 30)
        assert sink.offsets("g") == ({P: bad} if bad else {})
    assert bool(calls) is bool(bad)
