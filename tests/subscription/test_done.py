"""Done records beyond a committed offset: stored in its metadata, read back, or rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.core.subscription.commit_text import as_committed, as_read, done_of, stamped, topic_of, with_done
from allocator.core.subscription.done import DoneSet, joined
from allocator.core.subscription.loss import as_written
from allocator.types import OffsetAndMetadata

STAMP = "generation 7 member m-0123456789abcdef-0000000003"
TOPIC = "5485844e-5edd-4919-bab6-04574d0e6f4c"


def done_set(base: int, offsets: set[int], epoch: int = -1, mark: int = 0) -> DoneSet | None:
    runs: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] == offset:
            runs[-1] = runs[-1][0], offset + 1
        else:
            runs.append((offset, offset + 1))
    return DoneSet(base, tuple(runs), epoch, mark) if runs else None


sets = st.builds(
    lambda base, ahead, epoch, mark: done_set(base, {base + each for each in ahead}, epoch, mark),
    st.integers(0, 2**62),
    st.sets(st.one_of(st.integers(1, 60), st.integers(1, 10**6)), min_size=1),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**32 - 1),
)


@given(sets, st.sampled_from(["", TOPIC]))
def test_a_commit_stores_done_records_and_hides_them_from_the_user(done: DoneSet, topic: str) -> None:
    text, whole = done.encoded(10**7)
    metadata = stamped(with_done(STAMP, text), topic or None)
    assert whole
    assert done_of(metadata, done.base) == done
    assert topic_of(metadata) is None or str(topic_of(metadata)) == topic
    written = as_written(OffsetAndMetadata(done.base, metadata, -1))
    assert written.metadata == ""
    assert written.done == done
    assert written.member == STAMP.partition(" member ")[2]


@given(sets, st.integers(30, 400))
def test_done_records_that_do_not_fit_are_omitted_from_the_end(done: DoneSet, limit: int) -> None:
    text, whole = done.encoded(limit)
    assert len(text) <= limit
    found = DoneSet.decoded(text, done.base)
    assert whole == (found == done)
    if found is not None:
        assert found.runs == done.runs[: len(found.runs)]


@given(sets, st.data())
def test_a_damaged_text_is_rejected(done: DoneSet, data: st.DataObject) -> None:
    text, _ = done.encoded(10**7)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("AZaz09-_".replace(text[at], "")))
    found = DoneSet.decoded(text[:at] + other + text[at + 1 :], done.base)
    assert found is None or found == done  # the last character may have unused bits


def test_a_set_for_another_offset_is_rejected() -> None:
    """A tool that resets offsets, or copies them to another cluster, may copy the metadata too."""
    done = DoneSet(10, ((12, 20),))
    metadata = with_done(STAMP, done.encoded(100)[0])
    assert done_of(metadata, 10) == done
    assert done_of(metadata, 9) is None
    assert done_of(f"mine {metadata}", 10) is None


def test_a_record_of_a_later_leader_epoch_was_not_done() -> None:
    done = DoneSet(10, ((12, 20),), epoch=4)
    assert done.has(12, 4)
    assert done.has(19, 3)
    assert done.has(12, None)
    assert not done.has(12, 5)
    assert not done.has(20, 4)
    assert not done.has(11, 4)


@given(st.integers(0, 50), st.sets(st.integers(1, 60), min_size=1), st.sets(st.integers(1, 60), min_size=1))
def test_joined_sets_contain_the_records_of_both(base: int, one: set[int], other: set[int]) -> None:
    one, other = {base + each for each in one}, {base + each for each in other}
    both = joined(done_set(base, one), done_set(base, other))
    assert both is not None
    assert {offset for first, end in both.runs for offset in range(first, end)} == one | other


def test_sets_of_different_logs_are_not_joined() -> None:
    one = DoneSet(5, ((7, 8),), mark=1)
    assert joined(one, DoneSet(5, ((9, 10),), mark=2)) == one
    assert joined(one, DoneSet(6, ((9, 10),), mark=1)) == one
    assert joined(one, None) == joined(None, one) == one


@pytest.mark.parametrize("topic", ["", TOPIC])
def test_records_done_on_one_cluster_do_not_count_on_another(topic: str) -> None:
    """A mirror that copies the metadata of commits has the same records, perhaps at other offsets."""
    done = DoneSet(10, ((12, 20),), mark=3)
    metadata = stamped(with_done(STAMP, done.encoded(100)[0]), topic or None)
    sent = as_committed(metadata, "here")
    assert done_of(as_read(sent, "here"), 10) == done
    assert as_read(sent, "here") == metadata
    assert as_read(sent, "elsewhere") == STAMP
    assert as_read(as_committed(metadata, None), None) == metadata  # brokers before 0.10.1 have no id
    assert as_committed("a user has done it", "here") == as_read("a user has done it@there", "here")[:18]
