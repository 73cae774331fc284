"""The subscription, the assignment, and the position of each partition.

In: the consumer's choices (topics, pattern, partitions, seeks, pauses), the membership's assignments, and the offsets
of logs from fetch. Out: the partitions that fetch may read with their positions, and the listeners to call in a
rebalance. Touches nothing: no lock, no I/O, no task; the rooms meet here.
"""

from __future__ import annotations

from allocator.core.subscription.done import DoneSet
from allocator.core.subscription.listener import RebalanceEvent, RebalanceListener, check_listener
from allocator.core.subscription.loss import (
    Committed,
    NoPosition,
    RecordsLost,
    listed,
    stamped,
)
from allocator.core.subscription.partition import FetchState, TopicPartitionState
from allocator.core.subscription.patterns import (
    ANY_TOPIC,
    PartitionCountSource,
    TopicSelection,
    check_pattern,
    topic_pattern,
)
from allocator.core.subscription.state import EARLIEST, LATEST, LogTruncation, SubscriptionState
from allocator.core.subscription.tenures import Phase, Tenure, Tenures

__all__ = [
    "ANY_TOPIC",
    "EARLIEST",
    "LATEST",
    "Committed",
    "DoneSet",
    "FetchState",
    "LogTruncation",
    "NoPosition",
    "PartitionCountSource",
    "Phase",
    "RebalanceEvent",
    "RebalanceListener",
    "RecordsLost",
    "SubscriptionState",
    "Tenure",
    "Tenures",
    "TopicPartitionState",
    "TopicSelection",
    "check_listener",
    "check_pattern",
    "listed",
    "stamped",
    "topic_pattern",
]
