"""What the brokers said about the cluster: a value, replaced as a whole by each answer. No I/O.

Protocol: the Metadata API (https://kafka.apache.org/protocol#The_Messages_Metadata), v0 to v13.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

__all__ = ["Broker", "Metadata", "Partition", "Topic"]

UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5

NO_ID = uuid.UUID(int=0)  # of brokers that are told to speak as those before 2.8

# answers before v1 do not say which topics are internal
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


class Broker(NamedTuple):
    """A broker as it announces itself. Field order is kafka-python's."""

    node_id: Any
    host: str
    port: int
    rack: str | None


class Partition(NamedTuple):
    leader: int | None  # None: being elected
    leader_epoch: int | None  # None: the broker's version does not tell it reliably
    replicas: tuple[int, ...]


class Topic(NamedTuple):
    partitions: Mapping[int, Partition]
    internal: bool
    topic_id: Any  # uuid.UUID from 2.8 on, else None


@dataclass(frozen=True)
class Metadata:
    """A snapshot. `errors` holds Kafka's code for each topic that was asked for and cannot be described."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    cluster_id: str | None = None
    controller: int | None = None

    def updated(self, response: Any, *, complete: bool) -> Metadata:
        """This snapshot after `response`; `complete`: it describes all topics, so those left out are gone."""
        brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        topics = {} if complete else dict(self.topics)
        errors = {} if complete else dict(self.errors)
        for answer in response.topics:
            errors.pop(answer.name, None)
            if answer.error_code == 0:
                topics[answer.name] = self._topic(answer, response.API_VERSION)
                continue
            errors[answer.name] = answer.error_code
            if answer.error_code == LEADER_NOT_AVAILABLE and answer.name in self.topics:
                topics[answer.name] = self.topics[answer.name]  # it exists; the broker cannot describe it just now
            else:
                topics.pop(answer.name, None)
        return replace(
            self,
            brokers=brokers,
            topics=topics,
            errors=errors,
            cluster_id=response.cluster_id,
            controller=response.controller_id if response.controller_id != -1 else None,
        )

    def _topic(self, answer: Any, version: int) -> Topic:
        topic_id = answer.topic_id if version >= 10 and answer.topic_id != NO_ID else None
        before = self.topics.get(answer.name)
        same_topic = before is not None and topic_id is not None and before.topic_id == topic_id
        partitions = {}
        for p in sorted(answer.partitions, key=lambda p: int(p.partition_index)):
            leader = p.leader_id if p.leader_id >= 0 else None
            # brokers before 2.4 announce epochs that lag behind (KAFKA-9212); a client that believes them is fenced
            epoch = p.leader_epoch if version >= 9 and p.leader_epoch >= 0 else None
            new = Partition(leader, epoch, tuple(p.replica_nodes))
            old = before.partitions.get(p.partition_index) if same_topic and before is not None else None
            if old is not None and old.leader_epoch is not None and epoch is not None and epoch < old.leader_epoch:
                new = old  # an answer from a broker that has not heard of the election we know of
            partitions[p.partition_index] = new
        internal = answer.is_internal if version >= 1 else answer.name in INTERNAL_TOPICS
        return Topic(partitions, internal, topic_id)

    def settled(self, wanted: frozenset[str] | None) -> bool:
        """False while asking again soon may tell more: no broker yet, a topic missing, a partition without leader.

        `wanted` None means every topic.
        """
        if not self.brokers:
            return False
        names = self.topics.keys() if wanted is None else wanted
        return all(
            name in self.topics and all(p.leader is not None for p in self.topics[name].partitions.values())
            for name in names
        )
