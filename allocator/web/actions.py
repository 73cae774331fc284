"""The actions that an operator on the page, or an API client with the token, can run on a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional, Protocol

from allocator.core.errors import OrderRefused
from allocator.core.membership.zookeeper.store import Store
from allocator.core.membership.zookeeper.znodes import Paths
from allocator.core.names import GROUP_NAME
from allocator.core.zookeeper.client import BadVersion, ConnectionLost, NoZnode, ZooKeeper
from allocator.errors import AllocatorError, ConfigError
from allocator.operate import NOT_OURS, OrdersFromOutside, OrdersOfGroup, choice_path, choose_cluster, read_choice
from allocator.web.request_body import RequestBody

__all__ = ["Action", "ClusterWork", "GivenOrder", "NotNow", "Place", "actions"]

Action = Callable[[str, Mapping[str, Any], str], Awaitable[dict[str, Any]]]
"""Arguments: the group, the request body, and the user."""
Session = Callable[[], Optional[ZooKeeper]]

NOTE = 500  # characters of a note
HOURS = 24 * 365
ORDER_FIELDS = ("kind", "arguments", "why", "hours")
SUPPOSITIONS = ("add", "add_in_rack", "remove", "fail", "fail_rack", "weight", "rack", "partitions")
MOST = 200  # suppositions and orders of one plan


class NotNow(AllocatorError):
    """The state of the group does not allow the action."""

    retriable = True


@dataclass(frozen=True)
class GivenOrder:
    """An order from a request body. `expires_s` is None for an order that never expires."""

    kind: str
    arguments: Mapping[str, Any]
    why: str = ""
    expires_s: Optional[float] = None


class PlanWork(Protocol):
    """Computes a plan. Arguments: the group, suppositions by the option names of `allocator group plan`, an allocator
    function, orders, whether to give the orders, and the user."""

    def __call__(
        self,
        group: str,
        changes: Mapping[str, Sequence[str]],
        function: Optional[str],
        orders: Sequence[GivenOrder],
        apply: bool,
        who: str,
    ) -> Awaitable[dict[str, Any]]: ...


@dataclass(frozen=True)
class ClusterWork:
    """Actions that open connections of their own. `allocator.cli.page_work` implements them."""

    reset: Callable[[str, str, Collection[str], bool], Awaitable[dict[str, Any]]]
    """Resets offsets. Arguments: the group, the target ("earliest", ...), the topics (none: all), and whether to
    commit. Returns the committed offsets, or those that it would commit."""
    copy: Callable[[str, str, bool], Awaitable[dict[str, Any]]]
    """Copies offsets. Arguments: the group, the other group, and whether to commit. Returns the offsets committed for
    the other group, or those that it would commit."""
    preview: Callable[[str, GivenOrder], Awaitable[dict[str, Any]]]
    """Returns what an order would do. Arguments: the group and the order."""
    plan: PlanWork
    orders: Callable[[str, str, bool], AbstractAsyncContextManager[OrdersFromOutside]]
    """The orders of a group of Kafka's own protocols. Arguments: the group, the user, and whether the first order
    creates their topic."""
    delete: Callable[[str, bool, bool], Awaitable[dict[str, Any]]]
    """Deletes a group. Arguments: the group, whether to keep its offsets, and whether to delete. Returns what it
    deleted, or what it would delete."""


@dataclass(frozen=True)
class Place:
    """Where the groups of a page are."""

    zookeeper: Session
    root: str
    in_kafka: Callable[[str], bool]
    """Whether Kafka's coordinator has the members of a group."""

    def session(self, group: str) -> ZooKeeper:
        """The session for a group in ZooKeeper. Raises OrderRefused for another one, ConnectionLost."""
        if self.in_kafka(group):
            raise OrderRefused(f"Kafka's coordinator has the members of group {group!r}. {NOT_OURS}")
        zk = self.zookeeper()
        if zk is None:
            raise ConnectionLost("ZooKeeper does not answer at present")
        return zk

    def paths(self, group: str) -> Paths:
        return Paths(self.root, group)


def actions(place: Place, work: ClusterWork) -> dict[str, Action]:
    """Returns the actions, keyed by the last part of their URL path."""
    return {
        "note": _note,
        "rebalance": partial(_rebalance, place),
        "orders/put": partial(_order, place, work),
        "orders/preview": partial(_preview, work),
        "orders/withdraw": partial(_withdraw, place, work),
        "orders/remove": partial(_remove_orders, place, work),
        "plan": partial(_plan, work),
        "pause": partial(_freeze, place, True),
        "resume": partial(_freeze, place, False),
        "offsets/reset": partial(_reset, work),
        "offsets/copy": partial(_copy, work),
        "delete": partial(_delete, work),
    }


async def _freeze(place: Place, frozen: bool, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Pauses or resumes the members that follow the group's setting.

    To pause, members finish the records they have, commit and leave. To resume, they join again. The setting is that of
    a cutover; it keeps its choice of brokers.
    """
    RequestBody(given)
    zk = place.session(group)
    path = choice_path(place.root, group)
    before = await read_choice(zk, path)
    await choose_cluster(zk, path, before._replace(frozen=frozen))
    return {"group": group, "paused": frozen}


async def _rebalance(place: Place, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Makes the leader compute the assignment again.

    The leader does this when the znode of the assignment is missing, and starts from the claims of the members. The
    members keep working. A partition moves only if the allocator function now returns another owner for it.
    """
    RequestBody(given)
    zk = place.session(group)
    store = Store(zk, place.paths(group))
    if not await store.member_names():
        raise NotNow(f"group {group!r} has no members, so nobody would compute an assignment")
    stat = await zk.exists(store.paths.assignment)
    if stat is not None:
        try:
            await zk.delete(store.paths.assignment, stat.version)
        except (BadVersion, NoZnode):
            raise NotNow(f"group {group!r} is rebalancing at this moment") from None
    return {"group": group, "asked": True}


def _given_order(given: Mapping[str, Any], *more: str) -> GivenOrder:
    """The order of a request body. `more`: further fields that the body may have."""
    body = RequestBody(given, *ORDER_FIELDS, *more)
    kind, arguments, hours = (given.get(name) for name in ("kind", "arguments", "hours"))
    if not isinstance(kind, str) or not isinstance(arguments, dict):
        raise ConfigError('"kind" must be the name of an order, and "arguments" an object')
    why = body.text_or_null("why") or ""
    if hours is not None and (type(hours) not in (int, float) or not 0 < hours <= HOURS):
        raise ConfigError(
            f'"hours" must be a number of hours up to {HOURS}, or be left out for an order without an end'
        )
    return GivenOrder(kind, arguments, why, None if hours is None else 3600.0 * hours)


@asynccontextmanager
async def _orders_of(
    place: Place, work: ClusterWork, group: str, user: str, create: bool = False
) -> AsyncIterator[OrdersFromOutside]:
    who = user or "page"
    if place.in_kafka(group):
        async with work.orders(group, who, create) as orders:
            yield orders
    else:
        yield OrdersOfGroup(place.session(group), place.paths(group), who)


async def _order(place: Place, work: ClusterWork, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Adds an order to the group. It replaces an earlier order with the same subject. `create` also creates the topic
    of the orders, for a group of Kafka's own protocols."""
    create = RequestBody(given, *ORDER_FIELDS, "create").flag("create")
    order = _given_order(given, "create")
    async with _orders_of(place, work, group, user, create) as orders:
        report = await orders.give_by_name(order.kind, order.arguments, why=order.why, expires_s=order.expires_s)
    return {"group": group, "order": report.order.id, "state": report.state, "state_why": report.why}


async def _preview(work: ClusterWork, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Returns what an order would do. It does not give the order."""
    return {**await work.preview(group, _given_order(given)), "executed": False}


async def _withdraw(place: Place, work: ClusterWork, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Withdraws orders from some partitions. An order that also names other partitions stays in force for those."""
    RequestBody(given, "kind", "arguments")
    order = _given_order(given)
    async with _orders_of(place, work, group, user) as orders:
        removed = await orders.withdraw(order.kind, order.arguments)
    return {"group": group, "withdrawn": [each.id for each in removed]}


async def _plan(work: ClusterWork, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Returns what would move under the given suppositions and orders. With `apply` it also gives the orders."""
    body = RequestBody(given, *SUPPOSITIONS, "function", "orders", "apply", "why")
    changes = {name: body.list(name, str, MOST) for name in SUPPOSITIONS}
    why = body.text("why")
    orders = [_given_order({"why": why, **each}) for each in body.list("orders", dict, MOST)]
    function = body.text_or_null("function") or None
    return await work.plan(group, changes, function, orders, body.flag("apply"), user or "page")


async def _delete(work: ClusterWork, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Deletes a group without members. Unless `confirm` is the group's name, it only returns what it would delete."""
    body = RequestBody(given, "keep_offsets", "confirm")
    return await work.delete(group, body.flag("keep_offsets"), body.confirmed("group", group))


async def _remove_orders(
    place: Place, work: ClusterWork, group: str, given: Mapping[str, Any], user: str
) -> dict[str, Any]:
    """Removes orders by id."""
    ids = RequestBody(given, "ids").list("ids", str)
    if not ids:
        raise ConfigError('"ids" must be a list of ids of orders')
    async with _orders_of(place, work, group, user) as orders:
        removed = await orders.remove(*ids)
    return {"group": group, "removed": [order.id for order in removed]}


async def _reset(work: ClusterWork, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Resets committed offsets. Unless `confirm` is the group's name, it only returns what it would commit."""
    body = RequestBody(given, "to", "topics", "confirm")
    to = given.get("to")
    if not isinstance(to, (str, int)) or isinstance(to, bool):
        raise ConfigError(
            '"to" must be "earliest", "latest", an offset, "timestamp:MILLISECONDS" or '
            'a time such as "2026-01-31T12:00:00Z"'
        )
    topics = body.list("topics", str)
    return await work.reset(group, str(to), topics, body.confirmed("group", group))


async def _copy(work: ClusterWork, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Copies the offsets of this group to another group. Unless `confirm` is the other group's name, it only returns
    what it would commit."""
    body = RequestBody(given, "to", "confirm")
    to = body.text("to")
    if not GROUP_NAME.match(to) or to == group:
        raise ConfigError(f'"to" must be the name of another group than {group!r}')
    return await work.copy(group, to, body.confirmed("other group", to))


async def _note(group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Stores a note, such as a deployment, which the page shows beside the rebalances."""
    text = RequestBody(given, "text").text("text")
    if not text.strip() or len(text) > NOTE:
        raise ConfigError(f'"text" must be a text of at most {NOTE} characters, such as "version 1.4.2"')
    return {"group": group, "noted": text}
