"""Groups without authorization on real brokers."""

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

from allocator.errors import BrokerError, CommitFailed, Fenced
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata
from tests.groups.kafka_members import ClassicMember, shared
from tests.groups.members import History

pytestmark = [pytest.mark.long, pytest.mark.deadline(240)]

AUTHORIZERS = [
    ("3.9.1", "kafka.security.authorizer.AclAuthorizer"),
    (NEWEST, "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("2.8.2", "kafka.security.authorizer.AclAuthorizer"),
    ("1.1.1", "kafka.security.auth.SimpleAclAuthorizer"),
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
