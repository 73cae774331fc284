"""Brokers whose second port takes users that log in, and rules against one of them."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

from allocator.testing import LocalCluster
from allocator.testing.versions import NEWEST

AUTHORIZERS = {
    "3.9.1": "kafka.security.authorizer.AclAuthorizer",
    NEWEST: "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "2.8.2": "kafka.security.authorizer.AclAuthorizer",
    "1.1.1": "kafka.security.auth.SimpleAclAuthorizer",
}
USER = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "member",
    "sasl_plain_password": "secret",
}

USERS = ("alice", "bob", "eve", "mallory")
"""More users, whose passwords are their names."""


async def with_an_authorizer(cluster_factory: Any, kafka: str) -> LocalCluster:
    """Anonymous clients (the broker and the tests) may do everything; ACLs apply to SASL clients."""
    passwords = " ".join(f'user_{user}="{user}"' for user in USERS)
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_member="secret" {passwords};'
    listeners = "PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{port2}"
    settings = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
        "authorizer.class.name": AUTHORIZERS[kafka],
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
async def denied(
    cluster: LocalCluster, kind: ResourceType, name: str, operation: ACLOperation = ACLOperation.ALL
) -> AsyncIterator[None]:
    """Denies an operation on a resource to `USER` until the block ends; the user has all other rights on it."""
    by = {"principal": "User:member", "host": "*", "resource_pattern": ResourcePattern(kind, name)}
    rules = [{**by, "operation": operation, "permission_type": ACLPermissionType.DENY}]
    if operation is not ACLOperation.ALL:
        rules.append({**by, "operation": ACLOperation.ALL, "permission_type": ACLPermissionType.ALLOW})
    admin = await asyncio.to_thread(lambda: KafkaAdminClient(bootstrap_servers=cluster.bootstrap))
    try:
        assert not (await asyncio.to_thread(admin.create_acls, [ACL(**rule) for rule in rules]))["failed"]
        yield
    finally:
        found = await asyncio.to_thread(admin.delete_acls, [ACLFilter(**rule) for rule in rules])
        await asyncio.to_thread(admin.close)
    assert [len(deleted) for _, deleted, _ in found] == [1] * len(rules), found
