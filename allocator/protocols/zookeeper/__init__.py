"""Exclusive ownership through ZooKeeper: at most one member owns a partition at any instant.

In: a ZooKeeper session, partition counts and assignors. Out: calls to an `AssignmentListener`; `may_act`, the lease. It
writes the znodes below `<root>/<group>`, but no record and no offset.

Start reading at `membership`, the code that each member runs. The oldest member also runs `leader`: it takes a
snapshot of the group (`group_znodes`), decides (`decider`, `decision`), and writes the assignment. `plan` decides, as a
pure function, when a partition changes its owner; `steering`, what operator commands make of it. `znodes` defines,
reads and writes the data. `client` is the connection. Older layouts share `session` and `session_lease`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.protocols.zookeeper.client.client import (
        BadVersion,
        ConnectionLost,
        NoChroot,
        NotAuthorized,
        NoZnode,
        Op,
        SessionState,
        Watched,
        ZnodeExists,
        ZooKeeperClient,
        ZooKeeperError,
        above_chroot,
        retrying,
    )
    from allocator.protocols.zookeeper.client.ephemeral import EphemeralZnodes
    from allocator.protocols.zookeeper.client.security import check_options
    from allocator.protocols.zookeeper.cluster_choice import (
        ClusterChoice,
        choice_path,
        choose_cluster,
        elsewhere,
        read_choice,
        same_cluster,
    )
    from allocator.protocols.zookeeper.command_store import CommandStore
    from allocator.protocols.zookeeper.decision import preview
    from allocator.protocols.zookeeper.membership import ZooKeeperMembership, ZooKeeperSettings
    from allocator.protocols.zookeeper.options import EnsembleOptions
    from allocator.protocols.zookeeper.session import SessionMembership
    from allocator.protocols.zookeeper.session_lease import MembershipLost
    from allocator.protocols.zookeeper.steering import Budget, counting, members_named
    from allocator.protocols.zookeeper.znodes.documents import (
        OF_RESOURCES,
        AssignmentDocument,
        Claim,
        MemberInfo,
        Paths,
        in_join_order,
    )
    from allocator.protocols.zookeeper.znodes.load_reader import loads_of
    from allocator.protocols.zookeeper.znodes.member_names import member_name
    from allocator.protocols.zookeeper.znodes.store import CopiedZnode, Store


if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "client.client": (
                "BadVersion ConnectionLost NoChroot NotAuthorized NoZnode Op SessionState Watched ZnodeExists "
                "ZooKeeperClient ZooKeeperError above_chroot retrying"
            ),
            "client.ephemeral": "EphemeralZnodes",
            "client.security": "check_options",
            "cluster_choice": "ClusterChoice choice_path choose_cluster elsewhere read_choice same_cluster",
            "decision": "preview",
            "membership": "ZooKeeperMembership ZooKeeperSettings",
            "options": "EnsembleOptions",
            "command_store": "CommandStore",
            "session": "SessionMembership",
            "session_lease": "MembershipLost",
            "steering": "Budget counting members_named",
            "znodes.documents": "OF_RESOURCES AssignmentDocument Claim MemberInfo Paths in_join_order",
            "znodes.load_reader": "loads_of",
            "znodes.member_names": "member_name",
            "znodes.store": "CopiedZnode Store",
        },
    )
