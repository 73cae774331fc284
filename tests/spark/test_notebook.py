"""Groups and reports in a notebook. Pure, without Spark."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

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


def group() -> Any:
    partitions = [TopicPartition("t", number) for number in range(30)]
    infos = {MEMBER: MemberInfo(EVIL, "host", frozenset({"t"}))}
    state = GroupState("g", infos, {MEMBER: Claim(1, frozenset(partitions))}, AssignmentDocument(generation=1))
    committed = {p: OffsetAndMetadata(0, "", -1) for p in partitions}
    ends = {p: 100 + p.partition for p in partitions}
    return GroupReport(state, Logs(committed, dict.fromkeys(partitions, 0), ends), partitions)


def skew() -> Any:
    found = PartitionSkew("t", 0, 10, 100, 20, 0, 0, 5, 0, 9, None, None, 0, 0)
    return SkewReport("kafka", (found,), (HotKey("t", EVIL.encode(), 9, 90, 0),), {}, {"t": 4}, None, 1.0)


def audit() -> Any:
    sides, counts = (Side(EVIL, ()), Side("right", ())), {("missing", "t", 0, ""): 3}
    samples, begun = (Difference("missing", "t", 0, 5, None, None),), datetime(2026, 1, 1, tzinfo=timezone.utc)
    return Report(*sides, "offset", (), counts, samples, ("a note",), begun, 1.0)


def plan() -> Any:
    members = (PlannedMember("m1", EVIL, None, (4, 2), (None, 10)), PlannedMember("m2", "b", "joins", (0, 2), (0, 0)))
    moves, names = (PlannedMove(TP, "m1", "m2"),), {"m1": EVIL, "m2": "b"}
    return GroupPlan("g", "sticky", moves, members, (), Budget(), names)


def generation() -> Any:
    unused: Any = None
    return Generation(7, EVIL, "m1", {"t": (PartitionStart(3, 17),)}, unused, lambda: True)


def view() -> Any:
    record = Record("t", 0, 5, 1000, 0, EVIL.encode(), b"v", [])
    return View(ReadResult("t", [record], [], 1, "time", False), [seen(record, Decoder(), {})])


@pytest.mark.parametrize(
    ("made", "texts"),
    [
        (group, ["&lt;script&gt;", "t:29", "and 10 more"]),  # the partitions with the largest lag
        (skew, ["<td>t:0</td>"]),
        (audit, ["different: 3 missing", "t:0 offset 5", "a note"]),
        (plan, ["partitions that would move: 1", "<td>t:0</td>"]),
        (generation, ["generation 7", '<td style="text-align: right">17</td>']),
        (view, ["until the limit of time"]),
        (
            lambda: GroupView((Member("m1", EVIL, frozenset({"t"}), rack="a"),), {"t": 4}, {"m1": frozenset({TP})}),
            ['<td style="text-align: right">4</td>'],
        ),
    ],
)
async def test_a_notebook_shows_its_figures_and_no_text_as_html(made: Any, texts: list[str]) -> None:
    shown = str(made()._repr_html_())
    assert EVIL not in shown
    for text in texts:
        assert text in shown
