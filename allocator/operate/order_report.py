"""Reports the orders of a group, as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from allocator.core.commands import KINDS, Order, Orders
from allocator.core.text import plain
from allocator.core.znodes import AssignmentDocument, MemberInfo

ORDER_STATES = ("pending", "given", "waiting", "kept", "done", "not kept", "expired")


class OrderReport(NamedTuple):
    """One order with its state."""

    order: Order
    state: str
    """"pending": members of older versions do not know its kind. "given": the leader has not read it yet, or members
    carry it out without the leader. "waiting": the group does not comply yet. "kept": the group complies. "done":
    nothing is left to do. "not kept": the group cannot comply, and goes on without it. "expired"."""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """{"id", "kind", "text", "arguments", "who", "when", "why", "expires", "results", "state", "state_why"}; times
        in milliseconds since the epoch, `expires` null for never."""
        return {
            **self.order.to_json(),
            "text": str(self.order),
            "state": self.state,
            "state_why": plain(self.why),
        }


def order_reports(
    orders: Orders, document: Optional[AssignmentDocument], members: Mapping[str, MemberInfo], now_ms: int
) -> list[OrderReport]:
    """Returns every order, oldest first. `members` in join order."""
    noted = {} if document is None else document.orders
    leader = next(iter(members.values()), None)
    return [OrderReport(order, *_state(order, noted, leader, now_ms)) for order in orders.entries]


def _state(order: Order, noted: Mapping[str, Any], leader: Optional[MemberInfo], now_ms: int) -> tuple[str, str]:
    if order.fault is not None:
        return "not kept", order.fault
    if order.done:
        return "done", "; ".join(sorted({result.what for result in order.results}))
    if order.expired(now_ms):
        return "expired", ""
    if order.id in noted:
        return noted[order.id].state, noted[order.id].why
    if leader is None:
        return "waiting", "the group has no member"
    if KINDS[order.kind].acts == "leader" and order.kind not in leader.orders:
        return "pending", "the leader is of a version that does not know this order"
    if order.results:  # the result of an order that an owner cannot carry out
        return "not kept", "; ".join(sorted({result.what for result in order.results}))
    return "given", ""
