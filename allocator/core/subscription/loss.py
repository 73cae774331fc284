"""Describes lost records, and encodes the text that members add to commits.

The text has the id of the topic, so a later member detects that a topic was deleted and created again.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Optional

from allocator.core.subscription.done import DoneSet, done_of
from allocator.core.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_STAMP: Final = re.compile(rf"(?:^| )topic ({_UUID})$")
_MEMBER_STAMP: Final = re.compile(r"generation \d+ member (.*?)(?: done [A-Za-z0-9_-]+)?", re.DOTALL)
# the done records beyond the offset, in the metadata that members commit
_DONE: Final = re.compile(r"(generation \d+ member .* done [A-Za-z0-9_-]+)((?: topic \S+)?)", re.DOTALL)
_DONE_OF_CLUSTER: Final = re.compile(
    r"(generation \d+ member .*)( done [A-Za-z0-9_-]+)@(\S+)((?: topic \S+)?)", re.DOTALL
)
_STAMP_OF_CLUSTER: Final = re.compile(rf"(?:^| )topic {_UUID}@(\S+)$")


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


@lru_cache(maxsize=4)
def stamped(text: str, topic_id: Any) -> str:
    """Returns the metadata of a commit with the id of its topic. None (unknown) leaves it unchanged."""
    return text if topic_id is None else f"{text} topic {topic_id}".lstrip()


def topic_of(metadata: str | None) -> uuid.UUID | None:
    """Returns the topic id in the metadata of a commit; None if there is none."""
    found = _STAMP.search(metadata) if metadata else None
    return None if found is None else uuid.UUID(found[1])


class Committed(OffsetAndMetadata):
    """A committed offset with the user's metadata. Its attributes hold the text that members add."""

    topic_id: Optional[uuid.UUID] = None
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
    metadata = _STAMP.sub("", committed.metadata or "")
    stamp = _MEMBER_STAMP.fullmatch(metadata)
    found = Committed(committed.offset, metadata if stamp is None else "", committed.leader_epoch)
    found.member = None if stamp is None else stamp[1]
    found.topic_id = topic_of(committed.metadata)
    found.done = done_of(committed.metadata, committed.offset)
    return found


def topic_of_offset(offset: OffsetAndMetadata) -> uuid.UUID | None:
    """Returns the id of the topic that an offset belongs to; None if unknown."""
    return offset.topic_id if isinstance(offset, Committed) else topic_of(offset.metadata)


@lru_cache(maxsize=4)
def as_committed(metadata: str, cluster: str | None) -> str:
    """Returns the metadata for a commit to the cluster with the id `cluster`.

    The cluster's id is added to a topic id and to done records, because both are valid in that cluster only, and
    MirrorMaker copies committed offsets with their metadata.
    """
    done = _DONE.fullmatch(metadata) if cluster is not None and " done " in metadata else None
    if done is not None:
        metadata = f"{done[1]}@{cluster}{done[2]}"
    return f"{metadata}@{cluster}" if cluster is not None and _STAMP.search(metadata) else metadata


def as_read(metadata: str, cluster: str | None) -> str:
    """Reverses `as_committed`, and removes the parts that belong to another cluster."""
    done = _DONE_OF_CLUSTER.fullmatch(metadata) if " done " in metadata else None
    if done is not None:
        metadata = f"{done[1]}{done[2] if done[3] == cluster else ''}{done[4]}"
    found = _STAMP_OF_CLUSTER.search(metadata)
    if found is None:
        return metadata
    return metadata[: found.start(1) - 1] if found[1] == cluster else metadata[: found.start()]
