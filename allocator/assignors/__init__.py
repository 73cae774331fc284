"""Who gets which partition: pure functions, no I/O.

In: a `GroupView` (members, what they subscribe to, how many partitions each topic has, who holds what now).
Out: a validated mapping of member id to partitions. Touches nothing; imports no other room.

A file for each function, found by name through `registry`. What they share: `flow` says how many partitions each
member gets, `holdings` turns a view into numbers and counts into partitions, `space` is the numbers themselves.
"""

from __future__ import annotations

from allocator.assignors.basic import naive
from allocator.assignors.choose import choose
from allocator.assignors.kiel import naive_allocator
from allocator.assignors.problem import PartitionSet
from allocator.assignors.registry import AssignorSpec, known_names, resolve
from allocator.assignors.sticky import first_step
from allocator.assignors.types import Assignor, GroupView, Member, SubscriberClass, wants
from allocator.assignors.validate import compute, left_out, validate

__all__ = [
    "Assignor",
    "AssignorSpec",
    "GroupView",
    "Member",
    "PartitionSet",
    "SubscriberClass",
    "choose",
    "compute",
    "first_step",
    "known_names",
    "left_out",
    "naive",
    "naive_allocator",
    "resolve",
    "validate",
    "wants",
]
