"""What is subscribed and assigned, and where each partition stands.

In: the consumer's choices (topics, pattern, partitions, seeks, pauses), the membership's assignments, and what fetch
learns of the logs. Out: what fetch may read and from which position, and who is to be told of rebalances.
Touches nothing: no lock, no I/O, no task; the rooms meet here.
"""

from __future__ import annotations

from allocator.subscription.kinds import EARLIEST, LATEST, FetchState, ResetStrategy, SubscriptionType, reset_timestamp
from allocator.subscription.listener import RebalanceEvent, RebalanceListener, callback_of
from allocator.subscription.loss import NoPosition, OutOfTurn, RecordsLost
from allocator.subscription.partition import PartitionState, TopicPartitionState
from allocator.subscription.positions import LogTruncation
from allocator.subscription.state import SubscriptionState

__all__ = [
    "EARLIEST",
    "LATEST",
    "FetchState",
    "LogTruncation",
    "NoPosition",
    "OutOfTurn",
    "PartitionState",
    "RebalanceEvent",
    "RebalanceListener",
    "RecordsLost",
    "ResetStrategy",
    "SubscriptionState",
    "SubscriptionType",
    "TopicPartitionState",
    "callback_of",
    "reset_timestamp",
]
