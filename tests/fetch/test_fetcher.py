"""The fetcher on a cluster in memory, with faults that a real one does not show on demand."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from kafka.errors import OffsetOutOfRangeError

from allocator.core.client.errors import FETCH, ErrorCode, Reaction, reaction_to
from allocator.core.client.fetch_messages import FetchedPartition
from allocator.core.fetch import Fetcher
from allocator.errors import (
    AllocatorError,
    BrokerError,
    Closed,
    CorruptRecordError,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicAuthorizationFailed,
)
from allocator.types import TopicPartition
from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.reading import (
    collect,
    fetching,
    next_batch,
    offsets,
    raises_each_time,
    start_at,
    take,
    take_past,
    until,
)

LOG = "allocator.core.fetch"  # other loggers speak of other things, such as a slow machine
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


async def test_cancelling_a_reader_loses_nothing(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0)])
    seen: list[int] = []
    async with fetching(cluster, state) as fetcher:
        for turn in range(40):
            reader = asyncio.ensure_future(next_batch(fetcher))
            cluster.append(A0)
            for _ in range(turn % 8):
                await asyncio.sleep(0)
            reader.cancel()
            for result in await asyncio.gather(reader, return_exceptions=True):
                if not isinstance(result, BaseException):
                    seen += offsets(list(result))
        while len(seen) < 40:
            seen += offsets(await take(fetcher, state))
    assert seen == list(range(40))


async def test_closing_ends_tasks_and_readers(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0), cluster.add(A1, None)])
    cluster.hold(0)
    before = asyncio.all_tasks()
    fetcher = Fetcher(cluster, state)  # type: ignore[arg-type]
    await fetcher.start()
    reader = asyncio.ensure_future(next_batch(fetcher))
    await until(lambda: cluster.requests, "a fetch")
    await fetcher.close()
    await fetcher.close()
    with pytest.raises(Closed):
        await reader
    with pytest.raises(Closed):
        await next_batch(fetcher)
    with pytest.raises(Closed):
        await fetcher.start()
    assert asyncio.all_tasks() - cluster.exchanges == before


async def test_a_seek_drops_buffered_records_and_responses_in_flight(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0), cluster.add(A1)])
    for _ in range(10):
        cluster.append(A0, 10)
    # long, because an urgent request is sent only while the main one lasts
    async with fetching(cluster, state, max_wait_s=30.0) as fetcher:
        await until(lambda: fetcher.buffered_bytes, "buffered records")
        state.seek(A0, 55)
        cluster.hold(0)
        fetcher.wake()
        await until(lambda: any(r.parts.get(A0, (0,))[0] == 55 for r in cluster.requests), "a fetch from 55")
        state.seek(A0, 73)
        fetcher.wake()
        cluster.release(0)
        assert offsets(await take(fetcher, state)) == list(range(73, 100))


async def test_nothing_of_a_draining_partition_is_delivered(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0), cluster.add(A1)])
    cluster.append(A0, 5)
    async with fetching(cluster, state) as fetcher:
        await until(lambda: fetcher.buffered_bytes, "buffered records")
        cluster.hold(0)
        cluster.append(A0, 5)
        state.drain([A0])
        fetcher.wake()
        await until(lambda: not fetcher.buffered_bytes, "its records to be dropped")
        cluster.append(A1, 5)
        cluster.release(0)
        assert (await take(fetcher, state)).partition == 1
        assert await next_batch(fetcher, 0.1) is None
        state.assign_from_user([A1])
        state.assign_from_user([A0, A1])
        state.seek(A0, 2)
        fetcher.wake()
        assert offsets(await take(fetcher, state)) == list(range(2, 10)), "assigned again"


async def test_a_new_partition_does_not_wait_for_the_long_poll_of_others(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0)])
    cluster.append(cluster.add(A1))
    cluster.append(cluster.add(B0))
    async with fetching(cluster, state, max_wait_s=30) as fetcher:
        await until(lambda: cluster.requests, "the long poll")
        for tp in (A1, B0):
            state.assign_from_user([*state.owned, tp])
            state.seek(tp, 0)
            fetcher.wake()
            batch = await take(fetcher, state, 5)
            assert (batch.topic, batch.partition) == tp
        assert {request.urgent for request in cluster.requests} == {False, True}
        assert max(request.max_wait_ms for request in cluster.requests if request.urgent) < 1000


@pytest.mark.parametrize("version", [2, 12])
async def test_idle_long_polls_leave_bytes_for_a_new_partition(version: int) -> None:
    cluster = FakeCluster(version)
    many = [cluster.add(TopicPartition("a", n), n % 3) for n in range(120)]
    state = start_at(many)
    async with fetching(cluster, state, max_wait_s=30, prefetch_bytes=4_000_000) as fetcher:
        await until(lambda: {request.node for request in cluster.requests} == {0, 1, 2}, "long polls everywhere")
        added = [cluster.add(TopicPartition("b", n), n % 3) for n in range(3)]
        state.assign_from_user([*many, *added])
        for tp in added:
            cluster.append(tp)
            state.seek(tp, 0)
        fetcher.wake()
        assert {(await take(fetcher, state, 5)).partition for _ in added} == {0, 1, 2}


@pytest.mark.parametrize("version", [2, 12])
@pytest.mark.parametrize("prefetch_bytes", [1, 2, 3])
async def test_the_smallest_budgets_read_every_record(version: int, prefetch_bytes: int) -> None:
    cluster = FakeCluster(version)
    both = [cluster.add(TopicPartition("a", n), n) for n in range(2)]
    for tp in both * 3:
        cluster.append(tp)
    state = start_at(both)
    async with fetching(cluster, state, prefetch_bytes=prefetch_bytes) as fetcher:
        found = await collect(fetcher, state, 6)
    assert {tp: offsets(found[tp]) for tp in both} == {tp: [0, 1, 2] for tp in both}


# every code of a fetch response that passes or lasts, of all broker versions
PASSING = (-1, 3, 5, 6, 7, 8, 9, 56, 70, 71, 72, 75, 78, 100, 103, 106)
LASTING = (2, 4, 35, 43, 76)


@pytest.mark.parametrize("code", PASSING)
async def test_passing_errors_are_retried(cluster: FakeCluster, code: int) -> None:
    state = start_at([cluster.add(A0), cluster.add(A1)])
    cluster.errors[A0] = [code, code]
    cluster.append(A0)
    cluster.append(A1)
    async with fetching(cluster, state) as fetcher:
        seen = await collect(fetcher, state, 2)
    assert offsets(seen[A0]) == [0]
    assert bool(cluster.refreshed) == (reaction_to(code, FETCH) is Reaction.REFRESH)


@pytest.mark.parametrize("code", LASTING)
async def test_lasting_errors_are_raised_until_a_seek_while_others_continue(cluster: FakeCluster, code: int) -> None:
    state = start_at([cluster.add(A0), cluster.add(A1)])
    # a corrupt answer may be another one the next time
    cluster.errors[A0] = [code] * (3 if code == ErrorCode.CORRUPT_MESSAGE else 1)
    cluster.append(A0)
    async with fetching(cluster, state) as fetcher:
        with pytest.raises((BrokerError, CorruptRecordError), match="a:0 at offset 0"):
            await take(fetcher, state)
        cluster.append(A1)
        assert (await take_past(fetcher, state, AllocatorError))[0].partition == 1
        await raises_each_time(fetcher, AllocatorError)
        state.seek(A0, 0)
        fetcher.wake()
        assert (await take(fetcher, state)).partition == 0
        assert await next_batch(fetcher, 0.1) is None


@pytest.mark.parametrize("damage", ["checksum", "length"])
@pytest.mark.parametrize("lasts", [False, True])
async def test_records_that_were_damaged_on_the_way_are_fetched_again(
    cluster: FakeCluster, damage: str, lasts: bool
) -> None:
    state = start_at([cluster.add(A0)])
    cluster.append(A0, 5)
    cluster.append(A0, 5)
    base, end, raw = cluster.logs[A0][1]
    at = len(raw) - 1 if damage == "checksum" else 9
    cluster.logs[A0][1] = base, end, raw[:at] + bytes([raw[at] ^ 0x7F]) + raw[at + 1 :]
    async with fetching(cluster, state) as fetcher:
        assert offsets(await take(fetcher, state)) == list(range(5))
        if lasts:
            with pytest.raises(CorruptRecordError, match="a:0 at offset 5"):
                await take(fetcher, state)
            await raises_each_time(fetcher, CorruptRecordError)
            return
        await until(lambda: cluster.requests[-1].parts[A0][0] == 5, "a request for the damaged records")
        cluster.logs[A0][1] = base, end, raw
        assert offsets(await take(fetcher, state)) == list(range(5, 10))


DELTA, COUNT = 23, 57  # where a header has the last offset delta and the number of records


@pytest.mark.parametrize(
    ("damaged", "told"), [((DELTA,), "to 5"), ((COUNT,), "to 5"), ((DELTA, COUNT), "past it")], ids=repr
)
async def test_a_damaged_header_does_not_tell_where_the_next_batch_begins(
    cluster: FakeCluster, damaged: tuple[int, ...], told: str
) -> None:
    state = start_at([cluster.add(A0)])
    cluster.append(A0, 5)
    base, end, raw = cluster.logs[A0][0]
    header = bytearray(raw)
    for field in damaged:
        header[field] ^= 0x40
    cluster.logs[A0][0] = base, end, bytes(header)
    async with fetching(cluster, state) as fetcher:
        with pytest.raises(CorruptRecordError, match=f"seek {told} to continue") as caught:
            await take(fetcher, state)
        assert caught.value.next_offset == (None if len(damaged) > 1 else 5)


async def test_a_refused_topic_raises_until_it_is_allowed(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0), cluster.add(B0)])
    cluster.errors[A0] = [29]
    cluster.append(A0)
    cluster.append(B0)
    async with fetching(cluster, state) as fetcher:
        refused, seen = [], set()
        while len(seen) < 2:
            try:
                seen.add((await take(fetcher, state)).topic)
            except TopicAuthorizationFailed as error:
                refused.append(error.topic)
        assert len(refused) > 1
        assert set(refused) == {"a"}
        assert await next_batch(fetcher, 0.1) is None


async def test_a_dead_broker_costs_a_refresh_a_pause_and_one_line_in_the_log(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOG)
    state = start_at([cluster.add(A0), cluster.add(A1, 1)])
    cluster.down.add(0)
    cluster.append(A0)
    async with fetching(cluster, state) as fetcher:
        for _ in range(3):
            cluster.append(A1)
            await collect(fetcher, state, 1)
        await until(lambda: cluster.refreshed, "a refresh")
        assert len([r for r in cluster.requests if r.node == 0]) < 20, "no requests without a pause"
        await until(lambda: len(caplog.records) >= 12, "repeated attempts")
        (line,) = (line for line in caplog.records if line.levelno >= logging.INFO and line.name.startswith(LOG))
        assert "broker 0" in line.getMessage()
        cluster.leaders[A0] = 1
        cluster.changed()
        assert (await take(fetcher, state)).partition == 0


@pytest.mark.parametrize(("reset", "lands"), [("earliest", 40), ("latest", 60), (1, 60)])
async def test_out_of_range_resets_after_what_was_read(cluster: FakeCluster, reset: Any, lands: int) -> None:
    state = start_at([cluster.add(A0)], 0, reset)
    cluster.append(A0, 10)
    async with fetching(cluster, state) as fetcher:
        held = await next_batch(fetcher, 30)
        assert held is not None
        cluster.logs[A0] = []
        cluster.start[A0] = 40
        cluster.append(A0, 20)
        assert await next_batch(fetcher, 0.2) is None
        assert state.all_consumed_offsets()[A0].offset == 0, "the reader still has the records before"
        state.update_position(A0, held.next_offset)
        assert await next_batch(fetcher, 0) is None
        await until(lambda: A0 in state.all_consumed_offsets(), "a new position")
        assert state.all_consumed_offsets()[A0].offset == lands
        cluster.append(A0)
        assert (await take(fetcher, state)).base_offset == lands
    (loss,) = cluster.losses
    assert (loss.first, loss.last, loss.count, loss.resumed_at) == (10, lands - 1, lands - 10, lands)
    assert f"a:0 at offset 10: the log does not have it; offsets 10 to {lands - 1} are skipped" in str(loss)


async def test_a_position_beyond_the_end_is_reported_when_it_is_replaced(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0)], 77)
    cluster.append(A0, 10)
    async with fetching(cluster, state) as fetcher:
        assert offsets(await take(fetcher, state)) == list(range(10))
    (loss,) = cluster.losses
    assert (loss.position, loss.resumed_at, loss.first, loss.last, loss.count) == (77, 0, None, None, 0)


async def test_a_reader_that_pauses_after_each_error_still_gets_the_other_partitions(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0), cluster.add(A1)], 0, "none")
    state.seek(A0, 77)
    async with fetching(cluster, state) as fetcher:
        errors, batches = 0, 0
        while batches < 3:
            try:
                assert (await take(fetcher, state)).partition == 1
                batches += 1
            except OffsetOutOfRange:
                errors += 1
                assert errors < 1000, f"{batches} batches"
                if errors == 1 or batches:
                    cluster.append(A1)
            await asyncio.sleep(0.02)  # longer than the pause between two errors
        assert errors >= 3


async def test_out_of_range_without_a_strategy_raises_until_it_is_sought(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0), cluster.add(A1)], 0, "none")
    state.seek(A0, 77)
    async with fetching(cluster, state) as fetcher:
        # the error is also one of kafka-python's
        with pytest.raises(OffsetOutOfRangeError, match="a:0 at offset 77") as caught:
            await take(fetcher, state)
        assert (caught.value.partition, caught.value.offset) == (0, 77)
        cluster.append(A1)
        assert (await take_past(fetcher, state, OffsetOutOfRange))[0].partition == 1
        await raises_each_time(fetcher, OffsetOutOfRange)
        state.pause(A0)
        assert await next_batch(fetcher, 0.1) is None, "a paused partition raises nothing"
        state.resume(A0)
        await raises_each_time(fetcher, OffsetOutOfRange)
        cluster.append(A0)
        state.seek(A0, 0)
        fetcher.wake()
        assert (await take(fetcher, state)).partition == 0


async def test_a_first_position_is_found_and_is_no_loss(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0), cluster.add(B0, 1)], None, "latest")
    cluster.start[B0] = 5
    cluster.append(A0, 10)
    cluster.append(B0, 10)
    state.begin_at_start = frozenset({B0.topic})
    state.request_offset_reset(B0)
    async with fetching(cluster, state, lost=lambda loss: pytest.fail(str(loss))) as fetcher:
        await until(lambda: len(state.all_consumed_offsets()) == 2, "positions")
        assert {tp: p.offset for tp, p in state.all_consumed_offsets().items()} == {A0: 10, B0: 5}
        assert (await take(fetcher, state)).base_offset == 5


async def test_a_response_in_flight_when_a_partition_was_halted_is_dropped(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0)])
    cluster.append(A0, 5)
    async with fetching(cluster, state) as fetcher:
        cluster.hold(0)
        await until(lambda: cluster.requests, "a fetch")
        cluster.release(0)
        assert offsets(await take(fetcher, state)) == list(range(5))
        cluster.hold(0)
        await until(lambda: cluster.requests[-1].parts[A0][0] == 5, "the next one")
        fetcher.halt(A0, CorruptRecordError("a", 0, 5, "it is damaged"))
        assert fetcher.halted() == [A0]
        cluster.append(A0, 5)
        cluster.release(0)
        await raises_each_time(fetcher, CorruptRecordError)
        state.seek(A0, 5)
        fetcher.wake()
        assert offsets(await take(fetcher, state)) == list(range(5, 10))
        assert fetcher.halted() == []


async def test_before_kip_74_a_record_above_the_limit_raises_and_more_prefetch_bytes_read_it() -> None:
    cluster = FakeCluster(2)
    state = start_at([cluster.add(A0)])
    cluster.append(A0, 1, 53_000_000)
    cluster.append(A0)
    async with fetching(cluster, state) as fetcher:
        with pytest.raises(RecordTooLarge, match=r"a:0 at offset 0.*52428800; raise prefetch_bytes"):
            await take(fetcher, state)
        state.seek(A0, 1)
        fetcher.wake()
        assert offsets(await take(fetcher, state)) == [1]
    state.seek(A0, 0)
    async with fetching(cluster, state, prefetch_bytes=54_000_000) as fetcher:
        assert offsets((await collect(fetcher, state, 2))[A0]) == [0, 1]


@pytest.mark.parametrize("times", [1, 5])
async def test_a_response_that_cannot_be_used_costs_its_connection(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    """The records of the other partitions arrive meanwhile."""
    state = start_at([cluster.add(A0), cluster.add(A1)])
    cluster.append(A0)
    cluster.append(A1)
    send, odd = cluster.send, []

    async def broken(where: Any, request: Any, timeout_s: float | None = None) -> Any:
        response = await send(where, request, timeout_s)
        parts = getattr(response, "parts", [])
        if len(odd) < times and any(part.records for part in parts if part.partition == 0):
            odd.append(where)
            parts[:] = [FetchedPartition(*part[:-1], "no bytes") if part.partition == 0 else part for part in parts]
        return response

    cluster.send = broken  # type: ignore[method-assign]
    async with fetching(cluster, state) as fetcher:
        seen = await collect(fetcher, state, 2)
    assert {tp: offsets(records) for tp, records in seen.items()} == {A0: [0], A1: [0]}
    assert cluster.hung_up == odd
    assert len(odd) == times
    assert [record.levelname for record in caplog.records].count("ERROR") == times


async def test_an_unexpected_error_in_the_fetcher_is_raised(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0)])

    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    cluster.send = broken  # type: ignore[method-assign]
    async with fetching(cluster, state) as fetcher:
        with pytest.raises(ZeroDivisionError):
            await next_batch(fetcher, 5)
