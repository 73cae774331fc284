"""For all calls and responses, records arrive in order and without a gap, and no loss is reported."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from allocator.core.fetch import Fetcher
from allocator.core.subscription import RecordsLost
from allocator.errors import AllocatorError
from allocator.testing import wait_until_async
from allocator.types import TopicPartition
from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.reading import next_batch, start_at

TPS = [TopicPartition("t", n) for n in range(4)]
END = 120
# a broker sends a batch that exceeds the request as a whole: so many bytes from each of three leaders
LARGER = 3 * 500

step = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 8)),
    st.tuples(st.just("seek"), st.sampled_from(TPS), st.integers(0, END - 1)),
    st.tuples(st.just("pause"), st.sampled_from(TPS)),
    st.tuples(st.just("resume"), st.sampled_from(TPS)),
    st.tuples(st.just("assign"), st.sets(st.sampled_from(TPS), min_size=1)),
    st.tuples(st.just("fail"), st.sampled_from(TPS), st.sampled_from([3, 6, 7, 74])),
    st.tuples(st.just("move"), st.sampled_from(TPS), st.integers(0, 2)),
    st.tuples(st.just("prefer"), st.sampled_from(TPS), st.integers(0, 2)),
    st.tuples(st.just("lose"), st.integers(0, 2)),
    st.tuples(st.just("mend"), st.integers(0, 2)),
    st.tuples(st.just("yield"), st.integers(1, 6)),
)


async def scenario(steps: list[tuple], version: int, prefetch: int) -> None:
    cluster = FakeCluster(version)
    for tp in TPS:
        cluster.epochs[tp] = [(0, 0)]
        cluster.add(tp, tp.partition % 3)
        while cluster.end(tp) < END:
            if cluster.end(tp) >= 4 * len(cluster.epochs[tp]):
                cluster.elect(tp, tp.partition % 3)
            cluster.append(tp, 1 + cluster.end(tp) % 5, 50, "gzip" if cluster.end(tp) % 3 else "none")
    cluster.retry_backoff_s = 0.001
    state = start_at(TPS)
    due = dict.fromkeys(TPS, 0)
    losses: list[RecordsLost] = []

    async with Fetcher(
        cluster,  # type: ignore[arg-type]
        state,
        max_wait_s=0.005,
        prefetch_bytes=prefetch,
        max_partition_bytes=600,
        lost=losses.append,
        rack="near" if version > 10 else None,
    ) as fetcher:

        async def take(timeout_s: float) -> bool:
            batch = await next_batch(fetcher, timeout_s)
            if batch is None:
                return False
            tp = TopicPartition(batch.topic, batch.partition)
            assert state.is_fetchable(tp), "paused or not assigned"
            records = list(batch)
            assert [r.offset for r in records] == list(range(due[tp], due[tp] + len(records)))
            due[tp] = batch.next_offset
            epoch = fetcher.leader_epoch(tp, batch.next_offset)
            assert epoch == max(e for e, first in cluster.epochs[tp] if first < batch.next_offset)
            state.update_position(tp, batch.next_offset, epoch)
            return True

        for name, *args in steps:
            if name == "take":
                for _ in range(args[0]):
                    await take(0.005)
            elif name == "yield":
                for _ in range(args[0]):
                    await asyncio.sleep(0)
            elif name == "assign":
                new = args[0] - state.owned
                state.assign_from_user(args[0])
                for tp in new:
                    state.seek(tp, due[tp])
            elif name == "fail":
                cluster.errors.setdefault(args[0], []).append(args[1])
            elif name == "move":
                cluster.leaders[args[0]] = args[1]
                cluster.changed()
            elif name == "prefer":
                cluster.replicas[args[0]] = args[1]
            elif name == "lose":
                cluster.down.add(args[0])
            elif name == "mend":
                cluster.down.discard(args[0])
            elif state.is_assigned(args[0]):
                if name == "seek":
                    due[args[0]] = args[1]
                    state.seek(*args)
                else:
                    (state.pause if name == "pause" else state.resume)(args[0])
            if name != "take":
                fetcher.wake()
            assert 0 <= fetcher.buffered_bytes <= prefetch + LARGER

        cluster.down.clear()
        for tp in state.owned:
            state.resume(tp)
        fetcher.wake()
        while any(due[tp] < cluster.end(tp) for tp in state.owned):
            assert await take(5), "records are missing"
        await wait_until_async(lambda: fetcher.buffered_bytes == 0, 5, "the records of the others are dropped")
        assert not losses


@settings(max_examples=40)
@given(
    steps=st.lists(step, max_size=25),
    version=st.sampled_from([0, 2, 3, 12]),
    prefetch=st.sampled_from([1500, 5000, 300_000]),
)
# once, an idle partition was first in each request to an old broker and kept the others out
@example(steps=[("take", 4), ("move", TPS[0], 2)], version=0, prefetch=1500)
# nothing is left to read, so only the fetch loop drops what it has of the others
@example(steps=[("seek", TPS[1], 101), ("take", 2), ("take", 2), ("assign", {TPS[1]})], version=0, prefetch=5000)
def test_records_come_in_order_from_the_position_on(steps: list[tuple], version: int, prefetch: int) -> None:
    try:
        asyncio.run(scenario(steps, version, prefetch))
    except AllocatorError as error:
        raise AssertionError(f"the fetcher must not raise here: {error}") from error
