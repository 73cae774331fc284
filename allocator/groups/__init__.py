"""Who is alive and who owns what.

In: a ZooKeeper session or a group coordinator, partition counts (`PartitionCountSource`), assignors.
Out: calls to an `AssignmentListener`: assigned, revoked, lost, suspended, resumed; and `may_act`, the lease.
May touch: the znodes under <root>/<group>, or the group by Kafka's own protocol; never a record or an offset.

`zookeeper`: `plan` is the protocol's decision as a pure function, `znodes` its data, `leader` and `zookeeper` the two
roles. `kafka`: Kafka's own protocol, on what `coordinator` does. `fixed`: no group at all.
"""

from __future__ import annotations

from allocator.groups.membership import AssignmentListener, Membership, PartitionCountSource

__all__ = ["AssignmentListener", "Membership", "PartitionCountSource"]
