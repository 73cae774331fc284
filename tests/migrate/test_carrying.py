"""Settings and ACLs of topics are carried over to another cluster."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
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
from tests.secured import USERS, with_an_authorizer

pytestmark = pytest.mark.deadline(180)

Granted = set[tuple[str, str, str, str]]
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


@pytest.mark.parametrize(("old", "new"), [("2.8.2", "3.9.1"), ("3.9.1", NEWEST)])
async def test_acls_are_shown_and_then_carried_over_without_the_right_to_write(
    old: str, new: str, cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    source, target = [await with_an_authorizer(cluster_factory, each) for each in (old, new)]
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, source)
    await asyncio.to_thread(target.create_topic, topic, 1)
    await asyncio.to_thread(grant, source, topic)
    await asyncio.to_thread(grant, source, topic[:-2], ACLResourcePatternType.PREFIXED)
    readers = {("User:reader", "*", "READ", "ALLOW"), ("User:owner", "*", "READ", "ALLOW")}
    expected = {*readers, ("User:foe", "*", "WRITE", "DENY")}

    shown = await copied(source, target, topic, "--acls")
    assert len(shown["changes"]) == 3
    allowing = [each for each in RULES if each[2] == "ALLOW"]
    assert len(shown["left_out"]) == 2 + len(allowing), "two rights to write, and what the prefix allows"
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


LITERAL, PREFIXED = ACLResourcePatternType.LITERAL, ACLResourcePatternType.PREFIXED
# user, host, operation, permission, and of what
ALLOWED = [
    ("*", "*", "READ", "ALLOW", "the topic"),
    ("alice", "127.0.0.1", "ALL", "ALLOW", "the topic"),
    ("bob", "*", "WRITE", "ALLOW", "the topic"),
    ("mallory", "10.0.0.1", "WRITE", "ALLOW", "the topic"),
]
DENIED = {
    "nobody": [],
    "a user": [("bob", "*", "READ", "DENY", "the topic")],
    "by a prefix": [("alice", "*", "READ", "DENY", "its prefix"), ("bob", "*", "ALL", "DENY", "its prefix")],
    "by all topics": [("eve", "*", "ALL", "DENY", "all topics"), ("alice", "*", "WRITE", "DENY", "all topics")],
    "by hosts": [
        ("bob", "127.0.0.1", "READ", "DENY", "its prefix"),
        ("eve", "127.0.0.1", "DESCRIBE", "DENY", "all topics"),
        ("alice", "10.0.0.1", "ALL", "DENY", "all topics"),
    ],
    "everybody": [("*", "*", "WRITE", "DENY", "its prefix"), ("*", "10.0.0.1", "READ", "DENY", "all topics")],
    "of other topics": [("alice", "*", "ALL", "DENY", "a longer prefix"), ("bob", "*", "ALL", "DENY", "another topic")],
}


def rights(cluster: LocalCluster, topic: str) -> dict[str, set[str]]:
    """User -> the operations that the broker lets the user do from here."""
    found = {}
    (node,) = cluster.brokers
    for user in USERS:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user}
        admin = AdminClient({**settings, "bootstrap.servers": f"127.0.0.1:{node.more_ports[0]}", "sasl.password": user})
        (described,) = admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True).values()
        try:
            found[user] = {each.name for each in described.result(30).authorized_operations}
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            found[user] = set()
    return found


def rule(topic: str, user: str, host: str, operation: str, permission: str, of: str) -> ACL:
    name, kind = {
        "the topic": (topic, LITERAL),
        "its prefix": (topic[:-3], PREFIXED),
        "all topics": ("*", LITERAL),
        "a longer prefix": (f"{topic}-2", PREFIXED),
        "another topic": (topic[:-3], LITERAL),
    }[of]
    pattern = ResourcePattern(ResourceType.TOPIC, name, kind)
    return ACL(f"User:{user}", host, ACLOperation[operation], ACLPermissionType[permission], pattern)


async def test_the_new_cluster_lets_in_and_refuses_the_same_users(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    old, new = [await with_an_authorizer(cluster_factory, each) for each in ("2.8.2", "3.9.1")]
    admin = KafkaAdminClient(bootstrap_servers=old.bootstrap)
    seen = {}
    try:
        for name, denied in DENIED.items():
            topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
            await asyncio.to_thread(new.create_topic, topic, 1)
            rules = [rule(topic, *each) for each in (*ALLOWED, *denied)]
            assert not (await asyncio.to_thread(admin.create_acls, rules))["failed"]
            await copied(old, new, topic, "--acls", "--execute")
            before = seen[name] = await asyncio.to_thread(rights, old, topic)
            after = await asyncio.to_thread(rights, new, topic)
            assert all(after[user] <= before[user] for user in USERS), (name, before, after)
            await copied(old, new, topic, "--acls", "--writers", "--execute")

            async def same(topic: str = topic, before: dict[str, set[str]] = before) -> bool:
                return await asyncio.to_thread(rights, new, topic) == before

            await wait_until_async(same, 30, f"the same rights: {name}")
            for each in rules[len(ALLOWED) :]:  # those of all topics would apply to the next one too
                await asyncio.to_thread(admin.delete_acls, [each])
    finally:
        admin.close()
    readers = {name: {user for user in USERS if "READ" in found[user]} for name, found in seen.items()}
    assert readers == {
        "nobody": {*USERS},
        "a user": {*USERS} - {"bob"},
        "by a prefix": {*USERS} - {"alice", "bob"},
        "by all topics": {*USERS} - {"eve"},
        "by hosts": {*USERS} - {"bob", "eve"},  # who may not describe a topic is told nothing of it
        "everybody": {*USERS},
        "of other topics": {*USERS},
    }


async def test_acls_of_brokers_before_0_11_are_read_where_kafkas_own_tool_writes_them(
    cluster_factory: Callable[..., LocalCluster], topic_factory: Callable[..., str]
) -> None:
    config = {"authorizer.class.name": "kafka.security.auth.SimpleAclAuthorizer", "super.users": "User:ANONYMOUS"}
    old = await asyncio.to_thread(lambda: cluster_factory(kafka="0.9.0.1", broker_config=config))
    new = await with_an_authorizer(cluster_factory, NEWEST)
    topic = await asyncio.to_thread(topic_factory, 1, 1, None, old)
    await asyncio.to_thread(new.create_topic, topic, 1)
    java, jars = find_java(KAFKA["0.9.0.1"].oldest_java), class_path(KAFKA["0.9.0.1"].jars)
    tool = [java.executable, "-cp", jars, "kafka.admin.AclCommand", "--add"]
    tool += ["--authorizer-properties", f"zookeeper.connect={old.zookeeper}"]
    for rule in (
        ("--allow-principal", "User:reader", "--operation", "Read", "--allow-host", "10.0.0.1"),
        ("--allow-principal", "User:writer", "--operation", "Write"),
        ("--deny-principal", "User:foe", "--operation", "Describe"),
        ("--deny-principal", "User:eve", "--topic", "*"),
        ("--allow-principal", "User:auditor", "--topic", "*", "--operation", "Read"),
    ):
        of = [] if "--topic" in rule else ["--topic", topic]
        await asyncio.to_thread(subprocess.run, [*tool, *of, *rule], check=True, timeout=60, capture_output=True)
    done = await copied(old, new, topic, "--acls", "--execute", "--old-zookeeper", str(old.zookeeper))
    wanted = {("User:reader", "10.0.0.1", "READ", "ALLOW"), ("User:foe", "*", "DESCRIBE", "DENY")}
    wanted.add(("User:eve", "*", "ALL", "DENY"))
    assert [each["why"] for each in done["left_out"] if "auditor" in each["what"]] == ["it is of '*', not of one topic"]

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
