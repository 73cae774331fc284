"""Consumers: they combine membership, fetching and offsets of the other rooms.

In: settings of a user. Out: batches and records, and calls to the user's listener or handler.
May touch: everything below through its public surface; nothing above.
"""

from __future__ import annotations

from allocator.consumer.consumer import Consumer
from allocator.consumer.consumer_group import ConsumerGroup
from allocator.consumer.generation import Generation
from allocator.consumer.group_config import ConsumerGroupConfig
from allocator.subscription.listener import RebalanceListener

__all__ = [
    "Consumer",
    "ConsumerGroup",
    "ConsumerGroupConfig",
    "Generation",
    "RebalanceListener",
]
