"""The interface between a group protocol and the consumer.

A consumer holds a `Membership`. The membership calls an `AssignmentListener` when partitions come and go, and asks a
`PartitionCountSource` how many partitions topics have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from allocator.groups.zookeeper.znodes import Parts
from allocator.types import TopicPartition

__all__ = ["AssignmentListener", "Membership", "PartitionCountSource"]


class AssignmentListener(Protocol):
    """Whoever processes the partitions; the membership calls it, one call at a time except `revoked`."""

    async def assigned(self, partitions: Parts) -> None:
        """These are ours from now on: begin with them."""

    async def revoked(self, partitions: Parts) -> None:
        """Stop these, drain, commit; they are released when this returns. Cancelled if the session is lost."""

    async def lost(self, partitions: Parts) -> None:
        """These may be somebody else's already: stop, and commit nothing."""

    def suspended(self, why: str) -> None:
        """Nothing may be delivered or committed until `resumed` (ownership stands)."""

    def resumed(self) -> None:
        """The lease is valid again."""

    def failed(self, error: BaseException) -> None:
        """The membership met something that the user has to know; called from outside any request of theirs."""


class PartitionCountSource(Protocol):
    """What the leader needs to know of the Kafka cluster. `KafkaClient` is one."""

    def follow(self, topics: Iterable[str]) -> None: ...

    def follow_all(self) -> None: ...

    async def refresh(self, topics: Iterable[str] | None = None) -> None: ...

    def partitions(self, topic: str) -> tuple[int, ...] | None: ...

    def topics(self, internal: bool = False) -> frozenset[str]: ...

    def racks(self, tp: TopicPartition) -> tuple[str | None, ...]: ...

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]: ...


class Membership(Protocol):
    """Who is alive and who owns what."""

    @property
    def ended(self) -> BaseException | None:
        """What ended it for good, other than `leave`."""

    @property
    def member_id(self) -> str:
        """As the group knows this member; empty before it joined."""

    @property
    def generation(self) -> int:
        """Number of the assignment that this member follows."""

    async def join(self) -> None:
        """Becomes a member; returns once the group knows of it, not once it owns something."""

    async def leave(self) -> None:
        """Releases everything (drained and committed) and leaves. Safe to call twice."""

    def may_act(self) -> bool:
        """Whether records may be delivered and commits sent at this instant."""

    def polled(self) -> None:
        """The user asks for records. With a `max_poll_interval_s`, who does not do so in time leaves until he does."""

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription; takes effect with the rebalance that this causes. Raises ConfigError."""

    @property
    def held(self) -> Parts:
        """The partitions that this member owns now."""
