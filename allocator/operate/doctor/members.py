"""Findings about the members of a group and the ownership of partitions. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from allocator.core.settings import DEFAULT
from allocator.core.text import plain, shown
from allocator.operate.doctor.commands import keeps_empty
from allocator.operate.doctor.finding import COULD_NOT_LOOK, NOT_NAMED, Finding, Fix, Severity, names
from allocator.operate.doctor.observation import Observation
from allocator.operate.group_report import GroupState, clock_time
from allocator.operate.layouts import KIEL, OLD_CONSUMERS, OLD_OWNERS
from allocator.operate.shell_command import ShellCommand
from allocator.protocols.zookeeper import Paths
from allocator.types import TopicPartition

DEFAULT_SESSION_S: float = DEFAULT["session_timeout_s"]
UNEVEN = 1.5  # times the fair number of partitions, and at least two above it
REBALANCING = {"PreparingRebalance", "CompletingRebalance", "AwaitingSync", "Assigning", "Reconciling"}


def member_findings(before: Observation, after: Observation, root: str, patience_s: float) -> Iterator[Finding]:
    """Yields the findings. `patience_s`: a state that lasts longer counts as stuck."""
    yield from _presence(after, root)
    yield from _layouts(after, root)
    yield from _unclaimed_by_old_consumers(before, after)
    if after.state is not None:
        yield from _ownership(before, after)
        yield from _stuck(before, after, root, patience_s)
        yield from _znodes(after.state, root)
        yield from _differences(after)
    yield from _endless_rebalance(before, after)
    for state in filter(None, (after.state, after.kafka)):
        yield from _different_subscriptions(state)
    yield from _shares(after)


def leftover_findings(seen: Observation, root: str) -> Iterator[Finding]:
    groups = seen.leftover_groups
    if groups:
        yield Finding(
            "leftover-groups",
            Severity.INFO,
            f"{len(groups)} groups under {root} are empty znodes: they have no members and never had an assignment",
            groups,
            "They only clutter lists. A process with a mistyped group name, or a crash at the start, left them.",
            "Delete them.",
            ShellCommand.of("allocator doctor", zookeeper="ZOOKEEPER", root=root, fix=True),
            Fix("groups", f"delete the empty znodes of {len(groups)} groups", groups),
        )


def _presence(seen: Observation, root: str) -> Iterator[Finding]:
    if seen.group is None or seen.presence.names:
        return
    if seen.unseen:
        yield Finding(
            COULD_NOT_LOOK,
            Severity.WARNING,
            f"members of the group are not known: the doctor has not read {' and '.join(seen.unseen)}",
            (seen.group,),
            "The group may have members there, which read its records. The findings about owners are missing.",
            "Name the brokers, and the ZooKeeper of the members, or `--zookeeper none` if no ensemble has members of "
            "the group."
            if any(each.endswith(NOT_NAMED) for each in seen.unseen)
            else "Another finding here says why it was not read. Do what that one says.",
        )
        return
    if seen.report is None or seen.astray:
        if not seen.failed_checks:
            known = f"; it knows {', '.join(seen.known_groups)}" if seen.known_groups else ""
            kafka = "; Kafka has no members or offsets of it" if seen.version else ""
            if seen.report is not None:
                kafka = "; Kafka has offsets of it, and no members"
            yield Finding(
                "unknown-group",
                Severity.CRITICAL,
                f"ZooKeeper has no group {seen.group!r} under {root}{known}{kafka}",
                (seen.group,),
                "No process reads for this group here, or its members use another ensemble, root or chroot.",
                "Compare the name, the root and the chroot of ZooKeeper with the settings of a member."
                + (" If no ensemble has members of the group, give `--zookeeper none`." if seen.report else ""),
                ShellCommand.of("allocator group list"),
            )
        return
    if seen.report.state.paused:
        yield Finding(
            "paused",
            Severity.WARNING,
            "the group is paused: its members wait, and nobody reads its records",
            (seen.report.state.group,),
            "A cutover pauses a group until it has moved, and an operator may pause it on the page.",
            "If a cutover has stopped, run it again, or roll it back (`allocator cutover PLAN --rollback`). If an "
            "operator paused it, resume it on the page.",
        )
        return
    in_kafka = f" (Kafka says {seen.kafka_state})" if seen.kafka is not None else ""
    lag = seen.report.lag_text() if seen.version else "lag unknown without Kafka"
    do = "Start its members. If nobody needs the group any more, do nothing."
    command = ShellCommand.of("allocator run", "CONFIG")
    logs = seen.report.logs
    bare = [p for p in seen.report.partitions if p not in logs.committed and logs.end.get(p, 0) > logs.start.get(p, 0)]
    if bare and "committed offsets" not in dict(seen.failed_checks):
        do = (
            f"{len(bare)} partitions have records and no committed offset: it expired, or was never committed. Members "
            "start there by auto_offset_reset, and `latest` skips the waiting records. To read them, reset the offsets "
            "to the earliest record before you start the members."
        )
        command = ShellCommand.of("allocator group offsets reset", seen.group, to="earliest")
    yield Finding(
        "no-members",
        Severity.WARNING if seen.report.lag.total != 0 or not seen.version else Severity.INFO,
        f"the group has no members{in_kafka}; {lag}",
        (seen.report.state.group,),
        "Nobody reads its records. Kafka deletes the offsets of an empty group after offsets.retention.minutes.",
        do,
        command,
    )


def _layouts(seen: Observation, root: str) -> Iterator[Finding]:
    group = seen.group or ""
    together = seen.presence.places(root)
    if len(together) > 1:
        yield Finding(
            "several-protocols",
            Severity.CRITICAL,
            f"the members use {len(together)} group protocols, which do not coordinate with each other",
            together,
            "Each protocol assigns all partitions: records are processed repeatedly, and commits overwrite each other.",
            "Keep the members of one protocol. Stop the others, or change their group name.",
            ShellCommand.of("allocator group describe", group),
        )
    if seen.old.kiel:
        yield Finding(
            "kiel-layout",
            Severity.WARNING,
            f"{len(seen.old.kiel)} members use the layout of kiel",
            tuple(f"{KIEL.format(group)}/{member}" for member in seen.old.kiel),
            "Members of kiel do not wait until the former owner has released a partition: rebalances repeat records.",
            'Upgrade them one by one with membership = "kiel". When no member runs kiel any more, move the group.',
            ShellCommand.of("allocator group adopt", group),
        )
    if seen.old.consumers:
        yield Finding(
            "old-consumer-layout",
            Severity.WARNING,
            f"{len(seen.old.consumers)} members use the layout of Kafka 0.8's high-level consumer",
            tuple(f"{OLD_CONSUMERS.format(group)}/{member}" for member in seen.old.consumers),
            "Newer clients do not coordinate with them, and Kafka 4 has no ZooKeeper for them.",
            "Move them to a newer client before you upgrade the cluster beyond 3.x.",
        )


def _unclaimed_by_old_consumers(before: Observation, after: Observation) -> Iterator[Finding]:
    """Yields partitions that consumers of 0.8 subscribe to, but did not own in either poll."""

    def unowned(seen: Observation) -> set[TopicPartition]:
        old = seen.old
        return {p for p in seen.replicas if old.consumers and old.reads(p) and p not in {*old.assigned, *old.claimed}}

    lacking = unowned(before) & unowned(after)
    if lacking:
        yield Finding(
            "unowned-partitions",
            Severity.CRITICAL,
            f"{len(lacking)} partitions have no owner under {OLD_OWNERS.format(after.group)}",
            names(lacking),
            "Nobody processes their records. A consumer of 0.8 stops after rebalance.max.retries attempts if the "
            "former owner still holds the partition, and retries only when a member joins or leaves.",
            "Restart one member, so that all members retry. Then raise rebalance.max.retries or rebalance.backoff.ms: "
            "the retries have to last longer than a session timeout and the slowest handler.",
        )


def _ownership(before: Observation, after: Observation) -> Iterator[Finding]:
    assert after.report is not None
    state = after.report.state
    group = state.group
    without = set(after.report.left_out)
    if without:
        function = plain(state.strategy or "")
        yield Finding(
            "left-out-partitions",
            Severity.WARNING,
            f"{len(without)} partitions have no owner, because allocator function {function} omits them",
            names(without),
            "Nobody processes their records, and their lag grows.",
            "Change the function. If it omits them on purpose, check that another group reads them.",
            ShellCommand.of("allocator group describe", group),
        )
    for each in after.report.reserved:
        yield Finding(
            "reserved-partitions",
            Severity.INFO,
            f"{len(each.partitions)} partitions wait for instance {shown(each.instance_id)} to start again, until "
            f"{clock_time(each.until)}",
            names(each.partitions),
            f"Nobody processes their records until then (restart_grace_s). The instance ran on {plain(each.host)}.",
            "Start the process again. If it does not come back, wait, or end the reservation.",
            ShellCommand.of("allocator group release", group, each.instance_id),
        )
        without |= each.partitions
    unowned = set(after.report.unowned) - without
    unowned &= set(before.report.unowned) if before.report is not None else set()  # moving partitions have no owner
    if unowned:
        logs = "the logs of its members" if state.leader is None else f"the log of leader {state.name_of(state.leader)}"
        yield Finding(
            "unowned-partitions",
            Severity.CRITICAL,
            f"{len(unowned)} partitions have no owner",
            names(unowned),
            "Nobody processes their records, and their lag grows.",
            f"Check the other findings about this group, and {logs}.",
            ShellCommand.of("allocator group describe", group),
        )
    earlier = {} if before.state is None else _claimed_twice(before.state)
    doubly = {p: m for p, m in _claimed_twice(state).items() if earlier.get(p) == m}
    if doubly:
        yield Finding(
            "doubly-claimed",
            Severity.CRITICAL,
            f"{len(doubly)} partitions are claimed by several members: "
            + ", ".join(map(state.name_of, sorted({member for holders in doubly.values() for member in holders}))),
            names(doubly),
            "All of these members process their records. Another program wrote a claim, or ZooKeeper was restored "
            "from a backup while members were alive. This library writes no such claims.",
            "Restart all of these members except one. If nothing else writes these znodes, report a bug.",
            ShellCommand.of("allocator group describe", group),
        )


def _claimed_twice(state: GroupState) -> dict[TopicPartition, frozenset[str]]:
    holders: dict[TopicPartition, list[str]] = defaultdict(list)
    for member, claim in state.claims.items():
        for partition in claim.held:
            holders[partition].append(member)
    return {p: frozenset(members) for p, members in holders.items() if len(members) > 1}


def _stuck(before: Observation, after: Observation, root: str, patience_s: float) -> Iterator[Finding]:
    state, earlier = after.state, before.state
    if state is None or earlier is None or state.document is None or earlier.document is None:
        return
    paths = Paths(root, state.group)
    age_s = after.age_s(paths.assignment) or 0.0

    def finding(
        kind: str,
        member: str,
        what: str,
        partitions: Iterable[TopicPartition],
        why: str,
        do: str,
        signal: tuple[str, ...] = (),
    ) -> Finding:
        name, info = state.name_of(member), state.members[member]
        kill = ("kill", *signal, str(info.pid))
        restart = None if info.pid is None else ShellCommand(("ssh", "--", info.host, *kill))
        return Finding(kind, Severity.CRITICAL, f"member {name} {what}", (name, *names(partitions)), why, do, restart)

    for member, entry in state.document.waiting.items():
        if member in state.members and earlier.document.waiting.get(member) == entry and age_s >= patience_s:
            yield finding(
                "stuck-member",
                member,
                f"still holds {len(entry.partitions)} partitions, {age_s:.0f} s after the request to release them (its "
                f"claim is at revision {_revision(state, member)}, the request at {entry.since})",
                entry.partitions,
                "The next owner and the rest of the rebalance wait until its handler has finished their records.",
                "Check its handler for a call without a timeout, or restart the process: then the partitions move. If "
                "the process waits for its handler after SIGTERM, use kill -9.",
            )
    for member, parts in state.document.owners.items():
        claim = state.claims.get(member)
        unclaimed = parts - (claim.held if claim is not None else frozenset())
        lasting = earlier.document.owners.get(member) == parts and age_s >= patience_s
        if unclaimed and lasting and member in state.members:
            yield finding(
                "stuck-member",
                member,
                f"got {len(unclaimed)} partitions {age_s:.0f} s ago and has not started them (its claim is at revision "
                f"{_revision(state, member)}, the assignment at {state.document.revision})",
                unclaimed,
                "Nobody processes them, and the leader cannot assign them to another member while this one is alive.",
                "Check its log, or restart the process.",
            )
    for member, info in state.members.items():
        session_s = info.session_timeout_s or after.requested_session_s or DEFAULT_SESSION_S
        silent_s = after.age_s(paths.member(member)) or 0.0
        if silent_s > max(session_s, patience_s):
            yield finding(
                "silent-member",
                member,
                f"has not written its znode for {silent_s:.0f} s; session timeout {session_s:g} s",
                (),
                "It has no lease and delivers nothing, but its session keeps the partitions. Probably a call blocks "
                "its event loop.",
                "Find the call that blocks the event loop, such as synchronous I/O, or end the process with kill -9: a "
                "blocked event loop handles no SIGTERM. The process then ends without a last commit, so the next "
                "owner repeats the records since the last one. It gets the partitions after the session timeout.",
                ("-9",),
            )


def _znodes(state: GroupState, root: str) -> Iterator[Finding]:
    unreadable = [problem for problem in state.problems if problem.startswith("znode ")]
    if unreadable:
        yield Finding(
            "unreadable-znode",
            Severity.WARNING,
            "; ".join(unreadable[:3]) + (f"; and {len(unreadable) - 3} more" if len(unreadable) > 3 else ""),
            tuple(problem.split()[1] for problem in unreadable),
            "The group ignores it, so a member may get no partitions. Another program or a newer version wrote it.",
            "Find the program that wrote the znode. Delete the znode if it does not belong to a member.",
            ShellCommand(("zkCli.sh", "-server", "ZOOKEEPER", "get", unreadable[0].split()[1])),
        )
    document = state.document
    if document is None:
        return
    if document.problem and state.members:  # without members, `no-members` tells what to do
        yield Finding(
            "assignment-refused",
            Severity.CRITICAL,
            f"the leader keeps the assignment of generation {document.generation}: {document.problem}",
            (f"{root}/{state.group}/assignment", state.name_of(document.leader)),
            "New members get no partitions, and the partitions of members that left have no owner.",
            "Correct the allocator function, or configure another one. The leader calls it again at the next change.",
            ShellCommand.of("allocator run", "CONFIG", check=True),
        )
    for member, why in document.refused.items():
        yield Finding(
            "member-refused",
            Severity.CRITICAL,
            f"member {state.name_of(member)} gets no partitions: {why}",
            (state.name_of(member),),
            "It has no allocator function in common with the rest of its group.",
            "Configure the same functions in all members, in the same order. During a change, offer both.",
            ShellCommand.of("allocator run", "CONFIG", check=True),
        )


def _differences(seen: Observation) -> Iterator[Finding]:
    assert seen.state is not None
    members = seen.state.members
    offered = {info.strategies for info in members.values()}
    if len(offered) > 1:
        yield Finding(
            "different-functions",
            Severity.WARNING,
            "members offer different allocator functions: " + "; ".join(sorted(" or ".join(each) for each in offered)),
            tuple(map(seen.state.name_of, members)),
            "The oldest member decides. When it leaves, the group may switch the function and move most partitions.",
            "Finish the deployment, or configure the same functions in the same order in all members.",
            ShellCommand.of("allocator group describe", seen.state.group),
        )
    yield from _load_not_followed(seen.state)
    missing = {t for info in members.values() for t in info.topics} - {p.topic for p in seen.replicas}
    if missing and seen.replicas:
        yield Finding(
            "topic-missing",
            Severity.WARNING,
            f"members subscribe to topics that the cluster does not have: {', '.join(sorted(missing))}",
            tuple(sorted(missing)),
            "Members wait for such topics without an error, so a mistyped name looks like an idle topic.",
            "Correct the name, or create the topic.",
            ShellCommand.of(
                "kafka-topics.sh", bootstrap_server="BROKERS", create=True, topic=min(missing), partitions="COUNT"
            ),
        )


def _endless_rebalance(before: Observation, after: Observation) -> Iterator[Finding]:
    if before is not after and after.kafka is not None and {before.kafka_state, after.kafka_state} <= REBALANCING:
        yield Finding(
            "endless-rebalance",
            Severity.WARNING,
            f"Kafka's coordinator reports {after.kafka_state}, and reported {before.kafka_state} "
            f"{(after.ended_ms - before.ended_ms) / 1000:.0f} s before",
            tuple(map(after.kafka.name_of, after.kafka.members)),
            "No member reads until all have joined again. A member that does not poll delays the others.",
            "Find the member with the slow handler, and lower its records per poll or raise its timeout.",
        )


def _different_subscriptions(state: GroupState) -> Iterator[Finding]:
    wanted = {(info.topics, info.pattern) for info in state.members.values() if info.topics or info.pattern}
    if len(wanted) > 1:
        yield Finding(
            "different-subscriptions",
            Severity.INFO,
            f"members subscribe to {len(wanted)} different sets of topics",
            tuple(map(state.name_of, state.members)),
            "If this is not intended, some topics have fewer members than the group.",
            "Compare the members' topics.",
            ShellCommand.of("allocator group describe", state.group),
        )


def _load_not_followed(state: GroupState) -> Iterator[Finding]:
    following = [info for info in state.members.values() if info.load_tolerance is not None]
    if not following or not following[0].strategies:
        return
    function = following[0].strategies[0]
    without = [member for member, info in state.members.items() if function not in info.strategies]
    if without:
        yield Finding(
            "load-not-followed",
            Severity.WARNING,
            f"{len(following)} of {len(state.members)} members have follow_load, but the group does not follow load: "
            f"{len(without)} members do not offer {function}",
            tuple(map(state.name_of, without)),
            "All members need the setting, which older versions do not have. Until then `assignor` decides.",
            "Upgrade these members, and configure the same follow_load in all members.",
            ShellCommand.of("allocator group describe", state.group),
        )


def _shares(seen: Observation) -> Iterator[Finding]:
    """Yields idle and overloaded members, if all members have the same subscription."""
    state = seen.state if seen.state is not None and seen.state.members else seen.kafka
    if state is None or (state is seen.kafka and seen.kafka_state != "Stable"):
        return
    if len({(info.topics, info.pattern) for info in state.members.values()}) > 1:
        return
    held = {member: len(partitions) for member, partitions in state.held.items()}
    strategy = state.strategy or ""
    total = sum(held.values())
    if not total:
        return
    idle = [member for member, count in held.items() if not count]
    if idle and len(held) > total:
        yield Finding(
            "idle-members",
            Severity.INFO,
            f"{len(idle)} of {len(held)} members own nothing: the topics have {total} partitions",
            tuple(map(state.name_of, idle)),
            "More members than partitions do not increase throughput.",
            "Keep them as a reserve, stop them, or add partitions (keys then move to other partitions).",
        )
        return
    # rack-aware and follow_load do not balance the number of partitions
    if strategy == "rack-aware" or state.load_source is not None or _is_steered(seen):
        return
    whole = sum(info.weight for info in state.members.values())
    fair = {member: total * info.weight / whole for member, info in state.members.items()}
    over = {m: count for m, count in held.items() if count > UNEVEN * fair[m] and count - fair[m] >= 2}
    if over:
        worst = max(over, key=lambda member: over[member] / fair[member])
        yield Finding(
            "skewed-assignment",
            Severity.WARNING,
            f"{state.name_of(worst)} owns {over[worst]} of {total} partitions where {fair[worst]:.1f} would be fair "
            f"(allocator function {strategy or 'unknown'})",
            tuple(sorted(map(state.name_of, over))),
            "The group is as slow as its busiest member. `range` causes this with many topics, because it starts each "
            "topic at the first member.",
            'Choose a function that balances all topics together ("naive", "sticky", "cooperative-sticky").',
            None if seen.state is None else ShellCommand.of("allocator group plan", state.group, function="sticky"),
        )


def _is_steered(seen: Observation) -> bool:
    """Returns whether commands influence how many partitions a member owns."""
    if seen.report is None:
        return False
    return any(
        (each.command.kind != "budget" and each.state in ("kept", "waiting")) or keeps_empty(each, seen.report.state)
        for each in seen.report.commands
    )


def _revision(state: GroupState, member: str) -> str:
    claim = state.claims.get(member)
    return "none" if claim is None else str(claim.revision)
