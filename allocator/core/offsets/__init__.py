"""Fetches and commits the offsets of a group, and keeps them from expiring.

In: a connected `KafkaClient`, a group, offsets. Out: offsets, or an error that names the refused partitions and the
reason. Offsets are in Kafka, or in the ZooKeeper of old brokers. This package does not know which member owns a
partition. The caller decides whether a commit is still allowed.

- `group_offsets` fetches offsets and sends commits in order.
- `pending_commit` selects the offsets of the next request.
- `storage` chooses between Kafka and ZooKeeper.
- `idle` commits the offsets of idle partitions again.
"""

from __future__ import annotations

from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.core.offsets.idle import IdleOffsets
from allocator.core.offsets.pending_commit import Terms
from allocator.core.offsets.storage import fetch_old_offsets
