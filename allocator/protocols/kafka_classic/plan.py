"""Encodes the offers of a member that joins, and computes the leader's assignment from all offers. No I/O.

Other clients know the assignors `range`, `roundrobin`, `sticky` and `cooperative-sticky`, so the metadata for these has
the format of those clients. Only members of this library use other assignors. Their metadata also has the client id,
the host and the weight.

If members may keep partitions while they join, a partition moves in two rounds (KIP-429). In the first round, the
leader omits the partitions that another member still claims. That member releases them and joins again, and the second
round assigns them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from allocator.assignors import Assignor, GroupView, Member, compute, first_step
from allocator.core.settings import PartitionCountSource
from allocator.core.text import parse_json
from allocator.errors import AllocatorError
from allocator.protocols.kafka_classic.consumer_protocol import (
    NEWEST,
    Malformed,
    MemberAssignment,
    StickyUserData,
    Subscription,
    generation_data,
    generation_from,
)
from allocator.protocols.kafka_classic.messages import JoinedMember
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

log = logging.getLogger(__name__)


EAGER = frozenset({"range", "roundrobin", "sticky"})


COMMON = EAGER | {"cooperative-sticky"}


def is_cooperative(assignors: Iterable[str]) -> bool:
    """Returns whether a member with these offers may keep its partitions while it joins."""
    return not EAGER.intersection(assignors)


def offers(
    assignors: Iterable[str], mine: Subscription, before: StickyUserData, about: Mapping[str, Any]
) -> list[tuple[str, bytes]]:
    """Returns pairs of assignor name and metadata for a JoinGroup, in the order of `assignors`.

    `mine`: the topics, the rack and the owned partitions of the member, without user data. `before`: its last
    assignment, which it may have released to join. `about`: further data for members of this library.
    """
    return [(name, _offer(name, mine, before, about).encode()) for name in assignors]


def _offer(name: str, mine: Subscription, before: StickyUserData, about: Mapping[str, Any]) -> Subscription:
    if name in EAGER:
        # sends v0 for the standard assignors, like other clients, which all read it
        user_data = before.encode() if name == "sticky" and before.partitions else None
        return Subscription(mine.topics, user_data, rack=mine.rack, version=0 if mine.rack is None else NEWEST)
    # Java leaders from 2.8 to 3.3 read only this generation, and immediately reassign partitions with an older
    # generation
    user_data = (
        generation_data(mine.generation) if name in COMMON else json.dumps(about, separators=(",", ":")).encode()
    )
    return replace(mine, user_data=user_data)


@dataclass(frozen=True)
class Decision:
    """The assignment that the leader computed."""

    target: Mapping[str, Partitions]
    """The result of the assignor. The group reaches it after one or two rounds."""
    assignments: Mapping[str, bytes]
    """Member id -> the encoded assignment of this round."""
    problem: AllocatorError | None
    """Reason why the assignor's result is unusable, or None. With a reason, the members keep their partitions."""


class GroupMembers:
    """The decoded metadata of all members, for the assignor that all of them offer."""

    def __init__(self, protocol: str, members: Sequence[JoinedMember]) -> None:
        subscriptions = _read(members)
        self.protocol = protocol
        self.ids = [member.member_id for member in members]
        valid = (_member(protocol, m, subscriptions[m.member_id]) for m in members if m.member_id in subscriptions)
        # the coordinator lists members in no order, and each leader must compute the same result
        self.members = tuple(sorted(valid, key=attrgetter("order")))
        """The members whose metadata is valid."""
        self.topics = frozenset(topic for each in subscriptions.values() for topic in each.topics)
        """All topics that at least one member subscribes to."""
        self.claims = {member: _claims(protocol, each) for member, each in subscriptions.items()}

    @property
    def owned(self) -> dict[str, Partitions]:
        """Member id -> the partitions that it owns. If two members claim a partition, the claim of the newer generation
        counts. Of two claims of the same generation, neither counts."""
        best: dict[TopicPartition, tuple[int, str | None]] = {}
        for member, (parts, generation) in self.claims.items():
            for partition in parts:
                known = best.get(partition)
                if known is None or generation > known[0]:
                    best[partition] = (generation, member)
                elif generation == known[0]:
                    best[partition] = (generation, None)
        return {
            member: frozenset(p for p in parts if best[p] == (generation, member))
            for member, (parts, generation) in self.claims.items()
        }

    def former(self, owned: Mapping[str, Partitions]) -> dict[TopicPartition, str]:
        """Returns for each partition the member with the newest claim to it, apart from the owner in `owned`."""
        best: dict[TopicPartition, tuple[int, str]] = {}
        for member, (parts, generation) in sorted(self.claims.items()):
            for partition in parts - owned.get(member, NO_PARTITIONS):
                if partition not in best or generation > best[partition][0]:
                    best[partition] = (generation, member)
        return {partition: member for partition, (_, member) in best.items()}


def decide(assignor: Assignor, joined: GroupMembers, view: GroupView, before: Mapping[str, Partitions]) -> Decision:
    """Returns the assignment of the next round. `before`: the last known target, used if the assignor fails."""
    problem = None
    target: Mapping[str, Partitions]
    try:
        target = compute(assignor, view)
    except AllocatorError as error:
        problem = error
        held = view.owned if any(view.owned.values()) else before
        target = {member.id: held.get(member.id, NO_PARTITIONS) for member in joined.members}
    if joined.protocol == "sticky" and problem is None:
        topics = {member.id: member.topics for member in joined.members}
        target = give_back(target, view.owned, joined.former(view.owned), topics)
    now = target
    if joined.protocol not in EAGER:
        now = first_step({member: parts for member, (parts, _) in joined.claims.items()}, target)
    assignments = {member: MemberAssignment(now.get(member, NO_PARTITIONS)).encode() for member in joined.ids}
    return Decision(target, assignments, problem)


def _read(members: Sequence[JoinedMember]) -> dict[str, Subscription]:
    found: dict[str, Subscription] = {}
    for member in members:
        try:
            found[member.member_id] = Subscription.decode(member.metadata)
        except Malformed as error:
            log.error("member %s gets no partitions: %s", member.member_id, error)
    return found


def _claims(protocol: str, subscription: Subscription) -> tuple[Partitions, int]:
    """Returns the partitions that a member claims, and the generation of the claim. Under `sticky`: its last
    assignment."""
    if protocol == "sticky" and subscription.user_data:
        try:
            data = StickyUserData.decode(subscription.user_data)
        except Malformed as error:
            log.warning("%s; it counts as a member without partitions", error)
            return NO_PARTITIONS, -1
        return data.partitions, data.generation
    if protocol in COMMON and subscription.generation < 0:
        return subscription.owned, generation_from(subscription.user_data)
    return subscription.owned, subscription.generation


def _member(protocol: str, member: JoinedMember, subscription: Subscription) -> Member:
    about: dict[str, Any] = {}
    if protocol not in COMMON and subscription.user_data:
        try:
            loaded = parse_json(subscription.user_data)
        except ValueError:
            loaded = None
        about = loaded if isinstance(loaded, dict) else {}
    weight = about.get("weight", 1.0)
    sound = isinstance(weight, (int, float)) and not isinstance(weight, bool) and 0 < weight < float("inf")
    return Member(
        id=member.member_id,
        name=str(about.get("name", "")),
        topics=frozenset(subscription.topics),
        weight=float(weight) if sound else 1.0,
        rack=subscription.rack,
        host=str(about.get("host", "")),
        instance_id=member.instance_id,
    )


# seconds until a missing topic or partition counts as deleted: a starting broker may report existing topics as missing
# until the controller has sent it their metadata. Higher: a deleted topic is noticed later; lower: the group rebalances
# because a broker restarted
DOUBT_S = 1.5


class PartitionCounts:
    """Returns the partitions of a topic, despite incomplete metadata of starting brokers.

    New partitions count at once. Missing partitions count as deleted after brokers have omitted them for `DOUBT_S`
    seconds. A topic that the brokers hide from this user keeps its partitions.
    """

    def __init__(self, metadata: PartitionCountSource, clock: Callable[[], float]) -> None:
        self._metadata = metadata
        self._clock = clock
        self._believed: dict[str, Sequence[int]] = {}
        self._since: dict[str, float] = {}

    def __call__(self, topic: str) -> Sequence[int]:
        """Returns the partition numbers; empty for a topic that does not exist."""
        now, before = self._metadata.partitions(topic) or (), self._believed.get(topic, ())
        if self._metadata.hides(topic):
            return before
        if len(now) < len(before) and self._clock() - self._since.setdefault(topic, self._clock()) < DOUBT_S:
            return before
        self._since.pop(topic, None)
        self._believed[topic] = now
        return now

    @property
    def doubtful(self) -> bool:
        """Whether the metadata lacks a topic or partition that may still exist. Read it again after `DOUBT_S`
        seconds."""
        return bool(self._since)

    def keep(self, topics: Iterable[str]) -> None:
        """Forgets all topics except these."""
        kept = frozenset(topics)
        for gone in self._believed.keys() - kept:
            del self._believed[gone]
            self._since.pop(gone, None)


def give_back(
    target: Mapping[str, Partitions],
    owned: Mapping[str, Partitions],
    former: Mapping[TopicPartition, str],
    topics: Mapping[str, frozenset[str]],
) -> dict[str, frozenset[TopicPartition]]:
    """Returns `target` with some partitions exchanged, so that more of them return to their `former` owner.

    Guarantee: each member gets as many partitions as in `target`, of topics that it subscribes to (`topics`), and no
    more partitions leave their owner. The number of returned partitions is not always the largest possible. Former
    owners come from the user data of `sticky`: a member that missed generations reports its last assignment.

    Cost: O(partitions), and for each partition with a former owner at most one step for each partition that the former
    owner newly gets.
    """
    given = {member: set(partitions) for member, partitions in target.items()}
    holder = {partition: member for member, partitions in target.items() for partition in partitions}
    owner = {partition: member for member, partitions in owned.items() for partition in partitions}
    # the partitions that each member newly gets; sorted, so that equal groups get equal results
    fresh: dict[str, dict[TopicPartition, None]] = {
        member: {p: None for p in sorted(partitions) if owner.get(p) != member and former.get(p) != member}
        for member, partitions in target.items()
    }
    for partition in sorted(former.keys() & holder.keys()):
        back, present = former[partition], holder[partition]
        if back == present or back not in given or partition.topic not in topics[back]:
            continue
        kept = owner.get(partition) == present
        for other in fresh[back]:
            if other.topic in topics[present] and (not kept or owner.get(other) == present):
                break
        else:
            continue
        for taker, loser, moved in ((back, present, partition), (present, back, other)):
            given[loser].discard(moved)
            given[taker].add(moved)
            fresh[loser].pop(moved, None)
            holder[moved] = taker
        if owner.get(other) != present and former.get(other) != present:
            fresh[present][other] = None
    return {member: frozenset(partitions) for member, partitions in given.items()}
