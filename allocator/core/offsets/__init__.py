"""Committed offsets of a group: fetching, committing, keeping them from expiring.

In: a connected `KafkaClient`, a group, offsets, and the `Committer` that commits. Out: offsets, or an error that names
the refused partitions and the reason. May touch: the group's coordinator, and through old brokers the offsets that they
keep in ZooKeeper. It does not know which member owns a partition: the caller decides whether a commit is still allowed.

`coordinator` finds the broker that coordinates a group, `messages` composes the requests, `group_offsets` fetches
offsets and sends the commits in order, `pending_commit` selects the offsets of the next request, `storage` adds the
choice between Kafka and ZooKeeper, `idle` commits the offsets of idle partitions again, and `tracker` keeps the offsets
of the records that the user has done.
"""

from __future__ import annotations

from allocator.core.offsets.coordinator import Coordinator
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.offsets.idle import IdleOffsets
from allocator.core.offsets.messages import Committer, Identity
from allocator.core.offsets.storage import fetch_old_offsets

__all__ = [
    "Committer",
    "Coordinator",
    "GroupOffsets",
    "Identity",
    "IdleOffsets",
    "fetch_old_offsets",
]
