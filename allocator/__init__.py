"""Exclusive partition ownership for Kafka consumers, through ZooKeeper, from Kafka 0.8 to 4.x.

from allocator import Consumer          # the current interface
from allocator import GroupedConsumer   # the interface of kiel: a service changes only its import
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from allocator.core.memberships import register

if TYPE_CHECKING:
    from allocator.commands import Command, CommandResult
    from allocator.compat import GroupedConsumer, SingleConsumer
    from allocator.compat.consumer_group import ConsumerGroup
    from allocator.compat.generation import Generation, PartitionStart
    from allocator.compat.group_config import ConsumerGroupConfig
    from allocator.compat.kiel_producer import KielProducer
    from allocator.core.consumer.membership_config import MembershipOptions
    from allocator.core.fetch.batch import Batch
    from allocator.core.subscription import RebalanceListener, RecordsLost
    from allocator.errors import AllocatorError, CommitFailed, DeliveryFailed, Fenced, GenerationEnded, GroupClosed
    from allocator.handlers.consumer import Consumer
    from allocator.handlers.results import Produce
    from allocator.operate.command_report import CommandReport
    from allocator.operate.group_commands import GroupCommands
    from allocator.operate.kafka_group_commands import KafkaGroupCommands
    from allocator.operate.switching import SwitchingConsumer
    from allocator.producer.consumer_transaction import Transaction
    from allocator.producer.producer import Producer
    from allocator.protocols.fixed import Fixed
    from allocator.protocols.legacy.options import Kiel, OldConsumers, Pykafka
    from allocator.protocols.options import Kafka
    from allocator.protocols.zookeeper.options import ZooKeeper
    from allocator.resources import Allocation, ChildrenOf
    from allocator.types import OffsetAndMetadata, OffsetAndTimestamp, Record, RecordMetadata, TopicPartition

__version__ = "0.1.0"


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package, which imports the module of a name on first use.

    `homes` maps a module to its names, separated by spaces. Lazy imports keep the command line and the pytest plugin
    fast.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{home[name]}", package), name)

    return find


register("fixed", "allocator.protocols.fixed:Fixed")
register("zookeeper", "allocator.protocols.zookeeper.options:ZooKeeper")
register("kafka", "allocator.protocols.options:Kafka")
for _name, _kind in {"kiel": "Kiel", "consumers": "OldConsumers", "pykafka": "Pykafka"}.items():
    register(_name, f"allocator.protocols.legacy.options:{_kind}")

__all__ = [
    "Allocation",
    "AllocatorError",
    "Batch",
    "ChildrenOf",
    "Command",
    "CommandReport",
    "CommandResult",
    "CommitFailed",
    "Consumer",
    "ConsumerGroup",
    "ConsumerGroupConfig",
    "DeliveryFailed",
    "Fenced",
    "Fixed",
    "Generation",
    "GenerationEnded",
    "GroupClosed",
    "GroupCommands",
    "GroupedConsumer",
    "Kafka",
    "KafkaGroupCommands",
    "Kiel",
    "KielProducer",
    "MembershipOptions",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OldConsumers",
    "PartitionStart",
    "Produce",
    "Producer",
    "Pykafka",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RecordsLost",
    "SingleConsumer",
    "SwitchingConsumer",
    "TopicPartition",
    "Transaction",
    "ZooKeeper",
    "__version__",
]

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "compat": "GroupedConsumer SingleConsumer",
            "compat.consumer_group": "ConsumerGroup",
            "compat.generation": "Generation PartitionStart",
            "compat.group_config": "ConsumerGroupConfig",
            "compat.kiel_producer": "KielProducer",
            "core.consumer.membership_config": "MembershipOptions",
            "protocols.zookeeper.options": "ZooKeeper",
            "core.fetch.batch": "Batch",
            "commands": "Command CommandResult",
            "core.subscription": "RebalanceListener RecordsLost",
            "errors": "AllocatorError CommitFailed DeliveryFailed Fenced GenerationEnded GroupClosed",
            "handlers.consumer": "Consumer",
            "handlers.results": "Produce",
            "operate.group_commands": "GroupCommands",
            "operate.kafka_group_commands": "KafkaGroupCommands",
            "operate.command_report": "CommandReport",
            "operate.switching": "SwitchingConsumer",
            "producer.consumer_transaction": "Transaction",
            "producer.producer": "Producer",
            "protocols.fixed": "Fixed",
            "protocols.legacy.options": "Kiel OldConsumers Pykafka",
            "protocols.options": "Kafka",
            "resources": "Allocation ChildrenOf",
            "types": "OffsetAndMetadata OffsetAndTimestamp Record RecordMetadata TopicPartition",
        },
    )
