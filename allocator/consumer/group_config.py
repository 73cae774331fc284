"""The settings of a `ConsumerGroup`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from allocator.assignors import Assignor, resolve
from allocator.client.client import KafkaClient
from allocator.client.log_offsets import EARLIEST, LATEST
from allocator.consumer.keywords import argument_faults
from allocator.consumer.settings import Faults
from allocator.errors import AllocatorError, ConfigError
from allocator.groups.kafka_classic.settings import KafkaGroupSettings
from allocator.groups.names import default_client_id
from allocator.groups.zookeeper.znodes import Paths
from allocator.subscription.kinds import check_topic
from allocator.tracing import spans_of
from allocator.types import Assignors
from allocator.zookeeper.client import ZooKeeper

__all__ = ["ConsumerGroupConfig", "client_of", "group_settings_of"]

START_OFFSETS = {"earliest": EARLIEST, "latest": LATEST}
MAX_S = (2**31 - 2) / 1000  # what the protocol can say: 32-bit milliseconds
TOPIC_POLL_S = 10.0  # how soon the leader of a group notices new partitions if nobody asks for more


_TYPED: Final = ("root", "client_id", "security", "zookeeper_options")  # the other checks look at the rest


@dataclass(frozen=True)
class ConsumerGroupConfig:
    """Times in seconds. Raises one `ConfigError` that lists every fault, having touched nothing.

        ConsumerGroupConfig(group="billing", brokers="b1:9092", topics=["orders"], zookeeper="z1:2181")

    What belongs to the other membership is not needed, but is checked where it can be: `membership` alone is changed
    to move a service.
    """

    group: str
    brokers: str | Sequence[str]
    topics: Sequence[str]
    membership: Literal["zookeeper", "kafka"] = "zookeeper"
    """"zookeeper", or "kafka": Kafka's own group protocol (brokers from 0.9), shared with members of other clients."""
    zookeeper: str | None = None
    """"host:port,host:port/chroot", for membership "zookeeper"."""
    assignor: Assignors = ("range", "roundrobin")
    """Allocator functions in order of preference; the first that all members offer is taken."""
    heartbeat_interval_s: float = 3.0
    """At most half the session timeout, better a third: one lost heartbeat must not cost the membership. ZooKeeper's
    members prove themselves every quarter of it, whatever this says."""
    session_timeout_s: float = 30.0
    """More: a dead member's partitions stand still longer. Less: a pause costs them."""
    rebalance_timeout_s: float = 30.0
    """How long a generation waits for members that still have to give up what moves. More: one slow function holds up
    the group. Less: over Kafka the slow member loses its membership, over ZooKeeper a generation begins with a part of
    its partitions and another follows."""
    join_backoff_s: float = 5.0
    """From a failure to the next attempt to join; not after a generation that ended as it should."""
    watch_partition_changes: bool = False
    """Have this member look for another number of partitions, which ends the generation and has it join again."""
    partition_watch_interval_s: float = 5.0
    retention_s: float | None = None
    """How long the broker keeps the commits; None: as long as it is configured to."""
    start_offset: Literal["earliest", "latest"] = "earliest"
    """Where a partition begins of which the group has committed nothing: "earliest" or "latest"."""
    timeout_s: float = 5.0
    """For one request. Less: a slow coordinator counts as lost. More: a dead one is left later."""
    connect_timeout_s: float = 30.0
    """To reach any broker, the coordinator, ZooKeeper. What goes on for longer is a failure."""
    client_id: str = ""
    """What brokers and the other members call this process; "allocator-<host>-<pid>-<id>" if empty."""
    security: Mapping[str, Any] | None = field(default=None, repr=False)
    """TLS and SASL to Kafka, under kafka-python's names."""
    root: str = "/allocator"
    zookeeper_options: Mapping[str, Any] | None = field(default=None, repr=False)
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
        for fault in argument_faults({name: getattr(self, name) for name in _TYPED}):
            faults.add(fault.partition(" ")[0].rstrip(":"), fault)
        faults.raise_if_any()  # the other checks would trip over a wrong type
        for check in (self._required, self._numbers, self._choices, self._parts):
            check(faults)
        faults.raise_if_any()

    # -- what is made of it ---------------------------------------------------------------------------------------

    def assignors(self) -> dict[str, Assignor]:
        """By their names, the preferred one first."""
        one = isinstance(self.assignor, str) or callable(self.assignor)
        offered: Any = [self.assignor] if one else self.assignor
        if not isinstance(offered, Sequence) or not offered:
            raise ConfigError(f"assignor = {offered!r}: name at least one, e.g. 'range'")
        return {found.name: found for found in map(resolve, offered)}

    @property
    def topic_poll_s(self) -> float:
        """How often this member looks for new partitions when it leads."""
        return min(TOPIC_POLL_S, self.partition_watch_interval_s) if self.watch_partition_changes else TOPIC_POLL_S

    @property
    def first_offset(self) -> int:
        """What stands for the offset of a partition that has none."""
        return START_OFFSETS[self.start_offset]

    # -- what can be wrong with it --------------------------------------------------------------------------------

    def _required(self, faults: Faults) -> None:
        if not self.brokers:
            faults.add("brokers", "brokers is empty; name at least one, host:port")
        if not self.topics:
            faults.add("topics", "topics is empty; name at least one")
        elif not isinstance(self.topics, tuple):
            faults.add("topics", f"topics = {self.topics!r}: must be a list of names")
        if not self.group or not isinstance(self.group, str):
            faults.add("group", f"group = {self.group!r}; give the group a name")
        if self.membership == "zookeeper" and not self.zookeeper:
            faults.add("zookeeper", 'zookeeper is missing: "host:port,host:port/chroot", or membership="kafka"')

    def _numbers(self, faults: Faults) -> None:
        for name, zero in (
            ("heartbeat_interval_s", False),
            ("session_timeout_s", False),
            ("rebalance_timeout_s", False),
            ("join_backoff_s", True),
            ("partition_watch_interval_s", False),
            ("retention_s", False),
            ("timeout_s", False),
            ("connect_timeout_s", False),
        ):
            value = getattr(self, name)
            if name == "retention_s" and value is None:
                continue
            most = math.inf if name == "retention_s" else MAX_S
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not (value > 0 or (zero and value == 0)) or not value <= most or math.isinf(value):
                least = "at least 0" if zero else "more than 0"
                bound = "" if math.isinf(most) else f" and at most {most}"
                faults.add(name, f"{name} = {value!r}: must be a number of seconds, {least}{bound}")
        if not isinstance(self.watch_partition_changes, bool):
            faults.add(
                "watch_partition_changes",
                f"watch_partition_changes = {self.watch_partition_changes!r}: must be True or False",
            )

    def _choices(self, faults: Faults) -> None:
        for name, choices in (("membership", ("zookeeper", "kafka")), ("start_offset", tuple(START_OFFSETS))):
            if getattr(self, name) not in choices:
                faults.add(name, f"{name} = {getattr(self, name)!r}: must be {' or '.join(map(repr, choices))}")
        if self.client is not None and not callable(self.client):
            faults.add(
                "client", f"client = {self.client!r}: must be a function of this config that makes a KafkaClient"
            )

    def _parts(self, faults: Faults) -> None:
        """What each part refuses by itself, unless it was found already."""
        attempts: list[tuple[str, Callable[[], Any]]] = [("topics", lambda: [*map(check_topic, self.topics)])]
        attempts.append(("assignor", self.assignors))
        if not faults.keys & {"brokers", "timeout_s"}:
            attempts.append(
                ("brokers", lambda: KafkaClient(self.brokers, security=self.security, request_timeout_s=self.timeout_s))
            )
        if self.membership == "zookeeper":
            attempts.append(("group", lambda: Paths(self.root, self.group)))
            if not faults.keys & {"zookeeper", "session_timeout_s"}:
                attempts.append(("zookeeper", lambda: ZooKeeper(self.zookeeper or "", options=self.zookeeper_options)))
        elif not faults.keys & {"session_timeout_s", "heartbeat_interval_s", "rebalance_timeout_s"}:
            attempts.append(("heartbeat_interval_s", lambda: group_settings_of(self)))
        for name, attempt in attempts:
            if name not in faults.keys:
                try:
                    attempt()
                except (AllocatorError, TypeError) as error:
                    faults.add(name, str(error))


def client_of(config: ConsumerGroupConfig) -> KafkaClient:
    """The client for the brokers, not connected."""
    if config.client is not None:
        made: KafkaClient = config.client(config)
        return made
    # brokers of 0.9 make a JMX name of the client's, which has no colon
    name = re.sub(r"[^A-Za-z0-9._-]", "-", config.client_id)
    client = KafkaClient(config.brokers, client_id=name, security=config.security, request_timeout_s=config.timeout_s)
    client.measures.spans = spans_of(config.group, config.client_id)
    return client


def group_settings_of(config: ConsumerGroupConfig) -> KafkaGroupSettings:
    """Those of Kafka's group protocol."""
    return KafkaGroupSettings(
        session_timeout_s=config.session_timeout_s,
        heartbeat_interval_s=config.heartbeat_interval_s,
        rebalance_timeout_s=config.rebalance_timeout_s,
    )
