"""The interface between a group protocol and the consumer.

A consumer holds a `Membership`, which says which partitions this member owns. The membership calls an
`AssignmentListener` when it gains or loses partitions, and asks a `PartitionCountSource` how many partitions topics
have. Nothing above this module has to know which protocol the group speaks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from allocator.errors import IllegalState
from allocator.offsets.messages import Committer
from allocator.types import Partitions, TopicPartition
from allocator.zookeeper.client import ZooKeeper

__all__ = ["AssignmentListener", "GroupMembership", "Membership", "PartitionCountSource"]


class AssignmentListener(Protocol):
    """Processes the partitions of a member. The membership calls it, one call at a time except `revoked`."""

    async def assigned(self, partitions: Partitions) -> None:
        """This member owns these partitions from now on: start them."""

    async def revoked(self, partitions: Partitions) -> None:
        """Stop these partitions, drain and commit them. The membership releases them when this returns.

        Cancelled if the session is lost.
        """

    async def lost(self, partitions: Partitions) -> None:
        """Another member may own these partitions already: stop them, and commit nothing."""

    def suspended(self, why: str) -> None:
        """Deliver and commit nothing until `resumed`. The member still owns its partitions."""

    def resumed(self) -> None:
        """The lease is valid again."""

    def failed(self, error: BaseException) -> None:
        """Pass this error to the user. It happened outside any call of the user's."""


class PartitionCountSource(Protocol):
    """What a membership needs to know of the Kafka cluster. `KafkaClient` is one."""

    def follow(self, topics: Iterable[str]) -> None: ...

    def follow_all(self) -> None: ...

    async def refresh(self, topics: Iterable[str] | None = None) -> None: ...

    def partitions(self, topic: str) -> tuple[int, ...] | None: ...

    def topics(self, internal: bool = False) -> frozenset[str]: ...

    def racks(self, tp: TopicPartition) -> tuple[str | None, ...]: ...

    def on_metadata(self, callback: Callable[[], None]) -> Callable[[], None]: ...


class Membership(Protocol):
    """One member of a group: which partitions it owns, and whether it may still act on them."""

    @property
    def ended(self) -> BaseException | None:
        """The error that ended the membership for good; None while it lasts, and after `leave`."""

    @property
    def member_id(self) -> str:
        """The member's id in the group; empty before it joined."""

    @property
    def generation(self) -> int:
        """Number of the assignment that this member follows."""

    @property
    def held(self) -> Partitions:
        """The partitions that this member owns now."""

    @property
    def committer(self) -> Committer | None:
        """The identity that commits carry; None where Kafka does not know the members of the group."""

    async def connect(self) -> None:
        """Connects to what the group coordinates through, while the caller does other things before `join`.

        `join` connects otherwise. After an error the caller calls `leave`.
        """

    async def join(self) -> None:
        """Becomes a member. Returns once the group knows the member, perhaps before it owns a partition."""

    async def leave(self) -> None:
        """Drains, commits and releases everything, then leaves. Safe to call twice."""

    def leave_for_good(self) -> None:
        """The next `leave` keeps nothing for another process of the same instance id. Without effect elsewhere."""

    def may_act(self) -> bool:
        """Whether the member may deliver records and send commits at this instant."""

    def fence(self, partition: TopicPartition) -> int:
        """The fencing token of this ownership: a number that grows with each new owner of the partition.

        Set before `assigned` is called. docs/howto/effects-once.md says how far each membership keeps the promise.
        """

    async def confirm(self) -> bool:
        """Waits for an acknowledgement of the group that this member asks for after the call.

        Returns False when the membership ended instead. What the member holds after True, with the same fence as
        before the call, it owned throughout.
        """

    async def next_owners(self, partitions: Partitions) -> Mapping[TopicPartition, str]:
        """The ids of the members that get these partitions once this member has released them, where that is known.

        Raises AllocatorError.
        """

    def polled(self) -> None:
        """The user asks for records. Without such a call for `max_poll_interval_s` the member leaves until the next."""

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Replaces the subscription; takes effect with the rebalance that this causes. Raises ConfigError."""

    def assign(self, partitions: Iterable[TopicPartition]) -> Partitions:
        """Replaces the subscription by these partitions; returns those that the member owns from this moment on.

        Raises IllegalState where a group assigns the partitions, ConfigError for a partition that does not exist.
        """

    def join_again_if(self, admitted: Callable[[ZooKeeper], Awaitable[bool]]) -> None:
        """After a lost ZooKeeper session, join only when `admitted`, asked in the new session, returns True.

        Without effect on a membership that has no ZooKeeper session.
        """


class GroupMembership:
    """The parts of `Membership` that are the same for every group protocol but one."""

    _fences: dict[TopicPartition, int]
    """Fencing tokens of the partitions that this member holds or has held."""

    def fence(self, partition: TopicPartition) -> int:
        return self._fences[partition]

    async def next_owners(self, partitions: Partitions) -> Mapping[TopicPartition, str]:
        return {}

    @property
    def committer(self) -> Committer | None:
        return None

    def leave_for_good(self) -> None:
        pass

    def assign(self, partitions: Iterable[TopicPartition]) -> Partitions:
        raise IllegalState('the group assigns the partitions; use membership="fixed" to assign them by hand')

    def join_again_if(self, admitted: Callable[[ZooKeeper], Awaitable[bool]]) -> None:
        pass
