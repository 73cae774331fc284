"""Topics of the old cluster created on the new one, with partition counts and settings; ids of topics.

Protocol: CreateTopics, CreatePartitions and DescribeConfigs. Before 0.11 a cluster tells its topics' settings only
through ZooKeeper, `/config/topics/<topic>`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DescribeConfigsRequest

from allocator.client.client import KafkaClient
from allocator.client.errors import for_code
from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.foreign import shown
from allocator.zookeeper.client import NoZnode, ZooKeeper

__all__ = ["ZNODE", "TopicIds", "TopicsDiffer", "carried", "create", "make_alike", "same_topic", "settings_of"]

log = logging.getLogger(__name__)

ZNODE: Final = "znode-"
TOPIC: Final = 2  # kind of resource
SET_ON_TOPIC: Final = 1  # source of a setting
UNKNOWN, TOPIC_EXISTS, INVALID_PARTITIONS, NOT_CONTROLLER = -1, 36, 37, 41

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
# settings that say which records stay: the new topic may not have one of its own that the old one does not have
KEEPING: Final = ("cleanup.policy", "retention.bytes", "retention.ms")


class TopicsDiffer(AllocatorError):
    """A topic exists on the new cluster and is not as the old one: says in what, and what to do."""


async def settings_of(
    client: KafkaClient, topics: Iterable[str], ensemble: ZooKeeper | None = None
) -> dict[str, dict[str, str]]:
    """What was set on each topic itself; defaults of the cluster are not among it.

    Raises ConfigError for a cluster older than 0.11 whose ZooKeeper is not given, and BrokerError.
    """
    if ensemble is not None:
        return {topic: await _from_zookeeper(ensemble, topic) for topic in topics}
    if client.api_version(DescribeConfigsRequest) is None:
        raise ConfigError(
            "brokers before 0.11 do not tell how their topics are set: name their ZooKeeper (--old-zookeeper)"
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
            error = for_code(result.error_code, f"settings of topic {result.resource_name!r}")
            # it is all that a broker says while it has no session with its ZooKeeper
            error.retriable = error.retriable or result.error_code == UNKNOWN
            raise error
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
        raise ConfigError(f"/config/topics/{topic} of the old ZooKeeper does not read: {shown(data)}") from error


def carried(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that the new topic gets too."""
    return {name: value for name, value in settings.items() if name not in LEFT_OUT}


async def make_alike(
    old: KafkaClient,
    new: KafkaClient,
    topics: Iterable[str],
    *,
    ensemble: ZooKeeper | None = None,
    mirrored: Collection[str] = (),
    replication: int,
) -> list[str]:
    """Creates what is missing on the new cluster and compares the rest. Returns what was created.

    `ensemble` is the old cluster's ZooKeeper. `mirrored` are topics that were alike before: they get the partitions
    that were added to the old ones. Raises TopicsDiffer naming every difference, before anything is changed, and as
    `settings_of` does.
    """
    names = sorted(topics)
    await old.refresh(names)
    await new.refresh(names)
    counts = {name: len(old.partitions(name) or ()) for name in names}
    here = {name: len(new.partitions(name) or ()) for name in names}
    differences = [f"the old cluster has no topic {name!r}" for name in names if not counts[name]]
    grown = [name for name in names if name in mirrored and 0 < here[name] < counts[name]]
    differences += [
        f"{name!r} has {counts[name]} partitions on the old cluster and {here[name]} on the new one: a key would "
        "change its partition; add what is missing, or delete the new topic and have it made"
        for name in names
        if counts[name] and here[name] and here[name] != counts[name] and name not in grown
    ]
    there = [name for name in names if counts[name]]
    wanted = await settings_of(old, there, ensemble) if there else {}
    existing = [name for name in there if here[name]]
    settings = await settings_of(new, existing) if existing else {}
    for name in existing:
        differences += _unlike(name, carried(wanted[name]), settings[name])
    if differences:
        raise TopicsDiffer("the clusters differ, nothing was created: " + "; ".join(differences))
    for name in grown:
        await _grow(new, name, counts[name])
        log.info("%s has %d partitions now, as on the old cluster", name, counts[name])
    missing = [name for name in there if not here[name]]
    for name in missing:
        await create(new, name, counts[name], replication, carried(wanted[name]))
        log.info("created %s with %d partitions", name, counts[name])
    return missing


def _unlike(topic: str, wanted: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """How the settings of a topic that exists differ from those that it is to have."""
    found = [
        f"{key} of {topic!r} is {value!r}, on the new cluster {here.get(key)!r}; set it"
        for key, value in sorted(wanted.items())
        if here.get(key) != value
    ]
    found += [
        f"{key} of {topic!r} is {here[key]!r} on the new cluster alone, and would remove other records; unset it"
        for key in KEEPING
        if key in here and key not in wanted
    ]
    if here.get("message.timestamp.type") == "LogAppendTime":
        found.append(f"{topic!r} has message.timestamp.type=LogAppendTime: times would be lost; unset it")
    return found


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


async def _grow(client: KafkaClient, topic: str, partitions: int) -> None:
    """Has the topic at least this number of partitions. Raises BrokerError."""
    kind = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[kind(name=topic, count=partitions, assignments=None)],
        timeout_ms=15_000,
        validate_only=False,
        max_version=3,
    )
    # fine: another process was faster; whether it is that is seen next
    await _to_controller(client, request, f"topic {topic!r} with {partitions} partitions", fine=(0, INVALID_PARTITIONS))
    await _led(client, topic, partitions)


async def _to_controller(client: KafkaClient, request: Any, what: str, fine: tuple[int, ...]) -> None:
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
            raise BrokerError(
                f"{error}{f' ({shown(told)})' if told else ''}", code=error.code, retriable=error.retriable
            )
        await asyncio.sleep(client.retry_backoff_s)


async def _led(client: KafkaClient, topic: str, partitions: int) -> None:
    for _ in range(200):
        await client.refresh([topic])
        known = client.metadata.topics.get(topic)
        if known is not None and sum(each.leader is not None for each in known.partitions.values()) >= partitions:
            return
        await asyncio.sleep(client.retry_backoff_s)
    raise BrokerError(f"topic {topic!r} was created, but its partitions have no leaders yet", retriable=True)


class TopicIds:
    """The ids of a cluster's topics, as texts: the broker's own (Kafka 2.8 and newer), else when its znode was created.

    `ensemble` is the cluster's ZooKeeper, if it is known. Without both there are no ids.
    """

    def __init__(self, client: KafkaClient, ensemble: ZooKeeper | None = None) -> None:
        self._client = client
        self._ensemble = ensemble

    async def of(self, topics: Iterable[str]) -> dict[str, str | None]:
        """As they are now; None for a topic that does not exist or has no id. Also refreshes the client's metadata."""
        wanted = list(topics)
        await self._client.refresh(wanted)
        found: dict[str, str | None] = {}
        for topic in wanted:
            topic_id = self._client.topic_id(topic)
            found[topic] = None if topic_id is None else str(topic_id)
            if topic_id is None and self._ensemble is not None:
                stat = await self._ensemble.exists(f"/brokers/topics/{topic}")
                found[topic] = None if stat is None else f"{ZNODE}{stat.created_ms}"
        return found


def same_topic(known: str | None, now: str | None) -> bool | None:
    """None where the ids do not tell: one is missing, or the brokers began to have ids since the other was noted."""
    if known is None or now is None or known.startswith(ZNODE) != now.startswith(ZNODE):
        return None
    return known == now
