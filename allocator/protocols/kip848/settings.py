"""The settings of a member of a KIP-848 group."""

from __future__ import annotations

from dataclasses import dataclass, field

from allocator.core.membership import MemberSettings
from allocator.errors import ConfigError
from allocator.protocols.kafka_group import GroupSettings


@dataclass(frozen=True)
class Kip848GroupSettings(GroupSettings):
    """How the member speaks the protocol. Times in seconds. Raises `ConfigError`.

    The session timeout and the heartbeat interval are settings of the group on the broker
    (`consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms`).
    """

    rack: str | None = None
    server_assignor: str | None = None  # "uniform" or "range", if the broker has it; None: the broker's default

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("instance_id", "server_assignor"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} is empty; give a name, or None for no such thing")


@dataclass(frozen=True)
class Kip848Settings(MemberSettings):
    """How a member takes part in its group. Times in seconds.

    The member matches the pattern, not the broker: 4.1 assigns nothing to a member whose expression matches only topics
    that the group had before. Python's syntax is also the same for all memberships.
    """

    topic_poll_s: float = 10.0  # with a pattern: between two metadata requests that look for new topics
    group: Kip848GroupSettings = field(default_factory=Kip848GroupSettings)
