"""The input of an assignor, `GroupView`, and the protocol that it implements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Protocol, runtime_checkable

from allocator.core.text.html import table
from allocator.core.types import PartitionLike, TopicPartition

WANTABLE = frozenset({"racks", "load"})
"""Fields of `GroupView` that cost requests to Kafka. They are filled for an assignor that wants them, and
empty otherwise."""


@dataclass(frozen=True)
class Member:
    """One live member of the group, with the data that it gave when it joined."""

    id: str
    """Unique in the group, given by the membership."""
    name: str
    """The client id. Two members may share one."""
    topics: frozenset[str]
    """Its subscribed topics, with patterns resolved."""
    weight: float = 1.0
    """Relative capacity: a member with 2.0 should get twice the partitions of one with 1.0. Functions may ignore it."""
    rack: str | None = None
    host: str = ""
    instance_id: str | None = None
    """Its `group.instance.id`, for a static member of a Kafka group (KIP-345)."""

    @property
    def order(self) -> tuple[bool, str, str]:
        """Sort key of Kafka's `range` and `roundrobin`: static members first, by instance id; the others by id.

        A static member keeps its place over a restart, which gives it a new member id.
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
    """In join order, the oldest first."""
    partitions: Mapping[str, int]
    """Topic -> number of partitions. A topic that does not exist (yet) is absent."""
    owned: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    """Member id -> the partitions that it holds now; for assignors that move as few as possible."""
    racks: Mapping[TopicPartition, tuple[str | None, ...]] = field(default_factory=dict)
    """Partition -> the racks of its replicas, the leader's first, None where a broker names none. Where consumers
    cannot read from followers (brokers before 2.4, KIP-392), the leader's alone. Partitions may be absent."""
    load: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Partition -> its amount of work, in any one unit: bytes or records behind, or bytes a second. Partitions may
    be absent."""

    def _repr_html_(self) -> str:
        """For notebooks: the topics, and the members with what they hold."""
        topics = sorted(self.partitions.items())
        members = [
            [m.name, m.host, m.rack or "", m.weight, ", ".join(sorted(m.topics)), len(self.owned.get(m.id, ()))]
            for m in self.members
        ]
        heads = ("member", "host", "rack", "weight", "topics", "owns")
        return table(("topic", "partitions"), topics, len(topics)) + table(heads, members, len(members))

    def classes(self) -> list[SubscriberClass]:
        """The subscribed topics that exist, grouped by their subscribers.

        Members keep the order of `members`, topics are sorted, and the classes go by their first topic, so
        that equal views give equal results. Topics without a subscriber are left out.
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

    Returns member id -> partitions: every partition of every subscribed topic to exactly one member that
    subscribes to it; members that get nothing may be absent. It must be a plain function of the view: the
    leader alone calls it, and any member may be the next leader.

    A function that reads `GroupView.racks` or `GroupView.load` has an attribute `wants`, a collection of "racks" and
    "load"; without it they are empty.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[PartitionLike]]: ...


class BuiltIn:
    """Base of the assignors of this package, which show their name in the REPL and in logs."""

    name: str

    def __repr__(self) -> str:
        return self.name


def wants(assignor: Any) -> frozenset[str]:
    """Returns the fields of `WANTABLE` that an assignor needs."""
    return frozenset(getattr(assignor, "wants", ()))
