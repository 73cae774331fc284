"""KafkaMembership against a scripted coordinator."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parent.parent / room) for room in ("wire", "coordinator")]

from fake_group import GroupBroker
from kafka.protocol.consumer import OffsetCommitResponse
from kafka_members import Ours
from lag_assignor import by_lag
from members import History

from allocator.core.client.client import KafkaClient
from allocator.errors import BrokerError, BrokersUnavailable, ConfigError, Fenced
from allocator.protocols.kafka_classic.consumer_protocol import MemberAssignment, Subscription, generation_from
from allocator.protocols.kafka_classic.group import GroupPhase
from allocator.protocols.kafka_classic.membership import KafkaMembership
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.deadline(90)

METADATA, COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, FIND = 3, 8, 11, 12, 13, 14, 10
FAST = {"session_timeout_s": 30.0, "heartbeat_interval_s": 0.02, "retry_backoff_s": 0.001, "failure_pause_s": 0.05}
ALL = frozenset(TopicPartition("t", n) for n in range(3))


def broker_with_topic() -> GroupBroker:
    broker = GroupBroker()
    broker.topics = {"t": [1, 1, 1]}
    return broker


def member(broker: GroupBroker, assignor: Any = "range", **options: Any) -> Ours:
    timing = {**FAST, **options.pop("timing", {})}
    topics = options.pop("topics", ["t"])
    return Ours(broker.address, "g", topics, assignors=[assignor], timing=timing, history=History(), **options)


def assign(broker: GroupBroker, assignment: bytes) -> None:
    """Has the broker assign this to its member from now on."""
    sync = broker.handlers[SYNC]

    async def scripted(request: Any) -> Any:
        answer = await sync(request)
        answer.assignment = assignment
        return answer

    broker.handlers[SYNC] = scripted


async def holds(ours: Ours, parts: frozenset[TopicPartition]) -> None:
    await wait_until_async(lambda: ours.held == parts, 30, lambda: f"{sorted(ours.held)} to be {sorted(parts)}")


async def test_a_member_joins_gets_its_partitions_and_gives_them_up_when_it_leaves() -> None:
    async with broker_with_topic() as broker:
        async with member(broker) as ours:
            await holds(ours, ALL)
            assert ours.membership.held == ALL
            assert ours.membership.leading
            assert (ours.membership.member_id, ours.membership.generation) == ("member-1", 1)
            assert ours.membership.may_act()
        assert [what for _, _, what, _ in ours.owner.history.events] == ["begin", "end"]
        assert not ours.membership.may_act()
        assert len(broker.requests(LEAVE)) == 1


async def test_eager_members_give_everything_up_before_they_join_and_cooperative_ones_nothing() -> None:
    for assignor, events in (("range", ["begin", "end", "begin"]), ("cooperative-sticky", ["begin"])):
        async with broker_with_topic() as broker, member(broker, assignor) as ours:
            await holds(ours, ALL)
            broker.codes[HEARTBEAT] = [27]
            await wait_until_async(
                lambda: broker.generation == 2 and ours.membership.generation == 2, 30, "a rebalance"
            )
            await holds(ours, ALL)
            assert [what for _, _, what, _ in ours.owner.history.events] == events
            said = Subscription.decode(broker.requests(JOIN)[-1].protocols[0].metadata)
            assert said.owned == (ALL if assignor == "cooperative-sticky" else frozenset())


async def test_a_cooperative_member_releases_what_it_is_not_given_any_more_and_joins_again() -> None:
    async with broker_with_topic() as broker, member(broker, "cooperative-sticky") as ours:
        await holds(ours, ALL)
        assign(broker, MemberAssignment(frozenset({TopicPartition("t", 0)})).encode())
        broker.codes[HEARTBEAT] = [27]
        await holds(ours, frozenset({TopicPartition("t", 0)}))
        await wait_until_async(lambda: ours.membership.generation == 3, 30, "the second round")
        said = Subscription.decode(broker.requests(JOIN)[-1].protocols[0].metadata)
        assert (said.owned, said.generation) == (frozenset({TopicPartition("t", 0)}), 2)


async def test_a_claim_is_of_the_newest_generation_that_was_joined_be_it_synced_or_not() -> None:
    """Java leaders of 2.8 to 3.3 reassign a partition at once if another member claims it since a newer generation."""
    async with broker_with_topic() as broker, member(broker, "cooperative-sticky") as ours:
        await holds(ours, ALL)
        broker.codes[SYNC] = [27]  # the next rebalance begins before this one ends
        broker.codes[HEARTBEAT] = [27]
        await wait_until_async(lambda: ours.membership.generation == 3, 30, "the rebalance after the next")
        said = [Subscription.decode(request.protocols[0].metadata) for request in broker.requests(JOIN)[2:]]
        assert [(each.generation, generation_from(each.user_data), each.owned) for each in said] == [
            (1, 1, ALL),
            (2, 2, ALL),
        ]
        assert [what for _, _, what, _ in ours.owner.history.events] == ["begin"]


async def test_a_member_that_was_removed_loses_everything_without_a_commit() -> None:
    async with broker_with_topic() as broker, member(broker) as ours:
        await holds(ours, ALL)
        broker.codes[HEARTBEAT] = [25]
        await wait_until_async(lambda: ours.owner.lost_partitions == ALL, 30, "the loss")
        await holds(ours, ALL)
        assert ours.membership.member_id == "member-2"
        assert ours.membership.may_act()


async def test_a_loss_while_releasing_ends_the_release() -> None:
    async with broker_with_topic() as broker, member(broker) as ours:
        await holds(ours, ALL)
        ours.owner.may_drain.clear()
        broker.codes[HEARTBEAT] = [27, 27, 25]
        await wait_until_async(lambda: ours.owner.lost_partitions == ALL, 30, "the loss")
        assert [what for _, _, what, _ in ours.owner.history.events][:2] == ["begin", "lost"]
        ours.owner.may_drain.set()


async def test_what_is_being_released_may_be_committed_until_that_is_done() -> None:
    async with broker_with_topic() as broker, member(broker) as ours:
        await holds(ours, ALL)
        ours.owner.may_drain.clear()
        broker.codes[HEARTBEAT] = [27]
        await wait_until_async(lambda: ours.owner.draining.is_set(), 30, "the release")
        assert all(ours.membership.may_commit(p) for p in ALL)
        assert ours.membership.held == frozenset()
        identity = ours.membership.identity
        assert identity is not None
        assert identity.generation == 1
        ours.owner.may_drain.set()
        await holds(ours, ALL)


def take_commits(broker: GroupBroker, codes: list[int] | None = None) -> list[tuple[int, int]]:
    """Has the broker take the commits of its present generation alone; returns (generation, code) of each to come."""
    seen: list[tuple[int, int]] = []

    def commit(request: Any) -> Any:
        code = codes.pop(0) if codes else 0 if request.generation_id_or_member_epoch == broker.generation else 22
        seen.append((request.generation_id_or_member_epoch, code))
        response = OffsetCommitResponse
        part = response.OffsetCommitResponseTopic.OffsetCommitResponsePartition(partition_index=0, error_code=code)
        topic = response.OffsetCommitResponseTopic(name="t", partitions=[part])
        return response(throttle_time_ms=0, topics=[topic], version=request.API_VERSION)

    broker.handlers[COMMIT] = commit
    return seen


FIRST = {TopicPartition("t", 0): OffsetAndMetadata(3, "", -1)}


@pytest.mark.parametrize("assignor", ["cooperative-sticky", by_lag])
async def test_a_commit_that_races_the_answer_of_a_join_costs_nothing(assignor: Any) -> None:
    async with broker_with_topic() as broker, member(broker, assignor) as ours:
        await holds(ours, ALL)
        commits = take_commits(broker)
        join, answered, go = broker.handlers[JOIN], asyncio.Event(), asyncio.Event()

        async def late(request: Any) -> Any:
            answer = await join(request)  # from here on the coordinator is in the next generation
            answered.set()
            await go.wait()
            return answer

        broker.handlers[JOIN] = late
        broker.codes[HEARTBEAT] = [27]
        await asyncio.wait_for(answered.wait(), 30)
        commit = asyncio.ensure_future(ours.offsets.commit(FIRST))
        await wait_until_async(lambda: commits, 30, "a refused commit")
        assert commits[0] == (1, 22)
        go.set()
        await commit
        assert commits[-1] == (2, 0)
        assert [what for _, _, what, _ in ours.owner.history.events] == ["begin"]
        assert ours.membership.held == ALL


@pytest.mark.parametrize("code", [22, 25, 82])
async def test_a_commit_that_says_that_the_membership_is_lost_ends_the_lease_at_once(code: int) -> None:
    async with broker_with_topic() as broker, member(broker, timing={"instance_id": "one"}) as ours:
        await holds(ours, ALL)
        take_commits(broker, [code])
        with pytest.raises(Fenced):
            await ours.offsets.commit(FIRST)
        assert not ours.membership.may_act()  # before another task runs
        await wait_until_async(lambda: ours.owner.lost_partitions == ALL, 30, "the loss")


async def test_the_lease_lapses_before_the_session_and_comes_back_with_an_answer() -> None:
    async with broker_with_topic() as broker, member(broker, timing={"session_timeout_s": 4.0}) as ours:
        await holds(ours, ALL)
        broker.silent = {HEARTBEAT}
        await wait_until_async(lambda: ours.owner.suspensions and not ours.membership.may_act(), 30, "the suspension")
        assert ours.held == ALL  # ownership is unchanged
        broker.silent = set()
        await wait_until_async(ours.membership.may_act, 30, "the lease")
        begin, *pauses = [what for _, _, what, _ in ours.owner.history.events]
        assert (begin, set(pauses)) == ("begin", {"pause", "go on"})


async def test_new_partitions_and_another_subscription_cause_a_rebalance() -> None:
    async with broker_with_topic() as broker, member(broker, topic_poll_s=0.05) as ours:
        await holds(ours, ALL)
        broker.topics = {"t": [1] * 5, "u": [1]}
        await holds(ours, frozenset(TopicPartition("t", n) for n in range(5)))
        ours.membership.subscribe(["u"])
        await holds(ours, frozenset({TopicPartition("u", 0)}))


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("held", [JOIN, SYNC])
async def test_a_subscription_that_changes_during_a_rebalance_is_not_lost(held: int, assignor: str) -> None:
    async with broker_with_topic() as broker, member(broker, assignor) as ours:
        broker.topics |= {"u": [1], "v": [1]}
        await holds(ours, ALL)
        broker.gates[held] = asyncio.Event()
        asked = len(broker.requests(held))
        ours.membership.subscribe(["u"])
        await wait_until_async(lambda: len(broker.requests(held)) > asked, 30, "the rebalance")
        ours.membership.subscribe(["v"])
        broker.gates[held].set()
        await holds(ours, frozenset({TopicPartition("v", 0)}))
        began = [p.topic for _, _, what, parts in ours.owner.history.events if what == "begin" for p in parts]
        assert "u" not in began  # partitions of the old subscription are not started


async def test_a_subscription_that_changes_while_partitions_drain_is_not_lost() -> None:
    async with broker_with_topic() as broker, member(broker) as ours:
        broker.topics |= {"u": [1], "v": [1]}
        await holds(ours, ALL)
        ours.owner.may_drain.clear()
        ours.membership.subscribe(["u"])
        await wait_until_async(lambda: ours.owner.draining.is_set(), 30, "the release")
        ours.membership.subscribe(["v"])
        ours.owner.may_drain.set()
        await holds(ours, frozenset({TopicPartition("v", 0)}))
        assert broker.generation == 2


@pytest.mark.parametrize("how", [{"topics": ["t"]}, {"topics": [], "pattern": "t.*"}])
async def test_a_broker_that_denies_a_topic_is_believed_only_if_it_lasts(how: dict[str, Any]) -> None:
    """Like a starting broker, which reports topics as missing; a deleted topic stays missing."""
    async with broker_with_topic() as broker, member(broker, topic_poll_s=0.05, **how) as ours:
        await holds(ours, ALL)
        there = broker.topics
        asked = broker.count(METADATA)
        broker.topics = {}
        await wait_until_async(lambda: broker.count(METADATA) > asked, 30, "an answer without it")
        broker.topics = there
        asked = broker.count(METADATA)
        await wait_until_async(lambda: broker.count(METADATA) > asked, 30, "an answer with it")
        assert broker.generation == 1
        broker.topics = {}
        await holds(ours, frozenset())
        broker.topics = there
        await holds(ours, ALL)
        assert [what for _, _, what, _ in ours.owner.history.events] == ["begin", "end", "begin"]


async def test_an_assignment_that_cannot_be_read_is_told_and_leaves_nothing() -> None:
    async with broker_with_topic() as broker:
        broker.leads = False
        assign(broker, b"\x00\x00\x7f\xff\xff\xff")
        async with member(broker) as ours:
            await wait_until_async(lambda: ours.owner.errors, 30, "the error")
            assert "cannot be read" in str(ours.owner.errors[0])
            assert ours.held == frozenset()


async def test_partitions_of_topics_that_were_not_subscribed_never_get_as_far_as_a_listener() -> None:
    async with broker_with_topic() as broker:
        broker.leads = False
        assign(broker, MemberAssignment(ALL | {TopicPartition("other", 0)}).encode())
        async with member(broker) as ours:
            await holds(ours, ALL)
            assert ours.membership.held == ALL


def refuses(view: Any) -> Any:
    raise ValueError("no")


async def test_a_function_that_fails_is_told() -> None:
    async with broker_with_topic() as broker, member(broker, refuses) as ours:
        await wait_until_async(lambda: ours.owner.errors, 30, "the error")
        assert "refuses" in str(ours.owner.errors[0])


async def test_join_says_what_prevents_it() -> None:
    async with broker_with_topic() as broker:
        broker.codes[JOIN] = [23]
        with pytest.raises(BrokerError, match="cannot join"):
            async with member(broker):
                pass


async def test_join_gives_up_when_there_is_no_coordinator() -> None:
    async with broker_with_topic() as broker:
        find = broker.handlers[FIND]

        def unavailable(request: Any) -> Any:
            answer = find(request)
            answer.error_code = 15
            return answer

        broker.handlers[FIND] = unavailable
        with pytest.raises(BrokersUnavailable, match=r"within 2 s; last: .* cannot find .* offsets topic"):
            await member(broker, connect_timeout_s=2.0).__aenter__()


async def test_join_says_what_failed_again_and_again() -> None:
    async with broker_with_topic() as broker:
        broker.codes[JOIN] = [0, *[16] * 10_000]
        find = broker.handlers[FIND]

        async def known_three_times(request: Any) -> Any:
            if len(broker.requests(JOIN)) > 3:
                await asyncio.Event().wait()  # a JoinGroup under way at the deadline could be one that is held back
            return find(request)

        broker.handlers[FIND] = known_three_times
        with pytest.raises(BrokersUnavailable, match=r"within 3 s; last: .*cannot join: NOT_COORDINATOR"):
            await member(broker, connect_timeout_s=3.0).__aenter__()


async def test_join_does_not_wait_for_a_rebalance_that_takes_long() -> None:
    async with broker_with_topic() as broker:
        broker.gates[SYNC] = asyncio.Event()
        async with member(broker, connect_timeout_s=2.0) as ours:
            await wait_until_async(
                lambda: ours.membership.group.phase is GroupPhase.SYNCING, 30, "it to wait for the others"
            )
            broker.gates[SYNC].set()
            await holds(ours, ALL)


async def test_a_silent_user_costs_the_partitions_until_the_next_sign_of_life() -> None:
    async with broker_with_topic() as broker, member(broker, timing={"max_poll_interval_s": 60.0}) as ours:
        await holds(ours, ALL)
        heartbeat = ours.membership.group.heartbeat
        heartbeat.max_poll_interval_s = 0.3
        await wait_until_async(lambda: ours.owner.lost_partitions == ALL, 30, "the loss")
        await wait_until_async(lambda: len(broker.requests(LEAVE)) == 1, 30, "the farewell")
        heartbeat.max_poll_interval_s = 60.0
        ours.membership.polled()
        await holds(ours, ALL)


async def test_a_fenced_instance_loses_everything_and_stops() -> None:
    async with broker_with_topic() as broker, member(broker, timing={"instance_id": "one"}) as ours:
        await holds(ours, ALL)
        broker.codes[HEARTBEAT] = [82]
        await wait_until_async(lambda: ours.owner.errors, 30, "the error")
        assert ours.owner.lost_partitions == ALL
        assert not ours.membership.may_act()
        await wait_until_async(lambda: ours.membership.ended is ours.owner.errors[0], 30, "the end")
        await ours.membership.leave()


async def test_an_owner_that_raises_ends_the_membership_and_is_told() -> None:
    async with broker_with_topic() as broker:
        ours = member(broker)

        async def raises(partitions: object) -> None:
            raise ValueError("a bug")

        ours.owner.assigned = raises  # type: ignore[method-assign, assignment]
        async with ours:
            await wait_until_async(lambda: ours.owner.lost_partitions == ALL, 30, "the loss")
            assert not ours.membership.may_act()
            await wait_until_async(lambda: "a bug" in str(ours.membership.ended), 30, "the end")
            assert len(broker.requests(LEAVE)) == 1  # no process waits for the end of its session


def test_a_member_without_functions_or_with_a_bad_pattern_is_refused() -> None:
    client, owner = KafkaClient("127.0.0.1:1"), Ours("127.0.0.1:1", "g", []).owner
    with pytest.raises(ConfigError, match="allocator function"):
        KafkaMembership(client, "g", owner, {}, KafkaSettings())
    with pytest.raises(ConfigError, match="regular expression"):
        Ours("127.0.0.1:1", "g", [], pattern="(")
