"""Exclusive partition ownership for Kafka consumers, through ZooKeeper, from Kafka 0.8 to 4.x.

from allocator import Consumer          # the modern surface
from allocator import GroupedConsumer   # kiel's names: change the import, keep the service
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allocator.compat.grouped import GroupedConsumer
    from allocator.compat.single import SingleConsumer
    from allocator.consumer.consumer import Consumer
    from allocator.consumer.consumer_group import ConsumerGroup
    from allocator.consumer.generation import Generation, PartitionStart
    from allocator.consumer.group_config import ConsumerGroupConfig
    from allocator.consumer.kafka_group_orders import KafkaGroupOrders
    from allocator.consumer.switching import SwitchingConsumer
    from allocator.errors import AllocatorError, CommitFailed, Fenced, GenerationEnded, GroupClosed
    from allocator.fetch.batch import Batch
    from allocator.groups.group_orders import GroupOrders
    from allocator.groups.order_report import OrderReport
    from allocator.groups.zookeeper.orders import Order, OrderResult
    from allocator.resources.allocation import Allocation
    from allocator.resources.sources import ChildrenOf
    from allocator.subscription.listener import RebalanceListener
    from allocator.subscription.loss import RecordsLost
    from allocator.types import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition

__version__ = "0.1.0"

_HOME = {
    "Allocation": "allocator.resources.allocation",
    "AllocatorError": "allocator.errors",
    "Batch": "allocator.fetch.batch",
    "ChildrenOf": "allocator.resources.sources",
    "CommitFailed": "allocator.errors",
    "Consumer": "allocator.consumer.consumer",
    "ConsumerGroup": "allocator.consumer.consumer_group",
    "ConsumerGroupConfig": "allocator.consumer.group_config",
    "Fenced": "allocator.errors",
    "Generation": "allocator.consumer.generation",
    "GenerationEnded": "allocator.errors",
    "GroupClosed": "allocator.errors",
    "GroupOrders": "allocator.groups.group_orders",
    "GroupedConsumer": "allocator.compat.grouped",
    "KafkaGroupOrders": "allocator.consumer.kafka_group_orders",
    "OffsetAndMetadata": "allocator.types",
    "OffsetAndTimestamp": "allocator.types",
    "Order": "allocator.groups.zookeeper.orders",
    "OrderReport": "allocator.groups.order_report",
    "OrderResult": "allocator.groups.zookeeper.orders",
    "PartitionStart": "allocator.consumer.generation",
    "RebalanceListener": "allocator.subscription.listener",
    "Record": "allocator.types",
    "RecordsLost": "allocator.subscription.loss",
    "SingleConsumer": "allocator.compat.single",
    "SwitchingConsumer": "allocator.consumer.switching",
    "TopicPartition": "allocator.types",
}

__all__ = [
    "Allocation",
    "AllocatorError",
    "Batch",
    "ChildrenOf",
    "CommitFailed",
    "Consumer",
    "ConsumerGroup",
    "ConsumerGroupConfig",
    "Fenced",
    "Generation",
    "GenerationEnded",
    "GroupClosed",
    "GroupOrders",
    "GroupedConsumer",
    "KafkaGroupOrders",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Order",
    "OrderReport",
    "OrderResult",
    "PartitionStart",
    "RebalanceListener",
    "Record",
    "RecordsLost",
    "SingleConsumer",
    "SwitchingConsumer",
    "TopicPartition",
    "__version__",
]


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        # lazy: the pytest plugin and the command line import this package, and must stay fast
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)
