"""Operator commands that the members and the leader of a group obey.

In: see the packages inside.
Out: their faces.
"""

from __future__ import annotations

from allocator.core.commands.order_store import NoSuchOrder, OrderStore
from allocator.core.commands.orders import (
    KINDS,
    MAX_ORDERS,
    MAX_RESULTS,
    ORDERS_BYTES,
    OWNERS_KINDS,
    Order,
    OrderKeeper,
    OrderResult,
    Orders,
    order_of,
    order_text,
    result_of,
)
from allocator.core.commands.record_orders import Quarantined, RecordOrders
from allocator.core.commands.steering import (
    Budget,
    budget_of,
    counting,
    members_named,
    process_name,
)

__all__ = [
    "KINDS",
    "MAX_ORDERS",
    "MAX_RESULTS",
    "ORDERS_BYTES",
    "OWNERS_KINDS",
    "Budget",
    "NoSuchOrder",
    "Order",
    "OrderKeeper",
    "OrderResult",
    "OrderStore",
    "Orders",
    "Quarantined",
    "RecordOrders",
    "budget_of",
    "counting",
    "members_named",
    "order_of",
    "order_text",
    "process_name",
    "result_of",
]
