"""Server access of the commands that steer a group, and the output of a plan."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import methodcaller
from statistics import median
from typing import TYPE_CHECKING, Any, Optional

import click

from allocator.assignors import Assignor, GroupView, Member, wants
from allocator.cli.output import Listing, console, print_json
from allocator.core.client import KafkaClient
from allocator.core.commands import Order, counting
from allocator.core.membership import GroupViewBuilder, counts_of
from allocator.core.text import plain
from allocator.core.znodes import Paths
from allocator.errors import ConfigError, OrderRefused
from allocator.operate import (
    NOT_OURS,
    GroupPlan,
    GroupState,
    KafkaGroupOrders,
    OrderReport,
    OrdersFromOutside,
    OrdersOfGroup,
    Scenario,
    describe,
    kafka_group,
    measure,
    name_of,
    old_layouts,
    plan_of,
    subscribed,
)
from allocator.protocols import orders_topic
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from allocator.cli.read import Access
    from allocator.core.zookeeper import ZooKeeper

Act = Callable[[OrdersFromOutside], Awaitable[Any]]
Change = Callable[[Scenario], Scenario]

MEASURED = 5  # round trips to ZooKeeper: the median counts


class Rehearsal(OrdersOfGroup):
    """Collects the orders that would be written, and writes none."""

    def __init__(self, zk: ZooKeeper, group: str, root: str) -> None:
        super().__init__(zk, Paths(root, group))
        self.given: list[Order] = []

    async def _put(self, order: Order) -> OrderReport:
        self.given.append(order)
        _, pending = counting([order], await self._members(), {})
        return OrderReport(order, *pending.get(order.id, ("given", "")))


@asynccontextmanager
async def ours(access: Access, name: str) -> AsyncIterator[ZooKeeper]:
    """The ensemble of a group whose members follow all orders. Raises OrderRefused for any other group."""
    if access.zookeeper is None:
        raise OrderRefused(f"{NOT_OURS}. Give --zookeeper or --config for a group in ZooKeeper")
    async with access.ensemble() as zk:
        state = await describe(zk, name, access.root)
        if state is None or not state.members:
            older = await old_layouts(zk, name)
            if older.kiel or older.consumers:
                raise OrderRefused(f"group {name!r} has members in the layout of an older client. {NOT_OURS}")
            if access.brokers is not None:
                async with access.cluster() as client:
                    found = await kafka_group(client, name)
                if found is not None and found.alive:
                    raise OrderRefused(f"Kafka's coordinator has the members of group {name!r}. {NOT_OURS}")
        yield zk


class KafkaRehearsal(KafkaGroupOrders):
    """Writes no order, for groups of Kafka's own protocols."""

    async def _put(self, order: Order) -> OrderReport:
        return OrderReport(order, "given", "" if await self._members() else "the group has no member")


@asynccontextmanager
async def record_orders(
    access: Access, name: str, who: Optional[str] = None, create: bool = False
) -> AsyncIterator[OrdersFromOutside]:
    """The store of a group's orders: ZooKeeper or its topic. Raises OrderRefused if its members follow no orders."""
    if await in_kafka(access, name):
        assert access.brokers is not None
        async with KafkaGroupOrders(
            access.brokers, name, security=access.security, who=who, create=create, timeout_s=access.timeout_s
        ) as orders:
            yield orders
        return
    async with ours(access, name) as zk:
        yield OrdersOfGroup(zk, Paths(access.root, name), who)


async def in_kafka(access: Access, name: str) -> bool:
    """Whether the group has members in Kafka or a topic of orders, and no members in ZooKeeper."""
    if access.brokers is None:
        return False
    if access.zookeeper is not None:
        async with access.ensemble() as zk:
            state = await describe(zk, name, access.root)
        if state is not None and state.members:
            return False
    async with access.cluster() as client:
        topic = orders_topic(name)
        if topic is not None and client.partitions(topic) is not None:
            return True
        found = await kafka_group(client, name)
        return found is not None and found.alive


async def given(access: Access, name: str, act: Act, who: Optional[str] = None) -> OrderReport:
    async with ours(access, name) as zk:
        report: OrderReport = await act(OrdersOfGroup(zk, Paths(access.root, name), who))
        return report


async def given_about_records(access: Access, name: str, act: Act, *, create: bool = False) -> Any:
    """Like `given`, but also for groups of Kafka's own protocols. `act` may withdraw an order, too."""
    async with record_orders(access, name, create=create) as orders:
        return await act(orders)


async def listed(access: Access, name: str) -> list[OrderReport]:
    async with record_orders(access, name) as orders:
        return await orders.list()


# -- plans -----------------------------------------------------------------------------------------------------------


def changes_of(options: Mapping[str, Sequence[str]], function: Optional[str]) -> list[Change]:
    """The assumed changes from the options of `allocator group plan`, without orders. Raises ConfigError."""
    changes: list[Change] = []
    for text in options["add"]:
        name, weight = pair(text, "--add") if "=" in text else (text, "1")
        changes.append(methodcaller("adding", name, weight=_number(weight, "--add")))
    for text in options["add_in_rack"]:
        name, rack = pair(text, "--add-in-rack")
        changes.append(methodcaller("adding", name, rack=rack))
    for text in options["weight"]:
        name, weight = pair(text, "--weight")
        changes.append(methodcaller("weighing", name, _number(weight, "--weight")))
    changes += [methodcaller("moving_rack", *pair(text, "--rack")) for text in options["rack"]]
    for text in options["partitions"]:
        topic, count = pair(text, "--partitions")
        changes.append(methodcaller("growing", topic, int(_number(count, "--partitions"))))
    changes += [methodcaller("removing", name) for name in options["remove"]]
    changes += [methodcaller("removing", name, failed=True) for name in options["fail"]]
    changes += [methodcaller("failing_rack", rack) for rack in options["fail_rack"]]
    if function is not None:
        changes.append(methodcaller("using", function))
    return changes


def pair(text: str, option: str) -> tuple[str, str]:
    """(NAME, VALUE) of "NAME=VALUE". Raises ConfigError."""
    first, equals, second = text.rpartition("=")
    if not equals or not first or not second:
        raise ConfigError(f"{option} {text!r}: write NAME=VALUE")
    return first, second


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ConfigError(f"{option}: {text!r} is no positive number")
    return value


async def planned(access: Access, name: str, changes: Iterable[Change], acts: Iterable[Act]) -> GroupPlan:
    """The plan of a group with these changes and orders. Writes nothing."""
    async with ours(access, name) as zk:
        state = await describe(zk, name, access.root)
        if state is None:
            raise OrderRefused(f"ZooKeeper has no group {name!r} under {access.root}. {NOT_OURS}")
        rehearsal = Rehearsal(zk, name, access.root)
        for act in acts:
            await act(rehearsal)
        round_trip_s = await _round_trip_s(zk, rehearsal)
    if access.brokers is None:
        document = state.document
        scenario = Scenario.of(state, {} if document is None else counts_of(document))
        return await plan_of(_changed(scenario, changes, rehearsal.given), _plain_view, round_trip_s=round_trip_s)
    async with access.cluster() as client:
        counts: dict[str, int] = {}
        for partition in subscribed(state, client):
            counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
        lag = await _lag(client, state)

        async def load(partitions: Collection[TopicPartition]) -> dict[TopicPartition, float]:
            return {partition: float(lag[partition]) for partition in partitions if partition in lag}

        scenario = _changed(Scenario.of(state, counts), changes, rehearsal.given)
        build = GroupViewBuilder(name, client, load).view
        return await plan_of(scenario, build, lag=lag, round_trip_s=round_trip_s)


def _changed(scenario: Scenario, changes: Iterable[Change], orders: Iterable[Order]) -> Scenario:
    for change in changes:
        scenario = change(scenario)
    for order in orders:
        scenario = scenario.ordering(order)
    return scenario


async def _plain_view(assignor: Assignor, members: tuple[Member, ...], counts: Any, owned: Any) -> GroupView:
    missing = wants(assignor)
    if missing:
        raise ConfigError(f"allocator function {assignor.name!r} needs {' and '.join(sorted(missing))}; give --brokers")
    return GroupView(members, dict(counts), owned)


async def _lag(client: KafkaClient, state: GroupState) -> dict[TopicPartition, int]:
    logs = (await measure(client, state)).logs
    found = {partition: logs.lag(partition) for partition in logs.end}
    return {partition: records for partition, records in found.items() if records is not None}


async def _round_trip_s(zk: ZooKeeper, orders: OrdersOfGroup) -> float:
    times = []
    for _ in range(MEASURED):
        began = time.monotonic()
        await zk.exists(orders.path)
        times.append(time.monotonic() - began)
    return median(times)


def show_plan(plan: GroupPlan, as_json: bool) -> None:
    if as_json:
        print_json(plan.to_json())
        return
    out = console()
    out.print(plain(headline(plan)), markup=False)
    for table in (members_table(plan), moves_table(plan)):
        if table.rows:
            out.print()
            out.print(table)
    for each in plan.orders:
        if each.state not in ("kept", "done"):
            click.echo(plain(f"order {each.to_json()['text']} is {each.state}: {each.why}"))


def headline(plan: GroupPlan) -> str:
    if not plan.moves:
        return f"{plan.group}: nothing moves ({plan.function})"
    parts = [f"{plan.group}: {len(plan.moves)} partitions move ({plan.function})"]
    parts.append(f"each stands still for about {plan.move_s * 1000:.0f} ms and its handler")
    if plan.failed_s is not None:
        parts.append(f"those of failed members for up to {plan.failed_s:g} s")
    if plan.duration_s > plan.move_s:
        parts.append(f"the last one has moved after about {plan.duration_s:.1f} s")
    return "; ".join(parts)


def members_table(plan: GroupPlan) -> Listing:
    table = Listing("member", "change", "before", "after", "lag before", "lag after", right={2, 3, 4, 5})
    for each in plan.members:
        table.add(each.name, each.change, *each.partitions, *each.lag)
    return table


def moves_table(plan: GroupPlan) -> Listing:
    table = Listing("partition", "from", "to")
    for move in plan.moves:
        table.add(name_of(move.partition), plan.name_of(move.source), plan.name_of(move.target))
    return table
