"""Detects topics of the old cluster that are recreated or truncated while a mirror reads them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, MutableMapping

from allocator.core.client import KafkaClient
from allocator.errors import LogTruncated, OffsetOutOfRange
from allocator.migrate.positions import PartitionCopy, Wait
from allocator.migrate.takeover import Log, MirrorClusters, Replaced, find_replaced
from allocator.migrate.topics import ZNODE, same_topic
from allocator.migrate.translate import ends_of
from allocator.types import Partitions, TopicPartition


class SourceWatch:
    """Doubts partitions whose log may be another one, and compares their records with the mirrored ones.

    Guarantee: a partition is doubted before the consumer gets the first batch of its new log. A caller that settles
    doubts before it sends a batch, and puts batches of waiting partitions back, sends no record of a new log.

    `client` is the consumer's own: its metadata shows a change before the consumer fetches. `copies` has the partitions
    of this process, `waits` those that are not copied now, and `stopped` the topics that are no longer mirrored.
    """

    def __init__(
        self,
        clusters: MirrorClusters,
        client: KafkaClient,
        copies: Mapping[TopicPartition, PartitionCopy],
        waits: MutableMapping[TopicPartition, Wait],
        stopped: Container[str],
    ) -> None:
        self._clusters = clusters
        self._client = client
        self._copies = copies
        self._waits = waits
        self._stopped = stopped

    def metadata_changed(self) -> None:
        """Doubts topics if their id has changed, or if one of their partitions has no leader."""
        topics = {each.topic: copy.source_id for each, copy in self._copies.items() if each.topic not in self._stopped}
        for topic, known in topics.items():
            now = self._client.topic_id(topic)
            same = same_topic(known, None if now is None else str(now))
            # only a missing leader shows that a topic was truncated, or recreated on a cluster without topic ids
            if same is not False:
                numbers = self._client.partitions(topic) or ()
                same = bool(numbers) and all(self._client.leader(TopicPartition(topic, n)) is not None for n in numbers)
            if not same:
                self._doubt(topic)

    def _doubt(self, topic: str) -> None:
        self._waits.update(dict.fromkeys((each for each in self._copies if each.topic == topic), Wait.DOUBTED))

    async def check(self, partition: TopicPartition) -> None:
        """Doubts the topic if it was recreated before this batch was fetched."""
        copy = self._copies.get(partition)
        known = None if copy is None else copy.source_id
        if known is None or (self._client.broker_version >= (3, 1) and not known.startswith(ZNODE)):
            return  # from Kafka 3.1 on, fetches name the topic by id, and metadata with a new id arrives earlier
        if same_topic(known, (await self._clusters.source_ids.of([partition.topic]))[partition.topic]) is False:
            self._doubt(partition.topic)

    async def settle(self, drain: Callable[[Partitions], Awaitable[None]]) -> dict[TopicPartition, Replaced]:
        """Compares doubted partitions with the mirrored records after `drain`. Returns those that were replaced.

        A partition without a leader goes on waiting.
        """
        old, replaced = self._clusters.old, {}
        for topic in {each.topic for each, wait in self._waits.items() if wait is Wait.DOUBTED}:
            led = frozenset(
                each
                for each, wait in self._waits.items()
                if each.topic == topic and wait is Wait.DOUBTED and self._client.leader(each) is not None
            )
            if not led:
                continue
            for each in led:
                del self._waits[each]  # now, so that a doubt that arises during the comparison stays
            ids = await self._clusters.source_ids.of([topic])
            await drain(led)
            ends = await ends_of(old, led)
            logs = {
                each: Log(ends[each].start, self._copies[each].acked)
                for each in led
                if each in ends and each in self._copies
            }
            replaced.update(await find_replaced(self._clusters, logs, ids))
        return replaced

    async def replaced(self, partition: TopicPartition, start: int, error: OffsetOutOfRange) -> Replaced | None:
        """Returns why a log that begins at `start` lacks the position of the mirror; None if it is the mirrored log."""
        ids = await self._clusters.source_ids.of([partition.topic])
        found = await find_replaced(self._clusters, {partition: Log(start, error.offset)}, ids)
        if not found and isinstance(error, LogTruncated):
            return Replaced.truncated(partition, error.offset, error.divergent_offset)
        return found.get(partition)
