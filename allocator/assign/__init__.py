"""Who gets which partition: pure functions, no I/O.

In: a `GroupView` (members, what they subscribe to, how many partitions each topic has, who holds what now).
Out: a validated mapping of member id to partitions. Touches nothing; imports no other room.
"""

from __future__ import annotations

from allocator.assign.choose import choose
from allocator.assign.kiel import naive_allocator
from allocator.assign.naive import naive
from allocator.assign.registry import known_names, resolve
from allocator.assign.types import Assignor, GroupView, Member, SubscriberClass
from allocator.assign.validate import compute, validate

__all__ = [
    "Assignor",
    "GroupView",
    "Member",
    "SubscriberClass",
    "choose",
    "compute",
    "known_names",
    "naive",
    "naive_allocator",
    "resolve",
    "validate",
]
