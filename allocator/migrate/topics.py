"""Topics of the old cluster made on the new one: partition counts and settings carried over, or the difference said.

Protocol: CreateTopics, CreatePartitions and DescribeConfigs. Before 0.11 a cluster tells its topics' settings only
through ZooKeeper, `/config/topics/<topic>`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DescribeConfigsRequest

from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.wire.kafka import KafkaClient
from allocator.wire.kafka_errors import for_code
from allocator.wire.zookeeper import NoZnode, ZooKeeper

__all__ = ["TopicsDiffer", "carried", "create", "grow", "make_alike", "settings_of"]

log = logging.getLogger(__name__)

TOPIC: Final = 2  # kind of resource
SET_ON_TOPIC: Final = 1  # source of a setting
TOPIC_EXISTS, NOT_CONTROLLER = 36, 41

# settings that mean nothing on another cluster, or stand in the way of what a mirror is to keep
LEFT_OUT: Final = frozenset(
    {
        "message.format.version",  # upgraded
        "message.timestamp.type",  # or the new broker would overwrite the times
        "message.timestamp.difference.max.ms",  # or it would refuse old times
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "message.downconversion.enable",
        "remote.storage.enable",
        "local.retention.ms",
        "local.retention.bytes",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    }
)


class TopicsDiffer(AllocatorError):
    """A topic exists on the new cluster and is not as the old one: says in what, and what to do."""


async def settings_of(
    client: KafkaClient, topics: Iterable[str], ensemble: ZooKeeper | None = None
) -> dict[str, dict[str, str]]:
    """What was set on each topic itself; defaults of the cluster are not among it.

    Raises ConfigError for a cluster older than 0.11 whose ZooKeeper is not given.
    """
    if ensemble is not None:
        return {topic: await _from_zookeeper(ensemble, topic) for topic in topics}
    if client.api_version(DescribeConfigsRequest) is None:
        raise ConfigError(
            "brokers before 0.11 do not tell how their topics are set: name their ZooKeeper (--old-zookeeper), or "
            "create the topics on the new cluster yourself"
        )
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=TOPIC, resource_name=topic, configuration_keys=None
        )
        for topic in topics
    ]
    answer = await client.send_any(
        DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False, max_version=4)
    )
    found: dict[str, dict[str, str]] = {}
    for result in answer.results:
        if result.error_code:
            raise for_code(result.error_code, f"settings of topic {result.resource_name!r}")
        found[result.resource_name] = {
            each.name: each.value
            for each in result.configs
            if each.value is not None and _set_on_topic(each, answer.API_VERSION)
        }
    return found


def _set_on_topic(setting: Any, version: int) -> bool:
    return bool(setting.config_source == SET_ON_TOPIC if version >= 1 else not setting.is_default)


async def _from_zookeeper(ensemble: ZooKeeper, topic: str) -> dict[str, str]:
    try:
        data, _ = await ensemble.get(f"/config/topics/{topic}")
    except NoZnode:
        return {}
    try:
        return {str(name): str(value) for name, value in json.loads(data)["config"].items()}
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"/config/topics/{topic} of the old ZooKeeper does not read: {data!r:.100}") from error


def carried(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that the new topic gets too."""
    return {name: value for name, value in settings.items() if name not in LEFT_OUT}


async def make_alike(
    old: KafkaClient,
    new: KafkaClient,
    topics: Iterable[str],
    settings: Mapping[str, Mapping[str, str]] | None,
    *,
    replication: int,
) -> list[str]:
    """Creates what is missing on the new cluster and compares the rest. Returns what was created.

    `settings` None: they are not compared, and no topic is created. Raises TopicsDiffer naming every difference,
    before anything is created.
    """
    names = sorted(topics)
    await old.refresh(names)
    await new.refresh(names)
    missing, existing, differences = [], [], []
    for name in names:
        count, there = len(old.partitions(name) or ()), new.partitions(name)
        if not count:
            differences.append(f"the old cluster has no topic {name!r}")
        elif there is None:
            missing.append(name)
        elif len(there) != count:
            differences.append(
                f"{name!r} has {count} partitions on the old cluster and {len(there)} on the new one: a key would "
                "change its partition; add what is missing, or delete the new topic and have it made"
            )
        else:
            existing.append(name)
    here = await settings_of(new, existing) if existing else {}
    for name in existing:
        for key, value in sorted(carried((settings or {}).get(name, {})).items()):
            if here[name].get(key) != value:
                differences.append(
                    f"{key} of {name!r} is {value!r}, on the new cluster {here[name].get(key)!r}; set it"
                )
        if here[name].get("message.timestamp.type") == "LogAppendTime":
            differences.append(f"{name!r} has message.timestamp.type=LogAppendTime: times would be lost; unset it")
    if missing and settings is None:
        differences.append(f"the new cluster has no topic {', '.join(missing)}; create it")
    if differences:
        raise TopicsDiffer("the clusters differ, nothing was created: " + "; ".join(differences))
    for name in missing:
        count = len(old.partitions(name) or ())
        await create(new, name, count, replication, carried((settings or {}).get(name, {})))
        log.info("created %s with %d partitions", name, count)
    return missing


async def create(
    client: KafkaClient, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
) -> None:
    """A topic, and waits until it has leaders; fine if it exists. Raises BrokerError."""
    kinds = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            kinds(
                name=topic,
                num_partitions=partitions,
                replication_factor=min(replication, max(1, len(client.brokers))),
                assignments=[],
                configs=[kinds.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
            )
        ],
        timeout_ms=15_000,
        validate_only=False,
        max_version=7,
    )
    await _to_controller(client, request, f"topic {topic!r}", fine=(0, TOPIC_EXISTS))
    await _led(client, topic, partitions)


async def grow(client: KafkaClient, topic: str, partitions: int) -> None:
    """Has the topic this number of partitions. Raises BrokerError."""
    kind = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[kind(name=topic, count=partitions, assignments=None)],
        timeout_ms=15_000,
        validate_only=False,
        max_version=3,
    )
    await _to_controller(client, request, f"topic {topic!r} with {partitions} partitions")
    await _led(client, topic, partitions)


async def _to_controller(client: KafkaClient, request: Any, what: str, fine: tuple[int, ...] = (0,)) -> None:
    for attempt in range(10):
        await client.refresh()
        controller = client.metadata.controller
        if controller is not None and any(broker.node_id == controller for broker in client.brokers):
            answer = await client.send(controller, request)
        else:
            answer = await client.send_any(request)
        (result,) = answer.topics if hasattr(answer, "topics") else answer.results
        if result.error_code in fine:
            return
        if result.error_code != NOT_CONTROLLER or attempt == 9:
            error = for_code(result.error_code, what)
            told = getattr(result, "error_message", None)
            raise BrokerError(f"{error}{f' ({told})' if told else ''}", code=error.code, retriable=error.retriable)
        await asyncio.sleep(client.retry_backoff_s)


async def _led(client: KafkaClient, topic: str, partitions: int) -> None:
    for _ in range(200):
        await client.refresh([topic])
        known = client.metadata.topics.get(topic)
        if known is not None and sum(each.leader is not None for each in known.partitions.values()) >= partitions:
            return
        await asyncio.sleep(client.retry_backoff_s)
    raise BrokerError(f"topic {topic!r} was created, but its partitions have no leaders yet", retriable=True)
