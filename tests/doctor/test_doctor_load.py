"""Members that do not follow load although others do."""

from __future__ import annotations

from allocator.core.znodes.documents import MemberInfo
from allocator.operate.doctor.members import _load_not_followed
from allocator.operate.group_report import GroupState

NEW, OLD = (f"m-{letter * 16}-{number:010}" for number, letter in enumerate("ab"))


def group(strategies: tuple[str, ...], tolerance: float | None) -> GroupState:
    follows = MemberInfo("new", "h", strategies=("load-records", "naive"), load_tolerance=1.1)
    other = MemberInfo("old", "h", strategies=strategies, load_tolerance=tolerance)
    return GroupState("g", {NEW: follows, OLD: other}, {}, None)


def test_a_member_that_is_too_old_to_report_its_load_is_named() -> None:
    (finding,) = _load_not_followed(group(("naive",), None))
    assert finding.id == "load-not-followed"
    assert finding.where == (group((), None).name_of(OLD),)
    (other_unit,) = _load_not_followed(group(("load-reported", "naive"), 1.1))
    assert other_unit.where == finding.where


def test_nothing_is_found_if_all_follow_or_none_does() -> None:
    assert not [*_load_not_followed(group(("load-records", "naive"), 1.5))]
    assert not [*_load_not_followed(GroupState("g", {OLD: group(("naive",), None).members[OLD]}, {}, None))]
