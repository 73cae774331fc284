"""The copy of one partition: an old offset, and the new offset that belongs to it.

The mirror commits both: the new offset is in the metadata of the commit. The new offset cannot be computed from the old
offset, because some old offsets have no visible record: transaction markers, and aborted, compacted or deleted records.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final, NamedTuple, Optional

from allocator.core.subscription import stamped
from allocator.migrate.topics import ZNODE, same_topic
from allocator.producer import Encoded
from allocator.types import OffsetAndMetadata, TopicPartition

SYNCED: Final = "synced"  # begins the text of the offsets that a mirror commits for the groups of others
_TEXT: Final = re.compile(r"mirrored (\d+) to (\d+)(?: of (\S+))?(?: topic \S+)?")


class Wait(enum.Enum):
    """Why a partition of this process is not copied now. It continues by itself."""

    DOUBTED = "its old log has no leader, or may be another log"
    """Its copy is kept. Its records are compared with the mirrored ones once it has a leader."""
    OLD_LEADER = "it has no leader on the old cluster"
    """It has no copy: it is taken over once it has a leader, as if this process had just been assigned it."""
    NEW_LEADER = "it has no leader on the new cluster"
    OPEN_TRANSACTION = "a transaction on the old cluster is open"
    """Its copy is complete up to there."""


class Target(NamedTuple):
    """The new offset that belongs to a committed old offset, and the id of the new topic."""

    offset: int
    topic_id: Optional[str] = None

    @classmethod
    def of(cls, committed: OffsetAndMetadata | None) -> Target | None:
        """Decodes the metadata of a commit. Returns None if no mirror wrote it, or another tool moved the offset."""
        found = None if committed is None else _TEXT.fullmatch(committed.metadata or "")
        if found is None or committed is None or int(found[1]) != committed.offset:
            return None
        return cls(int(found[2]), found[3])

    def committed(self, source: int, source_id: str | None = None) -> OffsetAndMetadata:
        """Returns the commit of old offset `source`. `source_id` is the id that the old brokers gave the topic."""
        text = f"mirrored {source} to {self.offset}" + ("" if self.topic_id is None else f" of {self.topic_id}")
        return OffsetAndMetadata(source, stamped(text, source_id), -1)


@dataclass
class PartitionCopy:
    """The progress of the copy of one partition. Its two offsets advance together.

    Guarantee: exactly the mirrored records below old offset `acked` are on the new cluster below offset `end`.
    """

    acked: int
    """Old offset after the last acknowledged record."""
    end: int
    """New offset after the last copy. Others may have written behind it, so it may be below the end of the new log."""
    source_id: Optional[str] = None
    """Id of the old topic when the partition was taken over, from `TopicIds`; None if unknown."""
    target_id: Optional[str] = None
    """Id of the new topic; None if unknown."""
    expires_after_ms: Optional[int] = None
    """Age at which the new cluster deletes records that the old cluster keeps; None if it deletes none."""
    newest_ms: int = -1
    """Timestamp of the acknowledged record with the largest one in its batch; -1 if there is none."""
    counted: int = 0
    """New offset up to which records of others are counted. Those behind `end` count once a copy follows them."""
    is_exact: bool = True
    """Whether `end` is known, and not only the lowest offset that it may have."""

    @property
    def target(self) -> Target:
        return Target(self.end, self.target_id)

    @property
    def commit(self) -> OffsetAndMetadata:
        """The commit of `acked`."""
        source_id = self.source_id
        return self.target.committed(
            self.acked, None if source_id is None or source_id.startswith(ZNODE) else source_id
        )

    def note(self, encoded: Encoded, target: int) -> int:
        """Counts an acknowledged batch. Returns the number of unexpected records before it; negative if the new log has
        lost copies."""
        others = max(target - max(self.end, self.counted), min(0, target - self.end))
        self.end, self.is_exact = target + encoded.records, True
        self.acked = encoded.next
        self.newest_ms = encoded.max_time
        return others

    def pass_to(self, source: int) -> None:
        """Skips old offsets without a visible record."""
        self.acked = max(self.acked, source)


def is_synced(stored: OffsetAndMetadata) -> bool:
    """Returns whether a mirror committed exactly this offset for a group of others."""
    return (stored.metadata or "").partition(" topic ")[0] == f"{SYNCED} {stored.offset}"


def target_lost(partition: TopicPartition, kept: Target, end: int | None, topic_id: str | None) -> str | None:
    """Returns why the new partition lacks records below `kept`; None if it has them.

    `end` and `topic_id` describe the current topic; `end` is None if it does not exist.
    """
    if not kept.offset:
        return None
    if end is None:
        return "the new topic was deleted"
    if same_topic(kept.topic_id, topic_id) is False:
        return (
            f"the new topic was deleted and created again: its id was {kept.topic_id} when it was mirrored, and is "
            f"{topic_id} now"
        )
    if end < kept.offset:
        return (
            f"the new topic was deleted and created again, or lost its tail: partition {partition.partition} was "
            f"mirrored up to new offset {kept.offset - 1} and ends before offset {end} now"
        )
    return None
