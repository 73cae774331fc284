"""Kip848Membership against a scripted coordinator."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parent.parent / room) for room in ("wire", "coordinator")]

from kafka.protocol.consumer import OffsetCommitResponse
from kip848_fake import FAST, Kip848Broker, ids, owned, topic_id
from kip848_members import Kip848Member

from allocator.core.client.client import KafkaClient
from allocator.errors import BrokerError, BrokersUnavailable, ConfigError, InstanceIdInUse
from allocator.protocols.kip848.membership import Kip848Membership
from allocator.protocols.kip848.settings import Kip848Settings
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.deadline(90)

COMMIT = 8


def parts(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", n) for n in numbers)


def member(broker: Kip848Broker, **options: Any) -> Kip848Member:
    return Kip848Member(broker.address, "g", options.pop("topics", ["t"]), **{**FAST, **options})


async def holds(ours: Kip848Member, expected: frozenset[TopicPartition]) -> None:
    await wait_until_async(lambda: ours.held == expected, 30, lambda: f"{sorted(ours.held)} to be {sorted(expected)}")


async def test_a_member_joins_gets_its_partitions_and_gives_them_up_when_it_leaves() -> None:
    async with Kip848Broker() as broker:
        async with member(broker) as ours:
            assert ours.held == ours.membership.held == parts(0, 1, 2)
            assert ours.membership.generation == 1
            assert ours.membership.may_act()
        assert [what for _, _, what, _ in ours.owner.history.events] == ["begin", "end"]
        assert not ours.membership.may_act()
        assert ours.membership.ended is None


async def test_a_topic_that_was_deleted_and_made_anew_is_another_one() -> None:
    async with Kip848Broker() as broker, member(broker) as ours:
        broker.ids["t"] = topic_id("another")
        broker.given = ids(0, topic="another")
        await holds(ours, parts(0))
        assert [what for _, _, what, _ in ours.owner.history.events] == ["begin", "end", "begin"]
        await wait_until_async(lambda: ids(0, topic="another") in map(owned, broker.beats), 30, "the heartbeat")


async def test_a_topic_whose_name_is_not_known_yet_is_begun_with_when_it_is() -> None:
    async with Kip848Broker() as broker:
        broker.given = ids(0, topic="new")
        async with member(broker, topics=["t", "new"]) as ours:
            assert ours.held == frozenset()
            broker.topics["new"] = [1]
            await holds(ours, frozenset({TopicPartition("new", 0)}))


async def test_a_commit_of_another_epoch_is_made_under_the_new_one() -> None:
    async with Kip848Broker() as broker:
        commits: list[Any] = []

        def commit(request: Any) -> Any:
            commits.append(request)
            code = 0 if request.generation_id_or_member_epoch == broker.epoch else 113
            response = OffsetCommitResponse
            part = response.OffsetCommitResponseTopic.OffsetCommitResponsePartition(partition_index=0, error_code=code)
            topic = response.OffsetCommitResponseTopic(name="t", partitions=[part])
            return response(throttle_time_ms=0, topics=[topic], version=request.API_VERSION)

        broker.handlers[COMMIT] = commit
        async with member(broker) as ours:
            broker.interval_s = 600.0
            await wait_until_async(lambda: ours.membership.group.heartbeat.interval_s > 0.1, 30, "slow heartbeats")
            broker.epoch = 7
            await ours.offsets.commit({TopicPartition("t", 0): OffsetAndMetadata(3, "", -1)})
            assert {c.API_VERSION for c in commits} == {9}
            assert [c.generation_id_or_member_epoch for c in commits] == [1] * (len(commits) - 1) + [7]
            assert {c.member_id for c in commits} == {ours.membership.member_id}


async def test_kafkas_own_topics_that_match_are_left_alone() -> None:
    async with Kip848Broker() as broker:
        broker.topics["__consumer_offsets"] = [1]
        broker.given = ids(0) | ids(0, topic="__consumer_offsets")
        async with member(broker, topics=[], pattern=".*") as ours:
            assert ours.held == parts(0)
            # the topics may be known after the first heartbeat
            subscribed = [set(beat.subscribed_topic_names or ()) for beat in broker.beats]
            assert set().union(*subscribed) == {"t"}
            await wait_until_async(lambda: broker.given in map(owned, broker.beats), 30, "the heartbeat")
            assert [what for _, _, what, _ in ours.owner.history.events] == ["begin"]
        async with member(broker, topics=["t", "__consumer_offsets"]) as ours:
            assert len(ours.held) == 2  # asked for by name


async def test_a_subscription_that_changes_during_a_heartbeat_is_not_lost() -> None:
    async with Kip848Broker() as broker, member(broker) as ours:
        broker.interval_s = 600.0
        await wait_until_async(lambda: ours.membership.group.heartbeat.interval_s > 0.1, 30, "slow heartbeats")
        heartbeat, go = broker.handlers[68], asyncio.Event()

        async def held(request: Any) -> Any:
            await go.wait()
            return await heartbeat(request)

        broker.handlers[68] = held
        seen = len(broker.beats)
        ours.membership.subscribe(["u"])
        await wait_until_async(lambda: len(broker.beats) > seen, 30, "the heartbeat")
        ours.membership.subscribe(["v"])
        go.set()
        await wait_until_async(lambda: broker.beats[-1].subscribed_topic_names == ["v"], 30, "the other one")


async def test_join_says_what_prevents_it() -> None:
    async with Kip848Broker() as broker, KafkaClient(broker.address) as client:
        find = broker.handlers[10]

        def nobody(request: Any) -> Any:
            answer = find(request)
            answer.error_code = 15
            return answer

        broker.handlers[10] = nobody
        ours = member(broker)
        settings = Kip848Settings(topics=frozenset({"t"}), connect_timeout_s=2)
        membership = Kip848Membership(client, "g", ours.owner, settings)
        with pytest.raises(BrokersUnavailable, match=r"within 2 s; last: .* cannot find .* offsets topic"):
            await membership.join()
        broker.handlers[10] = find
        broker.codes = [30]
        membership = Kip848Membership(client, "g", ours.owner, replace(settings, connect_timeout_s=10))
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            await membership.join()
        broker.codes = [111] * 10_000
        beats = len(broker.beats)
        membership = Kip848Membership(client, "g", ours.owner, settings)
        with pytest.raises(InstanceIdInUse, match=r"within 2 s: another process has its instance id"):
            await membership.join()
        assert len(broker.beats) - beats < 10, "the pauses between the attempts grow"
        with pytest.raises(ConfigError, match="not a regular expression"):
            Kip848Membership(client, "g", ours.owner, Kip848Settings(pattern="["))
