"""Exclusive partition ownership for Kafka consumers, through ZooKeeper, from Kafka 0.8 to 4.x.

from allocator import Consumer          # the modern surface
from allocator import GroupedConsumer   # kiel's names: change the import, keep the service
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from allocator.core.memberships import register

if TYPE_CHECKING:
    from allocator.compat.consumer_group import ConsumerGroup
    from allocator.compat.generation import Generation, PartitionStart
    from allocator.compat.group_config import ConsumerGroupConfig
    from allocator.compat.grouped import GroupedConsumer
    from allocator.compat.single import SingleConsumer
    from allocator.core.fetch.batch import Batch
    from allocator.core.membership.zookeeper.orders import Order, OrderResult
    from allocator.core.subscription.listener import RebalanceListener
    from allocator.core.subscription.loss import RecordsLost
    from allocator.errors import AllocatorError, CommitFailed, Fenced, GenerationEnded, GroupClosed
    from allocator.handlers.consumer import Consumer
    from allocator.operate.group_orders import GroupOrders
    from allocator.operate.kafka_group_orders import KafkaGroupOrders
    from allocator.operate.order_report import OrderReport
    from allocator.operate.switching import SwitchingConsumer
    from allocator.resources.allocation import Allocation
    from allocator.resources.sources import ChildrenOf
    from allocator.types import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition

__version__ = "0.1.0"

for _name, _options in {
    "kafka": "KafkaOptions",
    "kiel": "KielOptions",
    "consumers": "ConsumersOptions",
    "pykafka": "PykafkaOptions",
}.items():
    register(_name, f"allocator.protocols.options:{_options}")

_HOME = {
    "Allocation": "allocator.resources.allocation",
    "AllocatorError": "allocator.errors",
    "Batch": "allocator.core.fetch.batch",
    "ChildrenOf": "allocator.resources.sources",
    "CommitFailed": "allocator.errors",
    "Consumer": "allocator.handlers.consumer",
    "ConsumerGroup": "allocator.compat.consumer_group",
    "ConsumerGroupConfig": "allocator.compat.group_config",
    "Fenced": "allocator.errors",
    "Generation": "allocator.compat.generation",
    "GenerationEnded": "allocator.errors",
    "GroupClosed": "allocator.errors",
    "GroupOrders": "allocator.operate.group_orders",
    "GroupedConsumer": "allocator.compat.grouped",
    "KafkaGroupOrders": "allocator.operate.kafka_group_orders",
    "OffsetAndMetadata": "allocator.types",
    "OffsetAndTimestamp": "allocator.types",
    "Order": "allocator.core.membership.zookeeper.orders",
    "OrderReport": "allocator.operate.order_report",
    "OrderResult": "allocator.core.membership.zookeeper.orders",
    "PartitionStart": "allocator.compat.generation",
    "RebalanceListener": "allocator.core.subscription.listener",
    "Record": "allocator.types",
    "RecordsLost": "allocator.core.subscription.loss",
    "SingleConsumer": "allocator.compat.single",
    "SwitchingConsumer": "allocator.operate.switching",
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
