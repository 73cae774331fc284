"""Assignors: pure functions that assign partitions to members.

In: a `GroupView` with the members, their subscriptions, the partition counts and the current owners. Out: a validated
mapping of member id to partitions. No I/O.

`registry` finds an assignor by name. `basic`, `sticky` and `load` are the built-in assignors. The even ones use `flow`,
which computes how many partitions each member gets, and `problem`, which computes which ones. `validate` checks every
result. `constraints` applies operator commands to it. `view` builds the input of a leader; `load_report` measures what
`load` balances.
"""

from __future__ import annotations

from allocator.assignors.basic import naive
from allocator.assignors.basic import range_share as range_share
from allocator.assignors.choose import choose
from allocator.assignors.constraints import Constraints as Constraints
from allocator.assignors.constraints import steer as steer
from allocator.assignors.kiel import KielAssignor as KielAssignor
from allocator.assignors.kiel import naive_allocator
from allocator.assignors.load import LoadAssignor as LoadAssignor
from allocator.assignors.load import MemberLoads as MemberLoads
from allocator.assignors.load import balance as balance
from allocator.assignors.load import moved as moved
from allocator.assignors.load_report import REPORT_S as REPORT_S
from allocator.assignors.load_report import LoadMeter as LoadMeter
from allocator.assignors.load_report import LoadReport as LoadReport
from allocator.assignors.registry import AssignorSpec, known_names, resolve
from allocator.assignors.registry import built_in as built_in
from allocator.assignors.registry import of_kiel as of_kiel
from allocator.assignors.sticky import first_step
from allocator.assignors.types import Assignor, GroupView, Member, SubscriberClass, wants
from allocator.assignors.validate import compute, left_out, validate
from allocator.assignors.view import GroupViewBuilder as GroupViewBuilder
from allocator.assignors.view import Load as Load

# what users may rely on; the other names are for the packages of this library
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
