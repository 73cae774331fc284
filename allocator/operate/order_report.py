"""The commands of a group with their states. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from allocator.commands import KINDS, Order, Orders
from allocator.core.text import plain
from allocator.protocols.zookeeper import AssignmentDocument, MemberInfo

ORDER_STATES = ("pending", "given", "waiting", "kept", "done", "not kept", "expired")


class OrderReport(NamedTuple):
    """One command with its state."""

    order: Order
    state: str
    """"pending": members of older versions do not know the kind of command. "given": the leader has not read it yet, or
    members execute it without the leader. "waiting": the group does not comply yet. "kept": the group complies. "done":
    nothing is left to do. "not kept": the group cannot comply, and continues without it. "expired"."""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields of the command with "text", "state" and "state_why". Times are milliseconds since the
        epoch; "expires" is null if the command never expires."""
        return {**self.order.to_json(), "text": str(self.order), "state": self.state, "state_why": plain(self.why)}


def order_reports(
    orders: Orders, document: Optional[AssignmentDocument], members: Mapping[str, MemberInfo], now_ms: int
) -> list[OrderReport]:
    """Returns every command, oldest first. `members` are in join order, so the first one leads."""
    noted = {} if document is None else document.orders
    return [OrderReport(order, *_state(order, noted, members, now_ms)) for order in orders.entries]


def unknown_to_all(order: Order, members: Mapping[str, MemberInfo]) -> bool:
    """Returns whether no member will know this kind of command. Members of an `Allocation` have no records, so they
    know no command about records. Members that name no kinds are of an older version, whose successors may know it."""
    known = [info.orders for info in members.values()]
    return any(known) and not any(order.kind in kinds for kinds in known)


def _state(order: Order, noted: Mapping[str, Any], members: Mapping[str, MemberInfo], now_ms: int) -> tuple[str, str]:
    if order.fault is not None:
        return "not kept", order.fault
    if order.done:
        return "done", "; ".join(sorted({result.what for result in order.results}))
    if order.expired(now_ms):
        return "expired", ""
    if order.id in noted:
        return noted[order.id].state, noted[order.id].why
    leader = next(iter(members.values()), None)
    if leader is None:
        return "waiting", "the group has no member"
    if KINDS[order.kind].acts == "owner" and unknown_to_all(order, members):
        return "not kept", "no member executes this kind of command"
    if KINDS[order.kind].acts == "leader" and order.kind not in leader.orders:
        return "pending", "the version of the leader does not know this kind of order"
    if order.results:  # an owner reported why it cannot execute the command
        return "not kept", "; ".join(sorted({result.what for result in order.results}))
    return "given", ""
