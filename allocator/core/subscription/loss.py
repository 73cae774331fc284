"""Describes lost records, and the offsets that members committed or that brokers listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from allocator.core.subscription.commit_text import parts_of, topic_of, uuid_of
from allocator.core.subscription.done import DoneSet
from allocator.core.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from uuid import UUID


@dataclass(frozen=True)
class RecordsLost:
    """A reset of one partition whose log no longer contains the position."""

    partition: TopicPartition
    position: int
    """The next offset that the consumer would have delivered."""
    resumed_at: int
    """The offset where reading continues: the result of `auto_offset_reset`, or the end of a truncated log."""
    first: Optional[int]
    """The first skipped offset; None if the current log has none. Records of an earlier log may still be lost."""
    last: Optional[int]
    """The last skipped offset."""
    why: str
    recreated: bool = False
    """Whether the topic was deleted and created again. Then `position` belongs to the old topic, the other offsets to
    the new one."""

    @property
    def count(self) -> int:
        """The number of skipped offsets."""
        return 0 if self.first is None or self.last is None else self.last - self.first + 1

    def __str__(self) -> str:
        skipped = f"offsets {self.first} to {self.last} are skipped" if self.count else "no offset is skipped"
        return (
            f"{self.partition.topic}:{self.partition.partition} at offset {self.position}: {self.why}; "
            f"{skipped}, reading continues at {self.resumed_at}"
        )


class Committed(OffsetAndMetadata):
    """A committed offset with the user's metadata. Its attributes hold the text that members add."""

    topic_id: Optional[UUID] = None
    done: Optional[DoneSet] = None
    """The done records beyond the offset."""
    member: Optional[str] = None
    """The id of the member that committed the offset; None for other clients, and if the user gave metadata."""

    def __repr__(self) -> str:
        return repr(OffsetAndMetadata(*self))


class Listed(OffsetAndMetadata):
    """An offset that ListOffsets returned, with its leader epoch.

    No record before the offset has a later epoch, so the position can be compared with the log. The record just before
    it may have an earlier one, because for the end of the log the broker returns the epoch of the leader.
    """


def listed(found: OffsetAndTimestamp) -> Listed:
    """Returns the position at an offset that ListOffsets returned."""
    return Listed(found.offset, "", -1 if found.leader_epoch is None else found.leader_epoch)


def as_written(committed: OffsetAndMetadata) -> Committed:
    """Returns the offset with the user's metadata. Moves the text that members add into attributes."""
    text, member, done, topic = parts_of(committed.metadata or "")
    found = Committed(committed.offset, text if member is None else "", committed.leader_epoch)
    found.member = member
    found.topic_id = uuid_of(topic)
    found.done = None if done is None else DoneSet.decoded(done, committed.offset)
    return found


def topic_of_offset(offset: OffsetAndMetadata) -> UUID | None:
    """Returns the id of the topic that an offset belongs to; None if unknown."""
    return offset.topic_id if isinstance(offset, Committed) else topic_of(offset.metadata)
