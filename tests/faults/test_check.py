"""The checker finds planted violations, and nothing in a correct history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.faults.check import Verdict, check, repeated_in, standstill
from bench.faults.history import Fault, History, add
from bench.faults.journal import Journal

Events = Sequence[Mapping[str, Any]]


def own(at: float, *partitions: int, what: str = "own") -> dict[str, Any]:
    return {"what": what, "at": at, "partitions": list(partitions)}


def did(offset: int, begin: float, end: float, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"what": "did", "partition": partition, "offset": offset, "from": begin, "at": end, **more}


def commit(at: float, offset: int, partition: int = 0, what: str = "commit") -> dict[str, Any]:
    return {"what": what, "at": at, "offsets": {str(partition): offset}}


def history(
    members: Mapping[str, Events], end: int, died: Mapping[str, float] | None = None, final: int | None = None
) -> History:
    made = History(ends={0: end}, final={0: end if final is None else final})
    for member, events in members.items():
        add(made, member, events, (died or {}).get(member))
    return made


HANDED_OVER: dict[str, Events] = {
    "a": [own(0, 0), did(0, 1, 2), did(1, 2, 3), commit(3.5, 2), own(4, 0, what="revoked")],
    "b": [own(5, 0), did(2, 6, 7), commit(8, 3)],
}


def broken(verdict: Verdict) -> set[str]:
    owners = ("overlaps", "together", "dropped", "strays")
    names = ("lost", *owners, "beyond", "disorder", "unclean", "regressions", "unfinished")
    return {name for name in names if getattr(verdict, name)}


def test_a_sound_history_holds() -> None:
    verdict = check(history(HANDED_OVER, 3))
    assert verdict.holds
    assert (verdict.produced, verdict.processed, verdict.duplicates, verdict.allowed) == (3, 3, 0, 0)


def by_key(*second: Mapping[str, Any], done: Sequence[Sequence[int]] = ((1, 2),)) -> History:
    """a does records 1 and 3 of four, whose keys are 0, 1, 0 and 1, commits and dies; b has the rest."""
    events = {
        "a": [
            own(0, 0),
            did(1, 1, 2, key="1"),
            {**commit(3, 0), "done": {"0": done}},
            did(3, 4, 5, key="1"),
        ],
        "b": [own(10, 0), *second, commit(20, 4)],
    }
    return history(events, 4, died={"a": 6})


REST = (did(0, 11, 12, key="0"), did(2, 13, 14, key="0"))


def test_what_a_commit_named_as_done_beyond_its_offset_may_not_be_done_again() -> None:
    again = did(3, 14, 15, key="1")  # after the commit, so it may be repeated
    assert check(by_key(*REST, again)).holds
    assert check(by_key(*REST, again)).duplicates == 1
    assert broken(check(by_key(did(1, 10, 11, key="1"), *REST, again))) == {"beyond"}
    assert check(by_key(did(1, 10, 11, key="1"), *REST, again, done=())).holds


def test_records_of_a_key_out_of_order_or_at_once_are_found() -> None:
    assert broken(check(by_key(did(2, 11, 12, key="0"), did(0, 13, 14, key="0")))) == {"disorder"}
    assert broken(check(by_key(did(0, 11, 13, key="0"), did(2, 12, 14, key="0")))) == {"disorder"}


def test_nothing_proves_nothing() -> None:
    assert not check(History()).holds


def test_a_lost_record_is_found() -> None:
    without = {"a": [event for event in HANDED_OVER["a"] if event.get("offset") != 1], "b": HANDED_OVER["b"]}
    verdict = check(history(without, 3))
    assert verdict.lost == [(0, 1)]
    assert broken(verdict) == {"lost"}


def test_a_partition_that_nobody_touched_is_lost() -> None:
    made = history(HANDED_OVER, 3)
    made.ends = {0: 3, 1: 2}
    made.final = {0: 3, 1: 2}
    assert check(made).lost == [(1, 0), (1, 1)]


def test_two_at_work_at_one_instant_are_found() -> None:
    late = {"a": HANDED_OVER["a"], "b": [own(2, 0), did(2, 2.5, 7), commit(8, 3)]}
    verdict = check(history(late, 3))
    assert [(x.member, y.member) for x, y in verdict.overlaps] == [("a", "b")]
    assert broken(verdict) == {"overlaps"}


def test_two_owners_are_found_though_they_never_worked_at_one_instant() -> None:
    turns = {
        "a": [own(0, 0), did(0, 1, 2), did(2, 5, 6), commit(7, 3)],
        "b": [own(2, 0), did(1, 3, 4), commit(4.5, 2), own(4.6, 0, what="revoked")],
    }
    assert broken(check(history(turns, 3))) == {"overlaps"}


def test_two_owners_are_found_though_one_did_nothing_where_losses_are_told_in_time() -> None:
    idle: dict[str, Events] = {
        "a": [own(0, 0), did(0, 1, 2), did(1, 5, 6), did(2, 6, 7), commit(8, 3)],
        "b": [own(3, 0), own(4, 0, what="revoked")],
    }
    verdict = check(history(idle, 3), told=True)
    assert [(x.member, y.member) for x, y in verdict.together] == [("a", "b")]
    assert broken(verdict) == {"together"}
    assert "1.0 s" in str(verdict)
    assert check(history(idle, 3)).holds


def test_a_lost_turn_is_found_where_members_are_told_in_time() -> None:
    lost = {"a": [*HANDED_OVER["a"][:-1], own(4, 0, what="lost")], "b": HANDED_OVER["b"]}
    assert broken(check(history(lost, 3), told=True)) == {"dropped"}
    assert check(history(lost, 3)).holds
    assert check(history(HANDED_OVER, 3), told=True).holds


def test_a_member_may_have_a_partition_twice_and_another_in_between() -> None:
    turns = {
        "a": [
            *(own(0, 0), did(0, 1, 2), commit(2.5, 1), own(3, 0, what="revoked")),
            *(own(9, 0), did(2, 10, 11), commit(12, 3)),
        ],
        "b": [own(4, 0), did(1, 5, 6), commit(7, 2), own(8, 0, what="revoked")],
    }
    assert check(history(turns, 3)).holds


def test_a_record_processed_after_the_partition_was_given_up_is_found() -> None:
    verdict = check(history({"a": [*HANDED_OVER["a"], did(1, 4.1, 4.2)], "b": HANDED_OVER["b"]}, 3))
    assert "strays" in broken(verdict)


def test_what_a_killed_member_had_not_committed_may_come_again_but_no_more() -> None:
    killed: dict[str, Events] = {
        "a": [own(0, 0), did(0, 1, 2), commit(2.5, 1), did(1, 3, 4), did(2, 4, 5)],
        "b": [own(8, 0), did(1, 9, 10), did(2, 10, 11), commit(12, 3)],
    }
    verdict = check(history(killed, 3, died={"a": 6}))
    assert verdict.holds
    assert (verdict.duplicates, verdict.allowed) == (2, 2)
    killed["b"] = [own(8, 0), did(0, 8.5, 8.6), *killed["b"][1:]]
    verdict = check(history(killed, 3, died={"a": 6}))
    assert verdict.beyond == [(0, 0)]
    assert broken(verdict) == {"beyond"}


def test_one_death_explains_one_repetition() -> None:
    killed: dict[str, Events] = {
        "a": [own(0, 0), did(0, 1, 2)],
        "b": [own(4, 0), did(0, 5, 6), did(0, 6, 7), commit(12, 1)],
    }
    assert broken(check(history(killed, 1, died={"a": 3}))) == {"beyond"}


def test_an_orderly_end_leaves_nothing_uncommitted() -> None:
    lazy: dict[str, Events] = {
        "a": [own(0, 0), did(0, 1, 2), own(3, 0, what="revoked")],
        "b": [own(4, 0), did(0, 5, 6), commit(7, 1)],
    }
    assert broken(check(history(lazy, 1))) == {"unclean"}
    lazy["a"] = [own(0, 0), did(0, 1, 2), commit(2.5, 1, what="refused"), own(3, 0, what="revoked")]
    assert check(history(lazy, 1)).holds, "its commit was refused"


def test_an_offset_that_is_set_back_is_found() -> None:
    late = {"a": [*HANDED_OVER["a"], commit(9, 2)], "b": HANDED_OVER["b"]}
    verdict = check(history(late, 3))
    assert [(r.before.offset, r.after.offset) for r in verdict.regressions] == [(3, 2)]
    assert broken(verdict) == {"regressions"}


def test_a_commit_that_was_under_way_at_a_death_explains_itself() -> None:
    late: dict[str, Events] = {
        "a": [own(0, 0), did(0, 1, 2), own(5, 0, what="lost"), commit(9, 1)],
        "b": [own(6, 0), did(0, 6.1, 6.2), did(1, 6.3, 7), commit(8, 2)],
    }
    assert check(history(late, 2)).holds
    late["a"] = [*late["a"][:-1], commit(9, 0)]
    assert broken(check(history(late, 2))) == {"regressions"}


def test_an_offset_short_of_the_end_is_found() -> None:
    assert broken(check(history(HANDED_OVER, 3, final=2))) == {"unfinished"}


steps = st.lists(st.sampled_from(["work", "commit", "give up", "die", "lose"]), max_size=60)


@given(steps)
def test_whatever_one_owner_after_another_does_from_the_committed_offset_on_holds(chosen: list[str]) -> None:
    made = sequential(chosen)
    verdict = check(made)
    assert broken(verdict) <= {"unfinished"}
    assert verdict.duplicates <= verdict.allowed


@given(steps, st.data())
def test_a_record_taken_out_of_any_history_is_missed(chosen: list[str], data: st.DataObject) -> None:
    made = sequential([*chosen, "work"])
    offset = data.draw(st.sampled_from(sorted({each.offset for each in made.did})))
    for turn in made.turns:
        turn.did = [each for each in turn.did if each.offset != offset]
    assert check(made).lost == [(0, offset)]


def sequential(chosen: Sequence[str]) -> History:
    """Members one after another, each beginning at the committed offset; the last one ends in order."""
    journals: dict[str, list[dict[str, Any]]] = {}
    died: dict[str, float] = {}
    number, at, position, committed, end = 0, 0.0, 0, 0, 0
    journal = journals["m0"] = [own(at, 0)]
    for step in [*chosen, "give up"]:
        at += 1
        name = f"m{number}"
        if step == "work":
            journal.append(did(position, at, at + 0.5))
            position += 1
            end = max(end, position)
            continue
        if step in ("commit", "give up") and position > committed:
            journal.append(commit(at, position))
            committed = position
        if step == "commit":
            continue
        if step == "die":
            died[name] = at + 0.1
        else:
            journal.append(own(at + 0.1, 0, what="revoked" if step == "give up" else "lost"))
        number, position = number + 1, committed
        journal = journals[f"m{number}"] = [own(at + 0.2, 0)]
    made = History(ends={0: end}, final={0: committed})
    for name, events in journals.items():
        add(made, name, events, died.get(name))
    return made


def test_how_long_the_partition_that_waited_longest_stood_still() -> None:
    made = history(HANDED_OVER, 3)
    fault = Fault("kill -9", "a", 2.5, 2.5)
    assert standstill(made, fault, 8.0) == pytest.approx(4.0)  # from 3 to 7
    assert standstill(made, fault, 30.0) == pytest.approx(23.0)


def test_duplicates_belong_to_the_time_in_which_they_came() -> None:
    made = history({"a": [own(0, 0), did(0, 1, 2)], "b": [own(4, 0), did(0, 5, 6), commit(7, 1)]}, 1, died={"a": 3})
    assert (repeated_in(made, 0, 5), repeated_in(made, 5, 9)) == (0, 1)


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    import json

    path = tmp_path / "m.jsonl"
    journal = Journal(str(path))
    journal.turn("own", [0])
    journal.did(0, 0, 1.0)
    journal.commit({0: 1})
    journal.turn("revoked", [0])
    made = History(ends={0: 1}, final={0: 1})
    add(made, "m", [json.loads(line) for line in path.read_text().splitlines()])
    assert check(made).holds
    assert made.commits[0].offset == 1
