"""Assignors: pure functions that assign partitions to members, without I/O.

In: a `GroupView` (members, their subscriptions, the number of partitions of each topic, what each member holds now).
Out: a validated mapping of member id to partitions. Touches nothing; imports no other room.

`registry` finds an assignor by name. `basic`, `sticky` and `load` have the built-in ones; `problem` and `flow`
compute the even ones: `flow` how many partitions each member gets, `problem` which. `validate` checks every result, and
`constraints` applies the orders of an operator to it.
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
