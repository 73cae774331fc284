"""Consumers: they combine membership, fetching and offsets of the other rooms.

In: settings of a user. Out: batches and records, and calls to the user's listener or handler.
May touch: everything below through its public surface; nothing above.
"""

from __future__ import annotations

from allocator.core.consumer.consumer import ConsumerBase, client_of, join_again_if
from allocator.core.consumer.core import ConsumerCore
from allocator.core.consumer.measures import lag
from allocator.core.consumer.membership_config import (
    Connections,
    EnsembleOptions,
    Fault,
    MembershipConfig,
    MembershipOptions,
    membership_from,
)
from allocator.core.consumer.sink import OffsetSink, SinkClaim, SinkOffset

__all__ = [
    "Connections",
    "ConsumerBase",
    "ConsumerCore",
    "EnsembleOptions",
    "Fault",
    "MembershipConfig",
    "MembershipOptions",
    "OffsetSink",
    "SinkClaim",
    "SinkOffset",
    "client_of",
    "join_again_if",
    "lag",
    "membership_from",
]
