"""GroupCoordinator against a scripted coordinator."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from fake_broker import SILENT
from fake_group import GroupBroker, Member

from allocator.core.offsets.messages import Identity
from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.protocols.kafka_classic.group import MOVES, GroupPhase
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.testing import wait_until_async

pytestmark = pytest.mark.deadline(90)

JOIN, HEARTBEAT, LEAVE, SYNC, FIND = 11, 12, 13, 14, 10


def ids(broker: GroupBroker, key: int = JOIN) -> list[str]:
    return [request.member_id for request in broker.requests(key)]


# -- joining ----------------------------------------------------------------------------------------------------------


async def test_a_member_takes_its_id_first_and_then_joins_leads_and_syncs() -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        assert ids(broker) == ["", "member-1"]
        assert member.recorder.calls == ["prepare", "assign first", "joined 1 first given wants"]
        assert member.group.identity == Identity(1, "member-1", None)
        (sync,) = broker.requests(SYNC)
        assert (sync.generation_id, sync.member_id, len(sync.assignments)) == (1, "member-1", 1)
        first = broker.requests(JOIN)[0]
        assert (first.session_timeout_ms, first.rebalance_timeout_ms, first.reason) == (30000, 60000, "first join")
        assert [p.name for p in first.protocols] == ["first", "second"]


async def test_a_coordinator_that_accepts_no_connection_is_looked_for_again() -> None:
    async with GroupBroker() as broker:
        async with GroupBroker() as gone:
            pass
        find = broker.handlers[FIND]

        def stale(request: Any) -> Any:
            answer = find(request)
            if broker.count(FIND) < 3:
                answer.node_id, answer.port = 7, gone.port
            return answer

        broker.handlers[FIND] = stale
        async with Member(broker) as member:
            await member.recorder.called("joined")
            assert member.group.coordinator == 1
            assert member.recorder.calls.count("prepare") == 1


async def test_a_follower_syncs_with_nothing_to_hand_out() -> None:
    async with GroupBroker() as broker:
        broker.leads = False
        async with Member(broker) as member:
            await member.recorder.called("joined")
            assert "assign first" not in member.recorder.calls
            assert len(broker.requests(SYNC)[0].assignments) == 0


@pytest.mark.parametrize("join", range(10))
async def test_every_version_of_join_group_from_0_9_on(join: int) -> None:
    versions = {JOIN: (0, join), SYNC: (0, min(join, 5)), HEARTBEAT: (0, min(join, 4)), LEAVE: (0, min(join, 5))}
    async with GroupBroker(versions) as broker:
        async with Member(broker) as member:
            await member.recorder.called("joined")
            await wait_until_async(lambda: len(broker.requests(HEARTBEAT)) > 1, 30, "heartbeats")
            assert join == broker.requests(JOIN)[-1].API_VERSION
            assert member.group.rebalance_timeout_s == (60.0 if join else 30.0)
        assert len(broker.requests(LEAVE)) == 1


async def test_a_broker_without_the_group_protocol_is_named() -> None:
    async with GroupBroker() as broker:
        del broker.versions[JOIN]
        async with Member(broker, wait=False) as member:
            with pytest.raises(ConfigError, match=r"older than 0\.9"):
                await member.joined


async def test_static_members_need_a_broker_that_knows_them() -> None:
    async with GroupBroker({JOIN: (0, 4)}) as broker, Member(broker, wait=False, instance_id="a") as member:
        with pytest.raises(ConfigError, match=r"2\.3"):
            await member.joined


@pytest.mark.parametrize("code", [7, 14, 15, 16, 27, 111])
async def test_a_join_that_may_succeed_later_is_repeated_after_one_preparation(code: int) -> None:
    async with GroupBroker() as broker:
        broker.codes[JOIN] = [code, code]
        async with Member(broker, heartbeat_interval_s=15) as member:  # heartbeats are too rare to matter
            await member.recorder.called("joined")
            assert member.recorder.calls.count("prepare") == 1
            assert len(ids(broker)) == 4
            assert (broker.count(FIND) > 1) == (code in (15, 16))


@pytest.mark.parametrize("code", [23, 24, 26, 30, 35, 42, 81])
async def test_a_join_that_cannot_succeed_ends_with_the_reason(code: int) -> None:
    async with GroupBroker() as broker:
        broker.codes[JOIN] = [code]
        async with Member(broker, wait=False) as member:
            with pytest.raises(AllocatorError, match="'g': cannot join"):
                await member.joined
            await member.task
            assert member.group.phase is GroupPhase.CLOSED


async def test_a_rebalance_soon_after_another_is_noticed_without_a_wait_for_the_usual_interval() -> None:
    async with GroupBroker() as broker, Member(broker, session_timeout_s=3000.0, heartbeat_interval_s=900.0) as member:
        broker.codes[HEARTBEAT] = [0, 0, 27, 0, 27]
        await member.recorder.called("joined 3")
        assert broker.requests(JOIN)[-1].reason == "the group rebalances"


@pytest.mark.parametrize(("code", "rejoins_as"), [(22, ["member-1"]), (25, ["", "member-2"]), (110, ["", "member-2"])])
async def test_a_member_that_may_not_join_loses_everything_and_joins_again(code: int, rejoins_as: list[str]) -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        broker.codes[JOIN] = [code]
        member.group.request_rejoin("a test")
        await member.recorder.called("joined 2")
        assert ids(broker) == ["", "member-1", "member-1", *rejoins_as]
        assert "lost" in member.recorder.calls


async def test_a_change_during_join_makes_its_result_void() -> None:
    async with GroupBroker() as broker:
        broker.gates[JOIN] = asyncio.Event()
        async with Member(broker, wait=False) as member:
            await wait_until_async(lambda: len(ids(broker)) == 1, 30, "a join")
            member.recorder.wants = b"changed"
            member.group.request_rejoin("another subscription")
            broker.gates[JOIN].set()
            await member.joined
            await member.recorder.called("joined")
            assert member.recorder.calls == [
                "prepare",
                "assign first",
                "prepare",  # the change may first require to release partitions
                "assign first",
                "joined 2 first given changed",
            ]


async def test_a_change_while_preparing_is_prepared_for_before_the_join() -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        member.recorder.block = "prepare"
        member.group.request_rejoin("a test")
        await member.recorder.called("prepare", 2)
        member.recorder.wants = b"changed"
        member.group.request_rejoin("another subscription")
        member.recorder.go.set()
        await member.recorder.called("joined 2")
        assert member.recorder.calls[-1] == "joined 2 first given changed"
        assert member.recorder.calls[3:5] == ["prepare", "prepare"]


async def test_a_function_that_was_not_offered_is_a_fault_of_the_broker_and_the_group_is_left() -> None:
    async with GroupBroker() as broker:
        broker.chooses = "strange"
        async with Member(broker, wait=False) as member:
            with pytest.raises(BrokerError, match=r"function 'strange', .* it offers first, second"):
                await member.joined
            await member.task
            assert [each.member_id for each in broker.requests(LEAVE)[0].members] == ["member-1"]
            assert broker.requests(SYNC) == []
            assert member.group.phase is GroupPhase.CLOSED


# -- sync -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "second"),
    [
        (7, "member-1"),
        (14, "member-1"),
        (15, "member-1"),
        (16, "member-1"),
        (22, "member-1"),
        (25, ""),
        (27, "member-1"),
        (110, ""),
    ],
)
async def test_a_sync_that_is_refused_has_the_member_join_again(code: int, second: str) -> None:
    async with GroupBroker() as broker:
        broker.codes[SYNC] = [code]
        async with Member(broker, heartbeat_interval_s=15) as member:  # heartbeats are too rare to matter
            await member.recorder.called("joined")
            assert ids(broker)[2] == second
            assert [c for c in member.recorder.calls if c.startswith("joined")] == ["joined 2 first given wants"]
            assert ("lost" in member.recorder.calls) == (code in (22, 25, 110))
            assert (broker.count(FIND) > 1) == (code in (15, 16))


async def test_a_heartbeat_that_hears_of_a_rebalance_while_syncing_starts_no_other_one() -> None:
    async with GroupBroker({JOIN: (0, 0)}) as broker:
        broker.gates[SYNC] = asyncio.Event()
        async with Member(broker, wait=False) as member:
            broker.codes[HEARTBEAT] = [27] * 3
            await wait_until_async(lambda: len(broker.requests(HEARTBEAT)) > 4, 30, "heartbeats")
            broker.gates[SYNC].set()
            await member.recorder.called("joined")
            await wait_until_async(lambda: len(broker.requests(HEARTBEAT)) > 8, 30, "more heartbeats")
            assert len(ids(broker)) == 1


# -- heartbeats -------------------------------------------------------------------------------------------------------


async def test_a_rebalance_is_joined_and_counts_as_a_proof_of_life() -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        member.recorder.block = "prepare"
        broker.codes[HEARTBEAT] = [27] * 5
        await member.recorder.called("prepare", 2)
        await wait_until_async(lambda: member.recorder.proofs.count(True) == 5, 30, "proofs while preparing")
        assert member.group.identity == Identity(1, "member-1", None)  # commits go on under it
        member.recorder.go.set()
        await member.recorder.called("joined 2")
        assert ids(broker)[-1] == "member-1"
        assert "lost" not in member.recorder.calls


@pytest.mark.parametrize(("code", "rejoins_as"), [(22, "member-1"), (25, ""), (110, "")])
async def test_a_member_that_the_group_left_behind_loses_everything_and_joins_again(code: int, rejoins_as: str) -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        broker.codes[HEARTBEAT] = [code]
        await member.recorder.called("joined 2")
        assert ids(broker)[2] == rejoins_as
        assert member.recorder.calls[3:5] == ["lost", "prepare"]


@pytest.mark.parametrize("api", [JOIN, SYNC, HEARTBEAT])
async def test_a_fenced_instance_stops_and_says_so(api: int) -> None:
    async with GroupBroker() as broker, Member(broker, instance_id="one") as member:
        await member.recorder.called("joined")
        broker.codes[api] = [82]
        member.group.request_rejoin("a test")
        await member.task
        assert member.group.phase is GroupPhase.CLOSED
        assert "lost" in member.recorder.calls
        assert "instance 'one'" in str(member.recorder.errors[0])
        assert broker.requests(LEAVE) == []


@pytest.mark.parametrize("code", [14, 15, 16])
async def test_a_coordinator_that_is_loading_or_moved_costs_nothing(code: int) -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        broker.codes[HEARTBEAT] = [code]
        beats, asked = len(broker.requests(HEARTBEAT)), broker.count(FIND)
        await wait_until_async(lambda: len(broker.requests(HEARTBEAT)) > beats + 3, 30, "more heartbeats")
        assert (broker.count(FIND) > asked) == (code != 14)
        assert member.group.identity == Identity(1, "member-1", None)
        assert len(ids(broker)) == 2


async def test_a_heartbeat_that_was_refused_is_no_acknowledgement() -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        broker.codes[HEARTBEAT] = [30] * 100
        await wait_until_async(lambda: member.recorder.errors, 30, "the error")
        received = member.group.heartbeat.last_received
        await wait_until_async(lambda: len(member.recorder.errors) > 2, 30, "more errors")
        assert member.group.heartbeat.last_received == received


@pytest.mark.parametrize("join", [0, 3, 9])
async def test_a_first_join_that_a_hung_coordinator_holds_is_given_up(join: int) -> None:
    """No heartbeats go out then. None go out either if the coordinator assigns member ids first, before the first
    generation."""
    async with (
        GroupBroker({JOIN: (0, join)}) as old,
        GroupBroker({JOIN: (0, join)}) as new,
        Member(old, wait=False, session_timeout_s=0.6) as member,
    ):
        find = old.handlers[FIND]
        new.generation = 5
        old.silent = {JOIN}
        await wait_until_async(lambda: ids(old), 30, "the join that nobody answers")
        asked = old.count(FIND)
        await wait_until_async(lambda: old.count(FIND) > asked + 3, 30, "questions whether it lives")
        assert len(ids(old)) == 1  # it does, so the join may take long

        def moved(request: Any) -> Any:
            answer = find(request)
            answer.node_id, answer.port = 2, new.port
            return answer

        hung = asyncio.Event()

        async def first_hangs(request: Any) -> Any:
            if not hung.is_set():
                hung.set()
                return SILENT
            return moved(request)

        old.handlers[FIND] = first_hangs
        await member.joined
        assert len(ids(old)) == 1
        assert ids(new)[0] == ""
        assert member.group.coordinator == 2


async def test_a_first_join_goes_on_while_a_silent_coordinator_has_no_successor() -> None:
    async with GroupBroker() as broker, Member(broker, wait=False, session_timeout_s=0.3) as member:
        broker.gates[JOIN] = asyncio.Event()
        await wait_until_async(lambda: ids(broker), 30, "the join")
        find = broker.handlers[FIND]
        broker.handlers[FIND] = lambda request: SILENT
        asked = broker.count(FIND)
        await wait_until_async(lambda: broker.count(FIND) > asked + 2, 30, "questions that nobody answers")
        broker.handlers[FIND] = find
        await wait_until_async(lambda: member.group.coordinator is not None, 30, "an answer")
        assert len(ids(broker)) == 1
        broker.gates[JOIN].set()
        await member.joined


# -- the user's silence -----------------------------------------------------------------------------------------------


async def test_an_idle_user_who_is_asked_to_give_up_partitions_does_not_hold_up_the_group() -> None:
    async with GroupBroker() as broker, Member(broker, max_poll_interval_s=60.0) as member:
        await member.recorder.called("joined")
        member.recorder.block = "prepare"
        member.group.request_rejoin("a test")
        await member.recorder.called("prepare", 2)
        member.group.heartbeat.max_poll_interval_s = 0.3
        await member.recorder.called("lost")
        assert "prepare cancelled" in member.recorder.calls
        await wait_until_async(lambda: member.group.phase is GroupPhase.AWAY, 30, "away")


# -- leaving ----------------------------------------------------------------------------------------------------------


async def test_leaving_gives_everything_up_first_and_heartbeats_go_on_meanwhile() -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        member.recorder.block = "leaving"
        member.group.leave()
        await member.recorder.called("leaving")
        beats = len(broker.requests(HEARTBEAT))
        await wait_until_async(lambda: len(broker.requests(HEARTBEAT)) > beats + 2, 30, "heartbeats")
        assert broker.requests(LEAVE) == []
        member.recorder.go.set()
        await member.task
        (leave,) = broker.requests(LEAVE)
        assert [m.member_id for m in leave.members] == ["member-1"]
        assert member.group.identity is None


@pytest.mark.parametrize("code", [14, 15, 16, 25, 82])
async def test_a_leave_is_repeated_where_that_helps(code: int) -> None:
    async with GroupBroker() as broker:
        async with Member(broker):
            broker.codes[LEAVE] = [code]
        assert len(broker.requests(LEAVE)) == (1 if code in (25, 82) else 2)


async def test_a_static_member_never_leaves() -> None:
    async with GroupBroker() as broker:
        async with Member(broker, instance_id="one") as member:
            await member.recorder.called("joined")
            assert broker.requests(JOIN)[0].group_instance_id == "one"
            assert broker.requests(SYNC)[0].group_instance_id == "one"
        assert broker.requests(LEAVE) == []


async def test_leaving_does_not_wait_for_a_join_under_way() -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        broker.gates[JOIN] = asyncio.Event()
        member.group.request_rejoin("a test")
        await wait_until_async(lambda: len(ids(broker)) == 3, 30, "the join")
        member.group.leave()
        await member.task
        assert len(broker.requests(LEAVE)) == 1


async def test_leaving_in_a_first_join_of_an_old_broker_leaves_no_unknown_member_behind() -> None:
    async with GroupBroker({JOIN: (0, 3)}) as broker:
        broker.gates[JOIN] = asyncio.Event()
        async with Member(broker, wait=False) as member:
            await wait_until_async(lambda: len(ids(broker)) == 1, 30, "the join")
            member.group.leave()
            asyncio.get_running_loop().call_later(0.05, broker.gates[JOIN].set)
            await member.task
        assert [m.member_id for m in broker.requests(LEAVE)[0].members] == ["member-1"]


# -- what commits say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "lost"), [(22, True), (25, True), (27, False)])
async def test_a_refused_commit_has_the_member_join_again(code: int, lost: bool) -> None:
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        identity = member.group.identity
        assert identity is not None
        # of an earlier membership: irrelevant for this one, and not repeated
        assert not member.group.refused(code, Identity(0, identity.member_id, None))
        assert member.group.identity == identity
        assert member.group.refused(code, identity) is not lost
        assert (member.group.identity is None) == lost
        await member.recorder.called("joined 2")
        assert ("lost" in member.recorder.calls) == lost


@pytest.mark.parametrize(("code", "lost"), [(22, False), (25, True), (27, False), (82, True)])
async def test_a_commit_that_meets_a_join_under_way_belongs_to_the_next_generation(code: int, lost: bool) -> None:
    """The coordinator starts the new generation before its JoinGroup response arrives."""
    async with GroupBroker() as broker, Member(broker) as member:
        await member.recorder.called("joined")
        identity = member.group.identity
        assert identity is not None
        broker.gates[JOIN] = asyncio.Event()
        member.group.request_rejoin("a test")
        await wait_until_async(lambda: len(ids(broker)) == 3, 30, "a join under way")
        assert member.group.phase is GroupPhase.JOINING
        assert member.group.refused(code, identity) is not lost
        assert member.group.identity == (None if lost else identity)
        broker.gates[JOIN].set()
        if code == 82:
            await member.task
            return
        await member.recorder.called("joined", 2)
        assert ("lost" in member.recorder.calls) == lost
        # sent before the answer came, refused after it
        assert member.group.refused(code, identity) is not lost
        assert member.group.identity is not None


# -- phases and settings ----------------------------------------------------------------------------------------------


async def test_every_move_is_legal_or_refused() -> None:
    async with GroupBroker() as broker:
        group = Member(broker).group
        for start, to in itertools.product(GroupPhase, GroupPhase):
            group.phase = start
            if to in MOVES[start]:
                group.move(to, "a test")
                assert group.phase is to
            else:
                with pytest.raises(RuntimeError, match=f"{start.name} -> {to.name}"):
                    group.move(to, "a test")
                assert group.phase is start


def test_a_heartbeat_interval_of_more_than_half_the_session_timeout_is_refused() -> None:
    with pytest.raises(ConfigError, match="half of session_timeout_s"):
        KafkaSettings(heartbeat_interval_s=6.0)
