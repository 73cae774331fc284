"""Membership of a group: which members are alive, and which member owns which partition.

In: a ZooKeeper session or a Kafka client, partition counts (`PartitionCountSource`), assignors.
Out: calls to an `AssignmentListener`: assigned, revoked, lost, suspended, resumed; and `may_act`, the lease.
It changes the znodes of the group, or the group on its coordinator, but no record and no offset.

`membership` defines the interface `Membership`. Two implementations are here:

- `zookeeper`: this library's own protocol, with exclusive ownership through ZooKeeper;
- `fixed`: no group; the user names the partitions.

`allocator.protocols` has those for Kafka's own protocols and for the layouts of older clients. All memberships on
ZooKeeper share `session` and `lease`. `view` builds the input of allocator functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.core.membership.lease import Lease, MemberLease
    from allocator.core.membership.membership import AssignmentListener, GroupMembership, MemberSettings, Membership
    from allocator.core.membership.session import SessionMembership
    from allocator.core.membership.task_holds import TaskHolds
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
    "TaskHolds",
    "ZooKeeperMembership",
    "ZooKeeperSettings",
    "preview",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "lease": "Lease MemberLease",
            "membership": "AssignmentListener GroupMembership MemberSettings Membership",
            "session": "SessionMembership",
            "task_holds": "TaskHolds",
            "view": "GroupViewBuilder Load",
            "zookeeper.decision": "preview",
            "zookeeper.membership": "ZooKeeperMembership ZooKeeperSettings",
        },
    )
