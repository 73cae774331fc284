"""Tracks which records of each partition the user has processed. Does no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from allocator.core.subscription.done import DoneSet, done_of, joined
from allocator.core.subscription.loss import Committed, as_written, stamped, topic_of
from allocator.core.types import OffsetAndMetadata, Partitions, TopicPartition

# Replaces the offset after the delivered records if the partition is sought or lost. The user still works on these
# records, but finishing them marks no offset as done
REPLACED = -1


class OffsetTracker:
    """Delivered, done and committed offsets of each partition. Each is the offset *after* the last record it covers.

    Delivered records count as done when the user requests more. Automatic commits contain only done records, so a crash
    in the middle of a batch repeats the batch and never skips it.

    `asking_is_done`: a request for more also confirms that the delivered records are processed, so a partition that
    returns continues after them. If it is False, only a commit confirms that: a user that commits by hand may request
    more records long before.
    """

    def __init__(self, asking_is_done: bool) -> None:
        self._asking_is_done = asking_is_done
        self._handed: dict[TopicPartition, int] = {}
        self._outlived: set[TopicPartition] = set()
        self._done: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self.changes = 0
        """Number of seeks and losses so far."""
        self._changed: dict[TopicPartition, int] = {}  # `changes` after the last seek or loss
        self._reached: dict[TopicPartition, int] = {}
        # earlier done records beyond the offset at which the partition started
        self._beyond: dict[TopicPartition, DoneSet] = {}
        self._topics: dict[TopicPartition, Any] = {}  # topic ids, if known
        self._members: set[str] = set()  # member ids under which this process has committed
        self._waiters: list[tuple[frozenset[TopicPartition], asyncio.Future[None]]] = []

    @property
    def in_hand(self) -> bool:
        """Whether the user is working on delivered records."""
        return bool(self._handed)

    @property
    def outlived(self) -> Partitions:
        """The partitions that were lost while the user works on their records. Another member may handle these too,
        even if the partition has come back: it may have had another owner in between."""
        return frozenset(self._outlived)

    def hand_out(self, partition: TopicPartition, next_offset: int) -> None:
        """Called when the records before `next_offset` were delivered."""
        self._handed[partition] = next_offset
        self._outlived.discard(partition)

    def finish(self, topic: str | None = None) -> None:
        """Marks the delivered records (of one topic, or of all) as done: the user requested more."""
        if self._handed:
            for partition in [p for p in self._handed if topic is None or p.topic == topic]:
                self._move(partition)
            self._wake()

    def finish_up_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Marks the records before these offsets as done, if no records were delivered after them."""
        for partition, offset in offsets.items():
            if self._handed.get(partition) == offset:
                self._move(partition)
        self._wake()

    def abandon(self) -> None:
        """Called when the user will not request more. Delivered records never become done, so `finished` does not wait
        for them."""
        self._handed.clear()
        self._outlived.clear()
        self._wake()

    def put_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Called when the user did not get the delivered records."""
        for partition in partitions:
            self._handed.pop(partition, None)
            self._outlived.discard(partition)
        self._wake()

    def rewind(self, partition: TopicPartition, offset: int, done: DoneSet | None = None) -> None:
        """Sets another position. `done`: the done records beyond it.

        The user may still work on delivered records, so a release of the partition waits for them.
        """
        self._note_beyond(partition, done)
        if partition in self._handed:
            self._handed[partition] = REPLACED
        self._note_change(partition)
        self._committed.pop(partition, None)
        self._done[partition] = offset
        self._reached[partition] = offset

    def begin(
        self, partition: TopicPartition, committed: OffsetAndMetadata | None, reached: Committed | None = None
    ) -> OffsetAndMetadata | None:
        """Returns the start of a newly assigned partition: the committed offset, or the offset that this process
        reached.

        The reached offset is used if it is higher and no other process has committed since. In that case a commit of
        this process has failed, or an older commit overtook it. Otherwise the committed offset is used, even if it is
        lower: an operator or another owner may have sought there on purpose.

        `reached`: the offset that a processor knows to be done, instead of the offset that was delivered here.
        """
        offset, topic, done = self._reached.get(partition), self._topics.get(partition), None
        if reached is not None:
            offset, topic, done = reached.offset, reached.topic_id, reached.done
        if committed is not None:
            self._committed[partition] = committed.offset
            found = done_of(committed.metadata, committed.offset)
            own = self.is_own(committed) and (topic is None or topic_of(committed.metadata) in (None, topic))
            if not own:
                self._reached.pop(partition, None)
            if not own or offset is None or committed.offset >= offset:
                # an earlier commit may name further done records beyond the same offset
                self._note_beyond(partition, joined(done, found) if own and committed.offset == offset else found)
                return committed
        self._note_beyond(partition, done)
        if offset is None:
            return None
        self._done[partition] = offset
        return reached or OffsetAndMetadata(offset, stamped("", topic), -1)

    def note_member(self, member_id: str) -> None:
        """Called when this process commits under this member id."""
        self._members.add(member_id)

    def is_own(self, committed: OffsetAndMetadata) -> bool:
        """Returns whether this process committed the offset; False if the commit's metadata names no member."""
        found = committed if isinstance(committed, Committed) else as_written(committed)
        return found.member in self._members

    def done_beyond(self, partition: TopicPartition) -> DoneSet | None:
        """Returns the done records beyond the offset at which the partition started or was sought."""
        return self._beyond.get(partition)

    def _note_beyond(self, partition: TopicPartition, done: DoneSet | None) -> None:
        if done is None:
            self._beyond.pop(partition, None)
        else:
            self._beyond[partition] = done

    def committed(self, partition: TopicPartition) -> int | None:
        """Returns the committed offset; None if there is none or it is unknown."""
        return self._committed.get(partition)

    def note_committed(self, offsets: Mapping[TopicPartition, int], since: int | None = None) -> None:
        """Called when these offsets were committed. `since`: `changes` when the commit began.

        Leaves out a partition that was sought or lost since. Otherwise a lower offset that was sought would seem to be
        committed.
        """
        if since is not None and since < self.changes:
            offsets = {p: offset for p, offset in offsets.items() if self._changed.get(p, 0) <= since}
        self._committed.update(offsets)
        if not self._asking_is_done:
            self._reached.update(offsets)

    def uncommitted(
        self, partitions: Iterable[TopicPartition] | None = None, *, in_hand: bool = False
    ) -> dict[TopicPartition, int]:
        """Returns the done offsets that are not committed. With `in_hand`, also delivered offsets that are not done."""
        reached = dict(self._done)
        if in_hand:
            reached.update((p, offset) for p, offset in self._handed.items() if offset != REPLACED)
        chosen = reached if partitions is None else [p for p in partitions if p in reached]
        # leaves out lower offsets: the user may have committed delivered records that are not done
        return {p: reached[p] for p in chosen if reached[p] > self._committed.get(p, -1)}

    def forget(self, topic_ids: Mapping[TopicPartition, Any]) -> None:
        """Called when these partitions are no longer owned. Keeps only the processed offset and the topic id.

        Delivered records stay in hand: if a partition comes back, its next release waits for them too.

        `topic_ids`: partition -> topic id, or None if it is unknown.
        """
        for partition, topic_id in topic_ids.items():
            self._topics[partition] = topic_id
            self._note_change(partition)
            if partition in self._handed:
                self._handed[partition] = REPLACED
                self._outlived.add(partition)
            for offsets in (self._done, self._committed):
                offsets.pop(partition, None)
            self._note_beyond(partition, None)
        self._wake()

    def _note_change(self, partition: TopicPartition) -> None:
        self.changes += 1
        self._changed[partition] = self.changes

    async def finished(self, partitions: frozenset[TopicPartition]) -> None:
        """Waits until the user has finished all delivered records of these partitions."""
        if partitions.isdisjoint(self._handed):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((partitions, future))
        await future

    def _move(self, partition: TopicPartition) -> None:
        offset = self._handed.pop(partition)
        self._outlived.discard(partition)
        if offset == REPLACED:
            return
        self._done[partition] = offset
        if self._asking_is_done:
            self._reached[partition] = offset

    def _wake(self) -> None:
        still = []
        for partitions, future in self._waiters:
            if not partitions.isdisjoint(self._handed):
                still.append((partitions, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = still
