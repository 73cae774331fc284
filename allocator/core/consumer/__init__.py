"""Consumers: they combine membership, fetching and offsets of the other rooms.

In: settings of a user. Out: batches and records, and calls to the user's listener or handler.
May touch: everything below through its public surface; nothing above.
"""

from __future__ import annotations

from allocator.core.consumer.consumer import ConsumerBase
from allocator.core.consumer.core import ConsumerCore
from allocator.core.subscription.listener import RebalanceListener

__all__ = ["ConsumerBase", "ConsumerCore", "RebalanceListener"]
