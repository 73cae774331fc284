"""Polls a cluster and a group twice, and returns the findings.

    findings = await examine("billing", client=client, zookeeper=zk)

docs/doctor.md lists every finding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import TypeVar

from allocator.core.client import KafkaClient
from allocator.core.settings import DEFAULT
from allocator.errors import AllocatorError, ConfigError
from allocator.operate.clusters import Clusters
from allocator.operate.doctor.cluster import cluster_findings
from allocator.operate.doctor.commands import command_findings
from allocator.operate.doctor.finding import CHROOT_MISSING, COULD_NOT_LOOK, NOT_NAMED, Finding, Fix, Severity
from allocator.operate.doctor.fixes import apply
from allocator.operate.doctor.members import DEFAULT_SESSION_S, leftover_findings, member_findings
from allocator.operate.doctor.observation import Observation, observe
from allocator.operate.doctor.offsets import offset_findings
from allocator.operate.shell_command import ShellCommand
from allocator.protocols.zookeeper import NoChroot, ZooKeeperClient

T = TypeVar("T")


async def examine_clusters(
    clusters: Clusters,
    group: str | None,
    kafka_zookeeper: str | None,
    session_timeout_s: float | None,
    interval_s: float,
    patience_s: float,
) -> list[Finding]:
    """Connects and calls `examine`. A cluster that cannot be reached is a finding.

    Raises the connection error if no cluster can be reached.
    """
    failed: list[tuple[str, AllocatorError]] = []
    async with AsyncExitStack() as open_ones:

        async def reached(what: str, opening: AbstractAsyncContextManager[T]) -> T | None:
            try:
                return await open_ones.enter_async_context(opening)
            except ConfigError:
                raise
            except AllocatorError as error:
                failed.append((what, error))
                return None

        zk = client = kafka_zk = None
        if clusters.zookeeper is not None:
            session_timeout_s = session_timeout_s or DEFAULT_SESSION_S
            zk = await reached("ZooKeeper", clusters.ensemble(session_timeout_s=session_timeout_s))
        if clusters.brokers is not None:
            client = await reached("Kafka", clusters.cluster())
        if client is None and zk is None:
            if not any(isinstance(error, NoChroot) for _, error in failed):
                raise failed[0][1]
            return _not_reached(clusters.zookeeper, failed)
        hosts = kafka_zookeeper
        if hosts is None and clusters.zookeeper is not None and "/" in clusters.zookeeper:
            hosts = clusters.zookeeper.partition("/")[0]
        if hosts is not None and (zk is not None or kafka_zookeeper is not None):
            kafka_zk = await reached("Kafka's ZooKeeper", clusters.ensemble(hosts))
        findings = await examine(
            group,
            client=client,
            zookeeper=zk,
            kafka_zookeeper=kafka_zk,
            root=clusters.root,
            interval_s=interval_s,
            patience_s=patience_s,
            unseen=_unseen(clusters, group, failed),
            of_kafka=group is not None and clusters.rules_out_zookeeper(group),
        )
    return [*_not_reached(clusters.zookeeper, failed), *findings]


async def apply_fixes(clusters: Clusters, group: str | None, findings: Iterable[Finding]) -> dict[str, str]:
    """Executes the fixes of findings. Returns finding id -> what the fix did."""
    chosen = {finding.id: finding.fix for finding in findings if finding.fix is not None}
    async with clusters.ensemble(make_chroot=any(fix.kind == "chroot" for fix in chosen.values())) as zk:
        return {each: await apply(fix, zk, group, clusters.root) for each, fix in chosen.items()}


def _unseen(clusters: Clusters, group: str | None, failed: list[tuple[str, AllocatorError]]) -> list[str]:
    """Returns the places that may have members of the group, and that the doctor cannot read."""
    unseen = [what for what, _ in failed]
    if group is not None:
        unseen += [f"{each}{NOT_NAMED}" for each in clusters.unnamed(group)]
    return unseen


def _not_reached(zookeeper: str | None, failed: list[tuple[str, AllocatorError]]) -> list[Finding]:
    return [
        chroot_missing(zookeeper, str(error))
        if isinstance(error, NoChroot) and what == "ZooKeeper" and zookeeper is not None
        else check_failed(what, str(error))
        for what, error in failed
    ]


async def examine(
    group: str | None,
    *,
    client: KafkaClient | None,
    zookeeper: ZooKeeperClient | None,
    kafka_zookeeper: ZooKeeperClient | None = None,
    root: str = DEFAULT["root"],
    interval_s: float = 5.0,
    patience_s: float = 60.0,
    unseen: Collection[str] = (),
    of_kafka: bool = False,
    clock: Callable[[], float] = time.time,
) -> list[Finding]:
    """Polls twice, and returns all findings, the worst first.

    `group` None: examines the cluster alone. `client` must follow all topics. `zookeeper` has the group, and its
    `requested_timeout_s` counts as the session timeout of the members. `kafka_zookeeper` has Kafka's own znodes, if
    they are in another ensemble or chroot. `interval_s`: seconds between the polls; 0 polls once and cannot detect a
    lack of progress. `patience_s`: how long a member may take to release partitions. `unseen`: places that may have
    members of the group, and to which there is no connection. `of_kafka`: whether the caller states that no ensemble
    has members of the group.

    A check that fails with an AllocatorError becomes the finding `could-not-look`. For regular checks, call `observe`
    and `diagnose` instead, and keep the last observation.
    """
    zookeepers = [each for each in (zookeeper, kafka_zookeeper) if each is not None]

    async def poll() -> Observation:
        return await observe(
            group, client=client, zookeepers=zookeepers, root=root, unseen=unseen, of_kafka=of_kafka, clock=clock
        )

    before = after = await poll()
    if interval_s > 0 and group is not None:
        await asyncio.sleep(interval_s)
        after = await poll()
    return diagnose(before, after, root=root, patience_s=patience_s)


def diagnose(
    before: Observation, after: Observation, *, root: str = DEFAULT["root"], patience_s: float = 60.0
) -> list[Finding]:
    """Returns the findings from two polls of the same group, the worst first. `before` may be `after` itself."""
    found = [check_failed(what, why) for what, why in after.failed_checks]
    found += cluster_findings(before, after)
    found += leftover_findings(after, root)
    if after.group is not None:
        found += member_findings(before, after, root, patience_s)
        found += offset_findings(before, after)
    if after.report is not None:
        found += command_findings(after.report)
    found = [replace(each, command=_under(root, each.command)) for each in found]
    return sorted(found, key=lambda finding: (-finding.severity, finding.id, finding.where))


def _under(root: str, command: ShellCommand | None) -> ShellCommand | None:
    """Returns the command with the root under which the group was found: under another one, it has other members."""
    if command is None or not command.finds_group or root == DEFAULT["root"]:
        return command
    return command.at(root=root)


def chroot_missing(zookeeper: str, why: str) -> Finding:
    hosts, _, chroot = zookeeper.partition("/")
    return Finding(
        CHROOT_MISSING,
        Severity.CRITICAL,
        f"the chroot /{chroot} does not exist: {why}",
        (zookeeper,),
        "Members do not start without it: in a mistyped chroot they would be a second group that reads everything.",
        "Compare the chroot with the settings of the members. In a new installation, create it.",
        ShellCommand(("zkCli.sh", "-server", hosts, "create", f"/{chroot}")),
        Fix("chroot", f"create the chroot /{chroot}", (zookeeper,)),
    )


def check_failed(what: str, why: str) -> Finding:
    return Finding(
        COULD_NOT_LOOK,
        Severity.WARNING,
        f"{what} could not be read: {why}",
        (what,),
        "Problems there are missing from this list.",
        "Check that its servers run (ZooKeeper needs a majority of them), that this machine can connect to them, and "
        "that its credentials allow to read and describe it.",
    )
