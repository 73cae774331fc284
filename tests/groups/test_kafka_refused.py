"""Groups without authorization on real brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka.admin import ResourceType

from allocator.errors import BrokerError, CommitFailed, Fenced
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata
from tests.groups.kafka_members import ClassicMember, shared
from tests.groups.members import History
from tests.secured import AUTHORIZERS, USER, by_sasl, denied, with_an_authorizer

pytestmark = [pytest.mark.long, pytest.mark.deadline(240)]

REFUSED = 30  # group authorization failed


@pytest.mark.parametrize("kafka", AUTHORIZERS)
async def test_a_group_without_permission_is_reported_and_continues_once_it_is_granted(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await with_an_authorizer(cluster_factory, kafka)
    bootstrap, counts = by_sasl(cluster), {unique_name(): 4}
    for topic, count in counts.items():
        await asyncio.to_thread(cluster.create_topic, topic, count)
    history = History()
    a, b, late = (
        ClassicMember(bootstrap, group, counts, name=name, history=history, security=USER)
        for name in ("a", "b", "late")
    )
    async with a, b:
        await shared([a, b], counts)
        first = min(a.held)
        await a.offsets.commit({first: OffsetAndMetadata(1, "", -1)})
        async with denied(cluster, ResourceType.GROUP, group):
            for each in (a, b):
                await wait_until_async(lambda each=each: each.owner.errors, 30, "the refusal")
                assert {error.code for error in each.owner.errors} == {REFUSED}
                assert group in str(each.owner.errors[0])
            with pytest.raises(CommitFailed, match="GROUP_AUTHORIZATION_FAILED") as failure:
                await a.offsets.commit({first: OffsetAndMetadata(2, "", -1)})
            assert not isinstance(failure.value, Fenced)  # the group may not have gone on
            with pytest.raises(BrokerError, match=group) as refused:
                await late.__aenter__()
            assert refused.value.code == REFUSED
            await late.client.close()
            for each in (a, b):  # no member may act in a group that does not know it
                await wait_until_async(lambda each=each: not each.membership.may_act(), 30, "the lease to lapse")
        await wait_until_async(lambda: a.membership.may_act() and b.membership.may_act(), 60, "both to act")
        await shared([a, b], counts, 60)
        assert (await a.offsets.fetch([first]))[first].offset == 1
        await a.offsets.commit({min(a.held): OffsetAndMetadata(3, "", -1)})
    assert history.overlaps() == []
