"""The znodes of a group on ZooKeeper: their paths, their documents, and how these are read and checked.

In: bytes of znodes. Out: frozen objects. All content is checked when it is read, because another program may have
written it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.core.znodes.documents import (
        AssignmentDocument,
        Claim,
        MemberInfo,
        Paths,
        in_join_order,
    )
    from allocator.core.znodes.load_reader import loads_of
    from allocator.core.znodes.load_report import LoadReport
    from allocator.core.znodes.member_names import member_name
    from allocator.core.znodes.store import Store

__all__ = [
    "AssignmentDocument",
    "Claim",
    "LoadReport",
    "MemberInfo",
    "Paths",
    "Store",
    "in_join_order",
    "loads_of",
    "member_name",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "documents": "AssignmentDocument Claim MemberInfo Paths in_join_order",
            "load_reader": "loads_of",
            "load_report": "LoadReport",
            "member_names": "member_name",
            "store": "Store",
        },
    )
