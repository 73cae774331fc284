"""Assignors, the functions that assign a group's partitions to its members, and the types for your own assignors."""

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
