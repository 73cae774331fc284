"""What the group protocol asks of those who use it, and the settings of a member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from allocator.errors import AllocatorError, BrokerError, ConfigError
from allocator.groups.kafka_classic.messages import STATIC_MEMBERS, JoinedMember

__all__ = ["KafkaGroupSettings", "Participant", "passes"]


@dataclass(frozen=True)
class KafkaGroupSettings:
    """How a member takes part. Times in seconds. Raises `ConfigError` for settings that contradict each other."""

    session_timeout_s: float = 10.0  # more: a dead member's partitions stand still longer; less: a pause costs them
    heartbeat_interval_s: float = 3.0  # more: rebalances are noticed later; less: more requests
    # how long a rebalance waits for a member that drains and commits. more: a hung one holds up the group;
    # less: a slow one loses what it holds. Before 0.10.1 the session timeout stands for it.
    rebalance_timeout_s: float = 60.0
    max_poll_interval_s: float | None = None  # None: the user may be silent for ever
    instance_id: str | None = None  # of a static member (KIP-345): it never leaves, its successor takes its place
    retry_backoff_s: float = 0.1
    failure_pause_s: float = 1.0  # after an error that retrying does not help, which the user was told

    def __post_init__(self) -> None:
        for name in ("session_timeout_s", "heartbeat_interval_s", "rebalance_timeout_s", "retry_backoff_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)!r}")
        if 2 * self.heartbeat_interval_s > self.session_timeout_s:
            raise ConfigError(
                f"heartbeat_interval_s is {self.heartbeat_interval_s:g}; at most half of session_timeout_s "
                f"({self.session_timeout_s:g}), or one lost heartbeat costs the membership"
            )
        if self.max_poll_interval_s is not None and not self.max_poll_interval_s > 0:
            raise ConfigError(f"max_poll_interval_s must be positive or None, not {self.max_poll_interval_s!r}")

    def check(self, group: str, join_version: int | None) -> None:
        """Raises `ConfigError` for what brokers with this version of JoinGroup cannot do."""
        if join_version is None:
            raise ConfigError(f"group {group!r}: the brokers are older than 0.9 and have no group protocol")
        if self.instance_id is not None and join_version < STATIC_MEMBERS:
            raise ConfigError(f"group {group!r}: static members (an instance id) need brokers from 2.3 on")

    def pause_s(self, error: AllocatorError) -> float:
        """Before what met `error` is tried again."""
        return self.retry_backoff_s if passes(error) else self.failure_pause_s


def passes(error: AllocatorError) -> bool:
    """Whether it is a broker's trouble that ends by itself: not for the user to hear of."""
    return error.retriable and isinstance(error, BrokerError)


class Participant(Protocol):
    """What a kind of group adds; the coordinator calls it, one call at a time but for the last three."""

    protocol_type: str

    def offers(self) -> Sequence[tuple[str, bytes]]:
        """Names of what this member supports with what it has to say under each, the preferred one first."""

    async def prepare(self) -> None:
        """Before JoinGroup: give up what may not be held while joining. Cancelled if the membership is lost."""

    async def compute_assignment(self, protocol: str, members: Sequence[JoinedMember]) -> Mapping[str, bytes]:
        """This member leads: returns what it assigns to each member."""

    async def joined(self, generation: int, protocol: str, assignment: bytes) -> None:
        """A new generation stands and this is our part in it. Cancelled if the membership is lost."""

    async def lost(self, why: str) -> None:
        """What is held may be somebody else's already."""

    async def leaving(self) -> None:
        """Give everything up in good order. Cancelled if the membership is lost."""

    def acknowledged(self, started: float, *, rebalancing: bool) -> None:
        """The coordinator counts us as a member at some moment after `started`, by the clock given.

        `rebalancing`: it also said that it waits for this member to join again.
        """

    def failed(self, error: BaseException) -> None:
        """Something that the user has to know."""
