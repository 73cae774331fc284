"""What may be done to a group from the page or the API, by whoever has the token."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Optional

from allocator.consumer.switching import choose, path_of, read_choice
from allocator.errors import AllocatorError, ConfigError
from allocator.groups.zookeeper.order_store import OrderStore
from allocator.groups.zookeeper.orders import Order
from allocator.groups.zookeeper.store import Store
from allocator.groups.zookeeper.znodes import Paths
from allocator.names import GROUP_NAME
from allocator.zookeeper.client import BadVersion, ConnectionLost, NoZnode, ZooKeeper

__all__ = ["Action", "Copy", "NotNow", "Reset", "actions"]

Action = Callable[[str, Mapping[str, Any], str], Awaitable[dict[str, Any]]]
"""Given group, what the body says, and the user."""
Reset = Callable[[str, str, Collection[str], bool], Awaitable[dict[str, Any]]]
"""Given group, target ("earliest", ...), topics (none: all) and whether to do it: what was or would be committed."""

Copy = Callable[[str, str, bool], Awaitable[dict[str, Any]]]
"""Given group, the other group, and whether to do it: what was or would be committed there."""
NOTE = 500  # characters of a note
HOURS = 24 * 365


class NotNow(AllocatorError):
    """The group is not in a state in which that can be done."""

    retriable = True


def actions(
    zookeeper: Callable[[], Optional[ZooKeeper]], root: str, reset: Reset, copy: Optional[Copy] = None
) -> dict[str, Action]:
    """The actions by the last part of their path."""
    more: dict[str, Action] = {} if copy is None else {"offsets/copy": partial(_copy, copy)}
    return {
        **more,
        "note": _note,
        "rebalance": partial(_rebalance, zookeeper, root),
        "orders/put": partial(_order, zookeeper, root),
        "orders/remove": partial(_remove_orders, zookeeper, root),
        "pause": partial(_freeze, zookeeper, root, True),
        "resume": partial(_freeze, zookeeper, root, False),
        "offsets/reset": partial(_reset, reset),
    }


async def _freeze(
    zookeeper: Callable[[], Optional[ZooKeeper]],
    root: str,
    frozen: bool,
    group: str,
    given: Mapping[str, Any],
    user: str,
) -> dict[str, Any]:
    """Has the members that follow the group's setting finish what they have, commit and leave; or join again.

    It is the setting of a cutover, whose choice of brokers stays.
    """
    _only(given)
    zk = _connected(zookeeper)
    path = path_of(root, group)
    before = await read_choice(zk, path)
    await choose(zk, path, before._replace(frozen=frozen))
    return {"group": group, "paused": frozen}


async def _rebalance(
    zookeeper: Callable[[], Optional[ZooKeeper]], root: str, group: str, given: Mapping[str, Any], user: str
) -> dict[str, Any]:
    """Has the leader compute the assignment anew.

    It does so when the assignment's znode is gone, from what the members claim: nobody stops meanwhile, and what the
    function answers as before does not move. No member needs to know of us.
    """
    _only(given)
    zk = _connected(zookeeper)
    store = Store(zk, Paths(root, group))
    if not await store.member_names():
        raise NotNow(f"group {group!r} has no members, so nobody would compute an assignment")
    stat = await zk.exists(store.paths.assignment)
    if stat is not None:
        try:
            await zk.delete(store.paths.assignment, stat.version)
        except (BadVersion, NoZnode):
            raise NotNow(f"group {group!r} is rebalancing at this moment") from None
    return {"group": group, "asked": True}


async def _order(
    zookeeper: Callable[[], Optional[ZooKeeper]], root: str, group: str, given: Mapping[str, Any], user: str
) -> dict[str, Any]:
    """Gives the group an order; it replaces an earlier one with the same subject."""
    _only(given, "kind", "arguments", "why", "hours")
    kind, arguments, why, hours = (given.get(name) for name in ("kind", "arguments", "why", "hours"))
    if not isinstance(kind, str) or not isinstance(arguments, dict):
        raise ConfigError('"kind" must be the name of an order, and "arguments" an object')
    if not isinstance(why, (str, type(None))):
        raise ConfigError('"why" must be a text')
    if hours is not None and (type(hours) not in (int, float) or not 0 < hours <= HOURS):
        raise ConfigError(
            f'"hours" must be a number of hours up to {HOURS}, or be left out for an order without an end'
        )
    now_ms = round(1000 * time.time())
    expires = None if hours is None else now_ms + round(3_600_000 * hours)
    order = Order.make(kind, arguments, who=user or "page", now_ms=now_ms, why=why or "", expires=expires)
    try:
        await OrderStore(_connected(zookeeper), Paths(root, group)).put(order, now_ms)
    except NoZnode:
        raise NotNow(f"group {group!r} is gone") from None
    return {"group": group, "order": order.id}


async def _remove_orders(
    zookeeper: Callable[[], Optional[ZooKeeper]], root: str, group: str, given: Mapping[str, Any], user: str
) -> dict[str, Any]:
    """Takes orders back, by their ids."""
    _only(given, "ids")
    ids = given.get("ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
        raise ConfigError('"ids" must be a list of ids of orders')
    removed = await OrderStore(_connected(zookeeper), Paths(root, group)).remove(ids, round(1000 * time.time()))
    return {"group": group, "removed": [order.id for order in removed]}


async def _reset(reset: Reset, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Replaces committed offsets; only says what it would do, until `confirm` is the group's name."""
    _only(given, "to", "topics", "confirm")
    to, topics, confirm = given.get("to"), given.get("topics", []), given.get("confirm")
    if not isinstance(to, (str, int)) or isinstance(to, bool):
        raise ConfigError(
            '"to" must be "earliest", "latest", an offset, "timestamp:MILLISECONDS" or '
            'a time such as "2026-01-31T12:00:00Z"'
        )
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise ConfigError('"topics" must be a list of topics; an empty one stands for all of the group')
    if confirm is not None and confirm != group:
        raise ConfigError(
            f'"confirm" must be the name of the group, {group!r}, or be left out to see what would be done'
        )
    return await reset(group, str(to), topics, confirm is not None)


async def _copy(copy: Copy, group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Gives another group the offsets of this one; only says what it would do, until `confirm` is the other's name."""
    _only(given, "to", "confirm")
    to, confirm = given.get("to"), given.get("confirm")
    if not isinstance(to, str) or not GROUP_NAME.match(to) or to == group:
        raise ConfigError(f'"to" must be the name of another group than {group!r}')
    if confirm is not None and confirm != to:
        raise ConfigError(f'"confirm" must be the name of the other group, {to!r}, or be left out to see the plan')
    return await copy(group, to, confirm is not None)


async def _note(group: str, given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Marks a deployment, or anything else that people want to see beside the rebalances. The server keeps it."""
    _only(given, "text")
    text = given.get("text")
    if not isinstance(text, str) or not text.strip() or len(text) > NOTE:
        raise ConfigError(f'"text" must be a text of at most {NOTE} characters, such as "version 1.4.2"')
    return {"group": group, "noted": text}


def _connected(zookeeper: Callable[[], Optional[ZooKeeper]]) -> ZooKeeper:
    zk = zookeeper()
    if zk is None:
        raise ConnectionLost("ZooKeeper does not answer at present")
    return zk


def _only(given: Mapping[str, Any], *known: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"{', '.join(map(repr, unknown))} is not known here; {', '.join(known) or 'nothing'} is")
