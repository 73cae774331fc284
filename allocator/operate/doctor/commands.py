"""Findings about the commands of a group. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from allocator.core.text import plain
from allocator.operate.command_report import CommandReport
from allocator.operate.doctor.finding import Finding, Fix, Severity, names
from allocator.operate.doctor.fixes import is_long_expired
from allocator.operate.group_report import GroupReport, GroupState
from allocator.operate.shell_command import ShellCommand
from allocator.protocols.zookeeper import members_named

OLD_MS = 7 * 86_400_000  # operators forget commands without an expiry
OLD_FREEZE_MS = 86_400_000  # new members get no partitions during a freeze


def command_findings(report: GroupReport) -> Iterator[Finding]:
    """Yields commands that are not kept, unknown to some members, old, done or expired."""
    group, now_ms = report.state.group, report.state.read_ms
    in_force = [each for each in report.commands if each.in_force]
    if waiting := [(p, lag) for p in sorted(report.paused) if (lag := report.logs.lag(p))]:
        yield Finding(
            "command-pauses",
            Severity.WARNING,
            f"commands pause {len(waiting)} partitions, in which {sum(lag for _, lag in waiting)} records wait",
            names(p for p, _ in waiting),
            "An operator paused them. Retention may delete their records before anyone reads them.",
            "Withdraw the commands, once the reason for them is gone.",
            ShellCommand.of(
                "allocator group commands", group, remove=[e.command.id for e in in_force if e.command.kind == "pause"]
            ),
        )
    for each in report.commands:
        if each.state == "not kept":
            yield Finding(
                "command-not-kept",
                Severity.WARNING,
                f"{_called(each)} is not kept: {plain(each.why)}",
                (each.command.id,),
                "The group continues without the command, so it is not in the state that the operator wanted.",
                "Start the member, correct the command or what the reason names, or withdraw the command.",
                ShellCommand.of("allocator group commands", group, remove=each.command.id),
            )
        elif each.state == "pending":
            yield Finding(
                "command-pending",
                Severity.WARNING,
                f"{_called(each)} is not in force yet: {plain(each.why)}",
                (each.command.id,),
                "A leader of an older version would assign partitions without regard to the command.",
                "Upgrade the named members.",
                ShellCommand.of("allocator group commands", group),
            )
    for each in in_force:
        limit_ms = OLD_FREEZE_MS if each.command.kind == "freeze" else OLD_MS
        age_ms = now_ms - each.command.when
        if each.command.expires is None and age_ms > limit_ms:
            yield Finding(
                "command-old",
                Severity.WARNING if each.command.kind == "freeze" else Severity.INFO,
                f"{_called(each)} has been in force for {age_ms // 86_400_000} days, and has no expiry",
                (each.command.id,),
                "A forgotten command makes the assignment hard to explain.",
                "Withdraw the command, or write it again with --expires and --why.",
                ShellCommand.of("allocator group commands", group, remove=each.command.id),
            )
    over = [
        each for each in report.commands if each.state in ("done", "expired") and not keeps_empty(each, report.state)
    ]
    expired = tuple(each.command.id for each in over if is_long_expired(each.command, now_ms))
    if over:
        yield Finding(
            "commands-over",
            Severity.INFO,
            f"{len(over)} operator commands are done or expired: {', '.join(map(_called, over[:3]))}",
            tuple(each.command.id for each in over),
            "They have no effect any more, and make the list of commands long.",
            "Withdraw them.",
            ShellCommand.of("allocator group commands", group, remove=[each.command.id for each in over]),
            Fix("commands", f"withdraw {len(expired)} expired commands of {plain(group)}", expired)
            if expired
            else None,
        )


def keeps_empty(each: CommandReport, state: GroupState) -> bool:
    """Returns whether an evacuation or a swap that is done still keeps partitions from a live member."""
    emptied = {"evacuate": "member", "swap": "old"}.get(each.command.kind)
    if emptied is None or each.state != "done":
        return False
    return bool(members_named(each.command.arguments[emptied], state.members))


def _called(each: CommandReport) -> str:
    return f"command {each.command} of {plain(each.command.who)}"
