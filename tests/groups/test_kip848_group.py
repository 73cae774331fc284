"""Kip848Group against a scripted coordinator."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from fake_broker import HANG_UP
from kip848_fake import CONFIGS, HEARTBEAT, Kip848Broker, Member, ids, owned

from allocator.core.offsets.messages import Identity
from allocator.errors import BrokerError, ConfigError
from allocator.protocols.kip848.group import Kip848Phase
from allocator.protocols.kip848.messages import IdPartitions

pytestmark = pytest.mark.deadline(90)


async def test_a_member_joins_takes_what_it_is_given_and_leaves() -> None:
    async with Kip848Broker() as broker:
        async with Member(broker, rack="r1", server_assignor="range", rebalance_timeout_s=7) as m:
            assert m.recorder.calls == [("take", ids(0, 1, 2))]
            assert m.group.phase is Kip848Phase.STABLE
            assert m.group.identity == Identity(1, m.group.member_id, None, by_epoch=True)
            first = broker.beats[0]
            assert (first.member_epoch, first.member_id) == (0, m.group.member_id)
            assert (first.rack_id, first.server_assignor, first.rebalance_timeout_ms) == ("r1", "range", 7000)
            assert (first.subscribed_topic_names, owned(first)) == (["t"], frozenset())
        assert m.recorder.names == ["take", "release"]
        assert (-1, m.group.member_id) in [(beat.member_epoch, beat.member_id) for beat in broker.beats]
        assert m.group.identity is None


async def test_heartbeats_say_what_is_new_and_no_more() -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        await m.beaten(4)
        said = [owned(beat) for beat in broker.beats[1:]]
        assert said[0] == ids(0, 1, 2)
        assert set(said[1:]) == {None}
        assert all(beat.subscribed_topic_names is None for beat in broker.beats[1:])
        m.recorder.subscription = frozenset({"t", "u"})
        m.group.changed()
        await m.until(lambda: ["t", "u"] in [b.subscribed_topic_names for b in broker.beats], "the subscription")


async def test_what_moves_is_released_then_said_and_only_then_is_more_taken() -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        m.recorder.block = "release"
        broker.given = ids(0)
        await m.until(lambda: "release" in m.recorder.names, "the release")
        await m.beaten(3)
        # heartbeats go on and release nothing
        assert all(owned(beat) in (None, ids(0, 1, 2)) for beat in broker.beats[1:])
        assert m.group.identity is not None
        broker.given = ids(0, 3)
        m.recorder.go.set()
        await m.until(lambda: m.recorder.held == ids(0, 3), "the new one")
        assert m.recorder.calls[1:] == [("release", ids(1, 2)), ("take", ids(3))]
        await m.until(lambda: ids(0, 3) in map(owned, broker.beats), "the heartbeat about it")


async def test_nothing_new_is_taken_before_the_coordinator_has_heard_of_the_release() -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        take, heard = m.recorder.take, []

        async def listening(given: IdPartitions) -> bool:
            heard.append([owned(beat) for beat in broker.beats])
            return await take(given)

        m.recorder.take = listening  # type: ignore[method-assign]
        broker.given = ids(0, 3)
        await m.until(lambda: m.recorder.names == ["take", "release", "take"], "taking")
        assert ids(0, 3) in heard[0]


async def test_what_is_given_back_while_it_is_released_is_begun_with_anew() -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        m.recorder.block = "release"
        broker.given = ids(0)
        await m.until(lambda: "release" in m.recorder.names, "the release")
        broker.given = ids(0, 1, 2)
        await m.beaten(2)
        m.recorder.go.set()
        await m.until(lambda: m.recorder.names == ["take", "release", "take"], "all again")
        assert m.recorder.calls[1:] == [("release", ids(1, 2)), ("take", ids(1, 2))]
        await m.beaten(2)
        assert all(1 in {p.partition for p in each} for each in map(owned, broker.beats[1:]) if each is not None)


async def test_what_was_given_counts_as_owned_before_it_can_be_begun_with() -> None:
    """Otherwise a heartbeat without it would make the coordinator reassign it while it starts."""
    async with Kip848Broker() as broker, Member(broker) as m:
        m.recorder.unnamed = ids(3)
        broker.given = ids(0, 1, 2, 3)
        await m.until(lambda: ids(0, 1, 2, 3) in map(owned, broker.beats), "the heartbeat")
        # the heartbeat may be sent before the member has tried to begin; from then on it stays so, for 3 has no name
        await m.until(lambda: m.group.phase is Kip848Phase.RECONCILING, "the attempt to begin")
        m.recorder.unnamed = frozenset()
        await m.until(lambda: m.recorder.held == ids(0, 1, 2, 3), "all to be taken")


@pytest.mark.parametrize("code", [25, 69, 110])
async def test_a_member_that_was_removed_loses_everything_and_joins_again_under_its_id(code: int) -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        name = m.group.member_id
        broker.codes = [code]
        await m.until(lambda: m.recorder.names == ["take", "lost", "take"], "the loss")
        again = [beat for beat in broker.beats if beat.member_epoch == 0][-1]
        assert (again.member_id, owned(again)) == (name, frozenset())
        assert m.group.epoch == 2
        assert m.recorder.errors == []


async def test_whom_the_coordinator_still_counts_as_a_member_of_an_earlier_life_leaves_first() -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        broker.codes = [110, 110]
        await m.until(lambda: m.recorder.names == ["take", "lost", "take"], "the loss")
        assert -1 in [beat.member_epoch for beat in broker.beats]
        assert m.recorder.errors == []


async def test_an_instance_that_is_not_released_yet_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with Kip848Broker() as broker:
        broker.codes = [111] * 5
        began = time.monotonic()
        with caplog.at_level(logging.INFO, "allocator"):
            async with Member(broker, instance_id="i", retry_backoff_s=0.01) as m:
                assert m.recorder.held == ids(0, 1, 2)
        assert time.monotonic() - began >= 0.01 * (1 + 2 + 4 + 8 + 16)
        assert caplog.text.count("predecessor") == 1
        assert "heartbeat failed" not in caplog.text


async def test_after_a_failure_everything_is_said_again() -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        await m.beaten(3)
        broker.codes = [HANG_UP]
        await m.until(lambda: not broker.codes, "the failure")
        await m.beaten(3)
        full = [beat for beat in broker.beats[1:] if beat.rebalance_timeout_ms != -1]
        assert [(owned(beat), beat.subscribed_topic_names, beat.member_epoch) for beat in full] == [
            (ids(0, 1, 2), ["t"], 1)
        ]


async def test_an_assignment_whose_answer_was_lost_counts_from_before() -> None:
    """The coordinator's clock for a revocation began with the lost answer: the next one must not prove anything."""
    async with Kip848Broker() as broker, Member(broker) as m:
        await m.beaten(3)
        m.recorder.block = "release"
        proofs, before = m.recorder.proofs, []
        broker.when_lost = lambda: before.append(len(proofs))
        broker.lost, broker.given = 1, ids(0)
        await m.until(lambda: "release" in m.recorder.names, "the release")
        await m.until(lambda: len(proofs) > before[0] + 2, "heartbeats")
        assert proofs[: before[0]] == [False] * before[0]
        assert all(proofs[before[0] :])
        m.recorder.go.set()
        await m.until(lambda: proofs[-1] is False, "a proof")


async def test_a_revocation_counts_from_the_heartbeat_before_its_answer() -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        release, told = m.recorder.release, 0

        async def released(taken: Any) -> None:
            nonlocal told
            told = len(m.recorder.proofs)
            await release(taken)

        m.recorder.release = released  # type: ignore[method-assign]
        m.recorder.block = "release"
        broker.given = ids(0)
        await m.until(lambda: told, "the release")
        await m.beaten(3)
        assert m.recorder.proofs[:told] == [False] * told  # that which brought it was before it
        await m.until(lambda: len(m.recorder.proofs) > told, "more proofs")
        assert all(m.recorder.proofs[told:])


async def test_a_preview_that_does_not_repeat_the_assignment_proves_nothing_after_a_failure() -> None:
    async with Kip848Broker(newest=0) as broker, Member(broker) as m:
        broker.repeats = False
        await m.beaten(3)
        m.recorder.proofs.clear()
        broker.lost = 1
        await m.until(lambda: True in m.recorder.proofs, "the heartbeat after it")
        assert m.recorder.proofs.count(True) == 1


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
async def test_what_cannot_succeed_is_raised_by_a_first_join(code: int, kind: Any, why: str) -> None:
    async with Kip848Broker() as broker:
        broker.codes = [code]
        async with Member(broker, wait=False, server_assignor="best") as m:
            with pytest.raises(kind, match=f"(?s){why}.*because"):
                await m.joined
            await m.task
        assert len(broker.beats) <= 2  # and a farewell


async def test_the_session_timeout_is_the_brokers() -> None:
    async with Kip848Broker() as broker:
        broker.session_s, broker.interval_s = 9.0, 0.03
        async with Member(broker) as m:
            assert (m.group.heartbeat.session_timeout_s, m.group.heartbeat.interval_s) == (9.0, 0.03)
        assert broker.count(CONFIGS) == 1


async def test_where_it_may_not_be_asked_for_only_the_interval_counts(caplog: pytest.LogCaptureFixture) -> None:
    async with Kip848Broker() as broker:
        broker.session_s, broker.interval_s = None, 0.9
        with caplog.at_level(logging.WARNING, "allocator"):
            async with Member(broker) as m:
                assert m.group.heartbeat.session_timeout_s == 0.9
                assert m.group.heartbeat.interval_s == pytest.approx(0.3)
        assert "DESCRIBE_CONFIGS" in caplog.text


async def test_a_user_who_waits_to_join_is_not_silent() -> None:
    async with Kip848Broker() as broker, Member(broker, wait=False, max_poll_interval_s=0.1) as m:
        m.recorder.block = "take"
        await m.until(lambda: len(broker.beats) > 20, "the first assignment to take four times as long as polls may")
        m.recorder.go.set()
        await m.joined
        await m.until(lambda: m.group.phase is Kip848Phase.AWAY, "leaving")
        assert m.recorder.names == ["take", "lost"]


async def test_a_refused_commit_says_something_of_the_membership() -> None:
    async with Kip848Broker() as broker, Member(broker) as m:
        broker.interval_s = 600.0
        await m.beaten()
        me = m.group.identity
        assert me is not None
        seen = len(broker.beats)
        assert not m.group.refused(113, Identity(0, me.member_id, None, by_epoch=True))  # of an earlier life
        assert m.group.refused(113, me)
        await m.until(lambda: len(broker.beats) > seen, "a heartbeat at once")
        assert m.recorder.names == ["take"]
        assert not m.group.refused(25, me)
        assert m.group.identity is None
        await m.until(lambda: m.recorder.names == ["take", "lost", "take"], "the loss")


async def test_leaving_before_the_join_was_answered_leaves_no_member_behind() -> None:
    async with Kip848Broker() as broker:
        gate = asyncio.Event()
        answer = broker.heartbeat

        async def held_back(request: Any) -> Any:
            if request.member_epoch == 0:
                await gate.wait()
            return await answer(request)

        broker.handlers[HEARTBEAT] = held_back
        async with Member(broker, wait=False) as m:
            await m.until(lambda: broker.beats, "the join")
            asyncio.get_running_loop().call_later(0.05, gate.set)
        assert [beat.member_epoch for beat in broker.beats] == [0, -1]
