"""Decides which of the leader's commands are in effect, their constraints and their states. Pure functions.

A command takes effect once every live member knows its kind. Until then it is `pending`, and its state names the
members of older versions. A command that is in effect stays so when such a member joins later.

A command names a member in one of these ways:

- the id of the member
- the client id
- the instance id
- the name in tables, billing@web1:4242#12: client id, host, process id, and the number of the session
- that name without the number: billing@web1:4242
- the number alone: #12

With the client id, or the name without the number, the command also applies after the process has joined again in a new
session. With the instance id it also applies to the process that replaces this one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from allocator.assignors import Constraints
from allocator.commands import LEADERS_KINDS, Command, Commands
from allocator.core.text import partition_names, plain, some_of
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, CommandState, MemberInfo, sequence
from allocator.protocols.zookeeper.znodes.member_names import member_name
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

log = logging.getLogger(__name__)


Infos = Mapping[str, MemberInfo]


@dataclass(frozen=True)
class Budget:
    """Limits on how many partitions may leave a live owner. None: any number."""

    at_once: int | None = None
    per_minute: int | None = None

    @classmethod
    def of(cls, commands: Iterable[Command]) -> Budget:
        """Returns the limits of the command `budget`; no limits if there is none."""
        return next((cls(**command.arguments) for command in commands if command.kind == "budget"), cls())


def members_named(text: str, members: Infos) -> list[str]:
    """Returns the ids of the live members that `text` names, in join order."""
    found = []
    for member, info in members.items():
        shown = member_name(member, info)
        if text in (member, info.name, info.instance_id, shown, shown.rpartition("#")[0], f"#{sequence(member)}"):
            found.append(member)
    return found


def counting(
    commands: Iterable[Command], members: Infos, before: Mapping[str, CommandState]
) -> tuple[list[Command], dict[str, CommandState]]:
    """Returns (the commands in effect, the states of the others).

    `commands`: the unexpired ones of the kinds that the leader honours. `before`: the states in the current document.
    """
    count, pending = [], {}
    for command in commands:
        older = [member for member, info in members.items() if command.kind not in info.commands]
        known = command.id in before and before[command.id].state != "pending"
        if older and not known:
            names = some_of([member_name(member, members[member]) for member in older])
            pending[command.id] = CommandState(
                "pending", f"it counts once these members of older versions left: {names}"
            )
        else:
            count.append(command)
    return count, pending


@dataclass(frozen=True)
class CommandsInForce:
    """The commands that the leader honours at one moment."""

    known: Commands
    counting: list[Command]
    """The commands in effect."""
    pending: dict[str, CommandState]
    """The states of the other commands: some member's version does not know their kind."""

    @classmethod
    def of(cls, known: Commands, members: Infos, before: Mapping[str, CommandState], now_ms: int) -> CommandsInForce:
        """Selects the commands in effect. `before`: the states in the current document."""
        return cls(known, *counting(known.in_force(now_ms, LEADERS_KINDS), members, before))

    @property
    def budget(self) -> Budget:
        return Budget.of(self.counting)

    def allowance(self, document: AssignmentDocument, alive: Collection[str], now_ms: int) -> int | None:
        """Returns how many more partitions may leave their live owners now; None: any number."""
        budget, allowed = self.budget, []
        if budget.at_once is not None:
            allowed.append(budget.at_once - document.in_flight(alive))
        if budget.per_minute is not None:
            allowed.append(budget.per_minute - sum(number for _, number in document.recent_moves(now_ms)))
        return max(0, min(allowed)) if allowed else None

    def states(
        self, members: Infos, document: AssignmentDocument, goal: Mapping[str, Partitions], moving: str = ""
    ) -> dict[str, CommandState]:
        """Returns the state of each command, by id.

        `document`: the current assignment. `goal`: the assignment that the leader aims at. `moving`: which moves a
        budget delays.
        """
        if not self.counting:  # saves `_Outcome`, which takes time for each partition
            return self.pending
        outcome = _Outcome(members, document, goal, self.counting)
        kept = CommandState("kept", moving)
        states = {each.id: kept if each.kind == "budget" else outcome.state(each) for each in self.counting}
        return {**states, **self.pending}

    def log_changes(self, group: str, before: Mapping[str, CommandState], after: Mapping[str, CommandState]) -> None:
        """Logs the states that have changed."""
        for command_id, found in after.items():
            if before.get(command_id) != found:
                command = self.known.find(command_id)
                called = command_id if command is None else f"{command_id} ({command.kind}, by {command.who})"
                why = f": {found.why}" if found.why else ""
                level = logging.WARNING if found.state in ("not kept", "pending") else logging.INFO
                log.log(level, "%s: command %s is %s%s", group, plain(called), found.state, plain(why))
        for command_id in before.keys() - after.keys():
            log.info("%s: command %s no longer counts", group, plain(command_id))


def canaries_of(command: Command, members: Infos) -> list[str]:
    """Returns the live members that a canary command limits."""
    promoted = {member for text in command.arguments["promoted"] for member in members_named(text, members)}
    known = set(command.arguments["known"])
    return [
        member
        for member, info in members.items()
        if member not in promoted and member_name(member, info, session=False) not in known
    ]


def members_at(place: Mapping[str, str], members: Infos) -> frozenset[str]:
    """Returns the live members at a place such as {"member": "web1"} or {"rack": "a"}."""
    if "rack" in place:
        return frozenset(member for member, info in members.items() if info.rack == place["rack"])
    return frozenset(members_named(place["member"], members))


def constraints_of(commands: Iterable[Command], members: Infos, absent: Collection[str] = ()) -> Constraints:
    """Returns the constraints that these commands put on an assignment to these members.

    `absent`: the members without a session. They keep their partitions but get no more, since these would wait for
    their return.
    """
    cordoned = set(absent)
    evacuated: set[str] = set()
    swapped: dict[str, str] = {}
    canaries: dict[str, int] = {}
    pinned: dict[TopicPartition, frozenset[str]] = {}
    frozen = False
    for command in commands:
        given = command.arguments
        if command.kind == "cordon":
            cordoned.update(members_named(given["member"], members))
        elif command.kind == "evacuate":
            evacuated.update(members_named(given["member"], members))
        elif command.kind == "swap":
            old, new = (members_named(given[name], members) for name in ("old", "new"))
            # one member cannot replace two others, nor replace another while a third replaces it
            if len(old) == len(new) == 1 and old != new and not {*old, *new} & {*swapped, *swapped.values()}:
                swapped[old[0]] = new[0]
        elif command.kind == "pin":
            pinned.update(dict.fromkeys(command.partitions, members_at(given["place"], members)))
        elif command.kind == "canary":
            canaries = dict.fromkeys(canaries_of(command, members), given["count"])
        elif command.kind == "freeze":
            frozen = True
    # an evacuated member gets nothing, not even as the new member of a swap; an absent one gets it when it is back
    swapped = {old: new for old, new in swapped.items() if new not in evacuated and new not in absent}
    # what is pinned to a member that is replaced goes to the new member
    pinned = {partition: frozenset(swapped.get(each, each) for each in there) for partition, there in pinned.items()}
    return Constraints(
        cordoned=frozenset(cordoned),
        absent=frozenset(absent),
        evacuated=frozenset(evacuated - swapped.keys()),
        swapped=swapped,
        allowed={partition: there for partition, there in pinned.items() if there},
        # an absent member keeps what is reserved for it; which process it was is not known any more
        canaries={m: count for m, count in canaries.items() if m not in absent and m not in swapped.values()},
        frozen=frozen,
    )


# -- results of commands -----------------------------------------------------------------------------------------------


class _Outcome:
    def __init__(
        self,
        members: Infos,
        document: AssignmentDocument,
        goal: Mapping[str, Partitions],
        commands: Collection[Command],
    ) -> None:
        self._members = members
        self._document = document
        self._frozen = any(command.kind == "freeze" for command in commands)
        self._evacuated = {
            member
            for command in commands
            if command.kind == "evacuate"
            for member in members_named(command.arguments["member"], members)
        }
        self._goal = goal
        self._at: dict[TopicPartition, str] = {}
        for member, partitions in document.owners.items():
            self._at.update(dict.fromkeys(partitions, member))
        for member, entry in document.waiting.items():
            self._at.update(dict.fromkeys(entry.partitions, member))
        self._to = {partition: member for member, partitions in goal.items() for partition in partitions}
        self._known = document.left_out.union(self._at, self._to)

    def state(self, command: Command) -> CommandState:
        return JUDGES[command.kind](self, command) if command.kind in JUDGES else CommandState("kept")

    def _has(self, member: str) -> Partitions:
        entry = self._document.waiting.get(member)
        waiting = NO_PARTITIONS if entry is None else entry.partitions
        return self._document.owners.get(member, NO_PARTITIONS) | waiting

    def _moving(self, partitions: Collection[TopicPartition], what: str) -> CommandState:
        held = "; the group is frozen" if self._frozen else ""
        return CommandState("waiting", f"{len(partitions)} partitions {what}{held}")

    def _cordon(self, command: Command) -> CommandState:
        named = members_named(command.arguments["member"], self._members)
        if not named:
            return CommandState("waiting", "no live member has this name")
        has = frozenset().union(*map(self._has, named))
        gained = [p for p, member in self._to.items() if member in named and p not in has]
        if gained:
            return CommandState("not kept", f"a command that comes first gives it {partition_names(gained)}")
        return CommandState("kept")

    def _evacuate(self, command: Command) -> CommandState:
        named = members_named(command.arguments["member"], self._members)
        if not named:
            return CommandState("done", "no live member has this name")
        return self._emptying(named, "it has no partitions", "no other member may have")

    def _emptying(self, members: Collection[str], done: str, stuck_because: str) -> CommandState:
        left = NO_PARTITIONS.union(*map(self._has, members))
        stuck = [p for p in left if self._to.get(p) in members]
        if not left:
            return CommandState("done", done)
        if stuck and not self._frozen:
            return CommandState("not kept", f"{stuck_because} {partition_names(stuck)}")
        return self._moving(left, "are left to move")

    def _swap(self, command: Command) -> CommandState:
        old, new = (members_named(command.arguments[name], self._members) for name in ("old", "new"))
        for which, found in (("old", old), ("new", new)):
            if len(found) > 1:
                return CommandState("not kept", f"{which} names {len(found)} members")
        if not new:
            return CommandState("waiting", "the new member has not joined")
        if not old:
            return CommandState("done", "the old member has left")
        if new[0] in self._evacuated and self._has(old[0]):
            return CommandState("not kept", "the new member is being evacuated")
        return self._emptying(old, "the old member has no partitions", "the new member may not have")

    def _pin(self, command: Command) -> CommandState:
        there = members_at(command.arguments["place"], self._members)
        if not there:
            return CommandState("not kept", "no live member is there; the partitions are with others")
        wrong = [p for p in command.partitions if p in self._to and self._to[p] not in there]
        moving = [p for p in command.partitions if p in self._at and self._at[p] not in there]
        if moving and (self._frozen or not wrong):
            return self._moving(moving, "are elsewhere")
        if wrong:
            return CommandState("not kept", f"no live member there can take {partition_names(wrong)}")
        unknown = command.partitions - self._known if self._to else NO_PARTITIONS
        if unknown:
            state = "waiting" if unknown == command.partitions else "kept"
            return CommandState(state, f"the group has no partition {partition_names(unknown)}")
        return CommandState("kept")

    def _canary(self, command: Command) -> CommandState:
        canaries, count = canaries_of(command, self._members), command.arguments["count"]
        if not canaries:
            return CommandState("kept", "no new member has joined")
        wrong = [each for each in canaries if len(self._goal.get(each, ())) != count]
        moving = [each for each in canaries if len(self._document.owners.get(each, ())) != count]
        names = some_of([member_name(each, self._members[each]) for each in canaries])
        if wrong and not self._frozen:
            several = some_of([member_name(each, self._members[each]) for each in wrong])
            return CommandState("not kept", f"these cannot have exactly {count} partitions: {several}")
        if moving:
            return CommandState("waiting", f"new members: {names}" + ("; the group is frozen" if self._frozen else ""))
        return CommandState("kept", f"new members: {names}")


JUDGES: dict[str, Callable[[_Outcome, Command], CommandState]] = {
    "cordon": _Outcome._cordon,
    "evacuate": _Outcome._evacuate,
    "swap": _Outcome._swap,
    "pin": _Outcome._pin,
    "canary": _Outcome._canary,
}
"""Kind of a command -> what says how far the group complies with it. It complies with the other kinds at once."""
