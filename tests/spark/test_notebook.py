"""What a notebook shows of groups and reports: pure, no Spark."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from allocator.compat.generation import Generation, PartitionStart
from allocator.core.assignors.types import GroupView, Member
from allocator.core.commands.steering import Budget
from allocator.core.znodes.documents import AssignmentDocument, Claim, MemberInfo
from allocator.handlers.schemas.decode import Decoder
from allocator.operate.group_report import GroupReport, GroupState, Logs
from allocator.operate.what_if import GroupPlan, PlannedMember, PlannedMove
from allocator.spark.audit.report import Difference, Report, Side
from allocator.spark.skew.report import HotKey, PartitionSkew, SkewReport
from allocator.types import OffsetAndMetadata, Record, TopicPartition
from allocator.viewer.read import ReadResult
from allocator.viewer.viewer import View, seen

EVIL = "<script>alert(1)</script>"
TP = TopicPartition("t", 0)
MEMBER = "m-0000000000000001-0000000001"


def html(shown: Any) -> str:
    """What a notebook shows."""
    return str(shown._repr_html_())


def test_a_group_is_its_members_and_the_partitions_with_the_largest_lag() -> None:
    partitions = [TopicPartition("t", number) for number in range(30)]
    infos = {MEMBER: MemberInfo(EVIL, "host", frozenset({"t"}))}
    state = GroupState("g", infos, {MEMBER: Claim(1, frozenset(partitions))}, AssignmentDocument(generation=1))
    committed = {p: OffsetAndMetadata(0, "", -1) for p in partitions}
    ends = {p: 100 + p.partition for p in partitions}
    shown = html(GroupReport(state, Logs(committed, dict.fromkeys(partitions, 0), ends), partitions))
    assert EVIL not in shown
    assert "&lt;script&gt;" in shown
    assert shown.index("t:29") < shown.index("t:28")
    assert "t:3<" not in shown
    assert "and 10 more" in shown


def test_a_skew_report_is_its_topics_partitions_and_keys() -> None:
    found = PartitionSkew("t", 0, 10, 100, 20, 0, 0, 5, 0, 9, None, None, 0, 0)
    hot = HotKey("t", EVIL.encode(), 9, 90, 0)
    shown = html(SkewReport("kafka", (found,), (hot,), {}, {"t": 4}, None, 1.0))
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
    shown = html(report)
    assert EVIL not in shown
    assert "different: 3 missing" in shown
    assert "t:0 offset 5" in shown
    assert "a note" in shown


async def test_a_view_of_a_group_and_a_generation_are_their_partitions() -> None:
    view = GroupView((Member("m1", EVIL, frozenset({"t"}), rack="a"),), {"t": 4}, {"m1": frozenset({TP})})
    assert EVIL not in html(view)
    assert '<td style="text-align: right">4</td>' in html(view)
    unused: Any = None
    generation = Generation(7, EVIL, "m1", {"t": (PartitionStart(3, 17),)}, unused, lambda: True)
    shown = html(generation)
    assert EVIL not in shown
    assert "generation 7" in shown
    assert '<td>t</td><td style="text-align: right">3</td><td style="text-align: right">17</td>' in shown


def test_a_plan_is_its_cost_its_members_and_its_moves() -> None:
    members = (PlannedMember("m1", EVIL, None, (4, 2), (None, 10)), PlannedMember("m2", "b", "joins", (0, 2), (0, 0)))
    plan = GroupPlan("g", "sticky", (PlannedMove(TP, "m1", "m2"),), members, (), Budget(), {"m1": EVIL, "m2": "b"})
    shown = html(plan)
    assert EVIL not in shown
    assert "partitions that would move: 1" in shown
    assert "<td>t:0</td>" in shown


def test_records_are_a_table_with_their_masked_values() -> None:
    record = Record("t", 0, 5, 1000, 0, EVIL.encode(), b"v", [])
    view = View(ReadResult("t", [record], [], 1, "time", False), [seen(record, Decoder(), {})])
    assert EVIL not in html(view)
    assert "until the limit of time" in html(view)
