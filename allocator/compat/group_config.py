"""The settings of a `ConsumerGroup`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from allocator.assignors import Assignor
from allocator.core.client import KafkaClient
from allocator.core.consumer import Fault, MembershipConfig, membership_from
from allocator.core.settings import DEFAULT, Faults, Flag, Number, Setting, Text, keyword_faults, names_arguments
from allocator.core.text import shown
from allocator.core.znodes import default_client_id
from allocator.core.zookeeper import ZooKeeperClient
from allocator.protocols.kafka_classic import KafkaSettings
from allocator.types import Assignors

START_OFFSETS: Final = {"earliest": -2, "latest": -1}
TOPIC_POLL_S: Final = 10.0  # how soon the leader of a group notices new partitions if nobody asks for more
_MEMBERSHIPS: Final = ("zookeeper", "kafka")
_SECONDS: Final = Number(0, 86400, above=True)
_JOINING: Final = ("group", "client_id", "topics", "assignor", "connect_timeout_s")

OWN: Final[Mapping[str, Setting]] = {
    "start_offset": Setting(
        Text(("earliest", "latest")),
        "earliest",
        "Where a partition begins for which the group has committed nothing.",
    ),
    "join_backoff_s": Setting(
        Number(0, 86400),
        5.0,
        "Seconds from a failure to the next attempt to join; not after a generation that ended in order.",
    ),
    "watch_partition_changes": Setting(
        Flag(),
        False,
        "Has this member watch the number of partitions; a change ends the generation, and it joins again.",
    ),
    "partition_watch_interval_s": Setting(_SECONDS, 5.0, "Seconds between these checks of the number of partitions."),
    "retention_s": Setting(
        Number(above=True),
        None,
        "Seconds that the broker keeps the commits. None: as long as it is configured to.",
    ),
    "timeout_s": Setting(
        _SECONDS,
        5.0,
        "Seconds for one request. Less: a slow coordinator counts as lost. More: a dead one is left later.",
    ),
}
"""The settings that no other consumer has."""


@names_arguments
@dataclass(frozen=True)
class ConsumerGroupConfig:
    """The settings of a `ConsumerGroup`. Times in seconds. Raises one `ConfigError` that lists every fault.

        ConsumerGroupConfig(group="billing", brokers="b1:9092", topics=["orders"], zookeeper="z1:2181")

    The settings of the other membership are not needed, but are checked where they can be, so that a service moves by
    changing `membership` alone. docs/reference/settings.md has the meaning and range of each.
    """

    group: str
    brokers: str | Sequence[str]
    topics: Sequence[str]
    membership: Literal["zookeeper", "kafka"] = DEFAULT["membership"]
    """"zookeeper", or "kafka": Kafka's own group protocol (brokers from 0.9), shared with members of other clients."""
    zookeeper: str | None = DEFAULT["zookeeper"]
    """"host:port,host:port/chroot", for membership "zookeeper"."""
    assignor: Assignors = ("range", "roundrobin")
    """Assignors in order of preference; the first that all members offer is taken."""
    heartbeat_interval_s: float = DEFAULT["heartbeat_interval_s"]
    """At most half of the session timeout, better a third. A member on ZooKeeper proves its session every quarter of
    the session timeout instead."""
    session_timeout_s: float = DEFAULT["session_timeout_s"]
    rebalance_timeout_s: float = DEFAULT["rebalance_timeout_s"]
    """How long a generation waits for members that must release partitions that move. More: one slow function holds up
    the group. Less: over Kafka the slow member loses its membership; over ZooKeeper a generation begins with a part of
    its partitions, and another follows."""
    join_backoff_s: float = OWN["join_backoff_s"].default
    watch_partition_changes: bool = OWN["watch_partition_changes"].default
    partition_watch_interval_s: float = OWN["partition_watch_interval_s"].default
    retention_s: float | None = OWN["retention_s"].default
    start_offset: Literal["earliest", "latest"] = OWN["start_offset"].default
    timeout_s: float = OWN["timeout_s"].default
    connect_timeout_s: float = DEFAULT["connect_timeout_s"]
    """To reach any broker, the coordinator, ZooKeeper. A failure after that."""
    client_id: str = ""
    """The name of this process for brokers and the other members; "allocator-<host>-<pid>-<id>" if empty."""
    security: Mapping[str, Any] | None = field(default=DEFAULT["security"], repr=False)
    root: str = DEFAULT["root"]
    zookeeper_options: Mapping[str, Any] | None = field(default=DEFAULT["zookeeper_options"], repr=False)
    client: Callable[[ConsumerGroupConfig], Any] | None = None
    """Makes the client, not connected, that speaks to the brokers, for tests that have them fail."""

    def __post_init__(self) -> None:
        for name in ("topics", "brokers"):
            value = getattr(self, name)
            if isinstance(value, (list, set, frozenset)):
                object.__setattr__(self, name, tuple(value))
        if self.client_id == "":
            object.__setattr__(self, "client_id", default_client_id())
        faults = Faults("ConsumerGroupConfig")
        for name, fault in keyword_faults(vars(self), OWN).items():
            faults.add(name, fault)
        self._choices(faults)
        self._parts(faults)
        faults.raise_if_any()

    # -- derived settings -----------------------------------------------------------------------------------------

    def assignors(self) -> dict[str, Assignor]:
        """By their names, the preferred one first."""
        return self._membership().assignors()

    @property
    def topic_poll_s(self) -> float:
        """Seconds between two reads of the partition counts, while this member leads the group."""
        return min(TOPIC_POLL_S, self.partition_watch_interval_s) if self.watch_partition_changes else TOPIC_POLL_S

    @property
    def first_offset(self) -> int:
        """The start of a partition without a committed offset."""
        return START_OFFSETS[self.start_offset]

    # -- checks ---------------------------------------------------------------------------------------------------

    def _choices(self, faults: Faults) -> None:
        if not self.group:
            faults.add("group", f"group = {self.group!r}: must be text")
        if not self.topics:
            faults.add("topics", "topics is empty; name at least one")
        elif not isinstance(self.topics, tuple) or not all(isinstance(topic, str) for topic in self.topics):
            faults.add("topics", f"topics = {shown(self.topics)}: must be a list of texts")
        if "membership" not in faults.keys and self.membership not in _MEMBERSHIPS:
            allowed = " or ".join(map(repr, _MEMBERSHIPS))
            faults.add("membership", f"membership = {self.membership!r}: must be {allowed}")
        if self.client is not None and not callable(self.client):
            faults.add(
                "client", f"client = {self.client!r}: must be a function of this config that makes a KafkaClient"
            )

    def _parts(self, faults: Faults) -> None:
        """Settings that contradict each other, or that their part refuses."""
        found: list[Fault] = []
        if not faults.keys & {"brokers", "security"}:
            found += Fault.of(("security",), lambda: KafkaClient(self.brokers, security=self.security))
        if self.membership == "zookeeper" and self.zookeeper and not faults.keys & {"zookeeper", "zookeeper_options"}:
            ensemble, options = self.zookeeper, self.zookeeper_options
            found += Fault.of(("zookeeper_options",), lambda: ZooKeeperClient(ensemble, options=options))
        if "membership" not in faults.keys:
            found += self._membership(faults.keys).faults()
        for fault in found:
            if not faults.keys.intersection(fault.settings):
                faults.add(fault.settings[0], fault.text(vars(self)))

    def _membership(self, wrong: Collection[str] = ()) -> MembershipConfig:
        """`wrong`: settings that have faults, so that their defaults count."""
        defaults = {**DEFAULT, "group": None, "topics": ()}
        values = {**vars(self), **{name: defaults[name] for name in wrong if name in defaults}}
        membership = membership_from(self.membership, values)
        return MembershipConfig.of(membership, **{name: values[name] for name in _JOINING})


def client_of(config: ConsumerGroupConfig) -> KafkaClient:
    """The client for the brokers, not connected."""
    if config.client is not None:
        made: KafkaClient = config.client(config)
        return made
    # brokers of 0.9 make a JMX name of the client's, which has no colon
    name = re.sub(r"[^A-Za-z0-9._-]", "-", config.client_id)
    client = KafkaClient(config.brokers, client_id=name, security=config.security, request_timeout_s=config.timeout_s)
    client.measures.trace(config.group, config.client_id)
    return client


def kafka_settings_of(config: ConsumerGroupConfig) -> KafkaSettings:
    """Returns the settings of Kafka's group protocol."""
    return KafkaSettings(
        name=config.client_id,
        topics=frozenset(config.topics),
        connect_timeout_s=config.connect_timeout_s,
        topic_poll_s=config.topic_poll_s,
        session_timeout_s=config.session_timeout_s,
        heartbeat_interval_s=config.heartbeat_interval_s,
        rebalance_timeout_s=config.rebalance_timeout_s,
    )
