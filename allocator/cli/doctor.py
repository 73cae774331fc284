"""`allocator doctor`: findings about a cluster and a group, with remedies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypeVar

import click
from rich.text import Text

from allocator.cli.group import GROUP, Seconds
from allocator.cli.output import console, print_json
from allocator.doctor.finding import COULD_NOT_LOOK, Finding, Severity
from allocator.errors import AllocatorError, ConfigError
from allocator.foreign import plain

if TYPE_CHECKING:
    from allocator.client.client import KafkaClient
    from allocator.zookeeper.client import ZooKeeper

__all__ = ["doctor"]

T = TypeVar("T")

HEALTHY, NOT_SEEN, ILL = 0, 1, 3  # 2 is wrong usage, as everywhere
COLOURS = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@dataclass(frozen=True)
class _Where:
    """The clusters from the options or the settings file."""

    zookeeper: Optional[str]
    zookeeper_options: Any
    root: str
    brokers: Optional[str]
    security: Any
    session_timeout_s: float
    kafka_zookeeper: Optional[str]
    timeout_s: float


@click.command()
@click.argument("group", metavar="[GROUP]", type=GROUP, required=False)
@click.option(
    "-c",
    "--config",
    type=click.Path(dir_okay=False),
    help="Settings file of `allocator run`: gives most of the options below.",
)
@click.option("--zookeeper", envvar="ALLOCATOR_ZOOKEEPER_HOSTS", help="ZooKeeper ensemble: host:port,host:port/chroot.")
@click.option("--root", envvar="ALLOCATOR_ZOOKEEPER_ROOT", help="Znode that holds the groups (default /allocator).")
@click.option("--brokers", envvar="ALLOCATOR_KAFKA_BROKERS", help="Kafka brokers: host:port,host:port.")
@click.option(
    "--kafka-zookeeper", help="ZooKeeper of the Kafka cluster (default: --zookeeper, with and without its chroot)."
)
@click.option("--session-timeout", type=Seconds(), help="Session timeout of the members in seconds (default 10).")
@click.option("--interval", default=5.0, show_default=True, type=Seconds(0), help="Seconds between the two polls.")
@click.option(
    "--patience",
    default=60.0,
    show_default=True,
    type=Seconds(0),
    help="Report a member as stuck after this many seconds.",
)
@click.option("--timeout", default=10.0, show_default=True, type=Seconds(), help="Seconds to wait for each response.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    group: Optional[str],
    config: Optional[str],
    zookeeper: Optional[str],
    root: Optional[str],
    brokers: Optional[str],
    kafka_zookeeper: Optional[str],
    session_timeout: Optional[float],
    interval: float,
    patience: float,
    timeout: float,
    as_json: bool,
) -> None:
    """Diagnose GROUP and its clusters: each problem, its consequence and its remedy. Reads only.

    Looks twice, with --interval seconds between, which should be longer than the members' commit interval. Without
    GROUP, only at the cluster. Give --zookeeper, --brokers, or both.

    \b
    Exit codes:
      0   healthy: nothing found, or only what is worth knowing
      1   not everything could be looked at; what was found is shown
      2   wrong usage or settings
      3   something is wrong
    """
    from allocator.groups.zookeeper.znodes import Paths

    where, default_group = _find(config, zookeeper, root, brokers, kafka_zookeeper, session_timeout, timeout)
    group = group or default_group
    if where.zookeeper is not None and group is not None:
        Paths(where.root, group)  # raises for a name that is no znode's; Kafka alone knows of others
    findings = asyncio.run(_examine(where, group, interval, patience))
    if as_json:
        healthy = _exit_code(findings) == HEALTHY
        found = [finding.to_json() for finding in findings]
        print_json({"group": group, "healthy": healthy, "findings": found})
    else:
        _print(findings, group)
    sys.exit(_exit_code(findings))


def _find(
    config: str | None,
    zookeeper: str | None,
    root: str | None,
    brokers: str | None,
    kafka_zookeeper: str | None,
    session_timeout_s: float | None,
    timeout_s: float,
) -> tuple[_Where, str | None]:
    from allocator.daemon.config import load
    from allocator.doctor.members import DEFAULT_SESSION_S
    from allocator.names import check_path
    from allocator.settings import DEFAULT

    options = security = group = None
    if config is not None:
        settings = load(config)
        in_zookeeper = settings.zookeeper.hosts is not None
        zookeeper = zookeeper or settings.zookeeper.hosts
        root = root or settings.zookeeper.root
        brokers = brokers or ",".join(settings.kafka.brokers)
        options, security = settings.zookeeper.options() or None, settings.kafka.security() or None
        own = settings.zookeeper if in_zookeeper else settings.group
        session_timeout_s = session_timeout_s or own.session_timeout_s
        group = settings.group.name
    if zookeeper is None and brokers is None:
        raise ConfigError("where are the clusters? Give --zookeeper, --brokers or --config")
    root = check_path("ZooKeeper root", root or DEFAULT["root"])
    session_timeout_s = session_timeout_s or DEFAULT_SESSION_S
    return _Where(zookeeper, options, root, brokers, security, session_timeout_s, kafka_zookeeper, timeout_s), group


async def _examine(where: _Where, group: str | None, interval_s: float, patience_s: float) -> list[Finding]:
    """Raises the connection error if no cluster was reached."""
    from allocator.client.client import KafkaClient
    from allocator.doctor.doctor import check_failed, examine
    from allocator.zookeeper.client import ZooKeeper

    failed: list[tuple[str, AllocatorError]] = []
    async with AsyncExitStack() as open_ones:

        async def reached(what: str, opening: Coroutine[Any, Any, T]) -> T | None:
            try:
                return await opening
            except ConfigError:
                raise
            except AllocatorError as error:
                failed.append((what, error))
                return None

        async def ensemble(hosts: str, session_timeout_s: float) -> ZooKeeper:
            zk = ZooKeeper(hosts, session_timeout_s=session_timeout_s, options=where.zookeeper_options)
            await zk.connect(where.timeout_s, make_chroot=False)
            open_ones.push_async_callback(zk.close)
            return zk

        async def cluster(brokers: str) -> KafkaClient:
            client = KafkaClient(brokers, security=where.security, request_timeout_s=where.timeout_s)
            await client.connect(where.timeout_s)
            open_ones.push_async_callback(client.close)
            client.follow_all()
            await client.refresh()
            return client

        zk = client = kafka_zk = None
        if where.zookeeper is not None:
            zk = await reached("ZooKeeper", ensemble(where.zookeeper, where.session_timeout_s))
        if where.brokers is not None:
            client = await reached("Kafka", cluster(where.brokers))
        if client is None and zk is None:
            raise failed[0][1]
        hosts = where.kafka_zookeeper
        if hosts is None and where.zookeeper is not None and "/" in where.zookeeper:
            hosts = where.zookeeper.partition("/")[0]
        if hosts is not None and (zk is not None or where.kafka_zookeeper is not None):
            kafka_zk = await reached("Kafka's ZooKeeper", ensemble(hosts, where.timeout_s))
        findings = await examine(
            group,
            client=client,
            zookeeper=zk,
            kafka_zookeeper=kafka_zk,
            root=where.root,
            interval_s=interval_s,
            patience_s=patience_s,
        )
    return [*(check_failed(what, str(error)) for what, error in failed), *findings]


def _exit_code(findings: list[Finding]) -> int:
    if any(finding.id == COULD_NOT_LOOK for finding in findings):
        return NOT_SEEN
    return ILL if any(finding.severity > Severity.INFO for finding in findings) else HEALTHY


def _print(findings: list[Finding], group: str | None) -> None:
    out = console()
    what = "the cluster" if group is None else f"group {group}"
    if not findings:
        out.print(Text(f"{what}: healthy"))
    for finding in findings:
        out.print(
            Text.assemble((str(finding.severity), COLOURS[finding.severity]), f"  {finding.id}: {plain(finding.what)}")
        )
        for label, text in (("where", finding.place), ("why", finding.why), ("do", finding.do)):
            out.print(Text(f"  {label + ':':6} {plain(text)}"))
        if finding.command:
            out.print(Text(f"  {'run:':6} {plain(finding.command)}"))
        out.print()
    counts = [f"{sum(f.severity is level for f in findings)} {level!s}" for level in reversed(Severity)]
    if findings:
        out.print(Text(f"{what}: {', '.join(counts)}"))
