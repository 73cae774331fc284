"""Commits of a group member, against a coordinator that checks member id and generation."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.core.client.client import KafkaClient
from allocator.core.client.offset_messages import Identity
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import Fenced
from allocator.types import TopicPartition
from tests.offsets.test_offsets import A, B, Coordinator, at, client_of


class Member:
    """A committer controlled by the test: `next` has its identity after each refusal."""

    def __init__(self, *then: Identity | None) -> None:
        self.identity: Identity | None = Identity(5, "me", "one")
        self.then = list(then)
        self.holds = {A, B}
        self.refusals: list[tuple[int, Identity]] = []

    def may_commit(self, partition: TopicPartition) -> bool:
        return partition in self.holds

    def refused(self, code: int, sent: Identity) -> bool:
        self.refusals.append((code, sent))
        if self.then:
            self.identity = self.then.pop(0)
        return self.identity is not None


def offsets(client: KafkaClient, member: Member) -> GroupOffsets:
    return GroupOffsets(client, "g", timeout_s=10, committer=member)


def identities(broker: Coordinator) -> list[tuple[int, str, str | None]]:
    commits: list[Any] = [request for request in broker.seen if request.API_KEY == 8]
    return [(r.generation_id_or_member_epoch, r.member_id, r.group_instance_id) for r in commits]


async def test_without_a_membership_nothing_is_sent() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        member = Member()
        member.identity = None
        with pytest.raises(Fenced, match="not a member"):
            await offsets(client, member).commit({A: at(1)})
        assert identities(broker) == []


async def test_a_partition_that_the_member_does_not_own_is_omitted_and_named() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        member = Member()
        member.holds = {A}
        with pytest.raises(Fenced, match=r"t:1 \(this member does not hold it"):
            await offsets(client, member).commit({A: at(1), B: at(2)})
        assert broker.stored == {A: at(1)}


@pytest.mark.parametrize("code", [22, 25, 69, 82, 110])
async def test_a_fenced_member_gets_the_error_and_does_not_retry(code: int) -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        broker.codes[A] = [code]
        member = Member(None)
        with pytest.raises(Fenced) as failure:
            await offsets(client, member).commit({A: at(1)})
        assert not failure.value.retriable
        assert member.refusals == [(code, Identity(5, "me", "one"))]
        assert len(identities(broker)) == 1


async def test_a_commit_rejected_during_a_rebalance_is_repeated_in_the_next_generation() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        broker.codes[A] = [27, 27]
        member = Member(Identity(5, "me"), Identity(6, "me"))
        await offsets(client, member).commit({A: at(1)})
        assert identities(broker) == [(5, "me", "one"), (5, "me", None), (6, "me", None)]


async def test_a_commit_of_an_ended_generation_is_repeated_only_for_partitions_still_owned() -> None:
    async with Coordinator() as broker, client_of(broker) as client:
        broker.codes = {A: [22], B: [22]}
        member = Member(Identity(6, "me"))
        refused = member.refused

        def rebalanced(code: int, sent: Identity) -> bool:
            member.holds = {B}
            return refused(code, sent)

        member.refused = rebalanced  # type: ignore[method-assign]
        with pytest.raises(Fenced, match="t:0"):
            await offsets(client, member).commit({A: at(1), B: at(2)})
        assert broker.stored == {B: at(2)}
