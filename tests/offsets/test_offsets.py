"""GroupOffsets against a scripted coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kafka.protocol.metadata import FindCoordinatorResponse

from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.offsets.pending_commit import Terms
from allocator.errors import CommitFailed, ConfigError, NoOffsetsError
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.client.fake_broker import HANG_UP, MODERN, SILENT, FakeBroker
from tests.offsets.offset_responses import commit_response, fetch_response, requested

A, B, C = (TopicPartition("t", p) for p in range(3))


def at(offset: int, metadata: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata, -1)


class Coordinator(FakeBroker):
    """Stores offsets. `codes`: codes of the next responses for a partition; `group_codes`: of the next fetches."""

    def __init__(self, **options: Any) -> None:
        super().__init__({8: self.commit, 9: self.fetch}, **options)
        self.stored: dict[TopicPartition, OffsetAndMetadata] = {}
        self.codes: dict[TopicPartition, list[int]] = {}
        self.group_codes: list[int] = []
        self.gate: asyncio.Event | None = None

    @property
    def commits(self) -> list[dict[int, tuple[int, str]]]:
        """Each commit request: partition -> offset and metadata."""
        return [
            {p.partition_index: (p.committed_offset, p.committed_metadata) for t in r.topics for p in t.partitions}
            for r in self.seen
            if r.API_KEY == 8
        ]

    async def commit(self, request: Any) -> Any:
        if self.gate is not None:
            await self.gate.wait()

        def store(partition: TopicPartition, offset: OffsetAndMetadata) -> int:
            code = self.next_code(partition)
            if code == 0:
                self.stored[partition] = offset
            return code

        return commit_response(request, store)

    def next_code(self, partition: TopicPartition) -> int:
        return self.codes[partition].pop(0) if self.codes.get(partition) else 0

    def fetch(self, request: Any) -> Any:
        group_code = self.group_codes.pop(0) if self.group_codes else 0
        partitions = sorted(self.stored) if request.topics is None else requested(request)
        return fetch_response(request, [] if group_code else partitions, self.stored, self.next_code, group_code)


def client_of(broker: FakeBroker) -> KafkaClient:
    return KafkaClient(broker.address, retry_backoff_s=0.01)


def offsets(client: KafkaClient, timeout_s: float = 10.0, **options: Any) -> GroupOffsets:
    return GroupOffsets(client, "g", timeout_s=timeout_s, **options)


@contextlib.asynccontextmanager
async def coordinated() -> AsyncIterator[tuple[Coordinator, GroupOffsets]]:
    """Yields a coordinator and the offsets of group "g" in it."""
    async with Coordinator() as broker, client_of(broker) as client:
        yield broker, offsets(client)


# -- commit -----------------------------------------------------------------------------------------------------------


async def test_committed_offsets_are_fetched_and_empty_sets_send_nothing() -> None:
    async with coordinated() as (broker, group):
        await group.commit({A: at(5, "note"), B: at(6)})
        assert await group.fetch([A, B, C]) == {A: at(5, "note"), B: at(6)}
        assert await group.fetch(None) == {A: at(5, "note"), B: at(6)}
        assert await group.fetch([]) == {}
        await group.commit({})
        assert (broker.count(8), broker.count(9)) == (1, 2)
        assert group.coordinator.node == 1


@pytest.mark.parametrize("code", [3, 7, 14, -1])
async def test_retriable_errors_are_retried_for_their_partition_alone(code: int) -> None:
    async with coordinated() as (broker, group):
        broker.topics["t"] = [1, 1]
        broker.codes[B] = [code, code]
        await group.commit({A: at(1), B: at(2)})
        assert broker.commits == [{0: (1, ""), 1: (2, "")}, {1: (2, "")}, {1: (2, "")}]
        assert broker.count(10) == 1


async def test_a_partition_that_the_cluster_lacks_fails_and_the_others_are_committed() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        broker.topics["t"] = [1]
        broker.codes[B] = [3] * 10_000
        with pytest.raises(CommitFailed, match=r"t:1 \(the cluster does not have this partition") as caught:
            await offsets(client, timeout_s=3600).commit({A: at(1), B: at(2), C: at(3)})
        assert "t:0" not in str(caught.value)
        assert caught.value.retriable, "the topic may be created again"
        assert broker.commits == [{0: (1, ""), 1: (2, ""), 2: (3, "")}, {1: (2, "")}]
        assert broker.stored == {A: at(1), C: at(3)}


async def test_a_lasting_unknown_server_error_is_retried_a_few_times_with_growing_pauses() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        broker.codes[A] = [-1] * 10_000
        began = time.monotonic()
        with pytest.raises(CommitFailed, match=r"t:0 .*UNKNOWN") as caught:
            await GroupOffsets(client, "g", timeout_s=20).commit({A: at(1), B: at(2)})
        assert not caught.value.retriable
        assert len(broker.commits) == 6
        assert time.monotonic() - began >= 0.01 * (1 + 2 + 4 + 8 + 16)
        assert broker.stored == {B: at(2)}


@pytest.mark.parametrize("offset", [-1, -2, -1001, True, 1.0, None, 2**63])
async def test_an_invalid_offset_is_rejected_before_anything_is_sent(offset: Any) -> None:
    async with coordinated() as (broker, group):
        wrong = {A: at(1), B: at(offset)}
        with pytest.raises(ConfigError, match=rf"t:1: offset {offset!r} .* give the offset of the next record"):
            await group.commit(wrong)
        with pytest.raises(ConfigError, match=r"t:1: offset"):
            group.commit_async(wrong)
        await group.commit({C: at(0)})
        assert broker.commits == [{2: (0, "")}]


@pytest.mark.parametrize("moved_with", [15, 16, SILENT])
async def test_a_coordinator_that_moved_or_hangs_is_found_again(moved_with: Any) -> None:
    async with Coordinator() as old, Coordinator() as new:
        client = KafkaClient(old.address, request_timeout_s=0.5, retry_backoff_s=0.01)
        await client.connect(5)
        find = old.handlers[10]

        def moved(request: Any) -> Any:
            response = find(request)
            if old.commits:
                response.node_id, response.port = 2, new.port
            return response

        old.handlers[10] = moved
        if moved_with is SILENT:
            old.handlers[8] = lambda _: SILENT
        else:
            old.codes[A] = [moved_with]
        group = offsets(client)
        await group.commit({A: at(2)})
        assert new.stored == {A: at(2)}
        assert group.coordinator.node == 2
        await client.close()


async def test_commits_wait_together_for_a_silent_coordinator_and_no_other_group_waits() -> None:
    async with Coordinator() as silent, Coordinator() as other:
        find = silent.handlers[10]

        def found(request: Any) -> Any:
            response = find(request)
            if request.key == "other":
                response.node_id, response.port = 2, other.port
            return response

        silent.handlers.update({8: lambda _: SILENT, 10: found})
        async with KafkaClient(silent.address, request_timeout_s=1.0, retry_backoff_s=0.01) as client:
            group, terms, of_other = offsets(client), Terms(patience_s=0.5), GroupOffsets(client, "other")
            await of_other.find()
            commits = [group.commit_async({partition: at(1)}, terms) for partition in (A, B, C)]
            await wait_until_async(lambda: silent.count(8) == 1, 10, "the first request")
            await of_other.commit({A: at(2)})
            assert other.stored == {A: at(2)}
            assert not any(commit.done() for commit in commits)
            for error in await asyncio.gather(*commits, return_exceptions=True):
                assert isinstance(error, CommitFailed)
                assert "the coordinator does not respond" in str(error)
            assert silent.count(8) == 1, "one after another, each would have waited for a request of its own"


async def test_the_lookup_is_repeated_until_there_is_a_coordinator() -> None:
    async with coordinated() as (broker, group):
        find, codes = broker.handlers[10], [15, -1, 14]

        def later(request: Any) -> Any:
            response = find(request)
            response.error_code = codes.pop(0) if codes else 0
            return response

        broker.handlers[10] = later
        await group.commit({A: at(1)})
        assert broker.stored == {A: at(1)}


async def test_a_group_that_may_not_be_used_fails_at_once() -> None:
    def refused(request: Any) -> Any:
        return FindCoordinatorResponse(error_code=30, node_id=-1, host="", port=-1, version=request.API_VERSION)

    async with coordinated() as (broker, group):
        broker.handlers[10] = refused
        with pytest.raises(CommitFailed, match=r"t:0.*GROUP_AUTHORIZATION_FAILED") as caught:
            await group.commit({A: at(1)})
        assert not caught.value.retriable
        with pytest.raises(NoOffsetsError, match="GROUP_AUTHORIZATION_FAILED"):
            await group.fetch([A])


async def test_metadata_that_is_too_large_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with coordinated() as (broker, group):
        broker.codes = {A: [12], C: [28, 28]}
        with caplog.at_level(logging.WARNING, "allocator"):
            await group.commit({A: at(1, "x" * 9000), B: at(2, "ok")})
        assert broker.stored == {A: at(1), B: at(2, "ok")}
        with pytest.raises(CommitFailed, match="t:2"):  # it is too large without metadata, too
            await group.commit({C: at(1, "x")})
        assert len(broker.commits) == 4
        assert "t:0" in caplog.text
        assert "9000" in caplog.text


@pytest.mark.parametrize("code", [22, 25, 29, 30])
async def test_a_rejected_partition_is_named_and_the_others_are_committed(code: int) -> None:
    async with coordinated() as (broker, group):
        broker.codes[B] = [code]
        broker.codes[C] = [14]
        with pytest.raises(CommitFailed, match="t:1") as caught:
            await group.commit({A: at(1), B: at(2), C: at(3)})
        assert "t:0" not in str(caught.value)
        assert "t:2" not in str(caught.value)
        assert not caught.value.retriable
        assert broker.stored == {A: at(1), C: at(3)}


async def test_a_commit_beside_members_of_kafkas_group_protocol_names_them() -> None:
    async with coordinated() as (broker, group):
        broker.codes[A] = [25]
        with pytest.raises(CommitFailed, match="members of Kafka's own group protocol"):
            await group.commit({A: at(1)})


async def test_the_error_at_the_deadline_has_the_cause() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        broker.codes[A] = [14] * 10_000
        with pytest.raises(CommitFailed, match=r"not within 3 s.*COORDINATOR_LOAD_IN_PROGRESS") as caught:
            await offsets(client, timeout_s=3.0).commit({A: at(1)})
        assert caught.value.retriable


async def test_a_closed_connection_is_opened_again() -> None:
    async with coordinated() as (broker, group):
        broker.handlers[8] = lambda request: HANG_UP if len(broker.commits) < 2 else broker.commit(request)
        await group.commit({A: at(1)})
        assert broker.stored == {A: at(1)}


async def test_waiting_commits_share_a_request_with_the_last_offsets() -> None:
    async with coordinated() as (broker, group):
        broker.gate = asyncio.Event()
        first = asyncio.ensure_future(group.commit({A: at(1)}))
        await wait_until_async(lambda: len(broker.commits) == 1, 30)
        later = [asyncio.ensure_future(group.commit({A: at(n), B: at(n)})) for n in range(2, 6)]
        await asyncio.sleep(0)
        broker.gate.set()
        await asyncio.gather(first, *later)
        assert broker.commits == [{0: (1, "")}, {0: (5, ""), 1: (5, "")}]
        assert broker.stored == {A: at(5), B: at(5)}


async def test_a_failed_commit_does_not_fail_the_others() -> None:
    async with coordinated() as (broker, group):
        broker.gate = asyncio.Event()
        first = asyncio.ensure_future(group.commit({C: at(1)}))
        await wait_until_async(lambda: len(broker.commits) == 1, 30)
        good = asyncio.ensure_future(group.commit({A: at(2)}))
        bad = asyncio.ensure_future(group.commit({B: at(2)}))
        await asyncio.sleep(0)
        broker.codes[B] = [29]
        broker.gate.set()
        await asyncio.gather(first, good)
        with pytest.raises(CommitFailed, match="t:1"):
            await bad


async def test_a_newer_commit_does_not_overtake_a_cancelled_one_in_flight() -> None:
    async with coordinated() as (broker, group):
        broker.gate = asyncio.Event()
        first = asyncio.ensure_future(group.commit({A: at(1)}))
        await wait_until_async(lambda: len(broker.commits) == 1, 30)
        first.cancel()
        second = asyncio.ensure_future(group.commit({A: at(2)}))
        closing = asyncio.ensure_future(group.close())
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(broker.commits) == 1
        assert not closing.done()
        broker.gate.set()
        await asyncio.gather(second, closing)
        assert broker.stored == {A: at(2)}
        with pytest.raises(asyncio.CancelledError):
            await first


# -- many partitions --------------------------------------------------------------------------------------------------


def many(count: int, offset: int = 1) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition("t", p): at(offset) for p in range(count)}


async def test_many_partitions_are_split_into_consecutive_requests() -> None:
    async with coordinated() as (broker, group):
        await group.commit(many(1234))
        assert [len(request) for request in broker.commits] == [500, 500, 234]
        assert broker.stored == many(1234)
        assert await group.fetch(many(1234)) == many(1234)
        requests = [r for r in broker.seen if r.API_KEY == 9]
        assert [sum(len(t.partition_indexes) for t in r.topics) for r in requests] == [500, 500, 234]


async def test_a_request_is_bounded_in_bytes_too() -> None:
    """The coordinator writes each as one batch, and the offsets topic accepts up to `max.message.bytes`."""
    async with coordinated() as (broker, group):
        await group.commit({tp: at(1, "x" * 4000) for tp in many(200)})
        assert max(sum(len(text) for _, text in request.values()) for request in broker.commits) < 300_000
        assert len(broker.stored) == 200


async def test_the_newest_offset_is_stored_whichever_request_carries_it() -> None:
    async with coordinated() as (broker, group):
        broker.gate = asyncio.Event()
        first = asyncio.ensure_future(group.commit(many(1200)))
        await wait_until_async(lambda: len(broker.commits) == 1, 30)
        later = asyncio.ensure_future(group.commit(many(1200, 2)))
        latest = asyncio.ensure_future(group.commit({TopicPartition("t", 1100): at(3)}))
        await asyncio.sleep(0)
        broker.gate.set()
        await asyncio.gather(first, later, latest)
        assert broker.stored == {**many(1200, 2), TopicPartition("t", 1100): at(3)}


async def test_partitions_that_are_retried_do_not_delay_the_others() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        broker.topics["t"] = [1] * 1300
        broker.codes = {TopicPartition("t", p): [3] * 500 for p in range(600)}
        task = asyncio.ensure_future(offsets(client, timeout_s=30).commit(many(1300)))
        await wait_until_async(lambda: set(broker.stored) == set(many(1300)) - set(many(600)), 30)
        assert not task.done()
        broker.codes.clear()
        await task
        assert broker.stored == many(1300)


# -- asynchronous commits ----------------------------------------------------------------------------------


async def test_commits_keep_the_order_of_the_calls_and_closing_waits_for_them() -> None:
    async with coordinated() as (broker, group):
        group.commit_async({A: at(1)})
        group.commit_async({A: at(2), B: at(2)})
        await group.commit({A: at(3)})
        group.commit_async({A: at(4)})
        cancelled = group.commit_async({C: at(1)})
        cancelled.cancel()  # before it starts
        await group.close()
        assert broker.stored == {A: at(4), B: at(2)}


# -- fetch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [14, 15, 16, 25, 69])
async def test_a_fetch_is_repeated_while_the_coordinator_moves(code: int) -> None:
    async with coordinated() as (broker, group):
        broker.stored[A] = at(7)
        broker.group_codes = [code, code]
        assert await group.fetch([A]) == {A: at(7)}


async def test_only_an_unstable_partition_is_requested_again() -> None:
    async with coordinated() as (broker, group):
        broker.stored = {A: at(7), B: at(8)}
        broker.codes[B] = [88]
        assert await group.fetch([A, B]) == {A: at(7), B: at(8)}
        last = [r for r in broker.seen if r.API_KEY == 9][-1]
        assert [(t.name, list(t.partition_indexes)) for t in last.topics] == [("t", [1])]


async def test_brokers_without_stable_offsets_get_no_request() -> None:
    async with Coordinator(versions={**MODERN, 9: (0, 6)}) as broker, client_of(broker) as client:
        with pytest.raises(NoOffsetsError, match=r"older than 2\.5.*without require_stable") as caught:
            await offsets(client).fetch([A], require_stable=True)
        assert not caught.value.retriable
        assert broker.count(9) == 0


@pytest.mark.parametrize("exists", [True, False])
async def test_an_unknown_partition_is_retried_if_the_cluster_has_it(exists: bool) -> None:
    async with coordinated() as (broker, group):
        if exists:
            broker.topics["t"] = [1]
        broker.stored[A] = at(7)
        broker.codes[A] = [3]
        assert await group.fetch([A]) == ({A: at(7)} if exists else {})


async def test_a_fetch_from_a_silent_coordinator_fails_with_a_reason() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        broker.handlers[9] = lambda _: SILENT
        with pytest.raises(NoOffsetsError, match=r"timed out|no time left") as caught:
            await offsets(client, timeout_s=0.3).fetch([A])
        assert caught.value.retriable


async def test_a_rejected_topic_is_named() -> None:
    async with coordinated() as (broker, group):
        broker.codes[B] = [29]
        with pytest.raises(NoOffsetsError, match=r"t:1.*TOPIC_AUTHORIZATION_FAILED") as caught:
            await group.fetch([A, B])
        assert caught.value.partitions == {B}, "the others are not refused"


# -- 0.8.1: offsets in ZooKeeper, through any broker ------------------------------------------------------------


async def test_0_8_1_commits_in_v0_without_a_coordinator() -> None:
    broker = Coordinator(versions=None)
    broker.handlers[10] = lambda _: HANG_UP
    broker.topics["t"] = [1, 1, 1]
    async with broker, client_of(broker) as client:
        assert client.broker_version == (0, 8, 1)
        group = offsets(client)
        await group.commit({A: at(4, "m")})
        assert {r.API_VERSION for r in broker.seen if r.API_KEY == 8} == {0}
        assert group.coordinator.node is None
        broker.codes[B] = [3]  # the response of v0 for a partition without a committed offset
        assert await group.fetch([A, B]) == {A: at(4, "m")}
        broker.codes[B] = [3]
        assert await group.fetch(None) == {A: at(4, "m")}


async def test_a_fetch_waits_for_a_broker_that_cannot_reach_zookeeper() -> None:
    """Once, a pause of ZooKeeper ended members whose offsets are there."""
    broker = Coordinator(versions=None)
    broker.topics["t"] = [1]
    async with broker, client_of(broker) as client:
        broker.stored[A], broker.codes[A] = at(4), [-1, -1]
        assert await offsets(client, in_zookeeper=True).fetch([A]) == {A: at(4)}
        broker.codes[A] = [-1] * 1000
        with pytest.raises(NoOffsetsError, match="t:0: UNKNOWN_SERVER_ERROR") as caught:
            await offsets(client, timeout_s=0.1, in_zookeeper=True).fetch([A])
        assert caught.value.retriable


async def test_a_server_error_of_a_coordinator_ends_a_fetch() -> None:
    async with coordinated() as (broker, group):
        broker.codes[A] = [-1]
        with pytest.raises(NoOffsetsError, match="t:0: UNKNOWN_SERVER_ERROR") as caught:
            await group.fetch([A])
        assert not caught.value.retriable
