"""What outlives a tenure, what is done, and what is to be committed. Pure: no servers, no clients."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from allocator.core.subscription.commit_text import stamped, with_done
from allocator.core.subscription.done import DoneSet
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.progress import Hold, Progress
from allocator.core.subscription.state import SubscriptionState
from allocator.core.types import EARLIEST
from allocator.types import OffsetAndMetadata, TopicPartition

P = TopicPartition("t", 0)
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
OWN = "generation 1 member me"


class Member:
    """Owns one partition again and again."""

    def __init__(self) -> None:
        self.state = SubscriptionState(shuffle=None)
        self.state.members.add("me")

    def claim(self, committed: int | None, text: str = OWN) -> TopicPartitionState:
        self.state.claim({P: 1})
        tenure = self.state.assignment[P]
        if committed is not None:
            self.state.begin(P, OffsetAndMetadata(committed, text, -1))
        return tenure

    def start(self, committed: int, text: str = OWN) -> int:
        """Returns the position of a new tenure."""
        position = self.claim(committed, text).position
        assert position is not None
        return int(position.offset)

    def deliver(self, end: int, *, request_more: bool = True, confirms: bool = True) -> None:
        tenure = self.state.assignment[P]
        tenure.deliver(end, 0, self.state.reader, confirms=confirms)
        if request_more:
            self.state.reader.finish()

    def to_commit(self) -> int | None:
        point = self.state.assignment[P].to_commit()
        return None if point is None else point.offset

    def confirm(self, offset: int) -> None:
        tenure = self.state.assignment[P]
        tenure.note_committed(offset, None, moves=tenure.moves, at=0.0)


@pytest.fixture
def member() -> Member:
    return Member()


def recreate(member: Member) -> None:
    tenure = member.state.assignment[P]
    tenure.reset(EARLIEST)
    tenure.lose_log()
    tenure.complete_reset(OffsetAndMetadata(0, "", -1), None)


def sought_and_read(member: Member) -> None:
    member.state.seek(P, 2)
    member.deliver(5, confirms=False)


@pytest.mark.parametrize(
    ("why", "change", "committed", "text", "start"),
    [
        ("handled here", None, 10, OWN, 30),
        ("an older commit of this process overtook a later one", None, 20, OWN, 30),
        ("another member has committed since", None, 20, "generation 2 member you", 20),
        ("an operator has reset the offset", None, 5, "", 5),
        ("a commit of this process from before this tenure", None, 5, OWN, 5),
        ("committed beyond", None, 40, OWN, 40),
        ("the topic is another one", None, 10, stamped(OWN, NEW), 10),
        ("the topic was missing", lambda m: m.state.forget_logs(lambda topic: topic == "t"), 10, OWN, 10),
        ("the topic was created again while it was owned", recreate, 10, OWN, 10),
        ("sought forwards, and never committed", lambda m: m.state.seek(P, 25), 10, OWN, 10),
        ("sought backwards, and never committed", lambda m: m.state.seek(P, 2), 10, OWN, 10),
        ("sought backwards, and the response to its commit was lost", sought_and_read, 2, OWN, 2),
        ("delivered and not finished", lambda m: m.deliver(50, request_more=False), 10, OWN, 30),
        ("not confirmed by requests", lambda m: m.deliver(50, confirms=False), 10, OWN, 10),
    ],
)
def test_a_tenure_starts_beyond_the_committed_offset_only_with_proof(
    member: Member, why: str, change: Callable[[Member], object] | None, committed: int, text: str, start: int
) -> None:
    tenure = member.claim(10)
    tenure.topic_id = OLD
    member.deliver(30)
    if change is not None:
        change(member)
    member.state.lose()
    assert member.start(committed, text) == start, why


def test_records_that_are_finished_after_the_loss_prove_nothing(member: Member) -> None:
    """Their user may have noticed the loss, and left them out."""
    member.claim(10)
    member.deliver(20, request_more=False)
    member.state.lose()
    assert member.state.reader.outlived == {P}
    member.state.reader.finish()
    assert member.start(10) == 10
    assert member.state.reader.outlived == frozenset()


def test_if_nothing_is_held_everything_before_the_position_is_done(member: Member) -> None:
    tenure = member.claim(None)
    tenure.reset(EARLIEST)
    tenure.complete_reset(OffsetAndMetadata(7, "", -1), None)
    assert member.to_commit() == 7, "the start, although no record was delivered"
    member.confirm(7)
    assert member.to_commit() is None
    tenure.pass_by(9, 0)
    assert member.to_commit() == 9, "a marker"
    member.deliver(12, request_more=False)
    assert member.to_commit() == 9
    tenure.pass_by(13, 0)
    assert member.to_commit() == 9
    member.state.reader.finish()
    assert member.to_commit() == 13


def test_what_the_reader_gives_up_is_never_done(member: Member) -> None:
    member.claim(3)
    member.deliver(8, request_more=False)
    member.state.reader.abandon()
    assert not member.state.assignment[P].is_held
    assert member.to_commit() is None


def test_a_commit_goes_back_only_after_a_move_and_stays_until_a_commit_follows_it(member: Member) -> None:
    tenure = member.claim(10)
    member.confirm(50)  # the user's
    member.deliver(20)
    assert member.to_commit() is None
    moves = tenure.moves
    member.state.seek(P, 5)
    tenure.note_committed(50, None, moves=moves, at=0.0)  # the response to an earlier commit
    assert member.to_commit() == 5
    member.confirm(5)
    assert member.to_commit() is None


@pytest.mark.parametrize("another", [False, True])
def test_records_from_before_a_truncation_stay_held_and_those_of_another_log_do_not_count(
    member: Member, another: bool
) -> None:
    tenure = member.claim(0)
    member.deliver(30)
    member.confirm(30)
    member.deliver(60, request_more=False)
    if another:
        recreate(member)
        assert member.to_commit() == 0
    else:
        tenure.cut_to(OffsetAndMetadata(40, "", 0))
        assert member.to_commit() == 30, "it is handled, and not done"
    assert tenure.is_held
    member.state.reader.finish()
    assert member.to_commit() == (0 if another else 40)


class Stopped(Hold):
    """A worker that has handled its records up to an offset."""

    busy = False

    def __init__(self, tenure: Progress, end: int, beyond: DoneSet | None = None) -> None:
        super().__init__(tenure)
        self._done = end, beyond
        tenure.add(self)

    def done(self, *, delivered: bool = False) -> tuple[int, DoneSet | None]:
        return self._done


def test_what_a_processor_held_while_a_reset_was_awaited_holds_back_no_later_commit(member: Member) -> None:
    tenure = member.claim(0)
    Stopped(tenure, 10)
    tenure.pass_by(20, 0)
    tenure.reset(EARLIEST)
    tenure.hand_back()
    tenure.complete_reset(OffsetAndMetadata(40, "", -1), None)
    member.deliver(50)
    assert member.to_commit() == 50


def test_holds_that_a_seek_has_replaced_are_dropped(member: Member) -> None:
    tenure = member.claim(0)
    for offset in range(100):
        Stopped(tenure, offset)
        member.state.seek(P, offset)
    assert len(tenure.holds) <= 2


def test_done_records_beyond_the_offset_stay_known_when_a_reader_goes_on(member: Member) -> None:
    tenure = member.claim(5, stamped(OWN, OLD))
    Stopped(tenure, 10, DoneSet(10, ((12, 15), (20, 25)), 0))
    tenure.pass_by(30, 0)
    tenure.hand_back()
    member.deliver(12)
    assert tenure.take_beyond(13) == DoneSet(13, ((14, 15), (20, 25)), 0)
    assert tenure.take_beyond(13) is None


COMMITTED_DONE = DoneSet(5, ((6, 100),), 0, mark=7)


@pytest.mark.parametrize("passed", ["marker", "reset", "reader"])
@pytest.mark.parametrize(
    ("committed_id", "present_id", "is_done"),
    [(None, None, False), (None, NEW, False), (OLD, OLD, True)],
    ids=["before Kafka 2.8", "committed before an upgrade to 2.8", "same topic"],
)
def test_records_beyond_a_passed_offset_stay_done_only_if_a_topic_id_proves_that_the_log_is_the_same(
    member: Member, passed: str, committed_id: uuid.UUID | None, present_id: uuid.UUID | None, is_done: bool
) -> None:
    """In another topic of that name, the offset may hold a marker or an aborted record."""
    tenure = member.claim(5, stamped(with_done(OWN, COMMITTED_DONE.encoded(1000)[0]), committed_id))
    tenure.topic_id = present_id
    assert tenure.done() == (5, COMMITTED_DONE)
    if passed == "marker":
        tenure.pass_by(6, 0)
    elif passed == "reader":
        member.deliver(6)
    else:
        tenure.reset(EARLIEST)
        tenure.complete_reset(OffsetAndMetadata(6, "", -1), 0)
    left = DoneSet(6, ((7, 100),), 0) if is_done else None
    point = tenure.to_commit()
    assert point is not None
    assert (point.offset, point.done) == (6, left), "the next member relies on the commit"
    assert tenure.take_beyond(6) == left


def test_records_beyond_the_committed_offset_stay_known_without_a_topic_id(member: Member) -> None:
    """The record at the offset tells whether the log is the same."""
    tenure = member.claim(5, with_done(OWN, COMMITTED_DONE.encoded(1000)[0]))
    assert tenure.take_beyond(5) == COMMITTED_DONE


def test_a_later_tenure_is_held_by_work_of_an_earlier_one(member: Member) -> None:
    class Work(Hold):
        busy = True

    tenure = member.claim(0)
    work = Work(tenure)
    tenure.add(work)
    member.state.lose()
    assert work.has_outlived
    again = member.claim(0)
    assert again.is_held
    assert again.done() == (0, None), "but its records do not count"
    work.busy = False
    assert not again.is_held


def test_done_records_beyond_the_offset_go_on_to_the_next_tenure(member: Member) -> None:
    beyond = DoneSet(10, ((12, 15),), 0)

    class Worker(Hold):
        busy = False

        def done(self, *, delivered: bool = False) -> tuple[int, DoneSet]:
            return 10, beyond

    tenure = member.claim(5)
    tenure.add(Worker(tenure))
    tenure.pass_by(20, 0)
    point = tenure.to_commit()
    assert point is not None
    assert (point.offset, point.done) == (10, beyond)
    member.state.lose()
    assert member.start(5) == 10
    assert member.state.assignment[P].beyond == beyond
