"""What a member of the next-generation protocol brings along, and what it asks of those who use it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from kafka.protocol.admin import DescribeConfigsRequest

from allocator.client.client import KafkaClient
from allocator.client.errors import for_code
from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.groups.kip848.messages import IdPartition

__all__ = ["Ids", "Kip848GroupSettings", "Kip848Participant", "ask_session_timeout", "no_such_protocol", "refusal"]

log = logging.getLogger(__name__)

Ids = frozenset[IdPartition]

GROUP_RESOURCE = 32  # of DescribeConfigs
SESSION_TIMEOUT = "consumer.session.timeout.ms"
ANSWERS_WITHIN_S = 2.0  # more: a broker that hangs holds up a heartbeat


@dataclass(frozen=True)
class Kip848GroupSettings:
    """How a member takes part. Times in seconds. Session timeout and heartbeat interval are the broker's to set
    (`consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms` of the group). Raises `ConfigError`.
    """

    # how long the coordinator waits for a member that drains and commits. more: a hung one holds up who is to have
    # its partitions; less: a slow one loses all it holds
    rebalance_timeout_s: float = 60.0
    max_poll_interval_s: float | None = None  # None: the user may be silent for ever
    instance_id: str | None = None  # of a static member: what it held stays unassigned until it is back, or expires
    rack: str | None = None
    server_assignor: str | None = None  # "uniform" or "range", if the broker has it; None: the broker's default
    retry_backoff_s: float = 0.1
    failure_pause_s: float = 1.0  # after an error that retrying does not help, which the user was told

    def __post_init__(self) -> None:
        for name in ("rebalance_timeout_s", "retry_backoff_s", "failure_pause_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)!r}")
        if self.max_poll_interval_s is not None and not self.max_poll_interval_s > 0:
            raise ConfigError(f"max_poll_interval_s must be positive or None, not {self.max_poll_interval_s!r}")
        for name in ("instance_id", "server_assignor"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} is empty; give a name, or None for no such thing")


NO_SUCH_PROTOCOL = (
    "the brokers do not offer the next-generation group protocol (KIP-848), which is in Kafka from 4.0 on unless it is "
    "disabled (group.version, group.coordinator.rebalance.protocols), and in 3.9 only as a preview; use the classic one"
)


def no_such_protocol(group: str, said: str = "") -> ConfigError:
    return ConfigError(f"group {group!r}: {NO_SUCH_PROTOCOL}{said}")


class Kip848Participant(Protocol):
    """Whoever processes the partitions; the group calls it, one call at a time but for the last three."""

    def topics(self) -> frozenset[str]:
        """What this member subscribes to, as of now."""

    async def take(self, given: Ids) -> bool:
        """Begin with those of these that are not held yet. False if some cannot be named yet: called again."""

    async def release(self, taken: Ids) -> None:
        """Give these up: drain, commit; others may have them when this returns. Cancelled if the membership is lost."""

    async def lost(self, why: str) -> None:
        """What is held may be somebody else's already."""

    def acknowledged(self, started: float, session_timeout_s: float, *, revoking: bool) -> None:
        """The coordinator counts us as a member at some moment after `started`, by the clock given.

        `revoking`: it may have been waiting, since before `started`, for this member to give something up.
        """

    def failed(self, error: BaseException) -> None:
        """Something that the user has to know."""


async def ask_session_timeout(client: KafkaClient, group: str) -> float | None:
    """The session timeout that the broker applies to this group, in seconds; None if it does not say.

    Heartbeats do not tell it. Needs the right to DESCRIBE_CONFIGS of the group.
    """
    request = DescribeConfigsRequest
    resource = request.DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=[SESSION_TIMEOUT]
    )
    try:
        response = await client.send_any(
            request(resources=[resource], include_synonyms=False, include_documentation=False), ANSWERS_WITHIN_S
        )
        (result,) = response.results
        if result.error_code:
            raise for_code(result.error_code, f"group {group!r}: its configuration")
        values = [int(config.value) / 1000 for config in result.configs if config.name == SESSION_TIMEOUT]
    except (AllocatorError, ValueError, TypeError) as error:
        log.debug("%s: the session timeout is not to be had: %s", group, error)
        return None
    return values[0] if values else None


def refusal(code: int, message: str | None, group: str, settings: Kip848GroupSettings) -> AllocatorError:
    """What the user is told of a heartbeat's error code that no retrying helps."""
    said = f" ({message})" if message else ""
    where = f"group {group!r}"
    if code == 35:
        return no_such_protocol(group, said)
    if code == 69:
        return ConfigError(
            f"{where} has members that cannot be moved to the next-generation protocol: let them stop first, or allow "
            f"it by the brokers' group.consumer.migration.policy{said}"
        )
    if code == 112:
        return ConfigError(f"{where}: the broker has no server_assignor {settings.server_assignor!r}{said}")
    error = for_code(code, f"{where}: cannot take part")
    return BrokerError(f"{error}{said}", code=code)
