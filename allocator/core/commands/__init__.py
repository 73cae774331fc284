"""Operator commands that the members and the leader of a group obey.

`order_store` reads and writes the commands in a znode. Everything else does no I/O: it turns the commands into
constraints on assignments, and computes their states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names

if TYPE_CHECKING:
    from allocator.core.commands.order_store import OrderStore
    from allocator.core.commands.orders import (
        KINDS,
        Order,
        OrderKeeper,
        OrderResult,
        Orders,
    )
    from allocator.core.commands.steering import (
        Budget,
        counting,
        members_named,
    )

__all__ = [
    "KINDS",
    "Budget",
    "Order",
    "OrderKeeper",
    "OrderResult",
    "OrderStore",
    "Orders",
    "counting",
    "members_named",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "order_store": "OrderStore",
            "orders": "KINDS Order OrderKeeper OrderResult Orders",
            "steering": "Budget counting members_named",
        },
    )
