"""The commands of a group with their states. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from allocator.commands import KINDS, NOT_KEPT, Command, Commands, last_reports
from allocator.core.text import partition_names, plain
from allocator.protocols.zookeeper import AssignmentDocument, MemberInfo
from allocator.types import Partitions

COMMAND_STATES = ("pending", "given", "waiting", "kept", "done", "not kept", "expired")


class CommandReport(NamedTuple):
    """One command with its state."""

    command: Command
    state: str
    """"pending": members of older versions do not know the kind of command. "given": the leader has not read it yet, or
    members execute it without the leader. "waiting": the group does not comply yet. "kept": the group complies. "done":
    nothing is left to do. "not kept": the group cannot comply, and continues without it. "expired"."""
    why: str = ""

    @property
    def in_force(self) -> bool:
        return self.state not in ("done", "expired", "not kept", "pending")

    def to_json(self) -> dict[str, Any]:
        """Returns the fields of the command with "text", "state" and "state_why". Times are milliseconds since the
        epoch; "expires" is null if the command never expires."""
        return {**self.command.to_json(), "text": str(self.command), "state": self.state, "state_why": plain(self.why)}


def command_reports(
    commands: Commands, document: Optional[AssignmentDocument], members: Mapping[str, MemberInfo], now_ms: int
) -> list[CommandReport]:
    """Returns every command, oldest first. `members` are in join order, so the first one leads."""
    noted = {} if document is None else document.commands
    known = None if document is None else document.partitions()
    return [CommandReport(command, *_state(command, noted, known, members, now_ms)) for command in commands.entries]


def unknown_to_all(command: Command, members: Mapping[str, MemberInfo]) -> bool:
    """Returns whether no member will know this kind of command. Members of an `Allocation` have no records, so they
    know no command about records. Members that name no kinds are of an older version, whose successors may know it."""
    known = [info.commands for info in members.values()]
    return any(known) and not any(command.kind in kinds for kinds in known)


def _state(
    command: Command,
    noted: Mapping[str, Any],
    known: Optional[Partitions],
    members: Mapping[str, MemberInfo],
    now_ms: int,
) -> tuple[str, str]:
    if command.fault is not None:
        return "not kept", command.fault
    if command.done:
        return "done", "; ".join(sorted({result.what for result in command.results}))
    if command.expired(now_ms):
        return "expired", ""
    if command.id in noted:
        return noted[command.id].state, noted[command.id].why
    leader = next(iter(members.values()), None)
    if leader is None:
        return "waiting", "the group has no member"
    if KINDS[command.kind].acts == "owner" and unknown_to_all(command, members):
        return "not kept", "no member executes this kind of command"
    if KINDS[command.kind].acts == "leader" and command.kind not in leader.commands:
        return "pending", "the version of the leader does not know this kind of command"
    refusals = {what.removeprefix(NOT_KEPT) for what in last_reports(command).values() if what.startswith(NOT_KEPT)}
    if refusals:
        return "not kept", "; ".join(sorted(refusals))
    if known is not None and (missing := command.partitions - known):
        return "waiting", f"the group has no partition {partition_names(missing)}"
    return "given", ""
