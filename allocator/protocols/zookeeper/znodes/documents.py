"""The znodes of a group and their formats.

    <root>/<group>                 persistent            zlib(JSON): the last changes of the assignment, or empty
    <root>/<group>/members/<id>    ephemeral sequential  JSON: the member's name, host and subscription
    <root>/<group>/claims/<id>     ephemeral             zlib(JSON): what that member holds, the revision it has seen
    <root>/<group>/claims/<name>   ephemeral             pieces of a claim that is too large for one znode
    <root>/<group>/assignment      persistent            zlib(JSON): which member may hold what; by compare-and-set
    <root>/<group>/shards/<name>   persistent            pieces of an assignment that is too large for one znode
    <root>/<group>/orders          persistent            JSON: the operator commands (`commands`); by compare-and-set
    <root>/<group>/left/<id>       persistent, empty     that member does not come back; the leader deletes it
    <root>/<group>/loads/<id>      ephemeral             zlib(JSON): the load of that member's partitions

All content is checked when it is read. Invalid content raises `InvalidZnode`, which names the znode. The memory that a
read takes is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from allocator.core.settings import check_group, check_path, topic_pattern
from allocator.core.text import shown, whole_number
from allocator.documents import (
    INFLATED_BYTES,
    SHARD_BYTES,
    Counts,
    InflateBudget,
    InvalidZnode,
    RangesOfMembers,
    check_list,
    check_mapping,
    check_number,
    check_real,
    check_text,
    check_texts,
    deflate,
    encode_object,
    from_ranges,
    inflate,
    optional,
    parse_object,
    to_ranges,
)
from allocator.errors import ConfigError, MissingExtra
from allocator.protocols.zookeeper.znodes.following import LoadHistory
from allocator.types import NO_PARTITIONS, Partitions

MINUTE_MS = 60_000
MEMBER_BYTES = 64_000  # a larger member znode is refused when written and ignored when read
MAX_GRACE_S = 86_400
OF_RESOURCES = "resources"
"""The feature of members whose partitions are named resources (`Allocation`) and not those of Kafka's topics."""
MAX_SEATS = 10_000  # seats: members with an instance id, absent ones included


class Paths:
    """Paths of one group's znodes."""

    def __init__(self, root: str, group: str) -> None:
        check_group(group)
        check_path("ZooKeeper root", root)
        self.root, self.group = root, group
        self.base = base = f"{root}/{group}"
        self.members, self.claims, self.assignment = f"{base}/members", f"{base}/claims", f"{base}/assignment"
        self.shards, self.commands = f"{base}/shards", f"{base}/orders"
        self.left, self.loads = f"{base}/left", f"{base}/loads"

    def member(self, member: str) -> str:
        return f"{self.members}/{member}"

    def claim(self, member: str) -> str:
        return f"{self.claims}/{member}"

    def left_mark(self, member: str) -> str:
        return f"{self.left}/{member}"

    def load(self, member: str) -> str:
        return f"{self.loads}/{member}"


# ZooKeeper counts in 32 bits: after 2147483647 comes -2147483648
MEMBER_ID = re.compile(r"m-[0-9a-f]{16}-([0-9]{10}|-[0-9]{9}|-[1-9][0-9]{9})\Z")


def sequence(member: str) -> int | None:
    """Returns the sequence number that ZooKeeper gave a member; None if the name is not a member's."""
    match = MEMBER_ID.match(member)
    return None if match is None else int(match.group(1)) % 2**32


def in_join_order(names: Iterable[str]) -> list[str]:
    """Returns the members among `names`, oldest first. The first one leads."""
    numbered = ((sequence(name), name) for name in names)
    return [name for _, name in sorted((number, name) for number, name in numbered if number is not None)]


@dataclass(frozen=True)
class MemberInfo:
    """The description that a member writes when it joins. It does not change while its znode exists."""

    name: str
    host: str
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    weight: float = 1.0
    rack: str | None = None
    strategies: tuple[str, ...] = ("naive",)
    pid: int | None = None
    """Process id. It and `session_timeout_s` are None if the member's version does not write them."""
    session_timeout_s: float | None = None
    """Seconds of silence after which ZooKeeper declares the member dead."""
    commands: tuple[str, ...] = ()
    """The kinds of commands that the member knows; none if its version has no commands."""
    instance_id: str | None = None
    """The member's name, which stays the same over restarts; None if its partitions are not reserved."""
    restart_grace_s: float = 0.0
    """How long its partitions are reserved for the next process with that name, in seconds."""
    features: tuple[str, ...] = ()
    """Optional parts of the protocol that the member supports."""
    load_tolerance: float | None = None
    """The load tolerance of a member that follows load; None for others."""
    version: str | None = None
    """The version of this package in the member's process; None if that version does not write it."""

    @property
    def of_resources(self) -> bool:
        """Whether the member shares named resources, which may have the name of a topic by chance."""
        return OF_RESOURCES in self.features

    def encode(self) -> bytes:
        """Encodes the description. Raises ConfigError if the pattern is invalid or the subscription too large for a
        znode, and MissingExtra if the package that checks patterns is not installed."""
        if self.pattern is not None:
            topic_pattern(self.pattern)
        data = encode_object(self.to_json())
        if len(data) > MEMBER_BYTES:
            raise ConfigError(
                f"the subscription of member {self.name!r} takes {len(data)} bytes, more than the {MEMBER_BYTES} that "
                "a member's znode may hold; subscribe by pattern instead"
            )
        return data

    @classmethod
    def decode(cls, path: str, data: bytes) -> MemberInfo:
        if len(data) > MEMBER_BYTES:
            raise InvalidZnode(path, f"{len(data)} bytes")
        return cls.from_json(path, parse_object(path, data))

    def to_json(self) -> dict[str, Any]:
        found = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in vars(self).items()}
        found["orders"] = found.pop("commands")
        instance = [found.pop("instance_id"), found.pop("restart_grace_s")]
        return {**found, "instance": instance} if self.instance_id is not None else found

    @classmethod
    def from_json(cls, path: str, doc: Mapping[str, Any]) -> MemberInfo:
        instance_id, grace_s = check_list(path, "instance", doc.get("instance", [None, 0]), 2)
        return cls(
            name=check_text(path, "name", doc.get("name")),
            host=check_text(path, "host", doc.get("host")),
            topics=frozenset(check_texts(path, "topics", doc.get("topics"))),
            pattern=optional(_check_pattern, path, doc, "pattern"),
            weight=check_real(path, "weight", doc.get("weight", 1.0)),
            rack=optional(check_text, path, doc, "rack"),
            strategies=tuple(check_texts(path, "strategies", doc.get("strategies"))),
            pid=optional(check_number, path, doc, "pid"),
            session_timeout_s=optional(check_real, path, doc, "session_timeout_s"),
            commands=tuple(check_texts(path, "orders", doc.get("orders", []))),
            instance_id=None if instance_id is None else check_text(path, "instance", instance_id),
            restart_grace_s=check_real(path, "restart_grace_s", grace_s, 0, MAX_GRACE_S, zero=True),
            features=tuple(check_texts(path, "features", doc.get("features", []))),
            load_tolerance=optional(partial(check_real, low=1), path, doc, "load_tolerance"),
            version=optional(check_text, path, doc, "version"),
        )


def _check_pattern(path: str, what: str, value: object) -> str:
    pattern = check_text(path, what, value)
    try:
        topic_pattern(pattern)
    except (ConfigError, MissingExtra) as error:
        raise InvalidZnode(path, str(error)) from error
    return pattern


@dataclass(frozen=True)
class Seat:
    """Reserves the partitions of a member with an instance id. The next member with that id takes the seat over.

    The document stores the seat, so that a leader can reserve the partitions of a member that it has never read.
    """

    info: MemberInfo
    """The member's info without the process id and other fields that change when its process restarts."""
    reserved_until_ms: int | None = None
    """When the reservation ends, in milliseconds since the epoch by the leader's wall clock; None while the
    member lives."""


@dataclass(frozen=True)
class Claim:
    """The partitions that a member holds. The member adds a partition before it starts to read it, and removes it after
    the release."""

    revision: int
    """Revision of the newest document that the member has acted on."""
    held: Partitions = NO_PARTITIONS
    generation: int = 0
    """Generation of that document."""
    version: int = field(default=0, compare=False)
    """Version of the claim's znode when it was read."""
    transaction: int = field(default=0, compare=False)
    """Transaction id of the last write of the znode; 0 if the claim was not read from ZooKeeper."""

    def encode(self, member: str | None = None) -> bytes:
        """`member` names its member, so that a copy at another member is no release."""
        doc = {"revision": self.revision, "generation": self.generation, "held": to_ranges(self.held)}
        return deflate(doc if member is None else {**doc, "member": member})

    @classmethod
    def decode(cls, path: str, data: bytes, budget: InflateBudget | None = None) -> Claim:
        """Decodes a claim. `budget` is shared with the other claims that the caller keeps."""
        budget = budget or InflateBudget()
        budget.give_back(path)
        doc = parse_object(path, inflate(path, data))
        member = optional(check_text, path, doc, "member")  # older versions do not write it
        if member is not None and member != path.rpartition("/")[2]:
            raise InvalidZnode(path, f"it is the claim of {shown(member)}")
        held = check_mapping(path, "partitions", doc.get("held"))
        budget.take(path, held)
        return cls(
            check_number(path, "revision", doc.get("revision")),
            from_ranges(held),
            check_number(path, "generation", doc.get("generation")),
        )


MAX_NUMBER = 2**52
"""The largest generation and revision from which a leader goes on. Readers know 2**62, so it does not end there."""


@dataclass(frozen=True)
class Waiting:
    """Partitions that were revoked from a member and that its claim may still hold."""

    since: int
    """Only a claim that has seen this revision or a later one can prove the release."""
    partitions: Partitions


class CommandState(NamedTuple):
    """The state of a command, written by the leader."""

    state: str
    """"pending": members of older versions do not know its kind. "waiting": the group does not comply yet. "kept": the
    group complies. "done": nothing is left to do, and it may be removed. "not kept": the group cannot comply, and goes
    on without it."""
    why: str = ""


@dataclass(frozen=True)
class AssignmentDocument:
    """The assignment. The leader replaces it by compare-and-set. A member follows the newest version that it has read.

    Each partition is in `owners` of one member, or in `waiting` of one member, or in neither. `promised` maps a member
    to the partitions that it gets once they are free. `generation` counts the computed assignments, `revision` every
    write.
    """

    generation: int = 0
    revision: int = 0
    leader: str = ""
    strategy: str = ""
    owners: Mapping[str, Partitions] = field(default_factory=dict)
    promised: Mapping[str, Partitions] = field(default_factory=dict)
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    left_out: Partitions = NO_PARTITIONS
    """Partitions that the allocator function or a command leaves without an owner. Only the leader and observers read
    this field, `orders`, `moved`, `load_history` and `seats`."""
    commands: Mapping[str, CommandState] = field(default_factory=dict)
    """The states of the commands that the leader knows, by id."""
    moved: tuple[tuple[int, int], ...] = ()
    """(milliseconds since the epoch, partitions taken from live owners), for the last minute. Kept only while a command
    sets a budget."""
    load_history: LoadHistory = field(default_factory=LoadHistory)
    """The moves for load."""
    seats: Mapping[str, Seat] = field(default_factory=dict)
    """The seats of the live members with an instance id, and of the absent members that may come back, by member id."""
    problem: str | None = None
    writes: int = 0
    """Version of the group's own znode, to which each write of the assignment adds 1. Unlike the version of the
    assignment's znode it does not start again when that znode is deleted. 0: the leader's version does not write it."""

    def __str__(self) -> str:
        owned, moving = sum(map(len, self.owners.values())), self.in_flight(self.waiting)
        problem = f"; problem: {self.problem}" if self.problem else ""
        return (
            f"generation {self.generation} revision {self.revision} ({self.strategy}): "
            f"{len(self.owners)} members own {owned} partitions, {moving} on the move{problem}"
        )

    def assigned(self) -> dict[str, Partitions]:
        """Returns the partitions that each member owns or is promised."""
        found = dict(self.owners)
        for member, parts in self.promised.items():
            found[member] = found.get(member, NO_PARTITIONS) | parts
        return found

    def partitions(self) -> Partitions:
        """Returns the partitions that the document names."""
        waiting = (entry.partitions for entry in self.waiting.values())
        return self.left_out.union(*self.assigned().values(), *waiting)

    def partition_counts(self) -> dict[str, int]:
        """Returns the partition count of each topic as far as the document shows it."""
        counts: dict[str, int] = {}
        for parts in (*self.assigned().values(), *(entry.partitions for entry in self.waiting.values())):
            for topic, partition in parts:
                counts[topic] = max(counts.get(topic, 0), partition + 1)
        return counts

    def in_flight(self, alive: Collection[str]) -> int:
        """Returns how many partitions live members still have to release."""
        return sum(len(entry.partitions) for member, entry in self.waiting.items() if member in alive)

    def recent_moves(self, now_ms: int) -> tuple[tuple[int, int], ...]:
        """Returns the entries of `moved` from the last minute. A time in the future, which a leader with another clock
        wrote, counts as now."""
        return tuple((min(when, now_ms), number) for when, number in self.moved if when + MINUTE_MS > now_ms)

    def encode(self, ranges: RangesOfMembers | None = None) -> bytes:
        """Encodes the document. With the `ranges` that encoded the former document, only changed members cost time."""
        rare = {
            "writes": self.writes,
            "left_out": to_ranges(self.left_out),
            "orders": {command: list(found) for command, found in sorted(self.commands.items())},
            "moved": [list(entry) for entry in self.moved],
            "load": _history_to_json(self.load_history),
            **_seats_to_json(self.seats),
        }
        return deflate(
            {
                "generation": self.generation,
                "revision": self.revision,
                "leader": self.leader,
                "strategy": self.strategy,
                "owners": (ranges or RangesOfMembers())(self.owners),
                "promised": {m: to_ranges(p) for m, p in sorted(self.promised.items())},
                "waiting": {m: [w.since, to_ranges(w.partitions)] for m, w in sorted(self.waiting.items())},
                "refused": dict(sorted(self.refused.items())),
                "problem": self.problem,
                **{name: value for name, value in rare.items() if value},
            }
        )

    @classmethod
    def decode(
        cls, path: str, data: bytes, only: str | None = None, counts: Counts | None = None
    ) -> AssignmentDocument:
        """Decodes a document. With `only`, decodes only the entries of that member. With 100 members and 10 000
        partitions this is forty times faster, and every member reads every document. `counts`: see `InflateBudget`."""
        doc = parse_object(path, inflate(path, data))

        def entries(what: str) -> Iterable[tuple[str, Any]]:
            found = check_mapping(path, what, doc.get(what))
            return found.items() if only is None else [(only, found[only])] if only in found else []

        # counts all partitions before any range is expanded, which bounds the memory
        held, promised = InflateBudget(counts), InflateBudget(counts)
        for _, ranges in entries("owners"):
            held.take(path, ranges)
        for _, entry in entries("waiting"):
            held.take(path, check_list(path, "waiting", entry, 2)[1])
        for _, ranges in entries("promised"):
            promised.take(path, ranges)
        rest = doc if only is None else {}  # the fields that members do not read
        left_out = check_mapping(path, "left_out", rest.get("left_out", {}))
        InflateBudget(counts).take(path, left_out)
        found = cls(
            generation=check_number(path, "generation", doc.get("generation")),
            revision=check_number(path, "revision", doc.get("revision")),
            leader=check_text(path, "leader", doc.get("leader")),
            strategy=check_text(path, "strategy", doc.get("strategy")),
            owners={m: from_ranges(p) for m, p in entries("owners")},
            promised={m: from_ranges(p) for m, p in entries("promised")},
            waiting={m: Waiting(check_number(path, "since", e[0]), from_ranges(e[1])) for m, e in entries("waiting")},
            refused={m: check_text(path, "refused", why) for m, why in entries("refused")},
            left_out=from_ranges(left_out),
            commands=_command_states(path, rest.get("orders", {})),
            moved=_moved(path, rest.get("moved", [])),
            load_history=_history_from_json(path, rest.get("load", [0, 0, []]), counts),
            seats=_seats_from_json(path, rest),
            problem=optional(check_text, path, doc, "problem"),
            writes=check_number(path, "writes", doc.get("writes", 0)),
        )
        if only is None:
            found._check(path)
        return found

    def _check(self, path: str) -> None:
        """Checks what a leader relies on. Raises InvalidZnode."""
        if sum(map(len, self.owners.values())) > len(NO_PARTITIONS.union(*self.owners.values())):
            raise InvalidZnode(path, "a partition has two owners")
        if max(self.generation, self.revision) > MAX_NUMBER:  # the leader counts on
            raise InvalidZnode(path, f"generation {self.generation} and revision {self.revision} are no counts")

    def but(self, **changes: Any) -> AssignmentDocument:
        """Returns a copy with these fields replaced."""
        return replace(self, **changes)


def _command_states(path: str, value: object) -> dict[str, CommandState]:
    return {
        command: CommandState(*check_texts(path, "state of a command", entry, 2))
        for command, entry in check_mapping(path, "orders", value).items()
    }


def _moved(path: str, value: object) -> tuple[tuple[int, int], ...]:
    entries = (check_list(path, "moved", entry, 2) for entry in check_list(path, "moved", value))
    return tuple((check_number(path, "moved", when), check_number(path, "moved", number)) for when, number in entries)


def _history_to_json(history: LoadHistory) -> list[Any]:
    if history == LoadHistory():
        return []
    return [history.spent, history.at_ms, [[when, to_ranges(partitions)] for when, partitions in history.rests]]


def _history_from_json(path: str, value: object, counts: Counts | None) -> LoadHistory:
    spent, at_ms, entries = check_list(path, "load", value, 3)
    budget, rests = InflateBudget(counts), []
    for entry in check_list(path, "load", entries):
        when, ranges = check_list(path, "load", entry, 2)
        budget.take(path, ranges)
        rests.append((check_number(path, "load", when), from_ranges(ranges)))
    spent = check_real(path, "load", spent, 0, 1e12, zero=True)
    return LoadHistory(spent, check_number(path, "load", at_ms), tuple(rests))


def _seats_to_json(seats: Mapping[str, Seat]) -> dict[str, Any]:
    """Stores the topics of each subscription once, because members usually share one."""
    subscriptions = sorted({tuple(sorted(seat.info.topics)) for seat in seats.values()})
    place = {topics: index for index, topics in enumerate(subscriptions)}
    found = {}
    for member, seat in sorted(seats.items()):
        info = seat.info.to_json()
        info["topics"] = place[tuple(info["topics"])]
        found[member] = [info, seat.reserved_until_ms]
    return {"subscriptions": subscriptions, "seats": found}


def _seats_from_json(path: str, doc: Mapping[str, Any]) -> dict[str, Seat]:
    lists = check_list(path, "subscriptions", doc.get("subscriptions", []))
    # all seats with one subscription share one set, since a subscription may be long
    subscriptions = [frozenset(check_texts(path, "subscriptions", topics)) for topics in lists]
    found = check_mapping(path, "seats", doc.get("seats", {}))
    if len(found) > MAX_SEATS:
        raise InvalidZnode(path, f"{len(found)} seats")
    seats = {}
    for member, entry in found.items():
        info, until = check_list(path, "seat", entry, 2)
        index = check_number(path, "topics", check_mapping(path, "seat", info).get("topics"))
        if index >= len(lists):
            raise InvalidZnode(path, f"seat of {shown(member)}")
        seats[member] = Seat(
            replace(MemberInfo.from_json(path, {**info, "topics": []}), topics=subscriptions[index]),
            None if until is None else check_number(path, "reserved until", until),
        )
    return seats


def split(data: bytes, writer: str, revision: int) -> tuple[bytes, dict[str, bytes]]:
    """Splits an encoded document or claim into a head and shards (name -> bytes). A small one has no shards."""
    if len(data) <= SHARD_BYTES:
        return data, {}
    pieces = [data[start : start + SHARD_BYTES] for start in range(0, len(data), SHARD_BYTES)]
    # with the writer's name, a deposed leader cannot overwrite the shards of its successor
    names = [f"{revision}-{writer}-{number}" for number in range(len(pieces))]
    return encode_object({"shards": names}), dict(zip(names, pieces))


def shard_names(path: str, head: bytes) -> list[str] | None:
    """Returns the names of the shards in a head; None if the head is the whole document."""
    if not head.startswith(b"{"):
        return None
    names = check_texts(path, "shards", parse_object(path, head).get("shards"))
    for name in names:
        if "/" in name or name in (".", "..") or not name:
            raise InvalidZnode(path, f"shard name {shown(name)}")
    if len(names) * SHARD_BYTES > INFLATED_BYTES:
        raise InvalidZnode(path, f"{len(names)} shards")
    return names


def shard_revision(name: str) -> int:
    """Returns the revision of the document that a shard belongs to; -1 for the name of a foreign znode."""
    number = whole_number(name.partition("-")[0])
    return -1 if number is None else number
