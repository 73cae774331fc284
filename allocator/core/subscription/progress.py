"""How far one tenure of a partition is: its position, what is held, what is done and what is committed. Pure.

The rule from which the rest follows: if nothing is held, everything before the position is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, Optional

from allocator.core.errors import IllegalState
from allocator.core.subscription.commit_text import done_of, topic_of
from allocator.core.subscription.done import DoneSet, joined
from allocator.core.subscription.loss import Committed, Listed, topic_of_offset
from allocator.core.subscription.tenures import Phase, Tenure
from allocator.core.types import OffsetAndMetadata, Partitions, TopicPartition

Done = tuple[Optional[int], Optional[DoneSet]]
"""The lowest offset that is not done (None: nothing is held), and the done records beyond it (None: none)."""


class Hold:
    """Delivered records of one partition that someone works on: the reader, or the calls of a handler.

    A hold may outlive its tenure. A release of the partition waits until it is not busy, also in a later tenure.
    """

    busy: bool = True
    """Whether someone works on the records."""
    full = False
    """True while it takes no more records."""
    of_former_log = False
    """True once the records belong to another log: the topic was created again."""
    void = False
    """True once a seek or another log has replaced the records: finishing them marks no offset as done."""

    def __init__(self, tenure: Progress) -> None:
        self.tenure = tenure
        self.refused: set[Any] = set()
        """The records on which their user was told not to act, so that they are not done by this delivery. A record
        that came through a retry topic has its whole place, another one its offset."""

    def answer(self, record: Any, may_act: bool) -> bool:
        """Returns whether the user may act on a record or batch; None: on that of the handler's call in whose context
        the code runs. Notes that it is refused if not, unless it is done, or belongs to another hold."""
        called = self._unit_of_call()
        unit = called if record is None else record
        if unit is None or (may_act and not self.refused):
            return may_act
        place: Any = _first_of(unit)
        if unit is not called and (unit.topic, unit.partition) != self.tenure.partition:
            place = unit.topic, unit.partition, place
            if called is not None and self.has(called, place):
                place = called.offset
        end = _end_of(unit) if isinstance(place, int) else place
        first = self._held_from(place, end, called)
        if first is None:
            return may_act
        if isinstance(place, int):
            told = [each for each in list(self.refused) if isinstance(each, int)]
            may_act, place = may_act and not any(first <= each < end for each in told), max(place, first)
        else:
            may_act = may_act and place not in self.refused
        if not may_act:
            self.refused.add(place)
        return may_act

    def _held_from(self, place: Any, end: Any, called: Any) -> Any:
        """Returns the place from which on a False holds for what ends at `end`; None if nobody works on that.
        `called`: what the call here is for."""
        return None

    def _unit_of_call(self) -> Any:
        call = _call_here.get()
        return call.unit if call is not None and call.hold is self else None

    def has(self, unit: Any, place: Any) -> bool:
        """Returns whether a delivered record or batch has the record at this place."""
        return isinstance(place, int) and _first_of(unit) <= place < _end_of(unit)

    def end_before(self, offset: int) -> None:
        """Called when the bytes at `offset` do not decode, so that nothing from there on is delivered."""

    def left_out(self) -> list[int]:
        """Returns the offsets among the refused places, without those of records that are done."""
        held = self.done()[0] if self.refused and self.busy else None
        return [each for each in list(self.refused) if isinstance(each, int) and held is not None and each >= held]

    @property
    def has_outlived(self) -> bool:
        """Whether another member may own the partition by now: the tenure in which the records were delivered has
        ended."""
        return self.tenure.phase is Phase.ENDED

    def done(self, *, delivered: bool = False) -> Done:
        """Returns which of the records are done. `delivered`: those that wait only for the commit count as done."""
        return None, None

    def is_of(self, record: Any) -> bool:
        """Returns whether `record`, which may be a batch, is one of these records."""
        return (record.topic, record.partition) == self.tenure.partition and record.fence == self.tenure.fence

    def drain(self) -> None:
        """Called when the partition is being released: what has begun may end, and nothing else begins."""

    def stop(self) -> None:
        """Called when a seek has replaced the records, or when the tenure has ended: nothing else begins."""

    def conclude(self) -> None:
        """Called when the log was truncated or replaced: the hold still handles its records, and gets no others."""

    def pause_changed(self) -> None:
        """Called when the user or an operator has paused or resumed the partition."""

    async def abandon(self) -> None:
        """Called when the partition is lost: cuts off what has begun, and waits a limited time for it."""

    def enter(self) -> Call:
        """Makes this the hold of the code that runs in this context, until `leave`."""
        call = Call(self)
        call.token = _call_here.set(call)
        return call

    @staticmethod
    def leave(call: Call) -> None:
        call.hold = None  # also for tasks that the call has started
        if call.token is not None:
            _call_here.reset(call.token)

    @staticmethod
    def of_this_context() -> Hold | None:
        """Returns the hold of the handler call in whose context the code runs; None outside of such calls."""
        call = _call_here.get()
        return None if call is None else call.hold


class Call:
    """A turn of handler calls for the records of one hold."""

    __slots__ = ("hold", "token", "unit")

    def __init__(self, hold: Hold) -> None:
        self.hold: Hold | None = hold
        self.unit: Any = None
        """The record or batch of the current call, as it was delivered."""
        self.token: Token[Optional[Call]] | None = None


_call_here: ContextVar[Optional[Call]] = ContextVar("allocator_call_here", default=None)


def _first_of(unit: Any) -> int:
    """Returns the offset of a record, or of the first one of a batch."""
    first: int = unit.base_offset if hasattr(unit, "base_offset") else unit.offset
    return first


def _end_of(unit: Any) -> int:
    """Returns the offset after a record or batch."""
    end: int = unit.next_offset if hasattr(unit, "next_offset") else unit.offset + 1
    return end


class Proof(NamedTuple):
    """What this process handled in a tenure that has ended: each record from `first` up to `end`, and `done` beyond."""

    first: int
    end: int
    done: Optional[DoneSet]
    topic_id: Any


class Progress(Tenure):
    """How far a tenure is.

    `to_commit` goes back only after a seek, or when the log was replaced or truncated. A commit that was chosen before
    such a move never hides it: the move stays to be committed until a commit that was chosen after it is confirmed.
    """

    __slots__ = (
        "_beyond_without_id",
        "_leader_epochs",
        "_position",
        "_unconfirmed",
        "beyond",
        "committed",
        "committed_at",
        "handled_from",
        "holds",
        "is_sought",
        "moves",
        "proof",
        "replaced",
        "stored",
        "topic_id",
    )

    def __init__(self, partition: TopicPartition, fence: int | None = None) -> None:
        super().__init__(partition, fence)
        self._position: OffsetAndMetadata | None = None
        # (first position, last position, leader epoch of the records before them) since the last seek
        self._leader_epochs: list[tuple[int, int, int]] = []
        self.topic_id: Any = None
        """The id of the position's topic, or of the last one while a reset finds another; None if it is not known
        yet."""
        self.holds: list[Hold] = []
        self.beyond: DoneSet | None = None
        """Records beyond the position that are done already; for the first hold of a handler."""
        # whether `beyond` came without a topic id: then the present id does not prove that the log is the same
        self._beyond_without_id = False
        self.committed: tuple[int, DoneSet | None] | None = None
        """What the coordinator has confirmed last, by a fetch or a commit; None if nothing is committed."""
        self.committed_at: float | None = None
        """When this tenure last committed, on the clock of the commits; None if it has not."""
        self.replaced = 0
        """The number of times that something else replaced what was read: another log, the cut of this one, or a commit
        of a former owner. An offset that was chosen before is committed no more."""
        self.moves = 0
        """Number of moves of the position that a commit has to follow, even backwards."""
        self.is_sought = False
        """Whether a commit has to follow a move of the position, even backwards."""
        self.handled_from: int | None = None
        """Every record from this offset on that is done was handled by this process."""
        self._unconfirmed = False
        self.proof: Proof | None = None
        """What this process has handled, once the tenure has ended; None if that proves nothing."""
        self.stored: Callable[[], int | None] = lambda: None
        """Returns the offset after what this owner has stored in a sink; None: there is no sink."""

    # -- position

    @property
    def position(self) -> OffsetAndMetadata | None:
        """The offset of the next record to deliver; None if it is not known yet."""
        return self._position

    def deliver(
        self, offset: int, leader_epoch: int, reader: ReaderHolds | None = None, *, confirms: bool = True
    ) -> None:
        """Moves the position past delivered records, and notes that the reader works on them; None: a handler does.

        `leader_epoch` is that of the last record. `confirms`: whether a later request for records confirms that these
        are handled. Otherwise only a commit does.
        """
        assert self._position is not None
        first = self._position.offset
        self._unconfirmed = self._unconfirmed or not confirms
        self.pass_by(offset, leader_epoch)
        if reader is not None:
            reader.add(self, first)

    def pass_by(self, offset: int, leader_epoch: int) -> None:
        """Moves the position past offsets that have no record to deliver: markers, aborted or compacted records."""
        self._place(OffsetAndMetadata(offset, "", leader_epoch))

    def end_before(self, offset: int, leader_epoch: int) -> None:
        """Moves the position back to delivered bytes that do not decode. The records before them stay held."""
        self._leader_epochs = [
            (first, min(last, offset), epoch) for first, last, epoch in self._leader_epochs if first <= offset
        ]
        self._place(OffsetAndMetadata(offset, "", leader_epoch))
        for hold in self.holds:
            hold.end_before(offset)

    def leader_epoch(self, offset: int) -> int:
        """Returns the leader epoch of the record before `offset`; -1 if it was not delivered since the last seek."""
        for first, last, epoch in reversed(self._leader_epochs):
            if first <= offset <= last:
                return epoch
        return -1

    def begin(self, committed: OffsetAndMetadata, former: Progress | None, *, own: bool) -> OffsetAndMetadata:
        """Returns the start of this tenure: the committed offset, or what this process has handled beyond it.

        `former`: the last tenure of the partition in this process. `own`: this process has committed the offset, so no
        other owner or operator has moved it since. If `former` went further, its last commit has failed, or an older
        commit overtook it.
        """
        found = done_of(committed.metadata, committed.offset)
        self.committed = committed.offset, found
        self.handled_from = committed.offset
        start, self.beyond = committed, found
        proof = former.proof if former is not None and own else None
        if proof is not None and proof.topic_id is not None:
            topic = topic_of(committed.metadata)
            proof = None if topic is not None and topic != proof.topic_id else proof
        if proof is not None and proof.first <= committed.offset <= proof.end:
            if proof.end > committed.offset:
                start, self.beyond = _position(proof.end, proof.topic_id), proof.done
            else:
                # an earlier commit may name further done records beyond the same offset
                self.beyond = joined(proof.done, found)
        self._beyond_without_id = topic_of_offset(start) is None
        return start

    def seek(self, position: OffsetAndMetadata) -> None:
        """Sets the position, whatever was delivered or done before."""
        self._replace_holds()
        self._move_to(position)
        self.beyond = position.done if isinstance(position, Committed) else None
        self._beyond_without_id = topic_of_offset(position) is None

    def restart(self, committed: OffsetAndMetadata) -> None:
        """Continues at the committed offset, which is not the one that this tenure knew. An earlier seek is over."""
        self._replace_holds()
        self.begin(committed, None, own=False)
        self.moves += 1
        self.replaced += 1
        self.is_sought = False

    def reset_to(self, position: OffsetAndMetadata, *, before: int | None) -> None:
        """Sets the position that a reset has found. `before`: the position that the log did not have.

        Delivered records stay held, except those of another log (`lose_log`).
        """
        if before is not None and position.offset < before:
            self.cut_to(position)
        else:
            self._set(position, self.topic_id)
            self.handled_from = position.offset
            self.beyond = self._beyond_at(position.offset)

    def cut_to(self, position: OffsetAndMetadata) -> None:
        """Sets the position back to where the log was truncated, or to the start of another log. Delivered records stay
        held."""
        self.replaced += 1
        for hold in self.holds:
            hold.conclude()
        self._move_to(position, self.topic_id)

    def lose_log(self) -> None:
        """Called when the log is another one: the topic was created again. Nothing of the former log counts."""
        for hold in self.holds:
            hold.void = hold.of_former_log = True
            hold.conclude()
        self.moves += 1
        self.replaced += 1
        self.is_sought = True
        self.committed = self.beyond = self.handled_from = None

    def hand_back(self) -> None:
        """Continues at the first record that is not done: nobody works on the delivered records any more."""
        offset, self.beyond = (None, None) if self._position is None else self.done()
        for hold in self.holds:
            hold.void = True
        if self._position is not None and offset is not None and offset != self._position.offset:
            self._set(OffsetAndMetadata(offset, "", self.leader_epoch(offset)), self.topic_id)

    # -- what is done

    def add(self, hold: Hold) -> None:
        """Adds the hold of records that were just delivered."""
        if not self.holds:
            self.holds.append(hold)
            return
        self.holds = [each for each in self.holds if each.busy or not (each.void or each.done()[0] is None)]
        self.holds.append(hold)

    @property
    def is_held(self) -> bool:
        """Whether someone works on records of the partition, so that it must not be released."""
        return any(hold.busy for hold in self.holds)

    def done(self, *, delivered: bool = False) -> tuple[int, DoneSet | None]:
        """Returns the lowest offset that is not done, and the done records beyond it.

        With `delivered`, records that wait only for the commit count as done: the reader has them and was not told that
        it may not act, or their results are to be committed with them. The position must be known.
        """
        assert self._position is not None
        offset, beyond = int(self._position.offset), self.beyond
        for hold in self.holds:
            if not (hold.void or hold.tenure is not self):
                first, more = hold.done(delivered=delivered)
                if first is None or first <= offset:
                    beyond = beyond if isinstance(hold, ReaderHold) else more
                    offset = offset if first is None else first
        if beyond is None:
            return offset, None
        return offset, self._beyond_at(offset) if beyond is self.beyond else beyond.since(offset)

    def left_out(self) -> int | None:
        """Returns the lowest offset in hand on which its user was told not to act; None if there is none. May be called
        in any thread."""
        return min((place for hold in list(self.holds) for place in hold.left_out()), default=None)

    def take_beyond(self, start: int) -> DoneSet | None:
        """Returns the done records beyond `start`, for a hold that begins there and tracks them from now on."""
        beyond, self.beyond = self._beyond_at(start), None
        return beyond

    @property
    def can_commit(self) -> bool:
        """Whether the position tells what is done."""
        return self._position is not None

    def to_commit(self, *, delivered: bool = False) -> Committed | None:
        """Returns the offset to commit now; None if the committed offset is as far. `delivered`: see `done`."""
        if not self.can_commit:
            return None
        offset, beyond = self.done(delivered=delivered)
        if self.committed is not None and not self.is_sought:
            known, known_beyond = self.committed
            if offset < known or (offset == known and beyond == known_beyond):
                return None
        point = Committed(offset, "", self.leader_epoch(offset))
        point.done, point.topic_id = beyond, self.topic_id
        return point

    @property
    def is_uncommitted(self) -> bool:
        """Whether there is something to commit."""
        return self.to_commit() is not None

    def note_committed(self, offset: int, done: DoneSet | None, *, moves: int, at: float) -> None:
        """Called when the coordinator has confirmed a commit. `moves`: the number of moves when it was chosen."""
        self.committed, self.committed_at = (offset, done), at
        if moves == self.moves:
            self.is_sought = False

    # -- the end

    def drain(self) -> None:
        super().drain()
        for hold in self.holds:
            hold.drain()

    def end(self) -> None:
        """Ends the tenure. Records that are finished later prove nothing: their user may have noticed the loss."""
        if self._position is not None and self.handled_from is not None:
            offset, beyond = self.done()
            if self._unconfirmed:  # a commit from before a move proves nothing about the records after it
                offset, beyond = (-1, None) if self.is_sought else self.committed or (-1, None)
            if offset >= self.handled_from:
                self.proof = Proof(self.handled_from, offset, beyond, self.topic_id)
        super().end()
        for hold in self.holds:
            hold.stop()

    # -- inside

    def _beyond_at(self, offset: int) -> DoneSet | None:
        """Returns the part of `beyond` for a position at `offset`; None if it may belong to another log.

        Without a topic id, only the record at the base tells that the log is the same, and the position is past it. The
        log may have a marker or an aborted record there, because the topic was created again.
        """
        beyond = self.beyond
        if beyond is None or (offset != beyond.base and (self.topic_id is None or self._beyond_without_id)):
            return None
        return beyond.since(offset)

    def _replace_holds(self) -> None:
        for hold in self.holds:
            hold.void = True
            hold.stop()

    def _move_to(self, position: OffsetAndMetadata, topic_id: Any = None) -> None:
        self._set(position, topic_id)
        self.moves += 1
        self.is_sought = True
        self.handled_from = position.offset
        self.beyond = None

    def _set(self, position: OffsetAndMetadata, topic_id: Any = None) -> None:
        self._leader_epochs.clear()
        self._place(position)
        self.topic_id = topic_of_offset(position) if topic_id is None else topic_id

    def _unset(self) -> None:
        self._position = None
        self._leader_epochs.clear()

    def _place(self, position: OffsetAndMetadata) -> None:
        self._position = position
        # ListOffsets may return the leader's epoch, which can be newer than that of the record before the offset
        epoch = -1 if isinstance(position, Listed) else position.leader_epoch
        first = position.offset
        if self._leader_epochs and self._leader_epochs[-1][2] == epoch:
            first = self._leader_epochs.pop()[0]  # epochs only grow, so all records between have this epoch
        self._leader_epochs.append((first, position.offset, epoch))


def _position(offset: int, topic_id: Any) -> Committed:
    found = Committed(offset, "", -1)
    found.topic_id = topic_id
    return found


class ReaderHold(Hold):
    """The records of one partition that the reader got from a request. `first` is the offset of the first."""

    def __init__(self, tenure: Progress, first: int, reader: ReaderHolds) -> None:
        super().__init__(tenure)
        self._first: int | None = first
        self._reader = reader
        self._replaced = tenure.replaced

    @property
    def was_cut(self) -> bool:
        """Whether the log was cut since the records were delivered, so that some of them may be lost."""
        return self.tenure.replaced != self._replaced

    def done(self, *, delivered: bool = False) -> Done:
        return (min(self.refused, default=None) if delivered else self._first), None

    def stop(self) -> None:
        if self.has_outlived:
            self._reader.note_outlived(self)

    def _held_from(self, place: Any, end: Any, called: Any) -> Any:
        return None if self._first is None or end <= self._first else self._first

    def finish(self) -> None:
        self.busy = False
        if not self.has_outlived:
            if self.refused and not self.void:
                stored = self.tenure.stored()
                # a write that was refused has stored nothing of its unit, which may begin before the refused record
                self._first = min(self.refused) if stored is None else max(self._first or 0, stored)
                self.tenure.hand_back()
            self._first = None
            self.tenure.holds.remove(self)

    def confirm(self) -> None:
        """Marks all records as done, also those that the reader was told not to act on."""
        self.refused.clear()
        self.finish()

    def abandon_records(self) -> None:
        """Ends the work without the records being done."""
        self.busy = False


class ReaderHolds:
    """What the reader works on: the records that it got and not yet confirmed by a further request.

    `freed` is called when partitions may have become free to be released, and `began` when `reads` becomes True.
    """

    def __init__(self, freed: Callable[[], None], began: Callable[[], None] = lambda: None) -> None:
        self._freed, self._began = freed, began
        self._holds: list[ReaderHold] = []
        self._outlived: list[ReaderHold] = []
        self.reads = False
        """Whether the reader has got records since the start, or since a processor has ended."""
        self.in_transaction = False
        """Whether a transaction takes the records, so that no other call may confirm them."""

    def __bool__(self) -> bool:
        return bool(self._holds)

    @property
    def outlived(self) -> Partitions:
        """The partitions that were lost while the reader works on their records. Another member may handle these too,
        even if the partition has come back: it may have had another owner in between."""
        return frozenset(hold.tenure.partition for hold in self._outlived)

    @property
    def of_former_logs(self) -> Partitions:
        """The partitions of which the reader has records of a topic that was created again since."""
        return frozenset(hold.tenure.partition for hold in self._holds if hold.of_former_log)

    @property
    def tenures(self) -> frozenset[Progress]:
        """The tenures of which the reader has records, except those that were replaced by a seek."""
        return frozenset(hold.tenure for hold in self._holds if not hold.void)

    def refuse_all(self) -> None:
        """Called when the reader was told that it may not act on its records."""
        for hold in list(self._holds):  # a thread may ask
            if (first := hold.done()[0]) is not None:
                hold.refused.add(first)

    @property
    def refused(self) -> Partitions:
        """The partitions of which the reader was told not to act on some record in hand."""
        return frozenset(hold.tenure.partition for hold in list(self._holds) if hold.refused)

    def were_refused(self, tenure: Progress) -> bool:
        """Whether the reader was told not to act on some record of the tenure."""
        return any(hold.refused for hold in self._holds if hold.tenure is tenure)

    def were_cut(self, tenure: Progress) -> bool:
        """Whether the log of the tenure was cut since the reader got its records."""
        return any(hold.tenure is tenure and hold.was_cut for hold in self._holds)

    @property
    def was_moved(self) -> bool:
        """Whether the reader has only records that were replaced by a seek."""
        return bool(self._holds) and not self.tenures

    def note_outlived(self, hold: ReaderHold) -> None:
        if hold.busy:
            self._outlived.append(hold)

    def add(self, tenure: Progress, first: int) -> None:
        """Called when records from offset `first` on were delivered to the reader."""
        for each in tenure.holds:
            if isinstance(each, ReaderHold) and each.busy and not each.void and each.tenure is tenure:
                return  # the same request has delivered earlier records of the partition
        hold = ReaderHold(tenure, first, self)
        tenure.add(hold)
        self._holds.append(hold)
        if not self.reads:
            self.reads = True
            self._began()

    def finish(self, topic: str | None = None) -> None:
        """Marks the delivered records (of one topic, or of all) as done: the reader requested more. Raises IllegalState
        in a transaction."""
        if self.in_transaction:
            raise IllegalState(
                "a transaction has the records in hand; end its block before you request more records or commit them"
            )
        if topic is not None or self._outlived:
            self._end(ReaderHold.finish, lambda hold: topic in (None, hold.tenure.partition.topic))
        elif self._holds:  # for each record of `getone`
            ended, self._holds = self._holds, []
            for hold in ended:
                hold.finish()
            self._freed()

    def finish_up_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Marks the records before these offsets as done, if no records were delivered after them."""
        self._end(ReaderHold.confirm, lambda hold: _is_at(hold.tenure, offsets.get(hold.tenure.partition)))

    def finish_of(self, tenure: Progress) -> None:
        """Marks the delivered records of one tenure as done."""
        self._end(ReaderHold.confirm, lambda hold: hold.tenure is tenure)

    def abandon(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Called when the reader will not request more, or did not get the records. They do not become done."""
        self._end(ReaderHold.abandon_records, lambda hold: partitions is None or hold.tenure.partition in partitions)

    def _end(self, end: Callable[[ReaderHold], None], ends: Callable[[ReaderHold], bool]) -> None:
        left = []
        for hold in self._holds:
            if ends(hold):
                end(hold)
            else:
                left.append(hold)
        self._holds = left
        if self._outlived:
            self._outlived = [hold for hold in self._outlived if hold.busy]
        self._freed()


def _is_at(tenure: Progress, offset: int | None) -> bool:
    return offset is not None and tenure.position is not None and tenure.position.offset == offset
