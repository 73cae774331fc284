"""The actions that an operator on the page, or an API client with the token, can run on a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from msgspec.structs import replace

from allocator.core.settings import check_group
from allocator.core.znodes import Paths, Store
from allocator.core.zookeeper import BadVersion, ConnectionLost, NoZnode, ZooKeeper
from allocator.errors import AllocatorError, ConfigError, OrderRefused
from allocator.operate import NOT_OURS, OrdersFromOutside, OrdersOfGroup, choice_path, choose_cluster, read_choice
from allocator.web import answers
from allocator.web.requests import (
    CopyRequest,
    DeleteRequest,
    NewOrder,
    NoteRequest,
    Nothing,
    OrderRequest,
    PlanRequest,
    Post,
    RemoveRequest,
    ResetRequest,
    Suppositions,
    WithdrawRequest,
    confirmed,
)
from allocator.web.work import ClusterWork

Action = Callable[[str, Mapping[str, Any], str], Awaitable[dict[str, Any]]]
"""Arguments: the group, the request body, and the user."""
Session = Callable[[], Optional[ZooKeeper]]


class NotNow(AllocatorError):
    """The state of the group does not allow the action."""

    retriable = True


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


class GroupWork:
    """Changes groups for a page."""

    def __init__(self, place: Place, work: ClusterWork) -> None:
        self._place = place
        self._work = work

    async def pause(self, group: str, _: Nothing, user: str) -> dict[str, Any]:
        """Pauses the members that follow the group's setting: they finish the records they have, commit and leave."""
        return await self._freeze(group, True)

    async def resume(self, group: str, _: Nothing, user: str) -> dict[str, Any]:
        """Makes the members that follow the group's setting join again."""
        return await self._freeze(group, False)

    async def _freeze(self, group: str, frozen: bool) -> dict[str, Any]:
        """Sets the setting of a cutover, which keeps its choice of brokers."""
        zk = self._place.session(group)
        path = choice_path(self._place.root, group)
        before = await read_choice(zk, path)
        await choose_cluster(zk, path, before._replace(frozen=frozen))
        return {"group": group, "paused": frozen}

    async def rebalance(self, group: str, _: Nothing, user: str) -> dict[str, Any]:
        """Makes the leader compute the assignment again.

        The leader does this when the znode of the assignment is missing, and starts from the claims of the members. The
        members keep working. A partition moves only if the allocator function now returns another owner for it.
        """
        zk = self._place.session(group)
        store = Store(zk, self._place.paths(group))
        if not await store.member_names():
            raise NotNow(f"group {group!r} has no members, so nobody would compute an assignment")
        stat = await zk.exists(store.paths.assignment)
        if stat is not None:
            try:
                await zk.delete(store.paths.assignment, stat.version)
            except (BadVersion, NoZnode):
                raise NotNow(f"group {group!r} is rebalancing at this moment") from None
        return {"group": group, "asked": True}

    @asynccontextmanager
    async def _orders_of(self, group: str, user: str, create: bool = False) -> AsyncIterator[OrdersFromOutside]:
        who = user or "page"
        if self._place.in_kafka(group):
            async with self._work.steered(group, who, create) as found:
                yield found.orders
        else:
            yield OrdersOfGroup(self._place.session(group), self._place.paths(group), who)

    async def order(self, group: str, new: NewOrder, user: str) -> dict[str, Any]:
        """Adds an order to the group. It replaces an earlier order with the same subject."""
        async with self._orders_of(group, user, new.create) as orders:
            report = await orders.give_by_name(new.kind, new.arguments, why=new.why, expires_s=new.expires_s)
        return {"group": group, "order": report.order.id, "state": report.state, "state_why": report.why}

    async def preview(self, group: str, order: OrderRequest, user: str) -> dict[str, Any]:
        """Returns what an order would do. It does not give the order."""
        return {**await self._work.preview(group, order), "executed": False}

    async def withdraw(self, group: str, body: WithdrawRequest, user: str) -> dict[str, Any]:
        """Withdraws orders from some partitions. An order that names other partitions too stays in force for those."""
        async with self._orders_of(group, user) as orders:
            removed = await orders.withdraw(body.kind, body.arguments)
        return {"group": group, "withdrawn": [each.id for each in removed]}

    async def remove_orders(self, group: str, body: RemoveRequest, user: str) -> dict[str, Any]:
        """Removes orders by id."""
        async with self._orders_of(group, user) as orders:
            removed = await orders.remove(*body.ids)
        return {"group": group, "removed": [order.id for order in removed]}

    async def plan(self, group: str, body: PlanRequest, user: str) -> dict[str, Any]:
        """Returns what would move under the given suppositions and orders. With `apply` it also gives the orders."""
        changes = {name: getattr(body, name) for name in Suppositions.__struct_fields__}
        orders = [replace(order, why=order.why or body.why) for order in body.orders]
        return await self._work.plan(group, changes, body.function or None, orders, body.apply, user or "page")

    async def delete(self, group: str, body: DeleteRequest, user: str) -> dict[str, Any]:
        """Deletes a group without members. Unless `confirm` is the group, it only returns what it would delete."""
        return await self._work.delete(group, body.keep_offsets, confirmed(body.confirm, "group", group))

    async def reset(self, group: str, body: ResetRequest, user: str) -> dict[str, Any]:
        """Resets committed offsets. Unless `confirm` is the group's name, it only returns what it would commit."""
        return await self._work.reset(group, str(body.to), body.topics, confirmed(body.confirm, "group", group))

    async def copy(self, group: str, body: CopyRequest, user: str) -> dict[str, Any]:
        """Copies the offsets of this group to another group. Unless `confirm` is the other group's name, it only
        returns what it would commit."""
        check_group(body.to)
        if body.to == group:
            raise ConfigError(f'"to" must be the name of another group than {group!r}')
        return await self._work.copy(group, body.to, confirmed(body.confirm, "other group", body.to))

    async def note(self, group: str, body: NoteRequest, user: str) -> dict[str, Any]:
        """Stores a note, such as a deployment, which the page shows beside the rebalances."""
        return {"group": group, "noted": body.text}


# by the last part of their URL path
POSTS = {
    "rebalance": Post("Have the leader compute the assignment anew", Nothing, answers.AskedJson, GroupWork.rebalance),
    "pause": Post("Have members that follow the group's setting leave", Nothing, answers.PausedJson, GroupWork.pause),
    "resume": Post("Have them join again", Nothing, answers.PausedJson, GroupWork.resume),
    "offsets/reset": Post("Replace committed offsets", ResetRequest, answers.ResetJson, GroupWork.reset),
    "offsets/copy": Post("Commit the same offsets for another group", CopyRequest, answers.ResetJson, GroupWork.copy),
    "orders/put": Post("Order the group something", NewOrder, answers.OrderedJson, GroupWork.order),
    "orders/preview": Post("What an order would do", OrderRequest, answers.OrderPreviewJson, GroupWork.preview),
    "orders/withdraw": Post(
        "Take orders back from some partitions", WithdrawRequest, answers.WithdrawnJson, GroupWork.withdraw
    ),
    "orders/remove": Post("Take orders back", RemoveRequest, answers.RemovedJson, GroupWork.remove_orders),
    "plan": Post("What would move under suppositions and orders", PlanRequest, answers.PlanJson, GroupWork.plan),
    "delete": Post("Delete a group without members", DeleteRequest, answers.DeletedJson, GroupWork.delete),
    "note": Post("Mark a deployment in the history", NoteRequest, answers.NotedJson, GroupWork.note),
}


def actions(place: Place, work: ClusterWork) -> dict[str, Action]:
    """Returns the actions on the groups of these clusters, by their names in POSTS."""
    maker = GroupWork(place, work)
    return {name: partial(post, maker) for name, post in POSTS.items()}
