"""The settings of a `ConsumerGroup`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from allocator.assignors import Assignor
from allocator.core.client import KafkaClient
from allocator.core.consumer import Fault, MembershipConfig, membership_from
from allocator.core.settings import (
    DEFAULT,
    Faults,
    Flag,
    Number,
    Setting,
    Text,
    default_client_id,
    keyword_faults,
    names_arguments,
)
from allocator.core.text import shown
from allocator.protocols.kafka_classic import KafkaSettings
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.types import Assignors

START_OFFSETS: Final = {"earliest": -2, "latest": -1}
TOPIC_POLL_S: Final = 10.0  # seconds between two reads of the partition counts without `watch_partition_changes`
_MEMBERSHIPS: Final = ("zookeeper", "kafka")
_SECONDS: Final = Number(0, 86400, above=True)
_JOINING: Final = ("group", "client_id", "topics", "assignor", "connect_timeout_s")

OWN: Final[Mapping[str, Setting]] = {
    "start_offset": Setting(
        Text(("earliest", "latest")), "earliest", "Where a partition without a committed offset starts."
    ),
    "join_backoff_s": Setting(
        Number(0, 86400),
        5.0,
        "Seconds from a failure to the next attempt to join. A generation that ended normally is not a failure.",
    ),
    "watch_partition_changes": Setting(
        Flag(),
        False,
        "Makes this member watch the number of partitions. A change ends the generation, and the member joins again.",
    ),
    "partition_watch_interval_s": Setting(_SECONDS, 5.0, "Seconds between two checks of the number of partitions."),
    "retention_s": Setting(
        Number(above=True),
        None,
        "Seconds that the broker keeps the commits. None: as long as the broker's settings say.",
    ),
    "timeout_s": Setting(
        _SECONDS,
        5.0,
        "Seconds for one request. Higher: a dead coordinator is replaced later; lower: a slow one counts as dead.",
    ),
}
"""Settings that only `ConsumerGroup` has."""


@names_arguments
@dataclass(frozen=True)
class ConsumerGroupConfig:
    """The settings of a `ConsumerGroup`. Times in seconds. Raises one `ConfigError` that lists every fault.

        ConsumerGroupConfig(group="billing", brokers="b1:9092", topics=["orders"], zookeeper="z1:2181")

    The settings of the other membership are optional, and are checked if they are given. So a service moves by changing
    `membership` alone. docs/reference/settings.md has the meaning and the range of each setting.
    """

    group: str
    brokers: str | Sequence[str]
    topics: Sequence[str]
    membership: Literal["zookeeper", "kafka"] = DEFAULT["membership"]
    """"zookeeper", or "kafka": Kafka's own group protocol (brokers from 0.9), shared with members of other clients."""
    zookeeper: str | None = DEFAULT["zookeeper"]
    """"host:port,host:port/chroot", for membership "zookeeper"."""
    assignor: Assignors = ("range", "roundrobin")
    """Assignors in order of preference. The group uses the first assignor that all members offer."""
    heartbeat_interval_s: float = DEFAULT["heartbeat_interval_s"]
    """At most half of the session timeout, better a third. Only for membership "kafka": with ZooKeeper, a member proves
    its session every quarter of the session timeout."""
    session_timeout_s: float = DEFAULT["session_timeout_s"]
    rebalance_timeout_s: float = DEFAULT["rebalance_timeout_s"]
    """Seconds that a generation waits for members that must release partitions. Higher: one slow function delays the
    group; lower: with Kafka, the slow member loses its membership; with ZooKeeper, a generation begins with some of its
    partitions, and another one follows."""
    join_backoff_s: float = OWN["join_backoff_s"].default
    watch_partition_changes: bool = OWN["watch_partition_changes"].default
    partition_watch_interval_s: float = OWN["partition_watch_interval_s"].default
    retention_s: float | None = OWN["retention_s"].default
    start_offset: Literal["earliest", "latest"] = OWN["start_offset"].default
    timeout_s: float = OWN["timeout_s"].default
    connect_timeout_s: float = DEFAULT["connect_timeout_s"]
    """Seconds to reach a broker, the coordinator and ZooKeeper. After that, the attempt fails."""
    client_id: str = ""
    """The name of this process for brokers and other members; "allocator-<host>-<pid>-<id>" if empty."""
    security: Mapping[str, Any] | None = field(default=DEFAULT["security"], repr=False)
    root: str = DEFAULT["root"]
    zookeeper_options: Mapping[str, Any] | None = field(default=DEFAULT["zookeeper_options"], repr=False)
    client: Callable[[ConsumerGroupConfig], Any] | None = None
    """Function that creates the unconnected Kafka client. Tests replace it to make requests fail."""

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
        """Returns the assignors by name, the preferred one first."""
        return self._membership().assignors()

    @property
    def topic_poll_s(self) -> float:
        """Seconds between two reads of the partition counts while this member leads the group."""
        return min(TOPIC_POLL_S, self.partition_watch_interval_s) if self.watch_partition_changes else TOPIC_POLL_S

    @property
    def first_offset(self) -> int:
        """The start of a partition without a committed offset, as in ListOffsets."""
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
                "client", f"client = {self.client!r}: must be a function of this config that creates a KafkaClient"
            )

    def _parts(self, faults: Faults) -> None:
        """Adds to `faults` the settings that contradict each other, or that the Kafka or ZooKeeper client refuses."""
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
        """Returns the settings of the membership. Replaces the settings in `wrong`, which have faults, with their
        defaults."""
        defaults = {**DEFAULT, "group": None, "topics": ()}
        values = {**vars(self), **{name: defaults[name] for name in wrong if name in defaults}}
        membership = membership_from(self.membership, values)
        return MembershipConfig.of(membership, **{name: values[name] for name in _JOINING})


def client_of(config: ConsumerGroupConfig) -> KafkaClient:
    """Returns a Kafka client that is not connected yet."""
    if config.client is not None:
        client: KafkaClient = config.client(config)
        return client
    # brokers of 0.9 use the name in a JMX name, which may not contain a colon
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
