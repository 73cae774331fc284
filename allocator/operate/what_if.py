"""Plans the moves of a group after a change of members, weights, the function, partition counts, or commands.

Guarantee: the group does what the plan says, unless something else changes first. `preview` decides as the leader does,
from the current document. One exception: the id of a new member is not known in advance. If a function breaks ties by
id, the new member may get other partitions than planned, but as many.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any, NamedTuple, Optional

from allocator.assignors import GroupView
from allocator.commands import KINDS, Command, Commands
from allocator.core.settings import DEFAULT
from allocator.core.text import shown, table
from allocator.errors import ConfigError
from allocator.operate.command_report import CommandReport
from allocator.operate.group_report import GroupState
from allocator.protocols.zookeeper import AssignmentDocument, Budget, MemberInfo, member_name, members_named, preview
from allocator.types import Partitions, TopicPartition

ROUND_TRIPS = 5  # requests of one move: write and read the document, release the claim, write the document, claim
MINUTE_S = 60.0


@dataclass(frozen=True)
class Scenario:
    """A hypothetical state of a group. Each method returns a new scenario. Raises ConfigError for an unknown name."""

    state: GroupState
    members: Mapping[str, MemberInfo]
    """The members in join order."""
    counts: Mapping[str, int]
    """Topic -> partitions."""
    commands: Commands
    failed: Mapping[str, MemberInfo] = field(default_factory=dict)
    """Members that crash instead of leaving. The group notices only when their sessions expire."""
    function: Optional[str] = None
    """The allocator function to use instead of the function that the members agree on."""

    @classmethod
    def of(cls, state: GroupState, counts: Mapping[str, int]) -> Scenario:
        """Returns a scenario without changes, from the current state of the group."""
        if state.coordinated is not None:
            raise ConfigError(
                f"Kafka's coordinator assigns the partitions of group {state.group!r}. A plan needs a group with "
                'membership "zookeeper"'
            )
        return cls(state, dict(state.members), dict(counts), state.commands)

    def adding(self, name: str, *, weight: float = DEFAULT["weight"]) -> Scenario:
        """Adds a member with the subscription of the youngest member, in no rack."""
        if not self.members:
            raise ConfigError("a new member gets the subscription of the youngest member, and the group has no member")
        youngest = list(self.members)[-1]
        number = int(youngest.rpartition("-")[2]) + 1
        like = self.members[youngest]
        info = replace(
            like,
            name=name,
            host=f"{name}-host",
            pid=None,
            weight=weight,
            rack=None,
            commands=tuple(KINDS),
            instance_id=None,
            restart_grace_s=0.0,
        )
        return replace(self, members={**self.members, f"m-{'f' * 16}-{number:010}": info})

    def removing(self, text: str, *, failed: bool = False) -> Scenario:
        """Removes a member: it leaves, or with `failed` it crashes and does not restart within `restart_grace_s`."""
        return self._without({self._member(text)}, failed)

    def failing_rack(self, rack: str) -> Scenario:
        """Crashes all members in this rack."""
        gone = {member for member, info in self.members.items() if info.rack == rack}
        if not gone:
            racks = sorted({info.rack for info in self.members.values() if info.rack is not None})
            raise ConfigError(f"no live member is in rack {shown(rack)}; racks: {', '.join(racks) or 'none'}")
        return self._without(gone, True)

    def weighing(self, text: str, weight: float) -> Scenario:
        """Changes the weight of a member."""
        member = self._member(text)
        return replace(self, members={**self.members, member: replace(self.members[member], weight=weight)})

    def using(self, function: str) -> Scenario:
        """Changes the allocator function."""
        return replace(self, function=function)

    def growing(self, topic: str, count: int) -> Scenario:
        """Changes the number of partitions of a topic."""
        before = self.counts.get(topic)
        if before is None:
            raise ConfigError(f"the group does not read {shown(topic)}, but {', '.join(sorted(self.counts)) or 'none'}")
        if count < before:
            raise ConfigError(f"topic {shown(topic)} has {before} partitions; Kafka cannot remove partitions")
        return replace(self, counts={**self.counts, topic: count})

    def with_command(self, command: Command) -> Scenario:
        """Adds a command."""
        return replace(self, commands=self.commands.put(command, self.state.read_ms))

    def _without(self, gone: set[str], failed: bool) -> Scenario:
        left = {member: info for member, info in self.members.items() if member not in gone}
        ended = {member: self.members[member] for member in gone} if failed else {}
        return replace(self, members=left, failed={**self.failed, **ended})

    def _member(self, text: str) -> str:
        found = members_named(text, self.members)
        if len(found) != 1:
            there = ", ".join(member_name(member, info) for member, info in self.members.items()) or "none"
            raise ConfigError(f"{shown(text)} matches {len(found)} members; the members are {there}")
        return found[0]


class PlannedMove(NamedTuple):
    """One partition that changes its owner. None: no owner."""

    partition: TopicPartition
    source: Optional[str]
    target: Optional[str]


class PlannedMember(NamedTuple):
    """One member: partitions and lag (records; None if unknown) before and after the moves."""

    member: str
    name: str
    change: Optional[str]
    """"joins", "leaves" or "fails"."""
    partitions: tuple[int, int]
    lag: tuple[Optional[int], Optional[int]]


@dataclass(frozen=True)
class GroupPlan:
    """The moves of a plan, and their expected duration."""

    group: str
    function: str
    moves: tuple[PlannedMove, ...]
    members: tuple[PlannedMember, ...]
    commands: tuple[CommandReport, ...]
    """The commands in force, with their states after the last move."""
    budget: Budget
    names: Mapping[str, str] = field(repr=False)
    round_trip_s: float = 0.0
    """The measured round trip to ZooKeeper, in seconds."""
    failed_s: Optional[float] = None
    """The longest session timeout plus `restart_grace_s` of a crashed member, in seconds; None without one."""

    @property
    def voluntary(self) -> int:
        """Number of moves away from members that stay alive."""
        gone = {each.member for each in self.members if each.change in ("leaves", "fails")}
        return sum(move.source is not None and move.source not in gone for move in self.moves)

    @property
    def move_s(self) -> float:
        """Expected standstill of each moving partition in seconds, without the time that its handler needs."""
        return ROUND_TRIPS * self.round_trip_s

    @property
    def duration_s(self) -> float:
        """Expected time from the first to the last move in seconds, without the time that handlers need."""
        portions = max(1 if self.moves else 0, ceil(self.voluntary / (self.budget.at_once or inf)))
        minutes = max(0, ceil(self.voluntary / (self.budget.per_minute or inf)) - 1)
        return max(portions * self.move_s, minutes * MINUTE_S) + (self.failed_s or 0.0)

    def _repr_html_(self) -> str:
        """HTML for notebooks: the cost, the members before and after, and the first moves."""
        members = [[each.name, each.change or "stays", *each.partitions, *each.lag] for each in self.members]
        moves = [
            [f"{move.partition.topic}:{move.partition.partition}", self.name_of(move.source), self.name_of(move.target)]
            for move in self.moves
        ]
        cost = f"partitions that would move: {len(moves)}, within about {self.duration_s:.2g} s"
        heads = ("member", "change", "partitions before", "after", "lag before", "after")
        note = f"{self.group} with {self.function}: {cost}"
        return table(heads, members, len(members), note) + table(("partition", "from", "to"), moves, len(moves))

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "function": self.function,
            "moves": [
                {
                    **move.partition._asdict(),
                    "from": move.source,
                    "from_name": self.name_of(move.source),
                    "to": move.target,
                    "to_name": self.name_of(move.target),
                }
                for move in self.moves
            ],
            "members": [
                {
                    "id": each.member,
                    "name": each.name,
                    "change": each.change,
                    "partitions_before": each.partitions[0],
                    "partitions_after": each.partitions[1],
                    "lag_before": each.lag[0],
                    "lag_after": each.lag[1],
                }
                for each in self.members
            ],
            "voluntary_moves": self.voluntary,
            "standstill": {
                "round_trip_s": round(self.round_trip_s, 6),
                "move_s": round(self.move_s, 6),
                "failed_s": self.failed_s,
                "duration_s": round(self.duration_s, 6),
            },
            "commands": [each.to_json() for each in self.commands],
        }

    def name_of(self, member: Optional[str]) -> Optional[str]:
        return None if member is None else self.names.get(member, member)


async def plan_of(
    scenario: Scenario,
    build: Callable[..., Awaitable[GroupView]],
    *,
    lag: Optional[Mapping[TopicPartition, int]] = None,
    round_trip_s: float = 0.0,
) -> GroupPlan:
    """Returns the plan for a scenario. `build` creates the view of the group that the function gets.

    Raises AssignorError for an allocator function that is neither built in nor given by `Scenario.using`, or that
    cannot be loaded, and the errors of the function.
    """
    state, members = scenario.state, dict(scenario.members)
    if not members:
        raise ConfigError(f"group {state.group!r} would have no members, so there is nothing to plan")
    if scenario.function is not None:
        members = {member: replace(info, strategies=(scenario.function,)) for member, info in members.items()}
    document = state.document or AssignmentDocument()
    # do not reserve partitions (`restart_grace_s`) for members that the scenario removes
    gone = state.members.keys() - members.keys()
    document = document.but(seats={member: seat for member, seat in document.seats.items() if member not in gone})
    # the leader moves partitions for load only after a lasting imbalance, and not together with another change
    unchanged = scenario.members == state.members and scenario.commands == state.commands and scenario.function is None
    decision = await preview(
        members,
        scenario.counts,
        document,
        scenario.commands,
        state.loads,
        build,
        uneven=unchanged,
        now_ms=state.read_ms,
        trusted=scenario.function,
    )
    everyone = {**state.members, **members}
    names = {member: member_name(member, info) for member, info in everyone.items()}
    before = _present(document)
    moves = _moves(before, decision.target)
    lost_s = [
        info.session_timeout_s + info.restart_grace_s
        for info in scenario.failed.values()
        if info.session_timeout_s is not None
    ]
    return GroupPlan(
        group=state.group,
        function=decision.strategy,
        moves=moves,
        members=tuple(
            PlannedMember(
                member,
                names[member],
                _change(member, scenario),
                (len(before.get(member, ())), len(decision.target.get(member, ()))),
                (_sum(lag, before.get(member, ())), _sum(lag, decision.target.get(member, ()))),
            )
            for member in everyone
        ),
        commands=tuple(
            CommandReport(command, *decision.commands[command.id])
            for command in scenario.commands.entries
            if command.id in decision.commands
        ),
        budget=decision.budget,
        names=names,
        round_trip_s=round_trip_s,
        failed_s=max(lost_s, default=None),
    )


def _present(document: AssignmentDocument) -> dict[str, frozenset[TopicPartition]]:
    """Returns the partitions that each member owns, or gets as soon as their current owner releases them."""
    found = dict(document.owners)
    for member, parts in document.promised.items():
        found[member] = found.get(member, frozenset()) | parts
    return found


def _moves(before: Mapping[str, Partitions], after: Mapping[str, Partitions]) -> tuple[PlannedMove, ...]:
    source, target = (
        {partition: member for member, parts in owned.items() for partition in parts} for owned in (before, after)
    )
    moves = (PlannedMove(each, source.get(each), target.get(each)) for each in sorted(source.keys() | target.keys()))
    return tuple(move for move in moves if move.source != move.target)


def _change(member: str, scenario: Scenario) -> Optional[str]:
    if member in scenario.failed:
        return "fails"
    if member not in scenario.members:
        return "leaves"
    return None if member in scenario.state.members else "joins"


def _sum(lag: Optional[Mapping[TopicPartition, int]], partitions: Any) -> Optional[int]:
    if lag is None or any(partition not in lag for partition in partitions):
        return None
    return sum(lag[partition] for partition in partitions)
