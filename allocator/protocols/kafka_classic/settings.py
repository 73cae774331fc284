"""The settings of a member of a classic Kafka group."""

from __future__ import annotations

from dataclasses import dataclass, field

from allocator.core.settings import DEFAULT, SECONDS, check_keywords
from allocator.errors import AllocatorError, ConfigError
from allocator.protocols.kafka_classic.messages import STATIC_MEMBERS
from allocator.protocols.kafka_group import passes


@dataclass(frozen=True)
class KafkaGroupSettings:
    """How the member speaks the protocol. Times in seconds. Raises `ConfigError` for settings that contradict."""

    session_timeout_s: float = DEFAULT["session_timeout_s"]
    heartbeat_interval_s: float = DEFAULT["heartbeat_interval_s"]
    rebalance_timeout_s: float = DEFAULT["rebalance_timeout_s"]
    max_poll_interval_s: float | None = None  # None: the user may poll at any interval
    instance_id: str | None = None  # of a static member (KIP-345): it never leaves, its successor takes its place
    retry_backoff_s: float = 0.1
    failure_pause_s: float = 1.0  # after an error that a retry does not cure; the user has been notified of it

    def __post_init__(self) -> None:
        check_keywords(vars(self), retry_backoff_s=SECONDS, failure_pause_s=SECONDS)
        if 2 * self.heartbeat_interval_s > self.session_timeout_s:
            raise ConfigError(
                f"heartbeat_interval_s is {self.heartbeat_interval_s:g}; at most half of session_timeout_s "
                f"({self.session_timeout_s:g}), or one lost heartbeat costs the membership"
            )

    def check(self, group: str, join_version: int | None) -> None:
        """Raises `ConfigError` for what brokers with this version of JoinGroup cannot do."""
        if join_version is None:
            raise ConfigError(f"group {group!r}: the brokers are older than 0.9 and have no group protocol")
        if self.instance_id is not None and join_version < STATIC_MEMBERS:
            raise ConfigError(f"group {group!r}: static members (an instance id) need brokers from 2.3 on")

    def pause_s(self, error: AllocatorError) -> float:
        """Seconds to wait before a retry after `error`."""
        return self.retry_backoff_s if passes(error) else self.failure_pause_s


@dataclass(frozen=True)
class KafkaSettings:
    """How a member takes part in its group. Times in seconds."""

    name: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    weight: float = DEFAULT["weight"]
    rack: str | None = None
    connect_timeout_s: float | None = DEFAULT["connect_timeout_s"]  # limit of `join`; None: no limit
    topic_poll_s: float = 10.0  # between two metadata requests that look for new partitions and topics
    group: KafkaGroupSettings = field(default_factory=KafkaGroupSettings)
