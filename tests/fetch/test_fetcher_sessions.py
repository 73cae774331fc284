"""Which requests the fetcher sends, and how many: sessions, idle polls, leaders, replicas. In memory."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from allocator.core.fetch import Fetcher
from allocator.core.subscription import SubscriptionState
from allocator.core.subscription.commit_text import stamped
from allocator.core.subscription.loss import Listed
from allocator.errors import BrokerError, LogTruncated
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.fetch.fake_cluster import FakeCluster
from tests.fetch.fetch_encode import control
from tests.fetch.reading import collect, fetching, next_batch, offsets, start_at, take, take_past, until

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


# -- sessions (KIP-227)


@pytest.mark.parametrize("code", [70, 71, 106])
async def test_a_refused_session_costs_one_request_and_no_pause(cluster: FakeCluster, code: int) -> None:
    cluster.retry_backoff_s = 5
    state = start_at([cluster.add(A0), cluster.add(A1)])
    async with fetching(cluster, state) as fetcher:
        await until(lambda: len(cluster.requests) >= 2, "a session")
        cluster.refusals[0] = [code]
        await until(lambda: not cluster.refusals[0], "the refusal")
        cluster.append(A0)
        assert offsets(await take(fetcher, state, 2)) == [0]
        again = next(r for r in cluster.requests[1:] if r.session[1] == 0)
        assert set(again.listed) == {A0, A1}


async def test_sessions_refused_repeatedly_are_requested_with_pauses(cluster: FakeCluster) -> None:
    state = start_at([cluster.add(A0)])
    cluster.refusals[0] = [71] * 6
    cluster.append(A0)
    async with fetching(cluster, state) as fetcher:
        assert offsets(await take(fetcher, state)) == [0]


async def test_brokers_that_grant_no_session_are_read(cluster: FakeCluster) -> None:
    cluster.grants_sessions = False
    state = start_at([cluster.add(A0), cluster.add(A1)])
    for _ in range(3):
        cluster.append(A0, 3)
        cluster.append(A1, 3)
    async with fetching(cluster, state) as fetcher:
        await collect(fetcher, state, 18)
    assert all(request.session == (0, 0) for request in cluster.requests)


@pytest.mark.parametrize("code", [100, 103, 3])
async def test_a_topic_created_again_is_read_under_its_new_id(code: int) -> None:
    """Reading starts at its first record, even if it has more records than were read of the old topic."""
    cluster = FakeCluster(16)
    cluster.ids["a"] = uuid.UUID(int=1)
    state = start_at([cluster.add(A0)])
    cluster.append(A0, 5)

    def recreate() -> None:
        if cluster.ids["a"].int == 1:
            cluster.logs[A0] = []
            cluster.append(A0, 8)
        cluster.ids["a"] = uuid.UUID(int=2)
        cluster.changed()

    cluster.on_refresh = recreate
    async with fetching(cluster, state) as fetcher:
        assert offsets(await take(fetcher, state)) == list(range(5))
        cluster.errors[A0] = [code]
        assert offsets(await take(fetcher, state)) == list(range(8))
        # a broker that lags behind announces the old one once more
        cluster.ids["a"] = uuid.UUID(int=1)
        cluster.changed()
        cluster.append(A0, 2)
        assert offsets(await take(fetcher, state)) == [8, 9]
    assert cluster.refreshed
    (loss,) = cluster.losses
    assert (loss.partition, loss.position, loss.resumed_at, loss.count, loss.recreated) == (A0, 5, 0, 0, True)
    assert "deleted and created again" in str(loss)


async def test_records_that_latest_skips_of_a_topic_created_again_are_reported() -> None:
    cluster = FakeCluster(16)
    cluster.ids["a"] = uuid.UUID(int=1)
    state = start_at([cluster.add(A0)], 0, "latest")
    cluster.append(A0, 5)
    async with fetching(cluster, state) as fetcher:
        await take(fetcher, state)
        cluster.logs[A0] = []
        cluster.append(A0, 8)
        cluster.ids["a"] = uuid.UUID(int=2)
        cluster.changed()
        await until(lambda: cluster.losses, "the loss")
        (loss,) = cluster.losses
        assert (loss.first, loss.last, loss.resumed_at, loss.count) == (0, 7, 8, 8)
        cluster.append(A0, 1)
        assert offsets(await take(fetcher, state)) == [8]


async def test_a_committed_offset_names_the_id_of_its_topic() -> None:
    """A member that starts after the topic was created again skips none of its first records."""
    cluster = FakeCluster(16)
    old, new = uuid.UUID(int=1), uuid.UUID(int=2)
    cluster.ids["a"] = new
    cluster.add(A0)
    cluster.append(A0, 8)
    for metadata, first in ((stamped("mine", old), 0), (stamped("mine", new), 5), ("mine", 5), (stamped("", old), 0)):
        state = start_at([A0])
        state.seek(A0, OffsetAndMetadata(5, metadata, -1))
        async with fetching(cluster, state) as fetcher:
            assert offsets(await take(fetcher, state)) == list(range(first, 8))


@pytest.mark.parametrize("noticed_by", ["metadata", "records"])
async def test_below_2_8_a_lower_leader_epoch_reveals_a_topic_created_again(
    cluster: FakeCluster, noticed_by: str
) -> None:
    state = at_epoch(cluster, A0)
    async with fetching(cluster, state) as fetcher:
        await read_to(fetcher, state, 20)
        cluster.logs[A0], cluster.epochs[A0] = [], [(0, 0)]
        if noticed_by == "metadata":
            cluster.changed()
            await until(lambda: cluster.epoch_requests, "an epoch request")
        cluster.append(A0, 30)  # without new metadata, a waiting fetch returns the last ten of them
        assert await read_to(fetcher, state, 30) == list(range(30))
    (loss,) = cluster.losses
    assert (loss.position, loss.resumed_at) == (20, 0)
    assert loss.recreated or noticed_by == "metadata"


async def test_records_that_a_pause_dropped_are_fetched_again_without_a_loss(cluster: FakeCluster) -> None:
    """The backlog spans an election: the records that are fetched again have an older epoch than the dropped ones."""
    cluster.epochs[A0] = [(1, 0)]
    cluster.add(A0)
    for n in range(10):
        if n == 5:
            cluster.elect(A0, 0)
        cluster.append(A0, 1, 5000)
    cluster.add(A1)
    cluster.append(A1, 1, 40_000)
    state = start_at([A0])
    async with fetching(
        cluster, state, lost=lambda loss: pytest.fail(str(loss)), prefetch_bytes=100_000, max_partition_bytes=100_000
    ) as fetcher:
        await until(lambda: fetcher.buffered_bytes > 50_000, "all of it read ahead")
        state.pause(A0)
        state.assign_from_user([A0, A1])
        state.seek(A1, 0)
        fetcher.wake()
        assert (await take(fetcher, state)).partition == 1
        assert fetcher.buffered_bytes == 0, "the records were dropped"
        state.resume(A0)
        fetcher.wake()
        assert await read_to(fetcher, state, 10) == list(range(10))
        assert [fetcher.leader_epoch(A0, offset) for offset in (5, 6, 10)] == [1, 2, 2]


async def test_old_metadata_with_an_older_epoch_costs_an_epoch_request_and_moves_nothing(cluster: FakeCluster) -> None:
    state = at_epoch(cluster, A0)
    async with fetching(cluster, state, lost=lambda loss: pytest.fail(str(loss))) as fetcher:
        await read_to(fetcher, state, 20)
        known = cluster.leader_epoch
        cluster.leader_epoch = lambda tp: 1  # type: ignore[method-assign]
        cluster.changed()
        await until(lambda: cluster.epoch_requests, "an epoch request")
        cluster.leader_epoch = known  # type: ignore[method-assign]
        cluster.append(A0, 5)
        assert await read_to(fetcher, state, 25) == list(range(20, 25))


# -- leader epochs (KIP-320)


def at_epoch(cluster: FakeCluster, tp: TopicPartition, *, reset: Any = "earliest") -> SubscriptionState:
    """Records 0 to 9 under epoch 1, 10 to 19 under epoch 2."""
    cluster.epochs[tp] = [(1, 0)]
    cluster.add(tp)
    cluster.append(tp, 10)
    cluster.elect(tp, 0)
    cluster.append(tp, 10)
    return start_at([tp], 0, reset)


async def read_to(fetcher: Fetcher, state: SubscriptionState, end: int) -> list[int]:
    """Updates the position like the consumer, with epochs."""
    seen: list[int] = []
    while not seen or seen[-1] < end - 1:
        batch = await next_batch(fetcher, 30)
        assert batch is not None
        tp = TopicPartition(batch.topic, batch.partition)
        seen += offsets(batch)
        state.update_position(tp, batch.next_offset, fetcher.leader_epoch(tp, batch.next_offset))
    return seen


@pytest.mark.parametrize(
    ("markers", "errors"), [(0, []), (1, []), (3, []), *((0, [code, code]) for code in (6, 74, 75, 78))]
)
async def test_a_truncated_log_is_read_again_from_its_end(cluster: FakeCluster, markers: int, errors: Any) -> None:
    """With markers, the position follows control records that were not delivered, as in an idle transactional topic."""
    state = at_epoch(cluster, A0)
    cluster.epoch_errors[A0] = list(errors)
    async with fetching(cluster, state, isolation_level="read_committed") as fetcher:
        await read_to(fetcher, state, 20)
        for n in range(markers):
            cluster.append_raw(A0, control(20 + n, 7, abort=False, epoch=2), 1)
        while state.position(A0).offset < 20 + markers:
            assert await next_batch(fetcher, 0.01) is None
        cluster.elect(A0, 1, cut=10)
        cluster.append(A0, 30)
        cluster.changed()
        assert await read_to(fetcher, state, 40) == list(range(10, 40)), "not from 20, as if nothing were missing"
    (loss,) = cluster.losses
    assert (loss.partition, loss.position, loss.resumed_at, loss.count) == (A0, 20 + markers, 10, 0)
    # the last request is about the cut itself, where the logs might differ still further back
    assert cluster.epoch_requests == [(A0, 2)] * (1 + len(errors)) + [(A0, 1)]
    assert cluster.refreshed or not errors


async def test_without_a_reset_a_truncation_raises_with_the_end_of_the_common_log(cluster: FakeCluster) -> None:
    state = at_epoch(cluster, A0, reset="none")
    async with fetching(cluster, state) as fetcher:
        await read_to(fetcher, state, 20)
        cluster.elect(A0, 1, cut=10)
        cluster.append(A0, 30)
        cluster.changed()
        with pytest.raises(LogTruncated) as caught:
            await next_batch(fetcher, 30)
        assert (caught.value.offset, caught.value.divergent_offset) == (20, 10)


@pytest.mark.parametrize("reset", ["latest", "earliest", 1_000_000])
async def test_a_truncation_is_noticed_before_the_first_record(cluster: FakeCluster, reset: Any) -> None:
    """The position is from ListOffsets, and no record was read yet."""
    at_epoch(cluster, A0)
    cluster.start[A0] = begin = 15 if reset == "earliest" else 20
    if reset == "earliest":
        cluster.hold(0)
    state = start_at([A0], None, reset)
    async with fetching(cluster, state) as fetcher:
        await until(lambda: state.position(A0) is not None and cluster.requests, "a fetch from there")
        assert state.position(A0).offset == begin
        assert not cluster.epoch_requests, "the leader has just found the position"
        assert fetcher.leader_epoch(A0, begin) == -1, "no record was read"
        cluster.start[A0] = 0
        cluster.elect(A0, 1, cut=10)
        cluster.append(A0, 30)
        cluster.changed()
        assert await read_to(fetcher, state, 40) == list(range(10, 40)), "no new record is skipped"
    (loss,) = cluster.losses
    assert (loss.position, loss.resumed_at) == (begin, 10)


async def test_the_end_of_committed_records_may_precede_records_of_an_older_leader(cluster: FakeCluster) -> None:
    """ListOffsets returns the leader's epoch with it, even if a transaction of an earlier epoch is open there."""
    state = at_epoch(cluster, A0)
    state.seek(A0, Listed(5, "", 2))
    async with fetching(cluster, state, lost=lambda loss: pytest.fail(str(loss))) as fetcher:
        assert await read_to(fetcher, state, 20) == list(range(5, 20))


async def test_a_seek_to_a_committed_position_validates_it(cluster: FakeCluster) -> None:
    state = at_epoch(cluster, A0)
    cluster.elect(A0, 0, cut=10)
    cluster.append(A0, 30)
    state.seek(A0, OffsetAndMetadata(18, "", 2))
    async with fetching(cluster, state) as fetcher:
        assert await read_to(fetcher, state, 40) == list(range(10, 40))
        assert cluster.epoch_requests == [(A0, 2), (A0, 1)]
        state.seek(A0, OffsetAndMetadata(30, "", 3))
        assert await read_to(fetcher, state, 40) == list(range(30, 40))
        assert len(cluster.epoch_requests) == 2, "its epoch is that of the present leader"


async def test_a_refused_validation_raises_until_it_succeeds(cluster: FakeCluster) -> None:
    state = at_epoch(cluster, A0)
    cluster.epoch_errors[A0] = [29]
    async with fetching(cluster, state) as fetcher:
        await read_to(fetcher, state, 20)
        cluster.elect(A0, 1)
        cluster.append(A0, 5)
        cluster.changed()
        with pytest.raises(BrokerError, match="a:0"):
            await take(fetcher, state)
        found, _ = await take_past(fetcher, state, BrokerError)
        assert offsets(found) == list(range(20, 25))
        assert await next_batch(fetcher, 0.1) is None


# -- nearer replicas (KIP-392)


@pytest.mark.parametrize("fault", ["down", 1, 6, 9, 56, 74])
async def test_after_a_failure_of_the_replica_the_leader_is_read(cluster: FakeCluster, fault: Any) -> None:
    cluster.retry_backoff_s = 5
    state = start_at([cluster.add(A0)])
    cluster.replicas[A0] = 2
    cluster.append(A0, 5)
    async with fetching(cluster, state, rack="r2") as fetcher:
        assert offsets(await take(fetcher, state)) == list(range(5))
        if fault == "down":
            cluster.down.add(2)
        else:
            cluster.errors[A0] = [fault]
            await until(lambda: not cluster.errors[A0], "the fault")
        cluster.append(A0, 5)
        # the leader still names the replica, so the request has no rack
        assert offsets(await take(fetcher, state, 2)) == list(range(5, 10))
        assert (cluster.requests[-1].node, cluster.requests[-1].rack) == (0, "")
        assert len(cluster.requests) < 60, "no spinning between the two"
