"""`allocator doctor`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Optional

import click
from rich.text import Text

from allocator.cli.options import GROUP, Seconds, with_clusters
from allocator.cli.output import console, print_json
from allocator.cli.progress import progress
from allocator.core.text import plain
from allocator.errors import ConfigError
from allocator.operate import ShellCommand
from allocator.operate.doctor import Finding, Severity, apply_fixes, examine_clusters

if TYPE_CHECKING:
    from allocator.cli.access import Access

HEALTHY, INCOMPLETE, PROBLEMS = 0, 1, 3  # 2 is wrong usage, in all commands
NO_CHROOT = "creates no chroot, because members would form a second group under a mistyped one: run --fix in a terminal"
COLOURS = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@click.command()
@click.argument("group", metavar="[GROUP]", type=GROUP, required=False)
@click.option(
    "--kafka-zookeeper", help="ZooKeeper of the Kafka cluster (default: --zookeeper, with and without chroot)."
)
@click.option("--session-timeout", type=Seconds(), help="Session timeout of the members in seconds (default 10).")
@click.option("--interval", default=5.0, type=Seconds(0), help="Seconds between the two polls.")
@click.option("--patience", default=60.0, type=Seconds(0), help="Report a member as stuck after this many seconds.")
@click.option("--fix", is_flag=True, help="List the safe fixes, ask, and execute them.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask. Does not create a chroot.")
@with_clusters
def doctor(
    group: Optional[str],
    access: Access,
    kafka_zookeeper: Optional[str],
    session_timeout: Optional[float],
    interval: float,
    patience: float,
    fix: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Diagnose GROUP and its clusters: show findings, consequences and remedies. Only reads, unless --fix is given.

    Polls twice, --interval seconds apart. Choose an interval above the commit interval of the members. Without GROUP,
    the command checks only the cluster. Give --zookeeper, --brokers, or both.

    --fix lists the changes and asks first. It withdraws expired operator commands, deletes groups of which only empty
    znodes are left, and creates a missing chroot. It moves no partition and changes no offset. For other findings, run
    the command that they show.

    \b
    Exit codes:
      0   healthy: no findings, or only info
      1   some checks failed; the other findings are shown
      2   wrong usage or settings
      3   at least one warning or critical finding
    """
    from allocator.protocols.zookeeper import Paths

    if access.settings is not None:
        group = access.chosen_group(group)
    if access.brokers is None and group is not None:
        Paths(access.root, group)  # raises if the name is not valid in ZooKeeper
    if yes and not fix:
        raise ConfigError("--yes needs --fix")
    if fix and as_json and not yes:
        raise ConfigError("--json cannot ask: with --fix, also give --yes")
    session_timeout_s = session_timeout or _session_timeout_s(access)
    with progress(f"polling twice, {interval:g} s apart", quiet=False):
        findings = asyncio.run(examine_clusters(access, group, kafka_zookeeper, session_timeout_s, interval, patience))
    exact = partial(_exact, access=access)
    if not as_json:
        _print(findings, group, exact)
    done = _fix(access, group, findings, yes, as_json) if fix else {}
    left = [finding for finding in findings if finding.id not in done]
    if as_json:
        found = [{**finding.to_json(), "command": exact(finding.command)} for finding in findings]
        fixed = [{"id": each, "done": text} for each, text in done.items()]
        report = {"group": group, "healthy": _exit_code(left) == HEALTHY, "findings": found}
        print_json({**report, "fixed": fixed} if fix else report)
    sys.exit(_exit_code(left))


def _session_timeout_s(access: Access) -> Optional[float]:
    settings = access.settings
    if settings is None:
        return None
    return (settings.group if settings.zookeeper.hosts is None else settings.zookeeper).session_timeout_s


def _fix(access: Access, group: str | None, findings: list[Finding], yes: bool, as_json: bool) -> dict[str, str]:
    """Asks, executes the fixes, and returns finding id -> what the fix did."""
    # never create a chroot without asking: if it is mistyped, members would form a second group in it, and each
    # partition would have two owners
    chosen = [each for each in findings if each.fix is not None and not (yes and each.fix.kind == "chroot")]
    if not chosen and any(each.fix is not None for each in findings):
        click.echo(f"--yes {NO_CHROOT}", err=as_json)
        return {}
    if not chosen:
        by_hand = "; run the commands above yourself" if any(finding.command for finding in findings) else ""
        click.echo(f"no finding has a safe fix{by_hand}", err=as_json)
        return {}
    if not yes:
        for fix in (finding.fix for finding in chosen if finding.fix is not None):
            click.echo(plain(f"--fix would {fix.text}: {', '.join(fix.names)}"))
        if not sys.stdin.isatty():
            kinds = {finding.fix.kind for finding in chosen if finding.fix is not None}
            more = "Give --yes to make these changes" + (f"; it {NO_CHROOT}" if "chroot" in kinds else "")
            raise ConfigError(f"--fix cannot ask without a terminal. Nothing was changed. {more}")
        if not click.confirm("Make these changes?"):
            return {}
    done = asyncio.run(apply_fixes(access, group, chosen))
    for text in done.values():
        click.echo(plain(text), err=as_json)
    return done


def _exact(command: ShellCommand | None, access: Access) -> str | None:
    """Returns `command` with the addresses and the settings file that this call was given.

    Without one of them, the command would find another group, fewer of its members, or no credentials.
    """
    if command is None:
        return None
    given = click.get_current_context().params
    config, kafkas = given["config"], given["kafka_zookeeper"]
    places = {"BROKERS": access.brokers, "ZOOKEEPER": access.zookeeper, "KAFKA-ZOOKEEPER": kafkas, "CONFIG": config}
    command = command.naming(places)
    if command.words[0] != "allocator" or command.words[1] == "run":
        return str(command)
    if (
        command.words[1] == "offsets" and kafkas is not None
    ):  # it refuses to run while there are members in any ensemble
        command = command.adding(("--zookeeper", kafkas))
    if command.finds_group:
        command = command.at(zookeeper=given["zookeeper"], brokers=given["brokers"], root=given["root"])
    return str(command.at(config=config))


def _exit_code(findings: list[Finding]) -> int:
    if any(finding.is_unseen for finding in findings):
        return INCOMPLETE
    return PROBLEMS if any(finding.severity > Severity.INFO for finding in findings) else HEALTHY


def _print(findings: list[Finding], group: str | None, exact: Callable[[ShellCommand | None], str | None]) -> None:
    out = console()
    what = "the cluster" if group is None else f"group {group}"
    if not findings:
        out.print(Text(f"{what}: healthy"))
    for finding in findings:
        head = Text.assemble((str(finding.severity), COLOURS[finding.severity]), f"  {finding.id}: ")
        out.print(head.append(plain(finding.what)))
        texts = {"where": finding.place, "why": finding.why, "do": finding.do, "run": exact(finding.command)}
        if finding.fix is not None:
            texts["fix"] = f"--fix would {finding.fix.text}"
        for label, text in texts.items():
            if text:
                # a command stays one line for copying; the terminal may wrap it
                out.print(Text(f"  {label + ':':6} {plain(text)}"), soft_wrap=label == "run")
        out.print()
    counts = [f"{sum(f.severity is level for f in findings)} {level!s}" for level in reversed(Severity)]
    if findings:
        out.print(Text(f"{what}: {', '.join(counts)}"))
