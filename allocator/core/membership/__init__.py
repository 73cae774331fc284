"""Membership of a group: which members are alive, and which member owns which partition.

`membership` defines the interface `Membership`: calls to an `AssignmentListener` (assigned, revoked, lost, suspended,
resumed), and `may_act`, the lease. It changes the group, but no record and no offset.

The group protocols are in `allocator.protocols`, and are found by name (`allocator.core.memberships`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.core.membership.holding import HoldingListener, draining
    from allocator.core.membership.membership import AssignmentListener, GroupMembership, MemberSettings, Membership


if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "holding": "HoldingListener draining",
            "membership": "AssignmentListener GroupMembership MemberSettings Membership",
        },
    )
