"""What a group looks like from outside; joins nothing and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from allocator.foreign import plain
from allocator.membership.names import member_name
from allocator.membership.store import Store
from allocator.membership.znodes import (
    GROUP_NAME,
    Budget,
    Claim,
    Document,
    MemberInfo,
    Parts,
    Paths,
    Rubbish,
    in_join_order,
)
from allocator.types import TopicPartition
from allocator.wire.zookeeper import NoZnode, ZooKeeper

__all__ = ["Coordinated", "GroupState", "describe", "list_groups"]


@dataclass(frozen=True)
class Coordinated:
    """What Kafka's coordinator says of a group by Kafka's own protocol."""

    state: str
    """In the coordinator's words: "Stable", "PreparingRebalance", ..."""
    assignor: str


@dataclass(frozen=True)
class GroupState:
    """One group at about one moment."""

    group: str
    members: Mapping[str, MemberInfo]
    """In join order; the first one leads."""
    claims: Mapping[str, Claim]
    document: Document | None
    problems: tuple[str, ...] = field(default=())
    """What is wrong with the znodes, or what the leader reports."""
    coordinated: Coordinated | None = None
    """None: the group stands in ZooKeeper. Else there is no document, and nobody is told who leads."""

    @property
    def leader(self) -> str | None:
        return next(iter(self.members), None) if self.coordinated is None else None

    @property
    def strategy(self) -> str | None:
        """The allocator function that was used last, as far as it is known."""
        if self.coordinated is not None:
            return self.coordinated.assignor or None
        return None if self.document is None else self.document.strategy

    @property
    def generation(self) -> int:
        return 0 if self.document is None else self.document.generation

    def name_of(self, member: str) -> str:
        """How people are shown a member."""
        return member_name(member, self.members.get(member))

    @cached_property
    def owners(self) -> dict[TopicPartition, str]:
        """Who claims each partition, which is who processes it (a partition on the move may be nobody's)."""
        return {p: member for member, claim in self.claims.items() for p in claim.held}

    @property
    def left_out(self) -> Parts:
        """Every partition that the allocator function gives to nobody."""
        return frozenset() if self.document is None else self.document.left_out

    @cached_property
    def assigned(self) -> Parts:
        """Every partition that the assignment gives to somebody, now or as soon as it is released."""
        if self.document is None:
            return frozenset()
        return frozenset().union(*self.document.owners.values(), *self.document.promised.values())


async def list_groups(zk: ZooKeeper, root: str = "/allocator") -> list[str]:
    """The groups under a root, by name. Any znode may stand there; one with another name is no group."""
    try:
        return sorted(filter(GROUP_NAME.match, await zk.get_children(root)))
    except NoZnode:
        return []


async def describe(zk: ZooKeeper, group: str, root: str = "/allocator") -> GroupState | None:
    """The group's state, None if there is no such group. What cannot be read is listed in `problems`."""
    store = Store(zk, Paths(root, group))
    problems: list[str] = []
    try:
        names = await store.member_names()
    except NoZnode:
        return None
    for name in set(names) - set(in_join_order(names)):
        problems.append(f"znode {store.paths.member(name)} is not a member of ours")
    members: dict[str, MemberInfo] = {}
    claims: dict[str, Claim] = {}
    budget = Budget.of_claims()

    async def read(name: str) -> None:
        try:
            info, claim = await store.member(name), await store.claim(name, budget=budget)
        except Rubbish as error:
            problems.append(str(error))
            return
        if info is not None:
            members[name] = info
        if claim is not None:
            claims[name] = claim

    await asyncio.gather(*(read(name) for name in in_join_order(names)))
    document = None
    try:
        document, _ = await store.document()
    except Rubbish as error:
        problems.append(str(error))
    if document is not None:
        if document.problem:
            problems.append(f"the leader keeps the old assignment: {plain(document.problem)}")
        for member, why in document.refused.items():
            problems.append(
                f"member {plain(member_name(member, members.get(member)))} gets no partitions: {plain(why)}"
            )
    ordered = {name: members[name] for name in in_join_order(members)}
    return GroupState(group, ordered, claims, document, tuple(problems))
