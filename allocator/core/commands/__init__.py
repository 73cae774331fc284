"""Operator commands that the members and the leader of a group obey.

In: the orders of operators, from a znode or a topic. Out: constraints on assignments, and the states of orders. May
touch: the znode of the orders (`order_store`); the rest is pure.
"""

from __future__ import annotations

from allocator.core.commands.order_store import OrderStore
from allocator.core.commands.orders import (
    KINDS,
    Order,
    OrderKeeper,
    OrderResult,
    Orders,
    decode_entry,
    encode_entry,
)
from allocator.core.commands.record_orders import RecordOrders
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
    "RecordOrders",
    "counting",
    "decode_entry",
    "encode_entry",
    "members_named",
]
