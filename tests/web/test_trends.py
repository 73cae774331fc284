"""Findings of repeated polls: some at once, trends only after a while."""

from __future__ import annotations

from allocator.operate.doctor import Observation
from allocator.operate.group_report import GroupReport, GroupState, Logs
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument, Claim, MemberInfo
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.watch import DoctorTrends

P = TopicPartition("t", 0)
MEMBER = "m-0000000000000001-0000000001"


def seen(at_s: float, committed: int, end: int, *, owned: bool = True, left_out: bool = False) -> Observation:
    held = frozenset({P} if owned else ())
    info = MemberInfo("alone", "host", frozenset({"t"}))
    document = AssignmentDocument(generation=1, revision=1, strategy="naive", owners={MEMBER: held})
    if left_out:
        document = document.but(strategy="shop:by_region", left_out=frozenset({P}))
    state = GroupState("g", {MEMBER: info}, {MEMBER: Claim(1, held, 1)}, document)
    logs = Logs({P: OffsetAndMetadata(committed, "", -1)}, {P: 0}, {P: end})
    return Observation("g", 1000 * at_s, 1000 * at_s, report=GroupReport(state, logs, [P]))


def ids(trends: DoctorTrends, poll: Observation) -> set[str]:
    return {finding.id for finding in trends.judge(poll, "/allocator")}


def test_seconds_without_a_commit_are_no_alarm_and_minutes_are() -> None:
    trends = DoctorTrends()
    assert ids(trends, seen(0, 100, 150)) == set()
    assert ids(trends, seen(4, 100, 170)) == set()
    assert ids(trends, seen(34, 100, 300)) == set()
    assert ids(trends, seen(94, 100, 600)) == {"no-progress"}
    assert ids(trends, seen(100, 590, 600)) == set(), "it is over with the next commit"


def test_lag_that_goes_up_and_down_is_no_trend() -> None:
    trends = DoctorTrends()
    ids(trends, seen(0, 1000, 1010))
    assert ids(trends, seen(120, 3000, 3060)) == set(), "50 more of 2000 that were written"
    assert ids(trends, seen(240, 4000, 6000)) == {"lag-grows"}


def test_frequent_polls_do_not_shorten_the_trend() -> None:
    trends = DoctorTrends()
    for at_s in range(0, 600, 3):
        # ten records a second, and a commit every 5 s: which is healthy
        assert ids(trends, seen(at_s, 10 * (at_s - at_s % 5), 10 * at_s)) == set(), at_s


def test_a_partition_without_an_owner_is_reported_at_the_second_poll() -> None:
    trends = DoctorTrends()
    ids(trends, seen(0, 5, 5))
    ids(trends, seen(2, 5, 5, owned=False))
    found = trends.judge(seen(4, 5, 5, owned=False), "/allocator")
    assert [finding.id for finding in found] == ["unowned-partitions"]


def test_a_partition_that_the_function_omits_is_reported_with_the_function() -> None:
    trends = DoctorTrends()
    for at_s in (0, 2, 4):
        (found,) = trends.judge(seen(at_s, 5, 5, owned=False, left_out=True), "/allocator")
        assert (found.id, found.where) == ("left-out-partitions", ("t:0",))
        assert "allocator function shop:by_region" in found.what
