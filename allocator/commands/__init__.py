"""What operators order a group to do: the commands, and how a member carries out those about its partitions.

`orders` defines the commands and their stored form, without I/O. `operator_orders` applies them to one consumer. The
leader of a group on ZooKeeper obeys the others: `protocols.zookeeper.steering`.
"""

from __future__ import annotations

from allocator.commands.operator_orders import OperatorOrders
from allocator.commands.orders import KINDS, Order, OrderKeeper, OrderResult, Orders

__all__ = ["KINDS", "OperatorOrders", "Order", "OrderKeeper", "OrderResult", "Orders"]
