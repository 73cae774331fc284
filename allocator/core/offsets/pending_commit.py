"""Holds the commits that wait for the next request, and selects its offsets. Does no I/O."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Optional, Union

from allocator.core.errors import AllocatorError, BrokerError
from allocator.core.settings.arguments import check_offsets
from allocator.core.types import OffsetAndMetadata, TopicPartition

Offsets = dict[TopicPartition, OffsetAndMetadata]
Refusals = Callable[[Offsets], Mapping[TopicPartition, BrokerError]]
"""Returns why the offsets of some of these partitions may not be sent: a retriable error for now, or another for
ever."""

# Partitions in one request; 500 take about 2 ms to encode. Higher: encoding and decoding block the event loop, and the
# coordinator refuses a request beyond `max.message.bytes` of the offsets topic; lower: more round trips.
MOST_PARTITIONS = 500
MOST_BYTES = 250_000
RECORD_BYTES = 100  # approximate size of a record in the offsets topic, without names and metadata


Choice = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, OffsetAndMetadata]]
"""Returns what to commit now, without the given partitions, which are over. Called before each request is written, so a
commit never has an old offset."""
ToCommit = Union[Mapping[TopicPartition, OffsetAndMetadata], Choice]
Stored = Callable[[Mapping[TopicPartition, OffsetAndMetadata]], None]
"""Called with the offsets of a commit that the coordinator has just confirmed."""


class Terms(NamedTuple):
    """When the offsets of a commit may be sent, who hears of them, and for how long the commit is tried."""

    refusals: Optional[Refusals] = None
    stored: Optional[Stored] = None
    patience_s: float = math.inf
    """After its first request, the commit gives up once the coordinator has not responded for so many seconds, so that
    commits do not wait for it one after another."""


TERMS: Final = Terms()


class PendingCommit:
    """The state of one `commit` call: the offsets that are `left` to commit, and those that `failed`.

    `offsets` is a mapping, or a `Choice`. A choice gives way to the mappings that wait for the same request. Raises
    ConfigError as `check_offsets` does.
    """

    def __init__(self, offsets: ToCommit, terms: Terms = TERMS) -> None:
        self.left: Offsets = {}
        self.terms = terms
        self.tried = False  # a request with offsets of this call was written
        self.choice = offsets if callable(offsets) else None
        if not callable(offsets):
            self.left.update(offsets)
            check_offsets(offsets)
        self._confirmed: set[TopicPartition] = set()
        self._plain: set[TopicPartition] = set()
        self.unknown: dict[TopicPartition, int] = {}  # partition -> number of UNKNOWN_SERVER_ERRORs
        self.missing: dict[TopicPartition, int] = {}  # partition -> number of metadata responses without it
        self.failed: dict[TopicPartition, BrokerError] = {}
        self.fenced = False  # the member no longer holds some of the partitions
        self.last: dict[TopicPartition, AllocatorError] = {}  # partition that is left -> its last error
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the call has ended."""

    @property
    def over(self) -> Collection[TopicPartition]:
        """The partitions that this call does not choose again, so that it ends."""
        return self._confirmed | self.failed.keys()

    def replace(self, chosen: Offsets) -> None:
        """Replaces the offsets that are left by those to commit now."""
        self.left = chosen
        for tp in self._plain & chosen.keys():
            chosen[tp] = chosen[tp]._replace(metadata="")

    def drop_metadata(self, tp: TopicPartition) -> None:
        """Commits this partition without metadata, because the broker does not take it."""
        self._plain.add(tp)
        if tp in self.left:
            self.left[tp] = self.left[tp]._replace(metadata="")

    def withdraw_refused(self) -> Collection[BrokerError]:
        """Gives up the offsets that may never be sent. Returns the errors of all that may not be sent now."""
        refused = {} if self.terms.refusals is None else self.terms.refusals(self.left)
        for tp, error in refused.items():
            if self.choice is not None and not error.retriable:
                del self.left[tp]  # the next choice leaves it out
            else:
                self.note([tp], error, final=not error.retriable, fenced=not error.retriable)
        return refused.values()

    def confirm(self, stored: Offsets, senders: Mapping[TopicPartition, PendingCommit]) -> None:
        """Notes that the coordinator has stored these offsets, each of this call or of a later one."""
        own = {tp: offset for tp, offset in stored.items() if senders[tp] is self}
        if own and self.terms.stored is not None:
            self.terms.stored(own)
        if self.choice is not None:
            self._confirmed.update(own)
            stored = own
        self.left = {tp: offset for tp, offset in self.left.items() if tp not in stored}

    def note(
        self, partitions: Iterable[TopicPartition], exc: BrokerError, *, final: bool, fenced: bool = False
    ) -> None:
        for tp in list(partitions):
            if tp not in self.left:
                continue
            if final:
                del self.left[tp]
                self.failed[tp] = exc
                self.fenced = self.fenced or fenced
            else:
                self.left[tp] = self.left.pop(tp)  # moves it to the end, after partitions that were not sent yet
                self.last[tp] = exc


def take_some(callers: Sequence[PendingCommit], group: str) -> dict[TopicPartition, PendingCommit]:
    """Returns the partitions of the next request, as many as fit, each with the call whose offset is sent.

    That is the newest call with a mapping. If there is none, it is the oldest with a choice, because the response to
    its last request may be lost, and a newer one may choose an idle offset, which that request has replaced.
    """
    some: dict[TopicPartition, PendingCommit] = {}
    bytes_left, record_bytes = MOST_BYTES, RECORD_BYTES + len(group)
    choices = [call for call in reversed(callers) if call.choice is not None]
    for call in [*choices, *(call for call in callers if call.choice is None)]:
        for tp, (_, metadata, _) in call.left.items():
            if tp in some:
                some[tp] = call
            elif len(some) < MOST_PARTITIONS and bytes_left > 0:
                some[tp] = call
                bytes_left -= record_bytes + len(tp[0]) + len(metadata or "")
    return some
