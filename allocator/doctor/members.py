"""What may be wrong with the members of a group and with who owns what. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from allocator.doctor.finding import Finding, Severity, names
from allocator.doctor.look import Look
from allocator.foreign import plain
from allocator.groups.describe import GroupState
from allocator.groups.legacy.describe import KIEL, OLD_CONSUMERS, OLD_OWNERS
from allocator.groups.zookeeper.znodes import Paths
from allocator.types import TopicPartition

__all__ = ["DEFAULT_SESSION_S", "member_findings"]

DEFAULT_SESSION_S = 10.0
UNEVEN = 1.5  # times the fair share; and at least two partitions above it
BY_NUMBER_NOT = {"lag-aware", "rack-aware"}  # these share out something else than the number of partitions
REBALANCING = {"PreparingRebalance", "CompletingRebalance", "AwaitingSync", "Assigning", "Reconciling"}


def member_findings(before: Look, after: Look, root: str, patience_s: float) -> Iterator[Finding]:
    """`patience_s`: what takes longer than this does not end by itself."""
    yield from _presence(after, root)
    yield from _layouts(after, root)
    yield from _given_up(before, after)
    if after.state is not None:
        yield from _ownership(before, after)
        yield from _stuck(before, after, Paths(root, after.state.group), patience_s)
        yield from _znodes(after.state, root)
        yield from _differences(after)
    if after.kafka is not None:
        yield from _kafka(before, after)
    yield from _shares(after)


def _presence(look: Look, root: str) -> Iterator[Finding]:
    if look.report is None:
        if look.group is not None and not look.old.kiel and not look.old.consumers and not look.unseen:
            known = f"; it knows {', '.join(look.others)}" if look.others else ""
            kafka = "; Kafka has no members or offsets of it" if look.version else ""
            yield Finding(
                "unknown-group",
                Severity.CRITICAL,
                f"ZooKeeper has no group {look.group!r} under {root}{known}{kafka}",
                (look.group,),
                "Nobody consumes under this name, or it was asked for in another place than where its members are.",
                "Check the name, the root and the ZooKeeper chroot against the settings of a member.",
                "allocator group list",
            )
        return
    members = look.report.state.members
    if members or (look.kafka is not None and look.kafka.alive) or look.old.kiel or look.old.consumers:
        return
    logs = look.report.logs
    lag = logs.lag_of(logs.committed)
    waiting = f"{'' if lag.total is not None else 'at least '}{lag.known} records wait behind what it committed"
    if not look.version:
        waiting = "Kafka was not asked how many records wait"
    in_kafka = f" (Kafka says {look.kafka.state})" if look.kafka is not None else ""
    yield Finding(
        "no-members",
        Severity.WARNING if lag != (0, 0) or not look.version else Severity.INFO,
        f"the group has no members{in_kafka}; {waiting}",
        (look.report.state.group,),
        "Nothing is consumed. Kafka drops the offsets of an empty group after offsets.retention.minutes.",
        "Start its members, or leave it if it is not needed any more.",
    )


def _layouts(look: Look, root: str) -> Iterator[Finding]:
    group = look.group or ""
    ours = [f"{root}/{group}/members"] if look.state is not None and look.state.members else []
    by_kafka = ["Kafka's own protocol"] if look.kafka is not None and look.kafka.alive else []
    kiel = [KIEL.format(group)] if look.old.kiel else []
    old = [OLD_CONSUMERS.format(group)] if look.old.consumers else []
    together = (*ours, *by_kafka, *kiel, *old)
    if len(together) > 1:
        yield Finding(
            "several-protocols",
            Severity.CRITICAL,
            f"members of one name share partitions in {len(together)} ways that know nothing of each other",
            together,
            "Each way gives out all partitions, so each record is processed more than once, and they commit over one "
            "another; Kafka refuses the commits of those outside its own protocol.",
            "Let one kind go on and stop the other, or give it another group name.",
        )
    if kiel:
        yield Finding(
            "kiel-layout",
            Severity.WARNING,
            f"{len(look.old.kiel)} members stand where kiel's do",
            tuple(f"{kiel[0]}/{member}" for member in look.old.kiel),
            "Members of kiel do not wait for each other to let go: each rebalance has some records processed twice.",
            'Upgrade them one by one with membership = "kiel"; once only ours are left, move the group over.',
            f"allocator group adopt {group}",
        )
    if old:
        yield Finding(
            "old-consumer-layout",
            Severity.WARNING,
            f"{len(look.old.consumers)} members stand where Kafka 0.8's high-level consumers do",
            tuple(f"{old[0]}/{member}" for member in look.old.consumers),
            "No client since 0.9 knows of them, and Kafka 4 has no ZooKeeper in which they could stand.",
            "Move them to a newer client before the cluster is upgraded beyond 3.x.",
        )


def _given_up(before: Look, after: Look) -> Iterator[Finding]:
    """Partitions that consumers of 0.8 should be reading, and none has claimed, in both looks."""

    def unowned(look: Look) -> set[TopicPartition]:
        old = look.old
        return {p for p in look.replicas if old.consumers and old.reads(p) and p not in {*old.dealt, *old.claimed}}

    lacking = unowned(before) & unowned(after)
    if lacking:
        yield Finding(
            "unowned-partitions",
            Severity.CRITICAL,
            f"{len(lacking)} partitions have no owner under {OLD_OWNERS.format(after.group)}",
            names(lacking),
            "Their records are processed by nobody. Consumers of 0.8 try a claim a few times (rebalance.max.retries), "
            "and when the former owner has not let go by then they wait until members come or go.",
            "Restart one member, which makes all look again; then raise rebalance.max.retries or rebalance.backoff.ms "
            "until they last longer than a session timeout and the slowest handler.",
        )


def _ownership(before: Look, after: Look) -> Iterator[Finding]:
    assert after.report is not None
    group = after.report.state.group
    without = set(after.report.left_out)
    if without:
        document = after.report.state.document
        yield Finding(
            "left-out-partitions",
            Severity.WARNING,
            f"{len(without)} partitions have no owner, because allocator function "
            f"{plain(document.strategy) if document is not None else ''} leaves them out",
            names(without),
            "Their records are processed by nobody; the lag of these partitions grows.",
            "Have the function give them to a member. If they are left out on purpose, make sure that somebody else "
            "reads them.",
            f"allocator group describe {group}",
        )
    unowned = set(after.report.unowned) - without
    if before is not after:  # what moves is without an owner for a moment
        unowned &= set(before.report.unowned) if before.report is not None else set()
    if unowned:
        yield Finding(
            "unowned-partitions",
            Severity.CRITICAL,
            f"{len(unowned)} partitions have no owner",
            names(unowned),
            "Their records are processed by nobody; the lag of these partitions grows until somebody owns them.",
            "See what else is found of this group (a stuck member, an assignment that was refused); the leader's log "
            f"says why. The leader is {after.report.state.name_of(after.report.state.leader or '')}.",
            f"allocator group describe {group}",
        )
    doubly = _claimed_twice(after.report.state)
    if before is not after:
        earlier = {} if before.state is None else _claimed_twice(before.state)
        doubly = {p: holders for p, holders in doubly.items() if earlier.get(p) == holders}
    if doubly:
        yield Finding(
            "doubly-claimed",
            Severity.CRITICAL,
            f"{len(doubly)} partitions are claimed by several members: "
            + ", ".join(map(after.report.state.name_of, sorted({m for holders in doubly.values() for m in holders}))),
            names(doubly),
            "Each of those members processes their records. No version of this library does this: a claim was written "
            "by other means, or ZooKeeper was restored from a backup under living members.",
            "Restart all of these members but one; report it, with the znodes, if nobody touched them.",
        )


def _claimed_twice(state: GroupState) -> dict[TopicPartition, frozenset[str]]:
    holders: dict[TopicPartition, list[str]] = defaultdict(list)
    for member, claim in state.claims.items():
        for partition in claim.held:
            holders[partition].append(member)
    return {p: frozenset(members) for p, members in holders.items() if len(members) > 1}


def _stuck(before: Look, after: Look, paths: Paths, patience_s: float) -> Iterator[Finding]:
    state, earlier = after.state, before.state
    if state is None or earlier is None or state.document is None or earlier.document is None:
        return
    age_s = after.age_s(paths.assignment) or 0.0
    for member, entry in state.document.waiting.items():
        if member in state.members and earlier.document.waiting.get(member) == entry and age_s >= patience_s:
            yield Finding(
                "stuck-member",
                Severity.CRITICAL,
                f"{_called(state, member)} was told {age_s:.0f} s ago to let go of {len(entry.partitions)} partitions, "
                f"and still holds them (its claim is at revision {_revision(state, member)}, this was {entry.since})",
                (state.name_of(member), *names(entry.partitions)),
                "A member lets go when what is in its handler is done. Until then whoever is to have these partitions "
                "waits, and so does the rest of the rebalance.",
                "Look at what its handler does (a call without a timeout?), or restart that process: its session ends, "
                "and the partitions move.",
            )
    for member, parts in state.document.owners.items():
        claim = state.claims.get(member)
        unclaimed = parts - (claim.held if claim is not None else frozenset())
        lasting = earlier.document.owners.get(member) == parts and age_s >= patience_s
        if unclaimed and lasting and member in state.members:
            yield Finding(
                "stuck-member",
                Severity.CRITICAL,
                f"{_called(state, member)} was given {len(unclaimed)} partitions {age_s:.0f} s ago and has not begun "
                f"(its claim is at revision {_revision(state, member)}, the assignment at {state.document.revision})",
                (state.name_of(member), *names(unclaimed)),
                "Nobody processes them, and the leader will not give them to another while this member stands.",
                "Look at its log, or restart that process.",
            )
    session_s = after.asked_s or DEFAULT_SESSION_S
    for member in state.members:
        silent_s = after.age_s(paths.member(member)) or 0.0
        if silent_s > max(session_s, patience_s):
            yield Finding(
                "silent-member",
                Severity.CRITICAL,
                f"{_called(state, member)} has not written its znode for {silent_s:.0f} s, others have; "
                f"the session timeout is {session_s:g} s",
                (state.name_of(member),),
                "It proves each quarter of its session timeout that it lives, and delivers nothing when it cannot. Its "
                "event loop is blocked while kazoo's thread keeps the session, so its partitions stand still and do "
                "not move; or its session timeout is many times the one named here.",
                "See what blocks its event loop (a call that is not awaited?), or restart that process.",
            )


def _znodes(state: GroupState, root: str) -> Iterator[Finding]:
    unreadable = [problem for problem in state.problems if problem.startswith("znode ")]
    if unreadable:
        yield Finding(
            "unreadable-znode",
            Severity.WARNING,
            "; ".join(unreadable[:3]) + (f"; and {len(unreadable) - 3} more" if len(unreadable) > 3 else ""),
            tuple(problem.split()[1] for problem in unreadable),
            "Something else writes under this root, or a newer version of this library does. What cannot be read is "
            "left out, so a member may get no partitions.",
            "Find out who wrote it; delete the znode if nothing owns it.",
        )
    document = state.document
    if document is None:
        return
    if document.problem:
        yield Finding(
            "assignment-refused",
            Severity.CRITICAL,
            f"the leader keeps the assignment of generation {document.generation}: {document.problem}",
            (f"{root}/{state.group}/assignment", state.name_of(document.leader)),
            "The allocator function raised, or its answer was not each partition exactly once. Members that came since "
            "get nothing, and what members that went had is nobody's.",
            "Correct the function, or choose another one; the leader calls it again when something changes.",
        )
    for member, why in document.refused.items():
        yield Finding(
            "member-refused",
            Severity.CRITICAL,
            f"{_called(state, member)} gets no partitions: {why}",
            (state.name_of(member),),
            "It offers no allocator function that the rest of its group has.",
            "Give all members a function in common, in the same order; during a change let new members offer both.",
        )


def _differences(look: Look) -> Iterator[Finding]:
    assert look.state is not None
    members = look.state.members
    offered = {info.strategies for info in members.values()}
    if len(offered) > 1:
        yield Finding(
            "different-functions",
            Severity.WARNING,
            "members offer different allocator functions: " + "; ".join(sorted(" or ".join(each) for each in offered)),
            tuple(map(look.state.name_of, members)),
            "The oldest member's order decides among those that all have. When it leaves, another function may be "
            "chosen, and most partitions move.",
            "Finish the deployment, or give all members the same functions in the same order.",
        )
    wanted = {(tuple(sorted(info.topics)), info.pattern) for info in members.values()}
    if len(wanted) > 1:
        yield Finding(
            "different-subscriptions",
            Severity.INFO,
            f"members subscribe to {len(wanted)} different sets of topics",
            tuple(map(look.state.name_of, members)),
            "That may be meant. If not, some topics have fewer members than the group seems to have.",
            "Compare the members' topics.",
            f"allocator group describe {look.state.group}",
        )
    missing = {t for info in members.values() for t in info.topics} - {p.topic for p in look.replicas}
    if missing and look.replicas:
        yield Finding(
            "topic-missing",
            Severity.WARNING,
            f"members subscribe to topics that the cluster does not have: {', '.join(sorted(missing))}",
            tuple(sorted(missing)),
            "They wait for them without an error: a typo looks like a quiet topic.",
            "Correct the name, or create the topic.",
        )


def _kafka(before: Look, after: Look) -> Iterator[Finding]:
    assert after.kafka is not None
    lasting = before is after or (before.kafka is not None and before.kafka.state in REBALANCING)
    if after.kafka.state in REBALANCING and lasting and before is not after:
        yield Finding(
            "endless-rebalance",
            Severity.WARNING,
            f"Kafka's coordinator says {after.kafka.state}, and said {before.kafka.state if before.kafka else ''} "
            f"{(after.ended_ms - before.ended_ms) / 1000:.0f} s ago",
            tuple(member.name for member in after.kafka.members),
            "Nobody in the group consumes until every member has joined again; one that does not poll holds it up for "
            "its whole rebalance timeout.",
            "Find the member whose handler takes so long; give it fewer records at once, or more time.",
        )
    wanted = {member.topics for member in after.kafka.members if member.topics}
    if len(wanted) > 1:
        yield Finding(
            "different-subscriptions",
            Severity.INFO,
            f"members subscribe to {len(wanted)} different sets of topics",
            tuple(member.name for member in after.kafka.members),
            "That may be meant. If not, some topics have fewer members than the group seems to have.",
            "Compare the members' topics.",
        )


def _shares(look: Look) -> Iterator[Finding]:
    """Partitions by member, where all members want the same."""
    held: dict[str, int] = {}
    weights: Mapping[str, float] = {}
    strategy = ""
    called: Mapping[str, str] = {}
    if look.state is not None and look.state.members:
        members = look.state.members
        if len({(info.topics, info.pattern) for info in members.values()}) > 1:
            return
        held = {m: len(look.state.claims[m].held) if m in look.state.claims else 0 for m in members}
        weights = {m: info.weight for m, info in members.items()}
        called = {member: look.state.name_of(member) for member in members}
        strategy = look.state.document.strategy if look.state.document is not None else ""
    elif look.kafka is not None and look.kafka.state == "Stable":
        if len({member.topics for member in look.kafka.members}) > 1:
            return
        held = {member.id: len(member.partitions) for member in look.kafka.members}
        called = {member.id: member.name for member in look.kafka.members}
        strategy = look.kafka.assignor
    total = sum(held.values())
    if not total:
        return
    idle = [member for member, count in held.items() if not count]
    if idle and len(held) > total:
        yield Finding(
            "idle-members",
            Severity.INFO,
            f"{len(idle)} of {len(held)} members own nothing: the topics have {total} partitions",
            tuple(called[member] for member in idle),
            "They stand by and make nothing faster.",
            "Leave them as a reserve, stop them, or add partitions (which changes where keys go).",
        )
        return
    if strategy in BY_NUMBER_NOT:
        return
    whole = sum(weights.get(member, 1.0) for member in held)
    fair = {member: total * weights.get(member, 1.0) / whole for member in held}
    over = {m: count for m, count in held.items() if count > UNEVEN * fair[m] and count - fair[m] >= 2}
    if over:
        worst = max(over, key=lambda member: over[member] / fair[member])
        yield Finding(
            "skewed-assignment",
            Severity.WARNING,
            f"{called[worst]} owns {over[worst]} of {total} partitions where {fair[worst]:.1f} would be fair "
            f"(allocator function {strategy or 'unknown'})",
            tuple(sorted(called[member] for member in over)),
            "The group is as slow as its busiest member. With `range` this comes of many topics: each is dealt from "
            "the first member on.",
            'Choose a function that counts over all topics ("naive", "sticky", "cooperative-sticky").',
        )


def _called(state: GroupState, member: str) -> str:
    return f"member {state.name_of(member)}"


def _revision(state: GroupState, member: str) -> str:
    claim = state.claims.get(member)
    return "none" if claim is None else str(claim.revision)
