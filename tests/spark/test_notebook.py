"""What a notebook shows of groups and reports: pure, no Spark."""

from __future__ import annotations

from datetime import datetime, timezone

from allocator.groups.describe import GroupReport, GroupState, Logs
from allocator.groups.zookeeper.znodes import AssignmentDocument, Claim, MemberInfo
from allocator.spark.audit.report import Difference, Report, Side
from allocator.spark.skew.report import HotKey, PartitionSkew, SkewReport
from allocator.types import OffsetAndMetadata, TopicPartition

EVIL = "<script>alert(1)</script>"
MEMBER = "m-0000000000000001-0000000001"


def test_a_group_is_its_members_and_the_partitions_with_the_largest_lag() -> None:
    partitions = [TopicPartition("t", number) for number in range(30)]
    infos = {MEMBER: MemberInfo(EVIL, "host", frozenset({"t"}))}
    state = GroupState("g", infos, {MEMBER: Claim(1, frozenset(partitions))}, AssignmentDocument(generation=1))
    committed = {p: OffsetAndMetadata(0, "", -1) for p in partitions}
    ends = {p: 100 + p.partition for p in partitions}
    shown = GroupReport(state, Logs(committed, dict.fromkeys(partitions, 0), ends), partitions)._repr_html_()
    assert EVIL not in shown
    assert "&lt;script&gt;" in shown
    assert shown.index("t:29") < shown.index("t:28")
    assert "t:3<" not in shown
    assert "and 10 more" in shown


def test_a_skew_report_is_its_topics_partitions_and_keys() -> None:
    found = PartitionSkew("t", 0, 10, 100, 20, 0, 0, 5, 0, 9, None, None, 0, 0)
    hot = HotKey("t", EVIL.encode(), 9, 90, 0)
    shown = SkewReport("kafka", (found,), (hot,), {}, {"t": 4}, None, 1.0)._repr_html_()
    assert "script>alert" not in shown.replace("&lt;script&gt;", "")
    assert "<td>t:0</td>" in shown


def test_an_audit_is_its_verdict_both_sides_and_samples() -> None:
    report = Report(
        Side(EVIL, ()),
        Side("right", ()),
        "offset",
        (),
        {("missing", "t", 0, ""): 3},
        (Difference("missing", "t", 0, 5, None, None),),
        ("a note",),
        datetime(2026, 1, 1, tzinfo=timezone.utc),
        1.0,
    )
    shown = report._repr_html_()
    assert EVIL not in shown
    assert "different: 3 missing" in shown
    assert "t:0 offset 5" in shown
    assert "a note" in shown
