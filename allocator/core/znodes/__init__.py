"""The znodes of a group on ZooKeeper: their paths, their documents, and how these are read and checked.

In: bytes of znodes. Out: frozen objects. All content is checked when it is read, because another program may have
written it.
"""

from __future__ import annotations

from allocator.core.znodes.checked import InvalidZnode
from allocator.core.znodes.documents import (
    AssignmentDocument,
    Claim,
    InflateBudget,
    MemberInfo,
    Paths,
    in_join_order,
    to_ranges,
)
from allocator.core.znodes.load_reader import loads_of
from allocator.core.znodes.load_report import LoadReport
from allocator.core.znodes.member_names import default_client_id, member_name
from allocator.core.znodes.store import Store

__all__ = [
    "AssignmentDocument",
    "Claim",
    "InflateBudget",
    "InvalidZnode",
    "LoadReport",
    "MemberInfo",
    "Paths",
    "Store",
    "default_client_id",
    "in_join_order",
    "loads_of",
    "member_name",
    "to_ranges",
]
