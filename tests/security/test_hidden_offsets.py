"""Commands and the page show offsets that this user may not read as unknown, and name the missing right."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

from allocator import Consumer, Kafka
from allocator.cli.access import Access
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.operate import read_group
from allocator.operate.doctor import examine_clusters
from allocator.operate.doctor.finding import COULD_NOT_LOOK
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.versions import NEWEST
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.secured import USER, by_sasl, denied, with_an_authorizer
from tests.web.served import PATIENCE_S, served

pytestmark = pytest.mark.deadline(150)
VERSIONS = [NEWEST, *(pytest.param(each, marks=pytest.mark.long) for each in ("1.1.1", "2.8.2", "3.9.1"))]


@contextlib.asynccontextmanager
async def only(cluster: LocalCluster, *topics: str) -> AsyncIterator[None]:
    """Lets `USER` describe only these topics until the block ends."""
    rules = [
        ACL(
            principal=f"User:{user}",
            host="*",
            operation=ACLOperation.DESCRIBE,
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(ResourceType.TOPIC, topic),
        )
        for user, topic in (("alice", "*"), *(("member", topic) for topic in topics))
    ]
    admin = await asyncio.to_thread(lambda: KafkaAdminClient(bootstrap_servers=cluster.bootstrap))
    try:
        assert not (await asyncio.to_thread(admin.create_acls, rules))["failed"]
        yield
    finally:
        filters = [
            ACLFilter(
                principal=rule.principal,
                host="*",
                operation=rule.operation,
                permission_type=rule.permission_type,
                resource_pattern=rule.resource_pattern,
            )
            for rule in rules
        ]
        await asyncio.to_thread(admin.delete_acls, filters)
        await asyncio.to_thread(admin.close)


async def commit(cluster: LocalCluster, group: str, *topics: str) -> None:
    """Commits offset 1 of the first partition of each topic."""
    async with KafkaClient(cluster.bootstrap) as client:
        offsets = GroupOffsets(client, group)
        await offsets.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1) for topic in topics})
        await offsets.close()


@pytest.fixture
def make(cluster_factory: Any, topic_factory: Callable[..., str]) -> Callable[..., Any]:
    async def make(kafka: str) -> tuple[LocalCluster, Access, list[str]]:
        cluster = await with_an_authorizer(cluster_factory, kafka)
        topics = [await asyncio.to_thread(topic_factory, 1, 1, None, cluster) for _ in range(2)]
        for topic in topics:
            await asyncio.to_thread(cluster.produce, topic, [(None, b"x", 0)] * 5)
        return cluster, Access(None, brokers=by_sasl(cluster), security=USER, nowhere=True), topics

    return make


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_the_lag_of_hidden_topics_is_unknown(kafka: str, make: Any, group: str) -> None:
    cluster, access, (shown, hidden) = await make(kafka)
    await commit(cluster, group, shown, hidden)
    whole = await read_group(access, group)
    assert (whole.lag.total, whole.complete, whole.problems) == (8, True, [])
    async with only(cluster, shown):

        async def told() -> Any:
            found = await read_group(access, group)
            return None if found.complete else found

        found = await wait_until_async(told, 30, "an incomplete report")
        assert (found.to_json()["lag"], found.lag.known) == (None, 4)
        assert "lag at least 4" in found.headline()
        (problem,) = found.problems
        assert "grant this user DESCRIBE" in problem
        findings = await examine_clusters(access, group, None, None, 0.1, 10)
        assert [each for each in findings if each.id == COULD_NOT_LOOK and "DESCRIBE" in str(each)]


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_the_doctor_sees_all_offsets_of_members_whose_topics_it_may_describe(
    kafka: str, make: Any, group: str
) -> None:
    cluster, access, (topic, _) = await make(kafka)
    await commit(cluster, group, topic)
    membership = Kafka(session_timeout_s=20.0)
    async with (
        Consumer(topic, brokers=cluster.bootstrap, group=group, membership=membership) as member,
        only(cluster, topic, f"{group}.orders"),
        access.cluster() as client,
    ):
        await wait_until_async(lambda: len(member.assignment()) == 1, PATIENCE_S, "an assignment")

        async def restricted() -> bool:
            await client.refresh()
            return await client.may_hide_topics()

        await wait_until_async(restricted, 30, "the rules")
        assert (await read_group(access, group)).complete
        findings = await examine_clusters(access, group, None, None, 0.1, 10)
        assert [str(each) for each in findings if each.id == COULD_NOT_LOOK] == []


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_a_hidden_topic_of_members_is_named(kafka: str, make: Any, group: str) -> None:
    cluster, access, (topic, _) = await make(kafka)
    membership = Kafka(session_timeout_s=20.0)
    async with Consumer(topic, brokers=cluster.bootstrap, group=group, membership=membership) as member:
        await wait_until_async(lambda: len(member.assignment()) == 1, PATIENCE_S, "an assignment")
        async with denied(cluster, ResourceType.TOPIC, topic):

            async def told() -> Any:
                found = await read_group(access, group)
                return None if found.complete else found

            found = await wait_until_async(told, 30, "an incomplete report")
            assert found.lag.total is None
            assert [each for each in found.problems if f"not authorised to describe topic {topic!r}" in each]
            assert not [each for each in found.problems if "does not exist" in each]


@pytest.mark.parametrize("kafka", VERSIONS)
async def test_a_hidden_group_hides_no_other_group(
    kafka: str, make: Any, group: str, unique_name: Callable[[], str]
) -> None:
    cluster, access, (topic, _) = await make(kafka)
    other = unique_name()
    for name in (group, other):
        await commit(cluster, name, topic)
    page = served(None, access.brokers, kafka_groups=[group, other], security=USER)
    async with denied(cluster, ResourceType.GROUP, other), page as it:

        async def both() -> Any:
            found = {each["group"]: each for each in (await it.json("/api/groups"))["groups"]}
            hidden = found.get(other, {"problems": 0})
            return found if group in found and found[group]["lag"] == 4 and hidden["problems"] else None

        found = await wait_until_async(both, 30, lambda: f"{it.watcher.problems}")
        assert found[other]["lag"] is None
        assert it.watcher.problems == {}
        detail = await it.json(f"/api/groups/{other}")
        assert "GROUP_AUTHORIZATION_FAILED" in json.dumps(detail["findings"])
