"""Kip848Membership against a scripted coordinator."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from allocator.core.client.client import KafkaClient
from allocator.core.client.offset_messages import Identity
from allocator.errors import BrokerError, BrokersUnavailable, ConfigError, Fenced, InstanceIdInUse
from allocator.protocols.kip848.group import Kip848Phase
from allocator.protocols.kip848.membership import Kip848Membership
from allocator.protocols.kip848.messages import IdPartitions
from allocator.protocols.kip848.settings import Kip848Settings
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.client.fake_broker import HANG_UP
from tests.groups.kip848_fake import CONFIGS, FAST, HEARTBEAT, Kip848Broker, ids, owned, topic_id
from tests.groups.kip848_members import Kip848Member
from tests.offsets.offset_responses import commit_response

pytestmark = pytest.mark.deadline(90)

COMMIT = 8
FIRST = {TopicPartition("t", 0): OffsetAndMetadata(3, "", -1)}


def parts(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", n) for n in numbers)


def member(broker: Kip848Broker, **options: Any) -> Kip848Member:
    return Kip848Member(broker.address, "g", options.pop("topics", ["t"]), **{**FAST, **options})


def events(member: Kip848Member) -> list[str]:
    return [what for _, _, what, _ in member.owner.history.events]


async def until(condition: Any, what: str) -> None:
    await wait_until_async(condition, 30, what, interval_s=0.002)


async def holds(member: Kip848Member, expected: frozenset[TopicPartition]) -> None:
    await until(lambda: member.held == expected, f"the member to hold {sorted(expected)}")


async def more_heartbeats(broker: Kip848Broker, times: int = 2) -> None:
    goal = len(broker.beats) + times
    await until(lambda: len(broker.beats) >= goal, "heartbeats")


async def slow_heartbeats(broker: Kip848Broker, member: Kip848Member) -> None:
    """From now on, only a change causes a heartbeat."""
    broker.interval_s = 600.0
    await until(lambda: member.membership.group.heartbeat.interval_s > 0.1, "slow heartbeats")


def proofs_of(member: Kip848Member) -> list[bool]:
    """Returns a list that gets, for each acknowledgement, whether a revocation may have begun before it."""
    proofs: list[bool] = []
    acknowledged = member.membership.acknowledged

    def note(started: float, session_timeout_s: float, *, revoking: bool) -> None:
        proofs.append(revoking)
        acknowledged(started, session_timeout_s, revoking=revoking)

    member.membership.acknowledged = note  # type: ignore[method-assign]
    return proofs


async def test_a_member_joins_takes_its_partitions_and_releases_them_when_it_leaves() -> None:
    async with Kip848Broker() as broker:
        async with member(broker, rack="r1", server_assignor="range", rebalance_timeout_s=7) as one:
            assert one.held == one.membership.held == parts(0, 1, 2)
            await until(lambda: one.membership.group.phase is Kip848Phase.STABLE, "a stable group")
            assert one.membership.identity == Identity(1, one.membership.member_id, None, by_epoch=True)
            assert one.membership.may_act()
            first = broker.beats[0]
            assert (first.member_epoch, first.member_id) == (0, one.membership.member_id)
            assert (first.rack_id, first.server_assignor, first.rebalance_timeout_ms) == ("r1", "range", 7000)
            assert (first.subscribed_topic_names, owned(first)) == (["t"], frozenset())
        assert events(one) == ["begin", "end"]
        assert (-1, one.membership.member_id) in [(beat.member_epoch, beat.member_id) for beat in broker.beats]
        assert one.membership.identity is None
        assert not one.membership.may_act()
        assert one.membership.ended is None


async def test_leaving_before_the_response_to_the_join_leaves_no_member_behind() -> None:
    async with Kip848Broker() as broker:
        gate, heartbeat = asyncio.Event(), broker.heartbeat

        async def delayed(request: Any) -> Any:
            if request.member_epoch == 0:
                await gate.wait()
            return await heartbeat(request)

        broker.handlers[HEARTBEAT] = delayed
        one = member(broker)
        await one.client.connect(20)
        join = asyncio.ensure_future(one.membership.join())
        await until(lambda: broker.beats, "the join")
        asyncio.get_running_loop().call_later(0.05, gate.set)
        await one.membership.leave()
        await asyncio.wait({join})
        await one.client.close()
        assert [beat.member_epoch for beat in broker.beats] == [0, -1]


async def test_what_moves_is_released_then_reported_and_only_then_more_is_taken() -> None:
    async with Kip848Broker() as broker, member(broker) as one:
        one.owner.may_drain.clear()
        broker.target = ids(0)
        await until(one.owner.draining.is_set, "the release")
        await more_heartbeats(broker, 3)
        # heartbeats continue and release nothing
        assert all(owned(beat) in (None, ids(0, 1, 2)) for beat in broker.beats[1:])
        assert one.membership.identity is not None
        reported_before, assigned = [], one.owner.assigned

        async def starts(partitions: frozenset[TopicPartition]) -> None:
            reported_before.extend(owned(beat) for beat in broker.beats)
            await assigned(partitions)

        one.owner.assigned = starts  # type: ignore[method-assign]
        broker.target = ids(0, 3)
        one.owner.may_drain.set()
        await holds(one, parts(0, 3))
        assert [(what, p) for _, _, what, p in one.owner.history.events[1:]] == [
            ("end", parts(1, 2)),
            ("begin", parts(3)),
        ]
        assert {ids(0), ids(0, 3)} & set(reported_before)
        await until(lambda: ids(0, 3) in map(owned, broker.beats), "the heartbeat about it")


async def test_a_partition_that_is_assigned_again_during_its_release_is_started_again() -> None:
    async with Kip848Broker() as broker, member(broker) as one:
        one.owner.may_drain.clear()
        broker.target = ids(0)
        await until(one.owner.draining.is_set, "the release")
        broker.target = ids(0, 1, 2)
        await more_heartbeats(broker)
        one.owner.may_drain.set()
        await until(lambda: events(one) == ["begin", "end", "begin"], "all again")
        assert [p for _, _, _, p in one.owner.history.events[1:]] == [parts(1, 2)] * 2
        await more_heartbeats(broker)
        assert all(1 in {p.partition for p in each} for each in map(owned, broker.beats[1:]) if each is not None)


async def test_a_topic_that_was_deleted_and_created_again_is_another_topic() -> None:
    async with Kip848Broker() as broker, member(broker) as one:
        broker.ids["t"] = topic_id("another")
        broker.target = ids(0, topic="another")
        await until(lambda: events(one) == ["begin", "end", "begin"], "the other topic to be started")
        assert one.held == parts(0)
        await until(lambda: ids(0, topic="another") in map(owned, broker.beats), "the heartbeat")


async def test_an_assigned_partition_counts_as_owned_before_its_topic_is_known() -> None:
    """Otherwise a heartbeat without it would make the coordinator reassign it while it starts."""
    async with Kip848Broker() as broker:
        broker.target = ids(0, topic="new")
        async with member(broker, topics=["t", "new"]) as one:
            assert one.held == frozenset()
            await until(lambda: ids(0, topic="new") in map(owned, broker.beats), "the heartbeat")
            broker.topics["new"] = [1]
            await holds(one, frozenset({TopicPartition("new", 0)}))


async def test_a_subscription_that_changes_during_a_heartbeat_is_not_lost() -> None:
    async with Kip848Broker() as broker, member(broker) as one:
        await slow_heartbeats(broker, one)
        heartbeat, go = broker.handlers[HEARTBEAT], asyncio.Event()

        async def delayed(request: Any) -> Any:
            await go.wait()
            return await heartbeat(request)

        broker.handlers[HEARTBEAT] = delayed
        one.membership.subscribe(["u"])
        await more_heartbeats(broker, 1)
        one.membership.subscribe(["v"])
        go.set()
        await until(lambda: broker.beats[-1].subscribed_topic_names == ["v"], "the other one")


# -- refusals and failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [25, 69, 110])
async def test_a_removed_member_loses_everything_and_joins_again_under_its_id(code: int) -> None:
    async with Kip848Broker() as broker, member(broker) as one:
        name = one.membership.member_id
        broker.codes = [code]
        await until(lambda: events(one) == ["begin", "lost", "begin"], "the loss")
        again = [beat for beat in broker.beats if beat.member_epoch == 0][-1]
        assert (again.member_id, owned(again)) == (name, frozenset())
        assert one.membership.generation == 2
        assert one.owner.errors == []


async def test_a_member_whose_earlier_membership_the_coordinator_still_knows_leaves_first() -> None:
    async with Kip848Broker() as broker, member(broker) as one:
        broker.codes = [110, 110]
        await until(lambda: events(one) == ["begin", "lost", "begin"], "the loss")
        assert -1 in [beat.member_epoch for beat in broker.beats]
        assert one.owner.errors == []


async def test_after_a_failure_everything_is_reported_again() -> None:
    async with Kip848Broker() as broker, member(broker):
        await more_heartbeats(broker, 3)
        broker.codes = [HANG_UP]
        await until(lambda: not broker.codes, "the failure")
        await more_heartbeats(broker, 3)
        full = [beat for beat in broker.beats[1:] if beat.rebalance_timeout_ms != -1]
        assert [(owned(beat), beat.subscribed_topic_names, beat.member_epoch) for beat in full] == [
            (ids(0, 1, 2), ["t"], 1)
        ]


async def test_a_response_that_cannot_be_used_is_requested_again(caplog: pytest.LogCaptureFixture) -> None:
    """The broker sends an assignment whose list of topics is null, which the protocol does not allow."""
    async with Kip848Broker() as broker, member(broker) as one:
        respond, odd = broker.response, []

        def broken(request: Any, code: int, assignment: IdPartitions | None) -> Any:
            response = respond(request, code, assignment)
            if response.assignment is not None and len(odd) < 2:
                odd.append(request)
                response.assignment.topic_partitions = None
            return response

        broker.response = broken  # type: ignore[method-assign]
        connections = broker.connections
        broker.target = ids(0)
        await holds(one, parts(0))
        assert len(odd) == 2
        assert broker.connections == connections + 2
        assert events(one)[:1] == ["begin"]
        assert "lost" not in events(one)
        assert "ConsumerGroupHeartbeatRequest cannot be used" in caplog.text
        assert one.membership.ended is None


async def test_a_revocation_whose_response_was_lost_counts_from_the_lost_response() -> None:
    """The coordinator's timeout began with the lost response, so the next response must not renew the lease."""
    async with Kip848Broker() as broker, member(broker) as one:
        proofs, before = proofs_of(one), []
        await more_heartbeats(broker, 3)
        one.owner.may_drain.clear()
        broker.when_lost = lambda: before.append(len(proofs))
        broker.lost, broker.target = 1, ids(0)
        await until(one.owner.draining.is_set, "the release")
        await until(lambda: len(proofs) > before[0] + 2, "heartbeats")
        assert proofs[: before[0]] == [False] * before[0]
        assert all(proofs[before[0] :])
        one.owner.may_drain.set()
        await until(lambda: proofs[-1] is False, "a proof")


async def test_a_preview_that_does_not_repeat_the_assignment_proves_nothing_after_a_failure() -> None:
    async with Kip848Broker(newest=0) as broker, member(broker) as one:
        broker.repeats = False
        proofs = proofs_of(one)
        await more_heartbeats(broker, 3)
        proofs.clear()
        broker.lost = 1
        await until(lambda: True in proofs, "the heartbeat after it")
        assert proofs.count(True) == 1


@pytest.mark.parametrize(
    ("code", "kind", "why"),
    [
        (30, BrokerError, "GROUP_AUTHORIZATION_FAILED"),
        (35, ConfigError, "KIP-848"),
        (69, ConfigError, "migration.policy"),
        (81, BrokerError, "GROUP_MAX_SIZE_REACHED"),
        (112, ConfigError, "server_assignor 'best'"),
    ],
)
async def test_a_join_that_cannot_succeed_raises_the_reason(code: int, kind: Any, why: str) -> None:
    async with Kip848Broker() as broker:
        broker.codes = [code]
        with pytest.raises(kind, match=f"(?s){why}.*because"):
            async with member(broker, server_assignor="best"):
                pass
        assert len(broker.beats) <= 2  # the second one leaves the group


async def test_join_raises_after_its_timeout_what_prevents_it() -> None:
    async with Kip848Broker() as broker, KafkaClient(broker.address) as client:
        find = broker.handlers[10]

        def unavailable(request: Any) -> Any:
            response = find(request)
            response.error_code = 15
            return response

        broker.handlers[10] = unavailable
        owner, settings = member(broker).owner, Kip848Settings(topics=frozenset({"t"}), connect_timeout_s=2)
        with pytest.raises(BrokersUnavailable, match=r"within 2 s; last: .* cannot find .* offsets topic"):
            await Kip848Membership(client, "g", owner, settings).join()
        broker.handlers[10] = find
        broker.codes = [111] * 10_000
        beats = len(broker.beats)
        with pytest.raises(InstanceIdInUse, match=r"within 2 s: another process has its instance id"):
            await Kip848Membership(client, "g", owner, settings).join()
        assert len(broker.beats) - beats < 10, "the pauses between the attempts grow"
        with pytest.raises(ConfigError, match="not a regular expression"):
            Kip848Membership(client, "g", owner, replace(settings, pattern="["))


@pytest.mark.parametrize("readable", [True, False])
async def test_the_session_timeout_is_the_brokers_or_else_the_interval(
    readable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Kip848Broker() as broker:
        broker.session_s, broker.interval_s = (9.0 if readable else None), 0.9
        with caplog.at_level(logging.WARNING, "allocator"):
            async with member(broker) as one:
                heartbeat = one.membership.group.heartbeat
                assert heartbeat.session_timeout_s == (9.0 if readable else 0.9)
                assert heartbeat.interval_s == pytest.approx(0.9 if readable else 0.3)
        assert ("DESCRIBE_CONFIGS" in caplog.text) != readable
        assert broker.count(CONFIGS) == 1


async def test_a_user_who_waits_to_join_is_not_silent() -> None:
    async with Kip848Broker() as broker:
        one = member(broker, max_poll_interval_s=0.1)
        one.owner.may_return.clear()
        await one.client.connect(20)
        join = asyncio.ensure_future(one.membership.join())
        await until(lambda: len(broker.beats) > 20, "the first assignment to take four times as long as polls may")
        one.owner.may_return.set()
        await join
        await until(lambda: one.membership.group.phase is Kip848Phase.AWAY, "leaving")
        assert events(one) == ["begin", "lost"]
        await one.__aexit__()


@pytest.mark.parametrize("removed", [False, True])
async def test_a_refused_commit_is_repeated_in_the_new_epoch_or_ends_the_membership(removed: bool) -> None:
    async with Kip848Broker() as broker:
        commits: list[Any] = []

        def commit(request: Any) -> Any:
            commits.append(request)
            code = 25 if removed else 0 if request.generation_id_or_member_epoch == broker.epoch else 113
            return commit_response(request, lambda partition, offset: code)

        broker.handlers[COMMIT] = commit
        async with member(broker) as one:
            await slow_heartbeats(broker, one)
            if removed:
                with pytest.raises(Fenced):
                    await one.offsets.commit(FIRST)
                assert one.membership.identity is None
                await until(lambda: events(one) == ["begin", "lost", "begin"], "the loss")
                return
            broker.epoch = 7
            await one.offsets.commit(FIRST)
            assert {c.API_VERSION for c in commits} == {9}
            assert [c.generation_id_or_member_epoch for c in commits] == [1] * (len(commits) - 1) + [7]
            assert {c.member_id for c in commits} == {one.membership.member_id}
            assert events(one) == ["begin"]
