"""What is subscribed and assigned, and where each partition stands.

In: the consumer's choices (topics, pattern, partitions, seeks, pauses) and the membership's assignments. Out: what
fetch may read and from which position. Touches nothing: no lock, no I/O, no task; the rooms meet here.
"""

from __future__ import annotations

from allocator.subscription.partition import EARLIEST, LATEST, PartitionState, reset_timestamp
from allocator.subscription.state import SubscriptionState, SubscriptionType

__all__ = [
    "EARLIEST",
    "LATEST",
    "PartitionState",
    "SubscriptionState",
    "SubscriptionType",
    "reset_timestamp",
]
