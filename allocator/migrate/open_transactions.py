"""Finds transactions of the old cluster that hold back a mirror, and their producers.

Protocol: DescribeProducers and ListTransactions (KIP-664, Kafka 3.0).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping

from kafka.protocol.admin import DescribeProducersRequest, ListTransactionsRequest

from allocator.core.client import KafkaClient
from allocator.errors import AllocatorError
from allocator.migrate.translate import ends_of
from allocator.types import TopicPartition


class OpenTransactions:
    """The transactions at which the copies of partitions stand, as of the last `update`."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self.begin: dict[TopicPartition, int] = {}
        """Partition -> the first offset of the transaction."""
        self._since = time.monotonic()  # when this last changed

    @property
    def age_s(self) -> float:
        """How long the copies have been standing there."""
        return time.monotonic() - self._since

    async def update(self, positions: Mapping[TopicPartition, int]) -> None:
        """`positions` are the old offsets up to which partitions are copied. Raises BrokerError."""
        begin: dict[TopicPartition, int] = {}
        if positions:
            stable = await ends_of(self._client, positions, isolation_level="read_committed")
            ends = await ends_of(self._client, stable)
            begin = {p: one.end for p, one in stable.items() if p in ends and positions[p] >= one.end < ends[p].end}
        if begin != self.begin:
            self.begin, self._since = begin, time.monotonic()

    async def describe(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Returns where the transaction of each partition begins, and whose it is, as far as the brokers tell."""
        found = {}
        for each in partitions:
            text = f"from offset {self.begin[each]} on"
            with contextlib.suppress(AllocatorError):  # an older broker, or a right that this user lacks
                text += await self._producer(each)
            found[each] = text
        return found

    async def _producer(self, partition: TopicPartition) -> str:
        client, leader = self._client, self._client.leader(partition)
        if leader is None or client.api_version(DescribeProducersRequest) is None:
            return ""
        kind = DescribeProducersRequest.TopicRequest
        topics = [kind(name=partition.topic, partition_indexes=[partition.partition])]
        response = await client.send(leader, DescribeProducersRequest(topics=topics))
        active = [one for topic in response.topics for part in topic.partitions for one in part.active_producers]
        ids = {one.producer_id for one in active if one.current_txn_start_offset == self.begin[partition]}
        if not ids:
            return ""
        text = f", producer id {min(ids)}"
        request = ListTransactionsRequest(state_filters=[], producer_id_filters=[*ids], max_version=0)
        for broker in client.brokers:
            for one in (await client.send(broker.node_id, request)).transaction_states:
                text += f", transactional id {one.transactional_id!r}"
        return text
