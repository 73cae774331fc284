"""The input of an assignor, `GroupView`, and the protocol of an assignor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Protocol, runtime_checkable

from allocator.core.text import table
from allocator.types import PartitionLike, TopicPartition

WANTABLE = frozenset({"racks", "load"})
"""The fields of `GroupView` that cost requests to Kafka. They are empty for an assignor that does not want them."""


@dataclass(frozen=True)
class Member:
    """One live member of the group, with the data that it sent when it joined."""

    id: str
    """Unique in the group; the membership assigns it."""
    name: str
    """The client id. Two members may share one."""
    topics: frozenset[str]
    """The subscribed topics. The topics that a pattern matches are included."""
    weight: float = 1.0
    """Relative capacity: a member with 2.0 should get twice the partitions of a member with 1.0. Assignors may ignore
    it."""
    rack: str | None = None
    host: str = ""
    instance_id: str | None = None
    """The `group.instance.id` of a static member of a Kafka group (KIP-345)."""

    @property
    def order(self) -> tuple[bool, str, str]:
        """The sort key of Kafka's `range` and `roundrobin`: static members first, by instance id; the others by id.

        So a static member keeps its position when it restarts and gets a new member id.
        """
        return self.instance_id is None, self.instance_id or "", self.id


class SubscriberClass(NamedTuple):
    """Topics with exactly the same subscribers."""

    members: tuple[Member, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True)
class GroupView:
    """The only input of an assignor."""

    members: tuple[Member, ...]
    """The members in join order, the oldest first."""
    partitions: Mapping[str, int]
    """Topic -> number of partitions. Topics that do not exist (yet) are absent."""
    owned: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    """Member id -> the partitions that it owns now. For assignors that move few partitions."""
    racks: Mapping[TopicPartition, tuple[str | None, ...]] = field(default_factory=dict)
    """Partition -> the racks of its replicas, the leader's first; None for a broker without a rack. Only the leader's
    if consumers cannot read from followers (brokers before 2.4, KIP-392). Partitions may be absent."""
    load: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Partition -> its load, all in one unit: lag in bytes or records, or bytes per second. Partitions may be
    absent."""

    def _repr_html_(self) -> str:
        """Returns a table of the topics and one of the members, for notebooks."""
        topics = sorted(self.partitions.items())
        members = [
            [m.name, m.host, m.rack or "", m.weight, ", ".join(sorted(m.topics)), len(self.owned.get(m.id, ()))]
            for m in self.members
        ]
        heads = ("member", "host", "rack", "weight", "topics", "owns")
        return table(("topic", "partitions"), topics, len(topics)) + table(heads, members, len(members))

    def classes(self) -> list[SubscriberClass]:
        """Returns the subscribed topics that exist, grouped by their subscribers.

        Members are in the order of `members`, topics are sorted, and classes are sorted by their first topic, so equal
        views return equal results. Topics without a subscriber are omitted.
        """
        alike: dict[frozenset[str], list[int]] = {}
        for place, member in enumerate(self.members):
            alike.setdefault(member.topics, []).append(place)
        subscriptions = list(alike.values())
        subscribers: dict[str, list[int]] = defaultdict(list)
        for index, topics in enumerate(alike):
            for topic in topics:
                subscribers[topic].append(index)
        by_subscribers: dict[tuple[int, ...], list[str]] = {}
        for topic in sorted(subscribers):
            if self.partitions.get(topic, 0) > 0:
                by_subscribers.setdefault(tuple(subscribers[topic]), []).append(topic)
        classes = []
        for indices, names in by_subscribers.items():
            places = sorted(chain.from_iterable(map(subscriptions.__getitem__, indices)))
            classes.append(SubscriberClass(tuple(map(self.members.__getitem__, places)), tuple(names)))
        return classes


@runtime_checkable
class Assignor(Protocol):
    """An allocator function with the name under which members agree on it.

    It returns member id -> partitions, with every partition of every subscribed topic at exactly one member that
    subscribes to the topic. Members that get nothing may be absent. The result must depend on the view alone: only the
    leader calls the function, and any member may be the next leader.

    A function that reads `GroupView.racks` or `GroupView.load` has an attribute `wants`, a collection of "racks" and
    "load". Without it, these fields are empty.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[PartitionLike]]: ...


class BuiltIn:
    """Base class of the built-in assignors, which appear in the REPL and in logs by their name."""

    name: str

    def __repr__(self) -> str:
        return self.name


def wants(assignor: Any) -> frozenset[str]:
    """Returns the fields of `WANTABLE` that an assignor wants."""
    return frozenset(getattr(assignor, "wants", ()))
