"""The znodes of a group on ZooKeeper: their paths, their documents, and how these are read and checked.

In: bytes of znodes. Out: frozen objects. All content is checked when it is read, because another program may have
written it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
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

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "checked": "InvalidZnode",
            "documents": "AssignmentDocument Claim InflateBudget MemberInfo Paths in_join_order to_ranges",
            "load_reader": "loads_of",
            "load_report": "LoadReport",
            "member_names": "default_client_id member_name",
            "store": "Store",
        },
    )
