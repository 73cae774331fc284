"""What a group may do with its records and offsets, whatever happens: the oracle of the machine in `progress_machine`.

It knows the content of the logs, and is told of each delivery, request, call of a handler, seek, commit and move. It
keeps, for each tenure, the positions at which the tenure may be. Several are possible while an operator's seek is not
reported yet, or after a reset to a moving end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from allocator.types import TopicPartition
from tests.consumer.fake_kafka import Log


class Broken(AssertionError):
    """A broken promise."""


class Stored(NamedTuple):
    """A committed offset, the log that it belongs to, and the member that committed it."""

    log: Log
    offset: int
    member: Any


class View:
    """One tenure: `may_be` are its possible positions, `ends` those that a reset to the end may find.

    `sought` has, for each seek of an operator without a result, its target and the possible positions after it.
    """

    def __init__(self, member: Any, log: Log, starts: set[int], ends: set[int]) -> None:
        self.member, self.log, self.may_be, self.ends = member, log, starts, ends
        self.former_ends: set[int] = set()
        """`ends` before a seek: a commit of one of them may be under way."""
        self.sought: dict[str, tuple[int, set[int]]] = {}
        self.newest = ""
        """The id of the newest seek of an operator with a result."""
        self.in_hand: list[int] = []
        """Offsets that were delivered since the last seek and whose successors nobody has requested."""
        self.replaced: set[int] = set()
        """Where a seek of an operator may have set the position after the records in hand were delivered."""
        self.handled: set[int] = set()
        self.unsure: set[int] = set()
        """Handled offsets that a seek of an operator may have asked for again since."""
        self.explicit = False
        """Whether the committed offset is one that the user has committed since the user's last seek."""
        self.known = False
        """Whether a position was seen."""
        self.stopped = False
        """Whether the topic was created again and the member stops until the user seeks."""

    @property
    def processed(self) -> bool:
        """Whether a processor reads, so that `may_be` is only where it started."""
        return self.member.processing is not None

    def positions(self) -> set[int]:
        return self.may_be.union(self.ends, *(positions for _, positions in self.sought.values()))


class Oracle:
    """`reset` is `auto_offset_reset`; `auto`: members commit automatically; `sink`: the offsets of the database."""

    def __init__(self, content: dict[TopicPartition, Log], reset: str, auto: bool, sink: Any) -> None:
        self.content, self.reset, self.auto, self.sink = content, reset, auto, sink
        self.views: dict[TopicPartition, View] = {}
        self.committed: dict[TopicPartition, Stored] = {}
        self.commands: dict[TopicPartition, dict[str, int]] = defaultdict(dict)
        self.returned: dict[Log, set[int]] = defaultdict(set)
        """Records that calls have returned or named in an error, and whose successors were requested."""
        self.excused: dict[Log, int] = defaultdict(int)
        """Records before this offset need no delivery: a seek or a reset passed them."""
        self.proof: dict[tuple[Any, Log], set[int]] = defaultdict(set)
        self.tried: dict[tuple[Any, Log], set[int]] = defaultdict(set)
        """Offsets that a user of this member has tried to commit."""
        self.tried_ends: dict[tuple[Any, Log], set[int]] = defaultdict(set)
        """Those that are ends which a reset may have found."""
        self.licences: dict[TopicPartition, list[int]] = defaultdict(list)
        """Offsets to which the committed offset may go back, once each."""
        self.poison_counts = True

    # -- tenures -------------------------------------------------------------------------------------------------

    def claims(self, member: Any, partition: TopicPartition) -> None:
        log, at = self.content[partition], self.committed.get(partition)
        base = None if at is None or at.log is not log else at.offset
        stored = None if self.sink is None else self.sink.offsets.get(partition)
        starts: set[int] = set()
        if stored is not None:
            base, starts = stored, {stored}
            self.licences[partition].append(stored)
        elif at is None or base is None or at.member is member:
            mine = (member, log)
            starts = {each for each in self.tried[mine] if base is None or each >= base}
            here = max(log.start, self.excused[log]) if base is None else base
            for handled_to in (here, *starts):
                while (found := log.next_visible(handled_to)) in self.proof[mine]:
                    handled_to = found + 1
                    starts.add(handled_to)
            starts |= set() if base is None else {base}
        else:
            starts = {base}
        ends = starts & self.tried_ends[member, log]
        view = self.views[partition] = View(member, log, starts - ends, ends)
        if base is None or not log.start <= base <= log.end:
            self._resets(view)
        # the committed offset names another topic, where the member stops until the user seeks
        view.stopped = self.reset == "none" and stored is None and at is not None and at.log is not log
        view.sought = {command: (target, _found(log, target)) for command, target in self.commands[partition].items()}

    def _resets(self, view: View) -> None:
        if self.reset == "earliest":
            view.may_be.add(view.log.start)
        elif self.reset == "latest":
            view.ends.add(view.log.end)

    def ends(self, partition: TopicPartition, *, clean: bool) -> None:
        view = self.views.pop(partition)
        if clean:
            self.check_committed(partition, view)

    def recreated(self, partition: TopicPartition, kept: bool, named: bool) -> None:
        """The log is another one. `kept`: the committed offset stays, and counts unless it `named` its log."""
        view, log, at = self.views.get(partition), self.content[partition], self.committed.get(partition)
        if not kept:
            self.committed.pop(partition, None)
        elif at is not None and not named:
            self.committed[partition] = Stored(log, at.offset, at.member)
            self.excused[log] = at.offset
            if at.offset > log.end or view is not None:  # an owner that notices it is reset
                self.licences[partition].append(0)
        if view is not None:
            view.log, view.may_be, view.ends, view.in_hand = log, set(), set(), []
            view.handled, view.known, view.stopped = set(), False, self.reset == "none"
            self._resets(view)

    def grew(self, partition: TopicPartition) -> None:
        view = self.views.get(partition)
        if view is not None and view.ends:
            view.ends.add(view.log.end)

    def shrank(self, partition: TopicPartition) -> None:
        view = self.views.get(partition)
        if view is not None:
            self._overtakes(view)
            view.sought = {
                command: (target, found | _found(view.log, target)) for command, (target, found) in view.sought.items()
            }

    def _overtakes(self, view: View) -> None:
        """The start of the log may have overtaken the position."""
        if self.reset == "latest" and any(at < view.log.start for at in view.positions()):
            view.ends.add(view.log.end)

    # -- positions -----------------------------------------------------------------------------------------------

    def seeks(self, partition: TopicPartition, offset: int) -> None:
        view = self.views[partition]
        view.former_ends |= view.ends
        view.may_be, view.ends, view.in_hand, view.known, view.stopped = {offset}, set(), [], True, False
        view.handled, view.replaced = {each for each in view.handled if each < offset}, set()
        view.explicit = False
        # the seek of an operator may come before or after this one
        view.sought = {
            command: (target, {*_found(view.log, target), offset}) for command, (target, _) in view.sought.items()
        }
        self._passes(partition, offset)

    def on_commands(self, command: str, partition: TopicPartition, offset: int) -> None:
        self.licences[partition].extend(self.commands[partition].values())  # they may still be carried out once more
        self.commands[partition] = {command: offset}
        self._passes(partition, offset)
        if partition in self.views:
            self.views[partition].sought[command] = offset, {offset}

    def reported(self, command: str, partition: TopicPartition, *, done: bool) -> None:
        self.commands[partition].pop(command, None)
        view = self.views.get(partition)
        if view is not None and command in view.sought:
            target, positions = view.sought.pop(command)
            if done and command > view.newest:  # the result of a seek that a later one replaced may come last
                view.former_ends |= view.ends
                view.may_be, view.ends, view.known, view.newest = positions, set(), True, command
                self._overtakes(view)
                view.unsure |= {each for each in view.handled if each >= target}
                # those before it are still in hand if a seek of the user came later
                view.replaced = positions | {each for each in view.in_hand if each < target}
                view.in_hand = [each for each in view.in_hand if each >= target]

    def _passes(self, partition: TopicPartition, offset: int) -> None:
        log = self.content[partition]
        self.excused[log] = max(self.excused[log], offset)
        self.licences[partition].append(offset)

    def at(self, member: Any, partition: TopicPartition, position: int) -> None:
        """The member says that it is at this position."""
        view = self.views.get(partition)
        if view is None or view.member is not member or view.stopped:
            return
        log, found = view.log, view.positions()
        if position not in found and log.next_visible(position) not in map(log.next_visible, found):
            raise Broken(f"{partition} is at {position}, and not at {sorted(found)}")
        view.known = True
        if view.ends and position not in view.may_be:
            view.may_be, view.ends = {position}, set()
            self.excused[log] = max(self.excused[log], position)
            self._overtakes(view)

    @staticmethod
    def _leads(log: Log, position: int, offset: int) -> bool:
        """Whether the next record after `position` may be that at `offset`: all records between are deleted."""
        return position <= offset and all(each < log.start for each in log.visible if position <= each < offset)

    def delivers(self, member: Any, partition: TopicPartition, offset: int, losses: Iterable[Any]) -> None:
        """A call returned this record, or named it in its error."""
        view = self.views.get(partition)
        if view is None or view.member is not member:
            raise Broken(f"{member} gets {partition}@{offset}, and does not own it")
        log = view.log
        before = [each for each in view.positions() if offset in log.visible and self._leads(log, each, offset)]
        if not before:
            raise Broken(f"{member} gets {partition}@{offset}, but is at {sorted(view.positions())}")
        if all(any(each <= skipped < offset for skipped in log.visible) for each in before) and not any(
            loss.partition == partition and loss.resumed_at <= offset for loss in losses
        ):
            raise Broken(f"{member} skips deleted records of {partition} before {offset}, and reports no loss")
        if view.ends and not view.may_be.intersection(before):
            self.excused[log] = max(self.excused[log], min(before))
        view.may_be = {offset + 1} if view.may_be.union(view.ends).intersection(before) else set()
        view.sought = {
            command: (target, {*_found(log, target), *({offset + 1} if found.intersection(before) else ())})
            for command, (target, found) in view.sought.items()
        }
        view.ends, view.known = set(), True
        self._overtakes(view)  # a record that was read before it was deleted
        view.in_hand.append(offset)

    def asks(self, member: Any, held: Iterable[tuple[Log, int]]) -> None:
        """The member's reader requests more, so the records that it held are done."""
        for log, offset in held:
            self.returned[log].add(offset)
        for view in self.views.values():
            if view.member is member:
                view.handled.update(view.in_hand)
                if view.replaced:  # an operator's seek came meanwhile: they may be from before it, and count no more
                    view.unsure.update(view.in_hand)
                if self.auto:
                    self.proof[member, view.log].update(view.in_hand)
                view.in_hand, view.replaced = [], set()

    # -- handlers ------------------------------------------------------------------------------------------------

    def calls(self, member: Any, partition: TopicPartition, offset: int) -> tuple[View, str]:
        """A call of a handler begins. Returns what `handled` has to know."""
        view = self.views.get(partition)
        if view is None or view.member is not member:
            raise Broken(f"{member} handles {partition}@{offset}, and does not own it")
        if offset not in view.log.visible or offset < min(view.positions(), default=0):
            raise Broken(f"{member} handles {partition}@{offset}, but is at {sorted(view.positions())}")
        if view.ends and not view.may_be:
            self.excused[view.log] = max(self.excused[view.log], min(view.ends))
            view.may_be, view.ends = view.ends, set()
        view.known = True
        return view, view.newest

    def handled(self, member: Any, partition: TopicPartition, log: Log, offset: int, begun: tuple[View, str]) -> None:
        self.returned[log].add(offset)
        self.proof[member, log].add(offset)
        view, newest = begun
        if self.views.get(partition) is view and view.log is log:  # else the call has outlived its tenure
            view.handled.add(offset)
            if newest == view.newest:
                view.unsure.discard(offset)
            else:
                view.unsure.add(offset)

    def ends_processing(self, member: Any) -> None:
        for view in self.views.values():
            if view.member is member:
                view.may_be = self._not_handled(view, view.may_be)
                view.sought = {  # the seek may also come after the end
                    command: (target, self._not_handled(view, found) | _found(view.log, target))
                    for command, (target, found) in view.sought.items()
                }

    def _not_handled(self, view: View, starts: set[int]) -> set[int]:
        """The offsets at which a processor may continue that started at one of `starts`."""
        found = set()
        for here in starts:
            for offset in [each for each in view.log.visible if each >= here]:
                if offset not in view.handled or offset in view.unsure:
                    found.add(here)
                    if offset >= view.log.start and offset not in self.returned[view.log] | view.log.poison:
                        break
                here = offset + 1
            else:
                found.add(here)
        return found

    # -- commits -------------------------------------------------------------------------------------------------

    def commits(self, member: Any, offsets: dict[TopicPartition, int] | None, held: Iterable[tuple[Log, int]]) -> None:
        """A user of the member commits these offsets, or everything that was delivered."""
        for log, offset in held:
            self.returned[log].add(offset)
        for partition, view in self.views.items():
            if view.member is member and (offsets is None or partition in offsets):
                tried, mine = self.tried[member, view.log], {offsets[partition]} if offsets else view.positions()
                at = self.committed.get(partition)
                known = {*tried, self.excused[view.log], 0 if at is None else at.offset}
                if offsets and offsets[partition] < max(known):  # the user goes back
                    self.licences[partition].append(offsets[partition])
                tried |= mine
                if not offsets:
                    self.tried_ends[member, view.log] |= view.ends

    def stores(self, member: Any, partition: TopicPartition, offset: int, log: Log, author: Any) -> None:
        """The coordinator stores a commit that the member sent when the partition had this log. `author`: the member
        that it names; another one if an idle offset is committed again."""
        before = self.committed.get(partition)
        self.committed[partition] = Stored(log, offset, author)
        if log is not self.content[partition] or (before is not None and before[:2] == (log, offset)):
            return
        view = self.views.get(partition)
        if view is not None and view.member is member:
            view.explicit = offset in self.tried[member, log]
            if offset in view.ends | view.former_ends:  # it has found the end
                self.excused[log] = max(self.excused[log], offset)
        if offset > log.end:
            raise Broken(f"{member} commits {partition}@{offset}, beyond the end {log.end}")
        unread = [each for each in self.missing(log) if each < offset]
        if unread:
            raise Broken(f"{member} commits {partition}@{offset}, but nobody got {unread}")
        if before is not None and before.log is log and offset < before.offset:
            licences = self.licences[partition]
            licence = max((each for each in licences if each <= offset), default=None)
            if licence is None and not any(each <= offset for each in self.commands[partition].values()):
                raise Broken(f"{member} sets {partition} back from {before.offset} to {offset}")
            if licence is not None:
                licences.remove(licence)

    def missing(self, log: Log) -> list[int]:
        """The records that somebody has to get and nobody has got."""
        passed = self.returned[log] if self.poison_counts else self.returned[log] | log.poison
        return [each for each in log.visible if each >= max(log.start, self.excused[log]) and each not in passed]

    def check_committed(self, partition: TopicPartition, view: View) -> None:
        """After a release or some time without faults, the committed offset is the lowest that is not done."""
        log, at = view.log, self.committed.get(partition)
        if view.in_hand:  # a user may commit it earlier than by the next request
            first = min(view.in_hand)
            found = {first, *(each for each in self.tried[view.member, log] if each > first)} | view.replaced
        else:
            found = self._not_handled(view, view.positions()) if view.processed else view.positions()
            found = found | view.replaced
            # an operator's seek that is not reported yet may have come after the calls
            found = found.union(*(_found(log, target) for target, _ in view.sought.values()))
        stored = None if at is None or at.log is not log else at.offset
        if view.explicit and stored is not None and stored > min(found, default=stored):
            return  # an operator's seek back came before the user's commit
        if stored is None and self.reset == "earliest":
            stored = log.start
        if view.known and (stored is None or log.next_visible(stored) not in map(log.next_visible, found)):
            raise Broken(f"{partition}: {stored} is committed, and not one of {sorted(found)}")


def _found(log: Log, target: int) -> set[int]:
    """Where a seek of an operator to `target` may end: records before the start of the log may be deleted before it or
    after it. Its result names the offset that it has found."""
    return {target, max(target, log.start)}
