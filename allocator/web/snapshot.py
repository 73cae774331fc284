"""Renders groups as JSON for the page and the API, compactly, because a group may have 10,000 partitions. No I/O."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from allocator.commands import KINDS
from allocator.documents import to_ranges
from allocator.operate import Logs, ShellCommand
from allocator.protocols.zookeeper import Budget
from allocator.types import TopicPartition
from allocator.web.history import REBALANCES, rounded
from allocator.web.watch import WatchedGroup, Watcher

FINDINGS = 100  # maximum sent for a group
EVENTS = 200  # maximum sent for a group
SUBSCRIBED = 20  # maximum number of topics sent for a member


def overview(watcher: Watcher, read_only: bool) -> dict[str, Any]:
    """Returns a summary of each group. `read_only`: the user may not change anything."""
    return {
        "ready": watcher.ready,
        "read_only": read_only,
        "clusters": clusters(watcher),
        "groups": _figures(watcher),
        "absent": watcher.absent,
        "problems": [f"{what} does not respond: {why}" for what, why in sorted(watcher.problems.items())],
    }


def terminal(watcher: Watcher, chosen: str | None) -> dict[str, Any]:
    """Returns all groups, and details of the chosen group, for `allocator top`."""
    group = watcher.groups.get(chosen or "")
    return {
        "groups": _figures(watcher),
        "group": None if group is None else {**detail(group), "series": series(group)},
        "problems": sorted(watcher.problems.values()),
    }


def _figures(watcher: Watcher) -> list[dict[str, Any]]:
    """Returns the figures of the groups, without the znodes under the root that are no group."""
    return [figures(group) for _, group in sorted(watcher.groups.items()) if group.exists is not False]


def clusters(watcher: Watcher) -> list[dict[str, Any]]:
    """Returns for each cluster whether it responds, and the time of its newest data."""
    return [
        {
            "cluster": name,
            "ok": name not in watcher.problems and (name in watcher.responded_at),
            "as_of": rounded(None if name == "zookeeper" and watcher.ready else watcher.responded_at.get(name)),
            "away_since": rounded(watcher.away_since.get(name)),
            "why": watcher.problems.get(name),
        }
        for name in sorted({*watcher.clusters, *watcher.problems})
    ]


def figures(group: WatchedGroup) -> dict[str, Any]:
    """Returns the summary of a group. null: unknown. Times are epoch seconds."""
    report = group.report
    state = report.state
    point = group.series.points[-1] if group.series.points else None
    severities = Counter(str(finding.severity) for finding in group.problems)
    return {
        "group": group.name,
        "protocol": "zookeeper" if state.coordinated is None else "kafka",
        "phase": report.phase,
        "paused": group.paused,
        "generation": report.generation,
        "members": report.member_count,
        "partitions": len(report.partitions),
        "unowned": report.unowned_count,
        "reserved": sum(len(each.partitions) for each in report.reserved),
        "lag": group.report.lag.total,
        "lag_s": rounded(group.age.s, 1),
        "lag_least_s": rounded(group.age.least_s, 1),
        "produced": rounded(None if point is None else point.produced),
        "consumed": rounded(None if point is None else point.consumed),
        "measured_at": rounded(group.measured_at),
        "last_rebalance": _last_rebalance(group),
        "problems": group.wrong,
        "findings": {severity: severities[severity] for severity in ("critical", "warning", "info")},
    }


def _last_rebalance(group: WatchedGroup) -> dict[str, Any] | None:
    """Returns the last rebalance; if this server has seen none, the last stored one."""
    last = group.history.last
    # a stored rebalance without an end was in progress when the previous server stopped
    stored = (each for each in group.past if each["ended"] is not None)
    found = next(stored, None) if last is None else last.to_json()
    return None if found is None else {key: found[key] for key in ("id", "began", "ended", "took_s", "moved")}


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        found.setdefault(partition.topic, []).append(partition)
    return found


def detail(group: WatchedGroup) -> dict[str, Any]:
    """Returns the members in join order and, for each topic, parallel lists of partitions and their owners."""
    report = group.report
    state, document = report.state, report.state.document
    # a member whose znode was deleted may still hold partitions
    members = [*state.members, *(name for name in state.claims if name not in state.members)]
    index = {member: number for number, member in enumerate(members)}
    owners = {p: index[member] for p, member in state.owners.items()}
    promised = {}
    if document is not None:
        promised = {p: index[m] for m, parts in document.promised.items() if m in index for p in parts}
        # assigned, but not yet claimed by their new owner
        promised.update(
            (p, index[m]) for m, parts in document.owners.items() if m in index for p in parts if owners.get(p) is None
        )
    last = group.history.last
    moved = {p: was for p, (was, _) in last.moves.items() if was is not None} if last is not None else {}
    names = last.names if last is not None else {}
    unowned = set(report.unowned)
    read = {partition.topic for partition in report.current}
    return {
        **{key: value for key, value in figures(group).items() if key != "findings"},
        "leader": state.leader,
        "strategy": state.strategy,
        "revision": document.revision if document is not None else 0,
        "budget": budget(group),
        "members": [_member(group, member) for member in members],
        "departed": group.history.departed(state),
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
            for topic, parts in sorted(by_topic(report.partitions).items())
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
        return {**entry, "client_id": member, "host": None, "pid": None, "version": None, "gone": True}
    entry.update(
        client_id=info.name,
        host=info.host,
        pid=info.pid,
        logs=None
        if info.pid is None
        else str(ShellCommand(("ssh", "--", info.host, "journalctl", f"_PID={info.pid}"))),
        version=info.version,
        rack=info.rack,
        weight=info.weight,
        joined=rounded(state.joined.get(member)),
        session_timeout_s=info.session_timeout_s,
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
    """Returns lags and ages, parallel to the partitions of `detail`; null if unknown."""
    report, logs = group.report, group.report.logs
    topics = by_topic(report.partitions)
    held = {m: logs.lag_of(claim.held).total for m, claim in report.state.claims.items()}
    return {
        "lag": group.report.lag.total,
        "topics": {topic: [logs.lag(p) for p in parts] for topic, parts in topics.items()},
        "ages": {topic: [rounded(group.offsets.age(p, logs).s, 1) for p in parts] for topic, parts in topics.items()},
        "members": held,
        "as_of": rounded(group.measured_at),
    }


def loads(group: WatchedGroup) -> dict[str, Any] | None:
    """Returns the reported load of each member; null for a group without `follow_load`.

    The value is null for a member whose partitions' loads are all unknown.
    """
    state = group.report.state
    if state.load is None:
        return None
    known = state.partition_loads.keys()
    return {
        "source": state.load_source,
        "mean": _significant(state.load.mean) if known else None,
        "max_over_mean": rounded(state.load.max_over_mean),
        "unknown": state.load.unknown,
        "members": {
            member: None if parts and parts.isdisjoint(known) else _significant(state.load.by_member[member])
            for member, parts in state.held.items()
        },
    }


def _significant(value: float) -> float:
    """Rounds to four digits, because loads range from milliseconds to megabytes."""
    return float(f"{value:.4g}")


def offsets(group: WatchedGroup) -> dict[str, Any]:
    """Returns columns for each topic, parallel to the partitions of `detail`; null if unknown."""
    report, logs = group.report, group.report.logs

    def committed(partition: TopicPartition) -> int | None:
        return logs.committed[partition].offset if partition in logs.committed else None

    return {
        "as_of": rounded(group.measured_at),
        "topics": {
            topic: {
                "committed": [committed(p) for p in parts],
                "start": [logs.start.get(p) for p in parts],
                "end": [logs.end.get(p) for p in parts],
                "lag": [logs.lag(p) for p in parts],
                "lag_s": [rounded(group.offsets.age(p, logs).s, 1) for p in parts],
                "rate": [rounded(group.offsets.rate(p), 2) for p in parts],
                "committed_at": [rounded(group.offsets.committed_at(p)) for p in parts],
                "fence": [None if fence is None else fence.transaction for fence in map(group.fences.of, parts)],
                "fence_exact": [fence is not None and fence.exact for fence in map(group.fences.of, parts)],
            }
            for topic, parts in by_topic(report.partitions).items()
        },
    }


def series(group: WatchedGroup, after: float = 0.0) -> list[dict[str, Any]]:
    """Returns the points after that time."""
    return [
        {key: round(value, 3) if isinstance(value, float) else value for key, value in vars(point).items()}
        for point in group.series.points
        if point.at > after
    ]


def rebalances(group: WatchedGroup) -> list[dict[str, Any]]:
    """Returns the rebalances, newest first, including stored ones."""
    live = [rebalance.to_json() for rebalance in reversed(group.history.rebalances)]
    known = {each["id"] for each in live}
    return [*live, *(each for each in group.past if each["id"] not in known)][:REBALANCES]


def events(watcher: Watcher, group: str) -> list[dict[str, Any]]:
    """Returns changes, deployments and outages, newest first, without addresses and request bodies."""
    return [
        {"at": round(event.at, 3), "kind": event.kind, "text": event.text, "who": event.who}
        for event in reversed([each for each in watcher.log.of(group) if each.kind != "read"][-EVENTS:])
    ]


def rebalance(group: WatchedGroup, number: int) -> dict[str, Any] | None:
    """Returns one rebalance with all its moves; None if it is unknown."""
    found = next((each for each in group.history.rebalances if each.id == number), None)
    return None if found is None else {**found.to_json(), **found.moves_to_json()}


def findings(group: WatchedGroup) -> list[dict[str, Any]]:
    """Returns the findings, worst first."""
    shown = group.problems[:FINDINGS]
    found = [{**finding.to_json(), "where": finding.place} for finding in shown]
    for each in found:
        del each["fix"]  # the page offers no fixes
    return found


def commands(group: WatchedGroup) -> list[dict[str, Any]]:
    """Returns the operator commands with their states, newest first. Times are epoch seconds."""
    found = []
    for report in reversed(group.report.commands):
        given = report.to_json()
        kind = KINDS.get(report.command.kind)
        found.append(
            {
                **{key: given[key] for key in ("id", "kind", "text", "arguments", "who", "why", "state", "state_why")},
                "summary": "" if kind is None else kind.summary,
                "at": given["when"] / 1000,
                "expires": None if given["expires"] is None else given["expires"] / 1000,
                "results": [{**result, "when": result["when"] / 1000} for result in given["results"]],
            }
        )
    return found


def budget(group: WatchedGroup) -> dict[str, Any] | None:
    """Returns the limits of the command `budget` and the moves that count; null without such a command."""
    state = group.report.state
    limits = Budget.of(each.command for each in group.report.commands if each.state == "kept")
    if state.document is None or limits == Budget():
        return None
    return {
        "at_once": limits.at_once,
        "per_minute": limits.per_minute,
        "moving": state.document.in_flight(state.members.keys()),
        "moved": [[when / 1000, number] for when, number in state.document.moved],
    }


def topics(watcher: Watcher, logs: Logs) -> dict[str, Any]:
    """Returns the topics of the cluster with their groups; without metadata only the topics of the groups.

    `logs`: the ends of the logs of all topics, as far as they are known.
    """
    metadata = watcher.metadata
    known = {} if metadata is None else metadata.topics
    readers: dict[str, list[WatchedGroup]] = {}
    parts: dict[tuple[str, str], list[TopicPartition]] = {}
    for name, group in sorted(watcher.groups.items()):
        for topic, partitions in by_topic(group.report.current).items():
            readers.setdefault(topic, []).append(group)
            parts[name, topic] = partitions
    found = []
    for topic in sorted({name for name, one in known.items() if not one.internal}.union(readers)):
        described = None if topic not in known else list(known[topic].partitions.values())
        groups = readers.get(topic, [])
        each = [(group.report.logs, parts[group.name, topic]) for group in groups]
        all_of_it = [TopicPartition(topic, number) for number in known[topic].partitions] if described else []
        ends = all_of_it and all(p in logs.end and p in logs.start for p in all_of_it)
        found.append(
            {
                "topic": topic,
                "partitions": len({p for _, own in each for p in own} if described is None else described),
                "replicas": min((len(p.replicas) for p in described), default=None) if described else None,
                "leaderless": None if described is None else sum(p.leader is None for p in described),
                "records": sum(logs.end[p] - logs.start[p] for p in all_of_it) if ends else None,
                "lag": _total(logs.lag(p) for logs, own in each for p in own) if groups else None,
                "groups": [group.name for group in groups],
            }
        )
    return {"complete": metadata is not None, "topics": found}


def _total(values: Iterable[int | None]) -> int | None:
    """Returns the sum; None if a value is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def brokers(watcher: Watcher) -> dict[str, Any]:
    """Returns the brokers of the cluster, and brokers that should have replicas but are not in the cluster."""
    metadata = watcher.metadata
    if metadata is None:
        return {"complete": False, "brokers": []}
    partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
    leads = Counter(partition.leader for partition in partitions)
    replicas = Counter(node for partition in partitions for node in partition.replicas)
    found = []
    for node in sorted({*metadata.brokers, *replicas}):
        broker = metadata.brokers.get(node)
        found.append(
            {
                "id": node,
                "host": None if broker is None else broker.host,
                "port": None if broker is None else broker.port,
                "rack": None if broker is None else broker.rack,
                "controller": node == metadata.controller,
                "leads": leads[node],
                "replicas": replicas[node],
            }
        )
    return {"complete": True, "brokers": found}


def encode(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# part of a group's JSON -> its function, and the keys of `WatchedGroup.version` that it depends on
PARTS: dict[str, tuple[Callable[[WatchedGroup], Any], tuple[str, ...]]] = {
    "group": (detail, ("state", "history")),
    "lag": (lags, ("state", "lag")),
    "loads": (loads, ("state", "loads")),
    "rebalances": (rebalances, ("history",)),
    "findings": (findings, ("state", "lag", "findings")),
    "commands": (commands, ("state",)),
}
# like PARTS, for parts that the server sends only on request
ON_REQUEST: dict[str, tuple[Callable[[WatchedGroup], Any], tuple[str, ...]]] = {"offsets": (offsets, ("state", "lag"))}


def encoded(group: WatchedGroup, part: str) -> str:
    """Returns a part of PARTS or ON_REQUEST as JSON text. The text is cached for all viewers."""
    make, depends = PARTS[part] if part in PARTS else ON_REQUEST[part]
    version = tuple(group.version[what] for what in depends)
    if part not in group.cache or group.cache[part][0] != version:
        group.cache[part] = version, encode(make(group))
    return group.cache[part][1]
