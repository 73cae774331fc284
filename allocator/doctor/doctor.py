"""The doctor: looks at a cluster and a group twice, and says what is wrong and what to do.

    findings = await examine("billing", client=client, zookeeper=zk)

Reads only. docs/doctor.md lists every finding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from allocator.client.client import KafkaClient
from allocator.doctor.cluster import cluster_findings
from allocator.doctor.finding import COULD_NOT_LOOK, Finding, Severity
from allocator.doctor.look import Look, look
from allocator.doctor.members import member_findings
from allocator.doctor.offsets import offset_findings
from allocator.settings import DEFAULT
from allocator.zookeeper.client import ZooKeeper

__all__ = ["Finding", "Look", "Severity", "could_not_look", "examine", "judge", "look"]


async def examine(
    group: str | None,
    *,
    client: KafkaClient | None,
    zookeeper: ZooKeeper | None,
    kafka_zookeeper: ZooKeeper | None = None,
    root: str = DEFAULT["root"],
    interval_s: float = 5.0,
    patience_s: float = 60.0,
    clock: Callable[[], float] = time.time,
) -> list[Finding]:
    """What is wrong, the worst first; [] if nothing is. Takes `interval_s` and the time of two looks.

    `group` None: the cluster alone. `client` must follow all topics. `zookeeper` has the group, and its
    `requested_timeout_s` is taken for the members' own; `kafka_zookeeper` is where Kafka's own znodes stand, if that is
    another ensemble or chroot. `interval_s` lies between the looks: what moves or is committed meanwhile is well; 0
    looks once, and says nothing of lag. `patience_s`: how long a member may take to let go of partitions.

    What could not be looked at is a finding too, `could-not-look`; nothing is raised but for what is no AllocatorError.
    Who looks at regular times calls `look` and `judge` instead, and keeps its last look.
    """
    zookeepers = [each for each in (zookeeper, kafka_zookeeper) if each is not None]

    async def once() -> Look:
        return await look(group, client=client, zookeepers=zookeepers, root=root, clock=clock)

    before = after = await once()
    if interval_s > 0 and group is not None:
        await asyncio.sleep(interval_s)
        after = await once()
    return judge(before, after, root=root, patience_s=patience_s)


def judge(before: Look, after: Look, *, root: str = DEFAULT["root"], patience_s: float = 60.0) -> list[Finding]:
    """What two looks at the same thing show, the worst first. Pure; `before` may be `after` itself."""
    found = [could_not_look(what, why) for what, why in after.unseen]
    found += cluster_findings(before, after)
    if after.group is not None:
        found += member_findings(before, after, root, patience_s)
        found += offset_findings(before, after)
    return _worst_first(found)


def could_not_look(what: str, why: str) -> Finding:
    return Finding(
        COULD_NOT_LOOK,
        Severity.WARNING,
        f"{what} could not be looked at: {why}",
        (what,),
        "What is wrong there is not in this list.",
        "Make it reachable from here, with rights to read and to describe.",
    )


def _worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: (-finding.severity, finding.id, finding.where))
