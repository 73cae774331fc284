"""Functions that divide the partitions of a group among its members, and what is needed to write one."""

from allocator.core.assignors import (
    Assignor,
    AssignorSpec,
    GroupView,
    Member,
    SubscriberClass,
    choose,
    compute,
    first_step,
    known_names,
    left_out,
    naive,
    naive_allocator,
    resolve,
    validate,
    wants,
)

__all__ = [
    "Assignor",
    "AssignorSpec",
    "GroupView",
    "Member",
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
