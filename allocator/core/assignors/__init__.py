"""Assignors: pure functions that assign partitions to members.

In: a `GroupView` with the members, their subscriptions, the partition counts and the current owners. Out: a validated
mapping of member id to partitions. No I/O.

`registry` finds an assignor by name. `basic`, `sticky` and `load` are the built-in assignors. The even ones use `flow`,
which computes how many partitions each member gets, and `problem`, which computes which ones. `validate` checks every
result. `constraints` applies operator commands to it.
"""

from __future__ import annotations

from allocator.core.assignors.basic import naive, range_share
from allocator.core.assignors.choose import choose
from allocator.core.assignors.kiel import KielAssignor, naive_allocator
from allocator.core.assignors.load import MemberLoads
from allocator.core.assignors.registry import AssignorSpec, built_in, known_names, of_kiel, resolve
from allocator.core.assignors.sticky import first_step
from allocator.core.assignors.types import Assignor, GroupView, Member, SubscriberClass, wants
from allocator.core.assignors.validate import compute, left_out, validate

__all__ = [
    "Assignor",
    "AssignorSpec",
    "GroupView",
    "KielAssignor",
    "Member",
    "MemberLoads",
    "SubscriberClass",
    "built_in",
    "choose",
    "compute",
    "first_step",
    "known_names",
    "left_out",
    "naive",
    "naive_allocator",
    "of_kiel",
    "range_share",
    "resolve",
    "validate",
    "wants",
]
