"""Who a member is to the coordinator."""

from __future__ import annotations

from typing import NamedTuple, Optional, Protocol

from allocator.types import TopicPartition

__all__ = ["Committer", "Identity"]


class Identity(NamedTuple):
    """What a member says of itself in each request; the coordinator refuses what does not fit its own view."""

    generation: int
    member_id: str
    instance_id: Optional[str] = None
    """Of a static member (KIP-345)."""
    by_epoch: bool = False
    """`generation` is the member epoch of the next-generation protocol (KIP-848)."""


class Committer(Protocol):
    """Under whose name offsets are committed. A membership by Kafka's group protocol is one."""

    @property
    def identity(self) -> Identity | None:
        """As of now; None while this process is no member."""

    def may_commit(self, partition: TopicPartition) -> bool:
        """Whether the member holds the partition, or is still giving it up."""

    def refused(self, code: int, sent: Identity) -> bool:
        """The coordinator refused a commit that was sent under this identity. Returns whether the member goes on with
        what it held, so that the commit may be repeated under the identity that it has by then."""
