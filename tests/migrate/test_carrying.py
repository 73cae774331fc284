"""Settings and ACLs of topics are carried over to another cluster."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.migrate.topics import settings_of
from allocator.testing import LocalCluster, wait_until_async
from allocator.testing.jars import class_path
from allocator.testing.java import find_java
from allocator.testing.versions import KAFKA, NEWEST

pytestmark = pytest.mark.deadline(180)

Granted = set[tuple[str, str, str, str]]
AUTHORIZERS = {
    "0.9.0.1": "kafka.security.auth.SimpleAclAuthorizer",
    "2.8.2": "kafka.security.authorizer.AclAuthorizer",
    "3.9.1": "kafka.security.authorizer.AclAuthorizer",
    NEWEST: "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
RULES = [("reader", "READ", "ALLOW"), ("writer", "WRITE", "ALLOW"), ("owner", "ALL", "ALLOW"), ("foe", "WRITE", "DENY")]


def granted(cluster: LocalCluster, topic: str) -> Granted:
    """The ACLs of a topic, as kafka-python's admin client reads them."""
    pattern = ResourcePatternFilter(ResourceType.TOPIC, topic, ACLResourcePatternType.LITERAL)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        found, _ = admin.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern))
        return {(each.principal, each.host, each.operation.name, each.permission_type.name) for each in found}
    finally:
        admin.close()


def grant(cluster: LocalCluster, topic: str, kind: ACLResourcePatternType = ACLResourcePatternType.LITERAL) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        rules = [
            ACL(f"User:{user}", "*", ACLOperation[operation], ACLPermissionType[permission],
                ResourcePattern(ResourceType.TOPIC, topic, kind))
            for user, operation, permission in RULES
        ]  # fmt: skip
        assert not admin.create_acls(rules)["failed"]
    finally:
        admin.close()


async def copied(old: LocalCluster, new: LocalCluster, topic: str, *options: str) -> Any:
    command = ["topics", "copy", old.bootstrap, new.bootstrap, "--topic", topic, "--json", *options]
    done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def settings(cluster: LocalCluster, topic: str) -> dict[str, str]:
    async with KafkaClient(cluster.bootstrap) as client:
        return dict((await settings_of(client, [topic]))[topic])


def with_an_authorizer(cluster_factory: Callable[..., LocalCluster], kafka: str) -> LocalCluster:
    """The broker and the tests, which are anonymous, may do everything."""
    config = {"authorizer.class.name": AUTHORIZERS[kafka], "super.users": "User:ANONYMOUS"}
    return cluster_factory(kafka=kafka, broker_config=config)


@pytest.mark.parametrize(("old", "new"), [("2.8.2", "3.9.1"), ("3.9.1", NEWEST)])
async def test_acls_are_shown_and_then_carried_over_without_the_right_to_write(
    old: str, new: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    source, target = [await asyncio.to_thread(with_an_authorizer, cluster_factory, each) for each in (old, new)]
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, source)
    await asyncio.to_thread(target.create_topic, topic, 1)
    await asyncio.to_thread(grant, source, topic)
    await asyncio.to_thread(grant, source, topic[:-2], ACLResourcePatternType.PREFIXED)
    readers = {("User:reader", "*", "READ", "ALLOW"), ("User:owner", "*", "READ", "ALLOW")}
    expected = {*readers, ("User:foe", "*", "WRITE", "DENY")}

    shown = await copied(source, target, topic, "--acls")
    assert len(shown["changes"]) == 3
    assert len(shown["left_out"]) == 2 + len(RULES), "two rights to write, and the rules of the prefix"
    assert await asyncio.to_thread(granted, target, topic) == set(), "nothing is changed without --execute"

    await copied(source, target, topic, "--acls", "--execute")

    async def arrived(wanted: Granted) -> bool:
        return await asyncio.to_thread(granted, target, topic) == wanted

    await wait_until_async(lambda: arrived(expected), 30, "the ACLs")
    assert (await copied(source, target, topic, "--acls"))["changes"] == []
    await copied(source, target, topic, "--acls", "--writers", "--execute")
    await wait_until_async(
        lambda: arrived({*expected, ("User:writer", "*", "WRITE", "ALLOW"), ("User:owner", "*", "ALL", "ALLOW")}),
        30,
        "the rights of producers",
    )


async def test_acls_of_brokers_before_0_11_are_read_where_kafkas_own_tool_writes_them(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    old, new = [await asyncio.to_thread(with_an_authorizer, cluster_factory, each) for each in ("0.9.0.1", NEWEST)]
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, topic, 1)
    java, jars = find_java(KAFKA["0.9.0.1"].oldest_java), class_path(KAFKA["0.9.0.1"].jars)
    tool = [java.executable, "-cp", jars, "kafka.admin.AclCommand", "--add", "--topic", topic]
    tool += ["--authorizer-properties", f"zookeeper.connect={old.zookeeper}"]
    for rule in (
        ("--allow-principal", "User:reader", "--operation", "Read", "--allow-host", "10.0.0.1"),
        ("--allow-principal", "User:writer", "--operation", "Write"),
        ("--deny-principal", "User:foe", "--operation", "Describe"),
    ):
        await asyncio.to_thread(subprocess.run, [*tool, *rule], check=True, timeout=60, capture_output=True)
    await copied(old, new, topic, "--acls", "--execute", "--old-zookeeper", str(old.zookeeper))
    wanted = {("User:reader", "10.0.0.1", "READ", "ALLOW"), ("User:foe", "*", "DESCRIBE", "DENY")}

    async def arrived() -> bool:
        return await asyncio.to_thread(granted, new, topic) == wanted

    await wait_until_async(arrived, 30, "the ACLs")


async def test_a_cluster_without_an_authorizer_is_named(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    old, new = [
        await asyncio.to_thread(lambda kafka=kafka: cluster_factory(kafka=kafka)) for kafka in ("2.8.2", "3.9.1")
    ]
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, topic, 1)
    command = ["topics", "copy", old.bootstrap, new.bootstrap, "--topic", topic, "--acls"]
    done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert done.exit_code == 1
    assert "ACLs of the old cluster: SECURITY_DISABLED" in done.output


@pytest.mark.parametrize("old", ["0.9.0.1", "2.8.2"])
async def test_settings_are_shown_and_then_carried_over(
    old: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    source, target = [
        await asyncio.to_thread(lambda kafka=kafka: cluster_factory(kafka=kafka)) for kafka in (old, "3.9.1")
    ]
    config = {"retention.ms": "123456789", "segment.bytes": "1048576", "max.message.bytes": "500000"}
    topic = await asyncio.to_thread(topic_factory, 1, 1, config, source)
    own = {"retention.ms": "-1", "max.message.bytes": "500000", "flush.messages": "7"}
    await asyncio.to_thread(target.create_topic, topic, 1, 1, own)
    options = ("--configs", "--skip-setting", "retention.ms", "--old-zookeeper", str(source.zookeeper))
    change = {"topic": topic, "what": "segment.bytes", "wanted": "1048576", "now": None}
    for execute in ((), ("--execute",)):
        shown = await copied(source, target, topic, *options, *execute)
        assert shown["changes"] == [change]
        assert [each["what"] for each in shown["left_out"]] == ["retention.ms"]
    await wait_until_async(lambda: has(target, topic, {**own, "segment.bytes": "1048576"}), 30, "the setting")


async def has(cluster: LocalCluster, topic: str, wanted: dict[str, str]) -> bool:
    return await settings(cluster, topic) == wanted


async def test_a_setting_that_is_refused_leaves_everything_as_it_was(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    source, target = [await asyncio.to_thread(cluster_factory, kafka=each) for each in ("3.9.1", NEWEST)]
    topics: list[str] = [
        await asyncio.to_thread(topic_factory, 1, 1, config, source)
        for config in ({"retention.ms": "123456789"}, {"segment.bytes": "20000"})  # Kafka 4 takes 1 MiB or more
    ]
    for topic in topics:
        await asyncio.to_thread(target.create_topic, topic, 1)
    command = ["topics", "copy", source.bootstrap, target.bootstrap, "--configs", "--execute"]
    command += [part for topic in topics for part in ("--topic", topic)]
    done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert done.exit_code == 1
    for part in (topics[1], "--skip-setting", "at least 1048576"):
        assert part in done.output
    assert await settings(target, topics[0]) == {}
    done = await asyncio.to_thread(CliRunner().invoke, main, [*command, "--skip-setting", "segment.bytes"])
    assert done.exit_code == 0, done.output
    await wait_until_async(lambda: has(target, topics[0], {"retention.ms": "123456789"}), 30, "the setting")
