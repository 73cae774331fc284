"""Groups without authorization, and groups without an offsets topic."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)
from kafka_members import ClassicMember, coordinator_of, shared
from members import History

from allocator.errors import BrokerError, BrokersUnavailable, CommitFailed, Fenced
from allocator.testing import LocalCluster, wait_until, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.deadline(240)

AUTHORIZERS = [
    ("3.9.1", "kafka.security.authorizer.AclAuthorizer"),
    pytest.param(NEWEST, "org.apache.kafka.metadata.authorizer.StandardAuthorizer", marks=pytest.mark.long),
    pytest.param("2.8.2", "kafka.security.authorizer.AclAuthorizer", marks=pytest.mark.long),
    pytest.param("1.1.1", "kafka.security.auth.SimpleAclAuthorizer", marks=pytest.mark.long),
]
USER = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "member",
    "sasl_plain_password": "secret",
}
REFUSED = 30  # group authorization failed


async def with_an_authorizer(cluster_factory: Any, kafka: str, authorizer: str) -> LocalCluster:
    """Anonymous clients (the broker and the tests) may do everything; ACLs apply to SASL clients."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_member="secret";'
    listeners = "PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{port2}"
    settings = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
        "authorizer.class.name": authorizer,
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka=kafka, broker_config=settings)
    return cluster


def by_sasl(cluster: LocalCluster) -> str:
    settings = (cluster.brokers[0].directory / "server.properties").read_text()
    found = re.search(r"SASL_PLAINTEXT://(127\.0\.0\.1:\d+)", settings)
    assert found is not None
    return found[1]


@contextlib.asynccontextmanager
async def denied(cluster: LocalCluster, group: str) -> AsyncIterator[None]:
    """Denies the group to `USER` until the block ends."""
    rule = {
        "principal": "User:member",
        "host": "*",
        "operation": ACLOperation.ALL,
        "permission_type": ACLPermissionType.DENY,
        "resource_pattern": ResourcePattern(ResourceType.GROUP, group),
    }
    admin = await asyncio.to_thread(lambda: KafkaAdminClient(bootstrap_servers=cluster.bootstrap))
    try:
        assert not (await asyncio.to_thread(admin.create_acls, [ACL(**rule)]))["failed"]
        yield
    finally:
        ((_, deleted, error),) = await asyncio.to_thread(admin.delete_acls, [ACLFilter(**rule)])
        await asyncio.to_thread(admin.close)
    assert len(deleted) == 1, error


@pytest.mark.parametrize(("kafka", "authorizer"), AUTHORIZERS)
async def test_a_group_without_permission_is_reported_and_continues_once_it_is_granted(
    kafka: str, authorizer: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    cluster = await with_an_authorizer(cluster_factory, kafka, authorizer)
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
        async with denied(cluster, group):
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


async def test_a_group_is_joined_once_the_offsets_topic_can_be_created(
    cluster_factory: Any, unique_name: Any, group: str
) -> None:
    """The first group creates it, with more replicas than there are brokers."""
    settings = {"offsets.topic.num.partitions": 3}  # a separate cluster, where no group was before
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, brokers=2, broker_config=settings)
    absent, topic = cluster.brokers[1], unique_name()
    await asyncio.to_thread(absent.kill)
    await asyncio.to_thread(
        wait_until,  # until then the dead broker gets a replica like any other
        lambda: all(absent.id not in known.brokers for known in cluster.metadata()),
        60,
        "its absence to be noticed",
    )
    await asyncio.to_thread(cluster.create_topic, topic, 2)
    hasty = ClassicMember(cluster.bootstrap, group, [topic], connect_timeout_s=2.0)
    with pytest.raises(BrokersUnavailable, match="check that its offsets topic is available") as failure:
        await hasty.__aenter__()
    assert failure.value.retriable
    await hasty.client.close()
    patient = ClassicMember(cluster.bootstrap, group, [topic], connect_timeout_s=None)
    async with contextlib.AsyncExitStack() as stack:
        joining = asyncio.ensure_future(stack.enter_async_context(patient))
        try:
            await asyncio.to_thread(absent.start)
        finally:
            await joining
        await shared([patient], {topic: 2}, 60)


@pytest.mark.long
@pytest.mark.parametrize("kafka", ["2.8.2", "3.9.1"])
async def test_a_group_whose_offsets_partition_loses_its_leader_waits_and_goes_on(
    kafka: str, cluster_factory: Any, unique_name: Any, group: str
) -> None:
    """One broker stays, and reports that the group has no coordinator."""
    cluster: LocalCluster = await asyncio.to_thread(cluster_factory, kafka=kafka, brokers=2)
    topic = unique_name()
    await asyncio.to_thread(cluster.create_topic, topic, 4, 2)
    history = History()
    async with (
        ClassicMember(cluster.bootstrap, group, [topic], name="a", history=history) as a,
        ClassicMember(cluster.bootstrap, group, [topic], name="b", history=history) as b,
    ):
        await shared([a, b], {topic: 4})
        leader = await coordinator_of(cluster, group)
        (follower,) = (broker for broker in cluster.brokers if broker is not leader)
        await asyncio.to_thread(follower.kill)
        first = min(a.held)
        # waits until the follower counts no more: it cannot become leader then
        await a.offsets.commit({first: OffsetAndMetadata(5, "", -1)})
        await asyncio.to_thread(leader.kill)
        await asyncio.to_thread(follower.start)
        await wait_until_async(lambda: a.owner.suspensions and b.owner.suspensions, 60, "both to pause")
        assert not a.membership.may_act()
        assert not b.membership.may_act()
        with pytest.raises(CommitFailed) as failure:
            await a.offsets.commit({first: OffsetAndMetadata(6, "", -1)})
        assert not isinstance(failure.value, Fenced)
        await asyncio.to_thread(leader.start)
        await wait_until_async(lambda: a.membership.may_act() and b.membership.may_act(), 90, "both to act")
        await shared([a, b], {topic: 4}, 60)
        assert (await a.offsets.fetch([TopicPartition(topic, first.partition)]))[first].offset == 5
    assert history.overlaps() == []
