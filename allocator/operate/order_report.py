"""Reports the orders of a group, as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from allocator.core.foreign import plain
from allocator.core.membership.zookeeper.orders import KINDS, Order, Orders
from allocator.core.membership.zookeeper.znodes import AssignmentDocument, MemberInfo

__all__ = ["ORDER_STATES", "OrderReport", "order_reports", "order_text"]

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
            "text": order_text(self.order),
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


def order_text(order: Order) -> str:
    """Returns the order in a few words: "pin orders:0-3 to rack a"."""
    given = order.arguments
    if order.fault is not None:
        return plain(order.kind)
    words = [order.kind]
    if "partitions" in given:
        words.append(" ".join(f"{topic}:{ranges}" for topic, ranges in given["partitions"].items()))
    if order.kind in ("cordon", "evacuate"):
        words.append(given["member"])
    elif order.kind == "swap":
        words.append(f"{given['old']} for {given['new']}")
    elif order.kind == "pin":
        words.append(f"to {_place(given['place'])}")
    elif order.kind == "exclude":
        words.append(f"from {', '.join(map(_place, given['places'])) or 'every member'}")
    elif order.kind == "budget":
        limits = ((given["at_once"], "at once"), (given["per_minute"], "a minute"))
        words.append(
            ", ".join(f"{number} {unit}" for number, unit in limits if number is not None) or "without a limit"
        )
    elif order.kind == "skip":
        words.append(f"at {given['offset']}")
    elif order.kind == "seek":
        words.append(f"to {given['to']}")
    elif order.kind == "shadow":
        words.append(given["function"])
    elif order.kind == "canary":
        words.append(f"{given['count']} partitions for each new member")
        if given["promoted"]:
            words.append(f"but {', '.join(given['promoted'])}")
    return plain(" ".join(words))


def _place(place: Mapping[str, str]) -> str:
    return f"rack {place['rack']}" if "rack" in place else place["member"]
