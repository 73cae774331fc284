"""Tracks how far the user has processed each partition. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from allocator.core.subscription.done import DoneSet, done_of, joined
from allocator.core.subscription.loss import Committed, as_written, stamped, topic_of
from allocator.core.types import OffsetAndMetadata, TopicPartition

# in place of the offset after delivered records, once the position was set anew: the user still works on these records,
# but they are done at no offset
REPLACED = -1


class OffsetTracker:
    """Delivered, done and committed offsets; each is the offset *after* the last record that it covers.

    Delivered records count as done when the user requests more. Automatic commits contain only done records, so a crash
    in the middle of a batch repeats that batch and never skips it.

    `asking_is_done`: whether done records are also processed, so that a partition that returns continues after them. A
    user that commits by hand confirms processing with the commit, and may request more records long before.
    """

    def __init__(self, asking_is_done: bool) -> None:
        self._asking_is_done = asking_is_done
        self._handed: dict[TopicPartition, int] = {}
        self._done: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._reached: dict[TopicPartition, int] = {}
        self._beyond: dict[
            TopicPartition, DoneSet
        ] = {}  # records done before, beyond the offset where the partition began
        self._topics: dict[TopicPartition, Any] = {}  # the id of the topic, where it is known
        self._members: set[str] = set()  # the ids under which this process has committed
        self._waiters: list[tuple[frozenset[TopicPartition], asyncio.Future[None]]] = []

    @property
    def in_hand(self) -> bool:
        """Whether the user is working on delivered records."""
        return bool(self._handed)

    def hand_out(self, partition: TopicPartition, next_offset: int) -> None:
        """The user now works on everything before `next_offset`."""
        self._handed[partition] = next_offset

    def finish(self, topic: str | None = None) -> None:
        """The user requested more (of one topic, or of all): the delivered records are done."""
        if self._handed:
            for partition in [p for p in self._handed if topic is None or p.topic == topic]:
                self._move(partition)
            self._wake()

    def finish_up_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Exactly these offsets are done; records delivered since are not."""
        for partition, offset in offsets.items():
            if self._handed.get(partition) == offset:
                self._move(partition)
        self._wake()

    def abandon(self) -> None:
        """The user will not request more: the delivered records are not done, and nothing waits for them."""
        self._handed.clear()
        self._wake()

    def put_back(self, partitions: Iterable[TopicPartition]) -> None:
        """The user did not get the delivered records after all."""
        for partition in partitions:
            self._handed.pop(partition, None)
        self._wake()

    def rewind(self, partition: TopicPartition, offset: int, done: DoneSet | None = None) -> None:
        """Another position replaces the former one; `done`: beyond it.

        The user still works on records that were delivered before, so a release of the partition waits for them.
        """
        self._note_beyond(partition, done)
        if partition in self._handed:
            self._handed[partition] = REPLACED
        self._committed.pop(partition, None)
        self._done[partition] = offset
        self._reached[partition] = offset

    def begin(
        self, partition: TopicPartition, committed: OffsetAndMetadata | None, reached: Committed | None = None
    ) -> OffsetAndMetadata | None:
        """Where to start a partition that was just assigned: the committed offset, or what this process had reached.

        What it had reached counts if it is higher, and if no other process has committed since: a commit of this
        process may have failed, or may have been overtaken by an older one. Any other commit counts as it is. It may be
        lower on purpose, because an operator or another owner sought there.

        `reached`: what a processor knows to be done, which counts instead of what was delivered here.
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
                # an earlier commit may name further records that are done beyond the same offset
                self._note_beyond(partition, joined(done, found) if own and committed.offset == offset else found)
                return committed
        self._note_beyond(partition, done)
        if offset is None:
            return None
        self._done[partition] = offset
        return reached or OffsetAndMetadata(offset, stamped("", topic), -1)

    def note_member(self, member_id: str) -> None:
        """This process commits under this id."""
        self._members.add(member_id)

    def is_own(self, committed: OffsetAndMetadata) -> bool:
        """Whether this process has committed the offset. False if the offset does not say who did."""
        found = committed if isinstance(committed, Committed) else as_written(committed)
        return found.member in self._members

    def done_beyond(self, partition: TopicPartition) -> DoneSet | None:
        """Records that were done before, beyond the offset where the partition began or was set to."""
        return self._beyond.get(partition)

    def _note_beyond(self, partition: TopicPartition, done: DoneSet | None) -> None:
        if done is None:
            self._beyond.pop(partition, None)
        else:
            self._beyond[partition] = done

    def committed(self, partition: TopicPartition) -> int | None:
        """The committed offset; None if there is none, or it is unknown."""
        return self._committed.get(partition)

    def note_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._committed.update(offsets)
        if not self._asking_is_done:
            self._reached.update(offsets)

    def uncommitted(
        self, partitions: Iterable[TopicPartition] | None = None, *, in_hand: bool = False
    ) -> dict[TopicPartition, int]:
        """The done offsets that are not committed yet; with `in_hand`, also the delivered ones that are not done."""
        reached = dict(self._done)
        if in_hand:
            reached.update((p, offset) for p, offset in self._handed.items() if offset != REPLACED)
        chosen = reached if partitions is None else [p for p in partitions if p in reached]
        # a delivered offset may have been committed already, and must not be set back to the done one
        return {p: reached[p] for p in chosen if reached[p] > self._committed.get(p, -1)}

    def forget(self, topic_ids: Mapping[TopicPartition, Any]) -> None:
        """These partitions are no longer owned. Keeps only the done offset, and the id of its topic.

        `topic_ids`: partition -> id, None if it is unknown.
        """
        for partition, topic_id in topic_ids.items():
            self._topics[partition] = topic_id
            for offsets in (self._handed, self._done, self._committed):
                offsets.pop(partition, None)
            self._note_beyond(partition, None)
        self._wake()

    async def finished(self, partitions: frozenset[TopicPartition]) -> None:
        """Returns when the user works on no record of these partitions."""
        if partitions.isdisjoint(self._handed):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((partitions, future))
        await future

    def _move(self, partition: TopicPartition) -> None:
        offset = self._handed.pop(partition)
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
