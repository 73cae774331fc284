"""Carries settings and ACLs of topics over to another cluster: finds the differences, and then sets what is missing.

Like MirrorMaker 2 it adds and changes, removes nothing, and lets nobody write to the new topics: a record that a
producer writes there too early would be missing on the old cluster. `writers` carries the rights of producers too.

Protocol: DescribeConfigs, IncrementalAlterConfigs, DescribeAcls, CreateAcls. Before 0.11, settings and ACLs can be read
only in ZooKeeper, in `/config/topics/<topic>` and `/kafka-acl/Topic/<topic>`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Optional

from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    CreateAclsRequest,
    DescribeAclsRequest,
    IncrementalAlterConfigsRequest,
)

from allocator.core.client import KafkaClient
from allocator.core.text import parse_json, shown
from allocator.errors import ConfigError
from allocator.migrate.storage import CONNECT_S, connected
from allocator.migrate.topics import AFTER, carried, refuse_same_cluster, settings_of
from allocator.producer import result_error
from allocator.protocols.zookeeper import NoZnode, ZooKeeperClient

TOPIC: Final = 2  # the type of a topic in requests about settings
SET: Final = 0
READ_TOO: Final = "the right to write is left out: it becomes READ"


class Rule(NamedTuple):
    """An ACL of one topic, with Kafka's names: `operation` "READ", `permission` "ALLOW"."""

    topic: str
    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        return f"{self.permission} {self.operation} to {self.principal} from {self.host}"


class Change(NamedTuple):
    """A setting or an ACL that the new topic lacks or has otherwise. `now` is None if it lacks it."""

    topic: str
    what: str
    wanted: str
    now: Optional[str]


@dataclass
class Carrying:
    """The differences, and what is left out: (topic, what, why)."""

    settings: list[Change] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def changes(self) -> list[Change]:
        """All differences."""
        return [*self.settings, *(Change(each.topic, "ACL", str(each), None) for each in self.rules)]

    def to_json(self) -> dict[str, Any]:
        return {
            "changes": [each._asdict() for each in self.changes],
            "left_out": [dict(zip(("topic", "what", "why"), each)) for each in self.left_out],
        }


async def carry_over(
    old_brokers: str,
    new_brokers: str,
    topics: Sequence[str],
    *,
    configs: bool,
    acls: bool,
    writers: bool = False,
    skip_settings: Collection[str] = (),
    old_zookeeper: str | None = None,
    old_security: Mapping[str, Any] | None = None,
    new_security: Mapping[str, Any] | None = None,
    execute: bool = False,
) -> Carrying:
    """Compares topics of both clusters; with `execute`, sets what differs on the new one.

    Raises ConfigError for missing topics and old brokers, and BrokerError, also for a cluster without an authorizer.
    """
    async with contextlib.AsyncExitStack() as stack:
        old = await connected(stack, old_brokers, old_security)
        new = await connected(stack, new_brokers, new_security)
        await refuse_same_cluster(old, new)
        for client, which in (old, "old"), (new, "new"):
            missing = sorted(topic for topic in topics if not client.partitions(topic))
            if missing:
                raise ConfigError(
                    f"the {which} cluster has no topic {missing[0]!r}; correct --topic, or mirror it first"
                )
        ensemble = None
        if old_zookeeper is not None and old.api_version(DescribeAclsRequest) is None:
            ensemble = ZooKeeperClient(old_zookeeper)
            stack.push_async_callback(ensemble.close)
            await ensemble.connect(CONNECT_S, make_chroot=False)
        found = Carrying()
        if configs:
            await _compare_settings(found, old, new, topics, ensemble, skip_settings)
        if acls:
            await _compare_rules(found, old, new, topics, ensemble, writers)
        if execute:
            await _set(new, found.settings, validate_only=True)  # so that a refused one leaves nothing half done
            for permission in ("DENY", "ALLOW"):  # so that a DENY that is refused lets nobody in
                await _grant(new, [rule for rule in found.rules if rule.permission == permission])
            await _set(new, found.settings)
        return found


async def _compare_settings(
    found: Carrying,
    old: KafkaClient,
    new: KafkaClient,
    topics: Sequence[str],
    ensemble: ZooKeeperClient | None,
    skip_settings: Collection[str],
) -> None:
    if new.api_version(IncrementalAlterConfigsRequest) is None:
        raise ConfigError(
            "single settings can be changed from Kafka 2.3 on, and the new cluster is older; use kafka-configs.sh there"
        )
    wanted, there = await settings_of(old, topics, ensemble), await settings_of(new, topics)
    for topic in topics:
        taken = carried(wanted[topic], new.broker_version)
        for name, value in sorted(wanted[topic].items()):
            if name not in taken or name in skip_settings:
                found.left_out.append((topic, name, "it belongs to one cluster, or is skipped"))
            elif there[topic].get(name) != value and not (name == AFTER and name in there[topic]):
                found.settings.append(Change(topic, name, value, there[topic].get(name)))


async def _compare_rules(
    found: Carrying,
    old: KafkaClient,
    new: KafkaClient,
    topics: Sequence[str],
    ensemble: ZooKeeperClient | None,
    writers: bool,
) -> None:
    if ensemble is not None:
        names = (*topics, "*")  # there are no prefixes before 2.0
        stored = [(rule, False) for name in names for rule in await _rules_in_zookeeper(ensemble, name)]
        rules, patterns = _of_topics(stored, topics)
    else:
        rules, patterns = await _rules(old, topics, "old")
    found.left_out += patterns
    there = {*(await _rules(new, topics, "new"))[0]}
    for rule in sorted(rules):
        if not writers and rule.permission == "ALLOW" and rule.operation in ("WRITE", "ALL"):
            found.left_out.append(
                (
                    rule.topic,
                    str(rule),
                    READ_TOO if rule.operation == "ALL" else "it gives the right to write (--writers)",
                )
            )
            if rule.operation == "WRITE":
                continue
            rule = rule._replace(operation="READ")
        if rule not in there:
            there.add(rule)
            found.rules.append(rule)


async def _rules(
    client: KafkaClient, topics: Collection[str], which: str
) -> tuple[list[Rule], list[tuple[str, str, str]]]:
    if client.api_version(DescribeAclsRequest) is None:
        raise ConfigError("brokers before 0.11 do not report ACLs: name their ZooKeeper (--old-zookeeper)")
    request = DescribeAclsRequest(
        resource_type_filter=ACLResourceType.TOPIC,
        resource_name_filter=None,
        pattern_type_filter=ACLResourcePatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        max_version=3,
    )
    response = await client.send_any(request)
    if response.error_code:
        raise result_error(response, f"ACLs of the {which} cluster")
    found = []
    for resource in response.resources:
        # before 2.0 there are only literal ones
        is_prefix = getattr(resource, "pattern_type", None) == ACLResourcePatternType.PREFIXED
        for acl in resource.acls:
            operation, permission = ACLOperation(acl.operation).name, ACLPermissionType(acl.permission_type).name
            found.append((Rule(resource.resource_name, acl.principal, acl.host, operation, permission), is_prefix))
    return _of_topics(found, topics)


def _of_topics(
    found: Iterable[tuple[Rule, bool]], topics: Collection[str]
) -> tuple[list[Rule], list[tuple[str, str, str]]]:
    """Returns the rules of these topics, and the left out ones of prefixes and of all topics, which apply to them too.

    `found`: (rule, whether its topic is a prefix). A DENY wins over each ALLOW, whatever its pattern. So it becomes a
    rule of each topic that it applies to: without it, an ALLOW would let in users whom the old cluster refuses.
    """
    rules, others = [], []
    for rule, is_prefix in found:
        for topic in sorted(topics):
            if not (topic.startswith(rule.topic) if is_prefix else rule.topic in (topic, "*")):
                continue
            if rule.permission == "DENY" or (rule.topic == topic and not is_prefix):
                rules.append(rule._replace(topic=topic))
            else:
                others.append((topic, str(rule), f"it is of {rule.topic!r}, not of one topic"))
    return rules, others


async def _rules_in_zookeeper(ensemble: ZooKeeperClient, name: str) -> list[Rule]:
    """Returns the rules of a topic, or of "*"."""
    path = f"/kafka-acl/Topic/{name}"
    try:
        data, _ = await ensemble.get(path)
    except NoZnode:
        return []
    try:
        return [
            Rule(name, acl["principal"], acl["host"], _constant(acl["operation"]), _constant(acl["permissionType"]))
            for acl in parse_json(data)["acls"]
        ]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} of the old ZooKeeper cannot be read: {shown(data)}") from error


def _constant(name: str) -> str:
    """Returns "CLUSTER_ACTION" for "ClusterAction"."""
    return "".join(f"_{letter}" if letter.isupper() and at else letter for at, letter in enumerate(name)).upper()


async def _set(new: KafkaClient, changes: Iterable[Change], *, validate_only: bool = False) -> None:
    kind = IncrementalAlterConfigsRequest.AlterConfigsResource
    by_topic: dict[str, list[Any]] = {}
    for each in changes:
        one = kind.AlterableConfig(name=each.what, config_operation=SET, value=each.wanted)
        by_topic.setdefault(each.topic, []).append(one)
    if not by_topic:
        return
    resources = [kind(resource_type=TOPIC, resource_name=topic, configs=some) for topic, some in by_topic.items()]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only, max_version=1)
    for result in (await new.send_any(request)).responses:
        if result.error_code:
            what = f"settings of topic {result.resource_name!r} (--skip-setting leaves one as it is)"
            raise result_error(result, what)


async def _grant(new: KafkaClient, rules: Sequence[Rule]) -> None:
    if not rules:
        return
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=ACLResourceType.TOPIC,
            resource_name=rule.topic,
            resource_pattern_type=ACLResourcePatternType.LITERAL,
            principal=rule.principal,
            host=rule.host,
            operation=ACLOperation[rule.operation],
            permission_type=ACLPermissionType[rule.permission],
        )
        for rule in rules
    ]
    response = await new.send_any(CreateAclsRequest(creations=creations, max_version=3))
    for rule, result in zip(rules, response.results):
        if result.error_code:
            raise result_error(result, f"ACL of topic {rule.topic!r}: {rule}")
