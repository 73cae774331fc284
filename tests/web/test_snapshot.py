"""The snapshot of a group for the page and the metrics. Pure, no servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from allocator.cli.access import Access
from allocator.commands.command import Command, Commands
from allocator.core.aio.clock import wall_ms
from allocator.core.client.metadata import Broker, Metadata, PartitionMetadata, TopicMetadata
from allocator.operate.group_report import GroupState, Logs
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, CommandState, MemberInfo, Waiting
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.metrics import GroupCollector
from allocator.web.snapshot import brokers, detail, figures, lags, topics
from allocator.web.snapshot import commands as shown_commands
from allocator.web.watch import WatchedGroup, Watcher
from tests.web.served import as_described

READ = [TopicPartition("read", 0), TopicPartition("read", 1)]
OLD = TopicPartition("old", 0)  # the group has offsets of it, but no member subscribes to it
MEMBER = "m-0000000000000001-0000000001"


def group(committed: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> WatchedGroup:
    found = WatchedGroup("billing")
    held = frozenset(READ)
    document = AssignmentDocument(generation=1, strategy="naive", owners={MEMBER: held})
    infos = {MEMBER: MemberInfo("a", "host", frozenset({"read"}))}
    found.learn(GroupState("billing", infos, {MEMBER: Claim(1, held)}, document), 1.0)
    offsets = {partition: OffsetAndMetadata(offset, "", -1) for partition, offset in committed.items()}
    found.measure(Logs(offsets, dict.fromkeys(ends, 0), ends), frozenset(READ), 2.0)
    return found


def scraped(of: WatchedGroup, what: str = "lag") -> list[str]:
    class Watcher:
        clusters = ("kafka",)
        problems: dict[str, str] = {}
        groups = {of.name: of}

    registry = CollectorRegistry()
    watcher: Any = Watcher()
    registry.register(GroupCollector(watcher))
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith(f"allocator_group_{what}{{")]


def test_a_topic_that_no_member_subscribes_to_is_marked_and_is_no_lag() -> None:
    known = group({READ[0]: 4, READ[1]: 5, OLD: 1}, {READ[0]: 10, READ[1]: 10, OLD: 1000})
    assert figures(known)["lag"] == 11
    assert figures(known)["unowned"] == 0
    assert {topic["topic"]: topic["retired"] for topic in detail(known)["topics"]} == {"old": True, "read": False}
    assert scraped(known) == ['allocator_group_lag{group="billing",topic="read"} 11.0']


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    part = group({READ[0]: 4}, {READ[0]: 10, READ[1]: 10})
    assert figures(part)["lag"] is None
    assert lags(part)["members"] == {MEMBER: None}
    assert lags(part)["topics"] == {"read": [6, None]}
    assert part.series.points[-1].lag is None
    assert scraped(part) == []
    assert scraped(part, "end_offsets") == ['allocator_group_end_offsets{group="billing",topic="read"} 20.0']
    assert scraped(group({READ[0]: 4}, {READ[0]: 10}), "end_offsets") == [], "the end of one log is unknown"


def test_offsets_are_unknown_while_kafka_does_not_respond() -> None:
    known = group({READ[0]: 4, READ[1]: 5}, {READ[0]: 10, READ[1]: 10})
    before = known.version["lag"]
    known.unmeasured(2.0)
    assert figures(known)["lag"] is None
    assert figures(known)["unowned"] == 0
    assert known.version["lag"] > before, "the page must replace the old figures"
    assert scraped(known) == []


def test_commands_and_the_use_of_the_budget_are_shown() -> None:
    known = group({}, {})
    budget = Command.make("budget", {"at_once": 2, "per_minute": 30}, who="alice", now_ms=wall_ms())
    freeze = Command.make("freeze", {}, who="alice", now_ms=wall_ms(), why="quiet")
    state = known.report.state
    assert state.document is not None
    document = state.document.but(
        waiting={MEMBER: Waiting(1, frozenset(READ[:1]))},
        moved=((wall_ms() - 90_000, 50), (wall_ms(), 7)),
        commands={budget.id: CommandState("kept")},
    )
    known.learn(replace(state, document=document, commands=Commands((budget, freeze)), read_ms=wall_ms()), 3.0)
    assert [(each["text"], each["state"]) for each in shown_commands(known)] == [
        ("freeze", "pending"),  # the member's version does not report which commands it knows
        ("budget 2 at once, 30 a minute", "kept"),
    ]
    used = detail(known)["budget"]
    assert (used["at_once"], used["per_minute"], used["moving"]) == (2, 30, 1)
    assert [number for _, number in used["moved"]] == [50, 7]
    assert scraped(known, "budget_used") == [
        'allocator_group_budget_used{group="billing",limit="at_once"} 1.0',
        'allocator_group_budget_used{group="billing",limit="per_minute"} 7.0',
    ]
    assert 'allocator_group_commands{group="billing",state="pending"} 1.0' in scraped(known, "commands")


def _watching(metadata: Metadata | None, *groups: WatchedGroup) -> Watcher:
    found = Watcher(Access("nowhere:1", brokers="nowhere:2"))
    found.groups = {each.name: each for each in groups}
    found.metadata = metadata
    return found


def test_topics_have_their_groups_and_what_is_unknown_is_null() -> None:
    one, two = group({READ[0]: 4, READ[1]: 5}, {READ[0]: 10, READ[1]: 10}), group({READ[0]: 4}, {READ[0]: 10})
    two.name = "search"
    led, leaderless = PartitionMetadata(1, 5, (1, 2, 3)), PartitionMetadata(None, 5, (3,))
    described = Metadata(
        {1: Broker(1, "b1", 9092, "r1"), 2: Broker(2, "b2", 9092, None)},
        {
            "read": TopicMetadata({0: led, 1: led}, False, None),
            "alone": TopicMetadata({0: led, 1: leaderless}, False, None),
            "__consumer_offsets": TopicMetadata({0: led}, True, None),
        },
        controller=2,
    )
    ends = dict.fromkeys((TopicPartition("alone", 0), *READ), 10)
    logs = Logs(start=dict.fromkeys(ends, 2), end=ends)
    found = topics(_watching(described, one, two), logs)
    as_described("/api/topics", found)
    alone, read = found["topics"]
    known = {"topic": "alone", "partitions": 2, "replicas": 1, "leaderless": 1, "groups": []}
    assert alone == {**known, "records": None, "lag": None}
    assert (read["partitions"], read["records"], read["groups"]) == (2, 16, ["billing", "search"])
    assert read["lag"] is None, "search has no offset of one partition"
    (only,) = topics(_watching(described, one), Logs())["topics"][1:]
    assert (only["lag"], only["records"]) == (11, None)
    found = brokers(_watching(described))
    as_described("/api/brokers", found)
    columns = ("id", "host", "controller", "leads", "replicas")
    assert [tuple(each[name] for name in columns) for each in found["brokers"]] == [
        (1, "b1", False, 4, 4),
        (2, "b2", True, 0, 4),
        (3, None, False, 0, 5),
    ]
