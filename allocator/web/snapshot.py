"""What the page and the JSON API are given of a group: compact, since 10 000 partitions are no exception. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from allocator.groups.zookeeper.znodes import to_ranges
from allocator.types import TopicPartition
from allocator.web.watch import WatchedGroup, Watcher

__all__ = ["PARTS", "detail", "encode", "encoded", "figures", "findings", "lags", "overview", "rebalances", "series"]

FINDINGS = 100  # shown
SUBSCRIBED = 20  # topics named of a member


def overview(watcher: Watcher, read_only: bool) -> dict[str, Any]:
    """All groups, in a line each. `read_only`: whether this server changes nothing."""
    return {
        "ready": watcher.ready,
        "read_only": read_only,
        "groups": [figures(group) for _, group in sorted(watcher.groups.items())],
        "problems": [f"{what} does not answer: {why}" for what, why in sorted(watcher.problems.items())],
    }


def figures(group: WatchedGroup) -> dict[str, Any]:
    report = group.report
    state = report.state
    return {
        "group": group.name,
        "phase": report.phase,
        "paused": group.paused,
        "generation": state.generation,
        "members": len(state.members),
        "partitions": len(report.partitions),
        "unowned": len(report.unowned),
        "lag": lag_of(group),
        "problems": group.wrong,
    }


def lag_of(group: WatchedGroup) -> int | None:
    return group.report.lag.total


def detail(group: WatchedGroup) -> dict[str, Any]:
    """Members in join order, and for each topic parallel lists: which partitions, and the index of their owner."""
    report = group.report
    state, document = report.state, report.state.document
    # a member whose own znode is gone may still hold something
    members = [*state.members, *(name for name in state.claims if name not in state.members)]
    index = {member: number for number, member in enumerate(members)}
    owners = {p: index[member] for p, member in state.owners.items()}
    promised = {}
    if document is not None:
        promised = {p: index[m] for m, parts in document.promised.items() if m in index for p in parts}
        # given already, and not begun yet
        promised.update(
            (p, index[m]) for m, parts in document.owners.items() if m in index for p in parts if owners.get(p) is None
        )
    last = group.history.last
    moved = {p: was for p, (was, _) in last.moves.items() if was is not None} if last is not None else {}
    names = last.names if last is not None else {}
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in report.partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    unowned = set(report.unowned)
    read = {partition.topic for partition in report.current}
    return {
        **figures(group),
        "leader": state.leader,
        "strategy": document.strategy if document is not None else None,
        "revision": document.revision if document is not None else 0,
        "members": [_member(group, member) for member in members],
        "topics": [
            {
                "topic": topic,
                "partitions": to_ranges(parts)[topic],
                "owners": [owners.get(p, -1) for p in parts],
                "to": {str(p.partition): promised[p] for p in parts if p in promised and promised[p] != owners.get(p)},
                "moved": {str(p.partition): names.get(moved[p], moved[p]) for p in parts if p in moved},
                "unowned": [p.partition for p in parts if p in unowned],
                "retired": topic not in read,
            }
            for topic, parts in sorted(by_topic.items())
        ],
    }


def _member(group: WatchedGroup, member: str) -> dict[str, Any]:
    state, logs = group.report.state, group.report.logs
    info, claim = state.members.get(member), state.claims.get(member)
    held: Collection[TopicPartition] = claim.held if claim is not None else ()
    document = state.document
    entry: dict[str, Any] = {
        "id": member,
        "name": group.history.name_of(member, state),
        "partitions": len(held),
        "lag": logs.lag_of(held).total,
    }
    if info is None:
        return {**entry, "client_id": member, "host": None, "pid": None, "gone": True}
    entry.update(
        client_id=info.name,
        host=info.host,
        pid=info.pid,
        rack=info.rack,
        weight=info.weight,
        topics=sorted(info.topics)[:SUBSCRIBED],
        pattern=info.pattern,
        strategies=list(info.strategies),
        refused=document.refused.get(member) if document is not None else None,
        releasing=len(document.waiting[member].partitions)
        if document is not None and member in document.waiting
        else 0,
        gone=False,
    )
    return entry


def lags(group: WatchedGroup) -> dict[str, Any]:
    """Parallel to the partitions of `detail`; null where it is not known."""
    report = group.report
    by_topic: dict[str, list[int | None]] = {}
    for partition in report.partitions:
        by_topic.setdefault(partition.topic, []).append(report.logs.lag(partition))
    held = {m: report.logs.lag_of(claim.held).total for m, claim in report.state.claims.items()}
    return {"lag": lag_of(group), "topics": by_topic, "members": held}


def series(group: WatchedGroup, after: float = 0.0) -> list[dict[str, Any]]:
    """The points later than that."""
    return [
        {key: round(value, 3) if isinstance(value, float) else value for key, value in vars(point).items()}
        for point in group.series.points
        if point.at > after
    ]


def rebalances(group: WatchedGroup) -> list[dict[str, Any]]:
    """The newest first."""
    return [rebalance.to_json() for rebalance in reversed(group.history.rebalances)]


def findings(group: WatchedGroup) -> list[dict[str, Any]]:
    """What is wrong, the worst first."""
    return [
        {
            "id": finding.id,
            "severity": str(finding.severity),
            "what": finding.what,
            "where": finding.place,
            "why": finding.why,
            "do": finding.do,
            "command": finding.command,
        }
        for finding in group.problems[:FINDINGS]
    ]


def encode(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# what is sent of a group -> how it is made, and the parts of the group that it depends on
PARTS: dict[str, tuple[Callable[[WatchedGroup], Any], tuple[str, ...]]] = {
    "group": (detail, ("state", "history")),
    "lag": (lags, ("state", "lag")),
    "rebalances": (rebalances, ("history",)),
    "findings": (findings, ("state", "lag", "findings")),
}


def encoded(group: WatchedGroup, part: str) -> str:
    """One of PARTS as JSON, made once for all who look."""
    make, depends = PARTS[part]
    version = tuple(group.version[what] for what in depends)
    if part not in group.cache or group.cache[part][0] != version:
        group.cache[part] = version, encode(make(group))
    return group.cache[part][1]
