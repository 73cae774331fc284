"""The checker finds planted violations, and nothing in a correct history."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.faults.check import Verdict, check
from bench.faults.history import History, add
from bench.faults.journal import Journal

EVENT = re.compile(r"(own|revoked|lost|did|commit|refused)(\d*)([a-z]?)@([\d.]+)(?:-([\d.]+))?")


def journal(text: str) -> list[dict[str, Any]]:
    """Reads "own@0 did7@1-2 commit8@3 revoked@4": partition 0, record 7 from 1 to 2, offset 8 committed at 3.

    "did7k@1-2" is a record with the key k.
    """
    events: list[dict[str, Any]] = []
    for what, number, key, begin, end in map(re.Match.groups, EVENT.finditer(text)):
        event: dict[str, Any] = {"what": what, "at": float(end or begin)}
        if what == "did":
            event |= {"partition": 0, "offset": int(number), "from": float(begin), **({"key": key} if key else {})}
        elif what in ("commit", "refused"):
            event |= {"offsets": {"0": int(number)}}
        else:
            event |= {"partitions": [0]}
        events.append(event)
    return events


def history(end: int, died: Mapping[str, float] | None = None, final: int | None = None, **members: Any) -> History:
    """The history of members by name; each is a text for `journal`, or events."""
    found = History(ends={0: end}, final={0: end if final is None else final})
    for name, events in members.items():
        add(found, name, journal(events) if isinstance(events, str) else events, (died or {}).get(name))
    return found


def broken(verdict: Verdict) -> set[str]:
    owners = ("overlaps", "together", "dropped", "strays")
    names = ("lost", *owners, "beyond", "disorder", "unclean", "regressions", "unfinished")
    return {name for name in names if getattr(verdict, name)}


A, B = "own@0 did0@1-2 did1@2-3 commit2@3.5 revoked@4", "own@5 did2@6-7 commit3@8"
# a has not committed records 1 and 2 when it dies at 6
KILLED, DIED = "own@0 did0@1-2 commit1@2.5 did1@3-4 did2@4-5", {"a": 6.0}
# a commits after it has lost the partition, which b owns since 6
LOST, LATE = "own@0 did0@1-2 lost@5", "own@6 did0@6.1-6.2 did1@6.3-7 commit2@8"
LAZY, NEXT = "own@0 did0@1-2 revoked@3", "own@4 did0@5-6 commit1@7"
CASES: dict[str, tuple[History, set[str]]] = {
    "a correct history": (history(3, a=A, b=B), set()),
    "a record that nobody processed": (history(3, a=A.replace("did1@2-3 ", ""), b=B), {"lost"}),
    "two that process at one instant": (history(3, a=A, b="own@2 did2@2.5-7 commit3@8"), {"overlaps"}),
    "two owners that process alternately": (
        history(3, a="own@0 did0@1-2 did2@5-6 commit3@7", b="own@2 did1@3-4 commit2@4.5 revoked@4.6"),
        {"overlaps"},
    ),
    "an owner before and after another": (
        history(
            *(3, None, None),
            a="own@0 did0@1-2 commit1@2.5 revoked@3 own@9 did2@10-11 commit3@12",
            b="own@4 did1@5-6 commit2@7 revoked@8",
        ),
        set(),
    ),
    "a record that was processed after the partition was revoked": (
        history(3, a=f"{A} did1@4.1-4.2", b=B),
        {"strays", "beyond"},
    ),
    "records that were uncommitted at a death": (
        history(3, DIED, a=KILLED, b="own@8 did1@9-10 did2@10-11 commit3@12"),
        set(),
    ),
    "a record that was committed before a death": (
        history(3, DIED, a=KILLED, b="own@8 did0@8.5-8.6 did1@9-10 did2@10-11 commit3@12"),
        {"beyond"},
    ),
    "two repetitions after one death": (
        history(1, {"a": 3.0}, a="own@0 did0@1-2", b="own@4 did0@5-6 did0@6-7 commit1@12"),
        {"beyond"},
    ),
    "uncommitted records at an orderly end": (history(1, a=LAZY, b=NEXT), {"unclean"}),
    "a refused commit before it": (history(1, a=LAZY.replace("revoked", "refused1@2.5 revoked"), b=NEXT), set()),
    "an offset that is set back": (history(3, a=f"{A} commit2@9", b=B), {"regressions"}),
    "a commit that was in flight at a loss": (history(2, a=f"{LOST} commit1@9", b=LATE), set()),
    "a commit below what was in flight": (history(2, a=f"{LOST} commit0@9", b=LATE), {"regressions"}),
    "an offset before the end": (history(3, None, 2, a=A, b=B), {"unfinished"}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_violation_is_found_and_a_correct_history_has_none(case: str) -> None:
    found, violations = CASES[case]
    verdict = check(found)
    assert broken(verdict) == violations
    assert verdict.holds == (not violations)


def test_an_empty_history_and_an_untouched_partition_do_not_hold() -> None:
    assert not check(History()).holds
    untouched = history(3, a=A, b=B)
    untouched.ends = untouched.final = {0: 3, 1: 2}
    assert check(untouched).lost == [(1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("a", "b", "violations"),
    [
        (A, B, set()),
        ("own@0 did0@1-2 did1@5-6 did2@6-7 commit3@8", "own@3 revoked@4", {"together"}),
        (A.replace("revoked", "lost"), B, {"dropped"}),
    ],
)
def test_idle_owners_and_lost_tenures_are_violations_if_members_learn_of_losses_in_time(
    a: str, b: str, violations: set[str]
) -> None:
    assert broken(check(history(3, a=a, b=b), notified=True)) == violations
    assert check(history(3, a=a, b=b)).holds


@pytest.mark.parametrize(
    ("done", "second", "violations"),
    [
        # record 1 is committed beyond the offset; record 3 follows that commit, so it may be repeated
        ([(1, 2)], "did0x@11-12 did2x@13-14 did3y@14-15", set()),
        ([(1, 2)], "did1y@10-11 did0x@11-12 did2x@13-14", {"beyond"}),
        ([], "did1y@10-11 did0x@11-12 did2x@13-14", set()),
        ([(1, 2)], "did2x@11-12 did0x@13-14", {"disorder"}),
        ([(1, 2)], "did0x@11-13 did2x@12-14", {"disorder"}),
    ],
)
def test_records_beyond_the_committed_offset_are_done_once_and_each_key_in_order(
    done: Any, second: str, violations: set[str]
) -> None:
    """a processes records 1 and 3 of four, whose keys are x, y, x and y, and dies; b has the rest."""
    first = journal("own@0 did1y@1-2 commit0@3 did3y@4-5")
    first[2]["done"] = {"0": done}
    assert broken(check(history(4, DIED, a=first, b=f"own@10 {second} commit4@20"))) == violations


steps = st.lists(st.sampled_from(["work", "commit", "revoke", "die", "lose"]), max_size=60)


@given(steps)
def test_owners_that_follow_each_other_from_the_committed_offset_hold(chosen: list[str]) -> None:
    verdict = check(sequential(chosen))
    assert broken(verdict) <= {"unfinished"}
    assert verdict.duplicates <= verdict.allowed


@given(steps, st.data())
def test_a_record_that_is_removed_from_any_history_is_lost(chosen: list[str], data: st.DataObject) -> None:
    found = sequential([*chosen, "work"])
    offset = data.draw(st.sampled_from(sorted({each.offset for each in found.did})))
    for tenure in found.tenures:
        tenure.did = [each for each in tenure.did if each.offset != offset]
    assert check(found).lost == [(0, offset)]


def sequential(chosen: Sequence[str]) -> History:
    """Members one after another, each from the committed offset; the last one leaves in order."""
    journals, died = {"m0": "own@0"}, {}
    at, position, committed, end = 0.0, 0, 0, 0
    for step in [*chosen, "revoke"]:
        at += 1
        name = f"m{len(journals) - 1}"
        if step == "work":
            journals[name] += f" did{position}@{at}-{at + 0.5}"
            position += 1
            end = max(end, position)
            continue
        if step in ("commit", "revoke") and position > committed:
            journals[name] += f" commit{position}@{at}"
            committed = position
        if step == "commit":
            continue
        if step == "die":
            died[name] = at + 0.1
        else:
            journals[name] += f" {'revoked' if step == 'revoke' else 'lost'}@{at + 0.1:.1f}"
        journals[f"m{len(journals)}"] = f"own@{at + 0.2:.1f}"
        position = committed
    return history(end, died, committed, **journals)


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    written = Journal(str(path))
    written.ownership("own", [0])
    written.did(0, 0, 1.0)
    written.commit({0: 1})
    written.ownership("revoked", [0])
    read = history(1, m=[json.loads(line) for line in path.read_text().splitlines()])
    assert check(read).holds
    assert read.commits[0].offset == 1
