"""The subscription, the assignment, and the position of each partition.

In: the consumer's choices (topics, pattern, partitions, seeks, pauses), the membership's assignments, and the offsets
of logs from fetch. Out: the partitions that fetch may read with their positions, and the listeners to call in a
rebalance. Touches nothing: no lock, no I/O, no task; the rooms meet here.
"""

from __future__ import annotations

from allocator.core.subscription.kinds import (
    EARLIEST,
    LATEST,
    FetchState,
    ResetStrategy,
    SubscriptionType,
    reset_timestamp,
)
from allocator.core.subscription.listener import RebalanceEvent, RebalanceListener, callback_of
from allocator.core.subscription.loss import NoPosition, OutOfTurn, RecordsLost
from allocator.core.subscription.partition import PartitionState, TopicPartitionState
from allocator.core.subscription.positions import LogTruncation
from allocator.core.subscription.state import SubscriptionState

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
