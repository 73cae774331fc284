"""What an allocator function sees and what it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from allocator.types import TopicPartition

__all__ = ["Assignor", "GroupView", "Member", "SubscriberClass"]


@dataclass(frozen=True)
class Member:
    """One living member of the group, as it described itself when it joined."""

    id: str
    """Unique in the group, given by the membership."""
    name: str
    """The client id the user gave; two members may share one."""
    topics: frozenset[str]
    """Its subscription, patterns already resolved to topic names."""
    weight: float = 1.0
    """Relative capacity; 2.0 asks for twice the partitions of 1.0. Functions may ignore it."""
    rack: str | None = None
    host: str = ""


class SubscriberClass(NamedTuple):
    """Topics that exactly the same members subscribe to."""

    members: tuple[Member, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True)
class GroupView:
    """All that an allocator function may base its answer on."""

    members: tuple[Member, ...]
    """In join order, the oldest first."""
    partitions: Mapping[str, int]
    """Topic -> number of partitions. A topic that does not exist (yet) is absent."""
    owned: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    """Member id -> what it holds now; for functions that move as little as possible."""

    def classes(self) -> list[SubscriberClass]:
        """The subscribed topics that exist, grouped by who subscribes to them.

        Members keep the order of `members`, topics are sorted, and the classes go by their first topic, so
        that equal views give equal answers. Topics without a subscriber are left out.
        """
        subscribers: dict[str, list[Member]] = defaultdict(list)
        for member in self.members:
            for topic in member.topics:
                if self.partitions.get(topic, 0) > 0:
                    subscribers[topic].append(member)
        by_ids: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for topic in sorted(subscribers):
            by_ids[tuple(member.id for member in subscribers[topic])].append(topic)
        return [SubscriberClass(tuple(subscribers[topics[0]]), tuple(topics)) for topics in by_ids.values()]


@runtime_checkable
class Assignor(Protocol):
    """An allocator function with the name under which members agree on it.

    Returns member id -> partitions: every partition of every subscribed topic to exactly one member that
    subscribes to it; members that get nothing may be absent. It must be a plain function of the view: the
    leader alone calls it, and any member may be the next leader.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[TopicPartition]]: ...
