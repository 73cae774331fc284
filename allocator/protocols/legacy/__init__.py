"""Groups shared with members of older libraries during an upgrade: kiel 0.9.3, Kafka 0.8, pykafka.

In: a ZooKeeper session, partition counts. Out: calls to an `AssignmentListener`.
Reads and writes the znodes of those libraries, in their layout.

`owners` is the base of all layouts: one ephemeral znode for each owned partition. `kiel` and `old_consumer` are the
layouts.
"""

from __future__ import annotations

from allocator.protocols.legacy.kiel import AdoptionRefused, HandoverPhase, KielPaths, read_group, read_shared, seal
from allocator.protocols.legacy.old_consumer import OldSubscription
