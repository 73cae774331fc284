"""The settings of a member of a classic Kafka group."""

from __future__ import annotations

from dataclasses import dataclass

from allocator.core.settings import DEFAULT
from allocator.errors import ConfigError
from allocator.protocols.kafka_classic.messages import STATIC_MEMBERS
from allocator.protocols.kafka_group import GroupSettings


@dataclass(frozen=True)
class KafkaSettings(GroupSettings):
    """The settings of a member of a classic group. Times in seconds. Raises `ConfigError` for a contradiction."""

    weight: float = DEFAULT["weight"]
    session_timeout_s: float = DEFAULT["session_timeout_s"]
    heartbeat_interval_s: float = DEFAULT["heartbeat_interval_s"]

    def __post_init__(self) -> None:
        if 2 * self.heartbeat_interval_s > self.session_timeout_s:
            raise ConfigError(
                f"heartbeat_interval_s is {self.heartbeat_interval_s:g}; at most half of session_timeout_s "
                f"({self.session_timeout_s:g}), or one lost heartbeat costs the membership"
            )

    def check(self, group: str, join_version: int | None) -> None:
        """Raises `ConfigError` if brokers with this version of JoinGroup do not support the settings."""
        if join_version is None:
            raise ConfigError(f"group {group!r}: the brokers are older than 0.9 and have no group protocol")
        if self.instance_id is not None and join_version < STATIC_MEMBERS:
            raise ConfigError(f"group {group!r}: static members (an instance id) need brokers from 2.3 on")
