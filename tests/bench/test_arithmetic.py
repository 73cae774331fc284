"""The arithmetic of the rebalance bench; nothing here is timed."""

from __future__ import annotations

import pytest

from bench.rebalance.__main__ import options_of
from bench.rebalance.arithmetic import Outcome, balanced, measure, owners_at, quietest, ratio, summarize
from bench.rebalance.journal import Journal
from bench.rebalance.load import Load
from bench.rebalance.peers import PEERS, members_of
from bench.rebalance.report import Case, as_json, headings, markdown, rows
from bench.rebalance.settings import Settings

# b leaves at 10; a takes 2 and 3 one after the other, and had to stop 0 in between
JOURNALS = {
    "a": [
        (1.0, "own", (0, 1)),
        (1.5, "got", (0,)),
        (10.1, "drop", (0,)),
        (10.2, "own", (0, 2)),
        (10.3, "got", (0,)),
        (10.4, "got", (2,)),
        (10.5, "own", (3,)),
        (11.0, "got", (3,)),
        (11.5, "got", (2,)),
    ],
    "b": [(1.0, "own", (2, 3)), (10.0, "drop", (2, 3))],
}


def test_owners_follow_from_who_took_and_gave_up_what() -> None:
    assert owners_at(JOURNALS, 0.5) == {}
    assert owners_at(JOURNALS, 9.9) == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert owners_at(JOURNALS, 10.15) == {1: "a"}
    assert owners_at(JOURNALS, 12.0) == dict.fromkeys(range(4), "a")


def test_a_killed_member_owns_its_partitions_until_somebody_takes_them() -> None:
    journals = {"dead": [(1.0, "own", (0, 1))], "heir": [(9.0, "own", (1,)), (9.1, "got", (1,))]}
    assert owners_at(journals, 10.0) == {0: "dead", 1: "heir"}


def test_the_event_ends_with_the_first_record_of_the_last_partition_that_moved() -> None:
    outcome = measure(JOURNALS, 9.95, 12.0)
    assert outcome.last_s == pytest.approx(1.05)
    assert outcome.median_s == pytest.approx((0.45 + 1.05) / 2)
    assert (outcome.moved, outcome.stopped) == (2, 1)


def test_a_partition_that_moved_and_was_never_read_is_no_result() -> None:
    with pytest.raises(ValueError, match="1 partitions moved and were not read, 3"):
        measure(JOURNALS, 9.95, 10.9)


def test_records_read_before_the_event_or_by_the_old_owner_do_not_count() -> None:
    journals = {
        "old": [(1.0, "own", (0,)), (2.0, "drop", (0,)), (5.1, "got", (0,))],
        "new": [(0.1, "own", (0,)), (0.2, "got", (0,)), (0.3, "drop", (0,)), (5.2, "own", (0,)), (5.9, "got", (0,))],
    }
    assert measure(journals, 5.0, 6.0).last_s == pytest.approx(0.9)


def test_shares_are_even_when_they_differ_by_one_at_most() -> None:
    assert balanced([4, 3, 3], 10)
    assert balanced([2, 2], 4)
    assert balanced([1, 0], 1)
    assert not balanced([5, 3, 2], 10)
    assert not balanced([4, 3], 10)
    assert not balanced([], 0)


def test_medians_and_ratios() -> None:
    ours = summarize([Outcome(0.1, 0.05, 8, 0), Outcome(0.3, 0.06, 8, 0), Outcome(0.2, 0.07, 9, 0)])
    theirs = summarize([Outcome(2.0, 1.0, 8, 4)])
    assert (ours.runs, ours.last_s, ours.fastest_s, ours.slowest_s, ours.moved) == (3, 0.2, 0.1, 0.3, 8)
    assert ratio(theirs, ours) == pytest.approx(10.0)


def test_what_others_disturbed_is_left_out_whatever_came_of_it() -> None:
    outcomes = [Outcome(0.1, 0.1, 8, 0, foreign=0.5), Outcome(0.9, 0.9, 8, 0, foreign=0.1), Outcome(0.2, 0.2, 8, 0)]
    assert [outcome.last_s for outcome in quietest(outcomes, 0.2, 1)] == [0.2, 0.9]
    assert [outcome.last_s for outcome in quietest(outcomes, 0.0, 2)] == [0.2, 0.9]
    assert len(quietest(outcomes, 1.0, 1)) == 3


def test_the_load_of_others_is_a_share_of_the_machine() -> None:
    load = Load(lambda: ())
    load.sample()
    load.sample()
    assert 0.0 <= load.share(0.0, float("inf")) <= 1.0
    assert Load(lambda: ()).share(0.0, 1.0) == 0.0


def test_reports_have_a_line_for_each_peer_and_event() -> None:
    ours, theirs = (summarize([Outcome(seconds, seconds, 8, 0)]) for seconds in (0.1, 0.5))
    case = Case(3, 24, {"leave": {"ours": ours, "aiokafka": theirs}}, {"kazoo": "gave up"})
    assert [row[3:5] + row[-1:] for row in rows([case])] == [
        ["ours", "100", ""],
        ["aiokafka", "500", "5.0"],
    ]
    assert all(line.count("|") == len(headings([case])) + 1 for line in markdown([case]).splitlines())
    found = as_json([case], {"repeat": 1})["cases"][0]
    assert found["events"]["leave"]["aiokafka"]["last_s"] == 0.5
    assert found["failures"] == {"kazoo": "gave up"}


def test_a_journal_knows_what_is_owned() -> None:
    journal = Journal()
    journal.own(range(3))
    journal.got(1)
    journal.drop([1])
    assert journal.owned == {0, 2}
    assert [kind for _, kind, _ in journal.entries] == ["own", "got", "drop"]


def test_every_peer_can_be_made() -> None:
    for peer in PEERS:
        members_of(peer, Settings("127.0.0.1:1", "127.0.0.1:1", "g", 4)).close()


def test_a_group_of_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_of(["--members", "1"])
    assert "at least 2 members" in capsys.readouterr().err
