"""Holds the commits that wait for the next request, and selects its offsets. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any, Optional

from allocator.core.errors import AllocatorError, BrokerError, ConfigError
from allocator.core.types import OffsetAndMetadata, TopicPartition

Offsets = dict[TopicPartition, OffsetAndMetadata]
Refusal = Callable[[TopicPartition], Optional[BrokerError]]
"""Returns the reason why the offset of a partition may not be sent: a retriable error for now, or another for ever."""

# Partitions in one request; 500 take about 2 ms to encode. Higher: encoding and decoding block the event loop, and the
# coordinator refuses a request beyond `max.message.bytes` of the offsets topic; lower: more round trips.
MOST_PARTITIONS = 500
MOST_BYTES = 250_000
RECORD_BYTES = 100  # approximate size of a record in the offsets topic, without names and metadata
NAMED = 10  # maximum number of partitions that an error lists


class PendingCommit:
    """The state of one `commit` call: the offsets that are `left` to commit, and those that `failed`.

    Raises ConfigError for an offset below 0, because brokers would store it.
    """

    def __init__(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], refusal: Refusal | None = None) -> None:
        for tp, value in offsets.items():
            _check(tp, value.offset)
        self.left: Offsets = dict(offsets)
        self._refusal = refusal
        self.unknown: dict[TopicPartition, int] = {}  # partition -> number of UNKNOWN_SERVER_ERRORs
        self.missing: dict[TopicPartition, int] = {}  # partition -> number of metadata responses without it
        self.failed: dict[TopicPartition, BrokerError] = {}
        self.fenced = False  # the member no longer holds some of the partitions
        self.last: dict[TopicPartition, AllocatorError] = {}  # partition that is left -> its last error

    def may_be_sent(self) -> bool:
        """Gives up the offsets that may never be sent. Returns False if others may not be sent yet."""
        if self._refusal is None:
            return True
        refused = [(tp, error) for tp in self.left if (error := self._refusal(tp)) is not None]
        for tp, error in refused:
            self.note([tp], error, final=not error.retriable, fenced=not error.retriable)
        return not any(error.retriable for _, error in refused)

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


def _check(tp: TopicPartition, offset: Any) -> None:
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < 2**63:
        raise ConfigError(
            f"{tp.topic}:{tp.partition}: offset {offset!r} cannot be committed; give the offset of the next record to "
            "read, 0 or more. To delete a committed offset, stop the group and use Kafka's DeleteOffsets"
        )


def take_some(callers: Iterable[PendingCommit], group: str) -> Offsets:
    """Returns the newest offset of each partition in `callers`, as many as fit into one request."""
    some: Offsets = {}
    bytes_left = MOST_BYTES
    for call in callers:
        for tp in some.keys() & call.left.keys():
            some[tp] = call.left[tp]
        for tp, value in call.left.items():
            if len(some) >= MOST_PARTITIONS or bytes_left <= 0:
                break
            if tp not in some:
                some[tp] = value
                bytes_left -= RECORD_BYTES + len(group) + len(tp.topic) + len(value.metadata or "")
    return some


def names_of(partitions: Sequence[TopicPartition]) -> str:
    names = ", ".join(f"{tp.topic}:{tp.partition}" for tp in nsmallest(NAMED, partitions))
    more = len(partitions) - NAMED
    return names if more <= 0 else f"{names} and {more} more"
