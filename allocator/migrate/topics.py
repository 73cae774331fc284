"""Creates topics of the old cluster on the new one, with partition counts and settings, and reads ids of topics.

Protocol: DescribeConfigs. Before 0.11, topic settings can be read only in ZooKeeper, in `/config/topics/<topic>`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kafka.protocol.admin import DescribeConfigsRequest

from allocator.core.client import KafkaClient, describe_configs
from allocator.core.settings import address_text
from allocator.core.text import parse_json, shown
from allocator.errors import AllocatorError, ConfigError
from allocator.producer import add_partitions, create_topic
from allocator.protocols.zookeeper import NoZnode, ZooKeeperClient

log = logging.getLogger(__name__)

ZNODE: Final = "znode-"
SUFFIX: Final = ".offset-map"

# settings that do not apply to another cluster, or that would change the mirrored records
LEFT_OUT: Final = frozenset(
    {
        "message.format.version",  # the mirror writes v2
        "message.timestamp.type",  # LogAppendTime, also by the cluster's default, overwrites the timestamps
        "message.timestamp.difference.max.ms",  # refuses old timestamps
        "message.timestamp.before.max.ms",
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
# settings that delete records: the new topic must not have more of these than the old topic
RETENTION: Final = "retention.ms"
AFTER: Final = "message.timestamp.after.max.ms"
TIMES: Final = "message.timestamp.type"
KEEPING: Final = ("cleanup.policy", "retention.bytes", RETENTION)


class TopicsDiffer(AllocatorError):
    """A topic of the new cluster differs from the old one. The text has the differences and remedies."""


async def settings_of(
    client: KafkaClient, topics: Iterable[str], ensemble: ZooKeeperClient | None = None
) -> dict[str, dict[str, str]]:
    """Returns the settings of each topic itself, without the defaults of the cluster.

    Raises BrokerError, and ConfigError for brokers before 0.11 without their ZooKeeper.
    """
    if ensemble is not None:
        return {topic: await _from_zookeeper(ensemble, topic) for topic in topics}
    if client.api_version(DescribeConfigsRequest) is None:
        raise ConfigError("brokers before 0.11 do not report topic settings: name their ZooKeeper (--old-zookeeper)")
    return await describe_configs(client, "topic", topics)


async def _from_zookeeper(ensemble: ZooKeeperClient, topic: str) -> dict[str, str]:
    try:
        data, _ = await ensemble.get(f"/config/topics/{topic}")
    except NoZnode:
        return {}
    try:
        return {str(name): str(value) for name, value in parse_json(data)["config"].items()}
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"/config/topics/{topic} of the old ZooKeeper cannot be read: {shown(data)}") from error


def carried(settings: Mapping[str, str], version: tuple[int, ...]) -> dict[str, str]:
    """Returns the settings that the new topic gets too. `version` is that of its brokers."""
    return {
        name: value
        for name, value in settings.items()
        if name not in LEFT_OUT
        and (version >= (2, 1) or (name, value) != ("compression.type", "zstd"))
        and (version >= (3, 6) or name != AFTER)
    }


async def deletes_after(old: KafkaClient, new: KafkaClient, topic: str) -> int | None:
    """Returns the age in ms at which the new cluster deletes records that the old one keeps; None if it deletes none.

    Defaults of the clusters count. Brokers before 0.11 do not report their retention, and the oldest versions delete by
    the age of the file. For these it returns any age at which the new cluster deletes.
    """
    after = await _retention_ms(new, topic)
    kept = None if after is None else await _retention_ms(old, topic)
    return None if after is None or (kept is not None and kept <= after) else after


async def _retention_ms(client: KafkaClient, topic: str) -> int | None:
    """Returns the effective `retention.ms`; None if there is no such limit, or the brokers do not report it."""
    if client.api_version(DescribeConfigsRequest) is None:
        return None
    found = (await describe_configs(client, "topic", [topic], ["cleanup.policy", RETENTION]))[topic]
    limit = int(found.get(RETENTION, -1))
    return limit if "delete" in found.get("cleanup.policy", "delete") and limit >= 0 else None


async def make_alike(
    old: KafkaClient,
    new: KafkaClient,
    topics: Iterable[str],
    ensemble: ZooKeeperClient | None,
    mirrored: Collection[str],
    replication: int,
    skip_settings: Collection[str] = (),
) -> None:
    """Creates missing topics on the new cluster and compares the others.

    `ensemble` is the old cluster's ZooKeeper. Topics in `mirrored` also get the partitions by which the old topic has
    grown. `skip_settings` are neither set nor compared. Raises TopicsDiffer with every difference before any change,
    TopicAuthorizationFailed, and the errors of `settings_of`.
    """
    names = sorted(topics)
    await old.refresh(names)
    await new.refresh(names)
    for client in (old, new):
        client.refuse_hidden(names)
    counts = {name: len(old.partitions(name) or ()) for name in names}
    here = {name: len(new.partitions(name) or ()) for name in names}
    differences = [f"the old cluster has no topic {name!r}" for name in names if not counts[name]]
    grown = [name for name in names if name in mirrored and 0 < here[name] < counts[name]]
    differences += [
        f"{name!r} has {counts[name]} partitions on the old cluster and {here[name]} on the new one: a key would "
        f"change its partition; add the missing ones, or delete the new topic and start with --restart {name}, which "
        "creates it again and mirrors it from the start"
        for name in names
        if counts[name] and here[name] and here[name] != counts[name] and name not in grown
    ]
    there = [name for name in names if counts[name]]
    wanted = await settings_of(old, there, ensemble) if there else {}
    for each in wanted.values():
        for name in skip_settings:
            each.pop(name, None)
    existing = [name for name in there if here[name]]
    settings = await settings_of(new, existing) if existing else {}
    version = new.broker_version
    for name in existing:
        expected, actual = carried(wanted[name], version), settings[name]
        expected.pop(AFTER, None)  # it refuses records, and then its topic stops: the new topic may take later times
        if actual.get(RETENTION) not in (None, expected.get(RETENTION)) and await deletes_after(old, new, name) is None:
            expected.pop(RETENTION, None)  # the new topic keeps records longer, which is allowed
            actual.pop(RETENTION, None)
        differences += _unlike(name, expected, actual)
        # reads the effective value, because the cluster's default applies too
        if (await describe_configs(new, "topic", [name], [TIMES]))[name].get(TIMES) == "LogAppendTime":
            differences.append(f"{name!r} has {TIMES}=LogAppendTime: times would be lost; set it to CreateTime")
    if differences:
        raise TopicsDiffer("the clusters differ, nothing was created: " + "; ".join(differences))
    for name in grown:
        await add_partitions(new, name, counts[name])
        log.info("added partitions to %s: it has %d now, as on the old cluster", name, counts[name])
    for name in [name for name in there if not here[name]]:
        config = {**carried(wanted[name], version), TIMES: "CreateTime"}
        await create_topic(new, name, counts[name], replication, config)
        log.info("created %s with %d partitions", name, counts[name])


def _unlike(topic: str, wanted: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Returns the differences between the settings of an existing topic and the wanted ones."""
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
    return found


async def refuse_same_cluster(old: KafkaClient, new: KafkaClient) -> None:
    """Raises ConfigError if both are the same cluster: a mirror would read the records that it writes.

    Brokers report the id of their cluster from Kafka 0.10.1 on. For older brokers it compares addresses, and so misses
    one cluster that is reached through different listeners.
    """
    await old.refresh()
    await new.refresh()
    cluster_id = old.metadata.cluster_id
    if cluster_id is not None and cluster_id == new.metadata.cluster_id:
        raise ConfigError(f"the old and the new cluster are the same: both have the cluster id {cluster_id}")
    same = {(broker.host, broker.port) for broker in old.brokers} & {
        (broker.host, broker.port) for broker in new.brokers
    }
    if same:
        where = address_text(*min(same))
        raise ConfigError(f"the old and the new cluster are the same: broker {where} is in both")


class TopicIds:
    """Reads the ids of topics: the broker's id (Kafka 2.8 and newer), otherwise the creation time of the topic's znode.

    `ensemble` is the cluster's ZooKeeper, if known. Without both there are no ids.
    """

    def __init__(self, client: KafkaClient, ensemble: ZooKeeperClient | None = None) -> None:
        self._client = client
        self._ensemble = ensemble

    async def of(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Returns topic -> current id; None if the topic has no id or does not exist. Refreshes the client's
        metadata."""
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
    """Compares two ids. Returns None if that is impossible: one is missing, or an upgrade changed their kind."""
    if known is None or now is None or known.startswith(ZNODE) != now.startswith(ZNODE):
        return None
    return known == now
