"""The reports of `allocator group`. Pure, no servers."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from allocator.cli.report import members_table
from allocator.errors import ConfigError
from allocator.operate import GroupReport, GroupState, Logs, ResetPlan, parse_target
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo, Waiting
from allocator.types import OffsetAndMetadata, TopicPartition

P = [TopicPartition("t", number) for number in range(4)]
OLD, NEW = "m-0000000000000001-0000000001", "m-0000000000000002-0000000002"
MEMBERS = {
    OLD: MemberInfo("billing-a", "host-a", frozenset({"t"})),
    NEW: MemberInfo("billing-[b]", "host-b", pattern="t.*", weight=2.0, rack="r1", pid=4242),
}


def committed(**offsets: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition("t", int(name[1:])): OffsetAndMetadata(offset, "by", -1) for name, offset in offsets.items()}


def group(document: AssignmentDocument | None = None, **claims: frozenset[TopicPartition]) -> GroupState:
    held = {OLD: claims.get("old", frozenset(P[:2])), NEW: claims.get("new", frozenset(P[2:3]))}
    document = document or AssignmentDocument(generation=7, strategy="naive", owners=held)
    return GroupState("billing", MEMBERS, {m: Claim(1, parts) for m, parts in held.items()}, document)


REPORT = GroupReport(group(), Logs(committed(p0=5, p1=10), dict.fromkeys(P, 2), dict.fromkeys(P, 10)), subscribed=P)


def text(table: Any) -> list[str]:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_name_of_a_member_cannot_control_the_terminal() -> None:
    rude = MemberInfo("a\x1b[2Jb\n\x9b1m", "host\x07", frozenset({"t"}))
    _, line = text(members_table(GroupReport(GroupState("g", {OLD: rude}, {}, None))))
    assert line.startswith("a\\x1b[2Jb\\n\\x9b1m@host\\x07#1 (leads)  host\\x07 ")


def test_unknown_lag_is_null_and_no_name_is_markup() -> None:
    found = REPORT.to_json()
    # t:2 and t:3 have records and no committed offset
    assert (found["lag"], found["lag_unknown_partitions"], found["state"]) == (None, 2, "rebalancing")
    assert [(each["committed"], each["metadata"], each["lag"]) for each in found["partitions"][::3]] == [
        (5, "by", 5), (None, None, None)
    ]  # fmt: skip
    assert found["unowned"] == [{"topic": "t", "partition": 3}]
    assert found["problems"] == ["1 partitions have no owner: t:3"]
    _, first, second = text(members_table(REPORT))
    assert first.split() == ["billing-a@host-a#1", "(leads)", "host-a", "-", "2", "1", "-", "t"]
    assert second.startswith("billing-[b]@host-b:4242#2 ")
    assert REPORT.headline() == (
        "billing: rebalancing, generation 7, 2 members, 3 of 4 partitions owned, "
        "lag 5 in 2 partitions, unknown in 2 (t:2-3), strategy naive"
    )


def test_unknown_lag_is_not_shown_as_a_number() -> None:
    unreachable = GroupReport(REPORT.state, Logs(problems=("offsets are not known: no broker responds",)))
    assert unreachable.to_json()["lag"] is None
    assert "lag unknown, strategy naive" in unreachable.headline()
    new = [TopicPartition("new", number) for number in range(3)]
    ends = {**dict.fromkeys(P, 10), **dict.fromkeys(new, 7)}
    read = Logs(committed(p0=10, p1=10, p2=10, p3=10), dict.fromkeys(ends, 0), ends)
    assert "lag 0 in 4 partitions, unknown in 3 (new:0-2), " in GroupReport(group(), read, [*P, *new]).headline()
    assert REPORT.logs.lag_of(P[:2]).total == 5
    assert REPORT.logs.lag_of(P).total is None


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (group(), "stable"),
        (group(AssignmentDocument(promised={OLD: frozenset(P[:1])})), "rebalancing"),
        (group(AssignmentDocument(waiting={OLD: Waiting(1, frozenset(P[:1]))})), "rebalancing"),
        (GroupState("g", {}, {}, AssignmentDocument(owners={OLD: frozenset(P)})), "empty"),
        (GroupState("g", {}, {}, None), "empty"),
        # the function has failed, or the leader has not run it yet: nothing tells how many partitions there are
        (group(AssignmentDocument(problem="it raised"), old=frozenset(), new=frozenset()), "unknown"),
        (group(AssignmentDocument(), old=frozenset(), new=frozenset()), "unknown"),
        (GroupState("g", MEMBERS, {}, None), "unknown"),
    ],
)
def test_the_state_of_a_group_is_one_word(state: GroupState, phase: str) -> None:
    assert GroupReport(state).phase == phase


def test_offsets_that_the_log_does_not_have_are_problems() -> None:
    report = GroupReport(
        GroupState("g", {}, {}, None, ("znode x is not readable",)),
        Logs(committed(p0=5, p1=50), {P[0]: 9, P[1]: 0}, {P[0]: 20, P[1]: 40}, ("t:2 has no leader",)),
    )
    assert report.problems == [
        "znode x is not readable",
        "t:2 has no leader",
        "t:0: offset 5 is committed, but the log begins at 9: 4 records were deleted unread",
        "t:1: offset 50 is committed, but the log ends at 40; the topic may have been deleted and created again",
    ]
    assert report.logs.lag(P[1]) == 0


# -- resets ------------------------------------------------------------------------------------------------------

LOGS = Logs(committed(p0=5), {P[0]: 2, P[1]: 3}, {P[0]: 10, P[1]: 20})


def test_a_target_is_a_word_a_time_or_an_offset() -> None:
    for same in ("earliest", "latest", "timestamp:1700000000000", "shift:-2"):
        assert parse_target(same) == same
    assert parse_target("17") == 17
    assert parse_target("2023-11-14T22:13:20Z") == "timestamp:1700000000000"
    assert parse_target("timestamp:2023-11-15T00:13:20+02:00") == "timestamp:1700000000000"
    for wrong in (
        "oldest",
        "timestamp:soon",
        "-1",
        "1.5",
        "",
        "2023-13-14T22:13:20Z",
        "1969-12-31T00:00Z",
        "shift:1.5",
    ):
        with pytest.raises(ConfigError, match="is not shift:-100, earliest, latest"):
            parse_target(wrong)
    with pytest.raises(ConfigError, match="has no time zone; add Z"):
        parse_target("2023-11-14T22:13:20")


@pytest.mark.parametrize(("target", "after"), [("shift:-2", 3), ("shift:+4", 9), ("shift:99", 10), ("shift:-99", 2)])
def test_a_shift_stays_within_the_log_and_leaves_out_what_has_no_offset(target: str, after: int) -> None:
    assert ResetPlan.make("g", target, LOGS, {}).after == {P[0]: after}


def test_partitions_that_the_allocator_function_omits_are_named_and_delay_nothing() -> None:
    held = {OLD: frozenset(P[:2]), NEW: frozenset(P[2:3])}
    document = AssignmentDocument(generation=7, strategy="shop:by_region", owners=held, left_out=frozenset(P[3:]))
    report = GroupReport(group(document), subscribed=P)
    assert report.unowned == report.left_out == P[3:]
    assert report.phase == "stable", "no rebalance assigns it"
    assert report.problems == ["1 partitions have no owner, because allocator function shop:by_region omits them: t:3"]
    assert GroupReport(group(document)).partitions == P, "known without Kafka too"
    assert report.to_json()["left_out"] == [{"topic": "t", "partition": 3}]
