"""Generated states of fifty groups for the page, always the same."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from allocator.cli.access import Access
from allocator.core.client.metadata import Broker, Metadata, PartitionMetadata, TopicMetadata
from allocator.core.types import Partitions
from allocator.operate.doctor import Finding, Severity
from allocator.operate.group_report import GroupState, Logs
from allocator.protocols.zookeeper.cluster_choice import ClusterChoice
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.history import News
from allocator.web.watch import WatchedGroup, Watcher
from tests.web.written_group import assigned, member_id, parts

SESSION_S = 10.0
NAMES = (
    ("billing", "orders", "shipping", "search-index", "fraud-scores", "payments-settlement", "email-digest")
    + ("clickstream", "inventory", "returns", "recommendations", "audit-log", "loyalty-points", "geo-enrichment")
    + ("image-thumbnails", "price-feed", "risk-limits", "ledger-export")
)

FINDINGS = [
    Finding(
        "lag-grows",
        Severity.CRITICAL,
        "3 partitions of orders are read more slowly than they are written",
        ("orders:17", "orders:18", "orders:40"),
        "At this rate the log deletes records unread in 6 hours.",
        "Start more members, or find out why handlers of these partitions are slow.",
        "allocator group offsets billing",
    ),
    Finding(
        "versions-differ",
        Severity.WARNING,
        "2 members run another session timeout than the others",
        ("worker-03@node-3#3", "worker-04@node-4#4"),
        "A crash of these members is noticed 20 s later.",
        "Use one session timeout for all members of the group.",
    ),
    Finding("retention", Severity.INFO, "offsets are kept for 7 days", ("billing",), "", "Nothing needs to be done."),
    Finding("old-broker", Severity.INFO, "one broker is a version behind", ("broker 3",), "", "Upgrade it some time."),
]


def state_of(
    name: str,
    generation: int,
    held: Mapping[str, Partitions],
    *,
    promised: Optional[Mapping[str, Partitions]] = None,
    claimed: Optional[Mapping[str, Partitions]] = None,
    topics: frozenset[str],
) -> GroupState:
    document = AssignmentDocument(
        generation=generation, revision=generation, strategy="sticky", owners=held, promised=promised or {}
    )
    infos = {
        member: MemberInfo(
            f"worker-{int(member[-10:]):02d}",
            f"node-{int(member[-10:]) % 7}",
            topics,
            rack=f"r{int(member[-10:]) % 3}",
            strategies=("sticky",),
            pid=4000 + int(member[-10:]),
            session_timeout_s=SESSION_S,
            version="0.1.0",
        )
        for member in held
    }
    now_claimed = claimed or held
    claims = {
        member: Claim(generation, now_claimed.get(member, frozenset()), generation, generation, (7 << 32) + generation)
        for member in held
    }
    return GroupState(name, infos, claims, document)


def without(held: Mapping[str, Partitions], crashed: str) -> dict[str, Partitions]:
    """Assigns the partitions of one member to the others, which keep their own."""
    others = [member for member in held if member != crashed]
    owners: dict[str, set[TopicPartition]] = {member: set(held[member]) for member in others}
    for number, partition in enumerate(sorted(held[crashed])):
        owners[others[number % len(others)]].add(partition)
    return {member: frozenset(parts) for member, parts in owners.items()}


def group_of(
    name: str, members: int, topics: Mapping[str, int], now: float, *, seed: int = 0, polls: int = 20
) -> WatchedGroup:
    """A group after a crash of one member and the arrival of another, polled every 5 s until `now`."""
    chance = random.Random(seed)
    group = WatchedGroup(name)
    partitions, ids = parts(**dict(topics)), [member_id(number) for number in range(members + 1)]
    names = frozenset(topics)
    before = assigned(partitions, ids[:members], seed)
    group.learn(state_of(name, 1, before, topics=names), now - 900)
    if members > 2:
        after = without(before, ids[1])
        began = now - 200.0
        gone = {member: held for member, held in before.items() if member != ids[1]}
        news = News(began, frozenset({ids[1]}))
        group.learn(state_of(name, 1, gone, topics=names), began + 0.02, news)
        group.learn(state_of(name, 2, after, claimed=gone, topics=names), began + 0.15)
        # the members take over one after the other
        claimed = dict(gone)
        for number, member in enumerate(after):
            claimed[member] = after[member]
            group.learn(state_of(name, 2, after, claimed=claimed, topics=names), began + 0.2 + 0.01 * number)
        joined = {**after, ids[members]: frozenset(sorted(after[ids[0]])[: len(after[ids[0]]) // 2])}
        joined[ids[0]] = after[ids[0]] - joined[ids[members]]
        released = {**after, ids[0]: joined[ids[0]], ids[members]: frozenset()}
        began = now - 60.0
        group.learn(state_of(name, 3, joined, claimed={**after, ids[members]: frozenset()}, topics=names), began)
        group.learn(state_of(name, 3, joined, claimed=released, topics=names), began + 0.4)
        group.learn(state_of(name, 3, joined, topics=names), began + 0.6)
        times = {member: now - 86_400.0 + 60 * number for number, member in enumerate(joined)}
        joined_at = {**times, ids[members]: began}
        group.learn(replace(group.report.state, joined=joined_at), began + 0.7)
    speeds = [chance.choice((0, 3, 20, 50)) for _ in partitions]
    slow = {number for number in range(len(partitions)) if chance.random() < 0.03}
    existing = frozenset(partitions)
    start = dict.fromkeys(partitions, 0)
    for poll in range(polls):
        s = 5.0 * poll
        ends = {p: 100_000 + int(speed * s) for p, speed in zip(partitions, speeds)}
        committed = {
            p: OffsetAndMetadata(100_000 + int(speed * s * (0.4 if number in slow else 1.0)), "", -1)
            for number, (p, speed) in enumerate(zip(partitions, speeds))
        }
        group.measure(Logs(committed, start, ends), existing, now - 5.0 * (polls - 1 - poll))
    group.judge([], group.version["state"])
    return group


def metadata_of(watcher: Watcher) -> Metadata:
    """The topics of the groups and one without readers, on three brokers of which the last is away."""
    counts = {p.topic: 0 for group in watcher.groups.values() for p in group.report.current}
    for group in watcher.groups.values():
        for topic in {p.topic for p in group.report.current}:
            counts[topic] = max(counts[topic], sum(p.topic == topic for p in group.report.current))
    counts["unread"] = 4
    topics = {
        topic: TopicMetadata(
            {
                number: PartitionMetadata(None if topic == "unread" and number > 2 else 1 + number % 2, 5, (1, 2, 3))
                for number in range(count)
            },
            False,
            None,
        )
        for topic, count in counts.items()
    }
    brokers = {node: Broker(node, f"broker-{node}.example", 9092, f"r{node}") for node in (1, 2)}
    return Metadata(brokers, topics, cluster_id="generated", controller=1, complete=True)


def watcher_of(groups: int = 50, members: int = 100, partitions: int = 10_000) -> Watcher:
    """The first group has that many members and partitions. Nothing needs to run."""
    now = time.time()
    watcher = Watcher(Access("nowhere:1", brokers="nowhere:2"))
    first = group_of(NAMES[0], members, {"orders": partitions * 3 // 5, "payments": partitions * 2 // 5}, now, polls=20)
    first.judge(FINDINGS, first.version["state"])
    watcher.groups[NAMES[0]] = first
    for number in range(1, groups):
        name = NAMES[number] if number < len(NAMES) else f"team-{number:02d}.consumer"
        watcher.groups[name] = group_of(
            name, 1 + number % 9, {f"topic-{number:02d}": 8 + 4 * (number % 11)}, now, seed=number
        )
    if groups > 4:
        paused = watcher.groups[NAMES[2]]
        paused.learn(replace(paused.report.state, choice=ClusterChoice(frozen=True)), now)
        quiet = watcher.groups[NAMES[3]]
        quiet.judge([FINDINGS[1]], quiet.version["state"])
        watcher.groups[NAMES[4]].unmeasured(now)
    watcher.metadata = metadata_of(watcher)
    watcher.ready = True
    watcher.responded_at = {"kafka": now, "zookeeper": now}
    return watcher
