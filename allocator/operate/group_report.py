"""A group as an operator sees it: members, owners, offsets and problems. Immutable; `group_reader` reads it."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Optional

from allocator.assignors import LoadReport, MemberLoads, built_in
from allocator.commands import Commands
from allocator.core.text import plain, shown, some_of, table
from allocator.documents import to_ranges
from allocator.operate.command_report import CommandReport, command_reports
from allocator.protocols.zookeeper import (
    AssignmentDocument,
    Claim,
    ClusterChoice,
    MemberInfo,
    elsewhere,
    loads_of,
    member_name,
)
from allocator.types import NO_PARTITIONS, OffsetAndMetadata, Partitions, TopicPartition


@dataclass(frozen=True)
class Coordinated:
    """The coordinator's report about a group that uses Kafka's own protocols."""

    state: str
    """The state, as the coordinator names it: "Stable", "PreparingRebalance", ..."""
    assignor: str

    @property
    def idle(self) -> bool:
        """Whether the group has no members of any kind. Those of Kafka Connect or Kafka Streams are not shown."""
        return self.state in ("Empty", "Dead", "")

    @property
    def stable(self) -> bool:
        return self.state == "Stable"


@dataclass(frozen=True)
class GroupState:
    """The state of one group at one time."""

    group: str
    members: Mapping[str, MemberInfo]
    """The members in join order; the first one leads."""
    claims: Mapping[str, Claim]
    document: AssignmentDocument | None
    problems: tuple[str, ...] = field(default=())
    """Invalid znodes, and problems from the leader."""
    commands: Commands = field(default_factory=Commands)
    read_ms: int = 0
    """Time of the read, in milliseconds since the epoch."""
    loads: Mapping[str, LoadReport] = field(default_factory=dict)
    """The load reports of the members (`follow_load`)."""
    joined: Mapping[str, float] = field(default_factory=dict)
    """Time at which each member joined, in seconds since the epoch by ZooKeeper's clock."""
    choice: ClusterChoice | None = field(default_factory=ClusterChoice)
    """The cluster choice of the group; None if its znode is invalid."""

    @property
    def paused(self) -> bool:
        """Whether members that follow the cluster choice leave and wait, as in a cutover."""
        return self.choice is not None and self.choice.frozen

    coordinated: Coordinated | None = None
    """None for a group in ZooKeeper. A group in Kafka has no document and no known leader."""
    present: tuple[str, ...] = ()
    """Names of the znodes of members and claims, also of those that are invalid or belong to no member."""
    hidden: tuple[str, ...] = ()
    """Why this user may not read the znodes of the group. Then the other fields are empty."""

    @property
    def of_resources(self) -> bool:
        """Whether the members share named resources (`Allocation`), of which Kafka knows nothing."""
        return any(info.of_resources for info in self.members.values())

    @property
    def leader(self) -> str | None:
        return next(iter(self.members), None) if self.coordinated is None else None

    @property
    def strategy(self) -> str | None:
        """The allocator function of the current assignment; None if unknown."""
        if self.coordinated is not None:
            return self.coordinated.assignor or None
        return None if self.document is None else self.document.strategy

    @property
    def generation(self) -> int:
        return 0 if self.document is None else self.document.generation

    def name_of(self, member: str) -> str:
        """Returns the display name of a member."""
        return member_name(member, self.members.get(member))

    @cached_property
    def owners(self) -> dict[TopicPartition, str]:
        """Partition -> the member that claims it. A moving partition may have no owner."""
        return {p: member for member, claim in self.claims.items() for p in claim.held}

    @cached_property
    def load_source(self) -> str | None:
        """The unit of the loads (`follow_load`); None if this group does not follow load."""
        source: str | None = getattr(built_in(self.strategy or ""), "source", None)
        return source

    @cached_property
    def held(self) -> dict[str, Partitions]:
        """Member -> the partitions that it claims."""
        return {member: self.claims[member].held if member in self.claims else NO_PARTITIONS for member in self.members}

    @cached_property
    def partition_loads(self) -> dict[TopicPartition, float]:
        """The reported loads; empty if this group does not follow load."""
        return {} if self.load_source is None else loads_of(self.loads, self.load_source)

    @cached_property
    def load(self) -> MemberLoads | None:
        """The load of each member, and how even the loads are; None if this group does not follow load."""
        if self.load_source is None:
            return None
        weights = {member: info.weight for member, info in self.members.items()}
        return MemberLoads.of(self.held, self.partition_loads, weights)

    @property
    def left_out(self) -> Partitions:
        """Partitions that the allocator function omits."""
        return frozenset() if self.document is None else self.document.left_out

    @cached_property
    def assigned(self) -> Partitions:
        """Partitions that a member owns, or gets once their current owner releases them."""
        if self.document is None:
            return frozenset()
        return frozenset().union(*self.document.owners.values(), *self.document.promised.values())


def reported_problems(document: AssignmentDocument | None, members: Mapping[str, MemberInfo]) -> list[str]:
    """Returns the problems that the leader wrote into the assignment."""
    if document is None:
        return []
    kept = [f"the leader keeps the old assignment: {plain(document.problem)}"] if document.problem else []
    refused = [
        f"member {plain(member_name(member, members.get(member)))} gets no partitions: {plain(why)}"
        for member, why in document.refused.items()
    ]
    return kept + refused


SHOWN = 10  # names listed in text; JSON lists all


class Lag(NamedTuple):
    """Lag of several partitions, in records."""

    known: int
    """Sum over the partitions whose lag is known."""
    unknown: int
    """Number of partitions with an unknown lag."""
    partial: bool = False
    """Whether there may be more partitions, whose names are unknown."""

    @property
    def total(self) -> Optional[int]:
        """The lag of all partitions; None if one is unknown, because a partial sum would look like the total."""
        return None if self.unknown or self.partial else self.known


@dataclass(frozen=True)
class Logs:
    """Committed offsets and both ends of the logs. Partitions whose leader did not respond are missing."""

    committed: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    start: Mapping[TopicPartition, int] = field(default_factory=dict)
    end: Mapping[TopicPartition, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    partial: bool = False
    """Whether `committed` may lack partitions: it was not read, or this user may not see all topics."""

    def __add__(self, other: Logs) -> Logs:
        return Logs(
            {**self.committed, **other.committed},
            {**self.start, **other.start},
            {**self.end, **other.end},
            (*self.problems, *other.problems),
            self.partial or other.partial,
        )

    def lag(self, partition: TopicPartition) -> Optional[int]:
        """Returns the number of records from the committed offset to the end of the log; None if unknown.

        An empty log has no lag. Without a committed offset, the lag of other logs depends on `auto_offset_reset` of the
        members, so it is unknown.
        """
        committed, end = self.committed.get(partition), self.end.get(partition)
        if end is None:
            return None
        if committed is None:
            return 0 if self.start.get(partition) == end else None
        lag: int = max(0, end - committed.offset)
        return lag

    def lag_of(self, partitions: Collection[TopicPartition]) -> Lag:
        found = [self.lag(partition) for partition in partitions]
        return Lag(sum(lag for lag in found if lag is not None), found.count(None))


NOT_READ = Logs(partial=True)


class Reservation(NamedTuple):
    """Partitions that wait for the next process with the same instance id (`restart_grace_s`)."""

    instance_id: str
    host: str
    """The host of the last process."""
    until: float
    """End of the reservation, in seconds since the epoch by the leader's clock."""
    partitions: Partitions


@dataclass(frozen=True)
class GroupReport:
    """One group: members, owners, offsets and problems."""

    state: GroupState
    logs: Logs = NOT_READ
    subscribed: Collection[TopicPartition] = ()
    """All existing partitions of the members' subscriptions, as far as Kafka was asked and tells them."""
    brokers: str | None = None
    """The addresses of the brokers that `logs` were read from."""
    unseen: tuple[str, ...] = ()
    """Why the group may have members that this report does not show."""
    counted: bool = False
    """Whether `subscribed` is complete. Otherwise only the leader's assignment tells how many partitions there are."""

    @property
    def complete(self) -> bool:
        """Whether all members and offsets are known, and the offsets come from the cluster that the members read."""
        return not self.unseen and not self.logs.problems and self.state.choice is not None and self.elsewhere is None

    @property
    def elsewhere(self) -> str | None:
        """A warning if the members read another cluster than `brokers`."""
        return None if self.state.choice is None else elsewhere(self.state.choice, self.brokers)

    @cached_property
    def partitions(self) -> list[TopicPartition]:
        return sorted({*self._to_read, *self.logs.committed})

    @cached_property
    def current(self) -> list[TopicPartition]:
        """The partitions that the group reads now; also all with a committed offset if the subscriptions are unknown.

        A group also keeps the committed offsets of topics that its members no longer subscribe to.
        """
        return sorted(self._to_read) if self._subscriptions_known else self.partitions

    @cached_property
    def _subscriptions_known(self) -> bool:
        """False without members, and while Kafka's coordinator rebalances a group of its classic protocol.

        Until such a rebalance ends, the coordinator reports members without topics and partitions.
        """
        coordinated, members = self.state.coordinated, self.state.members.values()
        if not members or coordinated is None or coordinated.stable:
            return bool(members)
        return all(info.topics for info in members)

    @cached_property
    def _to_read(self) -> frozenset[TopicPartition]:
        return frozenset({*self.state.owners, *self.state.assigned, *self.state.left_out, *self.subscribed})

    @cached_property
    def lag(self) -> Lag:
        """The lag of `current`."""
        return self.logs.lag_of(self.current)._replace(partial=self.logs.partial)

    @cached_property
    def unowned(self) -> list[TopicPartition]:
        """The partitions in `current` without an owner; none without members."""
        if not self.state.members:
            return []
        return sorted(set(self.current) - set(self.state.owners))

    @cached_property
    def left_out(self) -> list[TopicPartition]:
        """The partitions in `unowned` that the allocator function omits."""
        return [partition for partition in self.unowned if partition in self.state.left_out]

    @cached_property
    def commands(self) -> list[CommandReport]:
        """The operator commands, oldest first."""
        return command_reports(self.state.commands, self.state.document, self.state.members, self.state.read_ms)

    @cached_property
    def paused(self) -> Partitions:
        """The partitions that commands keep from the handlers."""
        pauses = (each.command.partitions for each in self.commands if each.command.kind == "pause" and each.in_force)
        return NO_PARTITIONS.union(*pauses)

    @cached_property
    def reserved(self) -> list[Reservation]:
        """The reservations, sorted by instance id."""
        document = self.state.document
        if document is None:
            return []
        found = [
            Reservation(
                seat.info.instance_id or "",
                seat.info.host,
                seat.reserved_until_ms / 1000,
                frozenset(document.owners.get(member, ())) - frozenset(self.state.owners),
            )
            for member, seat in document.seats.items()
            if seat.reserved_until_ms is not None
        ]
        return sorted((each for each in found if each.partitions), key=lambda each: each.instance_id)

    @property
    def member_count(self) -> Optional[int]:
        """The number of members; None if unknown."""
        return None if self._may_hide_members else len(self.state.members)

    @property
    def generation(self) -> Optional[int]:
        """The generation of the assignment; None if the group uses Kafka's own protocols."""
        return self.state.generation if self.state.coordinated is None else None

    @property
    def owned_count(self) -> Optional[int]:
        """The number of partitions that a member owns; None if members are unknown."""
        return None if self._may_hide_members else len(self.state.owners)

    @property
    def unowned_count(self) -> Optional[int]:
        """The number of partitions in `unowned`; None if the members or all partitions are unknown."""
        return None if self._may_hide_members or self.phase == "unknown" else len(self.unowned)

    @property
    def _may_hide_members(self) -> bool:
        coordinated = self.state.coordinated
        return not self.state.members and bool(self.unseen or not (coordinated is None or coordinated.idle))

    @cached_property
    def phase(self) -> str:
        if not self.state.members:
            return "paused" if self.state.paused else "unknown" if self._may_hide_members else "empty"
        if self.state.coordinated is not None:
            return "stable" if self.state.coordinated.stable else "rebalancing"
        document = self.state.document
        moving = document is not None and (document.waiting or document.promised)
        if moving or len(self.unowned) > len(self.left_out):
            return "rebalancing"
        return "stable" if self.counted or self._assigns_all else "unknown"

    @property
    def _assigns_all(self) -> bool:
        """Whether the leader has assigned all partitions that it knows, of every topic that a member names."""
        document = self.state.document
        if document is None or document.problem:
            return False
        topics = {partition.topic for partition in self._to_read}
        return bool(topics) and all(info.topics <= topics for info in self.state.members.values())

    @cached_property
    def problems(self) -> list[str]:
        found = [*self.unseen, *self.state.problems, *self.logs.problems, *filter(None, [self.elsewhere])]
        for partition in self.partitions:
            committed = self.logs.committed.get(partition)
            start, end = self.logs.start.get(partition), self.logs.end.get(partition)
            if committed is None:
                continue
            if start is not None and committed.offset < start:
                found.append(
                    f"{name_of(partition)}: offset {committed.offset} is committed, but the log begins at {start}: "
                    f"{start - committed.offset} records were deleted unread"
                )
            if end is not None and committed.offset > end:
                found.append(
                    f"{name_of(partition)}: offset {committed.offset} is committed, but the log ends at {end}; the "
                    "topic may have been deleted and created again"
                )
        for each in self.reserved:
            found.append(
                f"{len(each.partitions)} partitions wait for instance {shown(each.instance_id)} (last on "
                f"{plain(each.host)}) to start again, until {clock_time(each.until)}: {_names(each.partitions)}"
            )
        reserved = frozenset().union(*(each.partitions for each in self.reserved))
        waiting = set(self.unowned) - set(self.left_out) - reserved
        if waiting:
            found.append(f"{len(waiting)} partitions have no owner: {_names(waiting)}")
        if self.left_out:
            assert self.state.document is not None
            function = plain(self.state.document.strategy)
            found.append(
                f"{len(self.left_out)} partitions have no owner, because allocator function {function} omits them: "
                f"{_names(self.left_out)}"
            )
        found += [
            f"command {each.command.id} ({each.command}) is {each.state}: {plain(each.why)}"
            for each in self.commands
            if each.state in ("pending", "not kept")
        ]
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.state.group,
            "state": self.phase,
            "generation": None if self.state.document is None else self.state.generation,
            "strategy": self.state.strategy,
            "leader": self.state.leader,
            "members": [self._member(member) for member in self.state.members],
            "partitions": [self.partition_to_json(partition) for partition in self.partitions],
            **self._load_to_json(),
            "lag": self.lag.total,
            "lag_unknown_partitions": self.lag.unknown,
            "unowned": [partition._asdict() for partition in self.unowned],
            "left_out": [partition._asdict() for partition in self.left_out],
            "commands": [each.to_json() for each in self.commands],
            "reserved": [{**each._asdict(), "partitions": len(each.partitions)} for each in self.reserved],
            "problems": self.problems,
        }

    def _load_to_json(self) -> dict[str, Any]:
        load = self.state.load
        if load is None:
            return {}
        return {
            "load": {
                "source": self.state.load_source,
                "mean": load.mean,
                "max_over_mean": load.max_over_mean,
                "unknown_partitions": load.unknown,
                "members": load.by_member,
            }
        }

    def _member(self, member: str) -> dict[str, Any]:
        info, claim = self.state.members[member], self.state.claims.get(member)
        return {
            "id": member,
            "name": self.state.name_of(member),
            "client_id": info.name,
            "host": info.host,
            "pid": info.pid,
            "version": info.version,
            "weight": info.weight if self.state.coordinated is None else None,
            "rack": info.rack,
            "instance_id": info.instance_id,
            "topics": sorted(info.topics),
            "pattern": info.pattern,
            "strategies": list(info.strategies),
            "partitions": 0 if claim is None else len(claim.held),
        }

    def partition_to_json(self, partition: TopicPartition) -> dict[str, Any]:
        committed = self.logs.committed.get(partition)
        owner = self.state.owners.get(partition)
        info = None if owner is None else self.state.members.get(owner)
        return {
            **partition._asdict(),
            "owner": owner,
            "owner_name": None if owner is None else self.state.name_of(owner),
            "client_id": None if info is None else info.name,
            "committed": None if committed is None else committed.offset,
            "metadata": None if committed is None else committed.metadata,
            "log_start": self.logs.start.get(partition),
            "log_end": self.logs.end.get(partition),
            "lag": self.logs.lag(partition),
        }

    def _repr_html_(self) -> str:
        """HTML for notebooks: the members, the partitions with the largest lag, and the problems."""
        found = self.to_json()
        members = [[m["name"], m["host"], m["partitions"], m["rack"] or ""] for m in found["members"]]
        behind = sorted(found["partitions"], key=lambda p: (-(p["lag"] or 0), p["topic"], p["partition"]))
        rows = (
            [f"{p['topic']}:{p['partition']}", p["owner_name"] or "no owner", p["committed"], p["log_end"], p["lag"]]
            for p in behind
        )
        notes = [self.headline(), *(f"problem: {problem}" for problem in self.problems[:SHOWN])]
        return table(("member", "host", "partitions", "rack"), members, len(members), *notes) + table(
            ("partition", "owner", "committed", "log end", "lag"), rows, len(behind)
        )

    def headline(self) -> str:
        strategy = f", strategy {self.state.strategy}" if self.state.strategy else ""
        generation = "" if self.state.document is None else f", generation {self.state.generation}"
        members = "unknown" if self.member_count is None else self.member_count
        load = self.state.load
        even = "" if load is None or load.max_over_mean is None else f", load max/mean {load.max_over_mean:.2f}"
        by_kafka = "" if self.state.coordinated is None else " (by Kafka's coordinator)"
        owned = "an unknown number" if self.owned_count is None else self.owned_count
        return (
            f"{self.state.group}: {self.phase}{by_kafka}{generation}, {members} members, "
            f"{owned} of {len(self.partitions)} partitions owned, {self.lag_text()}{strategy}{even}"
        )

    def lag_text(self) -> str:
        """Returns the known lag as text, with the partitions whose lag is unknown."""
        unknown = [partition for partition in self.current if self.logs.lag(partition) is None]
        known = len(self.current) - len(unknown)
        if not known and (unknown or self.logs.partial):
            return "lag unknown"
        if not unknown:
            return f"lag at least {self.lag.known}" if self.logs.partial else f"lag {self.lag.known}"
        places = [f"{topic}:{ranges}" for topic, ranges in to_ranges(unknown).items()]
        return f"lag {self.lag.known} in {known} partitions, unknown in {len(unknown)} ({listed(places)})"


def listed(names: Sequence[str]) -> str:
    """Returns at most `SHOWN` names as text, and how many more there are."""
    return some_of(names, SHOWN)


def clock_time(seconds: float) -> str:
    """Formats seconds since the epoch as "14:05:31 UTC"."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "no known time"


def _names(partitions: Iterable[TopicPartition]) -> str:
    return listed([name_of(partition) for partition in sorted(partitions)])


def name_of(partition: TopicPartition) -> str:
    return f"{partition.topic}:{partition.partition}"
