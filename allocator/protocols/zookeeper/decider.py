"""Decides what the leader writes next, from a snapshot of the group and from its own last decision."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from allocator.assignors import Assignor, GroupViewBuilder, LoadAssignor
from allocator.core.text import plain
from allocator.errors import AllocatorError
from allocator.protocols.zookeeper.decision import GroupDecision, GroupLoad, decide
from allocator.protocols.zookeeper.group_znodes import Snapshot
from allocator.protocols.zookeeper.plan import advance, portion
from allocator.protocols.zookeeper.seats import away, lasting, view_ids
from allocator.protocols.zookeeper.subscribed_topics import SubscribedTopics
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument
from allocator.protocols.zookeeper.znodes.load_reader import LoadReader
from allocator.protocols.zookeeper.znodes.member_names import member_name
from allocator.types import Partitions

log = logging.getLogger(__name__)


class Decider:
    """Keeps the leader's last decision until an input changes, and carries it out document by document.

    It writes nothing. The next leader does not need its state, because it makes its own decision.
    """

    def __init__(
        self,
        group: str,
        me: str,
        assignors: Mapping[str, Assignor],
        topics: SubscribedTopics,
        surroundings: GroupViewBuilder,
        loads: LoadReader,
    ) -> None:
        self.later = 0
        """Number of moves of the decision that wait for the budget."""
        self._group = group
        self._me = me
        self._assignors = assignors
        self._topics = topics
        self._surroundings = surroundings
        self._loads = loads
        self._decision: GroupDecision | None = None
        self._inputs: object = None
        self._decided_without: frozenset[str] = frozenset()

    @property
    def follows_load(self) -> bool:
        """Whether the last decision assigned partitions by load."""
        return self._decision is not None and isinstance(self._assignors.get(self._decision.strategy), LoadAssignor)

    def forget(self) -> None:
        """Drops the decision, so that `decide` makes a new one."""
        self._decision, self._inputs, self.later = None, None, 0

    def rename(self, successors: Mapping[str, str]) -> None:
        """Replaces former members by the next process of their seat."""
        if self._decision is not None:
            target = {successors.get(member, member): parts for member, parts in self._decision.target.items()}
            self._decision = replace(self._decision, target=target)

    async def decide(self, group: Snapshot, uneven: bool) -> bool:
        """Computes a decision if an input has changed, or if `uneven`: an imbalance has lasted long enough.

        Returns whether the decision is new. Raises AllocatorError if the computation fails, and does not try again with
        the same inputs.
        """
        inputs = self._inputs_of(group)
        if inputs == self._inputs and not uneven:
            return False
        self.forget()
        try:
            decision = await self._compute(group, uneven) if group.members else None
        except AllocatorError:
            self._inputs = inputs
            raise
        self._decided_without = frozenset(away(group.document, group.members))
        self._decision, self._inputs = decision, self._inputs_of(group)
        if decision is None:
            return False
        for member, reason in decision.refused.items():
            if member not in group.document.refused:
                called = plain(member_name(member, group.members[member]))
                log.error("%s: member %s gets no partitions: %s", self._group, called, plain(reason))
        if decision.left_out != group.document.left_out:
            self._surroundings.log_left_out(decision.strategy, decision.left_out)
        return True

    async def is_uneven(self, group: Snapshot) -> bool:
        """Returns whether a decision by load would move a partition now."""
        document = group.document
        if not self.follows_load or document.waiting or document.promised or self.later:
            return False  # a moving partition changes the loads; wait for the end of the move
        try:
            return (await self._compute(group, True)).load_history is not None
        except AllocatorError:
            return False  # the next decision reports it

    def next(self, group: Snapshot, fresh: bool) -> AssignmentDocument | None:
        """Returns the document to write now, or None if the current one needs no change. `fresh`: the decision is
        new."""
        document, alive, commands, decision = group.document, group.alive, group.commands, self._decision
        further = partial(advance, document, self._me, alive, group.claims)
        successor = further()
        if decision is None:
            return successor
        # a member has left since the decision. The next step decides again; until then the dead member must get no
        # partitions
        if (fresh or self.later) and decision.target.keys() <= alive:
            settled = successor or document
            allowance = commands.allowance(settled, alive, group.now_ms)
            part, begun, self.later = decision.target, 0, 0
            if allowance is not None:
                part, begun, self.later = portion(settled, decision.target, alive, allowance)
            if not _stands(part, decision, settled):
                counted = begun and commands.budget.per_minute is not None
                successor = further(
                    part,
                    strategy=decision.strategy,
                    refused=decision.refused,
                    left_out=decision.left_out,
                    load_history=decision.load_history or document.load_history,
                    moved=_with_moves(document, group.now_ms, begun) if counted else document.moved,
                )
        after = successor or document
        moving = f"{after.in_flight(alive)} partitions are on the move, {self.later} wait for their turn"
        states = commands.states(group.members, after, decision.target, moving)
        moved = after.moved
        if any(when > group.now_ms for when, _ in moved):
            # written by a leader whose clock is ahead: as long as it is, these moves would use up the budget
            moved = after.recent_moves(group.now_ms)
        if states == after.commands and moved == after.moved:
            return successor
        if successor is None:
            after = document.but(leader=self._me, revision=document.revision + 1)
        return after.but(commands=states, moved=moved)

    async def _compute(self, group: Snapshot, uneven: bool) -> GroupDecision:
        members, counts, load = group.members, self._topics.counts, None
        for assignor in self._assignors.values():
            if isinstance(assignor, LoadAssignor):
                load = GroupLoad(await self._loads.read(members, assignor.source, counts), uneven, group.now_ms)
                break
        build, commands = self._surroundings.view, group.commands.counting
        return await decide(members, counts, group.document, commands, self._assignors, build, load)

    def _inputs_of(self, group: Snapshot) -> tuple[object, ...]:
        """Returns the inputs of a decision. They stay equal when a member with a seat restarts."""
        document, missing = group.document, away(group.document, group.members)
        everybody = {**group.members, **missing}
        ids = view_ids(document, everybody)
        # absent members that the decision gave no new partitions, or that the document promises partitions
        short = [member for member in missing if member in self._decided_without or document.promised.get(member)]
        return (
            tuple((seen, lasting(everybody[member])) for member, seen in ids.items()),
            tuple(sorted(self._topics.counts.items())),
            [command for command in group.commands.counting if command.kind != "budget"],
            frozenset(map(ids.__getitem__, short)),
        )


def _stands(target: Mapping[str, Partitions], decision: GroupDecision, document: AssignmentDocument) -> bool:
    """Returns whether the document already leads to `target`, because the previous leader made the same decision."""
    return (
        document.generation > 0
        and document.problem is None
        and document.assigned() == {member: parts for member, parts in target.items() if parts}
        and document.strategy == decision.strategy
        and document.refused == decision.refused
        and document.left_out == decision.left_out
    )


def _with_moves(document: AssignmentDocument, now_ms: int, number: int) -> tuple[tuple[int, int], ...]:
    """Adds moves to the recent ones. Moves within one second become one entry, with the time of the last move."""
    recent = document.recent_moves(now_ms)
    if recent and now_ms - recent[-1][0] < 1000:
        return (*recent[:-1], (now_ms, recent[-1][1] + number))
    return (*recent, (now_ms, number))
