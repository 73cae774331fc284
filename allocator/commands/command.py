"""Defines the operator commands, and encodes the znode `<root>/<group>/orders` that stores them. No I/O.

The znode is persistent, plain JSON, and replaced by compare-and-set (`command_store`):

    {"format": 1, "orders": [
      {"id": "o-5f3a9c21", "kind": "cordon", "arguments": {"member": "billing-web1"}, "who": "alice@ops1",
       "when": 1767225600000, "why": "its disk is failing", "expires": 1767312000000, "results": [], "topics": {}}]}

`when` and `expires` are milliseconds since the epoch, by the clock of the process that wrote them; `expires` may be
null. `arguments` depend on the kind (`KINDS`). A partition argument is written as in all znodes: {"orders": "0-3,7"}.
Kinds that are carried out once for each partition have `results`: {"when": ms, "by": "<member id>",
"partitions": {"orders": "0"}, "what": "sought to 42"}. Such a command is done when its results name all its partitions.

`topics` has topic -> topic id for a kind about offsets, which mean nothing in a later topic of the same name. The
operator's process writes it if it knows the brokers, or else the first owner that reads the command. Brokers before 2.8
have no ids. A member of a version before `topics` ignores it, and drops it when it writes to the znode; an owner then
writes it again.

A command of an unknown kind, or with wrong arguments, stays in the znode and has no effect; `Command.fault` names the
fault. The first write after a day removes expired and done commands.

To add a kind, add a `CommandKind` to `_KINDS`, and the arguments of its command line to `cli.operator_commands`. Its
checks refuse wrong arguments before they are written. Each member writes the name of the kind to its znode
(`MemberInfo.commands`), so that members of older versions can be named. Then carry out the kind in the leader, or in
the owners of its partitions. Owners read the commands with one watch (`CommandStore.read`), and call
`CommandStore.add_results` if the kind is carried out once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar, Literal, Optional, Protocol, TypeVar, Union

from allocator.core.text import plain, shown
from allocator.documents import (
    InflateBudget,
    InvalidZnode,
    check_list,
    check_mapping,
    check_number,
    check_text,
    encode_object,
    from_ranges,
    optional,
    parse_object,
    to_ranges,
)
from allocator.errors import ConfigError, NoSuchCommand
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

LONGEST_TEXT = 1_000  # characters of a reason or a name
MAX_NAMES = 2_000  # members in one list
MAX_COUNT = 1_000_000
KEPT_MS = 86_400_000  # a day: how long an expired or done command stays visible

KEPT, NOT_KEPT = "kept", "not kept: "
"""The report of an owner that can follow a command although an earlier owner could not, and the start of the report of
one that cannot. The reason follows it."""

COMMAND_ID = re.compile(r"o-[0-9a-f]{8,32}\Z")
POSITION = re.compile(r"(earliest|latest|(timestamp:)?[0-9]{1,18})\Z")
KIND_NAME = re.compile(r"[a-z][a-z-]{0,39}\Z")

Check = Callable[[Any], None]
"""Checks an argument. Raises ValueError with the reason if the JSON value is not a valid argument."""


def partitions_argument(value: Any) -> None:
    """Checks {"orders": "0-3,7"}: at least one partition. Names of resources of an `Allocation` are allowed
    as topics."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{shown(value)} names no partitions")
    try:
        for topic in value:
            if not 0 < len(check_text("", "the name", topic)) <= LONGEST_TEXT:
                raise ValueError(f"{shown(value)} does not name partitions (a name has 1 to {LONGEST_TEXT} characters)")
        InflateBudget().take("", value)
    except InvalidZnode as error:
        raise ValueError(f"{shown(value)} does not name partitions ({error.why})") from None


def _argument(valid: Callable[[Any], object], fault: str) -> Check:
    def check(value: Any) -> None:
        if not valid(value):
            raise ValueError(f"{shown(value)} {fault}")

    return check


def _is_name(value: Any) -> bool:
    """Whether `value` can name a member: by id, by client id, or by the name that tables show."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT


def _is_place(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and value.keys() <= {"member", "rack"}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


member_argument = _argument(_is_name, "names no member")
place_argument = _argument(
    lambda value: _is_place(value) and all(map(_is_name, value.values())),
    'is neither {"member": NAME} nor {"rack": NAME}',
)
names_argument = _argument(
    lambda value: isinstance(value, list) and len(value) <= MAX_NAMES and all(map(_is_name, value)),
    "is not a list of names",
)
count_argument = _argument(_is_count, f"is not a number from 0 to {MAX_COUNT}")
limit_argument = _argument(
    lambda value: value is None or (_is_count(value) and value > 0),
    f"is neither a number from 1 to {MAX_COUNT} nor null; to let nothing move use freeze",
)
offset_argument = _argument(lambda value: type(value) is int and 0 <= value < 1 << 63, "is not an offset")
position_argument = _argument(
    lambda value: isinstance(value, str) and POSITION.match(value),
    "is neither earliest, latest, an offset, nor timestamp:MILLISECONDS",
)


@dataclass(frozen=True)
class CommandKind:
    """One kind of command."""

    name: str
    summary: str
    """The effect of the command on the group, in the imperative, for the help of the command line and for the page."""
    arguments: Mapping[str, Check] = field(default_factory=dict)
    subject: Optional[tuple[str, ...]] = None
    """A new command replaces an earlier command of this kind with equal values of these arguments. (): a group has at
    most one command of this kind. None: all arguments count."""
    acts: Literal["leader", "owner"] = "leader"
    """The actor that carries it out: the leader, or each member that owns some of its partitions."""
    once: bool = False
    """Whether a command of this kind is carried out once for each of its partitions, and is done after that."""
    names_offsets: bool = False
    """Whether it is about places in a log, so that it applies only to the topic for which it was given."""
    words: Callable[[Mapping[str, Any]], str] = lambda arguments: ""
    """Describes the arguments, apart from `partitions`, in a few words."""


def _place_words(given: Mapping[str, Any]) -> str:
    place = given["place"]
    return f"to rack {place['rack']}" if "rack" in place else f"to {place['member']}"


def _budget_words(given: Mapping[str, Any]) -> str:
    limits = ((given["at_once"], "at once"), (given["per_minute"], "a minute"))
    return ", ".join(f"{number} {unit}" for number, unit in limits if number is not None) or "without a limit"


def _canary_words(given: Mapping[str, Any]) -> str:
    but = f" but {', '.join(given['promoted'])}" if given["promoted"] else ""
    return f"{given['count']} partitions for each new member{but}"


_KINDS = (
    CommandKind(
        "cordon",
        "Assign no further partitions to MEMBER, which keeps those that it owns.",
        {"member": member_argument},
        words=itemgetter("member"),
    ),
    CommandKind(
        "evacuate",
        "Move all partitions away from MEMBER, within the budget.",
        {"member": member_argument},
        words=itemgetter("member"),
    ),
    CommandKind(
        "swap",
        "Move all partitions of OLD to NEW, and no others. NEW may join later.\n\n"
        "If NEW already owns partitions, the leader distributes them among all members.",
        {"old": member_argument, "new": member_argument},
        subject=("old",),
        words=lambda given: f"{given['old']} for {given['new']}",
    ),
    CommandKind(
        "pin",
        "Assign PARTITIONS to PLACE: a member, or rack:NAME.\n\n"
        "While PLACE has no live member, other members get these partitions.",
        {"partitions": partitions_argument, "place": place_argument},
        subject=("partitions",),
        words=_place_words,
    ),
    CommandKind(
        "freeze", "Move no partitions away from live members. Partitions without an owner still get one.", subject=()
    ),
    CommandKind(
        "budget",
        "Limit how many partitions move at once and in a minute. Partitions without a live owner do not count.",
        {"at_once": limit_argument, "per_minute": limit_argument},
        subject=(),
        words=_budget_words,
    ),
    CommandKind(
        "canary",
        "Assign exactly COUNT partitions to each process that joins from now on, until `promote`.",
        {"count": count_argument, "known": names_argument, "promoted": names_argument},
        subject=(),
        words=_canary_words,
    ),
    CommandKind(
        "pause",
        "Deliver no records of PARTITIONS to handlers until `resume`. Owners keep the partitions.",
        {"partitions": partitions_argument},
        subject=("partitions",),
        acts="owner",
    ),
    CommandKind(
        "quarantine",
        "Send the records of PARTITIONS to the dead-letter topic instead of the handler.",
        {"partitions": partitions_argument},
        subject=("partitions",),
        acts="owner",
    ),
    CommandKind(
        "skip",
        "Skip the record at OFFSET of PARTITION: the handler does not get it, and it counts as done.",
        {"partitions": partitions_argument, "offset": offset_argument},
        acts="owner",
        names_offsets=True,
        words=lambda given: f"at {given['offset']}",
    ),
    CommandKind(
        "seek",
        "Move the position of PARTITIONS to another offset. `commands` shows the former positions.",
        {"partitions": partitions_argument, "to": position_argument},
        subject=("partitions",),
        acts="owner",
        once=True,
        names_offsets=True,
        words=lambda given: f"to {given['to']}",
    ),
)

KINDS: Mapping[str, CommandKind] = {kind.name: kind for kind in _KINDS}
"""Every kind that this version knows, by name."""
LEADERS_KINDS = frozenset(kind.name for kind in _KINDS if kind.acts == "leader")
OWNERS_KINDS = tuple(kind.name for kind in _KINDS if kind.acts == "owner")


@dataclass(frozen=True)
class CommandResult:
    """What one member reports about a command for some of its partitions: the result of a command that is carried out
    once, or else whether the member can follow the command."""

    when: int
    """Milliseconds since the epoch."""
    by: str
    """Member id."""
    partitions: frozenset[TopicPartition]
    what: str

    def to_json(self) -> dict[str, Any]:
        return {"when": self.when, "by": self.by, "partitions": to_ranges(self.partitions), "what": self.what}

    @classmethod
    def _of(cls, path: str, value: object, budget: InflateBudget) -> CommandResult:
        doc = check_mapping(path, "result", value)
        ranges = check_mapping(path, "partitions", doc.get("partitions"))
        budget.take(path, ranges)
        return cls(
            when=check_number(path, "when", doc.get("when")),
            by=_bounded(path, "by", doc.get("by")),
            partitions=from_ranges(ranges),
            what=_bounded(path, "what", doc.get("what")),
        )


@dataclass(frozen=True)
class Command:
    """One command. The module's docstring describes `arguments`."""

    id: str
    kind: str
    arguments: Mapping[str, Any]
    who: str
    when: int
    """Milliseconds since the epoch."""
    why: str = ""
    expires: Optional[int] = None
    """Milliseconds since the epoch, None for never."""
    results: tuple[CommandResult, ...] = ()
    topics: Mapping[str, str] = field(default_factory=dict)
    """Topic -> id of the topic that the command is for; without those that are not known."""

    @classmethod
    def make(
        cls,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        who: str,
        now_ms: int,
        why: str = "",
        expires: Optional[int] = None,
    ) -> Command:
        """Creates a command with a new id. Raises ConfigError for arguments that every member would refuse."""
        import secrets

        if kind not in KINDS:
            raise ConfigError(f"there is no operator command {shown(kind)}; known: {', '.join(sorted(KINDS))}")
        if expires is not None and expires <= now_ms:
            raise ConfigError(f"the command {kind} would have expired already; give a later time")
        for what, text in (("who", who), ("why", why)):
            if len(text) > LONGEST_TEXT:
                raise ConfigError(f"{what} has {len(text)} characters; a command keeps at most {LONGEST_TEXT}")
        command = cls(f"o-{secrets.token_hex(4)}", kind, dict(arguments), who, now_ms, why, expires)
        if command.fault is not None:
            raise ConfigError(f"the command {kind}: {command.fault}")
        return command

    @cached_property
    def fault(self) -> Optional[str]:
        """The reason why members of this version cannot carry out the command; None for a valid command."""
        kind = KINDS.get(self.kind)
        if kind is None:
            return f"this version knows no command {shown(self.kind)}"
        if self.arguments.keys() != kind.arguments.keys():
            wanted = ", ".join(kind.arguments) or "none"
            return f"its arguments are {shown(list(self.arguments))}, and have to be {wanted}"
        for name, check in kind.arguments.items():
            try:
                check(self.arguments[name])
            except ValueError as error:
                return f"{name}: {error}"
        if kind.once and (count := len(from_ranges(self.arguments["partitions"]))) > Commands.MAX_RESULTS:
            return f"it names {count} partitions, more than the {Commands.MAX_RESULTS} that it can have results for"
        return None

    @cached_property
    def partitions(self) -> Partitions:
        """The partitions that the command names; none for a kind about members, or for a command with a fault."""
        ranges = self.arguments.get("partitions")
        return NO_PARTITIONS if ranges is None or self.fault is not None else from_ranges(ranges)

    @property
    def subject(self) -> str:
        """The kind and the identifying arguments. A new command replaces an earlier one with an equal subject."""
        kind = KINDS.get(self.kind)
        names = self.arguments if kind is None or kind.subject is None else kind.subject
        return json.dumps([self.kind, {name: self.arguments.get(name) for name in names}], sort_keys=True)

    @cached_property
    def left(self) -> Partitions:
        """The partitions that have no result yet, for a command that is carried out once."""
        return self.partitions.difference(*(result.partitions for result in self.results))

    @property
    def done(self) -> bool:
        """Whether the command is carried out once for each partition, and every partition has a result."""
        return self.fault is None and KINDS[self.kind].once and not self.left

    def is_for(self, topic: str, *ids: object) -> bool:
        """Returns whether the topic with these ids, of which some may be None, can be the one it was given for."""
        return len({str(each) for each in (self.topics.get(topic), *ids) if each is not None}) < 2

    def expired(self, now_ms: int) -> bool:
        """Whether it has expired at `now_ms`."""
        return self.expires is not None and self.expires <= now_ms

    def __str__(self) -> str:
        """Returns the command in a few words: "pin orders:0-3 to rack a"."""
        if self.fault is not None:
            return plain(self.kind)
        names = [f"{topic}:{ranges}" for topic, ranges in self.arguments.get("partitions", {}).items()]
        return plain(" ".join(filter(None, (self.kind, *names, KINDS[self.kind].words(self.arguments)))))

    def to_json(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**values, "results": [result.to_json() for result in self.results]}

    @classmethod
    def _of(cls, path: str, value: object, budget: InflateBudget) -> Command:
        doc = check_mapping(path, "command", value)
        found, kind = check_text(path, "id", doc.get("id")), check_text(path, "kind", doc.get("kind"))
        if not COMMAND_ID.match(found) or not KIND_NAME.match(kind):
            raise InvalidZnode(path, f"command {shown(found)} of kind {shown(kind)}")
        arguments = check_mapping(path, "arguments", doc.get("arguments"))
        results = check_list(path, "results", doc.get("results", []))
        if len(results) > Commands.MAX_RESULTS:
            raise InvalidZnode(path, f"{len(results)} results of {found}")
        command = cls(
            id=found,
            kind=kind,
            arguments=arguments,
            who=_bounded(path, "who", doc.get("who")),
            when=check_number(path, "when", doc.get("when")),
            why=_bounded(path, "why", doc.get("why", "")),
            expires=optional(check_number, path, doc, "expires"),
            results=tuple(CommandResult._of(path, each, budget) for each in results),
            topics={
                topic: _bounded(path, "topics", topic_id)
                for topic, topic_id in check_mapping(path, "topics", doc.get("topics", {})).items()
            },
        )
        if command.fault is None and "partitions" in arguments:
            budget.take(path, arguments["partitions"])  # counts the partitions of all commands together
        return command

    def _with(self, results: Collection[CommandResult]) -> Command:
        new = [each for each in results if each not in self.results]
        if not new:
            return self
        known = self.results
        if self.kind in KINDS and not KINDS[self.kind].once:
            # members report again and again, and the last report about a partition counts
            known = tuple(each for each in known if not any(each.partitions <= later.partitions for later in new))
            return replace(self, results=(*known, *new)[-Commands.MAX_RESULTS :])
        return replace(self, results=(*known, *new)[: Commands.MAX_RESULTS])

    def _over(self, now_ms: int) -> bool:
        """Whether it expired or was done more than a day ago."""
        ended = max((result.when for result in self.results), default=self.when) if self.done else self.expires
        return ended is not None and ended + KEPT_MS <= now_ms


def last_reports(command: Command) -> dict[TopicPartition, str]:
    """Returns partition -> the last report of an owner about it: an owner that can follow a command takes back the
    report of an earlier one."""
    return {partition: result.what for result in command.results for partition in result.partitions}


@dataclass(frozen=True)
class Commands:
    """All commands of a group, the oldest first. Immutable: methods such as `put` return a new object."""

    MAX_ENTRIES: ClassVar = 1_000
    MAX_RESULTS: ClassVar = 1_000  # results of one command
    MAX_BYTES: ClassVar = 500_000  # bytes of the znode; ZooKeeper's own limit is 1 MiB by default
    RESULT_BYTES: ClassVar = 220  # of the result for one partition, without the name of its topic

    entries: tuple[Command, ...] = ()

    def in_force(self, now_ms: int, kinds: Collection[str] = ()) -> tuple[Command, ...]:
        """Returns the commands of these kinds (none: of all kinds) that are in effect at `now_ms` and have no fault."""
        return tuple(
            command
            for command in self.entries
            if not (command.expired(now_ms) or command.done or command.fault) and (not kinds or command.kind in kinds)
        )

    def next_expiry(self, now_ms: int) -> Optional[int]:
        """Returns when the next command expires, in milliseconds since the epoch; None if none expires."""
        return min((o.expires for o in self.entries if o.expires is not None and o.expires > now_ms), default=None)

    def find(self, command_id: str) -> Optional[Command]:
        return next((command for command in self.entries if command.id == command_id), None)

    def lacking(self, group: str, missing: Iterable[str]) -> NoSuchCommand:
        """Returns the error for ids that these commands do not contain."""
        there = ", ".join(command.id for command in self.entries) or "none"
        return NoSuchCommand(f"group {group!r} has no operator command {', '.join(sorted(missing))}; there are {there}")

    def put(self, command: Command, now_ms: int) -> Commands:
        """Returns the commands with this one added; it replaces those with its subject. Raises ConfigError for
        too many commands."""
        kept = tuple(
            each
            for each in self.entries
            if each.subject != command.subject and each.id != command.id and not each._over(now_ms)
        )
        if len(kept) >= self.MAX_ENTRIES:
            raise ConfigError(f"the group has {len(kept)} operator commands, as many as it may have; remove some first")
        return Commands((*kept, command))

    def without(self, ids: Collection[str], now_ms: int) -> Commands:
        return Commands(
            tuple(command for command in self.entries if command.id not in ids and not command._over(now_ms))
        )

    def with_results(self, command_id: str, results: Collection[CommandResult]) -> Commands:
        """Returns the commands with further results for that command; unchanged if the command does not exist."""
        return Commands(tuple(each._with(results) if each.id == command_id else each for each in self.entries))

    def with_topics(self, command_id: str, topics: Mapping[str, str]) -> Commands:
        """Returns the commands with the ids of topics for that command; the ids that it has stay."""
        return Commands(
            tuple(
                replace(each, topics={**topics, **each.topics}) if each.id == command_id else each
                for each in self.entries
            )
        )

    @staticmethod
    def encode_entry(entry: Union[Command, CommandResult]) -> bytes:
        """Encodes a result, or a command without its results, for a store that keeps commands and results
        separately."""
        return encode_object({name: value for name, value in entry.to_json().items() if name != "results"})

    @staticmethod
    def decode_entry(kind: type[Entry], path: str, data: bytes, budget: InflateBudget) -> Entry:
        """Decodes an entry that `encode_entry` encoded. `budget` bounds the partitions of all entries. Raises
        InvalidZnode."""
        return kind._of(path, {**_decoded(path, data), "results": []}, budget)

    def encode(self, *, with_room: bool = False) -> bytes:
        """Encodes all commands. Raises ConfigError if they do not fit into a znode.

        `with_room`: there must also be room for the results of the commands that are carried out once. Without a
        result, each new owner would carry them out again.
        """
        data = encode_object({"orders": [command.to_json() for command in self.entries]})
        size = len(data)
        if with_room:
            waiting = (command.left for command in self.entries if command.fault is None and KINDS[command.kind].once)
            size += sum(self.RESULT_BYTES + len(partition.topic) for left in waiting for partition in left)
        if size > self.MAX_BYTES:
            raise ConfigError(
                f"the group's commands and their results would take {size} bytes, more than the {self.MAX_BYTES} of "
                "their znode; remove some first, or name partitions in ranges"
            )
        return data

    @classmethod
    def decode(cls, path: str, data: bytes) -> Commands:
        """Decodes commands. A command with wrong arguments is kept (`Command.fault`). Raises InvalidZnode."""
        if not data:
            return cls()  # the znode was created and not written yet
        listed = check_list(path, "orders", _decoded(path, data).get("orders"))
        if len(listed) > cls.MAX_ENTRIES:
            raise InvalidZnode(path, f"{len(listed)} commands, more than {cls.MAX_ENTRIES}")
        budget = InflateBudget()
        commands = tuple(Command._of(path, each, budget) for each in listed)
        if len({command.id for command in commands}) != len(commands):
            raise InvalidZnode(path, "two commands have one id")
        return cls(commands)


class CommandKeeper(Protocol):
    """Stores the commands of one group, in a znode or in a topic."""

    async def read(self) -> Commands: ...

    async def change(self, change: Callable[[Commands], Commands]) -> object:
        """Writes what `change` returns for the present commands. It is called again if another process wrote in the
        meantime, as far as the storage shows that."""

    async def remove(self, ids: Collection[str], now_ms: int) -> tuple[Command, ...]:
        """Removes commands and returns the removed ones. If one id does not exist, raises NoSuchCommand and
        removes none."""

    async def add_results(self, command_id: str, results: Collection[CommandResult]) -> object:
        """Adds a member's results to a command that is carried out once. Does nothing if the command was removed."""

    async def add_topics(self, command_id: str, topics: Mapping[str, str]) -> object:
        """Adds the ids of topics to a command that lacks them. Does nothing if the command was removed, or if the
        storage cannot do that without a race against its removal."""


Entry = TypeVar("Entry", Command, CommandResult)


def _decoded(path: str, data: bytes) -> dict[str, Any]:
    if len(data) > Commands.MAX_BYTES:
        raise InvalidZnode(path, f"{len(data)} bytes")
    return parse_object(path, data)


def _bounded(path: str, what: str, value: object) -> str:
    text = check_text(path, what, value)
    if len(text) > LONGEST_TEXT:
        raise InvalidZnode(path, f"{what} has {len(text)} characters")
    return text
