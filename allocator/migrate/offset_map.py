"""The offset map of a mirror, in a topic of the new cluster.

There, and not in a file: every member of a mirror and every cutover finds it, it is replicated like the records that
it speaks of, and it comes to an end with them. The topic is compacted, with one partition, so that entries have one
order. An entry is written when old and new offsets part in another way than before: once for each partition of an
ordinary topic, once for each gap that compaction or transactions left (nine in a thousand records at most).

Each entry also says which incarnation of the old topic it speaks of: a topic that is deleted and created again begins
at offset 0 again, and the brokers forget what a group committed of it. So this is where a mirror remembers its id.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from allocator.migrate.encode import written
from allocator.migrate.positions import Entry, Incarnation, Positions, Run, pack, unpack
from allocator.migrate.sender import append
from allocator.migrate.spans import read_spans
from allocator.migrate.topic_ids import same_topic
from allocator.migrate.topics import create
from allocator.record import Record
from allocator.types import TopicPartition
from allocator.wire.kafka import KafkaClient
from allocator.wire.list_offsets import EARLIEST, LATEST, list_offsets

# runs of one entry, which has to fit into a record batch
MOST: Final = 5000

__all__ = ["OffsetMap", "map_topic"]


def map_topic(group: str) -> str:
    """Where the mirror of this group keeps its map."""
    return f"{group}.offset-map"


class OffsetMap:
    """What is known of all partitions, here and in the topic.

    Guarantee: after `flush`, everything that was noted stands on all replicas in sync.
    """

    def __init__(
        self, client: KafkaClient, brokers: str, topic: str, security: Mapping[str, Any] | None = None
    ) -> None:
        self.topic = topic
        self._client = client
        self._brokers = brokers
        self._security = security
        self._at = TopicPartition(topic, 0)
        self._known: dict[TopicPartition, Positions] = defaultdict(Positions)
        self._incarnations: dict[TopicPartition, Incarnation] = {}
        self._new: dict[TopicPartition, list[Run]] = defaultdict(list)
        self._read_to = 0
        self._flushing: asyncio.Lock

    async def open(self, replication: int | None = None) -> None:
        """Reads all of it. With `replication` it is made where it does not exist. Raises TopicNotFound."""
        self._flushing = asyncio.Lock()
        await self._client.refresh([self.topic])
        if self._client.partitions(self.topic) is None and replication is not None:
            await create(self._client, self.topic, 1, replication, {"cleanup.policy": "compact"})
        await self.refresh()

    async def refresh(self) -> None:
        """Reads what others have added."""
        end = await list_offsets(self._client, {self._at: LATEST})
        start = await list_offsets(self._client, {self._at: EARLIEST})
        found, first = end[self._at], start[self._at]
        if found is None:
            return
        begin = max(self._read_to, 0 if first is None else first.offset)
        async for batch in read_spans(self._brokers, {self._at: (begin, found.offset)}, self._security):
            for record in batch:
                self.learn(unpack(record.key, record.value))
        self._read_to = found.offset

    def learn(self, entry: Entry) -> None:
        """What stands in the map, in its order."""
        partition, there, runs = entry
        known = self.incarnation(partition)
        if there.number < known.number:
            return  # of a topic that is gone, by a process that did not know yet
        if there.number > known.number:
            self._known[partition] = Positions()
            self._new.pop(partition, None)
        topic_id = there.topic_id or (known.topic_id if there.number == known.number else None)
        self._incarnations[partition] = Incarnation(there.number, topic_id)
        for run in runs:
            self._known[partition].note(run)

    def positions(self, partition: TopicPartition) -> Positions:
        """What is known of one partition."""
        return self._known[partition]

    def incarnation(self, partition: TopicPartition) -> Incarnation:
        """Which old topic `positions` speaks of."""
        return self._incarnations.get(partition, Incarnation())

    def recreated(self, partition: TopicPartition, topic_id: str | None) -> str | None:
        """What shows that the old topic, which has the id `topic_id` now, is not the one that was mirrored; or None."""
        known = self.incarnation(partition).topic_id
        if same_topic(known, topic_id) is not False:
            return None
        return f"its id was {known} when it was mirrored, and is {topic_id} now"

    def begin(self, partition: TopicPartition, incarnation: Incarnation) -> None:
        """From now on `positions` speaks of this one, which the next `flush` writes if it is new.

        Where its number is greater than that of `incarnation(partition)`, all that was known is forgotten.
        """
        known = self.incarnation(partition)
        if incarnation == known:
            return
        if incarnation.number > known.number:
            self._known[partition] = Positions()
            self._new.pop(partition, None)
        self._incarnations[partition] = incarnation
        self._new.setdefault(partition, [])  # an entry is written though there may be no run to tell

    def note(self, partition: TopicPartition, run: Run) -> None:
        """To be written at the next `flush`, if it is new."""
        added = self._known[partition].note(run)
        if added is not None:
            self._new[partition].append(added)

    async def flush(self) -> None:
        """Writes what was noted. Raises BrokerError, and has it still to write."""
        async with self._flushing:
            news, self._new = self._new, defaultdict(list)
            if not news:
                return
            now = int(time.time() * 1000)
            records: list[Record] = []
            slices = [
                Entry(each, self.incarnation(each), runs[at : at + MOST])
                for each, runs in news.items()
                for at in range(0, max(1, len(runs)), MOST)
            ]
            for entry in slices:
                key, value = pack(entry)
                records.append(Record(self.topic, 0, len(records), now, 0, key, value, []))
            try:
                for made in written(iter(records), 0):
                    await append(self._client, self._at, made)
            except BaseException:
                for entry in slices:
                    if entry.incarnation.number == self.incarnation(entry.partition).number:
                        self._new[entry.partition] += entry.runs
                raise
