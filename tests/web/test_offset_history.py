"""The age of lag, from earlier offsets. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from allocator.operate.group_report import Logs
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.offset_history import Age, OffsetHistory

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


def logs(committed: int | None, end: int | None) -> Logs:
    offsets = {} if committed is None else {P: OffsetAndMetadata(committed, "", -1)}
    return Logs(offsets, {P: 0}, {} if end is None else {P: end})


def polled(*steps: tuple[float, int | None, int | None]) -> OffsetHistory:
    history = OffsetHistory()
    for at, committed, end in steps:
        history.add(logs(committed, end), at)
    return history


def test_the_age_of_lag_is_the_time_since_the_log_end_passed_the_committed_offset() -> None:
    history = polled((100, 0, 0), (110, 0, 100), (120, 0, 200), (130, 150, 300))
    assert history.age(P, logs(150, 300)) == Age(15.0), "record 150 was written at 115"
    assert history.age(P, logs(300, 300)) == Age(0.0)
    assert history.age(P, logs(250, 300)) == Age(5.0)


def test_an_age_before_the_first_poll_is_unknown_with_a_lower_bound() -> None:
    history = polled((100, 10, 50), (130, 10, 60))
    assert history.age(P, logs(10, 60)) == Age(None, 30.0)
    assert history.age(Q, logs(10, 60)) == Age(None)


def test_a_topic_that_is_created_again_has_no_older_lag() -> None:
    history = polled((100, 0, 10), (110, 10, 1000), (120, 0, 5), (140, 0, 50))
    assert history.age(P, logs(0, 50)) == Age(None, 20.0)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=300), st.data())
def test_thinning_keeps_ages_within_a_sixth(written: list[int], data: st.DataObject) -> None:
    history, end, ends = OffsetHistory(), 0, []
    for number, count in enumerate(written):
        end += count
        ends.append(end)
        history.add(logs(0, end), 10.0 * number)
    committed = data.draw(st.integers(0, end))
    found = history.age(P, logs(committed, end))
    now = 10.0 * (len(written) - 1)
    if found.s is None:
        assert committed < ends[0]
    elif committed < end:
        # the record was written between the last poll without it and the first one with it
        first = next(number for number, each in enumerate(ends) if each > committed)
        earliest, latest = 10.0 * (first - 1), 10.0 * first
        slack = 10.0 + 2 * (now - earliest) / 6
        assert now - latest - slack <= found.s <= now - earliest + slack
