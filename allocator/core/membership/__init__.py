"""Membership of a group: which members are alive, and which of them owns which partition.

In: a ZooKeeper session or a Kafka client, partition counts (`PartitionCountSource`), assignors.
Out: calls to an `AssignmentListener`: assigned, revoked, lost, suspended, resumed; and `may_act`, the lease.
May touch: the znodes of the group, or the group on its coordinator; no record and no offset.

Each protocol has a room behind the one interface `Membership`:

- `zookeeper`: this library's own protocol, with exclusive ownership through ZooKeeper;
- `kafka_classic`: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, shared with members of any other client;
- `kip848`: ConsumerGroupHeartbeat, where the coordinator assigns;
- `legacy`: groups of kiel, of Kafka 0.8's consumers and of pykafka, while a service moves;
- `fixed`: no group; the user names the partitions.

The rooms share `session` and `lease` (ZooKeeper sessions), `kafka_group`, `kafka_member` and `heartbeat` (the two
Kafka protocols), `patterns`, `names`, `view`. `describe` and `kafka_describe` show a group without joining it.
"""

from __future__ import annotations

from allocator.core.membership.lease import Lease, MemberLease
from allocator.core.membership.membership import AssignmentListener, GroupMembership, MemberSettings, Membership
from allocator.core.membership.session import SessionMembership
from allocator.core.membership.view import GroupViewBuilder, Load
from allocator.core.membership.zookeeper.decision import preview
from allocator.core.membership.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings

__all__ = [
    "AssignmentListener",
    "GroupMembership",
    "GroupViewBuilder",
    "Lease",
    "Load",
    "MemberLease",
    "MemberSettings",
    "Membership",
    "SessionMembership",
    "ZooKeeperMembership",
    "ZooKeeperSettings",
    "preview",
]
