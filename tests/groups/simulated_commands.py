"""Commands in a simulated group, and invariants of each document while they apply."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allocator.commands.command import LEADERS_KINDS, Command, Commands
from allocator.core.types import NO_PARTITIONS, Partitions
from allocator.protocols.zookeeper.client.client import Op
from allocator.protocols.zookeeper.steering import members_named
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, MemberInfo
from allocator.protocols.zookeeper.znodes.member_names import member_name

if TYPE_CHECKING:
    from tests.groups.simulation import Simulation

BASE = "/allocator/g"
KINDS = ("cordon", "evacuate", "swap", "pin", "freeze", "budget", "canary")
AT_ONCE, PER_MINUTE = 2, 6
MINUTE_MS = 60_000


class CommandsOfGroup:
    """Writes commands as an operator does. After each document it checks those that the leader had noted before."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.commands = Commands()
        self.moves: list[tuple[int, int]] = []
        """(time, number of partitions that left a live owner), for each document."""
        self.noted: dict[str, int] = {}
        """The time when a document first named each command."""
        self._number = 0

    @property
    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.world.loop.time() * 1000)

    def wall_ms(self) -> int:
        return self.now_ms

    # -- the operator --------------------------------------------------------------------------------------------

    def put(self, kind: str, name: str, seconds: float) -> None:
        """Gives the command `kind` about the member with the client id `name`, for so many seconds (0: without end)."""
        self._number += 1
        command = Command.make(
            kind,
            self._arguments(kind, name),
            who="operator",
            now_ms=self.now_ms,
            expires=self.now_ms + int(seconds * 1000) if seconds else None,
        )
        self._write(self.commands.put(replace(command, id=f"o-{self._number:08x}"), self.now_ms))

    def withdraw(self) -> None:
        self._write(Commands())

    def _write(self, commands: Commands) -> None:
        znodes = self.world.ensemble.znodes
        if BASE in znodes:
            self.commands = commands
            kind = "set" if f"{BASE}/orders" in znodes else "create"
            self.world.ensemble.commit([Op(kind, f"{BASE}/orders", commands.encode())], self.world.ensemble.open(1e9))

    def _arguments(self, kind: str, name: str) -> dict[str, Any]:
        other = next((each for each in reversed(self.world.faults.alive()) if each != name), name)
        members = self.members()
        return {
            "cordon": {"member": name},
            "evacuate": {"member": name},
            "swap": {"old": name, "new": other},
            "pin": {"partitions": {"t": "0-1"}, "place": {"member": name}},
            "freeze": {},
            "budget": {"at_once": AT_ONCE, "per_minute": PER_MINUTE},
            "canary": {
                "count": 1,
                "known": [member_name(member, info, session=False) for member, info in members.items()],
                "promoted": [],
            },
        }[kind]

    # -- what holds ----------------------------------------------------------------------------------------------

    def members(self) -> dict[str, MemberInfo]:
        """The members with a znode, oldest first."""
        found = {}
        for path, znode in self.world.ensemble.znodes.items():
            if path.startswith(f"{BASE}/members/m-"):
                found[path.rsplit("/", 1)[1]] = MemberInfo.decode(path, znode.data)
        return dict(sorted(found.items(), key=lambda each: each[0][-10:]))

    def check(self, last: AssignmentDocument, document: AssignmentDocument) -> None:
        """A leader may ignore a command that it has not read yet, or that has expired."""
        for command_id in document.commands:
            self.noted.setdefault(command_id, self.now_ms)
        members = self.members()
        left = {
            member: parts - document.owners.get(member, NO_PARTITIONS)
            for member, parts in last.owners.items()
            if member in members
        }
        noted = [
            command
            for command in self.commands.in_force(self.now_ms, LEADERS_KINDS)
            if command.id in last.commands and command.id in document.commands
        ]
        for command in noted:
            self._check(command, last, document, members, left)
        self.moves.append((self.now_ms, sum(map(len, left.values()))))

    def forget(self) -> None:
        """The document was lost, with its notes about orders and moves."""
        self.noted.clear()

    def _check(
        self,
        command: Command,
        last: AssignmentDocument,
        document: AssignmentDocument,
        members: dict[str, MemberInfo],
        left: dict[str, Partitions],
    ) -> None:
        if command.kind == "freeze" and any(left.values()):
            self.world.broken(f"{left} left their owners while the group is frozen")
        if command.kind == "budget":
            before, after = (
                sum(len(entry.partitions) for member, entry in each.waiting.items() if member in members)
                for each in (last, document)
            )
            if after > max(before, AT_ONCE):
                self.world.broken(f"{after} partitions are on the move, {AT_ONCE} may be")
            since_ms = max(self.noted[command.id], self.now_ms - MINUTE_MS + 1)
            recent = sum(number for when, number in self.moves if when > since_ms) + sum(map(len, left.values()))
            if any(left.values()) and recent > PER_MINUTE:
                self.world.broken(f"{recent} partitions left their owners within a minute, {PER_MINUTE} may")
        if command.kind in ("cordon", "evacuate"):
            for member in set(members_named(command.arguments["member"], members)) - self._substitutes(members):
                had = _has(last, member)
                gained = document.owners.get(member, NO_PARTITIONS) - had
                if gained and any(free in document.owners for free in self._free(members)):
                    self.world.broken(f"{member} gains {sorted(gained)} under the command {command.kind}")

    def _substitutes(self, members: dict[str, MemberInfo]) -> set[str]:
        """Members that take the place of another, which comes before a cordon."""
        swaps = [command.arguments for command in self.commands.entries if command.kind == "swap"]
        return {member for swap in swaps for member in members_named(swap["new"], members)}

    def _free(self, members: dict[str, MemberInfo]) -> set[str]:
        """Members without a command about them."""
        about: set[str] = set()
        for command in self.commands.entries:
            for name in (command.arguments.get(key) for key in ("member", "old", "new")):
                about.update(members_named(name, members) if isinstance(name, str) else ())
            if command.kind == "canary":
                about |= members.keys()
        return members.keys() - about


def _has(document: AssignmentDocument, member: str) -> Partitions:
    entry = document.waiting.get(member)
    waiting = NO_PARTITIONS if entry is None else entry.partitions
    return document.owners.get(member, NO_PARTITIONS) | document.promised.get(member, NO_PARTITIONS) | waiting
