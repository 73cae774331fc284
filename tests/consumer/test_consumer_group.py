"""ConsumerGroup over Kafka's protocol, against a scripted coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from allocator import ConsumerGroup, Generation, GenerationEnded, GroupClosed, TopicPartition
from allocator.errors import AllocatorError, BrokerError, BrokersUnavailable, CommitFailed, ConfigError, NotOwned
from allocator.protocols.kafka_classic.consumer_protocol import Subscription
from allocator.testing import wait_until_async
from tests.client.fake_broker import HANG_UP, SILENT, FakeBroker
from tests.consumer.group_bench import (
    API_VERSIONS,
    COMMIT,
    FETCH,
    HEARTBEAT,
    JOIN,
    LEAVE,
    SYNC,
    GroupServer,
    Stubborn,
    forever,
    served,
)

pytestmark = pytest.mark.deadline(90)

ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE, NOT_AUTHORISED = 22, 25, 27, 30


@contextlib.asynccontextmanager
async def started(**options: Any) -> AsyncIterator[tuple[GroupServer, ConsumerGroup, Generation]]:
    """Yields a coordinator, its only member, and the member's first generation."""
    async with GroupServer() as broker, broker.group(**options) as group:
        yield broker, group, await group.next()


def order(broker: GroupServer, *keys: int) -> list[int]:
    return [request.API_KEY for request in broker.seen if request.API_KEY in keys]


async def seen(broker: GroupServer, key: int, count: int) -> None:
    await wait_until_async(lambda: len(broker.requests(key)) >= count, 30, f"{count} requests {key}")


# -- joining ----------------------------------------------------------------------------------------------------------


async def test_the_first_next_joins_and_a_generation_has_its_committed_offsets() -> None:
    async with GroupServer() as broker:
        await served(broker)
        connections = broker.connections
        broker.topics["u"] = [1]
        broker.stored = {("t", 0): 40, ("t", 2): 0}
        group = broker.group(topics=["missing", "u", "t"], start_offset="latest")
        await served(broker)
        assert broker.connections == 2 * connections, "the constructor connects"
        generation = await group.next()
        assert generation.assignments == {"missing": (), "u": ((0, -1),), "t": ((0, 40), (1, -1), (2, 0))}
        assert list(generation.assignments) == ["missing", "u", "t"]
        assert (generation.id, generation.group, generation.member_id) == (1, "g", "member-1")
        assert order(broker, JOIN, SYNC, FETCH) == [JOIN, JOIN, SYNC, FETCH]  # the first one took a member id
        (first, *_) = broker.requests(JOIN)
        assert first.protocol_type == "consumer"
        assert [p.name for p in first.protocols] == ["range", "roundrobin"]
        assert (first.session_timeout_ms, first.rebalance_timeout_ms) == (30000, 60000)
        assert set(Subscription.decode(first.protocols[0].metadata).topics) == {"missing", "u", "t"}
        await group.close()


async def test_an_empty_assignment_is_a_generation_and_heartbeats_continue() -> None:
    async with started(topics=["missing"]) as (broker, _group, generation):
        assert generation.assignments == {"missing": ()}
        assert broker.requests(FETCH) == []
        beats = len(broker.requests(HEARTBEAT))
        await seen(broker, HEARTBEAT, beats + 3)
        assert not generation.done


async def test_next_raises_while_brokers_are_away_and_retries() -> None:
    async with FakeBroker() as gone:
        port = gone.port
    config = GroupServer().config(brokers=f"127.0.0.1:{port}", connect_timeout_s=2.0)
    async with ConsumerGroup(config) as group:
        with pytest.raises(BrokersUnavailable, match=str(port)):
            await group.next()
        broker = GroupServer()
        broker.port = port
        async with broker:
            # an earlier failure is raised first
            while True:
                with contextlib.suppress(BrokersUnavailable):
                    generation = await group.next()
                    break
            assert generation.id == 1
            await group.close()


async def test_one_generation_goes_to_one_caller_and_a_cancelled_caller_takes_none() -> None:
    async with GroupServer() as broker, broker.group() as group:
        broker.gates[SYNC] = asyncio.Event()
        callers = [asyncio.ensure_future(group.next()) for _ in range(3)]
        await seen(broker, SYNC, 1)
        callers[0].cancel()
        broker.gates[SYNC].set()
        done, waiting = await asyncio.wait(callers[1:], return_when=asyncio.FIRST_COMPLETED)
        (first,), (second,) = done, waiting
        await seen(broker, HEARTBEAT, len(broker.requests(HEARTBEAT)) + 3)
        assert not second.done()
        first.result().start(asyncio.sleep(0))
        assert (await second).id == first.result().id + 1


# -- the end of a generation ------------------------------------------------------------------------------------------


async def test_the_member_joins_again_under_its_id_once_every_function_has_returned() -> None:
    async with started(join_backoff_s=1000) as (broker, group, generation):
        stubborn = Stubborn()
        task = generation.start(stubborn())
        generation.start(asyncio.sleep(0), name="reader")
        waiting = asyncio.ensure_future(group.next())
        assert "reader returned" in str(await generation.wait())
        assert generation.returned
        await seen(broker, HEARTBEAT, len(broker.requests(HEARTBEAT)) + 3)  # the group keeps the member
        assert len(broker.requests(JOIN)) == 2
        assert not waiting.done()
        stubborn.may_go.set()
        following = await waiting
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        if sys.version_info >= (3, 11):
            assert cancelled.value.args == (generation.ended,)
        assert (following.id, following.member_id) == (2, generation.member_id)
        assert [r.member_id for r in broker.requests(JOIN)] == ["", "member-1", "member-1"]
        assert broker.requests(LEAVE) == []


async def test_a_rebalance_ends_the_generation_without_an_error_a_leave_or_a_pause() -> None:
    async with started(join_backoff_s=1000) as (broker, group, generation):
        task = generation.start(forever)
        broker.codes[HEARTBEAT] = [REBALANCE]
        following = await group.next()
        assert task.cancelled()
        assert "the group rebalances" in str(generation.ended)
        assert not generation.returned
        assert (following.id, following.member_id) == (2, generation.member_id)
        assert broker.requests(LEAVE) == []
        broker.codes[SYNC] = [REBALANCE]
        broker.codes[HEARTBEAT] = [REBALANCE]
        assert (await group.next()).member_id == generation.member_id
        assert broker.requests(LEAVE) == []


async def test_a_generation_that_ends_before_delivery_is_replaced() -> None:
    async with GroupServer() as broker, broker.group() as group:
        await seen(broker, HEARTBEAT, 1)
        broker.gates[SYNC] = asyncio.Event()
        broker.codes[HEARTBEAT] = [REBALANCE]
        await seen(broker, SYNC, 2)
        waiting = asyncio.ensure_future(group.next())
        await served(broker)
        assert not waiting.done()
        broker.gates[SYNC].set()
        generation = await waiting
        assert (generation.id, generation.done) == (2, False)


@pytest.mark.parametrize("topics", [["t"], ["missing"]])
@pytest.mark.parametrize("code", [REBALANCE, UNKNOWN_MEMBER])
async def test_no_join_is_sent_while_a_function_runs_also_without_partitions(topics: list[str], code: int) -> None:
    async with started(topics=topics, join_backoff_s=1000) as (broker, group, generation):
        stubborn = Stubborn()
        generation.start(stubborn())
        broker.codes[HEARTBEAT] = [code]
        await generation.wait()
        await served(broker)
        assert len(broker.requests(JOIN)) == 2
        stubborn.may_go.set()
        assert (await group.next()).member_id == ("member-1" if code == REBALANCE else "member-2")


async def test_a_silent_coordinator_ends_the_generation_before_the_session_expires() -> None:
    async with started(session_timeout_s=1.0, timeout_s=0.3) as (broker, group, generation):
        task = generation.start(forever)
        broker.silent = {HEARTBEAT}
        assert "has not responded" in str(await generation.wait())
        await asyncio.wait({task})
        with pytest.raises(GenerationEnded):
            await generation.commit({"t": {0: 1}})
        broker.silent = set()
        assert (await group.next()).partitions == generation.partitions


# -- failures ---------------------------------------------------------------------------------------------------------


async def test_next_raises_the_error_of_a_function_and_the_member_leaves_and_joins_again() -> None:
    async with started(join_backoff_s=0.3) as (broker, group, generation):

        async def fails() -> None:
            raise ZeroDivisionError("bad record")

        generation.start(fails())
        failed = time.monotonic()
        with pytest.raises(ZeroDivisionError, match="bad record"):
            await group.next()
        assert len(broker.requests(LEAVE)) == 1
        following = await group.next()
        assert time.monotonic() - failed >= 0.3, "it joined before the pause ended"
        assert following.member_id == "member-2"


async def test_the_first_error_ends_the_generation_and_later_ones_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(text: str) -> None:
        try:
            if text == "second":
                await forever()
        finally:
            raise ZeroDivisionError(text)

    async with started() as (_broker, group, generation):
        generation.start(fails("second"))
        generation.start(fails("first"))
        with pytest.raises(ZeroDivisionError, match="first"):
            await group.next()
        assert "ZeroDivisionError('first')" in str(generation.ended)
    assert [r.exc_info[1].args for r in caplog.records if r.exc_info and r.exc_info[1]] == [("second",)]


async def test_a_function_that_raises_generation_ended_has_not_failed() -> None:
    async def works(generation: Generation) -> None:
        try:
            await forever()
        finally:
            await generation.commit({"t": {0: 8}})

    async with started() as (broker, group, generation):
        task = generation.start(works)
        broker.codes[HEARTBEAT] = [UNKNOWN_MEMBER]
        await group.next()
        assert isinstance(task.exception(), GenerationEnded)
        assert generation.failure is None


async def test_a_function_started_after_the_end_is_cancelled() -> None:
    done: list[bool] = []

    async def late(generation: Generation) -> None:
        done.append(generation.done)
        await forever()

    async with started() as (_broker, group, generation):
        generation.start(asyncio.sleep(0))
        await group.next()
        task = generation.start(late)
        await asyncio.wait({task})
        assert task.cancelled()
        assert done == [True]


@pytest.mark.parametrize(("key", "code"), [(JOIN, NOT_AUTHORISED), (SYNC, NOT_AUTHORISED), (JOIN, 26), (FETCH, 30)])
async def test_a_rejection_is_raised_before_the_member_tries_again(key: int, code: int) -> None:
    async with GroupServer() as broker, broker.group(join_backoff_s=0.05) as group:
        codes = [0, code] if key == JOIN else [code]  # the first join takes a member id
        broker.codes[key] = [*codes]
        await seen(broker, LEAVE, 1)
        joins = len(broker.requests(JOIN))
        async with GroupServer() as other, other.group(join_backoff_s=0.05) as prompt:  # its error is received at once
            other.codes[key] = [*codes]
            with pytest.raises(AllocatorError):
                await prompt.next()
            await prompt.next()  # after a pause that began later
        assert len(broker.requests(JOIN)) == joins
        assert len(broker.requests(LEAVE)) == 1
        with pytest.raises(AllocatorError, match="g"):
            await group.next()
        assert (await group.next()).partitions == {TopicPartition("t", n) for n in range(3)}


async def test_an_error_in_the_middle_of_a_generation_ends_it() -> None:
    async with started() as (broker, group, generation):
        task = generation.start(forever)
        broker.codes[HEARTBEAT] = [NOT_AUTHORISED]
        with pytest.raises(BrokerError) as caught:
            await group.next()
        assert caught.value.code == NOT_AUTHORISED
        assert task.cancelled()
        assert str(caught.value) in str(generation.ended)
        assert len(broker.requests(LEAVE)) == 1
        assert (await group.next()).member_id == "member-2"


async def test_an_error_of_the_allocator_function_is_raised() -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("no partitions today")

    async with GroupServer() as broker, broker.group(assignor=broken) as group:
        with pytest.raises(AllocatorError, match="no partitions today"):
            await group.next()
        assert len(broker.requests(LEAVE)) == 1


async def _fail() -> None:
    raise ZeroDivisionError


# -- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_ends_the_generation_commits_leaves_and_wakes_every_caller() -> None:
    async with GroupServer() as broker:
        group = broker.group()
        generation = await group.next()
        may_go, steps = asyncio.Event(), []

        async def stubborn() -> None:
            try:
                await forever()
            finally:
                await may_go.wait()
                steps.append(len(broker.requests(LEAVE)))
                await generation.commit({"t": {0: 11}})

        generation.start(stubborn())
        waiting = [asyncio.ensure_future(group.next()) for _ in range(3)]
        await served(broker)
        closes = [asyncio.ensure_future(group.close()) for _ in range(2)]
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in errors] == [GroupClosed] * 3
        assert len({id(error) for error in errors}) == 3
        assert not any(close.done() for close in closes)
        may_go.set()
        await asyncio.gather(*closes)
        assert steps == [0]
        assert broker.stored["t", 0] == 11
        assert [m.member_id for m in broker.requests(LEAVE)[0].members] == ["member-1"]
        assert "closed" in str(generation.ended)
        await group.close()
        with pytest.raises(GroupClosed, match="create a new one"):
            await group.next()
        assert len(broker.requests(LEAVE)) == 1


@pytest.mark.parametrize("key", [JOIN, SYNC, FETCH])
async def test_closing_leaves_while_a_response_is_outstanding(key: int) -> None:
    async with GroupServer() as broker:
        broker.gates[key] = asyncio.Event()
        async with broker.group(timeout_s=1.0):  # the leave request waits until the fetch times out
            await seen(broker, key, 1)
        if key != JOIN:  # there is no member before the JoinGroup response
            assert len(broker.requests(LEAVE)) == 1


async def test_closing_interrupts_the_pause_and_the_search_for_brokers() -> None:
    async with GroupServer() as broker:
        group = broker.group(join_backoff_s=1000)
        (await group.next()).start(_fail())
        with pytest.raises(ZeroDivisionError):
            await group.next()
        await served(broker)
        await group.close()
    useless = FakeBroker({API_VERSIONS: lambda _: HANG_UP})
    async with useless, ConsumerGroup(broker.config(brokers=useless.address, connect_timeout_s=1000)):
        await wait_until_async(lambda: useless.connections > 1, 30, "a second attempt")


@pytest.mark.parametrize(
    "close",
    [lambda group: group.close(), lambda group: asyncio.wait_for(group.close(), 30)],
    ids=["itself", "wait_for"],
)
async def test_a_function_may_close_the_group(close: Callable[[ConsumerGroup], Awaitable[Any]]) -> None:
    async with GroupServer() as broker:
        group = broker.group()

        async def last(_: Generation) -> None:
            await close(group)

        task = (await group.next()).start(last)
        with pytest.raises(GroupClosed):
            await group.next()
        await group.close()
        assert task.cancelled()
        assert len(broker.requests(LEAVE)) == 1


async def test_a_cancelled_close_does_not_wait_for_the_leave_response() -> None:
    async with GroupServer() as broker:
        group = broker.group(timeout_s=1000)
        await group.next()
        broker.silent = {LEAVE}
        close = asyncio.ensure_future(group.close())
        await seen(broker, LEAVE, 1)
        close.cancel()
        await asyncio.wait({close})
        assert close.cancelled()
        assert [t for t in asyncio.all_tasks() if t.get_name() in ("group g", "join", "membership")] == []


# -- commits ----------------------------------------------------------------------------------------------------------


async def test_a_commit_has_the_identity_of_its_generation_and_is_rejected_in_the_next() -> None:
    async with started() as (broker, group, generation):
        await generation.commit({"t": {0: 5, 1: 6}})
        await generation.commit({"t": {}})
        (request,) = broker.requests(COMMIT)
        assert (request.generation_id_or_member_epoch, request.member_id) == (1, "member-1")
        assert broker.stored == {("t", 0): 5, ("t", 1): 6}
        generation.start(asyncio.sleep(0))
        following = await group.next()
        assert following.assignments["t"] == ((0, 5), (1, 6), (2, -2))
        with pytest.raises(GenerationEnded, match="generation 1 of group 'g' has ended: sleep returned"):
            await generation.commit({"t": {0: 9}})
        assert len(broker.requests(COMMIT)) == 1
        await following.commit({"t": {0: 2}})  # back
        assert broker.stored["t", 0] == 2
        assert broker.requests(COMMIT)[1].generation_id_or_member_epoch == 2


async def test_a_commit_of_an_ended_generation_is_not_sent_under_the_next_identity() -> None:
    async with started() as (broker, group, generation):
        broker.gates[COMMIT] = asyncio.Event()
        commits = [asyncio.ensure_future(generation.commit({"t": {n: 9}})) for n in range(2)]
        await seen(broker, COMMIT, 1)
        broker.codes[COMMIT] = [ILLEGAL_GENERATION]
        broker.gates[COMMIT].set()
        errors = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(error) for error in errors] == [GenerationEnded] * 2
        assert (await group.next()).id == 2
        assert generation.done
        assert {r.generation_id_or_member_epoch for r in broker.requests(COMMIT)} == {1}
        assert broker.stored == {}


async def test_the_member_joins_again_only_after_its_running_commits() -> None:
    async with started() as (broker, group, generation):
        broker.gates[COMMIT] = asyncio.Event()
        commit = asyncio.ensure_future(generation.commit({"t": {0: 8}}))
        await seen(broker, COMMIT, 1)
        generation.start(asyncio.sleep(0))
        await generation.wait()
        await served(broker)
        assert len(broker.requests(JOIN)) == 2, "the joins of the first generation"
        broker.gates[COMMIT].set()
        await commit
        assert (await group.next()).id == 2


async def test_an_invalid_commit_sends_nothing() -> None:
    async with started() as (broker, _group, generation):
        with pytest.raises(NotOwned, match=r"generation 1 of group 'g' does not have t:3, u:0"):
            await generation.commit({"t": {0: 1, 3: 1}, "u": {0: 1}})
        for offset in (-1, True, "4", None):
            with pytest.raises(ConfigError, match=f"t:0: {offset!r} cannot be committed"):
                await generation.commit({"t": {0: offset}})  # type: ignore[dict-item]
        assert broker.requests(COMMIT) == []
        assert not generation.done


async def test_a_failed_commit_does_not_end_the_generation() -> None:
    async with started() as (broker, _group, generation):
        broker.codes[COMMIT] = [NOT_AUTHORISED]
        with pytest.raises(CommitFailed):
            await generation.commit({"t": {0: 9}})
        assert not generation.done
        await generation.commit({"t": {0: 9}})


async def test_commits_have_a_retention_in_the_versions_that_support_it() -> None:
    async with GroupServer() as broker, broker.group(retention_s=3600) as group:
        await (await group.next()).commit({"t": {0: 5}})
        (request,) = broker.requests(COMMIT)
        assert (request.API_VERSION, request.retention_time_ms) == (4, 3_600_000)
    async with GroupServer() as broker, broker.group() as group:
        await (await group.next()).commit({"t": {0: 5}})
        (request,) = broker.requests(COMMIT)
        assert request.API_VERSION > 4


# -- the watch of partitions ------------------------------------------------------------------------------------------


async def test_partitions_that_are_added_end_the_generation_when_they_are_watched() -> None:
    async with GroupServer() as broker:
        options = {"watch_partition_changes": True, "partition_watch_interval_s": 0.05, "topics": ["t", "later"]}
        async with broker.group(**options) as group:
            generation = await group.next()
            task = generation.start(forever)
            broker.topics["t"] = [1] * 5
            following = await group.next()
            assert task.cancelled()
            assert len(following.partitions) == 5
            broker.topics["later"] = [1]  # there was no such topic before
            assert (await group.next()).assignments["later"] == ((0, -2),)
            assert broker.requests(LEAVE) == []


async def test_the_watch_survives_a_silent_broker(caplog: pytest.LogCaptureFixture) -> None:
    async with GroupServer() as broker:
        options = {"watch_partition_changes": True, "partition_watch_interval_s": 0.05, "timeout_s": 0.2}
        async with broker.group(**options) as group:
            generation = await group.next()
            metadata = broker.handlers[3]
            broker.handlers[3] = lambda _: SILENT
            with caplog.at_level(logging.WARNING):
                await wait_until_async(lambda: "cannot be read" in caplog.text, 30, "a failed check")
            assert not generation.done
            broker.handlers[3] = metadata
