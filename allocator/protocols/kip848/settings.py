"""The settings of a member of a KIP-848 group."""

from __future__ import annotations

from dataclasses import dataclass, field

from allocator.core.settings import DEFAULT, SECONDS, check_keywords
from allocator.errors import ConfigError


@dataclass(frozen=True)
class Kip848GroupSettings:
    """How the member speaks the protocol. Times in seconds. Raises `ConfigError`.

    The session timeout and the heartbeat interval are settings of the group on the broker
    (`consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms`).
    """

    rebalance_timeout_s: float = DEFAULT["rebalance_timeout_s"]
    max_poll_interval_s: float | None = None  # None: the user may poll at any interval
    instance_id: str | None = None  # of a static member: its partitions stay unassigned until it is back, or expires
    rack: str | None = None
    server_assignor: str | None = None  # "uniform" or "range", if the broker has it; None: the broker's default
    retry_backoff_s: float = 0.1
    failure_pause_s: float = 1.0  # after an error that a retry does not cure; the user has been notified of it

    def __post_init__(self) -> None:
        check_keywords(vars(self), retry_backoff_s=SECONDS, failure_pause_s=SECONDS)
        for name in ("instance_id", "server_assignor"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} is empty; give a name, or None for no such thing")


@dataclass(frozen=True)
class Kip848Settings:
    """How a member takes part in its group. Times in seconds."""

    topics: frozenset[str] = frozenset()
    # the member matches the pattern, not the broker: 4.1 assigns nothing to a member whose expression matches only
    # topics that the group had before. Python's syntax is also the same for all memberships
    pattern: str | None = None
    topic_poll_s: float = 10.0  # with a pattern: between two metadata requests that look for new topics
    connect_timeout_s: float | None = DEFAULT["connect_timeout_s"]  # limit of `join`; None: no limit
    group: Kip848GroupSettings = field(default_factory=Kip848GroupSettings)
