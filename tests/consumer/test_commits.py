"""`Commits`, over offsets in memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest

from allocator.core.aio.tasks import BackgroundTasks
from allocator.core.client.client import KafkaClient
from allocator.core.consumer import GroupMember, MembershipConfig, commits
from allocator.core.consumer.commits import Commits
from allocator.core.fetch.fetcher import Fetcher
from allocator.core.subscription.state import SubscriptionState
from allocator.errors import CommitFailed, ConfigError
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.constants import SetConstant
from tests.memory_offsets import MemoryOffsets

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Group(MemoryOffsets):
    """`error` is raised by each request; `commits` and `fetches` hold the responses back."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0
        self.error: CommitFailed | None = None
        self.fetched, self.fetches, self.commits = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.fetches.set()
        self.commits.set()

    async def fetch(self, partitions: Iterable[TopicPartition], *, require_stable: bool = False) -> Any:
        found = await super().fetch(partitions)
        self.fetched.set()
        await self.fetches.wait()
        return found

    async def send(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.tries += 1
        await self.commits.wait()
        if self.error is not None:
            raise self.error
        await super().send(offsets)


class Member:
    """Owns A and B."""

    member_id, generation, committer = "m", 1, None

    def __init__(self, interval_s: float | None) -> None:
        self.lease, self.asked = True, 0
        self.group, self.state = Group(), SubscriptionState()
        self.state.claim({A: 1, B: 1})
        client = KafkaClient("127.0.0.1:1")
        self.fetcher = Fetcher(client, self.state)
        self.commits = Commits(
            self.group,  # type: ignore[arg-type]
            client,
            self.state,
            self.fetcher,
            lambda partitions: None,
            interval_s=interval_s,
        )
        self.commits.metadata.membership = self  # type: ignore[assignment]
        self.tasks = BackgroundTasks(lambda error: None)

    def may_act(self) -> bool:
        self.asked += 1
        return self.lease

    def began_at(self, offset: int) -> None:
        for partition in (A, B):
            self.group.stored[partition] = OffsetAndMetadata(offset, "as it was", 2)
            self.state.begin(partition, self.group.stored[partition])

    def done(self, partition: TopicPartition, offset: int) -> None:
        tenure = self.state.assignment[partition]
        if tenure.position is None:
            self.state.begin(partition, OffsetAndMetadata(0, "", -1))
        tenure.deliver(offset, -1)


@contextlib.asynccontextmanager
async def started(interval_s: float | None = None) -> AsyncIterator[Member]:
    member = Member(interval_s)
    member.commits.start(member.tasks)
    await asyncio.sleep(0)  # the search for idle offsets takes its first turn while nothing is committed
    try:
        yield member
    finally:
        await member.tasks.close()


async def test_a_failed_auto_commit_is_retried_soon_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with started(1.0) as member:
        member.group.error = CommitFailed("the coordinator moves")
        member.group.error.retriable = True
        member.done(A, 9)
        await wait_until_async(lambda: member.group.tries, 30, "the first try")
        began = time.monotonic()
        await wait_until_async(lambda: member.group.tries >= 4, 30, "more tries")
        assert time.monotonic() - began < 2.9, "each retry waited for a whole interval"
        warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
        assert warnings == ["g: commit postponed: the coordinator moves"]
        member.group.error = None
        await wait_until_async(lambda: member.group.sent == [{A: 9}], 30, "the commit")


@pytest.mark.parametrize("beneath", ["membership", "task"])
async def test_an_error_that_ended_the_consumer_reaches_each_reader(beneath: str) -> None:
    config = MembershipConfig.of("fixed", group="g", topics=("t",))
    core = GroupMember(config, brokers="b:9092", listener=None, auto_commit_interval_s=5, auto_offset_reset="latest")
    ended = RuntimeError("a bug")
    if beneath == "membership":
        core.membership.ended = ended
    else:
        core.fetcher.broke(ended)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a bug"):
            core.may_take()


async def test_a_short_lived_member_commits_idle_offsets_again_when_it_leaves() -> None:
    """Otherwise they would expire although the service runs every hour."""
    async with started(60.0) as member:
        member.began_at(5)
        member.done(B, 9)
        member.commits.leave_fresh(member.tasks)
        await member.commits.settled(frozenset({A}))
        assert member.group.sent == [{A: 5}], "the other one is committed when it is released"
        assert member.group.stored[A] == OffsetAndMetadata(5, "as it was", 2)
        member.commits.leave_fresh(member.tasks)
        await member.commits.settled(frozenset({A}))
        assert len(member.group.sent) == 1, "it is fresh by now"


async def test_an_idle_offset_that_is_committed_again_never_replaces_a_later_commit() -> None:
    """The listener commits while the member reads which offsets are committed."""
    async with started() as member:
        member.began_at(5)
        member.group.fetches.clear()
        member.commits.leave_fresh(member.tasks)
        await member.group.fetched.wait()
        settling = asyncio.ensure_future(member.commits.settled(frozenset({A})))
        await member.commits.commit({A: OffsetAndMetadata(7, "", -1)})
        assert not settling.done(), "a release waits for the offsets that are committed again"
        member.group.fetches.set()
        await settling
        assert member.group.sent == [{A: 7}, {B: 5}]


async def test_an_idle_offset_that_is_committed_again_never_hides_a_seek() -> None:
    async with started() as member:
        member.began_at(50)
        member.state.seek(A, 2)
        member.commits.leave_fresh(member.tasks)
        await member.commits.settled(frozenset({A, B}))
        assert member.group.stored[A].offset == 50
        await member.commits.commit_done()
        assert member.group.stored[A].offset == 2


async def test_a_cancelled_close_ends_the_membership_while_the_coordinator_is_silent() -> None:
    """Otherwise the session would live on, and no other member would get the partitions."""
    config = MembershipConfig.of("fixed", group="g", topics=("t",))
    core = GroupMember(config, brokers="b:9092", listener=None, auto_commit_interval_s=None, auto_offset_reset="latest")
    member, left = Member(None), asyncio.Event()
    member.began_at(5)
    member.group.fetches.clear()

    async def leave() -> None:
        left.set()

    async def close() -> None: ...

    member.leave, member.group.close = leave, close  # type: ignore[attr-defined]
    core.commits, core.membership = member.commits, member  # type: ignore[assignment]
    closing = asyncio.ensure_future(core.close())
    await member.group.fetched.wait()
    closing.cancel()
    await asyncio.wait({closing})
    assert left.is_set()


async def test_a_release_waits_for_the_commits_of_its_partitions_and_for_no_others() -> None:
    async with started() as member:
        member.group.commits.clear()
        commit = asyncio.ensure_future(member.commits.commit({A: OffsetAndMetadata(7, "", -1)}))
        await wait_until_async(lambda: member.group.tries, 30, "the request")
        await member.commits.settled(frozenset({B}))
        settling = asyncio.ensure_future(member.commits.settled(frozenset({A, B})))
        await asyncio.sleep(0)
        assert not settling.done()
        member.group.commits.set()
        await asyncio.gather(settling, commit)


async def test_a_commit_asks_for_the_lease_as_often_for_many_partitions_as_for_one() -> None:
    async with started() as member:
        counts = []
        for partitions in ((A,), (A, B)):
            before = member.asked
            await member.commits.commit(dict.fromkeys(partitions, OffsetAndMetadata(7, "", -1)))
            counts.append(member.asked - before)
        assert counts[0] == counts[1]


async def test_an_offset_that_cannot_be_committed_is_refused_before_a_doubt_is_decided() -> None:
    async with started() as member:
        member.began_at(3)
        member.state.assignment[A].doubt_log()
        with pytest.raises(ConfigError, match="t:0: offset -1"):
            await asyncio.wait_for(member.commits.commit({A: OffsetAndMetadata(-1, "", -1)}), 10)


async def test_a_release_does_not_wait_for_long_for_a_topic_in_doubt(set_constant: SetConstant) -> None:
    """It was probably deleted, and the partitions of other topics wait with it."""
    set_constant(commits, DOUBT_PATIENCE_S=0.05)
    async with started() as member:
        member.began_at(3)
        member.done(A, 5)
        member.done(B, 5)
        member.state.assignment[A].doubt_log()
        await asyncio.wait_for(member.commits.commit_done(patience_s=commits.RELEASE_PATIENCE_S), 15)
        assert member.group.sent == [{B: 5}]


async def test_an_offset_of_a_log_that_was_cut_is_not_committed() -> None:
    """The commit waits for another one, and meanwhile the position turns out to be beyond the log's end."""
    async with started() as member:
        member.done(A, 50)
        member.group.commits.clear()
        first = asyncio.ensure_future(member.commits.commit({B: OffsetAndMetadata(7, "", -1)}))
        await wait_until_async(lambda: member.group.tries, 30, "the first request")
        second = asyncio.ensure_future(member.commits.commit({A: OffsetAndMetadata(50, "", -1)}))
        await asyncio.sleep(0)
        member.state.request_offset_reset(A)
        member.state.assignment[A].complete_reset(OffsetAndMetadata(0, "", -1), None)
        member.group.commits.set()
        with pytest.raises(CommitFailed):
            await second
        await first
        assert member.group.stored.keys() == {B}


@pytest.mark.parametrize("first", ["the user", "automatic"])
async def test_an_automatic_commit_never_replaces_a_later_commit_of_the_user(first: str) -> None:
    """The user commits 9, which is delivered, while a commit of 5, which is done, is under way."""
    async with started() as member:
        member.done(A, 5)
        member.group.commits.clear()
        calls = [member.commits.commit({A: OffsetAndMetadata(9, "", -1)}), member.commits.commit_done()]
        commits = [asyncio.ensure_future(call) for call in (calls if first == "the user" else calls[::-1])]
        await wait_until_async(lambda: member.group.tries, 30, "the first request")
        member.group.commits.set()
        await asyncio.gather(*commits)
        await member.commits.commit_done()
        assert member.group.stored[A].offset == 9
        member.state.seek(A, 2)
        await member.commits.commit_done()
        assert member.group.stored[A].offset == 2, "a seek is followed"


async def test_the_result_of_commit_async_goes_to_the_callback_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    results: list[Any] = []

    def callback(offsets: Any, error: Exception | None) -> None:
        results.append((offsets, error))
        raise RuntimeError("a bug in the callback")

    async with started() as member:
        at, refused = {A: OffsetAndMetadata(7, "", -1)}, {A: OffsetAndMetadata(9, "", -1)}
        member.commits.commit_async(at, callback)
        await wait_until_async(lambda: results == [(at, None)], 30, "the callback")
        assert "the callback of a commit failed" in caplog.text
        member.group.error = CommitFailed("not now")
        member.commits.commit_async(refused, callback)
        member.commits.commit_async(refused)
        await wait_until_async(lambda: results[1:] == [(refused, member.group.error)], 30, "the other callback")
        await member.commits.settled(frozenset({A}))
        await asyncio.sleep(0)
        assert "g: 1 offsets are not committed: not now" in caplog.text
