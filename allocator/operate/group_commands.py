"""Adds, lists and withdraws the operator commands of a group, without joining it."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Optional, Union

from allocator.commands import KINDS, Command, CommandKeeper, Commands
from allocator.core.aio import wall_ms
from allocator.core.settings import DEFAULT, check_topic, names_arguments
from allocator.core.text import shown
from allocator.documents import to_ranges
from allocator.errors import CommandRefused, ConfigError
from allocator.operate.command_check import Checked
from allocator.operate.command_report import CommandReport, command_reports, unknown_to_all
from allocator.operate.group_reader import describe, list_groups
from allocator.operate.group_report import GroupState
from allocator.operate.member_names import MEMBER_ARGUMENTS, lasting_name, names_of, with_lasting_names
from allocator.protocols.zookeeper import (
    CommandStore,
    MemberInfo,
    Paths,
    ZooKeeperClient,
    counting,
    member_name,
    members_named,
)
from allocator.types import PartitionLike

NOT_OURS = (
    'Commands about members and moves need membership="zookeeper". In other groups Kafka\'s coordinator or each member '
    "assigns the partitions, so such commands have no effect"
)

Check = Callable[[Command], Awaitable[Checked]]
WITHDRAWN_BY_PARTITION = tuple(kind.name for kind in KINDS.values() if "partitions" in kind.arguments and not kind.once)


async def no_group(zk: ZooKeeperClient, group: str, root: str) -> CommandRefused:
    """Returns the error for a group that ZooKeeper does not have."""
    known = ", ".join(await list_groups(zk, root)) or "none"
    return CommandRefused(f"ZooKeeper has no group {group!r} under {root}; groups there: {known}")


class CommandsFromOutside:
    """The operator commands of one group, which `GroupCommands` describes. Subclasses read the members of the group.

    `check` is called with each command before it is written. It returns a note for the operator and the ids of the
    topics, or raises an error to refuse the command.
    """

    def __init__(
        self, commands: CommandKeeper, group: str, who: Optional[str] = None, check: Optional[Check] = None
    ) -> None:
        self._commands = commands
        self._group = group
        self._who = who
        self._check = check

    # -- reading -------------------------------------------------------------------------------------------------

    async def list(self) -> list[CommandReport]:
        """Returns every command with its state, oldest first."""
        commands, state = await asyncio.gather(self._commands.read(), self._state())
        return command_reports(commands, state.document, state.members, wall_ms())

    # -- about members -------------------------------------------------------------------------------------------

    async def cordon(self, member: str, *, why: str = "", expires_s: Optional[float] = None) -> CommandReport:
        """Stops assigning partitions to the member, which keeps those that it has."""
        return await self.give("cordon", {"member": member}, why=why, expires_s=expires_s)

    async def evacuate(self, member: str, *, why: str = "", expires_s: Optional[float] = None) -> CommandReport:
        """Moves all partitions away from the member, within the budget. The command is done when it owns none."""
        return await self.give("evacuate", {"member": member}, why=why, expires_s=expires_s)

    async def uncordon(self, member: str) -> tuple[Command, ...]:
        """Withdraws the cordon and the evacuation of this member."""
        members = await self._members()
        names = {member}.union(*(names_of(each, members[each]) for each in members_named(member, members)))
        return await self._withdraw(
            lambda command: command.kind in ("cordon", "evacuate") and command.arguments.get("member") in names,
            f"no cordon and no evacuation of {shown(member)}",
        )

    async def swap(self, old: str, new: str, *, why: str = "", expires_s: Optional[float] = None) -> CommandReport:
        """Moves all partitions of `old` to `new`, and no others. `new` may join later."""
        return await self.give("swap", {"old": old, "new": new}, why=why, expires_s=expires_s)

    async def canary(self, count: int, *, why: str = "", expires_s: Optional[float] = None) -> CommandReport:
        """Assigns exactly `count` partitions to each process that joins from now on, until `promote` names it."""
        members = await self._members()
        known = sorted({member_name(member, info, session=False) for member, info in members.items()})

        def made(commands: Commands) -> Command:
            present = _canary(commands)
            arguments = {"known": known, "promoted": []} if present is None else present.arguments
            return self.make("canary", {**arguments, "count": count}, why=why, expires_s=expires_s)

        return await self._put(made)

    async def promote(self, member: Optional[str] = None) -> Union[CommandReport, tuple[Command, ...]]:
        """Ends the canary command for one member; None: for all members."""
        if member is None or _canary(await self._commands.read()) is None:
            return await self._withdraw(lambda command: command.kind == "canary", "no canary command")
        name = lasting_name(self._group, await self._members(), member)

        def made(commands: Commands) -> Command:
            present = _canary(commands)
            if present is None:
                raise CommandRefused(f"group {self._group!r} has no canary command")
            promoted = sorted({*present.arguments["promoted"], name})
            return replace(present, arguments={**present.arguments, "promoted": promoted})

        return await self._put(made)

    # -- about partitions ----------------------------------------------------------------------------------------

    async def pin(
        self, partitions: Collection[PartitionLike], place: str, *, why: str = "", expires_s: Optional[float] = None
    ) -> CommandReport:
        """Assigns the partitions to this member, or with "rack:NAME" to the members in this rack."""
        arguments = {"partitions": to_ranges(partitions), "place": parse_place(place)}
        return await self.give("pin", arguments, why=why, expires_s=expires_s)

    async def unpin(self, partitions: Collection[PartitionLike]) -> tuple[Command, ...]:
        """Withdraws the pins of these partitions. A pin stays in force for its other partitions."""
        return await self.withdraw("pin", {"partitions": to_ranges(partitions)})

    # -- about records -------------------------------------------------------------------------------------------

    async def pause(
        self, partitions: Collection[PartitionLike], *, why: str = "", expires_s: Optional[float] = None
    ) -> CommandReport:
        """Stops delivering records of these partitions to handlers. The owners keep the partitions."""
        return await self.give("pause", {"partitions": to_ranges(partitions)}, why=why, expires_s=expires_s)

    async def resume(self, partitions: Collection[PartitionLike]) -> tuple[Command, ...]:
        """Withdraws the pause of these partitions."""
        return await self.withdraw("pause", {"partitions": to_ranges(partitions)})

    async def quarantine(
        self, partitions: Collection[PartitionLike], *, why: str = "", expires_s: Optional[float] = None
    ) -> CommandReport:
        """Sends the records to the dead-letter topic instead of the handler, until the command is withdrawn."""
        return await self.give("quarantine", {"partitions": to_ranges(partitions)}, why=why, expires_s=expires_s)

    async def lift(self, partitions: Collection[PartitionLike]) -> tuple[Command, ...]:
        """Withdraws the quarantine of these partitions."""
        return await self.withdraw("quarantine", {"partitions": to_ranges(partitions)})

    async def skip(
        self, partition: PartitionLike, offset: int, *, why: str = "", expires_s: Optional[float] = None
    ) -> CommandReport:
        """Keeps the record at this offset from the handler. The record counts as done."""
        arguments = {"partitions": to_ranges([partition]), "offset": offset}
        return await self.give("skip", arguments, why=why, expires_s=expires_s)

    async def unskip(self, partition: PartitionLike, offset: int) -> tuple[Command, ...]:
        """Withdraws a skip. A record that was already skipped stays skipped."""
        return await self._withdraw(
            lambda command: (
                command.kind == "skip"
                and command.partitions == frozenset({partition})
                and command.arguments.get("offset") == offset
            ),
            f"no skip of {partition[0]}:{partition[1]} at {offset}",
        )

    async def seek(
        self, partitions: Collection[PartitionLike], to: str, *, why: str = "", expires_s: Optional[float] = None
    ) -> CommandReport:
        """Makes the owners seek to `to`: "earliest", "latest", an offset, or "timestamp:MILLISECONDS".

        The result names, for each partition, the first record that was not done.
        """
        return await self.give("seek", {"partitions": to_ranges(partitions), "to": to}, why=why, expires_s=expires_s)

    # -- about the group -----------------------------------------------------------------------------------------

    async def freeze(self, *, why: str = "", expires_s: Optional[float] = None) -> CommandReport:
        """Keeps every partition at its live owner. Partitions without an owner still get one."""
        return await self.give("freeze", {}, why=why, expires_s=expires_s)

    async def thaw(self) -> tuple[Command, ...]:
        """Withdraws the freeze."""
        return await self._withdraw(lambda command: command.kind == "freeze", "no freeze")

    async def budget(
        self,
        *,
        at_once: Optional[int] = None,
        per_minute: Optional[int] = None,
        why: str = "",
        expires_s: Optional[float] = None,
    ) -> CommandReport:
        """Limits how many partitions leave live owners at once and within a minute. None: no limit."""
        if at_once is None and per_minute is None:
            raise ConfigError("a budget needs a limit: at_once (--at-once) or per_minute (--per-minute)")
        arguments = {"at_once": at_once, "per_minute": per_minute}
        return await self.give("budget", arguments, why=why, expires_s=expires_s)

    # -- any command ---------------------------------------------------------------------------------------------

    async def give(
        self, kind: str, arguments: Mapping[str, Any], *, why: str = "", expires_s: Optional[float] = None
    ) -> CommandReport:
        """Writes a command of any kind, with members in any of the forms that `GroupCommands` accepts.

        Raises CommandRefused for an unknown member or rack.
        """
        self.make(kind, arguments)  # raises for wrong arguments before it reads the members
        if not MEMBER_ARGUMENTS.isdisjoint(arguments):
            arguments = with_lasting_names(self._group, await self._members(), arguments)
        command = self.make(kind, arguments, why=why, expires_s=expires_s)
        return await self._put(lambda _: command)

    async def withdraw(self, kind: str, arguments: Mapping[str, Any]) -> tuple[Command, ...]:
        """Withdraws commands of one kind from these partitions: "pause", "quarantine", "pin" or "skip".

        The commands stay in force for their other partitions. Raises CommandRefused if there is no such command.
        """
        if kind not in WITHDRAWN_BY_PARTITION:
            raise ConfigError(f"withdraw a command {kind!r} by its id, with `remove`")
        probe = self.make(kind, {**arguments, "place": {"rack": "any"}} if kind == "pin" else arguments)
        if kind == "skip":
            (partition,) = probe.partitions
            return await self.unskip(partition, probe.arguments["offset"])
        gone = probe.partitions

        def rest(command: Command) -> Optional[Command]:
            left = command.partitions - gone
            return replace(command, arguments={**command.arguments, "partitions": to_ranges(left)}) if left else None

        return await self._withdraw(
            lambda command: command.kind == kind and command.partitions & gone, f"no {kind} of these partitions", rest
        )

    def make(
        self, kind: str, arguments: Mapping[str, Any], *, why: str = "", expires_s: Optional[float] = None
    ) -> Command:
        """Returns the command that `give` would write. Raises ConfigError."""
        if kind in KINDS:
            self._check_kind(kind)
        now_ms = wall_ms()
        return Command.make(
            kind,
            arguments,
            who=default_operator() if self._who is None else self._who,
            now_ms=now_ms,
            why=why,
            expires=None if expires_s is None else now_ms + int(expires_s * 1000),
        )

    async def remove(self, *ids: str) -> tuple[Command, ...]:
        """Withdraws commands by id. Raises NoSuchCommand, and withdraws none, if an id does not exist."""
        return await self._commands.remove(ids, wall_ms())

    # -- inside --------------------------------------------------------------------------------------------------

    async def _put(self, make: Callable[[Commands], Command]) -> CommandReport:
        """Writes the command that `make` returns for the present ones, and calls it again if others write meanwhile."""
        members, command = await self._members(), make(await self._commands.read())
        # a resource may have any name
        of_topics = not any(info.of_resources for info in members.values())
        if members and of_topics:
            for topic in {topic for topic, _ in command.partitions}:
                check_topic(topic)
        kind = KINDS.get(command.kind)
        if members and kind is not None and kind.acts == "owner" and unknown_to_all(command, members):
            raise CommandRefused(f"no member of the group {self._group!r} executes {command.kind!r} commands")
        checked = Checked() if self._check is None or not of_topics else await self._check(command)

        def put(commands: Commands) -> Commands:
            nonlocal command
            command = replace(make(commands), topics=dict(checked.topics))
            return commands.put(command, wall_ms())

        await self._commands.change(put)
        _, pending = counting([command], members, {})
        state, why = pending.get(command.id, ("given", "" if members else "the group has no member"))
        return CommandReport(command, state, "; ".join(filter(None, (why, checked.note))))

    async def _withdraw(
        self,
        chosen: Callable[[Command], Any],
        missing: str,
        rest: Callable[[Command], Optional[Command]] = lambda _: None,
    ) -> tuple[Command, ...]:
        """Returns the withdrawn commands. `rest` returns what stays of one."""
        withdrawn: tuple[Command, ...] = ()

        def change(commands: Commands) -> Commands:
            nonlocal withdrawn
            found = tuple(filter(chosen, commands.entries))
            if not found and not withdrawn:  # otherwise an earlier attempt, whose response was lost, withdrew them
                raise CommandRefused(f"group {self._group!r} has {missing}")
            withdrawn = found or withdrawn
            for command in found:
                left = rest(command)
                commands = commands.without([command.id], wall_ms()) if left is None else commands.put(left, wall_ms())
            return commands

        await self._commands.change(change)
        return withdrawn

    def _check_kind(self, kind: str) -> None:
        """Raises CommandRefused for a kind of command that the group does not support."""

    async def _members(self) -> Mapping[str, MemberInfo]:
        """Returns the live members in join order. Raises CommandRefused if the group does not exist."""
        return (await self._state()).members

    async def _state(self) -> GroupState:
        """Returns the group. Raises CommandRefused if it does not exist."""
        raise NotImplementedError


class CommandsOfGroup(CommandsFromOutside):
    """The operator commands of a group in ZooKeeper. The caller opens and closes the session."""

    def __init__(
        self,
        zk: ZooKeeperClient,
        paths: Paths,
        who: Optional[str] = None,
        commands: Optional[CommandKeeper] = None,
        check: Optional[Check] = None,
    ) -> None:
        super().__init__(commands or CommandStore(zk, paths), paths.group, who, check)
        self._zk = zk
        self._root = paths.root

    async def _state(self) -> GroupState:
        found = await describe(self._zk, self._group, self._root)
        if found is None:
            raise await no_group(self._zk, self._group, self._root)
        return found


@names_arguments
class GroupCommands(CommandsOfGroup):
    """Adds, lists and withdraws operator commands of one group with membership "zookeeper".

        async with GroupCommands("zk1:2181", "billing") as commands:
            await commands.evacuate("billing-web1", why="its disk is failing")
            for each in await commands.list():
                print(each.command.kind, each.state, each.why)

    Name a member by its client id, by the name that `allocator group describe` shows, or by its number, "#12". A place
    is a member, or "rack:NAME". Each command has `who` (default user@host), the time and `why`, and expires after
    `expires_s` seconds. A new command replaces an earlier command of its kind with the same subject.

    The leader executes a command once every live member knows its kind; the report names the members of older versions.
    Every method raises CommandRefused if the group cannot execute the command, and ConfigError for wrong arguments. In
    both cases it writes nothing. `timeout_s`: seconds to connect to ZooKeeper.
    """

    def __init__(
        self,
        zookeeper: str,
        group: str,
        *,
        root: str = DEFAULT["root"],
        zookeeper_options: Optional[Mapping[str, Any]] = None,
        who: Optional[str] = None,
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(ZooKeeperClient(zookeeper, options=zookeeper_options), Paths(root, group), who)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> GroupCommands:
        await self._zk.connect(self._timeout_s, make_chroot=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._zk.close()


def parse_place(text: str) -> dict[str, str]:
    """Returns a command's `place` argument for "rack:NAME" or for the name of a member."""
    kind, colon, name = text.partition(":")
    if kind == "rack" and colon and name:
        return {"rack": name}
    return {"member": text}


def default_operator() -> str:
    """Returns "user@host" of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in many containers the user has no name
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def _canary(commands: Commands) -> Optional[Command]:
    return next(iter(commands.in_force(wall_ms(), ("canary",))), None)
